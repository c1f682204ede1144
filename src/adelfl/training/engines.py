"""Which engine computes a round: chosen by what the model and the local work allow, or named by the user."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from adelfl.errors import ConfigError
from adelfl.runtime.codec import Uploads
from adelfl.training.fused import Fused
from adelfl.training.hetero import Hetero
from adelfl.training.layers import Layer, is_per_sample
from adelfl.training.loop import Loop
from adelfl.training.masks import draws_numbers
from adelfl.training.stacked import Stacked, why_not_stacked
from adelfl.training.trial import why_not_fused
from adelfl.training.work import Engine, Samples

EngineName = Literal["auto", "fused", "stacked", "loop", "flower"]


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """How devices train; the number of local iterations is the strategy's, ``Problem.local_iterations``.

    Attributes
    ----------
    weight_decay : float
        ℓ2 regularisation: g + weight_decay · w.
    momentum : float
        Of the local steps within a round; it starts at zero in every round, so it matters for E > 1 only.
    """

    weight_decay: float = 0.0
    momentum: float = 0.0


def choose(model: nn.Module, layers: tuple[Layer, ...], samples: Samples, iterations: int = 1) -> EngineName:
    """Return the quickest engine that computes so many local iterations exactly."""
    if not is_per_sample(model) or draws_numbers(model, samples.x[:2]):
        return "loop"
    if iterations == 1:
        return "fused" if why_not_fused(model, layers, samples) is None else "loop"
    # Convolutions mapped over stacked weights become grouped ones, which CPUs do slowly.
    dense = not any(isinstance(m, nn.Conv2d) for m in model.modules())
    return "stacked" if dense and why_not_stacked(model, samples, slowly=False) is None else "loop"


def build_engine(
    name: EngineName,
    model: nn.Module,
    layers: tuple[Layer, ...],
    samples: Samples,
    local: LocalWork,
    *,
    iterations: int = 1,
    widths: bool = False,
    uploads: Uploads | None = None,
) -> Engine:
    """Build the engine that trains ``model`` in place.

    Parameters
    ----------
    name : {"auto", "fused", "stacked", "loop"}
        Which one; "auto" chooses. ("flower" needs a running Flower, which :mod:`adelfl.flower.scale` starts.)
    model : nn.Module
        On the same device as the samples.
    layers : tuple of Layer
        Its layers, input side first.
    samples : Samples
        All training samples and labels.
    local : LocalWork
        How devices train.
    iterations : int
        E, local iterations per round.
    widths : bool
        Whether devices train submodels of several widths (HeteroFL).
    uploads : Uploads, optional
        A lossy codec through which the update of each device goes; "auto" then is "loop".
    """
    if name not in get_args(EngineName):
        raise ConfigError(f"engine must be one of {', '.join(get_args(EngineName))}, not {name!r}")
    if name == "flower":
        raise ConfigError("engine 'flower' is for adelfl run, compare and resume, which start Flower for it")
    chosen = name == "auto"
    if name == "auto":
        name = choose(model, layers, samples, iterations) if uploads is None else "loop"
    if uploads is not None and name != "loop":
        raise ConfigError(
            f"engine {name!r} does not compute the update of each device, which codec {uploads.codec.name!r} changes; "
            "use 'loop'"
        )
    if name != "loop" and not is_per_sample(model):
        raise ConfigError(f"engine {name!r} needs a model whose samples do not influence each other; use 'loop'")
    if name != "loop" and not chosen and draws_numbers(model, samples.x[:2]):
        raise ConfigError(
            f"engine {name!r} computes devices together, but this model draws random numbers for each (dropout); "
            "use 'loop'"
        )
    if name == "stacked" and (reason := why_not_stacked(model, samples, slowly=True)):
        raise ConfigError(f"engine 'stacked' cannot map this model over devices ({reason}); use 'loop'")
    if name == "fused" and iterations > 1:
        raise ConfigError("engine 'fused' computes one local iteration; use 'stacked' or 'loop' for more")
    if name == "fused" and not chosen and (reason := why_not_fused(model, layers, samples)):
        raise ConfigError(
            f"engine 'fused' cannot put devices' samples through this model together ({reason}); use 'loop'"
        )

    def build(model: nn.Module) -> Engine:
        if name == "fused":
            return Fused(model, layers, samples, local.weight_decay)
        if name == "stacked":
            return Stacked(model, layers, samples, local.weight_decay, local.momentum)
        return Loop(model, layers, samples, local.weight_decay, local.momentum, uploads)

    return Hetero(model, build) if widths else build(model)


def find_device(name: str) -> torch.device:
    """A torch device by name: cpu, cuda, cuda:1, mps."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be cpu, cuda or mps, not {name!r}") from None
    usable = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not usable.get(device.type, False):
        raise ConfigError(f"device {name!r} is not available on this machine; use cpu")
    return device


def keep_memory() -> None:
    """Ask glibc not to give large blocks back to the system after every step (it takes as long as the step)."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL("libc.so.6")
    trim_threshold, mmap_threshold = -1, -3
    libc.mallopt(trim_threshold, 1 << 30)
    libc.mallopt(mmap_threshold, 1 << 30)
