"""Where the simulator's time goes: its own overhead, ten times the devices (MLP), and truncation (VGG11).

    python bench/parts.py

CPU time, one thread, medians; sizes and depths take turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import measure
import workloads
from adelfl_sim import Adelfl

from adelfl.strategies.rounds import Progress
from adelfl.training import fused
from adelfl.training.engines import LocalWork, build_engine
from adelfl.training.work import RoundWork, Samples

T = TypeVar("T")


def request(name: str) -> measure.Request:
    return measure.Request(workloads.WORKLOADS[name], name, 1, 1, 1, None, None)


def overhead() -> float:
    """Share of a round of the MLP (30 devices, batch 32) that is not the engine's."""
    simulator = Adelfl(request("mlp"))
    inside = 0.0
    prepare = fused.Fused.prepare

    def counted(call: Callable[[], T]) -> T:
        nonlocal inside
        start = time.process_time()
        result = call()
        inside += time.process_time() - start
        return result

    def timed(self: fused.Fused, work: RoundWork) -> Callable[[], float]:
        ready = counted(lambda: prepare(self, work))
        return lambda: counted(ready)

    fused.Fused.prepare = timed  # type: ignore[method-assign]
    shares = []
    for _ in range(5):
        inside, start = 0.0, time.process_time()
        simulator.run(1000)
        shares.append(1.0 - inside / (time.process_time() - start))
    fused.Fused.prepare = prepare  # type: ignore[method-assign]
    return statistics.median(shares)


def floor() -> dict[str, float]:
    """Milliseconds of a round of the MLP, and of its least parts: gathering rows, and the first layer's products.

    Beside them, in 10⁹ operations a second, what those products and a product of large square matrices reach.
    """
    simulator = Adelfl(request("mlp"))
    w, data = simulator.workload, simulator.dataset
    inputs = Samples.of(data.x_train, data.y_train).inputs
    weight, square = torch.randn(32, data.x_train.shape[1]), torch.randn(1024, 1024)
    delta, rng = torch.randn(w.devices * w.batch, 32), np.random.default_rng(0)
    first = w.samples * np.repeat(np.arange(w.devices), w.batch)
    rows = [torch.from_numpy(first + rng.integers(0, w.samples, first.size)) for _ in range(64)]
    some = inputs(rows[0])

    def products(turn: int) -> None:
        torch.nn.functional.linear(some, weight)
        torch.mm(delta.t(), some)

    def milliseconds(work: Callable[[int], object], times: int) -> float:
        start = time.process_time()
        with torch.no_grad():
            for turn in range(times):
                work(turn)
        return 1e3 * (time.process_time() - start) / times

    turns = [
        (
            milliseconds(lambda _: simulator.run(1000), 1) / 1000,
            milliseconds(lambda turn: inputs(rows[turn % 64]), 500),
            milliseconds(products, 500),
            milliseconds(lambda _: torch.mm(square, square), 20),
        )
        for _ in range(9)
    ][1:]
    whole, gathered, multiplied, large = (statistics.median(times) for times in zip(*turns, strict=True))
    reached, peak = 4e-6 * delta.numel() * weight.shape[1] / multiplied, 2e-6 * square.shape[0] ** 3 / large
    return {"whole": whole, "rows": gathered, "products": multiplied, "reached": reached, "peak": peak}


def growth() -> list[float]:
    """How many times the cost of 30 devices 300 cost, turn by turn: lower quartile, median, upper quartile."""
    small, large = Adelfl(request("mlp")), Adelfl(request("mlp300"))

    def seconds(simulator: Adelfl, rounds: int) -> float:
        start = time.process_time()
        simulator.run(rounds)
        return (time.process_time() - start) / rounds

    seconds(small, 60), seconds(large, 6)
    return statistics.quantiles((seconds(large, 150) / seconds(small, 1500) for _ in range(11)), n=4)


def truncation() -> dict[float, float]:
    """CPU seconds of a round of VGG11 when all devices stop after a share of the backward pass."""
    simulator = Adelfl(request("vgg11"))
    w, L = simulator.workload, len(simulator.layers)
    samples = Samples.of(simulator.dataset.x_train, simulator.dataset.y_train)
    engine = build_engine("fused", simulator.model, simulator.layers, samples, LocalWork())
    rows = np.random.default_rng(0).integers(0, w.devices * w.samples, w.devices * w.batch)
    times: dict[int, list[float]] = {depth: [] for depth in (0, L // 4, L // 2, 3 * L // 4, L)}
    for _ in range(3):
        for depth, seconds in times.items():
            progress = Progress(np.full(w.devices, max(depth, 1)), L, 1, np.ones(w.devices))
            A = progress.delivered / w.devices
            work = RoundWork((rows,), np.full(w.devices, w.batch), A, progress, 0.0)
            start = time.process_time()
            engine.run(work)
            seconds.append(time.process_time() - start)
    return {max(depth, 1) / L: statistics.median(seconds) for depth, seconds in times.items()}


def main() -> int:
    torch.set_num_threads(1)
    share = overhead()
    print(f"MLP, 30 devices, batch 32: {share:.1%} of a round is clock, draws and records (to reach: below 10 %)")
    ms = floor()
    print(
        f"MLP: a round takes {ms['whole']:.2f} ms; alone, its rows {ms['rows']:.2f} and the first layer's two products "
        f"{ms['products']:.2f} ({ms['reached']:.0f} GFLOP/s; square matrices {ms['peak']:.0f})"
    )
    low, middle, high = growth()
    print(f"MLP, 300 devices cost {middle:.2f} times 30 (quartiles {low:.2f} to {high:.2f}; to reach: at most 9)")
    print("VGG11, 30 devices, batch 16: CPU seconds of a round by depth of the backward pass")
    by_depth = truncation()
    whole = by_depth[1.0]
    for depth, seconds in sorted(by_depth.items()):
        print(f"  {depth:4.0%} of the layers: {seconds:6.2f} s, {seconds / whole:4.0%} of the whole round")
    return 0 if share < 0.10 and middle <= 9.0 else 1


if __name__ == "__main__":
    sys.exit(main())
