"""Samples that were bytes once are kept as bytes too: who is, what comes back, and that no run notices."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from adelfl.data import Dataset, load_dataset
from adelfl.learning import codes
from adelfl.learning.codes import find_codes
from adelfl.learning.work import Samples
from adelfl.seeds import rng_for
from support.small_worlds import EVERY_STRATEGY, dataset_of, experiment_of, furthest, run, same_bits


@pytest.fixture(autouse=True)
def small_samples_too(monkeypatch):
    monkeypatch.setattr(codes, "_FIT_INTO_CACHE", 0)


def pixels(samples=60, shape=(1, 6, 6), levels=256):
    return rng_for(5, "pixels").integers(0, levels, (samples, *shape), dtype=np.uint8)


def scaled(how):
    """All pixels of 0 … 255, as people scale them."""
    p = pixels()
    return p, {
        "not at all": lambda: p.astype(np.float32),
        "0 to 1": lambda: p.astype(np.float32) / 255,
        "-1 to 1": lambda: p.astype(np.float32) / np.float32(127.5) - 1,
        "mean and deviation": lambda: (p.astype(np.float32) / 255 - np.float32(0.1307)) / np.float32(0.3081),
        "in double precision": lambda: ((p / 255 - 0.4734) / 0.2515).astype(np.float32),
    }[how]()


@pytest.mark.parametrize("how", ["not at all", "0 to 1", "-1 to 1", "mean and deviation", "in double precision"])
def test_bytes_are_found_however_they_were_scaled_and_come_back_up_to_rounding(how):
    p, x = scaled(how)
    found = find_codes(x)
    assert np.array_equal(found.bytes.numpy(), p.reshape(len(p), -1))
    index = torch.tensor([3, 59, 3, 0])
    back = found.rows(index).numpy()
    assert back.dtype == np.float32
    # An ulp of the largest number for whoever scaled them, one for us.
    np.testing.assert_allclose(back, x.reshape(len(x), -1)[index], rtol=0, atol=2.0**-22 * np.abs(x).max())


def test_few_levels_are_bytes_too():
    x = load_dataset("digits").x_train
    found = find_codes(x)
    assert int(found.bytes.max()) == 16
    assert np.array_equal(found.rows(torch.arange(len(x))).numpy(), x.reshape(len(x), -1))


def off_grid():
    x = np.repeat(pixels().astype(np.float32), 100, axis=0)  # so many that only every other row is looked at first
    x[1, 0, 0, 0] += 0.01
    return x


def between_levels():
    return np.arange(300, dtype=np.float32).reshape(50, 6)


@pytest.mark.parametrize(
    "x",
    [
        dataset_of((1, 6, 6)).x_train,
        (pixels(shape=(2, 6, 6)) / 255 - np.array([0.49, 0.45]).reshape(2, 1, 1)).astype(np.float32),
        off_grid(),
        between_levels(),
        np.full((9, 4), 0.5, dtype=np.float32),
        np.array([[0.0, 1.0], [0.1, 0.4]], dtype=np.float32) ** 3,
        pixels().astype(np.float64),
    ],
    ids=["Gaussian", "scaled by channel", "one number off", "too many levels", "constant", "unequal steps", "double"],
)
def test_other_numbers_are_left_as_they_are(x):
    assert find_codes(x) is None


def test_samples_that_fit_into_a_cache_are_left_as_they_are(monkeypatch):
    x = scaled("-1 to 1")[1]
    monkeypatch.setattr(codes, "_FIT_INTO_CACHE", x.nbytes)
    assert find_codes(x) is None


def test_what_was_found_is_remembered_until_the_array_is_gone():
    x = scaled("-1 to 1")[1]
    known = len(codes._known)
    assert find_codes(x) is find_codes(x)
    assert len(codes._known) == known + 1
    del x
    gc.collect()
    assert len(codes._known) == known


@pytest.mark.parametrize("change", ["a pixel", "two rows swapped", "no bytes any more"])
def test_an_array_that_was_changed_in_place_is_looked_at_again(change):
    x = scaled("-1 to 1")[1]
    find_codes(x)
    if change == "a pixel":
        x[17, 0, 3, 3] = -x[17, 0, 3, 3]
    elif change == "two rows swapped":
        x[[2, 40]] = x[[40, 2]]
    else:
        x[17, 0, 3, 3] += 0.001
    found = find_codes(x)
    if change == "no bytes any more":
        assert found is None
    else:
        back = found.rows(torch.arange(len(x))).numpy()
        np.testing.assert_allclose(back, x.reshape(len(x), -1), rtol=0, atol=2.0**-22)


def test_only_what_is_in_main_memory_and_comes_from_an_array_is_kept_as_bytes():
    x = scaled("-1 to 1")[1]
    y = np.zeros(len(x), dtype=np.int64)
    plain = Samples(torch.from_numpy(x), torch.from_numpy(y))
    assert plain.inputs_from_bytes() == plain.inputs
    ours = Samples.of(x, y)
    assert ours.inputs_from_bytes() != ours.inputs
    assert ours.inputs_from_bytes()(torch.tensor([1, 2])).shape == (2, 1, 6, 6)


# -- runs


def pictures(experiment):
    """The same experiment with pictures of 8 bits in place of Gaussian samples."""
    old = experiment.dataset
    bright = [np.clip(128 + 50 * x, 0, 255).astype(np.uint8) for x in (old.x_train, old.x_test)]
    x = [p.astype(np.float32) / np.float32(127.5) - 1 for p in bright]
    return replace(experiment, dataset=Dataset.from_arrays(x[0], old.y_train, x[1], old.y_test, classes=old.classes))


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_a_run_from_bytes_is_the_run_that_the_loop_computes(strategy, monkeypatch):
    taken = []
    rows = codes.Codes.rows
    monkeypatch.setattr(codes.Codes, "rows", lambda self, index: taken.append(index) or rows(self, index))
    loop = run(pictures(experiment_of(strategy, engine="loop")))
    assert not taken
    fused = run(pictures(experiment_of(strategy, engine="fused")))
    assert taken
    assert furthest(loop.weights, fused.weights) < 1e-5


def test_convolutions_take_their_pictures_as_they_are(monkeypatch):
    monkeypatch.setattr(codes.Codes, "rows", lambda self, index: pytest.fail("rows came from bytes"))
    run(pictures(experiment_of("salf", "cnn", engine="fused")))


def test_a_run_sees_what_was_done_to_its_pictures_since_the_last_one():
    experiment = pictures(experiment_of("salf", engine="fused"))
    before = run(experiment)
    assert same_bits(before.weights, run(experiment).weights)
    experiment.dataset.x_train[:] *= -1
    turned = run(experiment)
    assert furthest(before.weights, turned.weights) > 1e-3
    assert furthest(run(replace(experiment, engine="loop")).weights, turned.weights) < 1e-5
