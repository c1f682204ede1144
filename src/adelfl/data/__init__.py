"""What the devices train on, and who holds which samples. numpy only: making tensors is the caller's work."""

from adelfl.data.datasets import DATASETS, Dataset, load_dataset
from adelfl.data.partition import Partition, dirichlet, iid, split_validation

__all__ = ["DATASETS", "Dataset", "Partition", "dirichlet", "iid", "load_dataset", "split_validation"]
