"""Latency models: durations of layers and uploads, and the probability of delivery by a deadline.

A device with batch size S needs S/P_u seconds for a layer on average; layer k costs ``costs[k]`` times that, a forward
pass ``forward`` times. Durations are drawn around their mean by a law, those of uploads around B_u. A plan needs only
P(u delivers layer l by the deadline).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from adelfl.array_types import Floats, Ints
from adelfl.durations import Law as Law
from adelfl.durations import LawName as LawName
from adelfl.errors import ConfigError
from adelfl.seeds import rng_for
from adelfl.theory import participation

_TABLE_DRAWS, _TABLE_POINTS = 20_000, 400
_UPLOAD_POINTS = 16
_STEADY = 1e-3  # smaller spreads are raised to this, which makes no difference in practice
_ROUNDING = 1e-9  # by which a probability may exceed 1


class LatencyModel(Protocol):
    """A latency model. The number and order of its draws must not depend on the means, so that strategies share them.

    A model may also have a method ``of_devices(devices)``, which returns the model of some devices (numbers from 0, in
    the order of the fleet), and ``work(z, layers)``, the work of z finished layers in mean layers.
    """

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """Return the durations of each device's next backprop steps, last layer first, shape (U, steps).

        ``mean`` is S_u / P_u in seconds per layer, shape (U,), ``steps`` is E·L and ``layers`` is L. ``rng`` is the
        round's own generator.
        """
        ...

    def upload_times(self, rng: np.random.Generator, upload: Floats, layers: int) -> Floats:
        """Return the seconds of each device's upload, shape (U,), or of that of the last 1, 2, … L layers, (U, L)."""
        ...

    def delivery(self, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int) -> Floats:
        """Return P(device u delivers layer l by the deadline), shape (..., U, L), for plans and for eq. (5).

        A model without a closed form may estimate it by simulation. ``mean`` has shape (..., U), ``upload`` and
        ``deadline`` broadcast to it.
        """
        ...


def of_devices(latency: LatencyModel, devices: Ints) -> LatencyModel:
    """Return the latency model of some devices (numbers from 0): the model itself if it has no method for that."""
    return latency.of_devices(devices) if hasattr(latency, "of_devices") else latency


def work_of(latency: LatencyModel, z: Ints, layers: int, when: str = "a plan") -> Floats:
    """Return the work of z finished layers in mean layers, including forward passes; z without a method for it."""
    if not hasattr(latency, "work"):
        return np.asarray(z, dtype=np.float64)
    return _checked(latency, "work", latency.work(z, layers), (z.shape,), when)


def layer_times_of(
    latency: LatencyModel, rng: np.random.Generator, mean: Floats, steps: int, layers: int, when: str
) -> Floats:
    """Call :meth:`LatencyModel.layer_times`, and raise ConfigError if the durations of, say, "round 3" are invalid."""
    return _checked(latency, "layer_times", latency.layer_times(rng, mean, steps, layers), ((mean.size, steps),), when)


def upload_times_of(latency: LatencyModel, rng: np.random.Generator, upload: Floats, layers: int, when: str) -> Floats:
    """Call :meth:`LatencyModel.upload_times`, and raise ConfigError if the durations are invalid."""
    times = latency.upload_times(rng, upload, layers)
    return _checked(latency, "upload_times", times, (upload.shape, (*upload.shape, layers)), when)


def delivery_of(
    latency: LatencyModel, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int, when: str = "a plan"
) -> Floats:
    """Call :meth:`LatencyModel.delivery`, and raise ConfigError if the probabilities are invalid."""
    shape = (*np.broadcast_shapes(mean.shape, upload.shape, np.shape(deadline)), layers)
    chances = _checked(latency, "delivery", latency.delivery(mean, upload, deadline, layers), (shape,), when)
    if type(latency) not in _OURS and chances.size and not (highest := float(chances.max())) <= 1.0 + _ROUNDING:
        raise ConfigError(
            f"latency model {type(latency).__name__}: delivery gave a probability of {highest:.6g} in {when}; "
            "it must be between 0 and 1"
        )
    return chances


