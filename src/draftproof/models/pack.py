"""Anchors and ragged drafts to one padded batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.core import Draft, TreeBatch


def pack(
    anchors: Sequence[int],
    drafts: Sequence[Draft],
    lengths: Sequence[int],
    device: torch.device,
) -> TreeBatch:
    """One row per sequence: its anchor, then its draft, then padding that only sees itself.

    `lengths[b]` is the number of committed tokens before the anchor, which is its position.
    """
    width = 1 + max(len(draft.tokens) for draft in drafts)
    rows, positions = len(anchors), []
    mask = torch.eye(width, dtype=torch.bool).repeat(rows, 1, 1)
    tokens = torch.zeros((rows, width), dtype=torch.long)
    for b, (anchor, draft) in enumerate(zip(anchors, drafts, strict=True)):
        fed = 1 + len(draft.tokens)
        tokens[b, :fed] = torch.tensor([anchor, *draft.tokens])
        depths = [0]
        if draft.is_chain:
            mask[b, :fed, :fed] = torch.ones((fed, fed), dtype=torch.bool).tril_()
            depths.extend(range(1, fed))
        else:
            for i, parent in enumerate(draft.parents, start=1):
                mask[b, i] |= mask[b, parent + 1]
                depths.append(depths[parent + 1] + 1)
        # Padding repeats the anchor's position, which every model can embed.
        positions.append([lengths[b] + depth for depth in depths + [0] * (width - fed)])
    return TreeBatch(tokens.to(device), torch.tensor(positions, device=device), mask.to(device))
