"""How long layers and uploads take: the paper's exponential layers and constant uploads, other laws, and yours.

A device that takes S samples needs S/P_u seconds for a layer on average; layer k costs ``costs[k]`` times that, a
forward pass ``forward`` times. The time of each is drawn around its mean by a law; so is the upload's around B_u.
A plan needs only one thing of all this: P(u delivers layer l by the deadline).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from adelfl.errors import ConfigError
from adelfl.seeds import rng_for
from adelfl.theory import participation

Floats = NDArray[np.float64]

LawName = Literal["exponential", "constant", "shifted", "gamma", "lognormal", "samples"]

_TABLE_DRAWS, _TABLE_POINTS = 20_000, 400
_UPLOAD_POINTS = 16
_STEADY = 1e-3  # the least spread that is computed with: less is the same in practice
_ROUNDING = 1e-9  # by which a probability may exceed 1


class LatencyModel(Protocol):
    """Draws durations. The number and order of draws must not depend on the means, so that luck can be shared.

    A model whose devices have constants of their own may have a method ``of_devices(devices)`` besides these: see
    :func:`of_devices`.
    """

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """Durations of each device's next backprop steps, one layer each, the last layer of the model first.

        Parameters
        ----------
        rng : numpy.random.Generator
            The round's own generator.
        mean : ndarray, shape (U,)
            S_u / P_u, seconds per layer: samples of the batch over the device's speed.
        steps : int
            Layers to draw for each device: E·L.
        layers : int
            L.

        Returns
        -------
        ndarray, shape (U, steps)
        """
        ...

    def upload_times(self, rng: np.random.Generator, upload: Floats, layers: int) -> Floats:
        """Seconds of each device's upload, shape (U,); or (U, L), of an upload of the last 1, 2, … L layers."""
        ...

    def delivery(self, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int) -> Floats:
        """P(device u delivers layer l by the deadline), shape (..., U, L), l = 1..L.

        Plans are made with it, and eq. (5) corrects with it. A model without a closed form may estimate it by
        simulation. ``mean`` has shape (..., U), ``upload`` and ``deadline`` broadcast to it.
        """
        ...


def of_devices(latency: LatencyModel, devices: NDArray[np.int64]) -> LatencyModel:
    """Return the latency model of some devices, in their order.

    Parameters
    ----------
    latency : LatencyModel
        If it has a method ``of_devices(devices)``, that is what is asked; without one the model is the same for all.
    devices : ndarray of int, shape (U,)
        Their numbers, from 0, in the order of the fleet.
    """
    chosen = getattr(latency, "of_devices", None)
    if chosen is None:
        return latency
    found: LatencyModel = chosen(devices)
    return found


def work_of(latency: LatencyModel, z: NDArray[np.int64], layers: int, when: str = "a plan") -> Floats:
    """How much work so many finished layers are, in mean layers: what they cost, and the forward passes before them.

    A model says so with a method ``work(z, layers)``; for one without, a layer is a layer.
    """
    said = getattr(latency, "work", None)
    if said is None:
        return np.asarray(z, dtype=np.float64)
    return _checked(latency, "work", said(z, layers), (z.shape,), when)


def layer_times_of(
    latency: LatencyModel, rng: np.random.Generator, mean: Floats, steps: int, layers: int, when: str
) -> Floats:
    """Call :meth:`LatencyModel.layer_times`, and raise ConfigError if the durations cannot be; ``when``: "round 3"."""
    times = latency.layer_times(rng, mean, steps, layers)
    return _checked(latency, "layer_times", times, ((mean.size, steps),), when)


def upload_times_of(latency: LatencyModel, rng: np.random.Generator, upload: Floats, layers: int, when: str) -> Floats:
    """Call :meth:`LatencyModel.upload_times`, and raise ConfigError if the durations cannot be."""
    times = latency.upload_times(rng, upload, layers)
    return _checked(latency, "upload_times", times, (upload.shape, (*upload.shape, layers)), when)


def delivery_of(
    latency: LatencyModel, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int, when: str = "a plan"
) -> Floats:
    """Call :meth:`LatencyModel.delivery`, and raise ConfigError if the probabilities cannot be."""
    shape = (*np.broadcast_shapes(mean.shape, upload.shape, np.shape(deadline)), layers)
    found = _checked(latency, "delivery", latency.delivery(mean, upload, deadline, layers), (shape,), when)
    if type(latency) not in _OURS and found.size and not (highest := float(found.max())) <= 1.0 + _ROUNDING:
        raise ConfigError(
            f"latency model {type(latency).__name__}: delivery gave a probability of {highest:.6g} in {when}; "
            "it must be between 0 and 1"
        )
    return found


