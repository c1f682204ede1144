"""Codecs: what an upload is turned into, and how many bytes it takes, on which its time depends.

An upload holds w_u − w of the layers that a device finished. A codec says how large it is on the way and what the
server decodes from it. The size follows from the shapes alone, so that a simulation knows how long an upload takes
before it is computed.

    none   the numbers as they are
    half   float16: two bytes for each number, relative error at most 2⁻¹¹ from 6·10⁻⁵ to 65504, 2⁻²⁵ below that

Works on arrays of NumPy and on tensors of torch alike. What a codec remembers of a device, such as the part of an
update that was not sent, goes in and comes out; :class:`Uploads` keeps it, and a checkpoint keeps that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from adelfl.errors import ConfigError
from adelfl.seeds import rng_for

CodecName = Literal["none", "half"]

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

    def share(self, parameters: Mapping[str, Array]) -> float:
        """Return the size of a whole upload relative to the plain one."""
        return self.bytes(parameters) / max(1, _NONE.bytes(parameters))


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
        return sum(2 * int(value.nbytes) // int(value.itemsize) for value in update.values())

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Round to float16 and back to the precision of the update."""
        return Decoded({name: _rounded(value) for name, value in update.items()}, memory)


def _rounded(value: Array) -> Array:
    if isinstance(value, np.ndarray):
        with np.errstate(over="ignore"):
            return value.astype(np.float16).astype(value.dtype)
    return value.half().to(value.dtype)


_NONE = Plain()
_CODECS: dict[str, Codec] = {codec.name: codec for codec in (_NONE, Half())}


def find_codec(codec: str | Codec) -> Codec:
    """Return a codec by its name; a codec is returned as it is."""
    if isinstance(codec, Codec):
        return codec
    if codec not in _CODECS:
        raise ConfigError(f"codec must be one of {', '.join(get_args(CodecName))}, or a Codec, not {codec!r}")
    return _CODECS[codec]


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
