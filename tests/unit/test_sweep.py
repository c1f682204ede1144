"""What-if sweeps: every point is a plan of its own, and a knee is where the curve bends, or nowhere."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from adelfl import Fleet, InverseDecay, Problem
from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.planner import sweep
from adelfl.planner.admit import needed_deadlines
from adelfl.planner.sweep import Point, Sweep, values_between, without_slowest
from adelfl.report.style import save
from adelfl.report.sweep import draw_sweep
from support.problems import BY_HAND, MIXED, PAPER, plan
from support.small_worlds import typed

what_if = partial(sweep.what_if, solve=plan)  # of the paper's bound, which has knees

SPREAD = Problem(
    Fleet.lognormal(60, compute=16, sigma=0.8, upload=0.1, upload_sigma=0.6, seed=0),
    layers=5,
    rounds=100,
    budget=110.0,
    learning_rate=InverseDecay(0.2, 30.0),
)
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


def sweep_of(key, x, error, served=None):
    """A sweep with these errors, without a planner."""
    served = [5] * len(x) if served is None else served
    points = [
        Point(v, n, excess=e, bound=e) if n else Point(v, trouble="no")
        for v, e, n in zip(x, error, served, strict=True)
    ]
    return Sweep(key, tuple(points), now=1.0, devices=5)


@pytest.mark.parametrize("name", BY_HAND)
def test_each_point_is_the_plan_of_its_own_budget(name):
    problem = BY_HAND[name]
    found = what_if(problem, "budget", [problem.budget, 2 * problem.budget])
    for point in found.points:
        alone = plan(problem.with_budget(point.value))
        assert (point.excess, point.bound) == (alone.excess, alone.bound)
        assert (point.uniform_excess, point.uniform_bound) == (alone.uniform.excess, alone.uniform.bound)
        assert point.depth == pytest.approx(alone.schedule.expected_depth().mean() / problem.layers)
    assert found.points[1].excess < found.points[0].excess


def test_any_planner_may_be_swept():
    asked = []

    def solve(problem):
        asked.append(problem.rounds)
        return plan(problem, method="trust-region")

    found = what_if(MIXED, "rounds", [6, 12], solve=solve)
    assert asked == [6, 12]
    assert found.points[0].excess == plan(replace(MIXED, rounds=6), method="trust-region").excess


def test_a_budget_without_a_plan_is_a_point_that_says_why():
    found = what_if(PAPER, "budget", values_between("budget", 1.0, 300.0, 8))
    assert len(found.points) == 8
    with pytest.raises(InfeasibleBudgetError) as trouble:
        plan(PAPER.with_budget(1.0))
    assert found.points[0].trouble == trouble.value.binding
    assert found.points[0].excess is None
    assert "No plan at" in found.outcome
    assert found.points[-1].trouble is None


def test_the_slowest_are_those_who_need_the_longest_deadline():
    left = without_slowest(SPREAD, 7).fleet
    needed = needed_deadlines(SPREAD, SPREAD.fleet.size)
    assert left.size == 53
    assert sorted(left.compute) == sorted(SPREAD.fleet.compute[np.argsort(needed)[:53]])


def test_devices_leave_a_group_one_by_one_and_take_their_noise_along():
    fleet = Fleet.of([16.0, 2.0, 9.0], [0.1, 0.5, 0.1], [4, 3, 2], ["a", "b", "c"])
    constants = replace(PAPER.constants, sigma2=(1.0, 2.0, 3.0))
    problem = Problem(fleet, 3, 10, 60.0, constants=constants, cohort=8)
    some, many = without_slowest(problem, 2), without_slowest(problem, 4)
    assert some.fleet.count.tolist() == [4, 1, 2]
    assert some.cohort == 7
    assert many.fleet.names == ("a", "c")
    assert many.fleet.count.tolist() == [4, 1]
    assert many.constants.sigma2 == (1.0, 3.0)
    assert without_slowest(problem, 0).fleet.count.tolist() == [4, 3, 2]


def test_leaving_out_one_that_sits_out_anyway_changes_nothing():
    fleet = Fleet.of([16.0, 16.0], [0.1, 50.0], [30, 1])
    found = what_if(replace(PAPER, fleet=fleet), "without", [0, 1])
    assert found.points[0].excess == pytest.approx(found.points[1].excess, rel=1e-9)
    assert [p.served for p in found.points] == [30, 30]


def test_the_knee_of_two_straight_lines_is_where_they_meet():
    x = np.geomspace(10, 1000, 21)
    error = np.where(x < 100, (x / 100) ** -3, (x / 100) ** -0.5)
    knee = sweep_of("budget", x, error).knee
    assert knee.value == pytest.approx(100)
    assert knee.before == pytest.approx(1.1**-3)
    assert knee.after == pytest.approx(1.1**-0.5)
    assert not knee.soft


def test_the_knee_of_a_smooth_curve_is_where_it_falls_as_on_average():
    """Of e^(1/x) in log-log: d log e/d log x = −1/x is the chord's slope at x = log(b/a)/(1/a − 1/b)."""
    x = np.geomspace(0.5, 20, 2001)
    knee = sweep_of("budget", x, np.exp(1 / x)).knee
    assert knee.value == pytest.approx(math.log(40) / (2 - 0.05), rel=2e-3)


