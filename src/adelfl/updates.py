"""Updates of devices: checked before they may change the model, then merged layer by layer.

A device that finished z layers sends the change of each of their parameters, w_u − w. A reply that fails a check has no
effect on the model.

    w^l ← w^l + Σ_u A[u,l] (w_u^l − w^l)                              the merge of eq. (5), and of every baseline
"""

from __future__ import annotations

import io
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import AdelError, ConfigError

Array = NDArray[Any]


class Reason(StrEnum):
    """Why an update was rejected."""

    no_content = "no content"
    unreadable = "unreadable"
    oversize = "oversize"
    other_round = "other round"
    bad_weight = "bad weight"
    bad_depth = "bad depth"
    unknown_parameter = "unknown parameter"
    not_a_suffix = "not a suffix of the layers"
    wrong_shape = "wrong shape"
    wrong_dtype = "wrong dtype"
    not_finite = "not finite"
    norm = "norm out of line"


class UpdateRejected(AdelError):
    """An update that is not used."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(reason, sentence)
        self.reason = reason

    def __str__(self) -> str:
        return ": ".join(self.args)


@dataclass(frozen=True, eq=False)
class Shape:
    """Names of the parameters of each layer, input side first, and shapes and types of these parameters."""

    layers: tuple[tuple[str, ...], ...]
    parameters: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]

    @classmethod
    def of(cls, weights: Mapping[str, Array], layers: Sequence[Sequence[str]]) -> Shape:
        """Return the shape of a model's updates; every name of a layer must be one of its weights."""
        listed = tuple(tuple(layer) for layer in layers)
        names = [name for layer in listed for name in layer]
        if missing := [name for name in names if name not in weights]:
            raise ConfigError(f"layer parameter {missing[0]!r} is not among the model's weights")
        if len(set(names)) < len(names):
            raise ConfigError("a parameter may belong to one layer only")
        return cls(listed, {name: (weights[name].shape, weights[name].dtype) for name in names})

    def depth(self, names: Iterable[str]) -> int:
        """Return the number of layers that these parameters form, from the last on; raise UpdateRejected otherwise."""
        sent = set(names)
        if unknown := sorted(_shown(name) for name in sent - self.parameters.keys()):
            raise UpdateRejected(Reason.unknown_parameter, f"{unknown[0]} is not a parameter of the model")
        depth = len(list(takewhile(sent.issuperset, reversed(self.layers))))
        if extra := sent - {name for layer in self.layers[len(self.layers) - depth :] for name in layer}:
            raise UpdateRejected(
                Reason.not_a_suffix, f"it contains {min(extra)!r}, but not all layers between it and the output"
            )
        return depth

    def checked(self, name: str, value: Array | bytes) -> Array:
        """Return an array of the right shape and type, from a file if need be; raise UpdateRejected otherwise."""
        shape, dtype = self.parameters[name]
        if isinstance(value, bytes):
            value = read_array(value, math.prod(shape) * dtype.itemsize)
        if type(value) is not np.ndarray:  # a subclass may redefine what is finite
            raise UpdateRejected(Reason.unreadable, f"{name!r} is a {type(value).__name__}, not an array")
        if value.shape != shape:
            raise UpdateRejected(Reason.wrong_shape, f"{name!r} has shape {value.shape}, not {shape}")
        if value.dtype != dtype:
            raise UpdateRejected(Reason.wrong_dtype, f"{name!r} is {value.dtype}, not {dtype}")
        if not np.isfinite(value).all():
            raise UpdateRejected(Reason.not_finite, f"{name!r} has values that are not finite")
        return value


