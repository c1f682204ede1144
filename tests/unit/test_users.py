"""Data of users: a table becomes samples, labels and a device per user."""

import os
from pathlib import Path

import numpy as np
import pytest

from adelfl.config.build import build_data, build_experiment
from adelfl.config.run import RunFile, load_run
from adelfl.data import by_user, read_users, users_dataset
from adelfl.errors import ConfigError
from adelfl.seeds import rng_for
from adelfl.simulation import simulate
from support.small_worlds import typed

WISDM = Path(os.environ.get("ADELFL_DATA", "nowhere")) / "users" / "wisdm.csv"
USERS = {"ann": 20, "bob": 5, "cyd": 1, "dan": 40}


def table(tmp_path, changes=(), name="table.csv"):
    """Write a table of four users with three features, one of them constant, and the labels walk and sit."""
    rng, rows = rng_for(0, "table"), []
    for user, count in USERS.items():
        for k in range(count):
            label = ("sit", "walk")[k % 2]
            rows.append([user, f"{rng.normal(k % 2):.3f}", "7", f"{10 * rng.normal():.2f}", label])
    for row, column, value in changes:
        rows[row][column] = value
    path = tmp_path / name
    path.write_text("\n".join(",".join(row) for row in [["user", "a", "flat", "b", "class"], *rows]) + "\n")
    return path


def keys(path, *more):
    return [f"data.file='{path}'", "data.user_column=user", "data.label_column=class", *more]


def test_every_user_is_a_device_with_their_own_samples(tmp_path):
    experiment = build_experiment(load_run(None, keys(table(tmp_path), "strategy.name=salf", "training.rounds=3")))
    assert experiment.partition.sizes.tolist() == [16, 4, 1, 32]  # four fifths, and one of a single sample
    assert experiment.strategy.problem.devices == 4
    assert experiment.dataset.class_names == ("sit", "walk")
    assert simulate(experiment).rounds == 3


def test_a_fifth_of_every_user_is_held_out_for_tests_and_the_seed_decides_which(tmp_path):
    path = table(tmp_path)
    one, again, other = (read_users(path, "user", "class", seed=seed) for seed in (0, 0, 1))
    assert one.y_test.size == 4 + 1 + 0 + 8
    assert np.array_equal(one.x_test, again.x_test)
    assert not np.array_equal(one.x_test, other.x_test)
    assert not {row.tobytes() for row in one.x_test} & {row.tobytes() for row in one.x_train}


def test_with_a_split_by_users_no_user_is_in_both_sets():
    users = np.repeat(np.arange(10), 3)
    data = users_dataset(users[:, None], [0, 1] * 15, users, split="users", test_share=0.3)  # a feature tells the user
    assert data.y_test.size == 9
    assert np.unique(data.users).tolist() == list(range(7))
    assert not set(data.x_test[:, 0].tolist()) & set(data.x_train[:, 0].tolist())


def test_features_are_standardised_by_the_training_samples_and_constant_ones_left_out(tmp_path):
    data = read_users(table(tmp_path), "user", "class")
    assert data.sample_shape == (2,)
    assert np.allclose(data.x_train.mean(axis=0), 0.0, atol=1e-6)
    assert np.allclose(data.x_train.std(axis=0), 1.0, atol=1e-5)


@pytest.mark.parametrize("missing", ["", "?", "NaN", "NA"])
def test_a_missing_feature_is_the_mean_of_its_column(tmp_path, missing):
    data = read_users(table(tmp_path, [(row, 1, missing) for row in range(5)]), "user", "class")
    zeros = sum(int((x[:, 0] == 0.0).sum()) for x in (data.x_train, data.x_test))
    assert zeros == 5
    assert data.x_train[:, 0].mean() == pytest.approx(0.0, abs=1e-6)


def test_labels_that_are_numbers_are_sorted_as_numbers():
    data = users_dataset(np.eye(6), [10, 2, 10, 2, 1, 1], [1, 1, 1, 2, 2, 2], test_share=0.4)
    assert data.class_names == ("1", "2", "10")


def test_a_number_is_one_label_however_it_is_written_and_long_numbers_differ():
    data = users_dataset(np.eye(6), ["2.0", "1", "1.0", "2", "01", "1e0"], [2**53, 2**53 + 1] * 3, test_share=0.4)
    assert data.class_names == ("1", "2.0")  # before, five classes in an order that depended on Python's hashes
    assert np.unique(data.users).size == 2


