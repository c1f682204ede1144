"""What devices send back: checked before it may touch the model, then merged layer by layer.

A device that finished z layers sends the change of each of their parameters, w_u − w. Nothing of a reply that fails a
check is used, and the model becomes what it would have become without that reply, to the bit.

    w^l ← w^l + Σ_u A[u,l] (w_u^l − w^l)                              the merge of eq. (5), and of every baseline
"""

from __future__ import annotations

import io
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import AdelError, ConfigError

Array = NDArray[Any]


class Reason(StrEnum):
    """Why an update was rejected."""

    no_content = "no content"
    unreadable = "unreadable"
    oversize = "oversize"
    unselected = "unselected sender"
    duplicate = "duplicate"
    other_round = "other round"
    late = "late"
    bad_weight = "bad weight"
    bad_depth = "bad depth"
    unknown_parameter = "unknown parameter"
    not_a_suffix = "not a suffix of the layers"
    wrong_shape = "wrong shape"
    wrong_dtype = "wrong dtype"
    not_finite = "not finite"
    norm = "norm out of line"


class UpdateRejected(AdelError):
    """An update that must not touch the model."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(f"{reason}: {sentence}")
        self.reason = reason
        self.sentence = sentence

    def __reduce__(self) -> tuple[type[Self], tuple[Reason, str]]:
        return type(self), (self.reason, self.sentence)


@dataclass(frozen=True, eq=False)
class Update:
    """A reply that passed.

    Attributes
    ----------
    node : int
        Who sent it.
    depth : int
        How many layers it has, counted from the last.
    changes : dict of str to ndarray
        w_u − w of the parameters of those layers.
    examples : int
        How many samples it is worth.
    """

    node: int
    depth: int
    changes: dict[str, Array] = field(repr=False)
    examples: int


@dataclass(frozen=True, eq=False)
class Shape:
    """What a model's updates look like.

    Attributes
    ----------
    layers : tuple of tuple of str
        Names of parameters, input side first.
    parameters : mapping of str to (shape, dtype)
    """

    layers: tuple[tuple[str, ...], ...]
    parameters: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]

    @classmethod
    def of(cls, weights: Mapping[str, Array], layers: Sequence[Sequence[str]]) -> Shape:
        """Of a model's weights; every name of a layer must be one of them."""
        listed = tuple(tuple(layer) for layer in layers)
        names = [name for layer in listed for name in layer]
        if missing := [name for name in names if name not in weights]:
            raise ConfigError(f"layer parameter {missing[0]!r} is not among the model's weights")
        if len(set(names)) < len(names):
            raise ConfigError("a parameter may belong to one layer only")
        return cls(listed, {name: (weights[name].shape, weights[name].dtype) for name in names})

    def depth(self, names: Iterable[str]) -> int:
        """How many layers these parameters make up, from the last on; they must be all of them, and no others."""
        given = set(names)
        if unknown := sorted(_shown(name) for name in given - self.parameters.keys()):
            raise UpdateRejected(Reason.unknown_parameter, f"{unknown[0]} is none of the model's")
        depth = 0
        for layer in reversed(self.layers):
            if not given.issuperset(layer):
                break
            depth += 1
        if extra := given - {name for layer in self.layers[len(self.layers) - depth :] for name in layer}:
            raise UpdateRejected(
                Reason.not_a_suffix, f"{min(extra)!r} without all layers between it and the output, which come first"
            )
        return depth

    def checked(self, name: str, value: Array | bytes) -> Array:
        """Return an array of the right shape and type, from a file if need be; raise UpdateRejected otherwise."""
        shape, dtype = self.parameters[name]
        if isinstance(value, bytes):
            value = read_array(value, math.prod(shape) * dtype.itemsize)
        if type(value) is not np.ndarray:  # a subclass may have ideas of its own about what is finite
            raise UpdateRejected(Reason.unreadable, f"{name!r} is a {type(value).__name__}, not an array")
        if value.shape != shape:
            raise UpdateRejected(Reason.wrong_shape, f"{name!r} has shape {value.shape}, not {shape}")
        if value.dtype != dtype:
            raise UpdateRejected(Reason.wrong_dtype, f"{name!r} is {value.dtype}, not {dtype}")
        if not np.isfinite(value).all():
            raise UpdateRejected(Reason.not_finite, f"{name!r} has values that are not numbers")
        return value


