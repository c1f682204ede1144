"""HeteroFL's rounds: devices train submodels, and each coordinate is averaged over the devices that have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from adelfl.training.submodel import Submodel, load, shrink
from adelfl.training.work import NOTHING, Change, Engine, RoundWork


class Hetero(Engine):
    """Runs another engine once per width, on submodels, and merges by coordinate."""

    def __init__(self, model: nn.Module, build: Callable[[nn.Module], Engine]) -> None:
        self.model, self.build, self.parameters = model, build, dict(model.named_parameters())
        self.parts: dict[float, tuple[Submodel, Engine]] = {}
        self.name = build(model).name

    def part(self, width: float) -> tuple[Submodel, Engine]:
        """Return the submodel of a width and its engine."""
        if width not in self.parts:
            submodel = shrink(self.model, width)
            self.parts[width] = (submodel, self.build(submodel.model))
        return self.parts[width]

    @torch.no_grad()
    def run(self, work: RoundWork) -> Change:
        """Do the local work of a round and merge it; A[u,l] is 1 for the devices that count."""
        assert work.width is not None
        full, buffers = self.model.state_dict(), dict(self.model.named_buffers())
        change = {name: torch.zeros_like(w) for name, w in full.items()}
        holders = {name: torch.zeros_like(w) for name, w in full.items()}
        counts, loss, devices = work.contributes, 0.0, 0
        for width in np.unique(work.width[counts])[::-1]:
            chosen = np.flatnonzero(counts & (work.width == width))
            submodel, engine = self.part(float(width))
            load(submodel, full)
            with torch.enable_grad():
                part = engine.run(replace(work.only(chosen), width=None))
            loss += part.loss * chosen.size
            devices += chosen.size
            for name, where in submodel.slices.items():
                if name in part.parameters:
                    change[name][where] += part.parameters[name]
                elif name in part.buffers:  # running statistics of batch norm: the mean of this width's devices
                    change[name][where] += (part.buffers[name].to(full[name].dtype) - full[name][where]) * chosen.size
                holders[name][where] += chosen.size
        if not devices:
            return NOTHING
        steps = {name: change[name] / holders[name].clamp(min=1) for name in full}
        moved = {
            n: b + (steps[n] if b.is_floating_point() else steps[n].round().to(b.dtype)) for n, b in buffers.items()
        }
        return Change({name: steps[name] for name in full if name not in buffers}, moved, loss / devices)
