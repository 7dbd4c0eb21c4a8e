"""/v1/completions: a text or its ids, continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, BeforeValidator, Field

from draftproof.core import FinishReason
from draftproof.engine.prompt import Prompt, is_batch
from draftproof.output import Piece
from draftproof.sampling.params import MAX_LOGPROBS
from draftproof.server.answer import Choice, Choices, Head, Usage, finite, text_of
from draftproof.server.fields import MAX_LISTED, Listed, Request, Text, Texts, check_count
from draftproof.server.words import Words


def _check_number(prompt: Any) -> Any:
    if isinstance(prompt, list) and is_batch(prompt):
        check_count("prompt", len(prompt), MAX_LISTED)
    return prompt


class CompletionRequest(Request):
    default_budget: ClassVar[int | None] = 16
    """OpenAI's `max_tokens` where none is given."""

    prompt: Annotated[
        Text | Texts | Listed[int] | Listed[Listed[int]], BeforeValidator(_check_number)
    ]
    """One text, one list of ids, or several of either; text is continued without a template."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Log-probabilities of each token and of the so many likeliest in its place."""

    @property
    def prompts(self) -> list[Prompt]:
        given = cast("Prompt | list[Prompt]", self.prompt)
        return cast("list[Prompt]", given if is_batch(given) else [given])

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def budget(self) -> int | None:
        """Most tokens asked for."""
        return self.max_tokens


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    """The likeliest tokens and the chosen one."""
    text_offset: list[int]
    """Characters of the answer that could be shown before each token."""


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class Completion(BaseModel):
    """An answer, or a chunk of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    speculation: dict[str, Any] | None = None
    """Counters of all choices together, where they were asked for."""


class CompletionForm:
    """Bodies of completions; see `answer.Form`."""

    def __init__(self, head: Head, words: Words, *, logprobs: bool) -> None:
        self._head = head
        self._words = words
        self._logprobs = logprobs

    def whole(self, choices: Choices, extras: dict[str, Any]) -> Completion:
        return self._body([self._choice(one, one.finish_reason) for one in choices], extras)

    def opening(self, index: int) -> None: ...

    def chunk(self, choice: Choice) -> Completion:
        return self._body([self._choice(choice, None)], {})

    def ending(self, choice: Choice) -> Completion:
        return self._body([self._choice(choice, choice.finish_reason)], {})

    def closing(self, extras: dict[str, Any]) -> Completion:
        return self._body([], extras)

    def _body(self, choices: list[CompletionChoice], extras: dict[str, Any]) -> Completion:
        head = self._head
        return Completion(
            id=head.id,
            object="text_completion",
            created=head.created,
            model=head.model,
            choices=choices,
            **extras,
        )

    def _choice(self, choice: Choice, reason: FinishReason | None) -> CompletionChoice:
        offset, new = choice.told, choice.tell()
        return CompletionChoice(
            index=choice.index,
            text=text_of(new),
            logprobs=self._table(offset, new) if self._logprobs else None,
            finish_reason=reason,
        )

    def _table(self, offset: int, new: Sequence[Piece]) -> CompletionLogprobs:
        table = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for piece in new:
            assert piece.logprobs is not None
            token, _ = self._words.read(piece.token_id)
            chosen = finite(piece.logprobs.logprob)
            top = {self._words.read(one)[0]: finite(value) for one, value in piece.logprobs.top}
            table.tokens.append(token)
            table.token_logprobs.append(chosen)
            table.top_logprobs.append({**top, token: chosen})
            table.text_offset.append(offset)
            offset += len(piece.text)
        return table
