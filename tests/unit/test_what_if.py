"""What-if: every row is a plan of its own; the command line shows the rows as a table, JSON or a picture."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from adelfl import Fleet, Problem
from adelfl.cli.plan import sweep_values
from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.planner import what_if as default_what_if
from adelfl.planner.paper import needed_deadlines
from adelfl.planner.solve import without_slowest
from support.problems import BY_HAND, PAPER, plan
from support.small_worlds import typed

what_if = partial(default_what_if, solve=plan)
FILE = """
[problem]
rounds = 20
budget = 60.0
layers = 3
[[device]]
compute = 16.0
upload = 0.1
count = 30
[[device]]
name = "slow"
compute = 2.0
upload = 0.5
count = 2
"""


@pytest.mark.parametrize("name", BY_HAND)
def test_each_row_is_the_plan_of_its_own_budget(name):
    problem = BY_HAND[name]
    rows = what_if(problem, "budget", [problem.budget, 2 * problem.budget])
    for row in rows:
        alone = plan(replace(problem, budget=row.value))
        assert (row.excess, row.bound, row.uniform_excess) == (alone.excess, alone.bound, alone.uniform.excess)
        assert row.depth == pytest.approx(alone.schedule.expected_depth().mean() / problem.layers)
        assert row.first_layer_empty == alone.first_layer_empty[1]
    assert rows[1].excess < rows[0].excess


def test_a_budget_without_a_plan_is_a_row_with_the_reason():
    short, long = what_if(PAPER, "budget", [1.0, 300.0])
    with pytest.raises(InfeasibleBudgetError) as error:
        plan(replace(PAPER, budget=1.0))
    assert (short.infeasible, short.excess) == (error.value.binding, None)
    assert long.infeasible is None


def test_rounds_are_planned_by_the_given_solver():
    (row,) = default_what_if(PAPER, "rounds", [6.0], lambda q: plan(q, method="trust-region"))
    assert row.excess == plan(replace(PAPER, rounds=6), method="trust-region").excess


def test_the_slowest_devices_need_the_longest_deadlines():
    problem = Problem(Fleet.lognormal(60, compute=16, sigma=0.8, upload=0.1, upload_sigma=0.6, seed=0), 5, 100, 110.0)
    left = without_slowest(problem, 7).fleet
    needed = needed_deadlines(problem, 60)
    assert sorted(left.compute) == sorted(problem.fleet.compute[np.argsort(needed)[:53]])


def test_devices_leave_a_group_one_by_one_with_their_noise():
    fleet = Fleet.of([16.0, 2.0, 9.0], [0.1, 0.5, 0.1], [4, 3, 2], ["a", "b", "c"])
    constants = replace(PAPER.constants, sigma2=(1.0, 2.0, 3.0))
    problem = Problem(fleet, 3, 10, 60.0, constants=constants, cohort=8)
    some, many = without_slowest(problem, 2), without_slowest(problem, 4)
    assert (some.fleet.count.tolist(), some.cohort) == ([4, 1, 2], 7)
    assert (many.fleet.names, many.fleet.count.tolist()) == (("a", "c"), [4, 1])
    assert many.constants.sigma2 == (1.0, 3.0)


def test_leaving_out_a_device_that_sits_out_anyway_changes_nothing():
    fleet = Fleet.of([16.0, 16.0], [0.1, 50.0], [30, 1])
    whole, less = what_if(replace(PAPER, fleet=fleet), "without", [0, 1])
    assert whole.excess == pytest.approx(less.excess, rel=1e-9)
    assert whole.served == less.served == 30


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [("budget", 74.123456, 600), ("budget", 1000.2, 1003.4), ("rounds", 3, 12), ("without", 0, 7)],
)
def test_values_keep_their_ends_and_rise(key, low, high):
    name, values = sweep_values(f"{key}={low}:{high}")
    assert name == key
    assert (values[0], values[-1]) == (low, high)
    assert np.all(np.diff(values) > 0)
    assert len(values) <= 25


@pytest.mark.parametrize(
    ("key", "values", "sentence"),
    [
        ("layers", [1], "allowed are budget, rounds, without"),
        ("rounds", [10, 12.5], "whole numbers"),
        ("rounds", [math.nan], "whole numbers"),
        ("budget", [300.0, math.inf], "budget must be"),
        ("without", [0, 29], "at most 28 of the fleet's 30"),
        ("without", [-1], "at most 28"),
    ],
)
def test_wrong_values_are_refused(key, values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        what_if(PAPER, key, values)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(FILE)
    return path


def test_the_table_has_a_line_per_value_and_names_the_reason(file):
    answer = typed("plan", file, "--objective", "paper", "--sweep", "budget=0.5:600:9")
    assert answer.code == 0, answer.err
    assert answer.out.count("\n") == 12  # two lines of column names, nine values, a sentence
    assert "No plan for" in answer.out.splitlines()[-1]


def test_json_is_the_rows(file):
    answer = json.loads(typed("plan", file, "--sweep", "without=0:4", "--json").out)
    assert [p["value"] for p in answer["points"]] == [0, 1, 2, 3, 4]
    assert [p["served"] for p in answer["points"]] == [32, 31, 30, 29, 28]


@pytest.mark.parametrize("text", ["budget=0.5:600:8", "rounds=5:20000:4", "without=0:30:4", "budget=0.1:0.2:3"])
def test_every_sweep_can_be_drawn(file, tmp_path, text):
    answer = typed("plan", file, "--sweep", text, "--plot", tmp_path / "sweep.png")
    assert answer.code == 0, answer.err
    assert (tmp_path / "sweep.png").stat().st_size > 1000


@pytest.mark.parametrize("text", ["budget", "budget=a:b", "budget=1:2:3:4", "batch=1:2", "budget=1:2:5000"])
def test_a_mistyped_sweep_is_one_sentence(file, text):
    answer = typed("plan", file, "--sweep", text)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert any(words in answer.err for words in ("must look like budget=75:600", "allowed are", "2 to 1000 points"))
