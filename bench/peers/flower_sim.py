"""Run Flower's simulation engine: run_simulation on Ray, FedAvg, fraction_evaluate = 0.

The settings are the fastest found. Each client has one CPU (``client_resources``), so ``--threads 2`` means two workers
with one torch thread each. Model and data are cached in the workers, and arrays are sent as NumPy. Dashboard, telemetry
and logs are off. The message API costs two thirds of NumPyClient and its adapters. Variant ``inline`` raises a limit of
Ray: messages of more than 100 kB go through its shared-memory store, and the MLP's weights have 103 kB.

CPU time is the sum of user and system time over the process tree: this process with server and engine, Ray's daemons,
and the workers. It is read with psutil when the warm-up ends and when the last timed round ends, so the start and the
end of Ray are not counted. The CPU time of idle daemons is counted. Peak memory is the sum of the peaks of all
processes, with shared pages counted once.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import measure
import numpy as np
from workloads import first_weights, samples


def _tree_cpu() -> float:
    """Return the user and system seconds of this process and its descendants, including those that have ended."""
    import psutil

    this = psutil.Process()
    total = 0.0
    for process in [this, *this.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _tree_peak_mb() -> float:
    """Return the sum of the peaks, assuming that pages that are shared now were also shared at the peak."""
    import psutil

    this = psutil.Process()
    total_kb = 0
    for process in [this, *this.children(recursive=True)]:
        try:
            status = _kilobytes(Path(f"/proc/{process.pid}/status"))
            shared = status["VmRSS"] - _kilobytes(Path(f"/proc/{process.pid}/smaps_rollup"))["Pss"]
            total_kb += status["VmHWM"] - shared
        except (OSError, KeyError):
            continue
    return total_kb / 1024


def _kilobytes(path: Path) -> dict[str, int]:
    fields = (line.split() for line in path.read_text().splitlines())
    return {f[0].rstrip(":"): int(f[1]) for f in fields if len(f) == 3 and f[2] == "kB"}


def simulate(request: measure.Request, folder: Path) -> None:
    """Run warm-up and timed rounds in one simulation, which reads its own clock."""
    import flower_client
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    w = request.workload
    warmup, rounds = (0, 1) if request.check else (request.warmup, request.rounds)
    stamps: list[tuple[float, float]] = []
    peaks: list[float] = []
    results: list[list[measure.Floats]] = []

    class Stamped(FedAvg):
        """FedAvg that reads the clock just before the first timed round."""

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            if server_round == warmup + 1:
                stamps.append((_tree_cpu(), time.perf_counter()))
            return super().configure_train(server_round, arrays, config, grid)

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Stamped(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=w.devices, min_available_nodes=w.devices
        )
        first = ArrayRecord(first_weights(w))
        result = strategy.start(grid=grid, initial_arrays=first, num_rounds=warmup + rounds, timeout=600)
        stamps.append((_tree_cpu(), time.perf_counter()))
        peaks.append(_tree_peak_mb())
        results.append(result.arrays.to_numpy_ndarrays())

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=w.devices,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": request.threads,
                "_temp_dir": str(folder / "ray"),
                "log_to_driver": False,
            },
        },
    )
    if not results:
        sys.exit("the simulation ended without a result")
    measure.must_be_finite(results[0])
    if request.check:
        measure.save(request.check, results[0])
        return
    (cpu0, wall0), (cpu1, wall1) = stamps
    measure.report(request, cpu1 - cpu0, wall1 - wall0, peaks[0], ["flwr", "ray", "torch"])


def main() -> None:
    request = measure.request()
    folder = Path(tempfile.mkdtemp(prefix="f-"))  # short: the paths of Ray's sockets have at most 107 characters
    os.environ |= {
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # If off, Ray binds to 127.0.0.1. If on, the default on Linux, its servers listen on every interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "OMP_NUM_THREADS": "1",
        "BENCH_WORKLOAD": request.name,
        "BENCH_FOLDER": str(folder),
        "BENCH_VARIANT": request.variant,
    }
    if request.check:
        os.environ["BENCH_CHECK"] = "1"
    if request.variant == "inline":
        os.environ["RAY_max_direct_call_object_size"] = str(10 * 2**20)  # noqa: SIM112 — Ray spells it so
    try:
        for name, array in zip(("x", "y"), samples(request.workload), strict=True):
            np.save(folder / name, array)
        if request.batches is not None:
            np.save(folder / "rows", request.batches[0])
        simulate(request, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
