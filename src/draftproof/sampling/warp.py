"""Logits to distribution, once: the only place where a request's sampling fields act on logits."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import cast

import torch
from torch.nn.functional import pad

from draftproof.errors import InvalidSetting, LimitExceeded
from draftproof.sampling.draw import argmax
from draftproof.sampling.matcher import Matcher
from draftproof.sampling.params import LogitsProcessor, SamplingParams

_COLD = 1e-3
"""Below this temperature, logits divided by it could overflow."""

Processors = tuple[LogitsProcessor, ...]


class Warp:
    """One sequence's map from (logits, prefix) to p.

    `num_tokens` is the number of ids that are real tokens; logits beyond it pad the embedding and
    can never be emitted. `end_ids` are impossible until `params.min_tokens` tokens are out.
    `matcher` is that of `params.grammar`.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        prompt_length: int,
        num_tokens: int,
        end_ids: frozenset[int] = frozenset(),
        matcher: Matcher | None = None,
    ) -> None:
        assert (params.grammar is None) == (matcher is None), "a grammar comes with its matcher"
        named = [*params.logit_bias, *params.stop_token_ids]
        if beyond := [token for token in named if token >= num_tokens]:
            raise InvalidSetting(
                f"token id {beyond[0]} in logit_bias or stop_token_ids is beyond the vocabulary; "
                f"give ids below {num_tokens}"
            )
        self.params = params
        self._prompt_length = prompt_length
        self._num_tokens = num_tokens
        self._end_ids = sorted(end_ids)
        self._matcher = matcher
        self._processors = fork_processors(tuple(params.logits_processors))
        self._forks: list[Processors] = []
        self._failures: dict[int, Exception] = {}
        self._dead_rows: list[int] = []

    def target_law(
        self,
        logits: torch.Tensor,
        tokens: Sequence[int],
        parents: Sequence[int],
        nodes: Sequence[int],
    ) -> torch.Tensor:
        """p f[N+1, V] after the anchor and after each drafted node.

        `logits` f[N+1, V] is left as it is. The user's processors are forked along the tree: the
        copy that judges a node has seen its ancestors and nothing else; `settle` keeps one.
        A row behind which no token is possible is all zero: plain decoding may never get there,
        so it is an error only once its node is kept.
        """
        paths = _paths(parents, nodes)
        scores = self._processed(logits, tokens, paths)
        self._failures = {}
        if self._processors:
            scores = self._apply_forks(scores, tokens, paths, parents)
        self._constrain(scores, tokens, paths)
        p = self._shaped(scores, logits.shape[-1])
        if 0 in self._dead_rows:
            self.require(-1)
        return p

    def require(self, node: int) -> None:
        """Raise what went wrong behind `node` (-1 = anchor), which has been kept."""
        if error := self._failures.get(node + 1):
            raise error
        if node + 1 in self._dead_rows:
            raise InvalidSetting(
                "no token is possible: logit_bias, min_tokens, a logits processor or the grammar "
                "ban them all"
            )

    def draft_law(self, logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """q f[V] from a drafter's logits f[V] after `tokens`, shaped as the target's would be.

        Without the user's processors: q may be anything as long as the tokens are drawn from it.
        All zero where no token is possible.
        """
        return self._shaped(self._drafted(logits, tokens), logits.shape[-1])[0]

    def belief(self, logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """What a drafter's logits f[V] say of the token after `tokens`: f[V].

        `draft_law`, but at temperature 1 where the request takes the likeliest token, of which
        alone `draft_law` knows then.
        """
        if not self.params.is_greedy:
            return self.draft_law(logits, tokens)
        p = torch.softmax(self._drafted(logits, tokens), dim=-1).nan_to_num()
        return _widened(p, logits.shape[-1])[0]

    def settle(self, node: int) -> None:
        """Make the processors' state after `node` (-1 = anchor) the committed one."""
        if self._processors:
            self._processors = self._forks[node + 1]
            self._forks = []

    def _apply_forks(
        self,
        scores: torch.Tensor,
        tokens: Sequence[int],
        paths: Sequence[Sequence[int]],
        parents: Sequence[int],
    ) -> torch.Tensor:
        self._forks = []
        rows = []
        for row, path in enumerate(paths):
            before = self._processors if row == 0 else self._forks[parents[row - 1] + 1]
            fork = fork_processors(before)
            ids = torch.tensor([[*tokens, *path]], dtype=torch.long, device=scores.device)
            result = scores[row : row + 1].clone()
            try:
                for processor in fork:
                    result = processor(cast(torch.LongTensor, ids), cast(torch.FloatTensor, result))
            except Exception as error:
                # A drafted prefix may be one that the processor was never meant to see.
                self._failures[row] = error
                result = torch.full_like(result, -torch.inf)
            self._forks.append(fork)
            rows.append(result)
        return torch.cat(rows)

    def _drafted(self, logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """A drafter's logits f[V] before temperature: f[1, V], or without the padding."""
        scores = self._processed(logits[None], tokens, [()])
        self._constrain(scores, tokens, [()])
        return scores

    def _constrain(
        self, scores: torch.Tensor, tokens: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> None:
        """Ban what the grammar does not allow behind each path; last, so that nothing undoes it."""
        if self._matcher is None:
            return
        text = tuple(tokens[self._prompt_length :])
        answers = []
        for row, path in enumerate(paths):
            try:
                answers.append(self._matcher.after((*text, *path)))
            except LimitExceeded as error:
                self._failures[row] = error
                answers.append(self._matcher.nothing())
        self._matcher.ban(scores, answers)

    def _processed(
        self, logits: torch.Tensor, tokens: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Everything before temperature except the user's processors; float32 or float64.

        Where nothing changes them, the logits themselves without the padding: a copy of all takes
        as long as all else that a greedy round does with them.
        """
        scores = logits if logits.dtype == torch.float64 else logits.float()
        params = self.params
        if not self._changes_scores(len(tokens)):
            return scores[:, : self._num_tokens]
        if scores is logits:
            scores = scores.clone()
        if self._num_tokens < scores.shape[-1]:
            scores[:, self._num_tokens :] = -torch.inf
        for token, bias in params.logit_bias.items():
            scores[:, token] += bias
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            for row, path in enumerate(paths):
                self._penalise(scores[row], tokens, path)
        generated = len(tokens) - self._prompt_length
        for row, path in enumerate(paths):
            if generated + len(path) < params.min_tokens:
                scores[row, self._end_ids] = -torch.inf
        return scores

    def _changes_scores(self, length: int) -> bool:
        """Whether anything of the request touches the logits behind `length` tokens."""
        params = self.params
        return bool(
            params.logit_bias
            or params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
            or length - self._prompt_length < params.min_tokens
            or self._processors
            or self._matcher is not None
        )

    def _penalise(self, scores: torch.Tensor, tokens: Sequence[int], path: Sequence[int]) -> None:
        params = self.params
        if params.repetition_penalty != 1.0:
            seen = torch.tensor(sorted({*tokens, *path}), device=scores.device)
            values = scores[seen]
            penalty = params.repetition_penalty
            scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
        if params.presence_penalty or params.frequency_penalty:
            counts = Counter([*tokens[self._prompt_length :], *path])
            for token, count in counts.items():
                scores[token] -= params.presence_penalty + params.frequency_penalty * count

    def _shaped(self, scores: torch.Tensor, width: int) -> torch.Tensor:
        """Temperature, top_k, top_p, min_p; f[N, width] that sums to one; greedy a point mass."""
        peak = scores.amax(dim=-1, keepdim=True)
        self._dead_rows = [row for row, (best,) in enumerate(peak.tolist()) if best == -torch.inf]
        if self.params.is_greedy:
            p = scores.new_zeros((len(scores), width))
            p.scatter_(-1, argmax(scores)[:, None], 1.0)
        else:
            p = _widened(self._shaped_alive(scores, peak), width)
        if self._dead_rows:
            p[self._dead_rows] = 0.0
        return p

    def _shaped_alive(self, scores: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
        params = self.params
        if params.top_k is not None and params.top_k < scores.shape[-1]:
            least = torch.topk(scores, params.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if params.temperature < _COLD:
            # Relative to the peak nothing overflows; below `tiny` is 0 in float32.
            temperature = max(params.temperature, torch.finfo(scores.dtype).tiny)
            p = torch.softmax((scores - peak) / temperature, dim=-1)
        else:
            p = torch.softmax(scores / params.temperature, dim=-1)
        if params.top_p == 1.0 and params.min_p == 0.0:
            return p
        if params.top_p < 1.0:
            p = _nucleus(p, params.top_p)
        if params.min_p > 0.0:
            p = torch.where(p < params.min_p * p.amax(dim=-1, keepdim=True), 0.0, p)
        return p / p.sum(dim=-1, keepdim=True)


def fork_processors(processors: Processors) -> Processors:
    """Copies that share no state with the originals."""
    try:
        return tuple(copy.deepcopy(processor) for processor in processors)
    except Exception as error:
        raise InvalidSetting(
            f"a logits processor cannot be copied ({error}), so a rejected draft could leave a "
            "trace in it; give a pure function of (ids, logits) or one that copy.deepcopy can copy"
        ) from error


def _paths(parents: Sequence[int], nodes: Sequence[int]) -> list[tuple[int, ...]]:
    """Drafted tokens before each row: () for the anchor, then one path per node."""
    paths: list[tuple[int, ...]] = [()]
    for parent, token in zip(parents, nodes, strict=True):
        paths.append((*paths[parent + 1], token))
    return paths


def _widened(p: torch.Tensor, width: int) -> torch.Tensor:
    """The laws f[N, width] of laws without padding: no padding ever comes."""
    return pad(p, (0, width - p.shape[-1])) if p.shape[-1] < width else p


def _nucleus(p: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero all but the smallest set of likeliest tokens whose probability reaches `top_p`."""
    values, order = p.sort(dim=-1, descending=True, stable=True)
    before = values.cumsum(dim=-1) - values
    drop = torch.zeros_like(p, dtype=torch.bool).scatter_(-1, order, before >= top_p)
    return p.masked_fill(drop, 0.0)
