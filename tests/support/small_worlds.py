"""Experiments that take milliseconds: few devices, random tensors, narrow networks."""

from __future__ import annotations

import io
import math
import sys
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from adelfl.cli import main
from adelfl.data import Dataset, iid
from adelfl.fleet import Fleet
from adelfl.learning_rate import ConstantRate
from adelfl.planner import Problem
from adelfl.runtime.loop import Loop
from adelfl.runtime.run import Record
from adelfl.seeds import rng_for
from adelfl.simulation import Experiment, simulate
from adelfl.simulation.draws import draw_cohort, draw_work
from adelfl.simulation.recording import open_record
from adelfl.simulation.world import World
from adelfl.strategies import Progress, find_strategy
from adelfl.strategies.actions import Arrivals, Tasks
from adelfl.theory.participation import deadline_for_depth
from adelfl.training.engines import LocalWork, build_engine
from adelfl.training.layers import find_layers
from adelfl.training.models import build_model
from adelfl.training.work import Change, RoundWork, Samples

EVERY_STRATEGY = {
    "oracle": ("oracle", {}),
    "adel": ("adel", {}),
    "adel-paper": ("adel-paper", {}),
    "salf": ("salf", {}),
    "salf over all": ("salf", {"average_over": "all"}),
    "heterofl": ("heterofl", {}),
    "drop": ("drop", {}),
    "wait": ("wait", {}),
}
"""All of them, salf with both of its averages: words → name and options."""

SMALL = (
    "fleet.devices=6",
    "model.hidden=[5]",
    "training.rounds=8",
    "training.depth=0.6",
    "training.evaluations=3",
)
"""Changes to the default experiment that make it take a tenth of a second."""

EVERY_MODEL = {
    "mlp": ("mlp", (1, 4, 4), {"hidden": (9, 7)}),
    "cnn": ("cnn", (1, 10, 10), {}),  # the second max-pool meets an odd side
    "vgg11 with groups": ("vgg11", (2, 32, 32), {"norm": "group", "width": 0.0625}),
    "vgg11 without": ("vgg11", (2, 32, 32), {"norm": "none", "width": 0.0625}),
    "resnet18": ("resnet18", (2, 8, 8), {"norm": "group", "width": 0.0625}),
    "transformer": ("transformer", (1, 4, 4), {"width": 0.125}),
}
"""Words → name, shape of a sample, and what else build_model is told."""


@cache
def dataset_of(shape: tuple[int, ...], samples: int = 96, classes: int = 4) -> Dataset:
    """Gaussian samples, labelled by a random linear rule so that there is something to learn."""
    rng = rng_for(7, "small world")
    x = rng.standard_normal((samples + 40, *shape)).astype(np.float32)
    y = (x.reshape(len(x), -1) @ rng.standard_normal((x[0].size, classes))).argmax(1)
    return Dataset.from_arrays(x[:samples], y[:samples], x[samples:], y[samples:], classes=classes)


@cache
def model_of(words: str, seed: int = 3):
    name, shape, options = EVERY_MODEL[words]
    return build_model(name, input_shape=shape, classes=4, seed=seed, **options)


def layers_of(model, dataset: Dataset):
    return find_layers(model, torch.from_numpy(dataset.x_train[:2]))


def setting_of(
    layers: int,
    *,
    fleet: Fleet | None = None,
    depth: float = 0.6,
    budget: float | None = None,
    rounds: int = 10,
    batch: int = 4,
    rate: float = 0.05,
    local_iterations: int = 1,
    cohort: int | None = None,
) -> Problem:
    """Five devices of unequal speed; the budget is such that the mean depth at the fixed batch size is as given."""
    fleet = fleet or Fleet.of([10.0, 20.0, 14.0, 40.0, 25.0], [0.0, 0.02, 0.01, 0.0, 0.03])
    if budget is None:
        steps = layers * local_iterations
        budget = rounds * deadline_for_depth(depth, steps, fleet.compute, fleet.upload, batch, fleet.count)
    return Problem(
        fleet=fleet,
        layers=layers,
        rounds=rounds,
        budget=budget,
        batch=batch,
        learning_rate=ConstantRate(rate),
        cohort=cohort,
        local_iterations=local_iterations,
    )


@dataclass(frozen=True, eq=False)
class Drawn:
    """A round as a strategy sees it when it closes."""

    progress: Progress
    length: float
    seconds: np.ndarray
    upload: np.ndarray


