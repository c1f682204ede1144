"""The interface of engines: samples, the local work of a round, and its merged change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from adelfl.array_types import Bools, Floats
from adelfl.array_types import Ints as Ints
from adelfl.runtime.backend import Change as Change
from adelfl.runtime.codec import Uploads
from adelfl.runtime.controls import Controls
from adelfl.strategies.rounds import Progress
from adelfl.training.layers import Layer

_CACHED_BYTES = 16 << 20  # samples of this size fit into the processor's cache


class Samples:
    """All training samples: inputs (N, ...) and labels (N,).

    Rows are selected from a matrix of the inputs, in a third of the time that a stack of images would take.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self._flat, self._shape = x.flatten(1), x.shape[1:]
        self._labels = y.cpu().numpy()
        self._elsewhere = x.device.type != "cpu"
        self._bytes: _Bytes | None = None

    @classmethod
    def of(cls, x: NDArray[Any], y: NDArray[Any], device: torch.device | None = None) -> Samples:
        """Convert arrays to tensors on a device; on the CPU, the data is not copied."""
        return cls(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device))

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.x.device

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of some samples, in the given order."""
        index, labels = self.labelled(rows)
        return self.inputs(index), labels

    def labelled(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Return positions of samples as a tensor for :meth:`inputs`, and their labels."""
        return self.tensor(rows), self.tensor(self._labels[rows])

    def tensor(self, values: NDArray[Any]) -> Tensor:
        """Convert an array to a tensor on the device of the samples."""
        tensor = torch.from_numpy(values)
        return tensor.to(self.device) if self._elsewhere else tensor  # ``to`` takes time even without effect

    def inputs(self, index: Tensor) -> Tensor:
        """Return inputs of some samples, in the given order."""
        if self._bytes is None:
            rows = self._flat.index_select(0, index)
        else:
            rows = self._bytes.numbers(self._bytes.bytes.index_select(0, index))
        return rows if len(self._shape) == 1 else rows.view(-1, *self._shape)

    def compact(self) -> Samples:
        """Return samples that select their rows from an 8-bit copy, in half the time, if that is exact and faster.

        The copy exists if all numbers are low + step · (0 … 255), as in scaled images, up to a rounding error of 2⁻²²
        of the largest number.
        """
        if self._elsewhere or self.x.dtype != torch.float32 or self.x.nbytes <= _CACHED_BYTES:
            return self
        checksums = self._flat @ torch.rand(self._flat.shape[1], generator=torch.Generator().manual_seed(0))
        if not torch.equal(_Bytes.last[0], checksums):
            _Bytes.last = checksums, _Bytes.of(self._flat)
        compact = Samples(self.x, self.y)
        compact._bytes = _Bytes.last[1]
        return compact


