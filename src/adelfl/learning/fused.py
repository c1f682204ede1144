"""The fused engine: one forward and one backward pass over the batches of all devices at once.

With one local step all devices start from the same weights, so their batches can be concatenated; what tells devices
apart is only the weight A[u,l]/S_u of each row in each layer's gradient. Devices are sorted by depth, deepest first, so
the rows that reach layer l are a prefix: rows of devices that stopped leave the pass as it walks back, by slicing.

    grad^l = Σ_i A[u(i),l]/S_u(i) ∂loss_i/∂w^l          over the rows i of devices that deliver layer l

1/S_u goes into the loss. A[·,l] goes into the step where all who deliver layer l weigh the same, as in every strategy
but ``adel``; otherwise the layer's rows are weighted one by one. A sample that a device has drawn several times is one
row, and weighs as much more.

The walk needs a chain of known operations (nested ``nn.Sequential``); each knows how to go back for a prefix of rows,
separately for its input (plain) and for its parameters (weighted).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adelfl.errors import ConfigError
from adelfl.learning.layers import Layer
from adelfl.learning.operations import STEPS, is_known
from adelfl.learning.work import Engine, Ints, RoundWork, Samples

# More rows than fit are taken in turns: their activations into memory, and their inputs, which are gathered, multiplied
# and multiplied again on the way back, into a share of the processor's cache; but not too few of them.
_CHUNK_BYTES, _INPUT_BYTES, _FEW_ROWS = 256 << 20, 3 << 20, 512
_REPEATED = 0.03  # share of a round's draws that must be repeats for merging them to be worth while


def primitives(model: nn.Module) -> list[nn.Module] | None:
    """The model as a flat chain of operations that this engine knows, or None if it is not one."""
    if type(model) is not nn.Sequential:  # a subclass may do something else with its parts
        return None
    chain: list[nn.Module] = []
    for part in model:
        if type(part) is nn.Sequential:
            inner = primitives(part)
            if inner is None:
                return None
            chain.extend(inner)
        elif type(part) in STEPS:
            chain.append(part)
        else:
            return None
    return chain


def fusible(model: nn.Module, layers: tuple[Layer, ...], example: Tensor) -> bool:
    """Whether this engine computes the model's gradients exactly: a chain of known operations, each used as here.

    ``example`` is a batch of some samples.
    """
    chain = primitives(model)
    if chain is None or not all(is_known(module) for module in chain):
        return False
    layer_of = {name: l for l, layer in enumerate(layers) for name in layer.parameters}
    name_of = {id(value): name for name, value in model.named_parameters()}
    seen: set[int] = set()
    last = 0
    for module in chain:
        own = list(module.parameters(recurse=False))
        if any(id(p) in seen for p in own):
            return False  # tied weights
        seen.update(id(p) for p in own)
        homes = {layer_of.get(name_of[id(p)]) for p in own}
        if not homes:
            continue
        if len(homes) > 1 or None in homes:
            return False  # frozen, or split between layers
        (home,) = homes
        assert home is not None
        if home < last:
            return False  # layers that are not in the order of execution
        last = home
    return _takes_rows(chain, example[:1].clone())  # some work in place


@torch.no_grad()
def _takes_rows(chain: list[nn.Module], x: Tensor) -> bool:
    """Whether dense layers see one vector per sample, and so does the loss: not words or pixels one by one."""
    for module in chain:
        if isinstance(module, nn.Linear) and x.dim() != 2:
            return False
        x = module(x)
    return x.dim() == 2


class FusedPass:
    """Weighted gradients of a chain for the concatenated batches of many devices.

    Attributes
    ----------
    order : list of str
        The parameters in the order in which the way back comes to them.
    rows_at_once : int
        More rows than these are taken in turns.
    """

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...], example: Tensor) -> None:
        chain = primitives(model)
        if chain is None or not fusible(model, layers, example):
            raise ConfigError(
                "engine 'fused' needs a model that is a plain Sequential of known layers on rows; use 'loop'"
            )
        self.steps = [STEPS[type(module)](module) for module in chain]
        layer_of = {name: l for l, layer in enumerate(layers) for name in layer.parameters}
        name_of = {id(value): name for name, value in model.named_parameters()}
        names = [[name_of[id(p)] for p in module.parameters(recurse=False)] for module in chain]
        lowest = next(k for k, n in enumerate(names) if n)  # no gradient is wanted below
        self.order = [name for k in reversed(range(lowest, len(chain))) for name in names[k]]
        # The way back, operation by operation: its layer (that of the parametrised one before it, if it has no
        # parameters), the operation above, and what gives its parameters' gradients.
        self.way_back: list[tuple[int, Any, Callable[[Tensor, Tensor | None], list[Tensor]] | None]] = []
        l, above = 0, [*self.steps[1:], None]
        for k in range(lowest, len(chain)):
            l = layer_of[names[k][0]] if names[k] else l
            self.way_back.insert(0, (l, above[k], self.steps[k].grads if names[k] else None))
        self.rows_at_once = self._rows_that_fit(example)
        self.minus_one = torch.empty(1, 0)

    def _rows_that_fit(self, example: Tensor) -> int:
        x, kept = example[:1].clone(), 0
        near = max(_FEW_ROWS, _INPUT_BYTES // max(1, x.nbytes))
        with torch.no_grad():
            for step in self.steps:
                x = step.forward(x)
                kept += x.numel() * x.element_size()
        return max(1, min(near, _CHUNK_BYTES // max(1, kept)))

    def gradients(self, x: Tensor, labels: Tensor, rows: _Rows, total: list[Tensor]) -> Tensor:
        """Walk forward and back over some rows, and add their part to each parameter's gradient.

        Parameters
        ----------
        x, labels : Tensor, shapes (n, ...) and (1, n)
            The samples.
        rows : _Rows
            How far their devices come, and what they weigh.
        total : list of Tensor
            Gradients so far, in the order of :attr:`order`, as far as anybody came.

        Returns
        -------
        Tensor, shape (1,)
            Minus the sum over devices of their mean loss, as far as these rows are part of it.
        """
        for step in self.steps:
            x = step.forward(x)
        # With the few classes first and the many rows last in memory, all this takes a third of the time.
        log_p = torch.log_softmax(x.t(), 0)
        loss = torch.mv(log_p.gather(0, labels), rows.share)
        if self.minus_one.shape[1] < labels.shape[1]:
            self.minus_one = -torch.ones_like(rows.share)[None]
        delta = log_p.exp_().scatter_add_(0, labels, self.minus_one).mul_(rows.share).t()
        waiting, left = len(self.steps), rows.end - rows.start
        found: list[Tensor] = []
        for l, above, grads in self.way_back:
            n = rows.reach[l]
            if n == 0:
                break
            if n < left:
                delta, left = delta[:n], n
            if above is not None:
                delta = above.input_grad(delta)
                above.forget()
                waiting -= 1
            if grads is not None:
                found += grads(delta, rows.weight[l])
        for step in self.steps[:waiting]:
            step.forget()
        if not total:
            total += found
        elif found:  # of layers that the rows before, of deeper devices, had too
            torch._foreach_add_(total[: len(found)], found)
        return loss


@dataclass(frozen=True, eq=False)
class _Rows:
    """Samples that go through the network together, those of the deepest devices first.

    Attributes
    ----------
    start, end : int
        Which rows of the round.
    share : Tensor, shape (n,)
        1/S_u of each row, times the number of its draws.
    reach : list of int, length L
        How many rows (a prefix) deliver layer l.
    weight : list of Tensor or None, length L
        A[u,l] of those rows; None if it is the same for all of them, and the update takes care of it.
    """

    start: int
    end: int
    share: Tensor
    reach: list[int]
    weight: list[Tensor | None]


@dataclass(frozen=True, eq=False)
class _Step:
    """What is done to some parameters at the end of a round: w ← (1 − η decay)·w − η scale·gradient.

    ``places`` are those of their gradients on the way back.
    """

    places: list[int]
    parameters: list[Tensor]
    scale: float
    decay: float


@dataclass(frozen=True, eq=False)
class _Draws:
    """A round's samples, device after device: ``sizes`` of them, and how often each was drawn (None: once)."""

    rows: Ints
    sizes: Ints
    times: Ints | None = None

    def merged(self, seen: NDArray[np.int32]) -> _Draws:
        """The same with the repeats of a device merged, if there are enough of them; ``seen`` is a scratch pad.

        With few samples on each device there are: 7 % of 32 draws from 200 samples, 14 % of 16 from 50.
        """
        order = np.arange(self.rows.size, dtype=np.int32)
        seen[self.rows] = order  # the last one stays
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
    """All that a round's sizes, depths and weights say, whichever samples are drawn."""

    parts: list[_Rows]
    steps: list[_Step]