def draw_round(strategy, world, t, now, devices, orders) -> Drawn:
    """Draw a round of a world, and let the strategy judge it by what it believes."""
    s = strategy.problem
    rate = 0.1  # which moves no clock
    steps = s.local_iterations if orders.steps is None else orders.steps
    more = {"early": orders.early, "enough": orders.enough}
    tasks = Tasks(devices, orders.batch, steps, rate, orders.deadline, orders.width, **more)
    work = draw_work(world, tasks, t, now, s.layers)
    had = np.maximum(orders.deadline - strategy.believed(devices)[1], 0.0)
    seconds = np.where(np.isnan(work.seconds), had, work.seconds)
    progress = strategy.progress(Arrivals(tasks, t, t, now, work.z, work.seconds, work.upload))
    return Drawn(progress, work.length, seconds, work.upload)


def cohort_of(setting: Problem, seed: int, t: int) -> np.ndarray:
    return draw_cohort(setting.devices, setting.cohort, seed, t)


def draw_progress(setting, latency, seed, t, devices, orders, dropout=0.0):
    """How far devices come in a round of a world that is as the setting says, and how long the round takes."""
    world = World(setting.fleet, seed, setting.budget, latency, dropout=dropout)
    strategy = find_strategy("salf")(replace(setting, latency=latency))
    found = draw_round(strategy, world, t, 0.0, devices, orders)
    return found.progress, found.length


def experiment_of(
    strategy: str = "salf",
    model: str = "mlp",
    *,
    options: dict | None = None,
    engine: str = "auto",
    seed: int = 1,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    evaluations: int = 4,
    setting: Problem | None = None,
    **others,
) -> Experiment:
    """One small run. ``strategy`` may be one of EVERY_STRATEGY's words; ``others`` go to :func:`setting_of`."""
    torch.set_num_threads(1)
    network = model_of(model)
    dataset = dataset_of(EVERY_MODEL[model][1])
    layers = layers_of(network, dataset)
    setting = setting or setting_of(len(layers), **others)
    name, said = EVERY_STRATEGY.get(strategy, (strategy, {}))
    return Experiment(
        dataset=dataset,
        partition=iid(dataset.y_train, setting.devices, seed, min_size=min(8, dataset.y_train.size // 2)),
        model=network,
        layers=layers,
        strategy=find_strategy(name)(setting, **(said | (options or {}))),
        seed=seed,
        local=LocalWork(weight_decay=weight_decay, momentum=momentum),
        engine=engine,
        evaluations=evaluations,
    )


class Memory:
    """Takes the place of a RunWriter, and keeps what is written."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.result: dict | None = None
        self.weights: dict[str, np.ndarray] = {}

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_) -> None:
        pass

    def append(self, row, wall_seconds) -> None:
        self.rows.append(row)

    def checkpoint(self, round, time, weights) -> None:
        pass

    def finish(self, result, weights) -> None:
        self.result, self.weights = result, {name: w.copy() for name, w in weights.items()}


def run(experiment: Experiment) -> Memory:
    memory = Memory()
    simulate(experiment, Record(None, open_record(experiment, None).info, writer=memory))
    return memory


def steps_of_run(simulation, budget: float):
    """Yield each merge of a simulation before it is computed; the caller computes it, and it is applied afterwards."""
    for step in Loop(simulation.strategy, simulation.backend, budget).steps():
        yield step
        if step.computed is not None and step.computed.change is not None:
            with torch.no_grad():
                simulation.apply(step.computed.change)


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one)


def furthest(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Largest difference of any weight of any layer."""
    assert one.keys() == other.keys()
    return max(float(np.abs(one[k].astype(np.float64) - other[k]).max()) for k in one)


def samples_of(dataset: Dataset) -> Samples:
    return Samples.of(dataset.x_train, dataset.y_train)


@torch.no_grad()
def apply_change(model: nn.Module, change: Change) -> None:
    """Move a model by a change, as the paper's server does."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for name, step in change.parameters.items():
        parameters[name].add_(step)
    for name, value in change.buffers.items():
        buffers[name].copy_(value)


def after_one_round(engine: str, experiment: Experiment, work: RoundWork) -> tuple[dict[str, np.ndarray], float]:
    """The weights that an engine makes of the experiment's initial ones in one round, and the loss that it says."""
    model = deepcopy(experiment.model).train()
    widths = work.width is not None
    samples = samples_of(experiment.dataset)
    E = experiment.strategy.problem.local_iterations
    built = build_engine(engine, model, experiment.layers, samples, experiment.local, iterations=E, widths=widths)
    change = built.run(work)
    apply_change(model, change)
    loss = change.loss
    return {name: w.detach().numpy() for name, w in model.state_dict().items()}, loss


def kept_bytes(folder: Path) -> dict[str, bytes]:
    """The files of a run that must not differ between equal runs."""
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "rounds.jsonl", "result.json")}


