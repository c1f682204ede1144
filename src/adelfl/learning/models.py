"""The networks that the experiments train, built from a name and a seed.

``mlp``, ``cnn``, ``vgg11`` and ``vgg13`` are nested ``nn.Sequential`` of Conv2d, Linear, ReLU, MaxPool2d, Flatten,
GroupNorm and BatchNorm2d, with one inner ``Sequential`` per layer in the sense of SPEC section 1 (weight, bias, and the
norm, activation and pooling that belong to them), so ``len(model)`` is L.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adelfl.errors import ConfigError
from adelfl.seeds import rng_for

NORMS = ("none", "group", "batch")
"""What ``norm`` may be."""

INITS = ("auto", "torch", "he")
"""What ``init`` may be."""

CNN_CHANNELS, CNN_DENSE = (6, 6), 50
"""The paper does not give the sizes of its CNN; these are those of the same authors' released SALF code."""

VGG_CHANNELS: dict[str, tuple[tuple[int, ...], ...]] = {
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "vgg13": ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
}
"""Channels of the convolutions, one tuple per image size: a max-pool ends each."""

VGG_DENSE = (512, 512)
RESNET_CHANNELS = (64, 128, 256, 512)
TRANSFORMER_SIZE, TRANSFORMER_HEADS, TRANSFORMER_BLOCKS = 64, 4, 2

CHANNELS_PER_GROUP = 8
"""A fixed group size, not a fixed number of groups: the first half of the channels is then the first half of the
groups, and a width-scaled submodel normalises what the full model normalises."""


def narrowed(size: int, width: float) -> int:
    """⌈width · size⌉, at least 1: how many units or channels a layer of ``size`` has at a width."""
    # 0.1 · 30 is 3.0000000000000004 in floating point, and must not become 4.
    return max(1, math.ceil(width * size - 1e-9))


