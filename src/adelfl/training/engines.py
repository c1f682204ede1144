"""Choice of the engine, depending on the model and the local work."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from adelfl.errors import ConfigError
from adelfl.runtime.codec import Uploads
from adelfl.runtime.controls import Controls
from adelfl.strategies.rounds import Progress
from adelfl.training.chain import chain_of
from adelfl.training.fused import Fused
from adelfl.training.hetero import Hetero
from adelfl.training.layers import Layer, is_per_sample
from adelfl.training.loop import LoopEngine
from adelfl.training.masks import draws_numbers
from adelfl.training.stacked import Stacked, first_line, pays, stackable_chain, why_not_stacked
from adelfl.training.work import Engine, RoundWork, Samples

EngineName = Literal["auto", "fused", "stacked", "loop"]

_SIZES = np.array([2, 1, 17, 1, 9, 4])  # batch sizes of the test: two devices for each of three depths
_TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-2}  # of a step; float32 rounding may change the sign at a ReLU


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """Settings of local training; the number of local iterations is the strategy's, ``Problem.local_iterations``."""

    weight_decay: float = 0.0
    """ℓ2 regularisation: g + weight_decay · w."""
    momentum: float = 0.0
    """Momentum of the local steps. It starts at zero in every round, so that it has no effect for E = 1."""


def choose(
    model: nn.Module, layers: tuple[Layer, ...], samples: Samples, iterations: int = 1, *, each: bool = False
) -> EngineName:
    """Return the fastest engine that is exact for E local iterations; ``each``: each device's update is needed."""
    name: EngineName = "stacked" if iterations > 1 or each else "fused"
    if name == "stacked" and not pays(model, layers, samples):
        return "loop"
    return name if _why_not(name, model, layers, samples, iterations, None) is None else "loop"


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
    controls: Controls | None = None,
) -> Engine:
    """Build an engine that computes changes of ``model``; "auto" chooses the fastest.

    ``iterations`` is E, the local iterations per round. With ``widths``, devices train submodels (HeteroFL).
    """
    if name not in get_args(EngineName):
        raise ConfigError(f"engine must be one of {', '.join(get_args(EngineName))}, not {name!r}")
    if name == "auto":
        each = controls is not None
        name = choose(model, layers, samples, iterations, each=each) if uploads is None else "loop"
    elif name == "fused" and controls is not None:
        raise ConfigError("engine 'fused' does not support control variates; use 'stacked' or 'loop'")
    elif name != "loop" and (reason := _why_not(name, model, layers, samples, iterations, uploads)):
        raise ConfigError(f"engine {name!r} {reason}")

    def build(model: nn.Module) -> Engine:
        if name == "fused":
            return Fused(model, layers, samples, local.weight_decay)
        engine = Stacked if name == "stacked" else LoopEngine
        return engine(model, layers, samples, local.weight_decay, local.momentum, uploads, controls)

    return Hetero(model, build) if widths else build(model)


def _why_not(
    name: str,
    model: nn.Module,
    layers: tuple[Layer, ...],
    samples: Samples,
    iterations: int,
    uploads: Uploads | None,
) -> str | None:
    """Return why the engine "fused" or "stacked" cannot be used; None if it can."""
    if uploads is not None:
        return f"does not compute the update of each device, which codec {uploads.codec.name!r} changes; use 'loop'"
    if not is_per_sample(model):
        return "needs a model whose samples do not influence each other; use 'loop'"
    if draws_numbers(model, samples.x[:2]):
        return "computes devices together, but this model draws random numbers for each (dropout); use 'loop'"
    if name == "fused" and iterations > 1:
        return "computes one local iteration; use 'stacked' or 'loop' for more"
    if reason := _why_inexact(Fused if name == "fused" else Stacked, model, layers, samples):
        how = "put devices' samples through this model together" if name == "fused" else "map this model over devices"
        return f"cannot {how} ({reason}); use 'loop'"
    return None


def _why_inexact(
    engine: type[Fused | Stacked], model: nn.Module, layers: tuple[Layer, ...], samples: Samples
) -> str | None:
    """Return why an engine that computes devices together is not exact for a model; None if it is.

    Chains of known operations are exact. Any other module must not choose its operations by the values of its inputs,
    which is checked by tracing or mapping. Then one small round is computed by this engine and by the loop engine, with
    six devices of different depths and weights, in double precision if the model supports it.
    """
    find = chain_of if engine is Fused else stackable_chain
    chain = find(model, layers, samples.x[:1])
    if chain is not None and type(model) is nn.Sequential:
        return None
    if chain is None and ((reason := why_not_stacked(model, samples, slowly=True)) or engine is Stacked):
        return reason
    reason = None
    for dtype, tolerance in _TOLERANCES.items():
        try:
            together, apart = (_steps(each, model, layers, samples, dtype) for each in (engine, LoopEngine))
        except Exception as error:  # anything that a user's model may raise
            reason = first_line(error)
            continue
        largest = max(float(step.norm()) for step in apart)
        for one, other in zip(together, apart, strict=True):
            if not float((one - other).norm()) <= tolerance * (float(other.norm()) + 1e-4 * largest):  # or NaN
                return "samples influence each other"
        return None
    return reason


def _steps(
    engine: type[Engine], model: nn.Module, layers: tuple[Layer, ...], samples: Samples, dtype: torch.dtype
) -> list[Tensor]:
    """Return the change of each parameter in a small round, computed with a data type."""
    few = torch.arange(int(_SIZES.sum()), device=samples.device) % samples.y.shape[0]
    x = samples.x[few]
    some = Samples(x.to(dtype) if x.is_floating_point() else x, samples.y[few])
    model, generator = deepcopy(model).to(dtype), torch.Generator().manual_seed(0)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for p in parameters.values():  # weights of zero would hide the effect of the layers before them
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device), alpha=0.05)
    L, U = len(layers), _SIZES.size
    progress = Progress(np.repeat([L, (L + 1) // 2, 1], U // 3), L, 1)
    A = np.random.default_rng(0).uniform(0.5, 1.5, (U, L)) * progress.delivered
    work = RoundWork((np.arange(_SIZES.sum()),), _SIZES, A, progress, 1.0)
    change = engine(model, layers, some).run(work).parameters
    return [change.get(name, torch.zeros_like(p)) for name, p in parameters.items()]


def find_device(name: str) -> torch.device:
    """Return a torch device by name, such as cpu, cuda, cuda:1, mps."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be cpu, cuda or mps, not {name!r}") from None
    usable = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not usable.get(device.type, False):
        raise ConfigError(f"device {name!r} is not available on this machine; use cpu")
    return device
