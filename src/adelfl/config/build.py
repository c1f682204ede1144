"""From what a file says to an experiment that can run: data, partition, model, layers, fleet, plan."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from adelfl.config.run import DataSection, ModelSection, RunFile, TrainingSection
from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.planner import Constants
from adelfl.plugins import import_object, users_code
from adelfl.seeds import rng_for

if TYPE_CHECKING:
    from torch import nn

    from adelfl.data import Dataset, Partition
    from adelfl.data.arrays import Ints
    from adelfl.latency import LatencyModel
    from adelfl.simulation import Experiment
    from adelfl.training.layers import Layer


def _made(key: str, path: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever a user's code returns
    """Call what a user names by its import path, if it can be called so."""
    factory = import_object(key, path)
    try:
        inspect.signature(factory).bind(*arguments)
    except (TypeError, ValueError) as trouble:
        wanted = {3: "(input_shape, classes, seed)", 1: "(dataset)"}.get(len(arguments), "no arguments")
        raise ConfigError(f"{key}: {path} cannot be called with {wanted} ({trouble})") from None
    with users_code(f"{key}: {path} fails"):
        return factory(*arguments)


# One split for all seeds: what was held out when a learning rate was chosen is the same everywhere.
_VALIDATION_SEED = 0


@lru_cache(maxsize=2)
def _dataset(name: str, data_dir: str | None, factory: str | None, validation: float = 0.0) -> Dataset:
    from adelfl.data import Dataset, load_dataset, split_validation

    if validation:
        whole = _dataset(name, data_dir, factory)
        return _held_out(whole, *split_validation(whole.y_train, validation, _VALIDATION_SEED))
    if factory is None:
        return load_dataset(name, data_dir=data_dir)
    found = _made("data.factory", factory)
    if not isinstance(found, Dataset):
        raise ConfigError(
            f"data.factory: {factory} must return an adelfl.data.Dataset, not {type(found).__name__}; "
            "Dataset.from_arrays and Dataset.from_torch make one"
        )
    return found


def _held_out(whole: Dataset, kept: Ints, held_out: Ints) -> Dataset:
    """Return the data set with some of its training samples in place of its test samples."""
    x, y = whole.x_train, whole.y_train
    return replace(whole, x_train=x[kept], y_train=y[kept], x_test=x[held_out], y_test=y[held_out])


def _fewer_tests(dataset: Dataset, samples: int | None, seed: int) -> Dataset:
    """The data set with so many of its test samples, drawn at random, the same for every strategy."""
    if samples is None or samples >= dataset.y_test.size:
        return dataset
    chosen = rng_for(seed, "test samples").permutation(dataset.y_test.size)[:samples]
    return replace(dataset, x_test=dataset.x_test[chosen], y_test=dataset.y_test[chosen])


def build_data(said: RunFile) -> tuple[Dataset, Partition]:
    """The data set, and who holds which of its training samples."""
    d, seed = said.data, said.training.seed
    # How many devices there are does not depend on how long their uploads take.
    devices = said.fleet.build(said.device, seed, update_megabytes=1.0).size
    given = _given_partition(d, devices)
    if given is None:
        dataset = _dataset(d.name, d.data_dir, d.factory, d.validation)
        partition = _partition(d, dataset, devices, said.training.batch, seed)
    else:
        dataset, partition = given
    return _fewer_tests(dataset, d.test_samples, seed), partition


def build_experiment(said: RunFile) -> Experiment:
    """Everything that a file describes, ready to run: data, partition, model, layers, fleet, plan."""
    with users_code("this experiment cannot be built"):
        return _build_experiment(said)


def _build_experiment(said: RunFile) -> Experiment:
    import torch

    from adelfl.latency import Exponential
    from adelfl.planner import Problem
    from adelfl.planner.local_work import with_local_work
    from adelfl.runtime.server_step import ServerStep
    from adelfl.simulation import Experiment
    from adelfl.simulation.world import World, misjudged
    from adelfl.strategies import find_strategy
    from adelfl.training.engines import LocalWork, keep_memory

    torch.set_num_threads(said.engine.threads)
    keep_memory()
    t, seed = said.training, said.training.seed
    dataset, partition = build_data(said)
    model, layers = _network(said, dataset)
    megabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    fleet = said.fleet.build(said.device, seed, megabytes)
    if t.cohort is not None and t.cohort > fleet.size:
        raise ConfigError(f"training.cohort: must be at most the fleet's {fleet.size} devices, not {t.cohort}")
    latency = _latency(said, model, layers, dataset)
    budget = budget_for(t, fleet, len(layers))
    problem = Problem(
        fleet=misjudged(fleet, said.fleet.misjudged, said.fleet.misjudged_each, seed),
        layers=len(layers),
        rounds=1 if t.rounds == "auto" else t.rounds,
        budget=budget,
        batch=t.batch,
        learning_rate=said.learning_rate.build(),
        constants=said.constants.build() if said.constants else _estimated(model, layers, dataset, partition, seed),
        cohort=t.cohort,
        local_iterations=1 if t.local_iterations == "auto" else t.local_iterations,
        latency=latency if said.latency.known else Exponential(),
        samples=None if t.oversample else partition.sizes,
    )
    if "auto" in (t.rounds, t.local_iterations):
        given = {"rounds": t.rounds, "steps": t.local_iterations}
        problem = with_local_work(problem, **{key: None if n == "auto" else n for key, n in given.items()})
    kind = find_strategy(said.strategy.name)
    try:
        inspect.signature(kind).bind(problem, **said.strategy.options)
    except TypeError as trouble:
        raise ConfigError(f"strategy.options: {said.strategy.name} does not take these ({trouble})") from None
    with users_code(f"strategy {said.strategy.name} cannot be made"):
        strategy = kind(problem, **said.strategy.options)
    return Experiment(
        dataset=dataset,
        partition=partition,
        model=model,
        layers=layers,
        strategy=strategy,
        seed=seed,
        local=LocalWork(weight_decay=t.weight_decay, momentum=t.momentum),
        engine=said.engine.name,
        device=said.engine.device,
        evaluations=t.evaluations,
        oversample=t.oversample,
        server_step=ServerStep(said.server.step, said.server.lr, said.server.beta1, said.server.beta2, said.server.tau),
        world=World(
            fleet,
            seed,
            budget,
            latency,
            dropout=said.fleet.dropout,
            drift=said.fleet.drift,
            throttled=said.fleet.throttled,
            churn=said.fleet.churn,
        ),
    )


def _latency(said: RunFile, model: nn.Module, layers: tuple[Layer, ...], dataset: Dataset) -> LatencyModel:
    """How long layers and uploads take: the paper's model, the one of [latency], or a user's own."""
    from adelfl.latency import Exponential, Latency, Law, Trace
    from adelfl.training.costs import layer_costs, layer_sizes

    given = said.latency
    if said.fleet.latency is not None:
        found: LatencyModel = _made("fleet.latency", said.fleet.latency)
        if missing := [name for name in ("layer_times", "upload_times", "delivery") if not hasattr(found, name)]:
            raise ConfigError(f"fleet.latency: {said.fleet.latency} has no method {', '.join(missing)}")
        return found
    costs = given.costs
    if isinstance(costs, str):
        import torch

        costs = layer_costs(model, layers, torch.from_numpy(dataset.x_train[:1])) if costs == "flops" else []
    upload = Trace.from_csv(given.trace) if given.trace else Law(given.upload_law, given.upload_spread)
    law = Law(given.law, given.spread, tuple(given.samples))
    shares = tuple(layer_sizes(model, layers)) if given.upload_by_layers else ()
    plain = law.name == "exponential" and isinstance(upload, Law) and upload.name == "constant"
    if plain and not costs and not given.forward and not shares:
        return Exponential()
    return Latency(law, tuple(costs), given.forward, upload, shares)


def build_network(said: RunFile) -> tuple[Dataset, nn.Module, tuple[Layer, ...]]:
    """The data set, and the model with its layers: what one device trains, without a fleet."""
    import torch

    torch.set_num_threads(said.engine.threads)
    dataset = _dataset(said.data.name, said.data.data_dir, said.data.factory)
    return dataset, *_network(said, dataset)


def _network(said: RunFile, dataset: Dataset) -> tuple[nn.Module, tuple[Layer, ...]]:
    import torch

    from adelfl.training.layers import check_output, find_layers, given_layers

    model = _model(said.model, dataset, said.training.seed)
    example = torch.from_numpy(dataset.x_train[:2])
    check_output(model, example, dataset.classes)
    return model, given_layers(model, said.model.layers) if said.model.layers else find_layers(model, example)


def _model(said: ModelSection, dataset: Dataset, seed: int) -> nn.Module:
    from torch import nn

    from adelfl.training.models import build_model

    if said.factory is None:
        return build_model(
            said.name,
            input_shape=dataset.sample_shape,
            classes=dataset.classes,
            seed=seed,
            hidden=tuple(said.hidden),
            norm=said.norm,
            width=said.width,
            init=said.init,
        )
    import torch

    # A model that draws its first weights from torch's own generator has the same ones for the same seed, too.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = _made("model.factory", said.factory, dataset.sample_shape, dataset.classes, seed)
    if not isinstance(found, nn.Module):
        raise ConfigError(f"model.factory: {said.factory} must return an nn.Module, not {type(found).__name__}")
    return found


def _given_partition(said: DataSection, devices: int) -> tuple[Dataset, Partition] | None:
    """Return the data set and a partition of the user's own, from a file or an import path; None if there is none.

    The partition is one of the whole training set. What ``data.validation`` holds out is taken from the devices that
    hold it, but each keeps a sample. (A file may also be one of what is left: ``adelfl partition --save``.)
    """
    from adelfl.data import split_validation

    if said.partition_file is None and said.partition_path is None:
        return None
    whole = _dataset(said.name, said.data_dir, said.factory)
    found = _users_partition(said, whole)
    key = "data.partition_file" if said.partition_file is not None else "data.partition"
    dealt = f"{key}: {said.partition_file or said.partition} deals {found.samples} samples to {len(found)} devices"
    if len(found) != devices:
        raise ConfigError(
            f"{dealt}; here are {whole.y_train.size} samples and {devices} devices (set fleet.devices to {len(found)})"
        )
    if not said.validation:
        dataset = whole
    elif found.samples == whole.y_train.size:
        kept, held_out = found.spared(*split_validation(whole.y_train, said.validation, _VALIDATION_SEED))
        return _held_out(whole, kept, held_out), found.restricted(kept)
    else:
        dataset = _dataset(said.name, said.data_dir, said.factory, said.validation)
    if found.samples != dataset.y_train.size:
        raise ConfigError(f"{dealt}; here are {dataset.y_train.size} samples and {devices} devices")
    return dataset, found


def _users_partition(said: DataSection, whole: Dataset) -> Partition:
    from adelfl.data import Partition

    if said.partition_file is not None:
        return Partition.load(said.partition_file)
    found = _made("data.partition", said.partition, whole)
    if isinstance(found, Partition):
        return found
    with users_code(f"data.partition: {said.partition} must return a Partition, or positions for each device"):
        return Partition.of(list(found), whole.y_train.size)


def _partition(said: DataSection, dataset: Dataset, devices: int, batch: int, seed: int) -> Partition:
    from adelfl.data import dirichlet, iid

    # Each device at least one batch; a fleet too large for that shares samples.
    least = min(batch, dataset.y_train.size)
    if said.partition == "iid":
        return iid(dataset.y_train, devices, seed, min_size=least)
    return dirichlet(dataset.y_train, devices, said.alpha, seed, min_size=least)


def budget_for(said: TrainingSection, fleet: Fleet, layers: int) -> float:
    """Return the time budget: as given, or the one in which a fleet finishes the given share of its layers."""
    from adelfl.theory.participation import deadline_for_depth

    if said.budget is not None:
        return said.budget_share * said.budget
    assert said.depth is not None
    assert said.rounds != "auto" != said.local_iterations  # which load_run refuses together with depth
    steps = layers * said.local_iterations
    batch = said.batch + fleet.overhead_of()
    deadline = deadline_for_depth(said.depth, steps, fleet.compute, fleet.upload, batch, fleet.count)
    return said.budget_share * said.rounds * deadline


def _estimated(
    model: nn.Module, layers: tuple[Layer, ...], dataset: Dataset, partition: Partition, seed: int
) -> Constants:
    """σ² and G² from two half batches of each of at most 16 devices, at the initial weights."""
    from adelfl.training.estimate import estimate_constants
    from adelfl.training.work import Samples

    rng = rng_for(seed, "estimate")
    devices = rng.permutation(len(partition))[:16]
    chosen = [partition[int(u)][rng.integers(0, partition[int(u)].size, 32)] for u in devices]
    samples = Samples.of(dataset.x_train, dataset.y_train)
    return estimate_constants(model, layers, samples, chosen)
