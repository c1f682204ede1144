"""Give each device the data of one user: a custom partition from a list of arrays.

python examples/own_partition.py
"""

from pathlib import Path
from tempfile import gettempdir

import numpy as np

import adelfl as ad
from adelfl.data import Partition


def users(dataset: ad.Dataset) -> list[np.ndarray]:
    """Return the indices of each user's training samples, here for 20 users with 10 to 105 digits each.

    With your own data: ``[np.flatnonzero(user_of_sample == u) for u in np.unique(user_of_sample)]``.
    """
    sizes = np.arange(10, 110, 5)
    order = np.argsort(dataset.y_train[: sizes.sum()], kind="stable")  # each user has few different digits
    return np.split(order, np.cumsum(sizes)[:-1])


def main() -> None:
    """Save the partition and compare two methods on it, with a validation set held out."""
    dataset, file = ad.load_dataset("digits"), Path(gettempdir()) / "users.npz"
    Partition.of(users(dataset), samples=dataset.y_train.size).save(file)
    changes = [f"data.partition_file={file}", "data.validation=0.2", "fleet.devices=20", "training.depth=0.5"]
    for method in ("adel", "salf"):
        experiment = ad.build_experiment(ad.load_run(None, [*changes, f"strategy.name={method}"]))
        sizes = experiment.partition.sizes
        result = ad.simulate(experiment)
        print(f"{method}: {sizes.min()} to {sizes.max()} samples per user, accuracy {result.final_accuracy:.1%}")


if __name__ == "__main__":
    main()