def test_a_power_law_and_a_curve_that_bends_the_other_way_have_no_knee():
    x = np.geomspace(10, 1000, 21)
    assert sweep_of("budget", x, 1 / x).knee is None
    assert sweep_of("budget", x, np.exp(-x / 100)).knee is None
    assert sweep_of("rounds", x, x).knee is None
    assert sweep_of("budget", x[:2], 1 / x[:2]).knee is None
    assert sweep_of("budget", x, np.zeros(21)).knee is None


def test_units_do_not_move_a_knee():
    x = np.geomspace(10, 1000, 30)
    error = 1e-3 + x**-2.0
    one, other = sweep_of("budget", x, error).knee, sweep_of("budget", 60 * x, 7 * error).knee
    assert other.value == pytest.approx(60 * one.value)
    assert other.before == pytest.approx(one.before)


def test_beyond_the_lowest_point_nothing_is_compared():
    x = np.arange(0.0, 21.0)
    error = 1.0 + np.exp(-x) + 0.002 * x
    found = sweep_of("without", x, error)
    assert found.lowest.value == 6
    assert 0 < found.knee.value < 6
    assert "lowest at 6 left out" in found.outcome
    assert (
        sweep_of("without", x, 1.0 + x).outcome == "No knee in this range. The bound is lowest if nobody is left out."
    )


def test_only_points_that_serve_the_same_devices_are_compared():
    served = [0, 0, 3, 3, 4, 5, 5, 5, 5, 5]
    x = np.geomspace(1, 100, 10)
    found = sweep_of("budget", x, 1 / x, served)
    assert [p.value for p in found.compared] == list(x[5:])
    assert "where the same 5 devices are served" in found.outcome
    assert "No plan at 2 of 10 points, 1 s to 1.668 s" in found.outcome
    assert len(sweep_of("without", x, 1 / x, served).compared) == 8


def test_a_spread_fleet_has_a_knee_in_time_and_in_devices():
    assert 120 < what_if(SPREAD, "budget", values_between("budget", 75, 600)).knee.value < 200
    without = what_if(SPREAD, "without", values_between("without", 0, 20))
    assert without.knee.value <= without.lowest.value <= 10
    assert not without.knee.soft


