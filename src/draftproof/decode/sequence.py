"""One sequence while it is decoded: its ids, its own randomness, rule, warp and end."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass

import torch

from draftproof.core import Context, Draft, FinishReason, Origin, Step, TokenLogprobs, Verdict
from draftproof.decode.stop import StopRules
from draftproof.sampling.noise import Noise
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.stats.counters import Stats
from draftproof.verification.base import Pairing


@dataclass(slots=True)
class Sequence:
    """All state of one sample of one request; `tokens` always ends with the anchor."""

    seq_id: int
    tokens: list[int]
    """Prompt and committed ids."""
    prompt_length: int
    params: SamplingParams
    pairing: Pairing
    warp: Warp
    noise: Noise
    stop: StopRules
    max_length: int
    """Most ids, prompt included, that max_tokens and the context limit allow."""
    stats: Stats
    row: int = -1
    """Row in the target's cache once admitted."""
    finish_reason: FinishReason | None = None

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def max_depth(self) -> int:
        """Deepest draft whose tokens, with the one the target adds, can all be kept."""
        return max(0, self.max_length - len(self.tokens) - 1)

    @property
    def reads_seed(self) -> bool:
        """Whether a request with the same seed reads the numbers that judge this one's drafts: how
        that one fares may then not decide what is drafted here."""
        rule = self.pairing.verifier
        return self.params.seed is not None and not rule.keyed and not rule.greedy

    @property
    def context(self) -> Context:
        return Context(
            self.seq_id,
            self.row,
            self.tokens,
            self.warp,
            self.noise,
            self.pairing.proposal,
            self.prompt_length,
        )

    def judge(self, draft: Draft, logits: torch.Tensor) -> Verdict:
        """Warp the target's logits f[N+1, V] to p and apply the sequence's rule."""
        p = self.warp.target_law(logits, self.tokens, draft.parents, draft.tokens)
        return self.pairing.verifier.verify(draft, p, len(self.tokens), self.noise)

    def commit(self, draft: Draft, verdict: Verdict, logits: torch.Tensor) -> Step:
        """Take the verdict's tokens up to where the sequence ends; everything is cut here at once.

        The cache's part of the cut is `kept_columns`, which the caller applies.
        """
        tokens = [*(draft.tokens[node] for node in verdict.accepted), verdict.next_token]
        cut = self.stop.cut(self.tokens, self.prompt_length, tokens)
        tokens = tokens[: cut.kept]
        columns = kept_columns(verdict, cut.kept)
        # Plain decoding would have asked for exactly these rows, and failed where one is dead.
        for column in columns:
            self.warp.require(column - 1)
        self.warp.settle(columns[-1] - 1)
        self.tokens.extend(tokens)
        self.finish_reason = cut.finish_reason
        return Step(
            seq_id=self.seq_id,
            tokens=tuple(tokens),
            origins=_origins(draft, verdict)[: cut.kept],
            drafted=len(draft.tokens),
            depth=draft.depth,
            accepted=min(len(verdict.accepted), cut.kept),
            finish_reason=cut.finish_reason,
            logprobs=self._logprobs(logits, columns, tokens),
            texts=cut.texts,
        )

    def _logprobs(
        self, logits: torch.Tensor, columns: Ids[int], tokens: Ids[int]
    ) -> tuple[TokenLogprobs, ...] | None:
        """From the target's raw logits: one entry per committed token, whatever its origin."""
        if self.params.logprobs is None:
            return None
        table = logits[list(columns)]
        table = torch.log_softmax(table if table.dtype == torch.float64 else table.float(), dim=-1)
        top = torch.topk(table, min(self.params.logprobs, table.shape[-1]), dim=-1)
        return tuple(
            TokenLogprobs(
                token,
                float(table[row, token]),
                tuple(zip(top.indices[row].tolist(), top.values[row].tolist(), strict=True)),
            )
            for row, token in enumerate(tokens)
        )


def kept_columns(verdict: Verdict, kept: int) -> list[int]:
    """Columns of the forward pass that stay in the cache when `kept` tokens are committed.

    The last committed token is the next anchor and is not cached:

        committed   x1 x2 y          kept = 3
        columns     anchor x1 x2     the rows of logits that produced x1, x2 and y
    """
    return [0, *(node + 1 for node in verdict.accepted[: kept - 1])]


def _origins(draft: Draft, verdict: Verdict) -> tuple[Origin, ...]:
    last: Origin = "bonus" if verdict.all_accepted else "correction"
    if not draft.tokens:
        last = "plain"
    accepted: list[Origin] = ["accepted"] * len(verdict.accepted)
    return (*accepted, last)
