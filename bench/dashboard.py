"""Measure how long the dashboard takes to list many runs, to notice a change, and to open a run.

    python bench/dashboard.py [--runs 500] [--rounds 1000] [--devices 30]

The server runs in its own process, as started by the command line, and receives requests over loopback. Goal: a server
that has just started lists 500 runs of 1,000 rounds in under a second.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from adelfl.clock import monotonic
from adelfl.dashboard.run_index import RunIndex
from adelfl.records.schema import RunInfo, RunResult
from adelfl.records.writer import RunWriter

LAYERS = ["dense1", "dense2", "dense3"]


def row(t: int, devices: int) -> dict[str, object]:
    about = {"round": t, "time": 0.4 * t, "deadline": 0.4, "loss": 1.0, "train_loss": 1.0}
    depth = [(t + u) % 4 for u in range(devices)]
    accuracy = min(0.9, t / 1000) if t % 20 == 0 else None
    return about | {"accuracy": accuracy, "batch": [16] * devices, "depth": depth, "contributors": [devices] * 3}


def make_runs(folder: Path, runs: int, rounds: int, devices: int) -> int:
    """Write runs that differ in name and seed only, and return their size in bytes; every tenth is unfinished."""
    lines = "".join(json.dumps(row(t, devices), separators=(",", ":")) + "\n" for t in range(1, rounds + 1)).encode()
    schedule = {
        "layers": 3,
        "deadlines": [0.4 + 1e-9 * t for t in range(rounds)],
        "m": [1.5 + t / 7 for t in range(rounds)],
    }
    for seed in range(runs):
        about = {"config": {"training": {"local_iterations": 1}}, "seed": seed, "strategy": "salf", "label": "SALF"}
        about |= {"budget": 0.4 * rounds, "rounds": rounds, "layers": LAYERS, "devices": devices, "data": "digits"}
        with RunWriter.create(
            folder / f"study-{seed % 10}" / f"salf-seed{seed}", RunInfo.from_json(about | {"schedule": schedule})
        ) as run:
            (run.folder / "rounds.jsonl").write_bytes(lines)
            if seed % 10:
                run.finish(RunResult(0.8, {}, depth=0.5, rounds=rounds, time=1.0), {})
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def get(address: str, path: str) -> tuple[float, bytes]:
    """Send a GET request; return its duration in seconds and the body of the response."""
    start = monotonic()
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return monotonic() - start, body


def parts(folder: Path, devices: int) -> None:
    """Measure in this process what it costs to index the files."""
    start, used = monotonic(), os.times().user + os.times().system
    index = RunIndex(folder)
    index.look()
    used = os.times().user + os.times().system - used
    print(f"{'first index, in process':44}{(monotonic() - start) * 1e3:9.0f} ms, {used * 1e3:.0f} ms of CPU")
    times = []
    name = "study-0/salf-seed0"
    for t in range(9):
        with (folder / name / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(row(2000 + t, devices), separators=(",", ":")) + "\n")
        start = monotonic()
        index.look()
        times.append(monotonic() - start)
    print(f"{'update after one run has changed':44}{statistics.median(times) * 1e3:9.1f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("runs", 500), ("rounds", 1000), ("devices", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        size = make_runs(folder, args.runs, args.rounds, args.devices)
        print(f"{args.runs} runs of {args.rounds} rounds and {args.devices} devices: {size / 1e6:.0f} MB")
        command = [sys.executable, "-m", "adelfl", "dashboard", temporary, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            try:
                address = server.stdout.readline().split()[-1]
                get(address, "/")
                first, body = get(address, "/api/runs")
                assert len(json.loads(body)) == args.runs
                again = [get(address, "/api/runs")[0] for _ in range(9)]
                one, rows = get(address, "/api/run?name=study-1/salf-seed1")
            finally:
                server.terminate()
        print(f"{'first list over HTTP (goal: 1000)':44}{first * 1e3:9.0f} ms, {len(body) / 1e3:.0f} kB")
        print(f"{'the list again':44}{statistics.median(again) * 1e3:9.1f} ms")
        print(f"{'one run with all its rows':44}{one * 1e3:9.0f} ms, {len(rows) / 1e3:.0f} kB")
        parts(folder, args.devices)
    return 0 if first < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
