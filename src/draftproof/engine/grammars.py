"""From a grammar and a tokenizer to a matcher that follows one sequence."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from draftproof.errors import InvalidSetting
from draftproof.models.lexicon import Lexicon
from draftproof.sampling.grammar import Grammar, load_llguidance
from draftproof.sampling.matcher import Matcher

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Grammars:
    """Compiles grammars for one tokenizer, whose tokens are read once, when a grammar first comes.

    That takes about a second for 150,000 tokens.
    """

    def __init__(self, tokenizer: Any, num_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = num_tokens
        self._vocabulary: Any = None
        self._lock = threading.Lock()

    def matcher(self, grammar: Grammar, end_ids: Collection[int]) -> Matcher:
        """A matcher before its first token; `end_ids` end the text where it is complete."""
        lark, vocabulary = grammar.as_lark(), self._read_vocabulary()

        def compile_() -> LLMatcher:
            parser: LLMatcher = load_llguidance().LLMatcher(vocabulary, lark, log_level=0)
            if parser.is_error():
                reason = parser.get_error().splitlines()[0]
                raise InvalidSetting(f"{grammar} cannot be used: {reason}")
            return parser

        matcher = Matcher(compile_, self._num_tokens, end_ids)
        first = matcher.after(())
        if not first.is_over and not first.allowed.any():
            raise InvalidSetting(f"no text of this model's tokens fits {grammar}")
        return matcher

    def _read_vocabulary(self) -> Any:
        with self._lock:
            if self._vocabulary is None:
                pieces = _Pieces(self._tokenizer, self._num_tokens)
                self._vocabulary = load_llguidance().LLTokenizer(pieces)
            return self._vocabulary


class _Pieces:
    """A vocabulary as llguidance reads one: the bytes of each id, and an end of its own."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Any, num_tokens: int) -> None:
        lexicon = Lexicon(tokenizer, num_tokens)
        if not lexicon.has_text:
            raise InvalidSetting(
                "a grammar needs tokens that stand for bytes of text, and this tokenizer's are "
                "words whose text depends on their neighbours; use another model"
            )
        self.eos_token_id = num_tokens
        self.tokens = [lexicon.texts.get(i, b"") for i in range(num_tokens + 1)]
        self.special_token_ids = [i for i, text in enumerate(self.tokens) if not text]

    def __call__(self, text: str) -> list[int]:
        raise AssertionError(f"nothing here tokenizes text, and {text!r} was given")
