"""Whether a model may be trained on the samples of many devices at once: it is tried out beside the plain loop."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from adelfl.learning.chain import is_chain
from adelfl.learning.fused import Fused
from adelfl.learning.layers import Layer
from adelfl.learning.loop import Loop
from adelfl.learning.stacked import why_not_stacked
from adelfl.learning.work import RoundWork, Samples
from adelfl.strategies.base import Progress

_NEAR = 0.01  # of a layer's step: rounding may decide a ReLU, but not more


def why_not_fused(model: nn.Module, layers: tuple[Layer, ...], samples: Samples) -> str | None:
    """Why the fused engine is not for this model; None if it is, by what it is made of or by trial.

    That the model decides nothing by the numbers that it sees is known from tracing or mapping it. Then three devices
    that stop at different layers, and weigh differently in each, do one round, in one pass and one by one.
    """
    chain = is_chain(model, layers, samples.x[:1])
    if chain and type(model) is nn.Sequential:
        return None
    if not chain and (reason := why_not_stacked(model, samples, slowly=True)):
        return reason
    try:
        together, apart = (_steps(engine, model, layers, samples) for engine in (Fused, Loop))
    except Exception as trouble:  # whatever the model does
        return (str(trouble).strip() or type(trouble).__name__).splitlines()[0][:120]
    largest = max(float(step.norm()) for step in apart)
    for one, other in zip(together, apart, strict=True):
        if not float((one - other).norm()) <= _NEAR * float(other.norm()) + 1e-6 * largest:  # or not a number
            return "samples influence each other, or weights are used where they cannot be told apart"
    return None


def _steps(engine: type[Fused | Loop], model: nn.Module, layers: tuple[Layer, ...], samples: Samples) -> list[Tensor]:
    """What a small round does to each parameter."""
    model, luck = deepcopy(model), torch.Generator().manual_seed(0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        for p in parameters:  # weights that begin at zero would hide what lies before them
            p.add_(torch.randn(p.shape, generator=luck, dtype=p.dtype).to(p.device), alpha=0.05)
    before = [p.detach().clone() for p in parameters]
    L, sizes = len(layers), np.array([2, 1, 2])
    progress = Progress(np.array([L, (L + 1) // 2, 1]), L, 1, np.ones(3))
    A = np.random.default_rng(0).uniform(0.5, 1.5, (3, L)) * progress.delivered
    rows = np.arange(sizes.sum()) % samples.y.shape[0]
    engine(model, layers, samples).run(RoundWork((rows,), sizes, A, progress, 1.0))
    return [p.detach() - b for p, b in zip(parameters, before, strict=True)]
