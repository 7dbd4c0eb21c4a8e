"""From what a user gives (an object, a name, a path, a hub id) to a loaded model and tokenizer.

Beside `hf` the only place that knows transformers, which is imported where it is used. The model's
configuration is judged before any weights are read.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from draftproof.errors import InvalidSetting, ModelNotFound, UnsupportedModel
from draftproof.models.store import NAMED_MODELS, fetch, need_gguf_reader

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    PathLike: TypeAlias = str | os.PathLike[str]
    Pair: TypeAlias = tuple[PreTrainedModel, PreTrainedTokenizerBase | None]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model ready to run, its tokenizer, and what to call it in reports."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Where transformers has to look."""

    name: str
    where: str  # a folder, or a hub id
    gguf_file: str | None = None
    is_hub: bool = False
    is_offline: bool = True  # only what is on this machine may be read

    def options(self) -> dict[str, Any]:
        """What every `from_pretrained` is told; code that comes with a model is never run."""
        options = {"local_files_only": self.is_offline, "trust_remote_code": False}
        return options | ({"gguf_file": self.gguf_file} if self.gguf_file else {})


def load(
    source: PreTrainedModel | Pair | PathLike,
    *,
    tokenizer: PreTrainedTokenizerBase | PathLike | None = None,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "auto",
) -> LoadedModel:
    """Load a model, or take a loaded one as it is.

    `source` is a loaded model, a pair (model, tokenizer), the name of a named model, the path of a
    folder or a .gguf file, or a hub id. Local paths never reach for the network. `tokenizer`
    replaces the model's own: an object, or any path, name or id. `dtype` "auto" is float32 on a
    CPU and the checkpoint's own elsewhere; `device` "auto" is a CUDA device where there is one.
    """
    if not isinstance(source, (str, os.PathLike)):
        if dtype != "auto" or device != "auto":
            raise InvalidSetting(
                f"dtype={dtype}, device={device} were given with a loaded model, which stays as it "
                "is; leave both out, or move the model before"
            )
        return _take(source, tokenizer)
    on, want, place = _device(device), _dtype(dtype), _locate(source)
    with _bars_only_on_terminals():
        own = _read_tokenizer(place) if tokenizer is None else _as_tokenizer(tokenizer)
        return LoadedModel(_read_model(place, want, on), own, place.name)


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF file as an ordinary folder: dense bfloat16 safetensors, tokenizer, template.

    bfloat16 because models of this kind are published in it and run in it on a GPU. It rounds the
    unpacked weights far more finely than their 4 to 8 bits did.
    """
    import torch

    place = _Place(gguf.stem, str(gguf.parent), gguf.name)
    with _bars_only_on_terminals(never=True):
        tokenizer = _read_tokenizer(place)
        model = _read_model(place, torch.bfloat16, torch.device("cpu"))
        model.save_pretrained(folder)
        if tokenizer is not None:
            for key in ("local_files_only", "is_local"):  # of this load, not of the tokenizer
                tokenizer.init_kwargs.pop(key, None)
            tokenizer.save_pretrained(folder)


def _take(source: object, tokenizer: PreTrainedTokenizerBase | PathLike | None) -> LoadedModel:
    """A model that the user loaded, untouched."""
    from transformers import PreTrainedModel

    model, own = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if not isinstance(model, PreTrainedModel):
        raise InvalidSetting(
            f"a model cannot be made of {type(model).__name__}; give a PreTrainedModel, a pair "
            f"(model, tokenizer), a path, a hub id, or one of {', '.join(NAMED_MODELS)}"
        )
    name = Path(model.name_or_path or type(model).__name__).name
    if model.config.is_encoder_decoder or not model.can_generate():
        raise _not_causal(name, f"it is a {type(model).__name__}")
    return LoadedModel(model, own if tokenizer is None else _as_tokenizer(tokenizer), name)


def _as_tokenizer(given: PreTrainedTokenizerBase | PathLike) -> PreTrainedTokenizerBase:
    """The tokenizer itself, or the one found at a path, name or id."""
    if not isinstance(given, (str, os.PathLike)):
        return given
    if (found := _read_tokenizer(_locate(given))) is None:
        raise ModelNotFound(f"{os.fspath(given)!r} holds no tokenizer (no {_TOKENIZER_FILES[0]})")
    return found


def _locate(source: PathLike) -> _Place:
    """Decide what a string means: a name first, then a path, then a hub id."""
    text = os.fspath(source)
    if isinstance(source, str) and text in NAMED_MODELS:
        return _Place(text, str(fetch(text)))
    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise _not_found(f"the folder {text!r} has no config.json, so it is no model's folder")
        return _Place(path.resolve().name, str(path))
    if path.is_file() and path.suffix == ".gguf":
        need_gguf_reader(f"reading {text!r}")
        return _Place(path.stem, str(path.parent), path.name)
    if path.exists():
        raise _not_found(f"{text!r} is a file, and the only model files read are *.gguf")
    if isinstance(source, str) and _HUB_ID.fullmatch(text) and not text.endswith(".gguf"):
        return _Place(text, text, is_hub=True, is_offline=not _hub_answers())
    raise _not_found(f"there is nothing at {text!r}")


def _read_tokenizer(place: _Place) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model; None for a local folder that has none."""
    from transformers import AutoTokenizer

    files = (Path(place.where) / file for file in _TOKENIZER_FILES)
    if not (place.is_hub or place.gguf_file or any(map(Path.is_file, files))):
        return None
    with _errors_named(place, "tokenizer"):
        found = AutoTokenizer.from_pretrained(place.where, **place.options())
    return cast("PreTrainedTokenizerBase", found)


