"""Samples and labels: what is built in, what a user brings, and what is refused."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from adelfl.data import DATASETS, Dataset, load_dataset
from adelfl.errors import ConfigError, MissingExtraError

X, Y = np.zeros((4, 1, 2, 2), dtype=np.float32), np.array([0, 1, 2, 1])


def python(code, *args, **environment):
    """Run code in a fresh interpreter in which warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_digits_is_complete_scaled_and_split_alike_for_every_label():
    digits = load_dataset("digits")
    assert digits.x_train.shape == (1438, 1, 8, 8)
    assert digits.x_test.shape == (359, 1, 8, 8)
    assert digits.classes == len(digits.class_names) == 10
    counts = np.bincount(digits.y_train) + np.bincount(digits.y_test)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as UCI documents its test set
    assert np.all(np.abs(np.bincount(digits.y_test) - 0.2 * counts) < 1.0)
    # 0 … 16 becomes −1 … 1 in steps of 1/8, exactly.
    assert np.array_equal(np.unique(digits.x_train), np.arange(-8, 9) / 8)


def test_digits_is_scikit_learn_s():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    original, ours = datasets.load_digits(), load_dataset("digits")
    images = np.concatenate([ours.x_train, ours.x_test]).reshape(-1, 64) * 8 + 8
    rows = np.column_stack([images, np.concatenate([ours.y_train, ours.y_test])])
    theirs = np.column_stack([original.data, original.target])
    assert np.array_equal(np.unique(rows, axis=0), np.unique(theirs, axis=0))
    assert len(rows) == len(theirs)


def test_digits_needs_no_extra_and_no_torch():
    absent = "sklearn", "pyarrow", "PIL", "huggingface_hub", "torch", "scipy", "matplotlib", "rich"
    code = f"import sys; [sys.modules.__setitem__(m, None) for m in {absent}]\n" + (
        "from adelfl.data import load_dataset\nprint(load_dataset('digits').x_train.shape)"
    )
    done = python(code)
    assert done.stdout == "(1438, 1, 8, 8)\n", done.stderr


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    for split in ("train", "test"):
        (tmp_path / f"{split}-00000-of-00001.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"^pyarrow is not installed; .*'adelfl\[data\]'") as caught:
        load_dataset("mnist", tmp_path, tmp_path / "cache")
    assert (caught.value.package, caught.value.extra) == ("pyarrow", "data")


def test_without_folder_and_without_the_hub_s_client_one_sentence_gives_both_ways_out(monkeypatch):
    monkeypatch.delenv("ADELFL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'adelfl\[data\]'; or name a folder .*ADELFL_DATA"):
        load_dataset("mnist")


@pytest.mark.parametrize("origin", ["data_dir", "ADELFL_DATA"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_missing_folder_is_one_sentence_that_says_what_to_do(tmp_path, monkeypatch, origin, exists):
    # Given a folder, the hub is never asked: its client may be absent.
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    folder = tmp_path if exists else tmp_path / "nowhere"
    if origin == "ADELFL_DATA":
        monkeypatch.setenv("ADELFL_DATA", str(folder))
    with pytest.raises(ConfigError) as caught:
        load_dataset("cifar10", folder if origin == "data_dir" else None)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert origin in message
    assert "cifar10/train-*.parquet" in message
    assert "\n" not in message


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="no data set 'imagenet'; allowed are digits, mnist, cifar10"):
        load_dataset("imagenet")
    assert DATASETS == ("digits", "mnist", "cifar10")


def test_arrays_lists_and_tensors_are_taken_alike():
    floats = torch.arange(16.0, dtype=torch.float64).reshape(4, 4).requires_grad_()
    for x, y in (
        (floats, torch.tensor([0, 1, 2, 1])),
        (floats.tolist(), [0, 1, 2, 1]),
        (np.arange(16, dtype=np.uint8).reshape(4, 4), np.array([0.0, 1.0, 2.0, 1.0])),
        (np.asfortranarray(np.arange(16).reshape(4, 4)), np.array([0, 1, 2, 1], dtype=np.uint8)),
    ):
        data = Dataset.from_arrays(x, y, x, y)
        assert data.x_train.dtype == np.float32
        assert data.y_test.dtype == np.int64
        assert np.array_equal(data.x_train, np.arange(16).reshape(4, 4))
        assert data.y_train.tolist() == [0, 1, 2, 1]
        assert data.classes == 3
        assert data.sample_shape == (4,)


def test_arrays_of_the_right_type_are_not_copied_and_read_only_ones_become_writeable():
    data = Dataset.from_arrays(X, Y, X, Y)
    assert np.shares_memory(data.x_train, X)
    frozen = X.copy()
    frozen.setflags(write=False)
    torch.from_numpy(Dataset.from_arrays(frozen, Y, frozen, Y).x_train)  # torch warns of arrays that are read-only


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": [0, 1, 2]}, r"x_train must have shape \(N, ...\) and y_train shape \(N,\)"),
        ({"x_test": X[:, :, :1]}, "training and test samples must have one shape"),
        ({"x_train": np.zeros(4)}, "x_train must have shape"),
        ({"x_train": X[:0], "y_train": Y[:0]}, "y_train is empty"),
        ({"x_train": X[:, :0], "x_test": X[:, :0]}, "x_train is empty"),
        ({"x_test": np.where(np.arange(4)[:, None] == 2, np.nan, 1.0)}, "x_test holds NaN or infinite"),
        ({"x_train": np.full((4, 1), np.inf)}, "x_train holds NaN or infinite"),
        ({"x_train": np.full((4, 1), 1e300)}, "x_train holds NaN or infinite"),
        ({"y_test": [0, 1, 2, 3], "classes": 3}, "labels y_test must be 0 to 2, not 3"),
        ({"y_test": [0, 1, 2, -1]}, "y_test must be numbered from 0, not -1"),
        ({"y_test": [0, 1, 2, 2**63]}, "y_test must be numbered from 0"),
        ({"y_test": [0, 1, 2, 0.5]}, "y_test must be whole numbers"),
        ({"y_test": np.eye(4)}, r"y_test must be one whole number per sample, shape \(N,\), not shape \(4, 4\)"),
        ({"x_train": [["a"]] * 4}, "x_train must hold real numbers"),
        ({"x_train": [[1], [1, 2], [1], [1]]}, "x_train cannot be read as an array of numbers"),
        ({"x_train": torch.zeros(4, 1, dtype=torch.bfloat16)}, "x_train cannot be read as an array of numbers"),
        ({"class_names": ["a", "b"], "classes": 3}, "class_names must be 3 names, not 2"),
        ({"classes": 1}, "classes must be at least 2"),
    ],
)
def test_wrong_arrays_are_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Dataset.from_arrays(**({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, "name": "mine"} | change))
    assert str(caught.value).startswith("mine: ")


