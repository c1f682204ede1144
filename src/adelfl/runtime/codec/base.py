"""The interface of codecs, the two plain ones, and what a run keeps of its uploads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adelfl.seeds import rng_for

Floats = NDArray[np.floating[Any]]

Array = Any
"""An array of NumPy or a tensor of torch."""

Memory = Mapping[str, Array]
"""What a codec remembers of a device: an array for each of some names."""


class Decoded(NamedTuple):
    """What the server has of an upload, and what the device remembers of it."""

    update: Mapping[str, Array]
    memory: Memory


class Codec(ABC):
    """One way to send an update.

    Attributes
    ----------
    name : str
        The name in records, with options if there are any: a run is continued with a codec of the same name only.
    lossy : bool
        Whether what is decoded may differ from what was encoded. Then each device's update has to be computed by
        itself.
    """

    name: str
    lossy: bool = True

    @abstractmethod
    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return how many bytes an update takes, whatever its values are."""

    @abstractmethod
    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Encode an update and decode it again.

        Parameters
        ----------
        update : mapping of str to array
            w_u − w of the parameters that the device sends: those of its last layers, which may not be all.
        rng : numpy.random.Generator
            The source of what is drawn, as for stochastic rounding.
        memory : mapping of str to array
            What the codec remembered of this device; empty at first.
        """

    def relative_size(self, parameters: Mapping[str, Array]) -> float:
        """Return the size of a whole upload relative to the plain one."""
        return self.bytes(parameters) / max(1, Plain().bytes(parameters))


class Plain(Codec):
    """Send the numbers as they are."""

    name, lossy = "none", False

    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return the bytes of the arrays."""
        return sum(int(value.nbytes) for value in update.values())

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Return the update itself."""
        return Decoded(update, memory)


class Half(Codec):
    """Send float16. Values beyond 65504 become infinite, which ends a simulation with an error."""

    name = "half"

    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return two bytes for each number."""
        return sum(2 * count(value) for value in update.values())

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Round to float16 and back to the precision of the update."""
        return Decoded({name: _rounded(value) for name, value in update.items()}, memory)


def _rounded(value: Array) -> Array:
    if isinstance(value, np.ndarray):
        with np.errstate(over="ignore"):
            return value.astype(np.float16).astype(value.dtype)
    return value.half().to(value.dtype)


def count(value: Array) -> int:
    """Return how many numbers an array or a tensor holds."""
    return int(value.nbytes) // int(value.itemsize)


def through_numpy(value: Array, encode: Callable[[Floats], Floats]) -> Array:
    """Apply a function of NumPy to the numbers of an array or of a tensor, in a row; the result has their type."""
    if isinstance(value, np.ndarray):
        return encode(value.ravel()).reshape(value.shape).astype(value.dtype)
    flat = value.detach().cpu().numpy().ravel()
    return value.new_tensor(encode(flat).reshape(tuple(value.shape)).astype(flat.dtype))


@dataclass(eq=False)
class Uploads:
    """The uploads of a run: its codec, the random numbers of each upload, and the memory of each device.

    Attributes
    ----------
    codec : Codec
    seed : int
        The seed of the run.
    memory : dict of int to mapping
        What the codec remembers, by device.
    """

    codec: Codec
    seed: int
    memory: dict[int, Memory] = field(default_factory=dict)

    def send(self, update: Mapping[str, Array], task: int, device: int) -> Mapping[str, Array]:
        """Return what the server decodes of a device's update.

        Parameters
        ----------
        update : mapping of str to array
            What the device sends.
        task, device : int
            Numbers of the task and of the device, by which random numbers are drawn.
        """
        rng = rng_for(self.seed, "codec", task, device)
        decoded = self.codec.encode(update, rng, self.memory.get(device, {}))
        if decoded.memory:
            self.memory[device] = decoded.memory
        return decoded.update
