"""Values out of range get one sentence, whether they come from a file, a sweep or Python."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from adelfl import ConstantRate, Fleet, Problem, plan
from adelfl.errors import ConfigError
from adelfl.learning_rate import InverseDecay
from adelfl.planner import what_if
from adelfl.strategies import find_strategy
from support.small_worlds import EVERY_STRATEGY, experiment_of, setting_of, typed

FLEET = Fleet.of([30.0, 12.0, 5.0], 0.1, [4, 5, 6])
GOOD = {"fleet": FLEET, "layers": 3, "rounds": 10, "budget": 30.0, "learning_rate": 0.1}
WRONG = {
    "no rounds": ("rounds", 0),
    "more rounds than a file may name": ("rounds", 1_000_001),
    "half a round": ("rounds", 2.5),
    "no layers": ("layers", 0),
    "more layers than a file may name": ("layers", 1001),
    "no iterations": ("local_iterations", 0),
    "endless iterations": ("local_iterations", 10**9),
    "no time": ("budget", 0.0),
    "infinite time": ("budget", math.inf),
    "no number of seconds": ("budget", math.nan),
    "more time than a file may name": ("budget", 1e23),
    "time in words": ("budget", "an hour"),
    "an empty cohort": ("cohort", 0),
    "a cohort of one": ("cohort", 1),
    "more than there are": ("cohort", 16),
    "a learning rate in words": ("learning_rate", "fast"),
    "a learning rate of zero": ("learning_rate", 0.0),
    "no learning rate": ("learning_rate", None),
}


def one_sentence(error: ConfigError) -> bool:
    return "\n" not in str(error) and len(str(error)) < 300


@pytest.mark.parametrize(("key", "value"), WRONG.values(), ids=WRONG)
def test_a_problem_refuses_what_a_file_refuses(key, value):
    with pytest.raises(ConfigError, match=re.sub("_", "[_ ]", key)) as found:
        Problem(**GOOD | {key: value})
    assert one_sentence(found.value)


@pytest.mark.parametrize("batch", [0, -1, 2.5, True, 10**10])
def test_a_batch_out_of_range_is_refused(batch):
    with pytest.raises(ConfigError, match="batch must be a whole number from 1 to"):
        Problem(**GOOD, batch=batch)


@pytest.mark.parametrize("words", EVERY_STRATEGY)
def test_every_strategy_takes_a_plain_number_for_a_learning_rate(words):
    name, options = EVERY_STRATEGY[words]
    plain, constant = (
        find_strategy(name)(Problem(**GOOD | {"learning_rate": rate}, batch=4), **options)
        for rate in (0.05, ConstantRate(0.05))
    )
    assert np.array_equal(plain.learning_rates, constant.learning_rates)


def test_a_plain_number_plans_as_a_constant_rate_does():
    one, other = (plan(Problem(**GOOD | {"learning_rate": rate})) for rate in (np.float64(0.1), ConstantRate(0.1)))
    assert np.array_equal(one.schedule.deadlines, other.schedule.deadlines)


def test_a_learning_rate_of_ones_own_must_give_a_number_for_every_round():
    class Short:
        def values(self, rounds):
            return np.full(rounds - 1, 0.1)

    with pytest.raises(ConfigError, match="learning_rate must give 10 positive numbers"):
        Problem(**GOOD | {"learning_rate": Short()}, batch=4)


@pytest.mark.parametrize("upload", [1e308, math.inf, math.nan, -1.0])
def test_an_upload_that_no_arithmetic_survives_is_refused_with_its_device(upload):
    with pytest.raises(
        ConfigError, match=r"upload of slow must be zero or a positive number of seconds, at most 1e\+30"
    ):
        Fleet.of([1.0, 2.0], [0.0, upload], names=["quick", "slow"])


@pytest.mark.parametrize("compute", [1e308, 1e-308, 0.0])
def test_a_speed_that_no_arithmetic_survives_is_refused(compute):
    with pytest.raises(ConfigError, match="compute of device #1 must be a positive number from 1e-30"):
        Fleet.of([compute, 2.0])


def test_the_longest_upload_that_is_allowed_can_be_planned():
    fleet = Fleet.of([10.0, 10.0, 10.0], [0.0, 0.1, 1e30])
    for objective in ("tight", "paper"):
        found = plan(Problem(fleet, layers=3, rounds=5, budget=50.0), objective=objective)
        assert [s.group for s in found.sitting_out] == [2]


def test_batches_too_large_to_count_are_an_error_and_not_negative():
    fleet = Fleet.of([1e20, 1e20], names=["fast", "faster"])
    with pytest.raises(ConfigError, match=r"fast would get batches of up to .* too many to count") as found:
        plan(Problem(fleet, layers=3, rounds=2, budget=1e15))
    assert one_sentence(found.value)
    held = plan(Problem(Fleet.of([1e20, 1e20], samples=50), layers=3, rounds=2, budget=1e15))
    assert np.all(held.schedule.batch_sizes() == 50)


@pytest.mark.parametrize("evaluations", [0, 10**23, 2.5])
def test_an_experiment_refuses_evaluations_out_of_range(evaluations):
    with pytest.raises(ConfigError, match="evaluations must be a whole number from 1 to 1,000,000"):
        replace(experiment_of(), evaluations=evaluations)


PLAN = """
[problem]
rounds = {rounds}
budget = {budget}
layers = 3
[[device]]
compute = 16.0
upload = {upload}
count = 30
"""


@pytest.mark.parametrize(
    ("change", "key"),
    [({"upload": "1e308"}, "upload"), ({"budget": "1e23"}, "budget"), ({"rounds": "1000001"}, "rounds")],
)
def test_a_file_out_of_range_is_one_sentence_and_exit_code_2(change, key, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(**{"rounds": 10, "budget": 30.0, "upload": 0.1} | change))
    answer = typed("plan", path)
    assert answer.code == 2
    assert answer.out == ""
    assert key in answer.err
    assert "Traceback" not in answer.err
    assert answer.err.count("\n") == 1


def test_a_run_of_too_many_evaluations_is_one_sentence():
    answer = typed("run", "--set", f"training.evaluations={10**23}", "--out", "nowhere")
    assert answer.code == 2
    assert "training.evaluations: must be at most 1000000" in answer.err


def test_a_sweep_keeps_to_the_limits_of_a_problem():
    with pytest.raises(ConfigError, match="rounds must be a whole number from 1 to 1,000,000"):
        what_if(Problem(**GOOD), "rounds", [1, 10**9])


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ("rounds=1:1e9:3", "rounds must be a whole number from 1 to 1,000,000"),
        ("budget=1:1e23:3", "budget must be a number of seconds from"),
        ("budget=1e-300:1:3", "budget must be a number of seconds from"),
        ("without=0:1e12:3", "devices can be left out, not 1000000000000"),
        ("budget=0:600", "needs 0 < LOW < HIGH"),
        ("rounds=0:10", "needs 0 < LOW < HIGH"),
        ("budget=600:75", "needs 0 < LOW < HIGH"),
        ("budget=1:inf", "needs 0 < LOW < HIGH"),
    ],
)
def test_a_swept_range_out_of_bounds_is_refused_on_the_command_line(tmp_path, sweep, sentence):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(rounds=10, budget=30.0, upload=0.1))
    answer = typed("plan", path, "--sweep", sweep)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert sentence in answer.err


def test_the_largest_plan_of_all_needs_no_table_of_rounds_by_layers():
    problem = Problem(FLEET, layers=1000, rounds=1_000_000, budget=1e12, learning_rate=InverseDecay(0.1, 1e5))
    with pytest.raises(ConfigError, match="1,000,000 rounds × 1,000 layers are too many for objective 'paper'"):
        plan(problem, objective="paper")


def test_settings_that_were_right_before_still_are():
    assert setting_of(3, cohort=5).cohort == 5
    assert Problem(**GOOD | {"fleet": Fleet.of(3.0)}, batch=1).devices == 1