def test_parquet_holds_the_same_table(tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    path = table(tmp_path, [(0, 1, "")])
    pandas.read_csv(path).to_parquet(tmp_path / "table.parquet")
    one, other = (read_users(p, "user", "class") for p in (path, tmp_path / "table.parquet"))
    assert np.array_equal(one.x_train, other.x_train)
    assert np.array_equal(one.users, other.users)


def test_validation_holds_out_samples_of_every_user_who_has_several(tmp_path):
    dataset, partition = build_data(load_run(None, keys(table(tmp_path), "data.validation=0.25")))
    assert len(partition) == 4
    assert partition.sizes.min() == 1
    assert partition == by_user(dataset.users)
    assert dataset.y_test.size == pytest.approx(0.25 * 53, abs=2)


def test_users_may_be_mixed_on_request(tmp_path):
    _, partition = build_data(load_run(None, keys(table(tmp_path), "data.partition=iid", "fleet.devices=3")))
    assert len(partition) == 3


MISTAKES = {
    "no such column": (("data.user_column=person",), (), r"no column 'person' \(data.user_column\); there are user, a"),
    "no label column": (("data.label_column=b", "data.user_column=b"), (), "must be two columns"),
    "text": ((), [(3, 1, "fast")], "row 5, column 'a': 'fast' is not a number; encode .* data.skip_columns"),
    "no label": ((), [(2, 4, "")], "row 4 has no label"),
    "no user": ((), [(2, 0, "?")], "row 4 has no user"),
    "infinite": ((), [(2, 1, "inf")], "row 4, feature 1 is infinite"),
    "nothing varies": (("data.skip_columns=['a', 'b']",), (), "every feature is constant"),
    "no features": (("data.skip_columns=['a', 'b', 'flat']",), (), "no column of features"),
    "other number of devices": (
        ("fleet.devices=5",),
        (),
        "to 4 devices, but the fleet has 5 devices; set fleet.devices",
    ),
    "few listed": (("fleet.file='fleet.csv'",), (), "distributes 53 samples to 4 devices, but the fleet has 2 devices"),
}


@pytest.mark.parametrize(("more", "changes", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_table_is_one_sentence(tmp_path, monkeypatch, more, changes, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.csv").write_text("compute\n10\n20\n")
    with pytest.raises(ConfigError, match=sentence) as error:
        build_data(load_run(None, keys(table(tmp_path, changes), *more)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("users", "split", "sentence"),
    [((0, 0, 1, 1), "users", "needs three or more users"), ((0, 1, 2, 3), "within", "or use split 'users'")],
)
def test_advice_about_an_empty_test_set_helps(users, split, sentence):
    with pytest.raises(ConfigError, match=sentence):
        users_dataset(np.eye(4), [0, 1, 0, 1], users, split=split)


def test_what_a_file_needs_and_what_needs_a_file(tmp_path):
    with pytest.raises(ConfigError, match=r"set data\.user_column and data\.label_column"):
        build_data(load_run(None, [f"data.file='{table(tmp_path)}'"]))
    with pytest.raises(ConfigError, match="digits has no users"):
        build_data(load_run(None, ["data.partition=users"]))


def test_a_changed_table_is_noticed(tmp_path):
    path = table(tmp_path)
    said = load_run(None, keys(path))
    before = said.fingerprints()
    table(tmp_path, [(0, 1, "3.0")])
    assert said.fingerprints() != before
    assert RunFile.model_validate_json(said.model_dump_json()) == said


def test_compare_runs_on_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sets = [word for key in keys(table(tmp_path), "training.rounds=3") for word in ("--set", key)]
    done = typed("compare", "--strategies=adel,salf", "--seeds=1", *sets)
    assert done.code == 0, done.err
    assert "compare-table-mlp" in done.out


@pytest.mark.skipif(not WISDM.is_file(), reason="needs users/wisdm.csv in $ADELFL_DATA")
def test_people_of_wisdm_are_36_devices():
    dataset, partition = build_data(load_run(None, keys(WISDM)))
    assert len(partition) == 36
    assert dataset.class_names == ("Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking")
    assert dataset.y_train.size + dataset.y_test.size == 5418
    assert dataset.sample_shape == (42,)  # of 43 features, xavg is 0 everywhere
