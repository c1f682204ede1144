"""Workloads of the peers, in NumPy only: shapes, synthetic data, first weights.

A model is a list of steps, which torch_models.py and jax_sim.py turn into their own code, so that all peers compute the
same function of the same numbers. In one round, every device takes one or several SGD steps from the global weights,
each on the mean cross-entropy of a batch that it draws from its own samples, and the weights are averaged. There is no
evaluation.

With a buffer, a round is a merge of FedBuff instead. Devices work all the time, for exponential durations with one
mean, and start again from the newest weights. Every ``buffer`` updates are merged, with weights 1/√(1 + staleness) /
buffer.

Data are random images of the true shapes with 8-bit pixels, scaled to −1 … 1. Times do not depend on their content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
SEED = 1

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Dense:
    """A fully connected layer, ``inputs`` → ``outputs``."""

    inputs: int
    outputs: int


@dataclass(frozen=True)
class Conv:
    """A convolution of stride 1, ``inputs`` → ``outputs`` channels."""

    inputs: int
    outputs: int
    size: int
    padding: int


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""


@dataclass(frozen=True)
class Pool:
    """Max-pooling over 2 × 2."""


@dataclass(frozen=True)
class Flatten:
    """(channels, height, width) → one vector, in that order."""


Step = Dense | Conv | Relu | Pool | Flatten


def _mlp() -> tuple[Step, ...]:
    return Dense(784, 32), Relu(), Dense(32, 16), Relu(), Dense(16, CLASSES)


def _cnn() -> tuple[Step, ...]:
    # Pool before ReLU: the same function as the other order, and four times fewer numbers to rectify.
    convs: tuple[Step, ...] = (Conv(1, 10, 5, 0), Pool(), Relu(), Conv(10, 20, 5, 0), Pool(), Relu(), Flatten())
    return *convs, Dense(320, 50), Relu(), Dense(50, CLASSES)


def _vgg11() -> tuple[Step, ...]:
    steps: list[Step] = []
    channels = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):  # 0: pool
        if width:
            steps += [Conv(channels, width, 3, 1), Relu()]
            channels = width
        else:
            steps.append(Pool())
    return *steps, Flatten(), Dense(512, 512), Relu(), Dense(512, 512), Relu(), Dense(512, CLASSES)


@dataclass(frozen=True)
class Workload:
    """A workload: ``devices`` × ``samples`` images of ``shape``, batches of ``batch``."""

    about: str
    model: tuple[Step, ...]
    shape: tuple[int, ...]
    devices: int
    batch: int
    samples: int
    rate: float
    """Learning rate, small enough that training on random labels does not diverge."""
    rounds: int
    """Number of timed rounds by default (see simulators.py for slow peers)."""
    warmup: int
    steps: int = 1
    """Local steps of a device per round."""
    buffer: int | None = None
    """Updates per merge of FedBuff; None for rounds."""
    check_rate: float = 1.0
    """Learning rate of the cross-check."""


WORKLOADS = {
    "mlp": Workload("MLP 784-32-16-10, MNIST shapes", _mlp(), (784,), 30, 32, 2000, 0.1, 300, 20),
    "mlp300": Workload("MLP 784-32-16-10, MNIST shapes", _mlp(), (784,), 300, 32, 200, 0.1, 40, 4),
    "cnn": Workload("CNN 10-20-50-10, MNIST shapes", _cnn(), (1, 28, 28), 30, 32, 2000, 0.05, 20, 3),
    "mlp-e5": Workload("MLP 784-32-16-10, MNIST shapes", _mlp(), (784,), 30, 16, 2000, 0.1, 60, 5, steps=5),
    "cnn-e5": Workload(
        "CNN 10-20-50-10, MNIST shapes", _cnn(), (1, 28, 28), 30, 16, 2000, 0.05, 6, 1, steps=5, check_rate=0.05
    ),
    "fedbuff": Workload("MLP 784-32-16-10, FedBuff", _mlp(), (784,), 300, 16, 200, 0.05, 300, 40, steps=5, buffer=10),
    "vgg11": Workload("VGG11 without norms, CIFAR-10 shapes", _vgg11(), (3, 32, 32), 30, 16, 500, 0.01, 2, 1),
}


def samples(workload: Workload) -> tuple[Floats, Integers]:
    """Draw images (devices, samples, *shape) and labels (devices, samples)."""
    rng = np.random.default_rng([SEED, 1])
    size = (workload.devices, workload.samples)
    pixels = rng.integers(0, 256, (*size, *workload.shape), dtype=np.uint8)
    return np.divide(pixels, np.float32(127.5), dtype=np.float32) - np.float32(1.0), rng.integers(0, CLASSES, size)


def first_weights(workload: Workload) -> list[Floats]:
    """Weight, bias, weight, bias … in torch's layouts: (out, in) and (out, in, height, width)."""
    rng = np.random.default_rng([SEED, 2])
    weights: list[Floats] = []
    for step in workload.model:
        if isinstance(step, Dense | Conv):
            window = (step.size, step.size) if isinstance(step, Conv) else ()
            shape = (step.outputs, step.inputs, *window)
            scale = np.float32(np.sqrt(2.0 / np.prod(shape[1:])))
            weights += [rng.standard_normal(shape, dtype=np.float32) * scale, np.zeros(step.outputs, np.float32)]
    return weights


def for_check(workload: Workload) -> Workload:
    """Return the workload with a larger learning rate, so that rounding does not hide the update."""
    return replace(workload, rate=workload.check_rate)


def fixed_batches(workload: Workload) -> Integers:
    """Return row numbers of shape (steps, devices, batch) for a cross-check without adelfl, which draws its own."""
    size = (workload.steps, workload.devices, workload.batch)
    return np.random.default_rng([SEED, 3]).integers(0, workload.samples, size)
