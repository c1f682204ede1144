"""Simulation of an experiment: the torch model, the simulated backend, and the moments of evaluation."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adelfl.atomic import Weights
from adelfl.records.schema import Row, RunResult
from adelfl.records.summary import SUMMED_UP
from adelfl.runtime.codec import Uploads, find_codec
from adelfl.runtime.controls import Controls
from adelfl.runtime.loop import Loop, Step
from adelfl.runtime.run import ModelHost, Record, Run
from adelfl.runtime.server_step import ServerStep
from adelfl.simulation.backend import Learner, Simulated, TrainingError
from adelfl.simulation.evaluation import Evaluation
from adelfl.simulation.experiment import Experiment
from adelfl.simulation.recording import open_record
from adelfl.simulation.world import World
from adelfl.training.engines import build_engine, find_device
from adelfl.training.hetero import Hetero
from adelfl.training.work import Samples, with_weights

_CHECKPOINT_SECONDS = 2.0
_SLOWEST = 0.1  # share of the devices, by the expected time of a step and its upload


def check_start(experiment: Experiment) -> None:
    """Raise the error that would end a run at its start: a wrong device, engine or width, or a strategy's task."""
    simulation = Simulation(experiment)
    if isinstance(simulation.engine, Hetero):
        simulation.engine.part(min(experiment.strategy.submodels))
    next(Loop(simulation.strategy, simulation.backend, experiment.strategy.problem.budget).steps(), None)


def simulate(
    experiment: Experiment, record: str | Path | Record | None = None, report: Callable[[Row], None] | None = None
) -> RunResult:
    """Run an experiment to the end of its budget.

    Parameters
    ----------
    experiment : Experiment
        Data, model, strategy and world of the run.
    record : path, optional
        Folder of the record. ``adelfl report``, ``list``, ``show``, ``export`` and ``dashboard`` read it. If the record
        of the same experiment exists, an interrupted run is continued, with the same bytes as an uninterrupted one,
        and the result of a finished run is returned.
    report : callable, optional
        Function that is called with the row of every round.

    Returns
    -------
    RunResult
        ``final_accuracy``, ``accuracy`` at quarters of the budget, ``depth`` (mean share of layers), ``rounds``,
        ``time``, ``engine``, ``slowest_accuracy`` (on the classes of the slowest tenth of the devices).

    Raises
    ------
    ConfigError
        If ``record`` is no record, or that of an experiment with other data, partition, initial weights, problem,
        world or options. Changes in the code of classes are not detected.
    """
    simulation = Simulation(experiment)  # may raise ConfigError, so before the folder is created
    if not isinstance(record, Record):
        record = open_record(experiment, None if record is None else Path(record))
    if record.result is not None:
        return record.result
    with record:
        run = Run(simulation.strategy, simulation.backend, simulation, record, report)
        run.go(run.begin() if record.checkpoint is None else run.resume())
        return run.finish()


