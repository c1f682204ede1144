"""Who holds which samples: nothing lost, nothing shared without need, and label shares as Dirichlet's law says."""

import itertools
import pickle
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adelfl.data import Partition, dirichlet, iid, split_validation
from adelfl.errors import ConfigError
from adelfl.seeds import rng_for


def hsu(y, devices, alpha, seed, min_size=1):
    """Dirichlet in Hsu's notation, Dir(α p) with p adding up to 1."""
    return dirichlet(y, devices, alpha / np.unique(y).size, seed, min_size)


SE = 4.0  # every Monte Carlo tolerance below, in standard errors
CLASSES = 10


def labels(samples, classes=CLASSES):
    return np.arange(samples) % classes


DEALERS = {
    "iid": lambda y, devices, seed, min_size: iid(y, devices, seed, min_size=min_size),
    "dirichlet, small alpha": lambda y, devices, seed, min_size: hsu(y, devices, 0.05, seed, min_size),
    "dirichlet, large alpha": lambda y, devices, seed, min_size: hsu(y, devices, 100.0, seed, min_size),
}


@pytest.fixture(params=DEALERS, ids=lambda name: name.replace(", ", "-").replace(" ", "-"))
def deal(request):
    return DEALERS[request.param]


@pytest.mark.parametrize("devices", [1, 2, 7, 300])
def test_every_sample_is_used_exactly_once(deal, devices):
    partition = deal(labels(300), devices, 3, 1)
    assert len(partition) == devices
    assert np.array_equal(np.sort(partition.indices), np.arange(300))
    assert np.ptp(partition.sizes) <= 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(DEALERS)),
    y=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    devices=st.integers(1, 200),
    min_size=st.integers(1, 60),
    seed=st.integers(0, 2**32),
)
def test_sharing_uses_every_sample_equally_often_and_no_device_holds_one_twice(name, y, devices, min_size, seed):
    min_size = min(min_size, len(y))
    partition = DEALERS[name](y, devices, seed, min_size)
    assert len(partition) == devices
    assert partition.sizes.min() >= min_size
    assert all(np.unique(part).size == part.size for part in partition)
    groups = -(-devices // (len(y) // min_size))
    assert np.all(np.bincount(partition.indices, minlength=len(y)) == groups)


def test_a_hundred_thousand_devices_share_sixty_thousand_samples(deal):
    partition = deal(labels(60_000), 100_000, 0, 32)
    assert len(partition) == 100_000
    assert partition.sizes.min() >= 32
    uses = np.bincount(partition.indices, minlength=60_000)
    assert uses.min() == uses.max() == 54  # 60,000 // 32 = 1,875 devices at most in a group


def test_same_seed_same_partition_other_seed_another(deal):
    y = labels(500)
    assert deal(y, 20, 1, 5) == deal(y, 20, 1, 5)
    assert deal(y, 20, 1, 5) != deal(y, 20, 2, 5)


def test_groups_that_share_samples_are_dealt_independently(deal):
    partition = deal(labels(100), 20, 0, 10)
    assert not np.array_equal(partition.indices[:100], partition.indices[100:])


def test_a_device_s_samples_come_in_random_order(deal):
    # Samples 0 … 999 in one hand: the rank correlation of position and index has standard error 1 / √999.
    (hand,) = deal(labels(1000), 1, 0, 1)
    assert abs(np.corrcoef(np.arange(1000), hand)[0, 1]) <= SE / np.sqrt(999)


def chi_square(partition, y):
    """Pearson's statistic of independence between device and label."""
    counts = partition.label_counts(y)
    expected = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("devices", [2, 30, 500])
@pytest.mark.parametrize("alpha", [None, 1e10], ids=["iid", "dirichlet"])
def test_large_alpha_approaches_iid(alpha, devices):
    # With both margins fixed, Pearson's statistic of a random deal has mean (U−1)(C−1) N/(N−1), variance about
    # 2(U−1)(C−1). α adds about n/α of the mean: 10⁻⁶ at most.
    samples, seeds = 30_000, 20
    y = labels(samples)
    deals = (iid(y, devices, s) if alpha is None else hsu(y, devices, alpha, s) for s in range(seeds))
    measured = np.mean([chi_square(partition, y) for partition in deals])
    freedom = (devices - 1) * (CLASSES - 1)
    assert abs(measured - freedom * samples / (samples - 1)) <= SE * np.sqrt(2.0 * freedom / seeds)


@pytest.mark.parametrize("alpha", [0.5, 5.0, 50.0])
def test_label_shares_spread_as_dirichlet_s_law_says(alpha):
    # n draws from q ~ Dir(α p): Var(share) = p(1−p) (1/n + (1−1/n)/(α+1)). Dealing without replacement pins the
    # sum over the devices, which takes 1/U of the variance. The standard error is taken over seeds.
    devices, n, p = 200, 50, 1.0 / CLASSES
    y = labels(devices * n)
    spread = [np.mean((hsu(y, devices, alpha, s).label_counts(y) / n - p) ** 2) for s in range(30)]
    law = p * (1 - p) * (1 / n + (1 - 1 / n) / (alpha + 1))
    assert abs(np.mean(spread) - law * (1 - 1 / devices)) <= SE * np.std(spread, ddof=1) / np.sqrt(len(spread))


def test_expected_shares_are_those_of_the_training_set():
    y = np.repeat([0, 1, 2], [600, 300, 100])
    shares = np.array([hsu(y, 10, 0.3, s).label_counts(y)[0] / 100 for s in range(300)])
    error = shares.std(axis=0, ddof=1) / np.sqrt(len(shares))
    assert np.all(np.abs(shares.mean(axis=0) - [0.6, 0.3, 0.1]) <= SE * error)


@pytest.mark.parametrize("devices", [5, 10, 30, 1000])
def test_vanishing_alpha_leaves_a_device_with_one_label_except_where_a_label_runs_out(devices):
    # A label runs out once, and cuts at most one device short when it does, which then goes on to one label more.
    y = labels(6000)
    held = (hsu(y, devices, 1e-9, 0).label_counts(y) > 0).sum(axis=1)
    assert (held - 1).sum() <= CLASSES


def test_skew_falls_with_alpha():
    y = labels(6000)
    top = [hsu(y, 60, alpha, 0).label_counts(y).max(axis=1).mean() for alpha in (0.01, 0.1, 1.0, 10.0, 1000.0)]
    assert all(a > b for a, b in itertools.pairwise(top))


def test_a_device_s_number_does_not_tell_who_is_served_last():
    # Few devices and a small α, so that labels often run out: first half against second half, over 300 seeds.
    y = labels(1000)
    top = np.array([hsu(y, 20, 0.3, s).label_counts(y).max(axis=1) for s in range(300)])
    gap = top[:, :10].mean(axis=1) - top[:, 10:].mean(axis=1)
    assert abs(gap.mean()) <= SE * gap.std(ddof=1) / np.sqrt(gap.size)


def test_unused_labels_do_not_matter():
    y = labels(400, classes=4)
    assert hsu(y, 8, 0.5, 0) == hsu(y * 100, 8, 0.5, 0)


def test_label_counts_count_labels():
    partition = Partition.of([[0, 1, 2], [3]], samples=4)
    assert partition.label_counts([1, 0, 1, 2]).tolist() == [[1, 2, 0], [0, 0, 1]]
    assert partition.sizes.tolist() == [3, 1]
    assert [part.tolist() for part in partition] == [[0, 1, 2], [3]]
    assert partition[-1].tolist() == [3]


def test_there_is_no_device_beyond_the_last():
    with pytest.raises(IndexError, match="no device 2; the partition has 2"):
        Partition.of([[0], [1]], samples=2)[2]
    assert Partition.of([[0]], samples=1) != "a partition"


@pytest.mark.parametrize(
    ("indices", "offsets", "message"),
    [
        (np.zeros(2), np.array([0, 2]), "indices must be an int64 vector, not float64"),
        (
            np.zeros(2, np.int64),
            np.array([0, 1]),
            "offsets must run from 0 to the number of indices, 2",
        ),
        (np.zeros(2, np.int64), np.array([0, 2, 1, 2]), "device #2 holds no samples"),
    ],
)
def test_wrong_offsets_are_refused(indices, offsets, message):
    with pytest.raises(ConfigError, match=message):
        Partition(indices, offsets, samples=2)


def test_saved_partition_equals_reloaded(deal, tmp_path):
    partition = deal(labels(100), 30, 4, 5)
    partition.save(tmp_path / "new" / "partition.npz")
    assert Partition.load(tmp_path / "new" / "partition.npz") == partition
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["partition.npz"]


def test_a_damaged_or_foreign_file_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "partition.npz"
    iid(labels(100), 5, 0).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"partition\.npz: cannot be read as a partition"):
        Partition.load(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(ConfigError, match="cannot be read as a partition"):
        Partition.load(path)
    with pytest.raises(ConfigError, match="cannot be read as a partition"):
        Partition.load(tmp_path / "absent.npz")


def test_pickled_arrays_are_never_loaded(tmp_path):
    path = tmp_path / "partition.npz"
    np.savez(path, indices=np.array([{"a": 1}], dtype=object), offsets=np.array([0, 1]), samples=np.array(1))
    with (
        patch.object(pickle, "load", side_effect=AssertionError),
        pytest.raises(ConfigError, match="cannot be read as a partition"),
    ):
        Partition.load(path)


def test_a_partition_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        iid(labels(10), 2, 0).save(tmp_path / "file" / "partition.npz")


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([[0, 4]], "device #1 holds sample 4; the training set has 0 to 3"),
        ([[0], [1, 2, -1]], "device #2 holds sample -1"),
        ([[0], []], "device #2 holds no samples"),
        ([], "at least one device"),
        ([[0.5]], "device #1 must hold a list of whole numbers"),
        ([0, 1], "device #1 must hold a list of whole numbers"),
        ([["a"]], "device #1 must hold real numbers"),
    ],
)
def test_a_wrong_partition_is_refused_by_name(devices, message):
    with pytest.raises(ConfigError, match=message):
        Partition.of(devices, samples=4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(labels(10), 0, 0), "devices must be at least 1, not 0"),
        (lambda: iid(labels(10), 2, 0, min_size=11), "min_size must be 1 to 10"),
        (lambda: iid(labels(10), 2, 0, min_size=0), "min_size must be 1 to 10"),
        (lambda: iid([], 2, 0), "labels is empty"),
        (lambda: iid([[1, 2]], 2, 0), r"shape \(N,\), not shape \(1, 2\)"),
        (lambda: iid([0.5], 2, 0), "labels must be whole numbers"),
        (lambda: iid([-1], 2, 0), "numbered from 0, not -1"),
        (lambda: dirichlet(labels(10), 2, 0.0, 0), "alpha must be"),
        (lambda: dirichlet(labels(10), 2, float("nan"), 0), "alpha must be"),
        (lambda: dirichlet(labels(10), 2, float("inf"), 0), "use iid"),
        (lambda: split_validation(labels(10), 1.0, 0), "fraction must lie between 0 and 1"),
        (lambda: split_validation(labels(10), 0.01, 0), "empty validation set"),
        (lambda: iid(labels(10), 2, 0).label_counts(labels(9)), "labels must be 10, one per training sample, not 9"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(y=st.lists(st.integers(0, 4), min_size=4, max_size=80), fraction=st.floats(0.05, 0.95), seed=st.integers(0, 9))
def test_validation_split_is_stratified_and_loses_nothing(y, fraction, seed):
    y = np.array(y)
    counts = np.bincount(y, minlength=5)
    try:
        train, held_out = split_validation(y, fraction, seed)
    except ConfigError:
        assert round(fraction * y.size) == 0 or counts.max() == 1
        return
    assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(y.size))
    taken = np.bincount(y[held_out], minlength=5)
    assert np.all(np.abs(taken - fraction * counts) <= 1.0)
    assert np.all((counts == 0) | (taken < counts))
    if (counts > 2 / (1 - fraction)).all():
        assert held_out.size == round(fraction * y.size)


def test_validation_split_repeats_by_seed():
    y = rng_for(0, "test").integers(0, 10, 1000)
    first, again, other = (split_validation(y, 0.1, seed) for seed in (1, 1, 2))
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[1], other[1])
