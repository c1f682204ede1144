"""Width-scaled submodels: a narrower network made of the first units of every hidden layer.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021. A weight W of the full model becomes W[:⌈width·out⌉, :⌈width·in⌉], the network's input and output stay whole,
and hidden activations are divided by the width while training, so that submodels of all widths feed the next layer at
one scale.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adelfl.errors import ConfigError
from adelfl.training.networks import narrowed

Slices = dict[str, tuple[slice, ...]]


class Scaler(nn.Module):
    """Divides by ``width`` while training; in evaluation the input passes unchanged."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Return x / width, or x."""
        return x / self.width if self.training and self.width != 1 else x


@dataclass(frozen=True, eq=False)
class Submodel:
    """A narrower copy of a model, and its place in the full one.

    Attributes
    ----------
    model : nn.Sequential
        The copy. Its parameters and buffers have the names of the full model's.
    slices : dict of str to tuple of slice
        For every parameter and buffer, slices from 0 on, such that ``full[name][slices[name]]`` has the shape of the
        submodel's.
    """

    model: nn.Sequential
    slices: Slices


def shrink(model: nn.Module, width: float) -> Submodel:
    """Make a submodel that keeps the first ⌈width·n⌉ of the n units or channels of every hidden layer.

    Parameters
    ----------
    model : nn.Module
        Nested ``nn.Sequential`` of Conv2d, Linear, ReLU, MaxPool2d, Flatten, GroupNorm, BatchNorm2d and Dropout, such
        as mlp, cnn and vgg of :func:`~adelfl.training.models.build_model`. It is not changed.
    width : float
        In (0, 1]. At 1 the submodel is the same function as the model.

    Returns
    -------
    Submodel
        With the sliced values of the model's parameters and buffers, its training modes, and a :class:`Scaler` after
        every Linear and Conv2d but the last. Groups of a GroupNorm keep their size where that divides the channels
        that are left, so that they hold the same channels as in the full model.

    Raises
    ------
    ConfigError
        If the width is out of range or the model is not made of these modules.
    """
    if not (isinstance(width, int | float) and 0 < width <= 1):
        raise ConfigError(f"width of a submodel must be more than 0 and at most 1, not {width!r}")
    if type(model) is not nn.Sequential:
        raise _refusal("", model, "only nested nn.Sequential models can be")
    weighted = [name for name, module in _leaves(model, "") if isinstance(module, nn.Linear | nn.Conv2d)]
    if not weighted:
        raise _refusal("", model, "it has neither Linear nor Conv2d")
    once = {name for name, _ in model.named_parameters()}
    if twice := [name for name, _ in model.named_parameters(remove_duplicate=False) if name not in once]:
        raise _refusal("", model, f"it uses one weight in two places, the second being {twice[0]}")
    walk = _Walk(float(width), last=weighted[-1])
    return Submodel(walk.sequential(model, ""), walk.slices)


@torch.no_grad()
def load(submodel: Submodel, full: Mapping[str, Tensor]) -> None:
    """Overwrite the submodel's parameters and buffers by their part of the full model's."""
    for name, value in submodel.model.state_dict().items():
        value.copy_(full[name][submodel.slices[name]])


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    # named_children() would leave out the second of two places of one module, such as a shared ReLU.
    return [(key, child) for key, child in module._modules.items() if child is not None]


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        for key, child in _children(module):
            yield from _leaves(child, f"{name}.{key}" if name else key)
    else:
        yield name, module