def build_model(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    seed: int,
    hidden: Sequence[int] = (32, 16),
    norm: str = "group",
    width: float = 1.0,
    init: str = "auto",
) -> nn.Module:
    """Build a network with weights that depend on the arguments alone.

    Torch's global generator is neither read nor moved.

    Parameters
    ----------
    name : str
        One of :data:`MODELS`:

        - ``"mlp"``: Linear and ReLU for each of ``hidden``, then Linear. L = len(hidden) + 1.
        - ``"cnn"``: two 5×5 convolutions of 6 channels, each with max-pool and ReLU, then dense 50 and classes, as in
          the released SALF code; images with a side under 16 are padded so that they keep their size. L = 4.
        - ``"vgg11"``, ``"vgg13"``: 8 or 10 convolutions of 3×3 and dense 512-512-classes. L = 11, 13.
        - ``"resnet18"``: with a 3×3 stem for small images. L = 21, a shortcut's convolution being a layer.
        - ``"transformer"``: two pre-norm encoder blocks over image patches, four heads, mean pooling. L = 10.
    input_shape : sequence of int
        Shape of one sample: (channels, height, width) for all but the mlp, which flattens any shape.
    classes : int
        Size of the output, at least 2.
    seed : int
        Zero or more.
    hidden : sequence of int
        Hidden sizes of the mlp; the others do not read it.
    norm : {"none", "group", "batch"}
        Normalisation of vgg and resnet18; the others do not read it (mlp and cnn have none, the transformer has
        LayerNorm). Groups are of 8 channels where 8 divides them.
    width : float
        Factor on all hidden sizes and channels, rounded up (the transformer: up to a multiple of its heads).
    init : {"auto", "torch", "he"}
        First weights: torch's own, He's for ReLU (which deep networks without a norm need), or by default torch's for
        mlp, cnn and transformer and He's for the others.

    Returns
    -------
    nn.Module
        On the CPU, in training mode. It gives logits of shape (N, classes).

    Raises
    ------
    ConfigError
        If a name or a size is out of range, or the image is too small for the network.
    """
    if name not in _BUILDERS:
        near = difflib.get_close_matches(str(name).lower(), MODELS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"allowed are {', '.join(MODELS)}"
        raise ConfigError(f"model: unknown name {name!r}; {hint}")
    if norm not in NORMS:
        raise ConfigError(f"norm must be one of {', '.join(NORMS)}, not {norm!r}")
    if init not in INITS:
        raise ConfigError(f"init must be one of {', '.join(INITS)}, not {init!r}")
    if not (isinstance(width, int | float) and math.isfinite(width) and width > 0):
        raise ConfigError(f"width must be a positive number, not {width!r}")
    shape = tuple(_whole("input_shape", size, 1) for size in _sequence("input_shape", input_shape))
    if not shape or (name != "mlp" and len(shape) != 3):
        form = "at least one size" if name == "mlp" else "(channels, height, width)"
        raise ConfigError(f"input_shape of {name} must be {form}, not {shape}")
    plan = _Plan(
        name=name,
        shape=shape,
        classes=_whole("classes", classes, 2),
        hidden=tuple(_whole("hidden", size, 1) for size in _sequence("hidden", hidden)),
        norm=norm,
        width=float(width),
    )
    generator = torch.Generator().manual_seed(int(rng_for(_whole("seed", seed, 0), "model").integers(2**63)))
    # Modules draw their first weights when they are made; on the meta device nothing is drawn, nor stored.
    with torch.device("meta"):
        model = _BUILDERS[name](plan)
    model.to_empty(device="cpu")
    he = name not in ("mlp", "cnn", "transformer") if init == "auto" else init == "he"
    _draw_weights(model, generator, he=he)
    return model


def _sequence(key: str, value: object) -> Sequence[object]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{key} must be a list of whole numbers, not {value!r}")
    return value


def _whole(key: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{key} must be made of whole numbers of at least {least}, not {value!r}")
    return int(value)


@dataclass(frozen=True)
class _Plan:
    name: str
    shape: tuple[int, ...]
    classes: int
    hidden: tuple[int, ...]
    norm: str
    width: float

    def scaled(self, size: int) -> int:
        return narrowed(size, self.width)


@torch.no_grad()
def _draw_weights(model: nn.Module, generator: torch.Generator, *, he: bool) -> None:
    """Fill all parameters and buffers: U(±1/√fan_in), torch's default, or where ``he``, He's for ReLU and zero biases.

    The deep networks need He's, or without a norm their signal shrinks to nothing. The output layer keeps torch's.
    """
    modules = list(model.modules())
    output = [m for m in modules if isinstance(m, nn.Linear)][-1]
    for module in modules:
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            relu = he and module is not output
            bound = math.sqrt((6.0 if relu else 1.0) / fan_in)
            module.weight.uniform_(-bound, bound, generator=generator)
            if module.bias is not None:
                module.bias.uniform_(-bound, bound, generator=generator)
                if relu:
                    module.bias.zero_()
        elif isinstance(module, nn.GroupNorm | nn.BatchNorm2d | nn.LayerNorm):
            module.reset_parameters()
        elif isinstance(module, _Transformer):
            module.position.normal_(0.0, 0.02, generator=generator)
    for module in modules:
        if isinstance(module, _Residual) and isinstance(module.norm2, nn.Identity):
            # Without a norm the sums of 8 blocks would grow; each block starts as its shortcut instead.
            module.conv2.weight.zero_()


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
    """Smallest divisor of ``channels`` that is at least 8, or all of them."""
    return next((size for size in range(CHANNELS_PER_GROUP, channels) if channels % size == 0), channels)


def _dense(sizes: Sequence[int]) -> dict[str, nn.Sequential]:
    """Linear layers between sizes, the first after a Flatten, all but the last before a ReLU."""
    last = len(sizes) - 2
    return {
        f"dense{i + 1}": _block(
            flatten=nn.Flatten() if i == 0 else None,
            linear=nn.Linear(n_in, n_out),
            relu=nn.ReLU() if i < last else None,
        )
        for i, (n_in, n_out) in enumerate(pairwise(sizes))
    }


def _mlp(plan: _Plan) -> nn.Module:
    return _block(**_dense([math.prod(plan.shape), *map(plan.scaled, plan.hidden), plan.classes]))


def _cnn(plan: _Plan) -> nn.Module:
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


def _vgg(plan: _Plan) -> nn.Module:
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


class _Residual(nn.Module):
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
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class _ResNet(nn.Module):
    def __init__(self, plan: _Plan) -> None:
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
            self.blocks.append(_Residual(n_in, n_out, 1 if i == 0 else 2, plan.norm))
            self.blocks.append(_Residual(n_out, n_out, 1, plan.norm))
        self.head = nn.Linear(sizes[-1], plan.classes)

    def forward(self, x: Tensor) -> Tensor:
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
        n, tokens, size = x.shape
        heads = self.qkv(self.norm1(x)).view(n, tokens, 3, TRANSFORMER_HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        x = x + self.mix(seen.transpose(1, 2).reshape(n, tokens, size))
        y: Tensor = x + self.down(F.relu(self.up(self.norm2(x))))
        return y


class _Transformer(nn.Module):
    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        channels, *sides = plan.shape
        # Some 50 tokens: patches of 4×4 for 28×28 and 32×32 images, single pixels for 8×8.
        patch = max(d for d in range(1, max(1, min(sides) // 7) + 1) if math.gcd(*sides) % d == 0)
        size = TRANSFORMER_HEADS * math.ceil(plan.scaled(TRANSFORMER_SIZE) / TRANSFORMER_HEADS)
        self.embed = nn.Conv2d(channels, size, kernel_size=patch, stride=patch)
        self.position = nn.Parameter(torch.empty(math.prod(sides) // patch**2, size))
        self.blocks = nn.Sequential(*(_EncoderBlock(size) for _ in range(TRANSFORMER_BLOCKS)))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, plan.classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits


_BUILDERS: dict[str, Callable[[_Plan], nn.Module]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "vgg11": _vgg,
    "vgg13": _vgg,
    "resnet18": _ResNet,
    "transformer": _Transformer,
}

MODELS = tuple(_BUILDERS)
"""Names that :func:`build_model` knows."""
