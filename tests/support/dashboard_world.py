"""Runs as a dashboard finds them: written by the real writer, without training anything."""

import json

from adelfl.records.schema import Row, RunInfo, RunResult
from adelfl.records.writer import RunWriter

LAYERS = ["dense1", "dense2", "dense3"]


def about(**changes):
    said = {
        "config": {"training": {"local_iterations": 1}},
        "seed": 3,
        "strategy": "salf",
        "label": "SALF",
        "data": "digits",
        "budget": 10.0,
        "rounds": 20,
        "layers": LAYERS,
        "devices": 2,
        "schedule": {"deadlines": [0.5] * 20},
        "notes": [],
        "versions": {"adelfl": "0"},
    }
    return said | changes


def info(**changes):
    return RunInfo.from_json(about(**changes))


def row(t, accuracy=None):
    if t == 0:
        return {"round": 0, "time": 0.0, "loss": 2.3, "accuracy": 0.1}
    return {
        "round": t,
        "time": 0.5 * t,
        "deadline": 0.5,
        "loss": None,
        "accuracy": accuracy,
        "train_loss": 1.0,
        "batch": [8, 4],
        "depth": [3, t % 3],
        "contributors": [1, 1 + (t % 3 > 1), 1 + (t % 3 > 0)],
    }


def begin(folder, rounds=0, **changes):
    """A run that goes on; close what is returned to interrupt it."""
    writer = RunWriter.create(folder, info(**changes))
    for t in range(rounds + 1):
        writer.append(Row.from_json(row(t, 0.1 + 0.01 * t if t % 2 == 0 else None)), 0.01)
    writer.flush()
    return writer


def finish(writer, accuracy=0.75):
    result = RunResult(accuracy, {}, depth=0.5, rounds=20, time=10.0)
    writer.finish(result, {})
    writer.close()


def told(messages):
    """Server-sent events as (event, data); comments are left out."""
    found = []
    for block in b"".join(messages).decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found
