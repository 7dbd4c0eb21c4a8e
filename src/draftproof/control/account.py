"""What trying to draft may cost, whatever the drafter does; in rounds of plain decoding.

The account opens with what one or two rounds may cost, earns a little with every token, is charged
what a round took beyond plain decoding of the same tokens, and a draft that might overdraw it is
not made.
"""

from __future__ import annotations

_OPENING = 1.37
"""What trying may cost in the beginning, where every draft is expected to be accepted; less is
staked on a drafter of which less is expected."""
_STAKE = 0.75
"""Share of the account that a draft may cost: one that misses leaves enough for another."""
_EARNED = 0.01
"""What each token adds to that: the loss of a long text that no drafter fits."""
_SAVED = 24.0
"""Most that gains of earlier rounds are kept for."""
LONGEST = 1 + _STAKE * _SAVED
"""No round that is longer can ever be paid."""


class Account:
    def __init__(self, prior: float) -> None:
        """`prior` is the acceptance rate to expect of the drafter."""
        self._balance = _OPENING * prior

    @property
    def balance(self) -> float:
        """What may still be lost."""
        return self._balance

    @property
    def usual(self) -> float:
        """How long a round may be."""
        return 1 + _STAKE * max(0.0, self._balance)

    @property
    def last(self) -> float:
        """How long one may be that takes all there is."""
        return 1 + max(0.0, self._balance)

    def settle(self, tokens: int, loss: float) -> None:
        """A round has given `tokens` and taken `loss` longer than plain decoding of them."""
        self._balance = min(_SAVED, self._balance + _EARNED * tokens - loss)
