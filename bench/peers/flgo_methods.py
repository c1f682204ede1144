"""Run FLGo's servers on the history of arrivals, without FLGo's simulator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import arrivals
import torch
from flgo.algorithm import fedasync, fedavgm, fedbuff
from flgo.utils.fmodule import FModule
from torch import nn


class Net(FModule):  # type: ignore[misc]
    """One dense layer, with the names of the common history."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(arrivals.SHAPES["weight"], dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(arrivals.SHAPES["bias"], dtype=torch.float64))


def net(weights: arrivals.Weights) -> Net:
    made = Net()
    made.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
    return made


def arrays(model: Net) -> arrivals.Weights:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def server_of(module: Any, **settings: object) -> Any:  # noqa: ANN401 - a server of FLGo
    server = module.Server.__new__(module.Server)
    clients = [SimpleNamespace(datavol=1) for _ in range(arrivals.DEVICES)]
    common = {"model": net(arrivals.FIRST), "current_round": 1, "num_clients": arrivals.DEVICES, "clients": clients}
    for key, value in {**common, "aggregation_option": "uniform", **settings}.items():
        setattr(server, key, value)
    return server


def handled(server: Any, *, models: bool) -> list[arrivals.Weights]:  # noqa: ANN401
    """Deliver all arrivals to an asynchronous server, as models or as changes."""
    started = dict.fromkeys(range(arrivals.DEVICES), 1)

    def deliver(k: int, u: int, start: arrivals.Weights) -> arrivals.Weights | None:
        change = arrivals.CHANGES[k]
        package = net({name: start[name] + change[name] for name in start} if models else change)
        package._round, server.received_clients = started[u], [u]
        merged = server.package_handler({"model": [package], "__cid": [u]})
        server.current_round += bool(merged)
        started[u] = server.current_round
        return arrays(server.model) if merged else None

    return arrivals.asynchronous(deliver)


def with_momentum() -> list[arrivals.Weights]:
    beta = arrivals.SERVER["beta1"]
    server = server_of(fedavgm, beta=beta, v=net({n: 0.0 * v for n, v in arrivals.FIRST.items()}))
    server.sample = lambda: list(range(arrivals.DEVICES))
    server.received_clients = list(range(arrivals.DEVICES))
    history = [arrivals.FIRST]
    for changes in arrivals.ROUND_CHANGES:
        local = [net({n: history[-1][n] + c[n] for n in c}) for c in changes]
        server.communicate = lambda _, local=local: {"model": local}
        server.iterate()
        history.append(arrays(server.model))
    return history[1:]


def one_by_one(flag: str) -> list[arrivals.Weights]:
    a, b = arrivals.HINGE
    settings = {"alpha": arrivals.MIXING, "flag": flag, "poly_a": arrivals.DECAY, "hinge_a": a, "hinge_b": b}
    return handled(server_of(fedasync, **settings), models=True)


share = (arrivals.BUFFER + 0.5) / arrivals.DEVICES
arrivals.write(
    {
        "fedasync constant": one_by_one("constant"),
        "fedasync polynomial": one_by_one("poly"),
        "fedasync hinge": one_by_one("hinge"),
        "fedbuff": handled(server_of(fedbuff, buffer_ratio=share, eta=1.0, buffer=[]), models=False),
        "fedavgm": with_momentum(),
    }
)
