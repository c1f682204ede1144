"""Experiments: the parts of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from adelfl.data import Dataset, Partition
from adelfl.errors import ConfigError
from adelfl.records.summary import MAX_EVALUATIONS
from adelfl.runtime.codec import Codec, find_codec
from adelfl.runtime.server_step import ServerStep
from adelfl.simulation.world import World
from adelfl.strategies.base import Strategy
from adelfl.training.engines import EngineName, LocalWork
from adelfl.training.layers import Layer


@dataclass(frozen=True, eq=False)
class Experiment:
    """One run: data, model, strategy and world."""

    dataset: Dataset
    """Training and test samples."""
    partition: Partition
    """Training samples of each device."""
    model: nn.Module
    """The model at its initial weights; a run trains a copy."""
    layers: tuple[Layer, ...]
    """Layers of the model, input side first."""
    strategy: Strategy
    """Method: deadlines, batch sizes, merge."""
    seed: int
    """Seed of all random numbers of the run."""
    local: LocalWork = field(default_factory=LocalWork)
    """Regularisation and momentum; the number of local iterations is in the strategy's problem."""
    engine: EngineName = "auto"
    """Engine that computes updates: "auto", "fused", "stacked" or "loop"."""
    device: str = "cpu"
    """Torch device."""
    evaluations: int = 50
    """Number of evaluations, evenly over the budget, besides those at its quarters and in its last tenth."""
    world: World | None = None
    """Real behaviour of the devices; by default that of the strategy's problem."""
    oversample: bool = False
    """Whether a batch may be larger than the data of its device, whose samples then repeat. By default, a larger batch
    is cut to the device's data, and takes the time of the smaller batch."""
    server_step: ServerStep | None = None
    """Rule by which the server moves the weights; by default that of the strategy."""
    codec: str | Codec = "none"
    """Encoding of uploads: "none", "half", "top-k[share=0.01]", "qsgd[bits=4]", "terngrad", or a codec of your own. The
    world's upload times are those without a codec, and become shorter in proportion to the size of an upload."""

    def __post_init__(self) -> None:
        whole = isinstance(self.evaluations, int) and not isinstance(self.evaluations, bool)
        if not whole or not 1 <= self.evaluations <= MAX_EVALUATIONS:
            raise ConfigError(
                f"evaluations must be a whole number from 1 to {MAX_EVALUATIONS:,}, not {self.evaluations!r}"
            )
        find_codec(self.codec)
        devices = self.strategy.problem.devices
        if len(self.partition) != devices:
            raise ConfigError(f"the partition has {len(self.partition)} devices, but the fleet has {devices}")
        if self.partition.samples != self.dataset.y_train.size:
            raise ConfigError(
                f"the partition has {self.partition.samples} samples, "
                f"but the training set has {self.dataset.y_train.size}"
            )
        if self.world is not None and self.world.fleet.size != devices:
            raise ConfigError(f"the world has {self.world.fleet.size} devices, but the strategy's fleet has {devices}")
        if self.strategy.problem.layers != len(self.layers):
            raise ConfigError(
                f"the strategy expects {self.strategy.problem.layers} layers, but the model has {len(self.layers)}"
            )