def read_array(data: bytes, limit: int) -> Array:
    """Read an array of at most ``limit`` bytes from a file as numpy.save writes it.

    Nothing is unpickled, and no memory is allocated before the header is checked.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream)
    except Exception as error:  # a header is Python source to numpy's parser, which may raise anything on it
        raise UpdateRejected(Reason.unreadable, f"not an array in numpy's format ({type(error).__name__})") from None
    if dtype.hasobject or dtype.itemsize == 0 or any(side < 0 for side in shape):
        raise UpdateRejected(Reason.unreadable, f"an array of {dtype} and shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    if size > limit:
        raise UpdateRejected(Reason.oversize, f"{size} bytes; at most {limit} are allowed")
    body = data[stream.tell() :]
    if len(body) != size:
        raise UpdateRejected(Reason.unreadable, f"{len(body)} bytes of data, but the header states {size}")
    values = np.frombuffer(body, dtype=dtype)
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


def admit(
    shape: Shape, round: int, claimed: object, changes: Mapping[str, Array | bytes], examples: object
) -> tuple[int, dict[str, Array]]:
    """Check one reply; return the number of its layers, counted from the last, and the changes of their parameters.

    ``claimed`` and ``examples`` are the round and the number of samples that the reply states. These, and the changes
    (arrays, or files as numpy.save writes them), may be anything. A reply that fails a check raises UpdateRejected.
    """
    if not _is_whole(claimed) or claimed != round:
        raise UpdateRejected(Reason.other_round, f"it is for round {_shown(claimed)}; this is round {round}")
    if not _is_whole(examples) or not 1 <= examples <= 2**53:  # type: ignore[operator]
        raise UpdateRejected(Reason.bad_weight, f"it states {_shown(examples)} samples; 1 to 2^53 are allowed")
    return shape.depth(changes), {name: shape.checked(name, value) for name, value in changes.items()}


class NormGuard:
    """Rejects updates whose norm is out of line in some layer.

    The norm of a layer may be at most ``limit`` times the usual norm of that layer: the median of the round, or of an
    earlier round if that was larger. (Updates of devices that have learned their data shrink; a device with other data
    must not be rejected for that.) Layers with fewer than three updates are not checked.
    """

    def __init__(self, shape: Shape, limit: float) -> None:
        self.shape, self.limit = shape, limit
        self.usual = [0.0] * len(shape.layers)  # largest median of each layer so far

    def norms(self, changes: Mapping[str, Array]) -> list[float]:
        """Return the norm of each layer of an update, NaN where a layer was not delivered."""
        # In double precision, where finite single numbers cannot overflow.
        return [
            math.sqrt(sum(float(np.square(changes[name], dtype=np.float64).sum()) for name in layer))
            if changes.keys() >= set(layer)
            else math.nan
            for layer in self.shape.layers
        ]

    def out_of_line(self, updates: Sequence[Sequence[float]]) -> dict[int, UpdateRejected]:
        """Return the rejections of updates by their position, from their norms."""
        rejections = {}
        for l, layer in enumerate(zip(*updates, strict=True)):
            norms = {i: norm for i, norm in enumerate(layer) if not math.isnan(norm)}
            if len(norms) < 3:
                continue
            self.usual[l] = usual = max(self.usual[l], float(np.median(list(norms.values()))))
            for i in (i for i, norm in norms.items() if norm > self.limit * usual and i not in rejections):
                sentence = f"layer {l + 1} changes by {norms[i]:.3g}; usual is {usual:.3g}"
                rejections[i] = UpdateRejected(Reason.norm, sentence)
        return rejections


def _shown(value: object) -> str:
    """Return a short representation of any value, on one line."""
    try:
        return " ".join(reprlib.repr(value).split())
    except Exception:  # an integer of too many digits, an object whose repr raises
        return f"a {type(value).__name__}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def add_weighted(
    total: dict[str, Any],
    layers: Sequence[Sequence[str]],
    changes: Mapping[str, Any],
    weights: Sequence[float] | NDArray[np.float64],
) -> None:
    """Add the changes of one device, NumPy arrays or torch tensors, to a sum, with the device's row of A.

    Devices are added in the order of their numbers, so that both kinds of arrays come to the same bits.
    """
    for names, weight in zip(layers, weights, strict=True):
        for name in names if weight != 0.0 else ():
            if name in changes:
                term = changes[name] * float(weight)
                total[name] = total[name] + term if name in total else term
