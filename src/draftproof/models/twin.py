"""Copies of a module tree that share its weights, so the user's own model is never touched."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from draftproof.errors import UnsupportedModel


def twin(module: nn.Module) -> nn.Module:
    """The same modules and config as new objects in eval mode; parameters and buffers are shared."""
    tensors = [*module.parameters(), *module.buffers()]
    # deepcopy takes what the memo already holds as copied, so it copies everything but tensors.
    copied: nn.Module = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    return copied.eval()


def replace_linears(
    module: nn.Module, make: Callable[[torch.Tensor, torch.Tensor | None], nn.Module]
) -> int:
    """Replace every linear layer in place by make(weight f[out, in], bias f[out] or None).

    Returns how many were replaced. Layers that compute with packed or quantised weights are
    refused, since their weights cannot be read as plain numbers.
    """
    count = 0
    for name, child in list(module.named_children()):
        weight = getattr(child, "weight", None)
        bias = getattr(child, "bias", None)
        if type(child) is nn.Linear:
            setattr(module, name, make(child.weight.detach(), _detached(bias)))
            count += 1
        elif type(child).__name__ == "Conv1D" and isinstance(weight, torch.Tensor):
            # GPT-2 keeps its linear layers transposed, f[in, out].
            setattr(module, name, make(weight.detach().t().contiguous(), _detached(bias)))
            count += 1
        elif isinstance(child, nn.Linear) or (
            isinstance(weight, torch.Tensor) and not weight.is_floating_point()
        ):
            raise UnsupportedModel(
                f"layer {name!r} is a {type(child).__name__} with {weight.dtype if weight is not None else 'no'} "
                "weights, which cannot be copied as plain numbers; load the model unquantised, or "
                "use drafter='ngram' or 'model:PATH', which copy nothing"
            )
        else:
            count += replace_linears(child, make)
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


def _detached(bias: object) -> torch.Tensor | None:
    return bias.detach() if isinstance(bias, torch.Tensor) else None
