"""The number of local iterations is given once, in the setting: what is trained is what is charged."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from adelfl.errors import ConfigError
from adelfl.schedule import Schedule
from adelfl.simulation import Experiment
from adelfl.strategies import find_strategy
from adelfl.training.engines import LocalWork
from support.small_worlds import experiment_of, furthest, run, same_bits, setting_of


def given_in_the_setting_only(E: int, **others) -> Experiment:
    """An experiment that names E in its setting and leaves everything else at its default."""
    experiment = experiment_of("salf", **{"depth": 0.9, "local_iterations": E} | others)
    return replace(experiment, local=LocalWork())


def test_local_work_cannot_name_another_number_of_iterations():
    assert "iterations" not in inspect.signature(LocalWork).parameters
    with pytest.raises(TypeError):
        LocalWork(3)  # once the number of iterations; it must not be taken for a weight decay


@pytest.mark.parametrize("engine", ["auto", "stacked", "loop"])
def test_three_iterations_are_trained_where_three_are_charged(engine):
    three = run(given_in_the_setting_only(3, engine=engine))
    one = run(given_in_the_setting_only(1, engine=engine))
    assert max(max(row.depth) for row in three.rows if row.depth) > 3  # of three layers
    assert furthest(three.weights, one.weights) > 1e-3
    assert furthest(three.weights, run(given_in_the_setting_only(3, engine="loop")).weights) < 1e-5


def test_the_fused_engine_is_refused_where_the_setting_has_several_iterations():
    with pytest.raises(ConfigError, match="'fused' computes one local iteration"):
        run(given_in_the_setting_only(2, engine="fused"))


@pytest.mark.parametrize("name", ["adel", "adel-paper"])
def test_a_schedule_of_another_number_of_iterations_is_refused(name):
    setting = setting_of(3, local_iterations=2)
    sizes = (setting.fleet, setting.layers, setting.rounds, setting.budget, 4)
    with pytest.raises(ConfigError, match="schedule is for 1 local iterations, the problem for 2"):
        find_strategy(name)(setting, schedule=Schedule.uniform(*sizes))
    kept = find_strategy(name)(setting, schedule=Schedule.uniform(*sizes, local_iterations=2))
    assert np.all(kept.orders(0, np.arange(setting.devices)).batch == 4)


def test_the_default_is_one_iteration():
    assert same_bits(run(experiment_of("salf")).weights, run(given_in_the_setting_only(1, depth=0.6)).weights)
