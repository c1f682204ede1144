"""The real MNIST and CIFAR-10, where their parquet files are at hand."""

import os
from pathlib import Path

import numpy as np
import pytest

from adelfl.data import dirichlet, load_dataset

FOLDER = Path(os.environ.get("ADELFL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


@pytest.fixture(scope="module")
def load(pytestconfig, tmp_path_factory):
    """Load a set, with a cache that lasts from one run of the tests to the next if pytest keeps one."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adelfl[data]'")
    pytest.importorskip("PIL", reason="pillow is not installed: pip install 'adelfl[data]'")
    kept = getattr(pytestconfig, "cache", None)
    cache = kept.mkdir("adelfl-data") if kept else tmp_path_factory.mktemp("cache")

    def load(name):
        if not (FOLDER / name).is_dir():
            pytest.skip(f"{FOLDER / name} is absent; name the folder of parquet files in ADELFL_DATA")
        return load_dataset(name, FOLDER, cache)

    return load


def test_mnist_is_the_complete_set(load):
    mnist = load("mnist")
    assert mnist.x_train.shape == (60_000, 1, 28, 28)
    assert mnist.x_test.shape == (10_000, 1, 28, 28)
    # Label counts, and the mean and standard deviation that everybody normalises MNIST with: 0.1307, 0.3081.
    assert np.bincount(mnist.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (mnist.x_train.mean(dtype=np.float64) + 1) / 2 == pytest.approx(0.1307, abs=5e-5)
    assert mnist.x_train.std(dtype=np.float64) / 2 == pytest.approx(0.3081, abs=5e-5)
    assert (mnist.x_train.min(), mnist.x_train.max()) == (-1.0, 1.0)


def test_cifar10_is_the_complete_set_in_the_order_red_green_blue(load):
    cifar = load("cifar10")
    assert cifar.x_train.shape == (50_000, 3, 32, 32)
    assert cifar.x_test.shape == (10_000, 3, 32, 32)
    assert np.bincount(cifar.y_train).tolist() == [5000] * 10
    assert np.bincount(cifar.y_test).tolist() == [1000] * 10
    # The channel means that everybody normalises CIFAR-10 with; one JPEG step moves them by less than a grey level.
    means = (cifar.x_train.mean(axis=(0, 2, 3), dtype=np.float64) + 1) / 2
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1 / 255)


def test_real_labels_partition_among_real_numbers_of_devices(load):
    y = load("mnist").y_train
    for devices in (5, 30, 1000):
        partition = dirichlet(y, devices, 0.5, 0, min_size=32)
        counts = partition.label_counts(y)
        assert np.array_equal(counts.sum(axis=0), np.bincount(y))
        assert np.ptp(partition.sizes) <= 1
