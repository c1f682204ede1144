"""Width-scaled submodels: narrower networks of the first units of every hidden layer.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021. A weight W of the full model becomes W[:⌈width·out⌉, :⌈width·in⌉]. The network's input and output stay whole.
In training, hidden activations are divided by the width, so that their scale is the same for all widths.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adelfl.errors import ConfigError
from adelfl.training.networks import narrowed

Slices = dict[str, tuple[slice, ...]]


class Scaler(nn.Module):
    """Divides by ``width`` in training, and has no effect in evaluation."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        return x / self.width if self.training and self.width != 1 else x


@dataclass(frozen=True, eq=False)
class Submodel:
    """A narrower copy of a model, with the same names of parameters and buffers."""

    model: nn.Sequential
    slices: Slices
    """The submodel's part of a parameter or buffer is ``full[name][slices[name]]``."""


def shrink(model: nn.Module, width: float) -> Submodel:
    """Return a submodel with the first ⌈width·n⌉ of the n units or channels of every hidden layer, 0 < width ≤ 1.

    It has the training modes of the model, and a :class:`Scaler` after every Linear and Conv2d but the last. Groups of
    a GroupNorm keep their size if that divides the remaining channels, so that they have the same channels as in the
    full model.

    The model is a nested ``nn.Sequential`` of Conv2d, Linear, ReLU, MaxPool2d, Flatten, GroupNorm, BatchNorm2d and
    Dropout, such as mlp, cnn and vgg of :func:`~adelfl.training.models.build_model`. Others raise ConfigError.
    """
    if not (isinstance(width, int | float) and 0 < width <= 1):
        raise ConfigError(f"width of a submodel must be more than 0 and at most 1, not {width!r}")
    if type(model) is not nn.Sequential:
        raise _refusal("", model, "it must be a nested nn.Sequential")
    weighted = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    if not weighted:
        raise _refusal("", model, "it has neither Linear nor Conv2d")
    once = {name for name, _ in model.named_parameters()}
    if twice := [name for name, _ in model.named_parameters(remove_duplicate=False) if name not in once]:
        raise _refusal("", model, f"it has a weight in two places, the second of which is {twice[0]}")
    copied = copy.deepcopy(model)
    walk = _Walk(float(width), weighted[-1])
    walk.narrow(copied, "")
    return Submodel(copied, walk.slices)


@torch.no_grad()
def load(submodel: Submodel, full: Mapping[str, Tensor]) -> None:
    """Copy parameters and buffers from the full model to the submodel."""
    for name, value in submodel.model.state_dict().items():
        value.copy_(full[name][submodel.slices[name]])


class _Walk:
    """A walk from input to output that cuts modules, and tracks the size of the current activation."""

    def __init__(self, width: float, last: str) -> None:
        self.width, self.last = width, last
        self.slices: Slices = {}
        self.full = self.kept = 0  # channels or features in the full model and in the submodel; 0 at the input
        self.flat: bool | None = None  # whether the activation is a vector per sample; None if unknown

    def narrow(self, model: nn.Sequential, prefix: str) -> None:
        """Cut the modules of a sequence in place."""
        for key, module in list(model._modules.items()):
            assert module is not None
            name = f"{prefix}{key}"
            # Every module is moved to the end, so that a scaler can be inserted after it.
            del model._modules[key]
            model.add_module(key, module)
            if type(module) is nn.Sequential:
                self.narrow(module, f"{name}.")
                continue
            self.cut(module, name, self.sizes(module, name))
            if isinstance(module, nn.Linear | nn.Conv2d) and name != self.last:
                scaler = Scaler(self.width)
                scaler.training = model.training
                model.add_module(f"{key}_scaler", scaler)

    def sizes(self, module: Any, name: str) -> tuple[int, ...]:  # noqa: ANN401 - one of several classes
        """Set the sizes of a module, and return those of its tensors: outputs, and inputs for a matrix or kernel."""
        if type(module) in (nn.Conv2d, nn.Linear):
            dense = type(module) is nn.Linear
            if dense and self.flat is False:
                raise _refusal(name, module, "a Flatten must stand between the convolutions and the first Linear")
            if not dense and (self.flat or module.groups != 1):
                raise _refusal(name, module, "a convolution must come before all Flatten and Linear, and have groups=1")
            self.flat = dense
            kind = "features" if dense else "channels"
            inputs = self.entering(getattr(module, f"in_{kind}"), name, module)
            self.full = getattr(module, f"out_{kind}")
            self.kept = self.full if name == self.last else narrowed(self.full, self.width)
            setattr(module, f"in_{kind}", inputs)
            setattr(module, f"out_{kind}", self.kept)
            return self.kept, inputs
        if type(module) is nn.GroupNorm:
            size = module.num_channels // module.num_groups
            module.num_channels = kept = self.entering(module.num_channels, name, module)
            # Groups of the same size if that divides the channels, or of a similar size.
            module.num_groups = max(n for n in range(1, max(1, kept // size) + 1) if kept % n == 0)
            return (kept,)
        if type(module) is nn.BatchNorm2d:
            module.num_features = self.entering(module.num_features, name, module)
            return (module.num_features,)
        if type(module) is nn.Flatten:
            if (module.start_dim, module.end_dim) != (1, -1):
                raise _refusal(name, module, "a Flatten must have start_dim=1 and end_dim=-1")
            self.flat = True
        elif type(module) not in (nn.ReLU, nn.MaxPool2d, nn.Dropout, nn.Dropout2d):
            known = "Conv2d, Linear, ReLU, MaxPool2d, Flatten, GroupNorm, BatchNorm2d and Dropout"
            raise _refusal(name, module, f"only {known} can be narrowed")
        return ()

    def entering(self, size: int, name: str, module: nn.Module) -> int:
        """Return the number of a module's ``size`` inputs that the submodel has."""
        if not self.full:
            self.full = self.kept = size
        # Flatten is channel-major: the first channels of (C, H, W) are the first entries of C·H·W.
        factor, rest = divmod(size, self.full)
        if rest or (factor != 1 and not self.flat):
            raise _refusal(name, module, f"it takes {size} inputs, but the modules before it give {self.full}")
        self.full, self.kept = size, self.kept * factor
        return self.kept

    def cut(self, module: nn.Module, name: str, sizes: tuple[int, ...]) -> None:
        """Cut the first dimensions of the tensors of a module to ``sizes``."""
        for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            where = tuple(slice(0, size) for size in (*sizes, *tensor.shape[2:])[: tensor.ndim])
            self.slices[f"{name}.{key}"] = where
            part = tensor.detach()[where].clone()
            parameter = isinstance(tensor, nn.Parameter)
            setattr(module, key, nn.Parameter(part, tensor.requires_grad) if parameter else part)


def _refusal(name: str, module: nn.Module, why: str) -> ConfigError:
    return ConfigError(f"{name or 'the model'} ({type(module).__name__}) cannot be scaled in width: {why}")
