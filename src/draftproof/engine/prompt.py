"""What a user calls a prompt, to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from draftproof.errors import InvalidPrompt

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = "str | Sequence[int] | Sequence[Message]"
"""Text, token ids, or chat messages with a role and a content."""


class Encoder(Protocol):
    """The part of a tokenizer that turns text and chats into ids."""

    chat_template: Any

    def encode(self, text: str, /, *, add_special_tokens: bool = ...) -> Any: ...

    def apply_chat_template(
        self, conversation: Any, /, *, add_generation_prompt: bool, tokenize: bool
    ) -> Any: ...


def is_batch(prompt: Prompt | Sequence[Prompt]) -> bool:
    """True for a list of prompts, False for one."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return False
    return not prompt or not isinstance(prompt[0], (int, Mapping))


def encode(prompt: Prompt, encoder: Encoder | None) -> list[int]:
    """Token ids of one prompt; text gets the tokenizer's own special tokens, chats its template."""
    if hasattr(prompt, "tolist"):  # a tensor or array of ids
        prompt = prompt.tolist()
    if isinstance(prompt, str):
        return list(_needed(encoder, "a text prompt").encode(prompt))
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise InvalidPrompt(
            f"the prompt is a {type(prompt).__name__}; give text, a list of token ids, or a list "
            "of chat messages like {'role': 'user', 'content': 'Hello'}"
        )
    if all(isinstance(part, int) and not isinstance(part, bool) for part in prompt):
        return [int(part) for part in prompt]  # type: ignore[arg-type]
    return _encode_chat(prompt, _needed(encoder, "a chat"))


def _encode_chat(messages: Sequence[Any], encoder: Encoder) -> list[int]:
    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise InvalidPrompt(
                f"a chat message is {message!r}; give {{'role': ..., 'content': ...}}"
            )
    if not encoder.chat_template:
        raise InvalidPrompt(
            "chat messages were given and the tokenizer has no chat template; give text instead"
        )
    text = encoder.apply_chat_template(
        [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
    )
    # The template writes its special tokens itself.
    return list(encoder.encode(text, add_special_tokens=False))


def _needed(encoder: Encoder | None, what: str) -> Encoder:
    if encoder is None:
        raise InvalidPrompt(
            f"{what} needs a tokenizer and the model came without one; pass tokenizer= or token ids"
        )
    return encoder