def _checked(
    latency: LatencyModel, method: str, values: ArrayLike, shapes: tuple[tuple[int, ...], ...], when: str
) -> Floats:
    """Return the result of a latency model's method, or raise ConfigError for a wrong shape, NaN or negative values."""
    if type(latency) in _OURS:
        return values  # type: ignore[return-value]
    start = f"latency model {type(latency).__name__}: {method} gave"
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{start} {type(values).__name__} in {when}, which is not an array of numbers") from None
    if array.shape not in shapes:
        allowed = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise ConfigError(f"{start} numbers of shape {array.shape} in {when}; the shape must be {allowed}")
    if np.isnan(array).any():
        raise ConfigError(f"{start} NaN in {when}; every value must be a number")
    if array.size and array.min() < 0:
        raise ConfigError(f"{start} {array.min():.6g} in {when}; every value must be zero or more")
    return array


class Exponential:
    """The paper's model (B1, B2): exponential layer times of mean S_u/P_u, uploads that take exactly B_u."""

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """Draw independent exponential durations."""
        return mean[:, None] * rng.standard_exponential((mean.size, steps))

    def upload_times(self, rng: np.random.Generator, upload: Floats, layers: int) -> Floats:
        """Return B_u."""
        return upload

    def delivery(self, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int) -> Floats:
        """Return 1 − Q(L+1−l, (T − B)/mean)."""
        left = np.maximum(np.asarray(deadline, dtype=np.float64) - upload, 0.0)
        return participation.delivery(layers, left / mean)


@dataclass(frozen=True, eq=False)
class GammaLayers:
    """Layer times of mean (S_u + s₀)/P_u with a spread for each device, uploads that take exactly B_u.

    The time of k layers follows a gamma law of shape k/v². For v = 1 that is the paper's model.
    """

    spread: Floats | float
    """v, the standard deviation of a layer's time over its mean: of each device, shape (U,), or one for all."""

    def of_devices(self, devices: Ints) -> GammaLayers:
        """Return the model of some devices."""
        return self if np.ndim(self.spread) == 0 else GammaLayers(np.asarray(self.spread)[devices])

    def _shape(self) -> Floats:
        return np.maximum(self.spread, _STEADY) ** -2.0

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """Draw independent gamma durations."""
        shape = np.broadcast_to(self._shape(), mean.shape)[:, None]
        return mean[:, None] * rng.standard_gamma(shape, (mean.size, steps)) / shape

    def upload_times(self, rng: np.random.Generator, upload: Floats, layers: int) -> Floats:
        """Return B_u."""
        return upload

    def delivery(self, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int) -> Floats:
        """Return P(a gamma time of shape (L+1−l)/v² is at most T − B)."""
        left, shape = np.maximum(np.asarray(deadline, dtype=np.float64) - upload, 0.0), self._shape()
        orders = shape[..., None] * np.arange(layers, 0, -1)
        chances: Floats = special.gammainc(orders, (shape * left / mean)[..., None])
        return chances


def of_fleet(latency: LatencyModel, spread: Floats | None) -> LatencyModel:
    """Return the latency model of a fleet, with the spread of the layer times of each device, shape (N,)."""
    if spread is None or type(latency) is GammaLayers:
        return latency
    if type(latency) is not Exponential:
        raise ConfigError("spreads of devices need the default latency model; remove the spreads or the latency model")
    return latency if np.all(spread == 1.0) else GammaLayers(spread)


def for_plans(latency: LatencyModel) -> LatencyModel:
    """Return one model for all devices of a fleet, with the root mean square of their spreads."""
    return GammaLayers(float(np.sqrt(np.mean(np.square(latency.spread))))) if type(latency) is GammaLayers else latency


