"""/v1/chat/completions: messages through the model's template, and the assistant's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from typing_extensions import Self

from draftproof.core import FinishReason
from draftproof.engine.prompt import Prompt
from draftproof.output import Piece
from draftproof.sampling.params import MAX_LOGPROBS
from draftproof.server.answer import Choice, Choices, Head, Usage, finite, text_of
from draftproof.server.fields import MAX_LISTED, Listed, Request, Strict, Text, check_count
from draftproof.server.words import Words


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    """A developer is the system by its newer name, and templates know the older one."""
    content: Text | Listed[TextPart]
    """The parts of a list are joined as they are."""

    @property
    def plain(self) -> dict[str, str]:
        """What templates read."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


def _check_number(messages: Any) -> Any:
    """Of messages and of their parts together."""
    if isinstance(messages, list):
        check_count("messages", len(messages), MAX_LISTED)
        contents = [one.get("content") for one in messages if isinstance(one, dict)]
        parts = sum(len(content) for content in contents if isinstance(content, list))
        check_count("messages", len(messages) + parts, MAX_LISTED)
    return messages


class ChatRequest(Request):
    default_budget: ClassVar[int | None] = None
    """A chat goes on as long as there is room."""

    messages: Annotated[Listed[Message], Field(min_length=1), BeforeValidator(_check_number)]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    """The newer name of `max_tokens`; by default all that fit."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are one field; give one")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is given and logprobs is not true; set it, too")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        return [[message.plain for message in self.messages]]

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def budget(self) -> int | None:
        """Most tokens asked for."""
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given


class Alternative(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class Token(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(BaseModel):
    content: list[Token]
    refusal: None


class Answer(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: Answer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class Chat(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    speculation: dict[str, Any] | None = None
    """Counters of all choices together, where they were asked for."""


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    speculation: dict[str, Any] | None = None


class ChatForm:
    """Bodies of chats; see `answer.Form`."""

    def __init__(self, head: Head, words: Words, *, logprobs: bool) -> None:
        self._head = head
        self._words = words
        self._logprobs = logprobs

    def whole(self, choices: Choices, extras: dict[str, Any]) -> Chat:
        return Chat(
            id=self._head.id,
            object="chat.completion",
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(one) for one in choices],
            **extras,
        )

    def opening(self, index: int) -> ChatChunk:
        return self._chunk(index, Delta(role="assistant", content=""))

    def chunk(self, choice: Choice) -> ChatChunk:
        new = choice.tell()
        return self._chunk(choice.index, Delta(content=text_of(new)), self._table(new))

    def ending(self, choice: Choice) -> ChatChunk:
        return self._chunk(choice.index, Delta(), reason=choice.finish_reason)

    def closing(self, extras: dict[str, Any]) -> ChatChunk:
        return self._body([], extras)

    def _choice(self, choice: Choice) -> ChatChoice:
        assert choice.finish_reason is not None
        new = choice.tell()
        return ChatChoice(
            index=choice.index,
            message=Answer(role="assistant", content=text_of(new), refusal=None),
            logprobs=self._table(new),
            finish_reason=choice.finish_reason,
        )

    def _chunk(
        self,
        index: int,
        delta: Delta,
        logprobs: ChatLogprobs | None = None,
        reason: FinishReason | None = None,
    ) -> ChatChunk:
        choice = ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason)
        return self._body([choice], {})

    def _body(self, choices: list[ChunkChoice], extras: dict[str, Any]) -> ChatChunk:
        head = self._head
        return ChatChunk(
            id=head.id,
            object="chat.completion.chunk",
            created=head.created,
            model=head.model,
            choices=choices,
            **extras,
        )

    def _table(self, new: Sequence[Piece]) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        tokens = []
        for piece in new:
            assert piece.logprobs is not None
            top = [self._alternative(*one) for one in piece.logprobs.top]
            chosen = self._alternative(piece.token_id, piece.logprobs.logprob)
            tokens.append(Token(**chosen.model_dump(), top_logprobs=top))
        return ChatLogprobs(content=tokens, refusal=None)

    def _alternative(self, token: int, logprob: float) -> Alternative:
        text, data = self._words.read(token)
        return Alternative(token=text, logprob=finite(logprob), bytes=list(data))
