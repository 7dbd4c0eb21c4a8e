"""Every error Draftproof raises on purpose; each class names one cause.

DraftproofError
├── InvalidSetting        a setting is out of range, unknown, or does not apply
├── InvalidPrompt         a prompt is empty, too long, or of a kind we do not read
├── IncompatiblePair      two parts do not go together
│   ├── VocabularyMismatch    target and drafter have no tokens or text in common
│   └── ProposalMismatch      the verifier cannot judge what the drafter proposes
├── UnsupportedModel      a model cannot be rolled back, copied, or is no decoder
├── ModelNotFound         a name or path leads to no model
├── DownloadFailed        a download broke or its checksum is wrong; nothing was kept
├── LimitExceeded         a request would need more memory or depth than allowed
├── Overloaded            a service takes no more requests now; it may later
├── RequestEnded          a request of a service was ended before its text was complete
│   ├── Cancelled             by whoever made it
│   ├── DeadlineExceeded      by its own time limit
│   └── RequestFailed         by a fault inside; other requests go on
├── PeerFailed            a decoder that the bench compares with died or cannot be compared
└── MissingExtra          an optional package is not installed

Every message says what was given, what was expected and what to do.
"""

from __future__ import annotations

import traceback


class DraftproofError(Exception):
    """Base of all errors raised on purpose."""


class InvalidSetting(DraftproofError, ValueError):
    """A setting is out of range, unknown, or does not apply here."""


class InvalidPrompt(DraftproofError, ValueError):
    """A prompt is empty, too long, or of a kind that is not read."""


class IncompatiblePair(DraftproofError):
    """Two parts do not go together."""


class VocabularyMismatch(IncompatiblePair):
    """Target and drafter have no tokens or text in common, or nothing says which."""


class ProposalMismatch(IncompatiblePair):
    """The verifier cannot judge what the drafter proposes."""


class UnsupportedModel(DraftproofError):
    """A model cannot be rolled back or copied, or is no decoder."""


class ModelNotFound(DraftproofError):
    """A name or path leads to no model."""


class DownloadFailed(DraftproofError):
    """A download broke or its checksum is wrong; nothing was kept."""


class LimitExceeded(DraftproofError):
    """A request would need more memory or depth than is allowed."""


class Overloaded(DraftproofError):
    """A service takes no more requests now; `retry_after_s` says when to try again."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestEnded(DraftproofError):
    """A request of a service was ended before its text was complete."""


class Cancelled(RequestEnded):
    """Whoever made the request cancelled it."""


class DeadlineExceeded(RequestEnded):
    """The request's time limit passed."""


class RequestFailed(RequestEnded):
    """A fault ended this request; the others go on."""


class PeerFailed(DraftproofError):
    """A decoder that the bench compares with died, or does not do what it was asked."""


class MissingExtra(DraftproofError, ImportError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"run: pip install 'draftproof[{extra}]'"
        )


def kind_and_place(error: BaseException) -> str:
    """What went wrong and where; not the message, which may quote a prompt."""
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return type(cause).__name__ + place