@dataclass(frozen=True, eq=False)
class Latency:
    """Layers of unequal cost, a forward pass, and laws other than the paper's."""

    law: Law = field(default_factory=Law)
    """Law of the time of a layer."""
    costs: tuple[float, ...] = ()
    """Cost of each layer, input side first, in any unit; empty if all are equal."""
    forward: float = 0.0
    """Cost of the forward pass, in mean layers."""
    upload: Law = field(default_factory=lambda: Law("constant"))
    """Law of the time of an upload."""
    shares: tuple[float, ...] = ()
    """Size of each layer, input side first, in any unit, if the time of an upload depends on the layers sent; empty if
    it is always B_u."""

    def __post_init__(self) -> None:
        for key in ("costs", "shares"):
            values = getattr(self, key)
            if not all(np.isfinite(v) and v >= 0 for v in values) or (values and not sum(values) > 0):
                raise ConfigError(f"latency.{key} must be numbers of zero or more, not all of them zero")
        if not (np.isfinite(self.forward) and self.forward >= 0):
            raise ConfigError(f"latency.forward must be zero or more, not {self.forward!r}")

    def _per_layer(self, key: str, layers: int) -> Floats:
        values = getattr(self, key) or (1.0,) * layers
        if len(values) != layers:
            raise ConfigError(f"latency.{key} must be {layers} numbers, one per layer, not {len(values)}")
        return np.asarray(values, dtype=np.float64)

    def _costs(self, layers: int) -> Floats:
        """Return the costs of the backprop steps, last layer first, with mean 1."""
        costs = self._per_layer("costs", layers)
        return np.asarray(costs[::-1] / costs.mean(), dtype=np.float64)

    def _upload_share(self, layers: int) -> Floats | None:
        """Return the share of an upload of the last 1, 2, … L layers; None if all take B_u."""
        if not self.shares:
            return None
        sizes = self._per_layer("shares", layers)[::-1]
        return np.asarray(np.cumsum(sizes) / sizes.sum(), dtype=np.float64)

    def work(self, z: Ints, layers: int) -> Floats:
        """Return the work of z finished layers over all local iterations, in mean layers."""
        done = np.concatenate([[0.0], np.cumsum(self._costs(layers))])
        whole, rest = np.divmod(z, layers)
        started = whole + (rest > 0)
        return np.asarray(whole * layers + done[rest] + self.forward * started, dtype=np.float64)

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """Draw durations; the forward pass counts with the first layer of its iteration."""
        times = self.law.quantile(rng.random((mean.size, steps))) * np.tile(self._costs(layers), steps // layers)
        if self.forward:
            times[:, ::layers] += self.forward * self.law.quantile(rng.random((mean.size, steps // layers)))
        return mean[:, None] * times

    def upload_times(self, rng: np.random.Generator, upload: Floats, layers: int) -> Floats:
        """Draw durations around B_u, or around the share of it that each number of layers takes."""
        return self._uploads(upload, rng.random(upload.size), self._upload_share(layers))

    def _uploads(self, upload: Floats, uniform: Floats, share: Floats | None) -> Floats:
        if share is not None:
            upload, uniform = upload[..., None] * share, uniform[..., None]
        return upload * self.upload.quantile(uniform)

    def delivery(self, mean: Floats, upload: Floats, deadline: ArrayLike, layers: int) -> Floats:
        """Return probabilities from a table of the times of 1, 2, … L layers, averaged over the upload times."""
        mean = np.asarray(mean, dtype=np.float64)
        fixed = self.upload.name == "constant"
        uniform = (np.arange(1 if fixed else _UPLOAD_POINTS) + 0.5) / (1 if fixed else _UPLOAD_POINTS)
        share, T = self._upload_share(layers), np.asarray(deadline, dtype=np.float64)
        total = np.zeros((*np.broadcast_shapes(mean.shape, T.shape), layers))
        for one in uniform:
            uploads = self._uploads(upload, np.full(upload.shape, one), share)
            left = np.maximum(T[..., None] - (uploads if share is not None else uploads[..., None]), 0.0)
            total += self._finished(np.broadcast_to(left / mean[..., None], total.shape), layers)
        return total[..., ::-1] / uniform.size

    def _finished(self, time: Floats, layers: int) -> Floats:
        """Return P(s layers take at most this time, in mean layers), s = 1..L on the last axis."""
        table = self._table(layers)
        share = (np.arange(_TABLE_POINTS) + 0.5) / _TABLE_POINTS
        chances = np.empty_like(time)
        for s in range(layers):
            chances[..., s] = np.interp(time[..., s], table[s], share, left=0.0, right=1.0)
        # Below the first quantile of the table the probability of s layers falls to 0 like time^s.
        low = table[:, 0]
        small = time < low
        share_of_low = np.where(small, time, 0.0) / np.maximum(low, 1e-300)
        return np.where(small, 0.5 / _TABLE_POINTS * share_of_low ** np.arange(1, layers + 1), chances)

    def _table(self, layers: int) -> Floats:
        """Return quantiles of the time of 1, 2, … L layers in mean layers, from the same draws for every fleet."""
        tables: dict[int, Floats] = self.__dict__.setdefault("_tables", {})
        if layers not in tables:
            rng = rng_for(0, "latency table", layers)
            times = self.layer_times(rng, np.ones(_TABLE_DRAWS), layers, layers)
            sums = np.sort(np.cumsum(times, axis=1), axis=0)
            places = ((np.arange(_TABLE_POINTS) + 0.5) / _TABLE_POINTS * _TABLE_DRAWS).astype(np.int64)
            tables[layers] = np.ascontiguousarray(sums[places].T)
        return tables[layers]


_OURS = (Exponential, GammaLayers, Latency)  # whose results are not checked; those of subclasses are