def _checked(
    latency: LatencyModel, method: str, values: ArrayLike, shapes: tuple[tuple[int, ...], ...], when: str
) -> Floats:
    """Return what a method of a latency model gave, or raise ConfigError if it has a wrong shape, NaN or a minus."""
    if type(latency) in _OURS:
        return values  # type: ignore[return-value]
    said = f"latency model {type(latency).__name__}: {method} gave"
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{said} {type(values).__name__} in {when}, which is not an array of numbers") from None
    if found.shape not in shapes:
        wanted = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise ConfigError(f"{said} numbers of shape {found.shape} in {when}; the shape must be {wanted}")
    if np.isnan(found).any():
        raise ConfigError(f"{said} NaN in {when}; every value must be a number")
    if found.size and found.min() < 0:
        raise ConfigError(f"{said} {found.min():.6g} in {when}; every value must be zero or more")
    return found


class Exponential:
    """The paper's model (B1, B2): exponential layer times of mean S_u/P_u, uploads that take exactly B_u."""

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """Independent exponential durations."""
        return mean[:, None] * rng.standard_exponential((mean.size, steps))

    def upload_times(self, rng: np.random.Generator, upload: Floats, layers: int) -> Floats:
        """B_u, whatever the luck."""
        return upload

    def delivery(self, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int) -> Floats:
        """1 − Q(L+1−l, (T − B)/mean)."""
        left = np.maximum(np.asarray(deadline, dtype=np.float64) - upload, 0.0)
        return participation.delivery(layers, left / mean)


@dataclass(frozen=True, eq=False)
class GammaLayers:
    """Layer times of mean (S_u + s₀)/P_u that vary as much as each device's do, uploads that take exactly B_u.

    The time of k layers follows a gamma law of shape k/v², where v is the standard deviation of a layer's time over its
    mean. For v = 1 that is the paper's model.

    Attributes
    ----------
    spread : ndarray, shape (U,), or float
        v of each device, or one for all.
    """

    spread: Floats | float

    def of_devices(self, devices: NDArray[np.int64]) -> GammaLayers:
        """Return the model of some devices."""
        return self if np.ndim(self.spread) == 0 else GammaLayers(np.asarray(self.spread)[devices])

    def typical(self) -> GammaLayers:
        """Return the model with the root mean square of all spreads, for plans that put devices together."""
        return GammaLayers(float(np.sqrt(np.mean(np.square(self.spread)))))

    def _shape(self) -> Floats:
        return np.asarray(np.maximum(self.spread, _STEADY) ** -2.0)

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """Independent gamma durations."""
        shape = np.broadcast_to(self._shape(), mean.shape)[:, None]
        found: Floats = mean[:, None] * rng.standard_gamma(shape, (mean.size, steps)) / shape
        return found

    def upload_times(self, rng: np.random.Generator, upload: Floats, layers: int) -> Floats:
        """B_u."""
        return upload

    def delivery(self, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int) -> Floats:
        """P(a gamma time of shape (L+1−l)/v² is at most T − B)."""
        left = np.maximum(np.asarray(deadline, dtype=np.float64) - upload, 0.0)
        shape = self._shape()
        found: Floats = special.gammainc(shape[..., None] * np.arange(layers, 0, -1), (shape * left / mean)[..., None])
        return found


def of_fleet(latency: LatencyModel, spread: Floats | None) -> LatencyModel:
    """Return the latency model of a fleet whose devices' layer times vary as much as given, shape (N,)."""
    if spread is None or type(latency) is GammaLayers:
        return latency
    if type(latency) is not Exponential:
        raise ConfigError("the devices' own spread needs the default latency model; leave out one of the two")
    return latency if np.all(spread == 1.0) else GammaLayers(spread)


def for_plans(latency: LatencyModel) -> LatencyModel:
    """Return the model that stands for all devices of a fleet."""
    return latency.typical() if type(latency) is GammaLayers else latency


