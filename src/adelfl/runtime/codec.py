"""Codecs: encodings of updates for their upload.

An upload contains w_u − w of the layers that a device finished. A codec determines the number of bytes of an upload,
and the update that the server decodes. The size depends on the shapes only, so that a simulation knows the duration of
an upload before the update is computed.

    none        unchanged
    half        float16: two bytes for each number, relative error at most 2⁻¹¹ from 6·10⁻⁵ to 65504, 2⁻²⁵ below that
    top-k       the largest numbers of each parameter and their positions; the rest is added to the next update
    qsgd        stochastic rounding to 8 or 4 bits, unbiased
    terngrad    stochastic rounding to −s, 0 and s, unbiased

Options are given in brackets: ``top-k[share=0.01]``, ``qsgd[bits=4;bucket=512]``. A codec has no state of its own:
:class:`Uploads` stores its memory of each device, such as the part of an update that was not sent, for checkpoints.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adelfl.array_types import Array as Array
from adelfl.errors import ConfigError
from adelfl.seeds import rng_for

Numbers = NDArray[np.floating[Any]]

Memory = Mapping[str, Array]
"""Memory of a codec for one device: arrays by name."""


class Decoded(NamedTuple):
    """The update that the server decodes, and the memory that the device keeps."""

    update: Mapping[str, Array]
    memory: Memory


class Codec(ABC):
    """An encoding of updates."""

    name: str
    """Name in records, including options. A run can only be continued with a codec of the same name."""
    lossy: bool = True
    """Whether decoded updates may differ from the original ones; each device's update is then computed separately."""

    @abstractmethod
    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return the size of an encoded update, which must not depend on its values."""

    @abstractmethod
    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Encode an update and decode it again.

        Parameters
        ----------
        update : mapping of str to array
            w_u − w of the parameters that the device sends, which may be those of the last layers only.
        rng : numpy.random.Generator
            Generator for stochastic codecs.
        memory : mapping of str to array
            Memory that the codec returned for the last update of this device; empty at first.
        """

    def relative_size(self, parameters: Mapping[str, Array]) -> float:
        """Return the size of a whole encoded update, relative to the update without a codec."""
        return self.bytes(parameters) / max(1, Plain().bytes(parameters))


class Plain(Codec):
    """Send updates unchanged."""

    name, lossy = "none", False

    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return the bytes of the arrays."""
        return sum(int(value.nbytes) for value in update.values())

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Return the update itself."""
        return Decoded(update, memory)


class _ByParameter(Codec):
    """A codec that encodes each parameter separately, as a vector."""

    @abstractmethod
    def size(self, count: int, itemsize: int) -> int:
        """Return the bytes of ``count`` encoded numbers, which take ``itemsize`` bytes each without a codec."""

    @abstractmethod
    def rounded(self, numbers: Numbers, rng: np.random.Generator) -> Numbers:
        """Encode a vector and decode it again."""

    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return the bytes of all parameters."""
        sizes = [(int(v.nbytes), int(v.itemsize)) for v in update.values() if v.nbytes]
        return sum(self.size(nbytes // each, each) for nbytes, each in sizes)

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Encode each parameter and decode it again; types do not change."""
        decoded: dict[str, Array] = {}
        for name, value in update.items():
            array = value if isinstance(value, np.ndarray) else value.detach().cpu().numpy()
            new = self.rounded(array.ravel(), rng).reshape(array.shape).astype(array.dtype)
            decoded[name] = new if array is value else value.new_tensor(new)
        return Decoded(decoded, memory)


class Half(_ByParameter):
    """Send float16. Values above 65504 become infinite, which ends a simulation with an error."""

    name = "half"

    def size(self, count: int, itemsize: int) -> int:
        """Return two bytes for each number."""
        return 2 * count

    def rounded(self, numbers: Numbers, rng: np.random.Generator) -> Numbers:
        """Round to float16."""
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16)


@dataclass(frozen=True)
class TopK(_ByParameter):
    """Send the largest numbers of each parameter, and add the rest to the next update.

    Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018.

        v = Δ + e,     send the k numbers of v with the largest absolute values,     e ← v − sent part of v

    k is a share of each parameter, so that what is sent of a layer does not depend on the depth of the update. Layers
    that are not sent keep their part of e. Each number takes its own bytes and four for its position; all numbers are
    sent if that takes less.
    """

    share: float = 0.01
    """k divided by the numbers of a parameter, above 0 and at most 1."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"codec top-k: share must be above 0 and at most 1, not {self.share!r}")
        object.__setattr__(self, "name", f"top-k[share={self.share:g}]")

    def size(self, count: int, itemsize: int) -> int:
        """Return the bytes of k numbers and their positions, or of all numbers."""
        return min(math.ceil(self.share * count) * (itemsize + 4), count * itemsize)

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Send the largest numbers of the sum of the update and the memory."""
        # With HeteroFL, the memory may have the shape of another width; it is then not added.
        known = {name: memory[name] for name in update if name in memory and memory[name].shape == update[name].shape}
        whole = {name: value + known[name] if name in known else value for name, value in update.items()}
        sent = super().encode(whole, rng, {}).update
        return Decoded(sent, {**memory, **{name: whole[name] - sent[name] for name in whole}})

    def rounded(self, numbers: Numbers, rng: np.random.Generator) -> Numbers:
        """Set all but the largest numbers to zero."""
        rest = numbers.size - math.ceil(self.share * numbers.size)
        if rest <= 0:
            return numbers
        sparse = numbers.copy()
        sparse[np.argpartition(np.abs(numbers), rest)[:rest]] = 0.0
        return sparse