class _Walk:
    """A walk from input to output that tracks how much of the current activation is kept."""

    def __init__(self, width: float, last: str) -> None:
        self.width = width
        self.last = last
        self.slices: Slices = {}
        self.full = 0
        """Channels or features of the activation in the full model; 0 is the input, which is whole."""
        self.kept = 0
        self.flat: bool | None = None
        """Whether the activation is a vector per sample; None where the input may be either."""

    def sequential(self, module: nn.Sequential, name: str) -> nn.Sequential:
        copied = nn.Sequential()
        copied.training = module.training
        for key, child in _children(module):
            path = f"{name}.{key}" if name else key
            if type(child) is nn.Sequential:
                copied.add_module(key, self.sequential(child, path))
                continue
            copied.add_module(key, self.leaf(child, path))
            if isinstance(child, nn.Linear | nn.Conv2d) and path != self.last:
                # A child of its own name, so that no name after it moves.
                scaler = Scaler(self.width)
                scaler.training = module.training
                copied.add_module(f"{key}_scaler", scaler)
        return copied

    def leaf(self, module: nn.Module, name: str) -> nn.Module:
        if type(module) in (nn.Conv2d, nn.Linear):
            dense = type(module) is nn.Linear
            if dense and self.flat is False:
                raise _refusal(name, module, "a Flatten must stand between the convolutions and the first Linear")
            if not dense and (self.flat or module.groups != 1):
                raise _refusal(name, module, "a convolution must come before all Flatten and Linear, and have groups=1")
            self.flat = dense
            kind = "features" if dense else "channels"
            kept = self.entering(getattr(module, f"in_{kind}"), name, module)
            out = self.leaving(getattr(module, f"out_{kind}"), name)
            return self.narrow(module, name, out, kept, **{f"in_{kind}": kept, f"out_{kind}": out})
        if type(module) is nn.GroupNorm:
            kept = self.entering(module.num_channels, name, module)
            groups = _groups(module.num_groups, module.num_channels, kept)
            return self.narrow(module, name, kept, num_channels=kept, num_groups=groups)
        if type(module) is nn.BatchNorm2d:
            kept = self.entering(module.num_features, name, module)
            return self.narrow(module, name, kept, num_features=kept)
        if type(module) is nn.Flatten:
            if (module.start_dim, module.end_dim) != (1, -1):
                raise _refusal(name, module, "a Flatten must have start_dim=1 and end_dim=-1")
            self.flat = True
        elif type(module) not in (nn.ReLU, nn.MaxPool2d, nn.Dropout, nn.Dropout2d):
            raise _refusal(
                name,
                module,
                "only Conv2d, Linear, ReLU, MaxPool2d, Flatten, GroupNorm, BatchNorm2d and Dropout can be narrowed",
            )
        return copy.deepcopy(module)

    def entering(self, size: int, name: str, module: nn.Module) -> int:
        """Return how many of a module's ``size`` inputs are kept."""
        if not self.full:
            self.full = self.kept = size
        # Flatten is channel-major: the first channels of (C, H, W) are the first entries of C·H·W.
        factor, rest = divmod(size, self.full)
        if rest or (factor != 1 and not self.flat):
            raise _refusal(name, module, f"it takes {size} inputs where the modules before it give {self.full}")
        self.full, self.kept = size, self.kept * factor
        return self.kept

    def leaving(self, size: int, name: str) -> int:
        """Return how many of a Linear's or Conv2d's ``size`` outputs are kept."""
        self.full, self.kept = size, size if name == self.last else narrowed(size, self.width)
        return self.kept

    def narrow(self, module: nn.Module, name: str, out: int, kept: int = 0, **attributes: int) -> nn.Module:
        """Copy a module with its tensors cut to ``out`` rows and ``kept`` columns."""
        copied = copy.deepcopy(module)
        for key, value in attributes.items():
            setattr(copied, key, value)
        for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            sizes = (out, kept, *tensor.shape[2:])[: tensor.ndim]
            where = tuple(slice(0, size) for size in sizes)
            part = tensor.detach()[where].clone()
            self.slices[f"{name}.{key}"] = where
            if isinstance(tensor, nn.Parameter):
                part = nn.Parameter(part, requires_grad=tensor.requires_grad)
            setattr(copied, key, part)
        return copied


def _groups(groups: int, channels: int, kept: int) -> int:
    """Return the number of groups for ``kept`` channels: of the same size if that divides them, or of about that."""
    size = channels // groups
    return max(n for n in range(1, max(1, kept // size) + 1) if kept % n == 0)


def _refusal(name: str, module: nn.Module, why: str) -> ConfigError:
    return ConfigError(f"{name or 'the model'} ({type(module).__name__}) cannot be scaled in width: {why}")