@dataclass(frozen=True)
class Law:
    """A law of durations with mean 1.

    Attributes
    ----------
    name : str
        "exponential", "constant", "shifted" (exponential), "gamma", "lognormal", or "samples" (measured ones).
    spread : float
        Of "shifted": the part that always passes, between 0 and 1. Of "gamma" and "lognormal": standard deviation.
    values : tuple of float
        Of "samples": durations in any unit; they are drawn with replacement.
    """

    name: LawName = "exponential"
    spread: float = 0.5
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in get_args(LawName):
            raise ConfigError(f"law must be one of {', '.join(get_args(LawName))}, not {self.name!r}")
        if self.name == "samples" and (len(self.values) < 2 or not all(v > 0 for v in self.values)):
            raise ConfigError("law 'samples' needs at least two positive durations")
        if self.name == "shifted" and not 0 <= self.spread < 1:
            raise ConfigError(f"the spread of law 'shifted' is a share between 0 and 1, not {self.spread!r}")
        if self.name in ("gamma", "lognormal") and not 0 < self.spread < 100:
            raise ConfigError(f"the spread of law {self.name!r} must be a positive number, not {self.spread!r}")

    @property
    def variation(self) -> float:
        """Standard deviation over mean."""
        if self.name == "samples":
            return float(np.std(self.values) / np.mean(self.values))
        return {"exponential": 1.0, "constant": 0.0, "shifted": 1.0 - self.spread}.get(self.name, self.spread)

    def quantile(self, luck: Floats) -> Floats:
        """Durations of mean 1 from uniform numbers between 0 and 1."""
        if self.name == "constant":
            return np.ones_like(luck)
        if self.name == "samples":
            ordered = np.sort(np.asarray(self.values, dtype=np.float64))
            found: Floats = ordered[np.minimum((luck * ordered.size).astype(np.int64), ordered.size - 1)]
            return np.asarray(found / ordered.mean(), dtype=np.float64)
        if self.name == "gamma":
            shape = self.spread**-2
            found = special.gammaincinv(shape, luck) / shape
        elif self.name == "lognormal":
            sigma = np.sqrt(np.log1p(self.spread**2))
            found = np.exp(sigma * special.ndtri(np.maximum(luck, 1e-300)) - sigma**2 / 2)
        else:
            shift = self.spread if self.name == "shifted" else 0.0
            found = shift - (1.0 - shift) * np.log1p(-luck)
        return found


@dataclass(frozen=True, eq=False)
class Trace:
    """A measured bandwidth, over and over: an upload begins at a random moment of it and takes what it takes.

    Attributes
    ----------
    seconds, rate : ndarray
        From each moment to the next the bandwidth was ``rate``, in any unit; the last one holds as long as the mean of
        the others.
    """

    seconds: Floats
    rate: Floats

    def __post_init__(self) -> None:
        rising = self.seconds.ndim == 1 and self.seconds.size >= 2 and bool(np.all(np.diff(self.seconds) > 0))
        if not (rising and self.rate.shape == self.seconds.shape and np.all(self.rate >= 0) and np.any(self.rate > 0)):
            raise ConfigError("a bandwidth trace needs two or more rising moments, each with a rate of zero or more")

    @classmethod
    def from_csv(cls, path: str | Path) -> Trace:
        """Read the columns seconds and rate."""
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                names = list(reader.fieldnames or ())
                if twice := [name for name in names if names.count(name) > 1]:
                    raise ConfigError(f"column {twice[0]!r} is there twice; name each column once")
                rows = list(reader)
            return cls(*(np.array([float(row[key]) for row in rows]) for key in ("seconds", "rate")))
        except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError) as trouble:
            raise ConfigError(f"{path}: must be a CSV file with the columns seconds and rate ({trouble})") from None
        except ConfigError as trouble:
            raise ConfigError(f"{path}: {trouble}") from None

    @cached_property
    def _sent(self) -> tuple[Floats, Floats]:
        """Moments from 0, and what was sent by then at a mean rate of 1; one lap, its end included."""
        steps = np.append(np.diff(self.seconds), np.diff(self.seconds).mean())
        moments = np.concatenate([[0.0], np.cumsum(steps)])
        sent = np.concatenate([[0.0], np.cumsum(steps * self.rate)])
        return moments, sent * (moments[-1] / sent[-1])

    def times(self, amount: Floats, luck: Floats) -> Floats:
        """Seconds to send so many mean-rate seconds' worth, begun at a share ``luck`` of the trace."""
        moments, sent = self._sent
        lap = moments[-1]
        begin = luck * lap
        goal = np.interp(begin, moments, sent) + amount
        laps, rest = np.divmod(goal, lap)
        found: Floats = laps * lap + np.interp(rest, sent, moments) - begin
        return np.where(amount > 0, np.maximum(found, 0.0), 0.0)


