"""HeteroFL's round: each width trains its own submodel, each coordinate is averaged over those who hold it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from adelfl.learning.submodel import Submodel, load, shrink
from adelfl.learning.work import Engine, RoundWork


class Hetero(Engine):
    """Runs another engine once per width, on submodels, and merges by coordinate."""

    def __init__(self, model: nn.Module, build: Callable[[nn.Module], Engine]) -> None:
        self.model, self.build = model, build
        self.parts: dict[float, tuple[Submodel, Engine]] = {}
        self.name = build(model).name

    def _part(self, width: float) -> tuple[Submodel, Engine]:
        if width not in self.parts:
            submodel = shrink(self.model, width)
            self.parts[width] = (submodel, self.build(submodel.model))
        return self.parts[width]

    def rehearse(self, width: float) -> None:
        """Build the submodel of a width, or say why that cannot be done."""
        self._part(width)

    @torch.no_grad()
    def run(self, work: RoundWork) -> float:
        """Do one round; A[u,l] is 1 for those who count."""
        assert work.width is not None
        full = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        change = {name: torch.zeros_like(w) for name, w in full.items()}
        holders = {name: torch.zeros_like(w) for name, w in full.items()}
        counts = work.contributes
        loss, devices = 0.0, 0
        for width in np.unique(work.width[counts])[::-1]:
            chosen = np.flatnonzero(counts & (work.width == width))
            submodel, engine = self._part(float(width))
            load(submodel, full)
            before = {name: w.detach().clone() for name, w in submodel.model.named_parameters()}
            with torch.enable_grad():
                loss += engine.run(replace(work.only(chosen), width=None)) * chosen.size
            devices += chosen.size
            for name, w in submodel.model.named_parameters():
                where = submodel.slices[name]
                change[name][where] += w - before[name]
                holders[name][where] += chosen.size
            # Running statistics of batch norm: the engine left the mean of this width's devices.
            for name, b in submodel.model.named_buffers():
                where = submodel.buffer_slices[name]
                change[name][where] += (b - full[name][where]) * chosen.size
                holders[name][where] += chosen.size
        for name, value in full.items():
            step = change[name] / holders[name].clamp(min=1)
            value.add_(step if value.is_floating_point() else step.round().to(value.dtype))
        return loss / devices if devices else math.nan
