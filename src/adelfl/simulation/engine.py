"""Run an experiment on a virtual clock: the loop, the simulated backend, evaluations and the record."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from adelfl.atomic import Weights
from adelfl.clock import monotonic
from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunResult
from adelfl.records.summary import SUMMED_UP, Summary
from adelfl.records.writer import Checkpoint, RunWriter
from adelfl.runtime.backend import Computed
from adelfl.runtime.codec import Uploads, find_codec
from adelfl.runtime.controls import Controls
from adelfl.runtime.loop import Loop, Step
from adelfl.runtime.server_step import State
from adelfl.simulation.backend import Learner, Simulated, TrainingError
from adelfl.simulation.evaluation import Evaluation
from adelfl.simulation.experiment import Experiment
from adelfl.simulation.recording import run_recorded
from adelfl.simulation.world import World
from adelfl.training.engines import build_engine, find_device
from adelfl.training.hetero import Hetero
from adelfl.training.loop import Loop as EachDevice
from adelfl.training.work import Samples

__all__ = ["TrainingError", "check_start", "simulate"]

_CHECKPOINT_SECONDS = 2.0
_SERVER = "server/"  # before the names of what the server step remembers, in checkpoints
_PAST = "past/"  # before weights of earlier versions, from which devices are under way
_CODEC = "codec/"  # before what the codec remembers of a device
_CONTROLS = "controls/"  # before control variates, of the server or of a device

Report = Callable[[Row], None]


def check_start(experiment: Experiment) -> None:
    """Raise what would stop a run before it begins: a device, an engine, a width, or what a strategy asks for."""
    run = _Run(experiment, None, None)
    if isinstance(run.engine, Hetero):
        run.engine.part(min(experiment.strategy.submodels))
    next(run.loop.steps(), None)


def simulate(
    experiment: Experiment,
    writer: RunWriter | None = None,
    checkpoint: Checkpoint | None = None,
    report: Report | None = None,
    *,
    record: str | Path | None = None,
) -> RunResult:
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
    RunResult
        ``final_accuracy``, ``accuracy`` at quarters of the budget, ``depth`` (mean share of layers), ``rounds``,
        ``time``, ``engine``.

    Raises
    ------
    ConfigError
        If ``record`` holds something else, or the run of an experiment that differs in what can be compared: data,
        partition, first weights, problem, world, options. Changes in the code of classes are not seen.
    """
    if record is None:
        return _Run(experiment, writer, report).go(checkpoint)
    if writer is not None or checkpoint is not None:
        raise ConfigError("simulate: give record, or writer and checkpoint, not both")
    run = _Run(experiment, None, report)  # which may be refused, before there is a folder

    def go(writer: RunWriter, checkpoint: Checkpoint | None) -> RunResult:
        run.writer = writer
        return run.go(checkpoint)

    return run_recorded(experiment, Path(record), go)