@dataclass(frozen=True, eq=False)
class _Bytes:
    """Samples whose numbers are low + step · byte."""

    bytes: Tensor
    low: Tensor
    step: float

    last: ClassVar[tuple[Tensor, _Bytes | None]] = torch.empty(0), None
    """Checksums of the rows of the last samples, and their copy, which the next run on the same data reuses."""

    @classmethod
    @torch.no_grad()
    def of(cls, x: Tensor) -> _Bytes | None:
        """Return an 8-bit copy of samples, or None if they cannot be reconstructed from it."""
        low, high = x.aminmax()
        copied = cls(torch.empty(x.shape, dtype=torch.uint8), low, float(high - low) / 255)
        rounding, rows = 2.0**-22 * max(-float(low), float(high)), max(1, (1 << 16) // x.shape[1])
        for part, own in zip(torch.split(x, rows), torch.split(copied.bytes, rows), strict=True):
            own.copy_(part.sub(low).div_(copied.step).round_())
            if copied.numbers(own).sub_(part).abs_().max() > rounding:
                return None
        return copied

    def numbers(self, rows: Tensor) -> Tensor:
        """Return the numbers that rows of bytes represent."""
        numbers = rows.float()
        return torch.add(self.low, numbers, alpha=self.step, out=numbers)


@dataclass(frozen=True, eq=False)
class RoundWork:
    """Local work of the devices of a round."""

    rows: tuple[Ints, ...]
    """For each local iteration, the training samples of all devices one after another, shape (Σ S_u,)."""
    sizes: Ints
    """S_u, shape (U,)."""
    A: Floats
    """Weights of the merge, shape (U, L)."""
    progress: Progress
    """Layers that each device finishes."""
    eta: float
    """Learning rate."""
    width: Floats | None = None
    """HeteroFL's widths, shape (U,)."""
    mask_seeds: Ints | None = None
    """Seeds of the model's random numbers on each device (dropout), shape (U,); None for torch's global state."""
    senders: Ints | None = None
    """Numbers of each task and its device, for lossy codecs and control variates, shape (U, 2)."""
    proximal: float = 0.0
    """μ of the proximal term μ (w_u − w), which is added to gradients."""
    controls: Floats | None = None
    """Weight of the change of each device's control variate in the server's, shape (U,); None without them."""

    @cached_property
    def contributes(self) -> Bools:
        """Whether device u contributes to the merge, shape (U,)."""
        some: Bools = (self.progress.z > 0) & self.A.any(axis=1)
        return some

    @cached_property
    def starts(self) -> Ints:
        """Position of each device's first row, and the number of all rows, shape (U + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def deepest_first(self) -> RoundWork:
        """Return the work of the contributors, sorted by depth."""
        z = self.progress.z
        if z.size and z[-1] > 0 and (z[1:] <= z[:-1]).all() and self.A.all():
            return self  # the common case without stragglers
        chosen = np.flatnonzero(self.contributes)
        return self.only(chosen[np.argsort(-z[chosen], kind="stable")])

    def only(self, chosen: Ints) -> RoundWork:
        """Return the work of some of the devices, in the given order."""
        if chosen.size == self.sizes.size and np.array_equal(chosen, np.arange(chosen.size)):
            return self
        sizes = self.sizes[chosen]
        ends = np.cumsum(sizes)
        take = np.arange(ends[-1] if ends.size else 0) + np.repeat(self.starts[chosen] - (ends - sizes), sizes)
        p = self.progress
        steps = p.local_iterations if isinstance(p.local_iterations, int) else p.local_iterations[chosen]
        progress = Progress(p.z[chosen], p.layers, steps)
        own: dict[str, Any] = {key: value[chosen] for key, value in self._per_device().items()}
        return replace(self, rows=tuple(rows[take] for rows in self.rows), progress=progress, **own)

    def _per_device(self) -> dict[str, NDArray[Any]]:
        """Return the arrays with one entry for each device."""
        keys = ("sizes", "A", "width", "mask_seeds", "senders", "controls")
        return {key: value for key in keys if (value := getattr(self, key)) is not None}


def joined_work(parts: Sequence[RoundWork]) -> RoundWork:
    """Join the work of devices with the same rate and proximal term."""
    first = parts[0]
    if len(parts) == 1:
        return first
    z = np.concatenate([w.progress.z for w in parts])
    steps = np.concatenate([np.broadcast_to(w.progress.local_iterations, w.sizes.shape) for w in parts])
    own: dict[str, Any] = {key: np.concatenate([getattr(w, key) for w in parts]) for key in first._per_device()}
    most = max(len(w.rows) for w in parts)
    padded = [w.rows + (most - len(w.rows)) * w.rows[:1] for w in parts]  # the added rows are not used
    rows = tuple(np.concatenate(same) for same in zip(*padded, strict=True))
    return replace(first, rows=rows, progress=Progress(z, first.progress.layers, steps), **own)


NOTHING = Change({})
"""The change of a round to which no device contributed."""


class Engine(ABC):
    """Computes the merged change of a round from the weights of a model, which it does not change.

    Weight decay and momentum are those of the local steps. ``uploads`` encodes the updates with a lossy codec, and
    ``controls`` holds the control variates.
    """

    name: str

    def __init__(
        self,
        model: nn.Module,
        layers: tuple[Layer, ...],
        samples: Samples,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        uploads: Uploads | None = None,
        controls: Controls | None = None,
    ) -> None:
        self.layers, self.samples = layers, samples
        self.weight_decay, self.momentum = weight_decay, momentum
        self.uploads, self.controls = uploads, controls
        self.parameters: Mapping[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.layer_of = {name: l for l, layer in enumerate(layers) for name in layer.parameters}

    @abstractmethod
    def run(self, work: RoundWork) -> Change:
        """Do the local work of a round and merge it."""

    def prepare(self, work: RoundWork) -> Callable[[], Change]:
        """Prepare a round as far as its weights are not needed; the returned function does the rest."""
        return partial(self.run, work)

    def run_apart(self, works: Sequence[RoundWork], starts: Sequence[Mapping[str, Tensor]]) -> Change:
        """Do local work that starts from several weights, ``works[i]`` from ``starts[i]``, and merge it.

        By default, work with the same start is done together, while the model has these weights.
        """
        groups: dict[tuple[int, float, float], list[int]] = {}
        for k, work in enumerate(works):
            if work.contributes.any():
                groups.setdefault((id(starts[k]), work.eta, work.proximal), []).append(k)
        total: dict[str, Tensor] = {}
        losses, devices = 0.0, 0
        for same in groups.values():
            joined = joined_work([works[k] for k in same])
            with with_weights(self.parameters, starts[same[0]]), torch.enable_grad():
                change = self.run(joined)
            number = int(joined.contributes.sum())
            losses, devices = losses + change.loss * number, devices + number
            for name, step in change.parameters.items():
                total[name] = total[name] + step if name in total else step
        return Change(total, {}, losses / devices) if devices else NOTHING


@contextmanager
def with_weights(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Return a context in which the parameters of a model have other weights."""
    with torch.no_grad():
        before = {name: p.clone() for name, p in parameters.items()}
        for name, p in parameters.items():
            p.copy_(weights[name])
    try:
        yield
    finally:
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(before[name])


class Stateless:
    """A model as a function of its weights and buffers, which does not change the model's own values.

    ``torch.func.functional_call`` alone changes the weights of a module that is used in two places.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        name_of = {id(value): name for name, value in chain(model.named_parameters(), model.named_buffers())}
        # A tied value has one entry for each module that has it.
        self.places = [
            (f"{prefix}.{key}" if prefix else key, name_of[id(value)])
            for prefix, module in model.named_modules()
            for key, value in (*module._parameters.items(), *module._buffers.items())
            if value is not None
        ]

    def __call__(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the output for ``x`` with the given values, named as in the model."""
        given = {place: values[name] for place, name in self.places if name in values}
        out: Tensor = functional_call(self.model, given, (x,), tie_weights=False)
        return out
