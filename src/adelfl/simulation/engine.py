"""Algorithm 1 on a virtual clock: a strategy, a trainer, and luck that all strategies share."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adelfl.atomic import Weights
from adelfl.clock import VirtualClock, monotonic
from adelfl.errors import AdelError, ConfigError
from adelfl.learning.engines import build_engine, find_device
from adelfl.learning.estimate import look_at
from adelfl.learning.hetero import Hetero
from adelfl.learning.masks import draws_numbers, mask_seeds
from adelfl.learning.work import RoundWork, Samples
from adelfl.record import Checkpoint, RunRecord, RunWriter
from adelfl.simulation.draws import draw_cohort, draw_round, draw_rows
from adelfl.simulation.evaluation import Evaluation
from adelfl.simulation.experiment import Experiment
from adelfl.simulation.recording import run_recorded
from adelfl.simulation.world import World
from adelfl.strategies.base import Floats, Ints, Orders, Outcome, Progress, Strategy
from adelfl.strategies.heterofl import WIDTHS
from adelfl.summary import SUMMED_UP, Summary
from adelfl.theory.spread import Spread

_CHECKPOINT_SECONDS = 2.0
_AHEAD, _AHEAD_SAMPLES = 64, 1 << 20  # rounds, and their samples, that are drawn before they are trained

_MOST_DRAWN = 1 << 29  # samples of a round, over all devices and local iterations: 4 GiB of random numbers


class TrainingError(AdelError):
    """Training broke down: a loss or a weight is not a finite number."""


Report = Callable[[dict[str, Any]], None]


@contextmanager
def _few_samples(t: int) -> Iterator[None]:
    """Say what batch norm cannot do in words that help."""
    try:
        yield
    except ValueError as trouble:
        if "more than 1 value per channel" not in str(trouble):
            raise
        raise TrainingError(
            f"a device trains on a single sample in round {t + 1}, which batch norm cannot; use norm = 'group'"
        ) from None


def rehearse(experiment: Experiment) -> None:
    """Find out what would stop a run before it begins: a device that is not there, an engine that cannot, a width."""
    run = _Run(experiment, None, None)
    if isinstance(run.engine, Hetero):
        run.engine.rehearse(min(WIDTHS))


def simulate(
    experiment: Experiment,
    writer: RunWriter | None = None,
    checkpoint: Checkpoint | None = None,
    report: Report | None = None,
    *,
    record: str | Path | None = None,
) -> dict[str, Any]:
    """Run an experiment to the end of its budget.

    Parameters
    ----------
    experiment : Experiment
        What to run.
    writer : RunWriter, optional
        Where to record it.
    checkpoint : Checkpoint, optional
        Where to continue.
    report : callable, optional
        Called with every round's row.
    record : path, optional
        A folder in which to record the run, in place of ``writer`` and ``checkpoint``. ``adelfl report``, ``list``,
        ``show``, ``export`` and ``dashboard`` read it. Called again with the same experiment, ``simulate`` continues an
        interrupted run to the same bytes, and returns the summary of a finished one.

    Returns
    -------
    dict
        ``final_accuracy``, ``accuracy`` at quarters of the budget, ``depth`` (mean share of layers), ``rounds``,
        ``time``, ``engine``.

    Raises
    ------
    ConfigError
        If ``record`` holds something else, or the run of an experiment that differs in what can be compared: data,
        partition, first weights, setting, world, options. Changes in the code of classes are not seen.
    """
    if record is None:
        return _Run(experiment, writer, report).go(checkpoint)
    if writer is not None or checkpoint is not None:
        raise ConfigError("simulate: give record, or writer and checkpoint, not both")
    run = _Run(experiment, None, report)  # which may be refused, before there is a folder

    def go(writer: RunWriter, checkpoint: Checkpoint | None) -> dict[str, Any]:
        run.writer = writer
        return run.go(checkpoint)

    return run_recorded(experiment, Path(record), go)


@dataclass(frozen=True, eq=False)
class _Round:
    """A round before it is trained: when it is, who does what, and all of its row but what training tells."""

    t: int
    end: float
    devices: Ints
    orders: Orders
    progress: Progress
    A: Floats
    row: dict[str, Any]
    looked_at: bool  # whether the strategy wants to know of the gradients before it goes on


@dataclass(frozen=True, eq=False)
class _Ready:
    """A round that can be trained."""

    round: _Round
    work: RoundWork
    train: Callable[[], float] | None  # None if nobody contributes


def _check_orders(strategy: Strategy, orders: Orders, devices: Ints) -> None:
    """Raise ConfigError if what a strategy asks for cannot be done."""
    if not isinstance(orders, Orders):
        raise ConfigError(f"strategy {strategy.name!r}: orders gave {orders!r}, which is no Orders")
    said, batch = f"strategy {strategy.name!r}: orders gave", orders.batch
    if np.shape(batch) != devices.shape:
        raise ConfigError(f"{said} batch sizes of shape {np.shape(batch)} for {devices.size} devices")
    if not isinstance(batch, np.ndarray) or batch.dtype.kind not in "iu":
        raise ConfigError(f"{said} batch sizes that are not an array of whole numbers")
    if batch.size and batch.min() < 0:
        raise ConfigError(f"{said} a batch size of {batch.min()}; 0 lets a device sit out")
    if not orders.deadline >= 0.0:
        raise ConfigError(f"{said} a deadline of {orders.deadline} s; it must not be negative")


class _Run:
    def __init__(self, experiment: Experiment, writer: RunWriter | None, report: Report | None) -> None:
        self.experiment, self.writer, self.report = experiment, writer, report
        self.setting = experiment.strategy.setting
        self.strategy = deepcopy(experiment.strategy)  # it learns; an experiment can be run again
        s = self.setting
        self.world = experiment.world or World(s.fleet, experiment.seed, s.budget, s.latency)
        device = find_device(experiment.device)
        data = experiment.dataset
        self.model = deepcopy(experiment.model).to(device)
        if not self.model.training:  # otherwise parts of it may be meant to stay as they are: a frozen batch norm
            self.model.train()
        self.evaluate = Evaluation(self.model, *(torch.from_numpy(v).to(device) for v in (data.x_test, data.y_test)))
        first = self.strategy.orders(0, s.everybody[:1])
        _check_orders(self.strategy, first, s.everybody[:1])
        widths = first.width is not None
        e, samples = experiment, Samples.of(data.x_train, data.y_train, device)
        self.samples = samples
        self.held = e.partition.sizes
        if e.make_engine is not None:
            self.engine = e.make_engine(self.model, e.layers, samples, e.local)
        else:
            E = s.local_iterations
            self.engine = build_engine(e.engine, self.model, e.layers, samples, e.local, iterations=E, widths=widths)
        self.draws_masks = draws_numbers(self.model, samples.x[:2])
        self.summary = Summary(s.budget, s.layers * s.local_iterations)
        # Evenly spaced, and whatever the summary looks at; a round that ends there to rounding errors ends by then.
        evenly = {(k + 1) / e.evaluations for k in range(e.evaluations)}
        self.moments = sorted(share * s.budget * (1 + 1e-9) for share in evenly | SUMMED_UP)

    def go(self, checkpoint: Checkpoint | None) -> dict[str, Any]:
        clock = VirtualClock(0.0 if checkpoint is None else checkpoint.time)
        rounds = self._rounds(0 if checkpoint is None else checkpoint.round, clock.now())
        if checkpoint is not None:
            self._learn_again(checkpoint.round)
        upcoming = self._next_few(rounds)
        if checkpoint is None:
            self._keep(self._evaluated({"round": 0, "time": 0.0}), 0.0)
        else:
            self._load(checkpoint.weights)
        saved = monotonic()
        while upcoming:
            began = monotonic()
            ready = upcoming.popleft()
            current = ready.round
            seen = self._look(ready)
            loss = self._train(ready)
            clock.sleep_until(current.end)
            row = current.row | {"train_loss": loss}
            if seen is not None:
                row["gradients"] = seen.to_dict()
                self.strategy.learn(seen)
            upcoming = upcoming or self._next_few(rounds)
            if not upcoming or self._is_due(current, upcoming[0].round):
                row = self._evaluated(row)
            self._keep(row, monotonic() - began)
            if self.writer is not None and monotonic() - saved > _CHECKPOINT_SECONDS:
                self.writer.checkpoint(current.t + 1, clock.now(), self._state())
                saved = monotonic()
        result = self.summary.result() | {"engine": self.engine.name}
        if self.writer is not None:
            self.writer.finish(result, self._weights())
        return result

    def _rounds(self, t: int, now: float) -> Iterator[_Round]:
        """What will happen from round t on, until the budget is used up; nothing of it depends on what is learned."""
        while (found := self._round(t, now)) is not None:
            yield found
            t, now = t + 1, found.end

    def _next_few(self, rounds: Iterator[_Round]) -> deque[_Ready]:
        """Some rounds at a time: training sweeps the processor's caches, and after it small things take far longer."""
        few: list[_Round] = []
        samples = 0
        for r in rounds:
            few.append(r)
            samples += sum(r.row["batch"])
            if r.looked_at or len(few) == _AHEAD or samples >= _AHEAD_SAMPLES:
                break
        if not few:
            return deque()
        e, asked = self.experiment, [(r.t, r.devices, r.orders.batch) for r in few]
        rows = draw_rows(e.partition, e.seed, asked, self.setting.local_iterations)
        return deque(self._ready(r, own) for r, own in zip(few, rows, strict=True))

    def _ready(self, r: _Round, rows: tuple[Ints, ...]) -> _Ready:
        rate = float(self.strategy.learning_rates[r.t])
        seeds = mask_seeds(self.experiment.seed, r.t, r.devices) if self.draws_masks else None
        work = RoundWork(rows, r.orders.batch, r.A, r.progress, rate, r.orders.width, seeds)
        return _Ready(r, work, self.engine.prepare(work) if any(r.row["contributors"]) else None)

    def _round(self, t: int, now: float) -> _Round | None:
        """What will happen in round t; None if there is no such round, or none that fits into the budget."""
        e, s, strategy = self.experiment, self.setting, self.strategy
        if t >= strategy.rounds:
            return None
        devices = draw_cohort(s, e.seed, t)
        orders = strategy.orders(t, devices)
        _check_orders(strategy, orders, devices)
        orders = self._within_data(orders, devices, t)
        drawn = draw_round(strategy, self.world, t, now, devices, orders)
        progress, length = drawn.progress, drawn.length
        if now + length > s.budget * (1 + 1e-9):
            return None
        A = np.asarray(strategy.weights(t, progress), dtype=np.float64)
        if not np.isfinite(A).all():
            raise ConfigError(f"strategy {strategy.name!r}: weights gave numbers that are not finite in round {t + 1}")
        if A.shape != (devices.size, s.layers):
            wanted = f"({devices.size}, {s.layers}), devices by layers"
            raise ConfigError(f"strategy {strategy.name!r}: weights must have shape {wanted}, not {A.shape}")
        end = now + length
        strategy.observe(
            Outcome(t, devices, orders.batch, progress.z, drawn.seconds, drawn.upload, max(0.0, s.budget - end))
        )
        row = {
            "round": t + 1,
            "time": end,
            "deadline": end - now,
            "loss": None,
            "accuracy": None,
            "train_loss": None,
            "batch": orders.batch.tolist(),
            "depth": progress.z.tolist(),
            "contributors": (progress.delivered & (A != 0)).sum(axis=0).tolist(),
        }
        if devices.size < s.devices:
            row["devices"] = devices.tolist()
        return _Round(t, end, devices, orders, progress, A, row, strategy.looks_at(t))

    def _within_data(self, orders: Orders, devices: Ints, t: int) -> Orders:
        """Cut batches to what each device holds, unless they may repeat samples; refuse what cannot be drawn."""
        batch = orders.batch
        if not self.experiment.oversample:
            batch = np.minimum(batch, self.held[devices]).astype(np.int64)
            if not np.array_equal(batch, orders.batch):
                orders = replace(orders, batch=batch)
        most = int(batch.max(initial=0))
        if most * devices.size * self.setting.local_iterations > _MOST_DRAWN:
            raise ConfigError(
                f"round {t + 1} asks {devices.size:,} devices for batches of up to {most:,} samples, too many to draw; "
                "lower the budget or the batch size, or leave oversample off"
            )
        return orders

    def _learn_again(self, rounds: int) -> None:
        """Let the strategy see what an interrupted run had seen: the rounds over again, with nothing trained.

        Whatever a strategy keeps from one round to the next, in whichever of its methods, it then has.
        """
        known = self._remember()
        now = 0.0
        for t in range(rounds):
            found = self._round(t, now)
            assert found is not None
            now = found.end
            if "gradients" in (row := known[t + 1]):
                self.strategy.learn(Spread.of(**row["gradients"]))

    def _look(self, ready: _Ready) -> Spread | None:
        """What the gradients are like that the devices of a round are about to send, if the strategy wants to know."""
        if not ready.round.looked_at or ready.train is None:
            return None
        with _few_samples(ready.round.t):
            return look_at(self.model, self.experiment.layers, self.samples, ready.work)

    def _train(self, ready: _Ready) -> float | None:
        """Do the round's local work and merge it; the mean loss of those who contributed, if anybody did."""
        if ready.train is None:
            return None
        t = ready.round.t
        with _few_samples(t):
            loss = ready.train()
        if not math.isfinite(loss):
            raise TrainingError(
                f"the training loss became {loss} in round {t + 1}; lower the learning rate (now {ready.work.eta:g})"
            )
        return loss

    def _is_due(self, r: _Round, following: _Round) -> bool:
        """Whether a round's model is the one in force at a moment of evaluation: no later round ends by then."""
        return bisect_left(self.moments, r.end) < bisect_left(self.moments, following.end)

    def _keep(self, row: dict[str, Any], seconds: float) -> None:
        self.summary.add(row)
        if self.writer is not None:
            self.writer.append(row, seconds)
        if self.report is not None:
            self.report(row)

    def _remember(self) -> list[dict[str, Any]]:
        """Count the rows that an interrupted run has already."""
        assert self.writer is not None
        rows = RunRecord(self.writer.folder).rounds
        for row in rows:
            self.summary.add(row)
        return rows

    def _evaluated(self, row: dict[str, Any]) -> dict[str, Any]:
        loss, accuracy = self.evaluate()
        if not math.isfinite(loss):
            raise TrainingError(f"the test loss became {loss} after round {row['round']}; lower the learning rate")
        return row | {"loss": loss, "accuracy": accuracy}

    def _weights(self) -> Weights:
        return {name: value.detach().cpu().numpy() for name, value in self.model.state_dict().items()}

    def _state(self) -> Weights:
        """The weights, and buffers that are not meant to be saved: what the run goes on with."""
        return {name: b.detach().cpu().numpy() for name, b in self.model.named_buffers()} | self._weights()

    def _load(self, weights: Weights) -> None:
        own = self.model.state_dict()
        self.model.load_state_dict({name: torch.from_numpy(weights[name].copy()) for name in own})
        for name, b in self.model.named_buffers():
            if name not in own:
                b.copy_(torch.from_numpy(weights[name].copy()))