def test_the_constructor_takes_only_the_final_types():
    with pytest.raises(ConfigError, match=r"must be float32 and y_train int64.*from_arrays converts them"):
        Dataset("mine", X.astype(np.float64), Y, X, Y, 3)


class Pairs:
    """A map-style data set."""

    def __init__(self, *pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def test_map_style_data_sets_equal_their_arrays():
    x, y = torch.arange(24.0).reshape(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    tensors = torch.utils.data.TensorDataset
    data = Dataset.from_torch(tensors(x, y), tensors(x[:2], y[:2]), name="mine")
    assert np.array_equal(data.x_train, x.numpy())
    assert np.array_equal(data.y_train, y.numpy())
    assert (data.x_test.shape, data.classes, data.name) == ((2, 1, 2, 2), 3, "mine")
    lists = Dataset.from_torch(Pairs(([0.0, 1.0], 0), ([2.0, 3.0], 1)), Pairs(([4.0, 5.0], np.int64(1))))
    assert lists.x_train.tolist() == [[0.0, 1.0], [2.0, 3.0]]


class Image:
    """What a PIL image is recognised by."""

    def getbands(self):
        return ("L",)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (Pairs(), "train must be a map-style data set with at least one sample"),
        (iter([([1.0], 0)]), "train must be a map-style data set"),
        (Pairs({"image": [1.0], "label": 0}), r"sample 0 must be a pair \(x, y\), not dict"),
        (Pairs(([1.0], 0), ([1.0, 2.0], 0)), r"sample 1 has shape \(2,\)"),
        (Pairs(([1.0], [0, 1])), "2 labels"),
        (Pairs((Image(), 0)), "sample 0 is an image, not a tensor; give the data set a transform"),
        (Pairs(([1.0], "cat")), "label 0 must hold real numbers"),
    ],
)
def test_wrong_map_style_data_sets_are_refused(train, message):
    with pytest.raises(ConfigError, match=message):
        Dataset.from_torch(train, Pairs(([1.0], 0)))


def test_a_data_set_prints_in_one_line():
    assert repr(Dataset.from_arrays(X, Y, X, Y, name="mine")) == "Dataset(name='mine', classes=3, class_names=())"