class _Run:
    def __init__(self, experiment: Experiment, writer: RunWriter | None, report: Report | None) -> None:
        self.experiment, self.writer, self.report = experiment, writer, report
        e, s = experiment, experiment.strategy.problem
        strategy = deepcopy(e.strategy)  # it learns; an experiment can be run again
        world = e.world or World(s.fleet, e.seed, s.budget, s.latency)
        if strategy.unhurried or strategy.clairvoyant:
            world = replace(world, unhurried=strategy.unhurried, clairvoyant=strategy.clairvoyant)
        device = find_device(e.device)
        data = e.dataset
        self.model = deepcopy(e.model).to(device)
        if not self.model.training:  # otherwise parts of it may be meant to stay as they are: a frozen batch norm
            self.model.train()
        self.parameters, self.buffers = dict(self.model.named_parameters()), dict(self.model.named_buffers())
        self.evaluate = Evaluation(self.model, *(torch.from_numpy(v).to(device) for v in (data.x_test, data.y_test)))
        samples = Samples.of(data.x_train, data.y_train, device)
        codec = find_codec(e.codec)
        if (share := codec.relative_size(self.parameters)) != 1.0:
            world = replace(world, fleet=replace(world.fleet, upload=world.fleet.upload * share))
        self.uploads = Uploads(codec, e.seed) if codec.lossy else None
        self.controls = Controls() if strategy.control_variates else None
        if e.make_engine is not None:
            self.engine = e.make_engine(self.model, e.layers, samples, e.local)
            if self.uploads is not None:
                if not isinstance(self.engine, EachDevice):
                    raise ConfigError(f"codec {codec.name!r} needs the loop engine")
                self.engine.uploads = self.uploads
            if self.controls is not None:
                raise ConfigError(f"strategy {strategy.name!r} needs the loop or the stacked engine")
        else:
            self.engine = build_engine(
                e.engine,
                self.model,
                e.layers,
                samples,
                e.local,
                iterations=strategy.most_steps,
                widths=bool(strategy.submodels),
                uploads=self.uploads,
                controls=self.controls,
            )
        learner = Learner(self.model, e.layers, samples, self.engine, self.uploads)
        self.backend = Simulated(world, e.partition, learner, e.seed, oversample=e.oversample)
        self.loop = Loop(strategy, self.backend, s.budget)
        self.server: State = {}
        self.backward = np.arange(s.layers, 0, -1)  # layers to finish before each is delivered
        self.summary = Summary(s.budget, s.layers * s.local_iterations)
        # Evenly spaced, and whatever the summary looks at; a round that ends there to rounding errors ends by then.
        evenly = {(k + 1) / e.evaluations for k in range(e.evaluations)}
        self.moments = sorted(share * s.budget * (1 + 1e-9) for share in evenly | SUMMED_UP)
        self._began = self._saved = monotonic()

    def go(self, checkpoint: Checkpoint | None) -> RunResult:
        steps = self.loop.steps()
        if checkpoint is None:
            self._keep(self._evaluated(Row(0, 0.0)), 0.0)
        else:
            # Whatever a strategy keeps from one round to the next, it has after it has decided them over again.
            known = self._remember()
            for _, step in zip(range(checkpoint.round), steps, strict=False):
                row = known[step.version]
                step.computed = Computed.recorded(row.gradients, row.losses)
            self._load(checkpoint)
        self._began = self._saved = monotonic()
        self.loop.run(steps, self._apply, self._after)
        result = replace(self.summary.result(), engine=self.engine.name)
        if self.writer is not None:
            with self._shown():
                self.writer.finish(result, self._weights())
        return result

    def _apply(self, step: Step) -> None:
        """Move the model by what a step came to."""
        change = None if step.computed is None else step.computed.change
        if change is None:
            return
        with torch.no_grad():
            self.experiment.server_step.apply(self.parameters, change.parameters, self.server)
            for name, value in change.buffers.items():
                self.buffers[name].copy_(value)

    def _after(self, step: Step) -> None:
        """Evaluate the model if it is the one in force at a moment of evaluation, and record the step."""
        row = self._row(step)
        if bisect_left(self.moments, step.time) < bisect_left(self.moments, step.following):
            row = self._evaluated(row)
        now = monotonic()
        self._keep(row, now - self._began)
        self._began = now
        if self.writer is not None and now - self._saved > _CHECKPOINT_SECONDS:
            self.writer.checkpoint(step.version, step.time, self._state())
            self._saved = monotonic()

    def _row(self, step: Step) -> Row:
        arrivals, A = step.merge.arrivals, step.merge.A
        counted = sum(
            ((a.z[:, None] >= self.backward) & (w != 0)).sum(axis=0) for a, w in zip(arrivals, A, strict=True)
        )
        computed = step.computed or Computed(None)
        devices = [u for a in arrivals for u in a.tasks.devices.tolist()]
        N = self.experiment.strategy.problem.devices
        return Row(
            round=step.version,
            time=step.time,
            deadline=step.time - step.began,
            train_loss=None if computed.change is None else computed.change.loss,
            batch=[size for a in arrivals for size in a.tasks.batch.tolist()],
            depth=[z for a in arrivals for z in a.z.tolist()],
            contributors=np.asarray(counted).tolist(),
            devices=None if len(devices) == N and devices == list(range(N)) else devices,
            gradients=None if computed.spread is None else computed.spread.to_dict(),
            losses=computed.losses_listed,
        )

    def _keep(self, row: Row, seconds: float) -> None:
        self.summary.add(row)
        if self.writer is not None:
            self.writer.append(row, seconds)
        if self.report is not None:
            self.report(row)

    def _remember(self) -> list[Row]:
        """Count the rows that an interrupted run has already."""
        assert self.writer is not None
        rows = RunRecord(self.writer.folder).rounds
        for row in rows:
            self.summary.add(row)
        return rows

    def _evaluated(self, row: Row) -> Row:
        with self._shown():
            loss, accuracy = self.evaluate()
        if not math.isfinite(loss):
            raise TrainingError(f"the test loss became {loss} after round {row.round}; lower the learning rate")
        return replace(row, loss=loss, accuracy=accuracy)

    def _weights(self) -> Weights:
        return {name: value.detach().cpu().numpy() for name, value in self.model.state_dict().items()}

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Give the model the weights that the server step hands out, for a while."""
        shown = self.experiment.server_step.shown(self.parameters, self.server)
        if shown is self.parameters:
            yield
            return
        now = {name: p.detach().clone() for name, p in self.parameters.items()}
        try:
            self._set(shown)
            yield
        finally:
            self._set(now)

    @torch.no_grad()
    def _set(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, p in self.parameters.items():
            p.copy_(weights[name])

    def _state(self) -> Weights:
        """Return all that the run goes on with: weights, buffers, the server's memory, weights of earlier versions."""
        kept = {name: b.detach().cpu().numpy() for name, b in self.buffers.items()} | self._weights()
        server = {_SERVER + name: torch.as_tensor(v).detach().cpu().numpy() for name, v in self.server.items()}
        past = {
            f"{_PAST}{version}/{name}": w.cpu().numpy()
            for version, weights in self.backend.past.kept.items()
            for name, w in weights.items()
        }
        memory = {} if self.uploads is None else self.uploads.memory
        codec = {
            f"{_CODEC}{device}/{name}": torch.as_tensor(value).detach().cpu().numpy()
            for device, own in memory.items()
            for name, value in own.items()
        }
        variates = {} if self.controls is None else self.controls.state()
        controls = {_CONTROLS + name: value.detach().cpu().numpy() for name, value in variates.items()}
        return kept | server | past | codec | controls

    def _load(self, checkpoint: Checkpoint) -> None:
        weights = {name: torch.from_numpy(value.copy()) for name, value in checkpoint.weights.items()}
        own = self.model.state_dict()
        self.model.load_state_dict({name: weights[name] for name in own})
        with torch.no_grad():
            for name, b in self.buffers.items():
                if name not in own:
                    b.copy_(weights[name])
        device = next(iter(self.parameters.values())).device
        for name, value in weights.items():
            if name.startswith(_SERVER):
                self.server[name.removeprefix(_SERVER)] = value.to(device)
            elif name.startswith(_PAST):
                version, _, parameter = name.removeprefix(_PAST).partition("/")
                self.backend.past.kept.setdefault(int(version), {})[parameter] = value.to(device)
            elif name.startswith(_CODEC) and self.uploads is not None:
                sender, _, key = name.removeprefix(_CODEC).partition("/")
                memory = self.uploads.memory
                memory[int(sender)] = {**memory.get(int(sender), {}), key: value.to(device)}
            elif name.startswith(_CONTROLS) and self.controls is not None:
                self.controls.load(name.removeprefix(_CONTROLS), value.to(device))
        self.backend.past.version = checkpoint.round - 1
