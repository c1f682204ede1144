"""Fleets: what is taken, what is refused and with which words."""

import numpy as np
import pytest

from adelfl import ConfigError, Fleet
from adelfl.seeds import rng_for


def test_numbers_are_spread_over_groups():
    fleet = Fleet.of([1.0, 2.0], 0.5, 3)
    assert fleet.size == 6
    assert fleet.upload.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "empty"),
        (([1.0, -2.0],), "compute of device #2"),
        (([1.0, np.nan],), "compute of device #2"),
        ((1.0, -0.1), "upload"),
        ((1.0, np.inf), "upload"),
        ((1.0, 0.0, 0), "count"),
        ((1.0, 0.0, 1.5), "whole"),
        ((1.0, 0.0, 10**9), "at most"),
        (([1.0, 2.0], [0.1, 0.2, 0.3]), "compute"),
        (([1.0, 2.0], 0.0, 1, ["only one"]), "names"),
    ],
)
def test_impossible_fleets_are_refused_by_name(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Fleet.of(*arguments)


def test_sampled_fleets_depend_on_the_seed_alone():
    draw = lambda seed: Fleet.lognormal(50, compute=16.0, sigma=0.5, upload=1.0, upload_sigma=0.1, seed=seed)  # noqa: E731
    assert np.array_equal(draw(1).compute, draw(1).compute)
    assert not np.array_equal(draw(1).compute, draw(2).compute)


def test_csv_gives_the_same_fleet(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("\ufeffname,compute,upload,count\na,4,0.1,2\n\nb,8.5,0,1\n", encoding="utf-8")
    fleet = Fleet.from_csv(path)
    assert (fleet.compute.tolist(), fleet.upload.tolist(), fleet.count.tolist()) == ([4.0, 8.5], [0.1, 0.0], [2, 1])
    assert fleet.names == ("a", "b")


def test_csv_count_is_one_where_it_is_not_given(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("compute,upload\n4,0.1\n8,0\n")
    assert Fleet.from_csv(path).count.tolist() == [1, 1]


def test_csv_upload_is_zero_where_it_is_not_given(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("compute,count\n4,2\n8,1\n")
    assert Fleet.from_csv(path).upload.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'compute' is missing"),
        ("compute,upload\n", "empty"),
        ("upload\n4\n", "'compute' is missing"),
        ("compute,upload,compute\n4,0,8\n", "column 'compute' appears twice"),
        ("compute, compute\n4,8\n", "column 'compute' appears twice"),
        ("compute,upload,colour\n4,0,red\n", "unknown column 'colour'"),
        ("compute,upload\n4,0\nfast,0\n", "row 3, column 'compute': 'fast'"),
        ("compute,upload\n4\n", "row 2 has 1 fields"),
        ("compute,upload\n4,nan\n", "upload of row 2"),
        ("compute,upload,count\n4,0,1000000000\n", "at most"),
    ],
)
def test_bad_csv_is_one_sentence_with_the_row(tmp_path, text, message):
    path = tmp_path / "fleet.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        Fleet.from_csv(path)
    assert str(path) in str(caught.value)


def test_missing_csv_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.csv: no such file"):
        Fleet.from_csv(tmp_path / "none.csv")


def test_named_draws_do_not_depend_on_each_other():
    first = rng_for(7, "latency", 3, 1).random()
    rng_for(7, "data", 0).random(100)
    assert rng_for(7, "latency", 3, 1).random() == first
    names = [("latency", 3, 1), ("latency", 1, 3), ("latency", 31), ("data", 3, 1)]
    assert len({rng_for(7, *name).random() for name in names}) == len(names)
