"""The server: one of adelfl's methods, or Flower's own FedAvg, under a wall-clock budget."""

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
from digits_app.task import Net, accuracy, load_test

app = ServerApp()


class BudgetIsOver(Exception):
    """Ends stock FedAvg, which knows of no budget."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the budget is over, and write down how accuracy went."""
    said = context.run_config
    method, budget = str(said["method"]), float(said["budget"])
    torch.manual_seed(0)
    model = Net()
    x, y = load_test()
    rare = (y == 8) | (y == 9)
    start, found = time.monotonic(), []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seconds = time.monotonic() - start
        if seconds > budget and method == "fedavg":
            raise BudgetIsOver
        model.load_state_dict(arrays.to_torch_state_dict())
        both = accuracy(model, x, y), accuracy(model, x[rare], y[rare])
        found.append({"round": number, "seconds": seconds, "accuracy": both[0], "rare": both[1]})
        return MetricRecord({"accuracy": both[0], "rare": both[1]})

    arrays, rounds = ArrayRecord(model.state_dict()), int(said["rounds"])
    nodes = int(said["nodes"])
    if method == "fedavg":
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=nodes)
        with contextlib.suppress(BudgetIsOver):
            strategy.start(grid, arrays, num_rounds=rounds, timeout=budget, evaluate_fn=evaluate)
    else:
        strategy = DeadlineStrategy(
            budget=budget,
            method=method,
            learning_rate=float(said["learning-rate"]),
            batch=int(said["batch"]),
            local_iterations=int(said["local-iterations"]),
            min_available_nodes=nodes,
            record=said["record"] or None,
        )
        strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)
    result = {"method": method, "budget": budget, "seconds": time.monotonic() - start, "evaluations": found}
    print(json.dumps(result))
    if said["out"]:
        Path(str(said["out"])).write_text(json.dumps(result), encoding="utf-8")
