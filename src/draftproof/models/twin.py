"""Copies of a module tree that share its weights, so the user's own model is never touched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import nn

from draftproof.errors import UnsupportedModel

MakeLinear = Callable[[torch.Tensor, "torch.Tensor | None"], nn.Module]
"""(weight f[out, in], bias f[out] or None) -> a layer that computes the same product."""


def twin(module: nn.Module) -> nn.Module:
    """The same modules and config as new objects in eval mode, sharing weights and hooks.

    Buffers that a checkpoint holds are weights too. The others (rotary frequencies, masks) are
    copied, since some models rewrite them while they run.
    """
    shared = [*module.parameters(), *_stored_buffers(module), *_foreign_hooks(module)]
    # deepcopy takes what the memo already holds as copied, so it copies everything else.
    try:
        copied: nn.Module = copy.deepcopy(module, {id(part): part for part in shared})
    except (TypeError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{type(module).__name__} cannot be copied ({error}), and decoding in your own model "
            "could leave a trace in it; remove what cannot be copied from its modules, or save it "
            "and load it again"
        ) from error
    return copied.eval()


def replace_linears(module: nn.Module, make: MakeLinear, dtype: torch.dtype | None = None) -> int:
    """Replace plain linear layers, of `dtype` if given, in place; returns how many there were.

    A layer that the user has hooked stays, so that the hook goes on running.
    """
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or _is_hooked(child):
                continue
            if dtype in (None, child.weight.dtype):
                setattr(parent, name, make(child.weight.detach(), _detached(child.bias)))
                count += 1
    return count


def replace_all_linears(module: nn.Module, make: MakeLinear) -> int:
    """`replace_linears` and GPT-2's transposed layers; refuses what holds no plain numbers."""
    for name, child in module.named_modules():
        weight = getattr(child, "weight", None)
        if isinstance(weight, torch.Tensor) and not weight.is_floating_point():
            raise UnsupportedModel(
                f"layer {name!r} is a {type(child).__name__} with {weight.dtype} weights, which "
                "cannot be copied as plain numbers; load the model unquantised, or use "
                "drafter='ngram' or 'model:PATH', which copy nothing"
            )
    count = replace_linears(module, make)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Conv1D" and not _is_hooked(child):
                weight = child.get_parameter("weight").detach().t().contiguous()
                setattr(parent, name, make(weight, _detached(child.bias)))
                count += 1
    return count


def keep_first_layers(module: nn.Module, num_layers: int, total: int) -> None:
    """Cut the module's list of `total` decoder layers to the first `num_layers`, in place."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == total:
                setattr(parent, name, nn.ModuleList(list(child)[:num_layers]))
                return
    raise UnsupportedModel(
        f"no list of {total} decoder layers was found in {type(module).__name__}, so it cannot "
        "exit early; use drafter='self-int8' or 'ngram'"
    )


def _stored_buffers(module: nn.Module) -> Iterator[torch.Tensor]:
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                yield buffer


def _foreign_hooks(module: nn.Module) -> Iterator[object]:
    """Hooks that are not methods of the tree's own modules, which are copied with it."""
    own = {id(part) for part in module.modules()}
    for part in module.modules():
        for hook in (*part._forward_pre_hooks.values(), *part._forward_hooks.values()):
            if id(getattr(hook, "__self__", None)) not in own:
                yield hook


def _is_hooked(module: nn.Module) -> bool:
    """The user, or a library, acts before or after this layer or in its place."""
    return bool(module._forward_pre_hooks or module._forward_hooks or "forward" in module.__dict__)


def _detached(bias: object) -> torch.Tensor | None:
    return bias.detach() if isinstance(bias, torch.Tensor) else None
