"""Codecs: what an upload is turned into, and how many bytes it takes, on which its time depends.

An upload holds w_u − w of the layers that a device finished. A codec says how large it is on the way and what the
server decodes from it. The size follows from the shapes alone, so that a simulation knows how long an upload takes
before it is computed.

    none        the numbers as they are
    half        float16: two bytes for each number, relative error at most 2⁻¹¹ from 6·10⁻⁵ to 65504, 2⁻²⁵ below that
    top-k       the largest numbers of each parameter and where they are; the rest is added to the next update
    qsgd        stochastic rounding to 8 or 4 bits, unbiased
    terngrad    stochastic rounding to −s, 0 and s, unbiased

Options are given in brackets: ``top-k[share=0.01]``, ``qsgd[bits=4;bucket=512]``. Codecs work on arrays of NumPy and on
tensors of torch alike. What a codec remembers of a device, such as the part of an update that was not sent, goes in and
comes out; :class:`Uploads` keeps it, and a checkpoint keeps that.
"""

from __future__ import annotations

import re

from adelfl.errors import ConfigError
from adelfl.runtime.codec.base import Array, Codec, Decoded, Half, Memory, Plain, Uploads
from adelfl.runtime.codec.quantised import QSGD, TernGrad
from adelfl.runtime.codec.top_k import TopK

__all__ = ["QSGD", "Array", "Codec", "Decoded", "Half", "Memory", "Plain", "TernGrad", "TopK", "Uploads", "find_codec"]

_CODECS: dict[str, type[Codec]] = {"none": Plain, "half": Half, "top-k": TopK, "qsgd": QSGD, "terngrad": TernGrad}


def find_codec(codec: str | Codec) -> Codec:
    """Return a codec by its name, with options as in ``top-k[share=0.01]``; a codec is returned as it is."""
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


def _number(word: str) -> float | int:
    value = float(word)
    return int(value) if value.is_integer() and "." not in word else value
