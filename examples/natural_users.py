"""Devices that hold what their users made: a partition of your own, from a list of arrays to a comparison.

python examples/natural_users.py
"""

from pathlib import Path
from tempfile import gettempdir

import numpy as np

import adelfl as ad
from adelfl.data import Partition


def users(dataset: ad.Dataset) -> list[np.ndarray]:
    """Return the positions of each user's training samples; here 20 users, who wrote 10 to 105 digits each.

    With data of your own: ``[np.flatnonzero(user_of_sample == u) for u in np.unique(user_of_sample)]``.
    """
    sizes = np.arange(10, 110, 5)
    order = np.argsort(dataset.y_train[: sizes.sum()], kind="stable")  # a user writes few different digits
    return np.split(order, np.cumsum(sizes)[:-1])


def main() -> None:
    """Save the partition, and use it beside a validation set."""
    dataset, file = ad.load_dataset("digits"), Path(gettempdir()) / "users.npz"
    Partition.of(users(dataset), samples=dataset.y_train.size).save(file)
    changes = [f"data.partition_file={file}", "data.validation=0.2", "fleet.devices=20", "training.depth=0.5"]
    for method in ("adel", "salf"):
        experiment = ad.build_experiment(ad.load_run(None, [*changes, f"strategy.name={method}"]))
        sizes = experiment.partition.sizes
        result = ad.simulate(experiment)
        print(f"{method}: {sizes.min()} to {sizes.max()} samples a user, accuracy {result.final_accuracy:.1%}")


if __name__ == "__main__":
    main()