class Fused(Engine):
    """One pass for all devices; exact for one local step of models whose samples do not influence each other."""

    name = "fused"

    def __init__(
        self, model: nn.Module, layers: tuple[Layer, ...], samples: Samples, weight_decay: float = 0.0
    ) -> None:
        self.samples = samples
        self.weight_decay = weight_decay
        self.walk = FusedPass(model, layers, samples.x[:1])
        parameters, order = dict(model.named_parameters()), self.walk.order
        self.parameters = [parameters[name].detach() for name in order]
        self.places = [[order.index(name) for name in layer.parameters] for layer in layers]
        self.dtype = self.parameters[0].dtype
        self._seen = np.empty(samples.y.shape[0], dtype=np.int32)
        self._last: tuple[tuple[bytes, bytes, bytes], _Layout] = ((b"", b"", b""), _Layout([], []))

    def run(self, work: RoundWork) -> float:
        """Do one round."""
        return self.prepare(work)()

    def prepare(self, work: RoundWork) -> Callable[[], float]:
        """Sort the rows and find their weights; what is left to do is the pass."""
        work = work.deepest_first()
        if work.sizes.size == 0:
            return lambda: math.nan
        draws = _Draws(work.rows[0], work.sizes).merged(self._seen)
        if draws.times is not None:
            layout = self._layout(work, draws)
        else:
            same = (work.sizes.tobytes(), work.progress.z.tobytes(), work.A.tobytes())
            if same != self._last[0]:  # without stragglers all rounds are alike
                self._last = same, self._layout(work, draws)
            layout = self._last[1]
        samples = []
        for part in layout.parts:
            index, labels = self.samples.labelled(draws.rows[part.start : part.end])
            samples.append((index, labels[None]))
        return partial(self._do, layout, samples, work.eta, work.sizes.size)

    def _layout(self, work: RoundWork, draws: _Draws) -> _Layout:
        sizes, A, delivered = draws.sizes, work.A, work.progress.delivered
        reach = (sizes @ delivered).tolist()  # rows that deliver layer l
        same = ((A == A[0]) | ~delivered).all(axis=0).tolist()  # the first device delivers what anybody does
        row_weight = None if all(same) else np.repeat(A.T.astype(np.float32), sizes, axis=1)
        share = np.repeat((1.0 / work.sizes).astype(np.float32), sizes)
        if draws.times is not None:
            share *= draws.times
        parts = []
        for start in range(0, share.size, self.walk.rows_at_once):
            end = min(start + self.walk.rows_at_once, share.size)
            within = [min(max(rows - start, 0), end - start) for rows in reach]
            weight = [
                None if row_weight is None or same[l] else self._floats(row_weight[l, start : start + n])
                for l, n in enumerate(within)
            ]
            parts.append(_Rows(start, end, self._floats(share[start:end]), within, weight))
        alike: dict[tuple[float, float], list[int]] = {}
        decay = (A * delivered).sum(axis=0) * self.weight_decay
        for l, places in enumerate(self.places):
            if reach[l]:
                alike.setdefault((float(A[0, l]) if same[l] else 1.0, float(decay[l])), []).extend(places)
        return _Layout(parts, [_Step(n, [self.parameters[k] for k in n], *how) for how, n in alike.items()])

    def _floats(self, values: NDArray[np.float32]) -> Tensor:
        found = self.samples.tensor(values)
        return found if found.dtype == self.dtype else found.to(self.dtype)

    def _do(self, layout: _Layout, samples: list[tuple[Tensor, Tensor]], eta: float, devices: int) -> float:
        total: list[Tensor] = []
        with torch.inference_mode():  # a twentieth quicker than no_grad; the weights themselves stay ordinary tensors
            losses = [
                self.walk.gradients(self.samples.inputs(index), labels, part, total)
                for part, (index, labels) in zip(layout.parts, samples, strict=True)
            ]
            for step in layout.steps:
                if step.decay:
                    torch._foreach_mul_(step.parameters, 1.0 - eta * step.decay)
                torch._foreach_add_(step.parameters, [total[k] for k in step.places], alpha=-eta * step.scale)
            return -sum(map(float, losses)) / devices