class _Quantised(_ByParameter):
    """Round numbers to s levels, up or down at random, without bias.

        v → scale · sign(v) · ξ/s,     ξ = ⌊s |v|/scale + random number below 1⌋,     scale = largest |v| of a bucket

    Without a bucket size, each parameter is one bucket.
    """

    bits: int
    bucket: int | None

    def size(self, count: int, itemsize: int) -> int:
        """Return the bytes of all numbers and of the scales, which take four bytes each."""
        return -(-count * self.bits // 8) + 4 * -(-count // (self.bucket or count))

    def rounded(self, numbers: Numbers, rng: np.random.Generator) -> Numbers:
        """Round at random."""
        size, levels = self.bucket or max(1, numbers.size), 2 ** (self.bits - 1) - 1
        values = np.pad(numbers.astype(np.float64), (0, -numbers.size % size)).reshape(-1, size)
        scale = np.abs(values).max(axis=1, keepdims=True, initial=0.0)
        level = np.abs(values) / np.where(scale > 0, scale, 1.0) * levels
        decoded: Numbers = scale / levels * np.sign(values) * np.floor(level + rng.random(values.shape))
        return decoded.ravel()[: numbers.size]


@dataclass(frozen=True)
class QSGD(_Quantised):
    """Send each number with a few bits: s = 2^(bits − 1) − 1 levels.

    Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding", NeurIPS 2017. As in the
    paper's experiments, numbers are scaled in buckets, by the largest of them instead of the norm.
    """

    bits: int = 8
    """Bits for each number, including its sign: from 2 to 16, usually 8 or 4."""
    bucket: int | None = 512
    """Numbers that share a scale."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise ConfigError(f"codec qsgd: bits must be a whole number from 2 to 16, not {self.bits!r}")
        if not isinstance(self.bucket, int) or self.bucket < 1:
            raise ConfigError(f"codec qsgd: bucket must be a whole number of at least 1, not {self.bucket!r}")
        more = "" if self.bucket == 512 else f";bucket={self.bucket}"
        object.__setattr__(self, "name", f"qsgd[bits={self.bits}{more}]")


class TernGrad(_Quantised):
    """Send each number as −s, 0 or s, with one scale for each parameter.

    Wen et al., "TernGrad: Ternary gradients to reduce communication in distributed deep learning", NeurIPS 2017.
    """

    name, bits, bucket = "terngrad", 2, None


_CODECS: dict[str, type[Codec]] = {"none": Plain, "half": Half, "top-k": TopK, "qsgd": QSGD, "terngrad": TernGrad}


def find_codec(codec: str | Codec) -> Codec:
    """Return a codec by its name, which may have options as in ``top-k[share=0.01]``; return a Codec unchanged."""
    if isinstance(codec, Codec):
        return codec
    match = re.fullmatch(r"\s*([\w-]+)\s*(?:\[([^\[\]]*)\])?\s*", codec)
    if match is None or match[1] not in _CODECS:
        raise ConfigError(f"codec must be one of {', '.join(_CODECS)}, or a Codec, not {codec!r}")
    try:
        pairs = [pair.split("=") for pair in (match[2] or "").split(";") if pair.strip()]
        return _CODECS[match[1]](**{key.strip(): _number(value) for key, value in pairs})
    except (TypeError, ValueError):
        raise ConfigError(f"codec {codec!r}: options must be those of {match[1]}, such as top-k[share=0.01]") from None


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() and "." not in text else value


@dataclass(eq=False)
class Uploads:
    """Uploads of a run: its codec, its seed, and the codec's memory by device."""

    codec: Codec
    seed: int
    memory: dict[int, Memory] = field(default_factory=dict)

    def send(self, update: Mapping[str, Array], task: int, device: int) -> Mapping[str, Array]:
        """Encode the update of a device, and return the update that the server decodes."""
        rng = rng_for(self.seed, "codec", task, device)
        decoded = self.codec.encode(update, rng, self.memory.get(device, {}))
        if decoded.memory:
            self.memory[device] = decoded.memory
        return decoded.update