@dataclass(frozen=True, eq=False)
class Latency:
    """Layers of unequal cost, a forward pass, and other laws than the paper's.

    Attributes
    ----------
    law : Law
        Of the time of a layer.
    costs : tuple of float
        Of each layer, input side first, in any unit; empty: all alike.
    forward : float
        Of the forward pass, in mean layers.
    upload : Law or Trace
        Of the time of an upload.
    shares : tuple of float
        Size of each layer, input side first, in any unit: an upload takes as long as what is sent. Empty: always B_u.
    """

    law: Law = field(default_factory=Law)
    costs: tuple[float, ...] = ()
    forward: float = 0.0
    upload: Law | Trace = field(default_factory=lambda: Law("constant"))
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for key in ("costs", "shares"):
            values = getattr(self, key)
            if not all(np.isfinite(v) and v >= 0 for v in values) or (values and not sum(values) > 0):
                raise ConfigError(f"latency.{key} must be numbers of zero or more, not all of them zero")
        if not (np.isfinite(self.forward) and self.forward >= 0):
            raise ConfigError(f"latency.forward must be zero or more, not {self.forward!r}")

    def _checked(self, key: str, layers: int) -> Floats:
        values = getattr(self, key) or (1.0,) * layers
        if len(values) != layers:
            raise ConfigError(f"latency.{key} must be {layers} numbers, one per layer, not {len(values)}")
        return np.asarray(values, dtype=np.float64)

    def _costs(self, layers: int) -> Floats:
        """Of the backprop steps in their order, last layer first; mean 1."""
        costs = self._checked("costs", layers)
        return np.asarray(costs[::-1] / costs.mean(), dtype=np.float64)

    def _upload_share(self, layers: int) -> Floats | None:
        """Of an upload of the last 1, 2, … L layers; None if it does not matter how many."""
        if not self.shares:
            return None
        sizes = self._checked("shares", layers)[::-1]
        return np.asarray(np.cumsum(sizes) / sizes.sum(), dtype=np.float64)

    def work(self, z: NDArray[np.int64], layers: int) -> Floats:
        """Mean layers that z finished ones come to, over all local iterations."""
        done = np.concatenate([[0.0], np.cumsum(self._costs(layers))])
        whole, rest = np.divmod(z, layers)
        started = whole + (rest > 0)
        return np.asarray(whole * layers + done[rest] + self.forward * started, dtype=np.float64)

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """The law's durations; the forward pass counts with the first layer of its iteration."""
        times = self.law.quantile(rng.random((mean.size, steps))) * np.tile(self._costs(layers), steps // layers)
        if self.forward:
            times[:, ::layers] += self.forward * self.law.quantile(rng.random((mean.size, steps // layers)))
        return mean[:, None] * times

    def upload_times(self, rng: np.random.Generator, upload: Floats, layers: int) -> Floats:
        """The law's durations around B_u, or around what each number of layers takes of it."""
        return self._uploads(upload, rng.random(upload.size), self._upload_share(layers))

    def _uploads(self, upload: Floats, luck: Floats, share: Floats | None) -> Floats:
        if share is not None:
            upload, luck = upload[..., None] * share, luck[..., None]
        if isinstance(self.upload, Trace):
            return self.upload.times(upload, luck)
        found: Floats = upload * self.upload.quantile(luck)
        return found

    def delivery(self, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int) -> Floats:
        """From a table of how long 1, 2, … L layers take, averaged over the luck of the upload."""
        mean = np.asarray(mean, dtype=np.float64)
        fixed = not isinstance(self.upload, Trace) and self.upload.name == "constant"
        luck = (np.arange(1 if fixed else _UPLOAD_POINTS) + 0.5) / (1 if fixed else _UPLOAD_POINTS)
        share, T = self._upload_share(layers), np.asarray(deadline, dtype=np.float64)
        total = np.zeros((*np.broadcast_shapes(mean.shape, T.shape), layers))
        for one in luck:
            took = self._uploads(upload, np.full(upload.shape, one), share)
            left = np.maximum(T[..., None] - (took if share is not None else took[..., None]), 0.0)
            total += self._finished(np.broadcast_to(left / mean[..., None], total.shape), layers)
        return total[..., ::-1] / luck.size

    def _finished(self, time: Floats, layers: int) -> Floats:
        """P(s layers take at most so many mean layers), s = 1..L on the last axis."""
        table = self._table(layers)
        share = (np.arange(_TABLE_POINTS) + 0.5) / _TABLE_POINTS
        found = np.empty_like(time)
        for s in range(layers):
            found[..., s] = np.interp(time[..., s], table[s], share, left=0.0, right=1.0)
        # Below the first quantile of the table the share falls to 0 in proportion, above the last one to 1.
        low = table[:, 0]
        small = time < low
        found[small] = (0.5 / _TABLE_POINTS * (time / np.maximum(low, 1e-300)) ** np.arange(1, layers + 1))[small]
        return found

    def _table(self, layers: int) -> Floats:
        """Quantiles of the time that 1, 2, … L layers take, in mean layers; the same draws for every fleet."""
        kept = self.__dict__.setdefault("_tables", {})
        if layers not in kept:
            rng = rng_for(0, "latency table", layers)
            times = self.layer_times(rng, np.ones(_TABLE_DRAWS), layers, layers)
            sums = np.sort(np.cumsum(times, axis=1), axis=0)
            places = ((np.arange(_TABLE_POINTS) + 0.5) / _TABLE_POINTS * _TABLE_DRAWS).astype(np.int64)
            kept[layers] = np.ascontiguousarray(sums[places].T)
        found: Floats = kept[layers]
        return found


_OURS = (Exponential, GammaLayers, Latency)  # of which nothing needs to be checked; not their subclasses
