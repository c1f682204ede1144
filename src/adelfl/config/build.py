"""Build an experiment from a configuration: data, partition, model, layers, fleet, strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adelfl.config.build_data import build_data as build_data
from adelfl.config.build_data import load_data
from adelfl.config.build_fleet import build_fleet
from adelfl.config.run import ModelSection, RunFile, TrainingSection
from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.planner import Constants
from adelfl.plugins import call_factory, users_code
from adelfl.seeds import rng_for

if TYPE_CHECKING:
    from torch import nn

    from adelfl.data import Dataset, Partition
    from adelfl.latency import LatencyModel
    from adelfl.simulation import Experiment
    from adelfl.training.layers import Layer


@users_code("this experiment cannot be built")
def build_experiment(config: RunFile) -> Experiment:
    """Build the experiment that a configuration describes."""
    from adelfl.latency import Exponential
    from adelfl.planner import Problem
    from adelfl.planner.local_work import with_local_work
    from adelfl.runtime.codec import find_codec
    from adelfl.runtime.server_step import ServerStep
    from adelfl.simulation import Experiment
    from adelfl.simulation.world import World, misjudged
    from adelfl.strategies import find_strategy
    from adelfl.strategies.base import check_options
    from adelfl.training.engines import LocalWork

    t, seed, server = config.training, config.training.seed, config.server.model_dump()
    step = server.pop("step")
    dataset, partition = build_data(config)
    model, layers = _network(config, dataset)
    megabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    fleet, traces = build_fleet(config, len(partition), len(layers), megabytes)
    if t.cohort is not None and t.cohort > fleet.size:
        raise ConfigError(f"training.cohort: must be at most the fleet's {fleet.size} devices, not {t.cohort}")
    latency = _latency(config, model, layers, dataset)
    share = find_codec(t.codec).relative_size(dict(model.named_parameters()))
    believed = misjudged(fleet, config.fleet.misjudged, config.fleet.misjudged_each, seed)
    budget = budget_for(t, fleet, len(layers))
    rounds, steps = (None if n == "auto" else n for n in (t.rounds, t.local_iterations))
    problem = Problem(
        fleet=believed if share == 1.0 else replace(believed, upload=believed.upload * share),
        layers=len(layers),
        rounds=rounds or 1,
        budget=budget,
        batch=t.batch,
        learning_rate=config.learning_rate.build(),
        constants=config.constants.build() if config.constants else _estimated(model, layers, dataset, partition, seed),
        cohort=t.cohort,
        local_iterations=steps or 1,
        latency=latency if config.latency.known else Exponential(),
        samples=None if t.oversample else partition.sizes,
    )
    problem = with_local_work(problem, rounds=rounds, steps=steps)
    kind = find_strategy(config.strategy.name)
    check_options(kind, config.strategy.options)
    with users_code(f"strategy {config.strategy.name} cannot be created"):
        strategy = kind(problem, **config.strategy.options)
    return Experiment(
        dataset=dataset,
        partition=partition,
        model=model,
        layers=layers,
        strategy=strategy,
        seed=seed,
        local=LocalWork(weight_decay=t.weight_decay, momentum=t.momentum),
        engine=config.engine.name,
        device=config.engine.device,
        evaluations=t.evaluations,
        oversample=t.oversample,
        codec=t.codec,
        server_step=ServerStep(kind.server_step if step == "auto" else step, **server),
        world=World(
            fleet,
            seed,
            budget,
            latency,
            dropout=config.fleet.dropout,
            drift=config.fleet.drift,
            throttled=config.fleet.throttled,
            churn=config.fleet.churn,
            **traces,
        ),
    )


def _latency(config: RunFile, model: nn.Module, layers: tuple[Layer, ...], dataset: Dataset) -> LatencyModel:
    """Return the paper's latency model, the one described in [latency], or a user's."""
    from adelfl.latency import Exponential, Latency, Law
    from adelfl.training.costs import layer_costs, layer_sizes

    section = config.latency
    if config.fleet.latency is not None:
        users: LatencyModel = call_factory("fleet.latency", config.fleet.latency)
        if missing := [name for name in ("layer_times", "upload_times", "delivery") if not hasattr(users, name)]:
            raise ConfigError(f"fleet.latency: {config.fleet.latency} has no method {', '.join(missing)}; add it")
        return users
    costs = section.costs
    if isinstance(costs, str):
        import torch

        costs = layer_costs(model, layers, torch.from_numpy(dataset.x_train[:1])) if costs == "flops" else []
    law = Law(section.law, section.spread, tuple(section.samples))
    upload = Law(section.upload_law, section.upload_spread)
    shares = tuple(layer_sizes(model, layers)) if section.upload_by_layers else ()
    plain = law.name == "exponential" and upload.name == "constant"
    if plain and not costs and not section.forward and not shares:
        return Exponential()
    return Latency(law, tuple(costs), section.forward, upload, shares)


def build_network(config: RunFile) -> tuple[Dataset, nn.Module, tuple[Layer, ...]]:
    """Return the data set, and the model with its layers."""
    dataset = load_data(config.data)
    return dataset, *_network(config, dataset)


def _network(config: RunFile, dataset: Dataset) -> tuple[nn.Module, tuple[Layer, ...]]:
    import torch

    from adelfl.training.layers import check_output, find_layers, given_layers

    model = _model(config.model, dataset, config.training.seed)
    example = torch.from_numpy(dataset.x_train[:2])
    check_output(model, example, dataset.classes)
    return model, given_layers(model, config.model.layers) if config.model.layers else find_layers(model, example)


def _model(section: ModelSection, dataset: Dataset, seed: int) -> nn.Module:
    from torch import nn

    from adelfl.training.models import build_model

    if section.factory is None:
        return build_model(
            section.name,
            input_shape=dataset.sample_shape,
            classes=dataset.classes,
            seed=seed,
            hidden=tuple(section.hidden),
            norm=section.norm,
            width=section.width,
            init=section.init,
        )
    import torch

    # Seeded, for models that draw their initial weights from torch's global generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = call_factory("model.factory", section.factory, dataset.sample_shape, dataset.classes, seed)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model.factory: {section.factory} must return an nn.Module, not {type(model).__name__}")
    return model


def budget_for(section: TrainingSection, fleet: Fleet, layers: int) -> float:
    """Return the time budget: the given one, or the one in which a fleet finishes the given share of its layers."""
    from adelfl.theory.participation import deadline_for_depth

    if section.budget is not None:
        return section.budget_share * section.budget
    assert section.depth is not None
    assert section.rounds != "auto" != section.local_iterations  # load_run rejects "auto" together with depth
    steps = layers * section.local_iterations
    batch = section.batch + fleet.overhead_of()
    deadline = deadline_for_depth(section.depth, steps, fleet.compute, fleet.upload, batch, fleet.count)
    return section.budget_share * section.rounds * deadline


def _estimated(
    model: nn.Module, layers: tuple[Layer, ...], dataset: Dataset, partition: Partition, seed: int
) -> Constants:
    """Estimate σ² and G² from two half batches on each of at most 16 devices, at the initial weights."""
    from adelfl.training.estimate import estimate_constants
    from adelfl.training.work import Samples

    rng = rng_for(seed, "estimate")
    devices = rng.permutation(len(partition))[:16]
    chosen = [partition[int(u)][rng.integers(0, partition[int(u)].size, 32)] for u in devices]
    samples = Samples.of(dataset.x_train, dataset.y_train)
    return estimate_constants(model, layers, samples, chosen)
