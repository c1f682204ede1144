"""Data sets and their partition among devices, as numpy arrays."""

from adelfl.data.datasets import DATASETS, Dataset, load_dataset
from adelfl.data.partition import Partition, dirichlet, iid, split_validation

__all__ = ["DATASETS", "Dataset", "Partition", "dirichlet", "iid", "load_dataset", "split_validation"]
