"""Data sets and their partition among devices, as numpy arrays."""

from adelfl.data.datasets import DATASETS, Dataset, load_dataset
from adelfl.data.partition import Partition, by_user, dirichlet, iid, split_validation
from adelfl.data.tables import read_users, users_dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "Partition",
    "by_user",
    "dirichlet",
    "iid",
    "load_dataset",
    "read_users",
    "split_validation",
    "users_dataset",
]