def read_array(data: bytes, limit: int) -> Array:
    """Read an array as numpy.save writes it; never unpickles, and allocates nothing before the header makes sense.

    Parameters
    ----------
    data : bytes
        The file.
    limit : int
        Most bytes that the array may have.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream)
    except Exception as trouble:  # a header is Python source to numpy's parser, which may raise anything on it
        raise UpdateRejected(Reason.unreadable, f"no array's header ({type(trouble).__name__})") from None
    if dtype.hasobject or dtype.itemsize == 0 or any(side < 0 for side in shape):
        raise UpdateRejected(Reason.unreadable, f"an array of {dtype} and shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    if size > limit:
        raise UpdateRejected(Reason.oversize, f"{size} bytes where {limit} are the most")
    body = data[stream.tell() :]
    if len(body) != size:
        raise UpdateRejected(Reason.unreadable, f"{len(body)} bytes of data where the header says {size}")
    found = np.frombuffer(body, dtype=dtype)
    return found.reshape(shape[::-1]).T if fortran else found.reshape(shape)


class Gate:
    """Lets a round's replies in, or says why not.

    Parameters
    ----------
    shape : Shape
        What updates look like.
    round : int
        The round that is going on.
    selected : iterable of int
        Who was asked.
    deadline : float
        Seconds after the round's start by which replies count.
    norm_limit : float
        k: an update is out of line if the norm of one of its layers exceeds k times the median of that layer's norms in
        the round; infinite to let everything through. Needs three updates with that layer.
    """

    def __init__(
        self, shape: Shape, round: int, selected: Iterable[int], deadline: float = math.inf, norm_limit: float = 10.0
    ) -> None:
        if not norm_limit > 1:
            raise ConfigError(f"norm_limit must exceed 1, not {norm_limit:g}")
        self.shape, self.round, self.deadline, self.norm_limit = shape, round, deadline, norm_limit
        self.selected = frozenset(selected)
        self.seen: set[int] = set()

    def admit(
        self,
        node: int,
        round: object,
        changes: Mapping[str, Array | bytes],
        examples: object,
        arrived: float,
    ) -> Update:
        """Check one reply.

        Parameters
        ----------
        node : int
            Who sent it, as the transport says.
        round, examples : object
            What the reply says; anything, since nobody has looked at it yet.
        changes : mapping of str to ndarray or bytes
            Arrays, or files as numpy.save writes them.
        arrived : float
            Seconds after the round's start.

        Raises
        ------
        UpdateRejected
            With a reason.
        """
        if node not in self.selected:
            raise UpdateRejected(Reason.unselected, f"node {node} was not asked in round {self.round}")
        if node in self.seen:
            raise UpdateRejected(Reason.duplicate, f"node {node} has replied in round {self.round} already")
        if not _is_whole(round) or round != self.round:
            raise UpdateRejected(Reason.other_round, f"it says round {_shown(round)}; this is round {self.round}")
        if not arrived <= self.deadline:
            raise UpdateRejected(
                Reason.late, f"{arrived:.3f} s after the start; the round closed at {self.deadline:.3f} s"
            )
        if not _is_whole(examples) or not 1 <= examples <= 2**53:  # type: ignore[operator]
            raise UpdateRejected(Reason.bad_weight, f"it is worth {_shown(examples)} samples")
        depth = self.shape.depth(changes)
        checked = {name: self.shape.checked(name, value) for name, value in changes.items()}
        self.seen.add(node)
        return Update(node, depth, checked, int(examples))  # type: ignore[call-overload]

    def in_line(self, updates: Sequence[Update]) -> tuple[list[Update], list[tuple[Update, UpdateRejected]]]:
        """Part a round's updates into those to merge, by node, and those whose norm is out of line."""
        kept, out = [], []
        norms = [self._norms(update) for update in updates]
        medians = {}
        for l in range(len(self.shape.layers)):
            of_layer = [n[l] for n in norms if l in n]
            medians[l] = float(np.median(of_layer)) if len(of_layer) >= 3 else math.inf
        for update, norm in zip(updates, norms, strict=True):
            far = [l for l, value in norm.items() if value > self.norm_limit * medians[l]]
            if far:
                what = f"layer {far[0] + 1} changes by {norm[far[0]]:.3g}, the median is {medians[far[0]]:.3g}"
                out.append((update, UpdateRejected(Reason.norm, what)))
            else:
                kept.append(update)
        return sorted(kept, key=lambda update: update.node), out

    def _norms(self, update: Update) -> dict[int, float]:
        """Norm of each of its layers, in double precision, where finite single numbers cannot overflow."""
        first = len(self.shape.layers) - update.depth
        return {
            l: math.sqrt(sum(float(np.square(update.changes[name], dtype=np.float64).sum()) for name in layer))
            for l, layer in enumerate(self.shape.layers)
            if l >= first
        }


def _shown(value: object) -> str:
    """A foreign value in a few characters, on one line, whatever it is."""
    try:
        return " ".join(reprlib.repr(value).split())
    except Exception:  # an integer of too many digits, an object whose repr raises
        return f"a {type(value).__name__}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _Numbers(Protocol):
    """An array of numpy or of torch."""

    def __mul__(self, other: Any, /) -> Any: ...  # noqa: ANN401
    def __add__(self, other: Any, /) -> Any: ...  # noqa: ANN401


Values = TypeVar("Values", bound=_Numbers)


class WeightedSum(Generic[Values]):
    """Σ_u A[u,l] (w_u − w) of every parameter that was delivered, added up device by device.

    Parameters
    ----------
    layers : sequence of sequences of str
        Names of parameters, input side first.
    updates : iterable of (mapping, sequence of float)
        Changes of each device, and its row of A, in the order of device numbers.

    Attributes
    ----------
    total : dict of str to array
        The change of each parameter so far: NumPy arrays or torch tensors, whichever were added.
    """

    def __init__(
        self,
        layers: Sequence[Sequence[str]],
        updates: Iterable[tuple[Mapping[str, Values], Sequence[float] | NDArray[np.float64]]] = (),
    ) -> None:
        self.layers = layers
        self.total: dict[str, Values] = {}
        for changes, weights in updates:
            self.add(changes, weights)

    def add(self, changes: Mapping[str, Values], weights: Sequence[float] | NDArray[np.float64]) -> None:
        """Add the changes of one device with its row of A."""
        for names, weight in zip(self.layers, weights, strict=True):
            if weight == 0.0:
                continue
            for name in names:
                if name in changes:
                    term = changes[name] * float(weight)
                    self.total[name] = self.total[name] + term if name in self.total else term