class Simulation(ModelHost):
    """The model of an experiment, and the world in which it is trained."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment.server_step or ServerStep(experiment.strategy.server_step))
        e = experiment
        self.checkpoint_seconds = _CHECKPOINT_SECONDS
        s, self.strategy = e.strategy.problem, deepcopy(e.strategy)  # its state changes during a run
        world = e.world or World(s.fleet, e.seed, s.budget, s.latency)
        if self.strategy.unhurried or self.strategy.clairvoyant:
            world = replace(world, unhurried=self.strategy.unhurried, clairvoyant=self.strategy.clairvoyant)
        self.device = find_device(e.device)
        data = e.dataset
        self.model = deepcopy(e.model).to(self.device)
        if not self.model.training:  # in training mode, single modules in evaluation mode stay so: a frozen batch norm
            self.model.train()
        self._parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        self.buffers = dict(self.model.named_buffers())
        test = (torch.from_numpy(v).to(self.device) for v in (data.x_test, data.y_test))
        self.evaluate = Evaluation(self.model, *test)
        time = s.layers * (s.batch + world.overhead) / world.compute + world.upload
        slowest = np.argsort(-time, kind="stable")[: math.ceil(_SLOWEST * time.size)]
        classes = 1 + max(int(data.y_train.max()), int(data.y_test.max()))
        held = np.concatenate([e.partition[int(u)] for u in slowest])
        self.slow_classes = np.bincount(data.y_train[held], minlength=classes)
        samples = Samples.of(data.x_train, data.y_train, self.device)
        codec = find_codec(e.codec)
        if (share := codec.relative_size(self._parameters)) != 1.0:
            world = replace(world, fleet=replace(world.fleet, upload=world.fleet.upload * share))
        self.uploads = Uploads(codec, e.seed) if codec.lossy else None
        self.controls = Controls() if self.strategy.control_variates else None
        self.engine = build_engine(
            e.engine,
            self.model,
            e.layers,
            samples,
            e.local,
            iterations=self.strategy.most_steps,
            widths=bool(self.strategy.submodels),
            uploads=self.uploads,
            controls=self.controls,
        )
        learner = Learner(self.model, e.layers, samples, self.engine, self.uploads)
        self.backend = Simulated(world, e.partition, learner, e.seed, oversample=e.oversample)
        evenly = {(k + 1) / e.evaluations for k in range(e.evaluations)}
        self.moments = sorted(share * s.budget * (1 + 1e-9) for share in evenly | SUMMED_UP)  # 1e-9: rounding errors

    def parameters(self) -> Mapping[str, Tensor]:
        """Return the detached parameters of the model."""
        return self._parameters

    def set_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Copy running statistics into the model."""
        for name, value in buffers.items():
            self.buffers[name].copy_(value)

    def look(self, step: Step | None) -> Mapping[str, Any]:
        """Evaluate the model if a moment of evaluation lies, or may lie, between this step and the next."""
        if step is not None and not math.isnan(step.following):
            passed, next_passed = (bisect_left(self.moments, time) for time in (step.time, step.following))
            if passed == next_passed:
                return {}
        with self._shown():
            loss, accuracy = self.evaluate()
        if not math.isfinite(loss):
            number = 0 if step is None else step.version
            raise TrainingError(f"the test loss became {loss} after round {number}; lower the learning rate")
        return {"loss": loss, "accuracy": accuracy}

    def outcome(self) -> Mapping[str, Any]:
        """Return the name of the engine, and the accuracy on the classes of the slowest devices."""
        with self._shown():
            slowest = self.evaluate.accuracy_on(self.slow_classes)
        return {"engine": self.engine.name, "slowest_accuracy": None if math.isnan(slowest) else slowest}

    def _shown(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that the server step returns."""
        shown = self.shown()
        return nullcontext() if shown is self._parameters else with_weights(self._parameters, shown)

    def from_numpy(self, value: NDArray[Any]) -> Tensor:
        """Convert an array to a tensor on the device of the model."""
        return torch.from_numpy(value.copy()).to(self.device)

    def to_numpy(self, value: Tensor | float) -> NDArray[Any]:
        """Convert a tensor to an array."""
        array: NDArray[Any] = torch.as_tensor(value).detach().cpu().numpy()
        return array

    def final_weights(self) -> Weights:
        """Return the model's state, with the weights that the server step returns."""
        with self._shown():
            return {name: self.to_numpy(value).copy() for name, value in self.model.state_dict().items()}

    def state(self) -> Weights:
        """Return weights, buffers, weights of earlier versions, the memory of the codec, and control variates."""
        kept: dict[str, Tensor] = self.buffers | self.model.state_dict()
        for kind, parts in self._memories().items():
            kept |= {f"{kind}/{key}/{name}": v for key, values in parts.items() for name, v in values.items()}
        return {name: self.to_numpy(value) for name, value in kept.items()}

    def load(self, state: Weights, version: int) -> None:
        """Restore the result of :meth:`state`, after the decisions, which count the devices under way."""
        own, memories = self.model.state_dict(), self._memories()
        self.model.load_state_dict({name: self.from_numpy(state[name]) for name in own})
        for name, value in state.items():
            kind, _, rest = name.partition("/")
            key, _, inner = rest.partition("/")
            if kind in memories and inner:
                memories[kind].setdefault(int(key) if key.isdigit() else key, {})[inner] = self.from_numpy(value)
            elif name not in own:
                self.buffers[name].copy_(self.from_numpy(value))
        self.backend.past.version = version - 1

    def repeat(self, step: Step, row: Row) -> None:
        """Release the weights of earlier versions that a merge of an earlier process used."""
        self.backend.past.release(step.merge.arrivals)

    def _memories(self) -> dict[str, dict[Any, Any]]:
        """Return further state by its name in checkpoints: earlier weights, codec memory, control variates."""
        codec = {} if self.uploads is None else self.uploads.memory
        controls = {} if self.controls is None else self.controls.variates
        return {"past": self.backend.past.kept, "codec": codec, "controls": controls}
