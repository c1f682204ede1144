"""Whether a model may be trained on the samples of many devices at once: it is tried out beside the plain loop."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from adelfl.strategies.rounds import Progress
from adelfl.training.chain import chain_of
from adelfl.training.fused import Fused
from adelfl.training.layers import Layer
from adelfl.training.loop import Loop
from adelfl.training.stacked import why_not_stacked
from adelfl.training.work import RoundWork, Samples

_SIZES = np.array([2, 1, 17, 1, 9, 4])  # two devices for each of three depths
_NEAR = {torch.float64: 1e-5, torch.float32: 1e-2}  # of a step; in single precision rounding may decide a ReLU


def why_not_fused(model: nn.Module, layers: tuple[Layer, ...], samples: Samples) -> str | None:
    """Why the fused engine is not for this model; None if it is, by what it is made of or by trial.

    That the model decides nothing by the numbers that it sees is known from tracing or mapping it. Then six devices
    that stop at different layers, and weigh differently in each, do one round, in one pass and one by one; in double
    precision, if the model can be had in it.
    """
    chain = chain_of(model, layers, samples.x[:1])
    if chain is not None and type(model) is nn.Sequential:
        return None
    if chain is None and (reason := why_not_stacked(model, samples, slowly=True)):
        return reason
    reason = None
    for kind, near in _NEAR.items():
        try:
            reason = _differ(model, layers, samples, kind, near)
        except Exception as trouble:  # whatever the model does
            reason = (str(trouble).strip() or type(trouble).__name__).splitlines()[0][:120]
        else:
            break
    return reason


def _differ(
    model: nn.Module, layers: tuple[Layer, ...], samples: Samples, kind: torch.dtype, near: float
) -> str | None:
    few = torch.arange(int(_SIZES.sum()), device=samples.device) % samples.y.shape[0]
    x = samples.x[few]
    some = Samples(x.to(kind) if x.is_floating_point() else x, samples.y[few])
    together, apart = (_steps(engine, model, layers, some, kind) for engine in (Fused, Loop))
    largest = max(float(step.norm()) for step in apart)
    for one, other in zip(together, apart, strict=True):
        if not float((one - other).norm()) <= near * (float(other.norm()) + 1e-4 * largest):  # or not a number
            return "samples influence each other, or weights are used where they cannot be told apart"
    return None


def _steps(
    engine: type[Fused | Loop], model: nn.Module, layers: tuple[Layer, ...], samples: Samples, kind: torch.dtype
) -> list[Tensor]:
    """What a small round does to each parameter."""
    model, luck = deepcopy(model).to(kind), torch.Generator().manual_seed(0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        for p in parameters:  # weights that begin at zero would hide what lies before them
            p.add_(torch.randn(p.shape, generator=luck, dtype=p.dtype).to(p.device), alpha=0.05)
    L, U = len(layers), _SIZES.size
    progress = Progress(np.repeat([L, (L + 1) // 2, 1], U // 3), L, 1, np.ones(U))
    A = np.random.default_rng(0).uniform(0.5, 1.5, (U, L)) * progress.delivered
    work = RoundWork((np.arange(_SIZES.sum()),), _SIZES, A, progress, 1.0)
    change = engine(model, layers, samples).run(work).parameters
    named = model.named_parameters()
    return [change.get(name, torch.zeros_like(p)) for name, p in named if p.requires_grad]
