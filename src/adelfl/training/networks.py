"""The built-in networks: chains of layers, a residual network and a transformer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adelfl.errors import ConfigError

NORMS = ("none", "group", "batch")
"""Values of ``norm``."""

CNN_CHANNELS, CNN_DENSE = (6, 6), 50
"""Sizes of the CNN in the same authors' released SALF code; the paper does not state its own."""

VGG_CHANNELS: dict[str, tuple[tuple[int, ...], ...]] = {
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "vgg13": ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
}
"""Channels of the convolutions, one tuple per image size, each before a max-pool."""

VGG_DENSE = (512, 512)
RESNET_CHANNELS = (64, 128, 256, 512)
TRANSFORMER_SIZE, TRANSFORMER_HEADS, TRANSFORMER_BLOCKS = 64, 4, 2

CHANNELS_PER_GROUP = 8
"""Group size of GroupNorm. It is fixed, instead of the number of groups, so that the first half of the channels is the
first half of the groups, and a submodel normalises the same channels as the full model."""


def narrowed(size: int, width: float) -> int:
    """Return ⌈width · size⌉, at least 1: the units or channels of a layer of ``size`` at a width."""
    return max(1, math.ceil(width * size - 1e-9))  # 0.1 · 30 is 3.0000000000000004, and must not become 4


@dataclass(frozen=True)
class NetworkPlan:
    """Checked sizes and choices of a network."""

    name: str
    shape: tuple[int, ...]
    classes: int
    hidden: tuple[int, ...]
    norm: str
    width: float

    def scaled(self, size: int) -> int:
        """Return a hidden size or number of channels at the plan's width."""
        return narrowed(size, self.width)


def _block(**modules: nn.Module | None) -> nn.Sequential:
    block = nn.Sequential()
    for name, module in modules.items():
        if module is not None:
            block.add_module(name, module)
    return block


