"""Defaults that depend on the data set and the model: with them, the oracle trains every built-in pair."""

from __future__ import annotations

from dataclasses import dataclass

TABLE = "a table"
"""Stands for data from a file, in place of the name of a data set."""

RATES = {
    TABLE: {"mlp": 0.3},
    "digits": {"mlp": 0.3, "cnn": 0.3, "resnet18": 0.1, "transformer": 0.3},
    "mnist": {"mlp": 0.1, "cnn": 0.2, "resnet18": 0.1, "transformer": 0.3},
    "cifar10": {"mlp": 0.1, "cnn": 0.3, "vgg11": 0.05, "vgg13": 0.05, "resnet18": 0.3, "transformer": 0.3},
}
"""Learning rates by data set and model."""
_ROUNDS = {"cifar10": {"vgg11": 300, "vgg13": 300, "resnet18": 300, "transformer": 300}}
_WIDTHS = {"vgg11": 0.25, "vgg13": 0.25, "resnet18": 0.125}  # a run takes minutes on a CPU


@dataclass(frozen=True)
class Defaults:
    """Learning rate, rounds and width of a data set and a model; without arguments, for those of the user."""

    rate: float = 0.1
    rounds: int | None = None
    """None for the default of all models; likewise ``width``."""
    width: float | None = None

    @classmethod
    def of(cls, data: str, model: str) -> Defaults:
        """Return the defaults of a built-in data set and model, by their names."""
        rate = RATES.get(data, {}).get(model, cls.rate)
        return cls(rate, _ROUNDS.get(data, {}).get(model), _WIDTHS.get(model))
