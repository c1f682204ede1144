"""Measure what truncated backpropagation saves and costs, and how late it stops, on VGG11 and a small transformer.

    python bench/truncated.py [--repeats 15]

The script measures CPU time with one thread. The kinds of pass run in turns, and values are medians of ratios. The cost
of a layer is the time between its completion and that of the layer before it. The exit code is 1 if a goal is missed:

- a pass that stops at half the cost takes at most 60 % of a plain pass;
- a full pass takes at most 3 % more than a plain pass;
- a pass ends at most one layer's time after it should stop.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.training.layers import Layer, find_layers
from adelfl.training.models import build_model
from adelfl.training.truncated import Truncation

WORKLOADS = {"vgg11": (0.5, 16), "transformer": (4.0, 32)}  # width, batch


class Case:
    """A model, its layers, and one batch of CIFAR-10's shape."""

    def __init__(self, name: str) -> None:
        width, batch = WORKLOADS[name]
        self.model: nn.Module = build_model(name, input_shape=(3, 32, 32), classes=10, seed=0, width=width)
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(batch, 3, 32, 32, generator=generator)
        self.y = torch.randint(10, (batch,), generator=generator)
        self.layers: tuple[Layer, ...] = find_layers(self.model, self.x[:1])
        self.truncation = Truncation(self.model, self.layers)

    def loss(self, model: nn.Module | None = None) -> Tensor:
        """Return the loss of the batch."""
        return functional.cross_entropy((model or self.model)(self.x), self.y)


def timed(loss: Tensor, do: Callable[[Tensor], object]) -> float:
    start = time.process_time()
    do(loss)
    return time.process_time() - start


def layer_times(case: Case, repeats: int) -> list[float]:
    """Return the median CPU seconds of each layer of the backward pass, in the order of completion."""
    passes = []
    for _ in range(repeats):
        moments: list[float] = []
        with case.truncation as truncation:
            truncation.backward(case.loss(), lambda _: moments.append(time.process_time()) or False)  # noqa: B023
        passes.append([after - before for before, after in itertools.pairwise(moments)])
    return [statistics.median(column) for column in zip(*passes, strict=True)]


def measure(name: str, repeats: int) -> bool:
    case = Case(name)
    costs = layer_times(case, repeats)
    L, whole = len(costs), sum(costs)
    half = min(range(1, L), key=lambda k: abs(sum(costs[:k]) / whole - 0.5))  # layers until half the cost
    ways: dict[str, Callable[[Tensor], object]] = {
        "plain": lambda loss: loss.backward(),
        "whole": lambda loss: case.truncation.backward(loss, lambda _: False),
        "half": lambda loss: case.truncation.backward(loss, lambda l: l <= L - half),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    order = list(ways)
    for _ in range(repeats):
        order.append(order.pop(0))  # the preceding pass affects the time, so the order rotates
        for way in order:
            case.model.zero_grad()
            with nullcontext() if way == "plain" else case.truncation:
                times[way].append(timed(case.loss(), ways[way]))
    plain = statistics.median(times["plain"])
    share, whole_ratio = (
        statistics.median(a / b for a, b in zip(times[way], times["plain"], strict=True)) for way in ("half", "whole")
    )
    extra = whole_ratio - 1.0
    reached = sum(costs[:half]) / whole
    late = lateness(case, costs, repeats)
    print(f"{name}: {L} layers, a plain backward pass takes {1e3 * plain:.1f} ms of CPU")
    print(f"  stopped after {half} layers ({reached:.0%} of the cost): {share:.0%} of the plain pass")
    print(f"  a full pass: {extra:+.1%}")
    print(f"  a pass ends {late:.2f} of the longest layer's time after its time is up")
    print(f"  two local iterations, the second truncated there: {iterations(case, half, plain, repeats)}")
    return share <= 0.60 and extra <= 0.03 and late <= 1.0


def lateness(case: Case, costs: list[float], repeats: int) -> float:
    """Return the median delay of passes whose time ends within a layer, in units of the longest layer."""
    delays = []
    for k in range(repeats):
        target = (k + 0.5) / repeats * sum(costs)
        loss = case.loss()
        start = time.process_time()
        with case.truncation as truncation:
            truncation.backward(loss, lambda _, end=start + target: time.process_time() > end)  # type: ignore[misc]
        delays.append(max(0.0, time.process_time() - start - target))
    return statistics.median(delays) / max(costs)


def iterations(case: Case, half: int, plain: float, repeats: int) -> str:
    """Measure the CPU time of two steps, the second one truncated, without the forward passes."""
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.0)
    L = len(case.layers)
    times = []
    for _ in range(repeats):
        spent = 0.0
        began = 0.0
        calls = 0

        def stop(l: int) -> bool:
            nonlocal calls, began, spent
            calls += 1
            if l == L:
                began = time.process_time()
            over = calls > L + 1 and l <= L - half
            if l == 0 or over:
                spent += time.process_time() - began
            return over

        with case.truncation as truncation:
            for _ in range(2):
                partly = truncation.backward(case.loss(), stop)
                for name, p in case.model.named_parameters():
                    p.grad = partly.gradients.get(name)
                optimizer.step()
        times.append(spent)
    return f"{statistics.median(times) / plain:.2f} plain passes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    met = [measure(name, repeats) for name in WORKLOADS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
