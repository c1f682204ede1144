"""Run APPFL's aggregators on the history of arrivals."""

from __future__ import annotations

import arrivals
import torch
from appfl.algorithm.aggregator import (
    FedAdamAggregator,
    FedAsyncAggregator,
    FedAvgMAggregator,
    FedBuffAggregator,
    FedYogiAggregator,
)
from omegaconf import OmegaConf
from torch import nn


def model() -> nn.Module:
    net = nn.Linear(4, 3).double()
    net.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in arrivals.FIRST.items()})
    return net


def tensors(weights: arrivals.Weights) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value.copy()) for name, value in weights.items()}


def arrays(state: dict[str, torch.Tensor]) -> arrivals.Weights:
    return {name: value.numpy().copy() for name, value in state.items()}


def one_by_one(**config: object) -> list[arrivals.Weights]:
    """Run FedAsync, which mixes models."""
    server = FedAsyncAggregator(model(), OmegaConf.create({"alpha": arrivals.MIXING, "num_clients": 1, **config}))
    for u in range(arrivals.DEVICES):
        server.get_parameters(client_id=u)

    def deliver(k: int, u: int, start: arrivals.Weights) -> arrivals.Weights:
        local = {name: start[name] + arrivals.CHANGES[k][name] for name in start}
        return arrays(server.aggregate(u, tensors(local)))

    return arrivals.asynchronous(deliver)


def buffered(*, models: bool, **config: object) -> list[arrivals.Weights]:
    """Run FedBuff, which sums its inputs over ``num_clients``; the inputs are gradients, which devices subtract."""
    settings = {"alpha": 1.0, "num_clients": arrivals.BUFFER, "K": arrivals.BUFFER, "gradient_based": not models}
    server = FedBuffAggregator(model(), OmegaConf.create({**settings, **config}))
    for u in range(arrivals.DEVICES):
        server.get_parameters(client_id=u)

    def deliver(k: int, u: int, start: arrivals.Weights) -> arrivals.Weights | None:
        change = arrivals.CHANGES[k]
        given = {name: start[name] + change[name] if models else -change[name] for name in start}
        before = server.global_step
        state = server.aggregate(u, tensors(given))
        return arrays(state) if server.global_step > before else None

    return arrivals.asynchronous(deliver)


def rounds(kind: type) -> list[arrivals.Weights]:
    step = arrivals.SERVER
    names = {"server_learning_rate": "lr", "server_momentum_param_1": "beta1", "server_momentum_param_2": "beta2",
             "server_adapt_param": "tau"}  # fmt: skip
    server = kind(model(), OmegaConf.create({name: step[key] for name, key in names.items()}))
    history = [arrivals.FIRST]
    for changes in arrivals.ROUND_CHANGES:
        local = {u: tensors({n: history[-1][n] + c[n] for n in c}) for u, c in enumerate(changes)}
        history.append(arrays(server.aggregate(local)))
    return history[1:]


POLYNOMIAL = {"staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": arrivals.DECAY}}
HINGE = {"staleness_fn": "hinge", "staleness_fn_kwargs": {"a": arrivals.HINGE[0], "b": arrivals.HINGE[1]}}

arrivals.write(
    {
        "fedasync constant": one_by_one(staleness_fn="constant"),
        "fedasync polynomial": one_by_one(**POLYNOMIAL),
        "fedasync hinge": one_by_one(**HINGE),
        "fedbuff": buffered(models=False, **POLYNOMIAL),
        "fedbuff of models": buffered(models=True, **POLYNOMIAL),
        "fedavgm": rounds(FedAvgMAggregator),
        "fedadam": rounds(FedAdamAggregator),
        "fedyogi": rounds(FedYogiAggregator),
    }
)
