"""Compare the engines ``loop`` and ``fused`` on typical user models: classes, shortcuts, attention.

    python bench/models.py [--repeats 7] [--models mlp,cnn]

``loop`` trains one device after another, ``fused`` trains all devices in one pass. The script measures the CPU time of
the local work and the merge of one round, with one thread, 30 devices and one local step. The engines run in turns; the
table shows the median and the quartiles of the ratio within a turn. There are three cases: all devices finish all
layers; devices finish half of the layers on average; and the latter with weights that differ by device and layer, and
unequal batch sizes, as with ``adel``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.process import settle
from adelfl.strategies.rounds import Progress
from adelfl.training.engines import LocalWork, build_engine
from adelfl.training.layers import find_layers
from adelfl.training.models import build_model
from adelfl.training.work import RoundWork, Samples

DEVICES, CLASSES = 30, 10


class Mlp(nn.Module):
    """MLP 784-32-16-10, written as a class."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 32), nn.Linear(32, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Apply dense, ReLU, dense, ReLU, dense."""
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc3(functional.relu(self.fc2(x)))


class Gelu(Mlp):
    """The same MLP with an activation for which the fused engine uses autograd."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply dense, GELU, dense, GELU, dense."""
        x = functional.gelu(self.fc1(x.flatten(1)))
        return self.fc3(functional.gelu(self.fc2(x)))


class Cnn(nn.Module):
    """CNN 10-20-50-10, as in tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Apply two convolutions with pooling, then two dense layers."""
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.conv2(x), 2))
        x = functional.relu(self.fc1(x.view(-1, 320)))
        return functional.log_softmax(self.fc2(x), dim=1)


def _own(name: str, shape: tuple[int, ...], **options: float) -> Callable[[], nn.Module]:
    return lambda: build_model(name, input_shape=shape, classes=CLASSES, seed=0, **options)  # type: ignore[arg-type]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "mlp": (Mlp, (1, 28, 28), 32),
    "gelu": (Gelu, (1, 28, 28), 32),
    "cnn": (Cnn, (1, 28, 28), 32),
    "transformer": (_own("transformer", (1, 28, 28)), (1, 28, 28), 16),
    "resnet18": (_own("resnet18", (3, 32, 32), width=0.25), (3, 32, 32), 16),
}
"""Name of each model: its constructor, the shape of a sample, the batch size."""


def rounds(layers: int, batch: int, rng: np.random.Generator) -> dict[str, RoundWork]:
    """Return three kinds of local work on 2,000 samples."""
    works = {}
    for kind in ("all layers", "half of them", "half, unequal weights"):
        z = np.full(DEVICES, layers) if kind == "all layers" else np.minimum(rng.poisson(layers / 2, DEVICES), layers)
        unequal = "unequal" in kind
        sizes = rng.integers(batch // 2, 2 * batch, DEVICES) if unequal else np.full(DEVICES, batch)
        progress = Progress(z, layers, 1, np.ones(DEVICES))
        A = progress.delivered / np.maximum(1, progress.delivered.sum(axis=0))
        if unequal:
            A = A * rng.uniform(0.5, 1.5, A.shape)
        works[kind] = RoundWork((rng.integers(0, 2000, sizes.sum()),), sizes, A, progress, 0.01)
    return works


def compare(name: str, repeats: int) -> None:
    build, shape, batch = MODELS[name]
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model = build()
    x = torch.from_numpy(rng.standard_normal((2000, *shape), dtype=np.float32))
    samples = Samples(x, torch.from_numpy(rng.integers(0, CLASSES, 2000)))
    layers = find_layers(model, x[:2])
    for kind, work in rounds(len(layers), batch, rng).items():
        engines = [build_engine(e, deepcopy(model).train(), layers, samples, LocalWork()) for e in ("loop", "fused")]
        turns = []
        for _ in range(repeats + 1):
            turns.append([])
            for engine in engines:
                start = time.process_time()
                engine.run(work)
                turns[-1].append(time.process_time() - start)
        del turns[0]  # warm-up
        loop, fused = (1e3 * statistics.median(times) for times in zip(*turns, strict=True))
        low, middle, high = statistics.quantiles([a / b for a, b in turns], n=4, method="inclusive")
        print(f"{name:12}{kind:24}{loop:10.1f}{fused:10.1f}{middle:8.2f}   {low:.2f} to {high:.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", default=",".join(MODELS))
    args = parser.parse_args()
    settle(1)
    warnings.simplefilter("ignore")
    print(f"{'model':12}{'deliver':24}{'loop, ms':>10}{'fused, ms':>10}{'ratio':>8}   quartiles")
    for name in args.models.split(","):
        compare(name, args.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
