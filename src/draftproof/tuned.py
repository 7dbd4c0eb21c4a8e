"""The file that `draftproof tune` writes and `generate`, `bench` and the library read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from draftproof.config import Depth, EngineSettings
from draftproof.errors import InvalidSetting

_FORM = 'expected is what "draftproof tune --output" writes'


@dataclass(frozen=True, slots=True)
class Tuned:
    """What to decode with. `InvalidSetting` for what no drafting could be."""

    target: str
    drafter: str
    depth: Depth
    width: int = 1
    nodes: int | None = None

    def __post_init__(self) -> None:
        for name in ("target", "drafter"):
            if not (isinstance(getattr(self, name), str) and getattr(self, name)):
                raise InvalidSetting(f"{name} of the settings is {getattr(self, name)!r}; {_FORM}")
        for name in ("depth", "width", "nodes"):
            value = getattr(self, name)
            known = value == "auto" if name == "depth" else name == "nodes" and value is None
            if not known and (not isinstance(value, int) or isinstance(value, bool)):
                raise InvalidSetting(f"{name} of the settings is {value!r}; {_FORM}")
        EngineSettings(depth=self.depth, width=self.width, nodes=self.nodes)

    def write(self, path: Path) -> None:
        """Put the settings into a JSON file."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def read_tuned(path: Path) -> Tuned:
    """The settings in a file; `InvalidSetting` says what is wrong with one that holds none."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Tuned(**fields)
    except (OSError, UnicodeDecodeError, ValueError, TypeError) as error:
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting(f"{path} holds no settings ({error}); {_FORM}") from error