def everything_below(folder: Path) -> list[str]:
    """Hidden files too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def typed(*arguments: object) -> Answer:
    """What ``adelfl …`` answers, in this process: quicker than a new one by the seconds that torch takes to load."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with patch.object(sys, "argv", ["adelfl", *map(str, arguments)]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
    return Answer(int(code), out.getvalue(), err.getvalue())


def sets(changes) -> list[str]:
    """``--set`` for each of them."""
    return [word for change in changes for word in ("--set", change)]


class Tiring(nn.Module):
    """Learns less with every step, by a buffer that is not among its weights."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.dense = nn.Linear(math.prod(shape), classes)
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.steps += 1.0
        return self.dense(x.flatten(1)) / (1.0 + 0.01 * self.steps)


def tiring(shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """What ``model.factory`` takes."""
    return Tiring(shape, classes)


class Fading(find_strategy("drop")):
    """Keeps in ``weights`` what it did before, and learns nothing from rounds."""

    name, share = "fading", 1.0

    def weights(self, t, progress):
        self.share *= 0.9
        return self.share * super().weights(t, progress)


def with_batch_norm(shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """What ``model.factory`` takes: two layers, the first with batch norm."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes)
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.3, 0.3, generator=generator)
    return model


FOUR = Fleet.of([10.0, 20.0, 14.0, 40.0], [0.0, 0.02, 0.01, 0.03])


def small_run(model, layers, dataset, strategy="salf", *, rounds=4, depth=0.7, local_iterations=1):
    """Of any model."""
    setting = setting_of(len(layers), fleet=FOUR, rounds=rounds, depth=depth, local_iterations=local_iterations)
    return Experiment(
        dataset=dataset,
        partition=iid(dataset.y_train, 4, 1),
        model=model,
        layers=layers,
        strategy=find_strategy(strategy)(setting),
        seed=1,
    )


def seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def assert_right(model, layers, dataset, engines=("auto", "fused")):
    """What is chosen, and fused by name, agree with the plain loop; adel has weights that differ from row to row."""
    for strategy in ("salf", "adel"):
        experiment = replace(small_run(model, layers, dataset, strategy), local=LocalWork(weight_decay=0.1))
        plain = run(replace(experiment, engine="loop")).weights
        for engine in engines:
            assert furthest(plain, run(replace(experiment, engine=engine)).weights) < 1e-5


def reference(experiment, work):
    """w^l − η Σ_u 1[u delivers l] A[u,l] (g_u^l + λ w^l) for one iteration, in float64."""
    model = deepcopy(experiment.model).double()
    parameters = dict(model.named_parameters())
    x = torch.from_numpy(experiment.dataset.x_train).double()
    y = torch.from_numpy(experiment.dataset.y_train)
    after = {name: w.detach().clone() for name, w in model.state_dict().items()}
    starts = np.concatenate([[0], np.cumsum(work.sizes)])
    for u in range(work.sizes.size):
        if work.sizes[u] == 0:
            continue
        rows = torch.from_numpy(work.rows[0][starts[u] : starts[u + 1]])
        loss = functional.cross_entropy(model(x[rows]), y[rows])
        grads = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
        for l, layer in enumerate(experiment.layers):
            if work.progress.delivered[u, l]:
                for name in layer.parameters:
                    g = grads[name] + experiment.local.weight_decay * parameters[name].detach()
                    after[name] -= work.eta * work.A[u, l] * g
    return {name: w.numpy() for name, w in after.items()}


@st.composite
def rounds(draw, layers, samples):
    """Any depths, any batch sizes, any A: also of layers that were not delivered, and of devices that sit out."""
    U = draw(st.integers(1, 6))
    sizes = np.array(draw(st.lists(st.integers(0, 7), min_size=U, max_size=U)))
    z = np.array(draw(st.lists(st.integers(0, layers), min_size=U, max_size=U)))
    z = np.where(sizes > 0, z, 0)
    A = np.array(draw(st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.5, -0.5]), min_size=U * layers, max_size=U * layers)))
    total = int(sizes.sum())
    rows = np.array(draw(st.lists(st.integers(0, samples - 1), min_size=total, max_size=total)), dtype=np.int64)
    return RoundWork((rows,), sizes, A.reshape(U, layers), Progress(z, layers, 1, np.ones(U)), 0.1)


class Shifting(nn.Module):
    """Changes what it is given."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(16, 4)

    def forward(self, x):
        return self.dense(x.sub_(0.5).flatten(1))


def tied():
    shared = nn.Linear(16, 16)
    return nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(16, 4))
