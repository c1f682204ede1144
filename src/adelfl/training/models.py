"""Built-in models by name, with initial weights by seed.

``mlp``, ``cnn``, ``vgg11`` and ``vgg13`` are nested ``nn.Sequential`` of Conv2d, Linear, ReLU, MaxPool2d, Flatten,
GroupNorm and BatchNorm2d, with one inner ``Sequential`` per layer (weight, bias, norm, activation and pooling), so that
``len(model)`` is L.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from numbers import Integral

import torch
from torch import nn

from adelfl.errors import ConfigError
from adelfl.seeds import rng_for
from adelfl.training.networks import NORMS, NetworkPlan, Residual, ResNet, Transformer, cnn, mlp, vgg

INITS = ("auto", "torch", "he")
"""Values of ``init``."""


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
    """Build a network whose weights depend on the arguments only, not on torch's global generator.

    Parameters
    ----------
    name : str
        One of :data:`MODELS`:

        - ``"mlp"``: Linear and ReLU for each of ``hidden``, then Linear. L = len(hidden) + 1.
        - ``"cnn"``: two 5×5 convolutions of 6 channels, each with max-pool and ReLU, then dense 50 and classes, as in
          the released SALF code; convolutions are padded to keep the size of images with a side under 16. L = 4.
        - ``"vgg11"``, ``"vgg13"``: 8 or 10 convolutions of 3×3 and dense 512-512-classes. L = 11, 13.
        - ``"resnet18"``: with a 3×3 stem for small images. The convolution of a shortcut is a layer. L = 21.
        - ``"transformer"``: two pre-norm encoder blocks over image patches, four heads, mean pooling. L = 10.
    input_shape : sequence of int
        Shape of one sample: (channels, height, width) for all but the mlp, which flattens any shape.
    classes : int
        Size of the output, at least 2.
    seed : int
        Zero or more.
    hidden : sequence of int
        Hidden sizes of the mlp.
    norm : {"none", "group", "batch"}
        Normalisation of vgg and resnet18; mlp and cnn have none, and the transformer has LayerNorm. A group has 8
        channels if 8 divides their number.
    width : float
        Factor of all hidden sizes and channels, which are rounded up (for the transformer, to a multiple of its heads).
    init : {"auto", "torch", "he"}
        Initial weights: torch's default, He's for ReLU (which deep networks without a norm need), or "auto": torch's
        for mlp, cnn and transformer, and He's for the others.

    Returns
    -------
    nn.Module
        On the CPU, in training mode. It returns logits of shape (N, classes).

    Raises
    ------
    ConfigError
        If a name or a size is out of range, or the image is too small for the network.
    """
    if name not in _BUILDERS:
        near = difflib.get_close_matches(str(name).lower(), MODELS, n=1, cutoff=0.65)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"model: unknown name {name!r}; {hint}allowed are {', '.join(MODELS)}")
    if norm not in NORMS:
        raise ConfigError(f"norm must be one of {', '.join(NORMS)}, not {norm!r}")
    if init not in INITS:
        raise ConfigError(f"init must be one of {', '.join(INITS)}, not {init!r}")
    if not (isinstance(width, int | float) and math.isfinite(width) and width > 0):
        raise ConfigError(f"width must be a positive number, not {width!r}")
    shape = _sizes("input_shape", input_shape)
    if not shape or (name != "mlp" and len(shape) != 3):
        form = "at least one size" if name == "mlp" else "(channels, height, width)"
        raise ConfigError(f"input_shape of {name} must be {form}, not {shape}")
    plan = NetworkPlan(
        name=name,
        shape=shape,
        classes=_whole("classes", classes, 2),
        hidden=_sizes("hidden", hidden),
        norm=norm,
        width=float(width),
    )
    generator = torch.Generator().manual_seed(int(rng_for(_whole("seed", seed, 0), "model").integers(2**63)))
    # Modules draw initial weights when they are built; on the meta device, nothing is drawn or stored.
    with torch.device("meta"):
        model = _BUILDERS[name](plan)
    # As model.to_empty(device="cpu") does, whose empty_like of a meta tensor would load sympy: half a second.
    model._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device="cpu"))  # type: ignore[no-untyped-call]
    he = name not in ("mlp", "cnn", "transformer") if init == "auto" else init == "he"
    _draw_weights(model, generator, he=he)
    return model


def _sizes(key: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{key} must be a list of whole numbers, not {value!r}")
    return tuple(_whole(key, size, 1) for size in value)


def _whole(key: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{key} must consist of whole numbers of at least {least}, not {value!r}")
    return int(value)


@torch.no_grad()
def _draw_weights(model: nn.Module, generator: torch.Generator, *, he: bool) -> None:
    """Fill all parameters and buffers: U(±1/√fan_in), torch's default, or with ``he``, He's for ReLU and zero biases.

    The output layer has torch's default in both cases.
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
        elif isinstance(module, Transformer):
            # Large enough to distinguish patches from the first step on; otherwise plain SGD takes hundreds of steps.
            module.position.normal_(0.0, 0.5, generator=generator)
    for module in modules:
        if isinstance(module, Residual) and isinstance(module.norm2, nn.Identity):
            # Without a norm, the sum over 8 blocks would grow, so each block starts as its shortcut.
            module.conv2.weight.zero_()


_BUILDERS: dict[str, Callable[[NetworkPlan], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "vgg11": vgg,
    "vgg13": vgg,
    "resnet18": ResNet,
    "transformer": Transformer,
}

MODELS = tuple(_BUILDERS)
"""Names that :func:`build_model` takes."""
