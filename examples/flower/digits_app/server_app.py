"""Server of the example app: one of adelfl's methods, or Flower's own FedAvg, under a wall-clock budget."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from adelfl.flower import DeadlineStrategy
from digits_app.task import accuracy, load, network

app = ServerApp()


STOCK = ("fedavg", "fedavg-timeout")


class BudgetIsOver(Exception):
    """Raised to end Flower's FedAvg, which has no budget."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the budget is over, and write the accuracies after each round."""
    config = context.run_config
    method, budget = str(config["method"]), float(config["budget"])
    torch.manual_seed(0)
    model, data = network(str(config["task"])), load(str(config["task"]))
    x, y = torch.from_numpy(data.x_test), torch.from_numpy(data.y_test)
    rare = (y == 8) | (y == 9)
    start, evaluations = time.monotonic(), []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seconds = time.monotonic() - start
        if seconds > budget and method in STOCK:
            raise BudgetIsOver
        model.load_state_dict(arrays.to_torch_state_dict())
        both = accuracy(model, x, y), accuracy(model, x[rare], y[rare])
        evaluations.append({"round": number, "seconds": seconds, "accuracy": both[0], "rare": both[1]})
        return MetricRecord({"accuracy": both[0], "rare": both[1]})

    arrays, rounds = ArrayRecord(model.state_dict()), int(config["rounds"])
    nodes = int(config["nodes"])
    if method in STOCK:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=nodes - 1)  # a node may be away
        timeout = budget if method == "fedavg" else float(config["timeout"])
        with contextlib.suppress(BudgetIsOver):
            strategy.start(grid, arrays, num_rounds=100, timeout=timeout, evaluate_fn=evaluate)
    else:
        auto = method == "adel"  # its plan chooses the number of rounds and of local steps
        strategy = DeadlineStrategy(
            budget=budget,
            method=method,
            plan_options={"buffer": nodes} if method == "fedbuff" else None,
            learning_rate=float(config["learning-rate"]),
            batch=int(config["batch"]),
            local_iterations="auto" if auto else int(config["local-iterations"]),
            min_available_nodes=nodes - 1,
            record=config["record"] or None,
        )
        rounds = "auto" if auto else 1000 if method == "fedbuff" else rounds
        strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)
    result = {"method": method, "budget": budget, "seconds": time.monotonic() - start, "evaluations": evaluations}
    print(json.dumps(result))
    if config["out"]:
        Path(str(config["out"])).write_text(json.dumps(result), encoding="utf-8")
