"""The fused engine: one forward and one backward pass over the batches of all devices at once.

With one local step, all devices start from the same weights, so their batches can be concatenated. Devices differ only
in the weight A[u,l]/S_u of their rows in the gradient of each layer. They are sorted by depth, deepest first, so that
the rows that reach layer l are the first ones.

    grad^l = Σ_i A[u(i),l]/S_u(i) ∂loss_i/∂w^l          over the rows i of devices that deliver layer l

The loss contains the factor 1/S_u. If A[·,l] is the same for all devices that deliver layer l, as in every strategy but
``adel``, it multiplies the step; otherwise, it multiplies the layer's rows. Repeated samples of a device are one row
with a larger weight.

There are two passes: :mod:`adelfl.training.chain` for chains of known operations, and :mod:`adelfl.training.autograd`
for any other module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adelfl.training.autograd import AutogradPass
from adelfl.training.chain import ChainPass, chain_of
from adelfl.training.layers import Layer
from adelfl.training.passes import Pass, Rows
from adelfl.training.stacked import Stacked, pays
from adelfl.training.work import NOTHING, Change, Engine, Ints, RoundWork, Samples

_REPEATED = 0.03  # share of repeated draws in a round from which merging them saves time


@dataclass(frozen=True, eq=False)
class _Draws:
    """The samples of a round, device after device, and how often each was drawn (None: once)."""

    rows: Ints
    sizes: Ints
    times: Ints | None = None

    def merged(self, seen: NDArray[np.int32]) -> _Draws:
        """Merge repeated draws of a device, if there are enough of them; ``seen`` is working memory."""
        order = np.arange(self.rows.size, dtype=np.int32)
        seen[self.rows] = order  # the last draw of each sample stays
        last = seen[self.rows]
        kept = last == order
        if np.count_nonzero(kept) > (1.0 - _REPEATED) * order.size:
            return self
        owner = np.repeat(np.arange(self.sizes.size), self.sizes)
        if (owner[last] != owner).any():  # a sample that several devices hold
            return self
        return _Draws(self.rows[kept], np.bincount(owner[kept], minlength=self.sizes.size), np.bincount(last)[kept])


@dataclass(frozen=True, eq=False)
class _Layout:
    """Parts and steps of a round, which depend on its sizes, depths and weights, but not on the samples."""

    parts: list[Rows]
    steps: dict[tuple[float, float], list[int]]
    """Positions in the order of parameters by (scale, decay): their change is −η decay·w − η scale·gradient."""


class Fused(Engine):
    """Compute all devices in one pass: exact for one local step, if samples do not influence each other."""

    name = "fused"

    def __init__(
        self, model: nn.Module, layers: tuple[Layer, ...], samples: Samples, weight_decay: float = 0.0
    ) -> None:
        super().__init__(model, layers, samples.compact(), weight_decay)
        chain = chain_of(model, layers, samples.x[:1])
        self.walk: Pass = AutogradPass(model, layers, samples.x) if chain is None else ChainPass(chain, samples.x[:1])
        stacks = chain is not None and pays(model, layers, samples)
        self.stacked = Stacked(model, layers, samples, weight_decay) if stacks else None
        parameters, order = dict(model.named_parameters()), self.walk.order
        self.parameters = {name: parameters[name].detach() for name in order}
        self.places = [[order.index(name) for name in layer.parameters] for layer in layers]
        self.dtype = self.parameters[order[0]].dtype
        self._seen = np.empty(samples.y.shape[0], dtype=np.int32)
        self._last: tuple[tuple[bytes, bytes, bytes], _Layout] = ((b"", b"", b""), _Layout([], {}))

    def run(self, work: RoundWork) -> Change:
        """Do the local work of a round and merge it."""
        return self.prepare(work)()

    def run_apart(self, works: Sequence[RoundWork], starts: Sequence[Mapping[str, Tensor]]) -> Change:
        """Do local work that starts from several weights, in a stack if that is faster than separate passes."""
        if self.stacked is None:
            return super().run_apart(works, starts)
        return self.stacked.run_apart(works, starts)

    def prepare(self, work: RoundWork) -> Callable[[], Change]:
        """Sort the rows and compute their weights; the returned function does the pass."""
        work = work.deepest_first()
        if work.sizes.size == 0:
            return lambda: NOTHING
        draws = _Draws(work.rows[0], work.sizes).merged(self._seen)
        if draws.times is not None:
            layout = self._layout(work, draws)
        else:
            same = (work.sizes.tobytes(), work.progress.z.tobytes(), work.A.tobytes())
            if same != self._last[0]:  # without stragglers, the layout is the same in all rounds
                self._last = same, self._layout(work, draws)
            layout = self._last[1]
        samples = []
        for part in layout.parts:
            index, labels = self.samples.labelled(draws.rows[part.start : part.end])
            samples.append((index, labels[None]))
        return partial(self._do, layout, samples, work)

    def _layout(self, work: RoundWork, draws: _Draws) -> _Layout:
        sizes, A, delivered = draws.sizes, work.A, work.progress.delivered
        reach = (sizes @ delivered).tolist()  # rows that deliver layer l
        same = ((A == A[0]) | ~delivered).all(axis=0).tolist()  # the first device is the deepest
        kind = np.float64 if self.dtype == torch.float64 else np.float32
        row_weight = None if all(same) else np.repeat(A.T.astype(kind), sizes, axis=1)
        share = np.repeat((1.0 / work.sizes).astype(kind), sizes)
        if draws.times is not None:
            share *= draws.times
        weights = A * delivered
        changes = np.cumsum(sizes)[:-1][(weights[1:] != weights[:-1]).any(axis=1)].tolist()
        parts = []
        for start, end in pairwise([0, *self.walk.ends(changes, share.size)]):
            within = [min(max(rows - start, 0), end - start) for rows in reach]
            weight = [
                None if row_weight is None or same[l] else self._floats(row_weight[l, start : start + n])
                for l, n in enumerate(within)
            ]
            parts.append(Rows(start, end, self._floats(share[start:end]), within, weight))
        steps: dict[tuple[float, float], list[int]] = {}
        decay = weights.sum(axis=0) * self.weight_decay
        for l, places in enumerate(self.places):
            if reach[l]:
                steps.setdefault((float(A[0, l]) if same[l] else 1.0, float(decay[l])), []).extend(places)
        return _Layout(parts, steps)

    def _floats(self, values: NDArray[np.floating[Any]]) -> Tensor:
        # Copied to torch's memory, since the varying alignment of NumPy's can change the last bit of a sum.
        return self.samples.tensor(values).to(self.dtype, copy=True)

    def _do(self, layout: _Layout, samples: list[tuple[Tensor, Tensor]], work: RoundWork) -> Change:
        total: list[Tensor] = []
        eta = work.eta
        steps: dict[str, Tensor] = {}
        with torch.inference_mode():  # 5 % faster than no_grad
            with self.walk.mode():
                losses = [
                    self.walk.gradients(self.samples.inputs(index), labels, part, total)
                    for part, (index, labels) in zip(layout.parts, samples, strict=True)
                ]
            for (scale, decay), places in layout.steps.items():
                changes, names = [total[k] for k in places], [self.walk.order[k] for k in places]
                torch._foreach_mul_(changes, -eta * scale)
                if decay:
                    torch._foreach_add_(changes, [self.parameters[name] for name in names], alpha=-eta * decay)
                steps.update(zip(names, changes, strict=True))
        return Change(steps, {}, -sum(map(float, losses)) / work.sizes.size)