def test_values_keep_their_ends_and_rise():
    for key, low, high in (
        ("budget", 74.123456, 600),
        ("budget", 1000.2, 1003.4),
        ("rounds", 3, 12),
        ("without", 0, 7),
    ):
        values = values_between(key, low, high)
        assert (values[0], values[-1]) == (low, high)
        assert np.all(np.diff(values) > 0)
        assert len(values) <= 25
    assert values_between("without", 0, 7) == list(range(8))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("layers", 1, 2), "allowed are budget, rounds, without"),
        (("budget", 0, 2), "positive numbers of seconds"),
        (("budget", 3, 2), "the lower one first"),
        (("budget", 3, math.inf), "positive numbers"),
        (("rounds", 1.5, 2), "whole numbers"),
        (("without", -1, 2), "0 or more"),
        (("budget", 1, 2, 1), "at least 2 points"),
    ],
)
def test_a_range_that_means_nothing_is_refused(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        values_between(*arguments)


@pytest.mark.parametrize(
    ("key", "values", "sentence"),
    [
        ("layers", [1, 2], "allowed are"),
        ("budget", [300.0], "at least 2 values"),
        ("budget", [300.0, 200.0], "rising order"),
        ("rounds", [10, 12.5], "whole numbers"),
        ("without", [0, 29], "at most 28 of the fleet's 30"),
    ],
)
def test_values_that_mean_nothing_are_refused(key, values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        what_if(PAPER, key, values)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(FILE)
    return path


def test_typed_sweeps_print_a_line_per_point_and_a_sentence(file):
    answer = typed("plan", file, "--objective", "paper", "--sweep", "budget=0.5:600:9")
    assert answer.code == 0, answer.err
    assert answer.out.count("\n") == 13  # a title, two lines of column names, nine points, a sentence
    assert "no plan" in answer.out
    assert "◀ knee" in answer.out


def test_json_is_the_points_and_nothing_else(file):
    answer = typed("plan", file, "--sweep", "without=0:4", "--json")
    said = json.loads(answer.out)
    assert [p["value"] for p in said["points"]] == [0, 1, 2, 3, 4]
    assert [p["served"] for p in said["points"]] == [32, 31, 30, 29, 28]
    assert said["error"] == "bound"
    assert said["lowest"] in range(5)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("budget=0.5:600:8", "png"),
        ("budget=0.5:600:8", "svg"),
        ("budget=0.5:600:8", "pdf"),
        ("rounds=5:20000:6", "png"),
        ("without=0:30:6", "png"),
        ("budget=0.1:0.2:3", "png"),
        ("rounds=2:3", "png"),
    ],
)
def test_every_sweep_can_be_drawn(file, tmp_path, name, ending):
    picture = tmp_path / f"sweep.{ending}"
    answer = typed("plan", file, "--sweep", name, "--plot", picture)
    assert answer.code == 0, answer.err
    assert picture.stat().st_size > 1000
    assert f"Picture: {picture}" in answer.out


def test_a_picture_names_the_knee_and_shades_what_has_no_plan(tmp_path):
    found = what_if(SPREAD, "budget", values_between("budget", 8, 1500, 15))
    fig = draw_sweep(found, "title")
    (legend,) = fig.legends
    said = [text.get_text() for text in legend.get_texts()]
    assert f"knee: {found.words(found.knee.value)}" in said
    assert "no plan" in said
    assert len(said) == len(set(said))
    assert f"as given: {found.words(SPREAD.budget)}" in said
    assert "faded: other devices served" in said
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["Excess", "Bound", "Mean depth, and devices served"]
    save(fig, tmp_path / "sweep.png")


def test_a_picture_of_points_that_are_all_compared_fades_none():
    found = what_if(replace(MIXED, rounds=6), "budget", [2 * MIXED.budget, 4 * MIXED.budget])
    said = [text.get_text() for text in draw_sweep(found, "title").legends[0].get_texts()]
    assert len(found.compared) == len(found.points)
    assert not [text for text in said if text.startswith("faded")]


@pytest.mark.parametrize(
    ("key", "over", "under"), [("budget=60:120:2", [], ["budget"]), ("without=0:1", ["devices"], ["left", "out"])]
)
def test_columns_say_what_they_are_of(file, key, over, under):
    upper, lower = (line.split() for line in typed("plan", file, "--sweep", key).out.splitlines()[1:3])
    assert upper == [*over, "excess,", "excess,", "bound,", "mean", "devices"]
    assert lower == [*under, "plan", "uniform", "plan", "depth", "served"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("budget", "must look like budget=75:600"),
        ("budget=a:b", "must look like"),
        ("budget=1:2:3:4", "must look like"),
        ("batch=1:2", "allowed are"),
        ("budget=1:2:5000", "at most 1000 points"),
        ("without=0:31", "at most 30 of the fleet's 32 devices"),
        ("rounds=0:5", "at least 1"),
    ],
)
def test_a_mistyped_sweep_is_one_sentence(file, text, sentence):
    answer = typed("plan", file, "--sweep", text)
    assert answer.code == 2
    assert sentence in answer.err
    assert answer.err.count("\n") == 1


def test_a_strict_sweep_shows_where_devices_would_sit_out(file):
    loose, strict = (
        json.loads(typed("plan", file, "--objective", "paper", "--sweep", "budget=15:60:4", "--json", *more).out)
        for more in ((), ("--strict",))
    )
    assert loose["points"][0]["served"] == 30
    assert "slow is what binds" in strict["points"][0]["trouble"]
    assert strict["points"][-1]["excess"] == loose["points"][-1]["excess"]