def _read_model(place: _Place, dtype: torch.dtype | None, device: torch.device) -> PreTrainedModel:
    """Judge the configuration, then read the weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    options = place.options()
    with _errors_named(place, "configuration"):
        config = AutoConfig.from_pretrained(place.where, **options)
    _check_causal(config, place.name)
    dtype = dtype or (torch.float32 if device.type == "cpu" else None)
    if place.gguf_file:
        options["quantization_config"] = GgufConfig(dequantize=True)
        dtype = dtype or torch.bfloat16  # packed weights have no dtype of their own
    options |= {"config": config, "dtype": dtype or "auto", "output_loading_info": True}
    with _errors_named(place, "weights"), contextlib.ExitStack() as stack:
        if place.gguf_file:  # the bar of transformers' reader follows no setting
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        loaded: Any = AutoModelForCausalLM.from_pretrained(place.where, **options)
    model: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):
        raise _not_causal(place.name, f"its checkpoint lacks {len(missing)} tensors: {missing[0]}")
    if place.gguf_file:  # dense by now, and has to be saved as such
        model.hf_quantizer = None  # type: ignore[assignment]
        vars(model.config).pop("quantization_config", None)
    if model.device != device:
        model.to(device)  # type: ignore[arg-type]
    return model


def _check_causal(config: PretrainedConfig, name: str) -> None:
    """Refuse, by its configuration alone, what is no causal language model."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if config.is_encoder_decoder:
        raise _not_causal(name, f"{config.model_type!r} is an encoder-decoder model")
    if (known := MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)) is None:
        raise _not_causal(name, f"transformers has no causal model for {config.model_type!r}")
    # GPT-NeoX inherits the switch and ignores it.
    if not getattr(config, "is_decoder", True) and not config.model_type.startswith("gpt_neox"):
        raise _not_causal(name, f"{config.model_type!r} reads in both directions (no is_decoder)")
    endings = ("ForCausalLM", "LMHeadModel", getattr(known, "__name__", "ForCausalLM"))
    made_by = config.architectures or []
    if made_by and not any(architecture.endswith(endings) for architecture in made_by):
        raise _not_causal(name, f"its checkpoint holds a {made_by[0]}")


def _not_causal(name: str, cause: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{name} is no causal language model: {cause}. Speculative decoding takes decoders that "
        f"continue a text, such as Llama, Qwen, GPT-2 or {next(iter(NAMED_MODELS))}"
    )


def _not_found(problem: str, hint: str = "check the path") -> ModelNotFound:
    return ModelNotFound(
        f"{problem}; {hint}, or use one of the named models {', '.join(NAMED_MODELS)}, "
        "which are fetched without a model hub"
    )


@contextlib.contextmanager
def _errors_named(place: _Place, part: str) -> Iterator[None]:
    """Say in our words what kept transformers from reading one part of a model."""
    try:
        yield
    except OSError as error:
        if not place.is_hub:
            raise _not_found(f"the {part} of {place.where} cannot be read: {error}") from error
        why = "it is not cached and no hub can be reached" if place.is_offline else error
        hint = "check the spelling and the connection, give the path of a folder"
        raise _not_found(f"{place.name!r} was taken for a hub id, and {why}", hint) from error
    except Exception as error:  # readers of damaged or foreign files raise anything
        raise UnsupportedModel(
            f"the {part} of {place.name} cannot be used ({type(error).__name__}: {error}). If it "
            "needs code of its own or a newer transformers, load it yourself and pass the model"
        ) from error


def _dtype(given: torch.dtype | str) -> torch.dtype | None:
    """The torch dtype; None for "auto"."""
    import torch

    if given == "auto":
        return None
    found = getattr(torch, given.removeprefix("torch."), None) if isinstance(given, str) else given
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise InvalidSetting(
            f"dtype is {given!r}; give 'auto', 'float32', 'bfloat16' or 'float16', or a torch dtype"
        )
    return found


def _device(given: torch.device | str) -> torch.device:
    """The torch device, with its index, present on this machine."""
    import torch

    if given == "auto":
        given = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=given).device
    except (RuntimeError, AssertionError) as error:
        raise InvalidSetting(
            f"device is {str(given)!r}, which does not work here ({str(error).splitlines()[0]}); "
            "give 'auto', 'cpu' or a device that this machine and this torch have"
        ) from error


def _hub_answers() -> bool:
    """Whether it makes sense to ask the hub; spares half a minute of retries without a network."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or urllib.request.getproxies():  # a proxy does the resolving
        return not constants.HF_HUB_OFFLINE
    with contextlib.suppress(OSError):
        return bool(socket.getaddrinfo(urllib.parse.urlsplit(constants.ENDPOINT).hostname, 443))
    return False


@contextlib.contextmanager
def _bars_only_on_terminals(never: bool = False) -> Iterator[None]:
    """Silence transformers' progress bars in logs and pipes, and put its setting back after."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging

    had_bars, hub_had_none = logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    if had_bars and (never or not sys.stderr.isatty()):
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        if hub_had_none:
            disable_progress_bars()