def _norm(kind: str, channels: int) -> nn.Module | None:
    if kind == "none":
        return None
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(channels // _group_size(channels), channels)


def _group_size(channels: int) -> int:
    """Return the smallest divisor of ``channels`` that is at least 8, or all of them."""
    return next((size for size in range(CHANNELS_PER_GROUP, channels) if channels % size == 0), channels)


def _dense(sizes: Sequence[int]) -> dict[str, nn.Sequential]:
    """Build linear layers of given sizes, with a Flatten before the first and a ReLU after all but the last."""
    last = len(sizes) - 2
    return {
        f"dense{i + 1}": _block(
            flatten=nn.Flatten() if i == 0 else None,
            linear=nn.Linear(n_in, n_out),
            relu=nn.ReLU() if i < last else None,
        )
        for i, (n_in, n_out) in enumerate(pairwise(sizes))
    }


def mlp(plan: NetworkPlan) -> nn.Module:
    """Build Linear and ReLU for each hidden size, then Linear."""
    return _block(**_dense([math.prod(plan.shape), *map(plan.scaled, plan.hidden), plan.classes]))


def cnn(plan: NetworkPlan) -> nn.Module:
    """Build two convolutions and two dense layers."""
    channels, *sides = plan.shape
    if min(sides) < 4:
        raise ConfigError(f"cnn needs images of at least 4×4 for its two max-pools, not {sides[0]}×{sides[1]}")
    padding = 0 if min(sides) >= 16 else 2
    layers: dict[str, nn.Sequential] = {}
    for i, size in enumerate(map(plan.scaled, CNN_CHANNELS), start=1):
        conv = nn.Conv2d(channels, size, kernel_size=5, padding=padding)
        layers[f"conv{i}"] = _block(conv=conv, pool=nn.MaxPool2d(2), relu=nn.ReLU())
        channels, sides = size, [(side + 2 * padding - 4) // 2 for side in sides]
    return _block(**layers, **_dense([channels * math.prod(sides), plan.scaled(CNN_DENSE), plan.classes]))


def vgg(plan: NetworkPlan) -> nn.Module:
    """Build convolutions of 3×3 by image size, then the dense head."""
    channels, *sides = plan.shape
    if min(sides) < 32:
        raise ConfigError(
            f"{plan.name} halves the image five times and needs at least 32×32, not {sides[0]}×{sides[1]}; "
            "use cnn or resnet18, or pad the images"
        )
    layers: dict[str, nn.Sequential] = {}
    for sizes in VGG_CHANNELS[plan.name]:
        for i, size in enumerate(map(plan.scaled, sizes), start=1):
            layers[f"conv{len(layers) + 1}"] = _block(
                conv=nn.Conv2d(channels, size, kernel_size=3, padding=1),
                norm=_norm(plan.norm, size),
                relu=nn.ReLU(),
                pool=nn.MaxPool2d(2) if i == len(sizes) else None,
            )
            channels = size
    flat = channels * math.prod(side // 32 for side in sides)
    return _block(**layers, **_dense([flat, *map(plan.scaled, VGG_DENSE), plan.classes]))


class Residual(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, n_in: int, n_out: int, stride: int, norm: str) -> None:
        super().__init__()
        bias = norm == "none"
        self.conv1 = nn.Conv2d(n_in, n_out, kernel_size=3, stride=stride, padding=1, bias=bias)
        self.norm1 = _norm(norm, n_out) or nn.Identity()
        self.conv2 = nn.Conv2d(n_out, n_out, kernel_size=3, padding=1, bias=bias)
        self.norm2 = _norm(norm, n_out) or nn.Identity()
        self.shortcut = nn.Sequential()
        if stride != 1 or n_in != n_out:
            self.shortcut = _block(
                conv=nn.Conv2d(n_in, n_out, kernel_size=1, stride=stride, bias=bias), norm=_norm(norm, n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18 with a 3×3 stem for small images."""

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__()
        sizes = list(map(plan.scaled, RESNET_CHANNELS))
        bias = plan.norm == "none"
        self.stem = _block(
            conv=nn.Conv2d(plan.shape[0], sizes[0], kernel_size=3, padding=1, bias=bias),
            norm=_norm(plan.norm, sizes[0]),
            relu=nn.ReLU(),
        )
        self.blocks = nn.Sequential()
        for i, (n_in, n_out) in enumerate(pairwise([sizes[0], *sizes])):
            self.blocks.append(Residual(n_in, n_out, 1 if i == 0 else 2, plan.norm))
            self.blocks.append(Residual(n_out, n_out, 1, plan.norm))
        self.head = nn.Linear(sizes[-1], plan.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


class _EncoderBlock(nn.Module):
    """Pre-norm attention and a two-layer perceptron, each beside a shortcut."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.mix = nn.Linear(size, size)
        self.norm2 = nn.LayerNorm(size)
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        n, tokens, size = x.shape
        heads = self.qkv(self.norm1(x)).view(n, tokens, 3, TRANSFORMER_HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        x = x + self.mix(attended.transpose(1, 2).reshape(n, tokens, size))
        y: Tensor = x + self.down(F.relu(self.up(self.norm2(x))))
        return y


class Transformer(nn.Module):
    """Pre-norm encoder blocks over image patches, and mean pooling."""

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__()
        channels, *sides = plan.shape
        # Patches of 4×4 for 28×28 and 32×32 images (49 and 64 tokens); of 2×2 for 8×8.
        patch = max(d for d in range(1, max(2, min(sides) // 7) + 1) if math.gcd(*sides) % d == 0)
        size = TRANSFORMER_HEADS * math.ceil(plan.scaled(TRANSFORMER_SIZE) / TRANSFORMER_HEADS)
        self.embed = nn.Conv2d(channels, size, kernel_size=patch, stride=patch)
        self.position = nn.Parameter(torch.empty(math.prod(sides) // patch**2, size))
        self.blocks = nn.Sequential(*(_EncoderBlock(size) for _ in range(TRANSFORMER_BLOCKS)))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, plan.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits
