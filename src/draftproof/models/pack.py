"""Anchors and ragged drafts to one padded batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
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
    tokens, positions = [], []
    mask = np.zeros((len(anchors), width, width), np.bool_)
    mask[:, np.arange(width), np.arange(width)] = True
    for b, (anchor, draft) in enumerate(zip(anchors, drafts, strict=True)):
        fed = 1 + len(draft.tokens)
        tokens.append([anchor, *draft.tokens, *[0] * (width - fed)])
        depths = [0]
        if draft.is_chain:
            mask[b, :fed, :fed] = np.tri(fed, dtype=np.bool_)
            depths.extend(range(1, fed))
        else:
            for i, parent in enumerate(draft.parents, start=1):
                mask[b, i] |= mask[b, parent + 1]
                depths.append(depths[parent + 1] + 1)
        # Padding repeats the anchor's position, which every model can embed.
        positions.append([lengths[b] + depth for depth in depths + [0] * (width - fed)])
    return TreeBatch(
        torch.tensor(tokens, device=device),
        torch.tensor(positions, device=device),
        torch.from_numpy(mask).to(device),
        torch.empty((len(anchors), 0), dtype=torch.long, device=device),
        tuple(1 + len(draft.tokens) for draft in drafts),
    )
