"""Defaults that depend on the data set and the model; with them, the oracle trains every built-in pair well."""

from __future__ import annotations

TABLE = "a table"
"""Name in :data:`RATES` of data from a file."""

RATE = 0.1
"""Learning rate for a user's data or model."""

RATES = {
    TABLE: {"mlp": 0.3},
    "digits": {"mlp": 0.3, "cnn": 0.3, "resnet18": 0.1, "transformer": 0.3},
    "mnist": {"mlp": 0.1, "cnn": 0.2, "resnet18": 0.1, "transformer": 0.3},
    "cifar10": {"mlp": 0.1, "cnn": 0.3, "vgg11": 0.05, "vgg13": 0.05, "resnet18": 0.3, "transformer": 0.3},
}
"""Learning rates by data set and model."""

ROUNDS = {"cifar10": {"vgg11": 300, "vgg13": 300, "resnet18": 300, "transformer": 300}}
WIDTHS = {"vgg11": 0.25, "vgg13": 0.25, "resnet18": 0.125}  # a run takes minutes on a CPU
