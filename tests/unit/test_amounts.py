"""Devices are weighed by how many samples they hold, as in FedAvg, unless they hold the same (eq. 1)."""

from dataclasses import replace

import numpy as np
import pytest

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.planner import Problem
from adelfl.strategies import find_strategy
from adelfl.strategies.actions import Arrivals, Tasks

L, SIZES = 3, np.array([100.0, 50.0, 250.0])


def weights_of(name: str, samples: object, z: list[int], cutoff: float = np.inf, **options: object) -> np.ndarray:
    problem = Problem(Fleet.of([10.0] * 3), L, 10, 100.0, 0.1, samples=samples)
    strategy = find_strategy(name)(problem, **options)
    tasks = Tasks(np.arange(3), np.full(3, 8), 1, 0.1, cutoff)
    seconds = np.full(3, 1.0)
    return strategy.weights(0, strategy.progress(Arrivals(tasks, 0, 0, 0.0, np.array(z), seconds, seconds)))


@pytest.mark.parametrize("name", ["wait", "drop", "salf", "adel"])
def test_with_no_deadline_every_method_is_fedavg(name):
    A = weights_of(name, SIZES, [L, L, L])
    assert pytest.approx(np.repeat((SIZES / SIZES.sum())[:, None], L, axis=1)) == A


def test_among_those_who_deliver_a_layer_data_decides():
    A = weights_of("salf", SIZES, [3, 1, 2], cutoff=50.0, correction="none")
    assert A[:, 2] == pytest.approx(SIZES / 400.0)
    assert A[:, 1] == pytest.approx(np.array([100.0, 0.0, 250.0]) / 350.0)
    assert A[:, 0] == pytest.approx([1.0, 0.0, 0.0])


@pytest.mark.parametrize("name", ["wait", "drop", "salf"])
@pytest.mark.parametrize("samples", [[80.0, 80.0, 80.0], [80.0, 79.0, 80.0], None, [80.0, np.inf, 10.0]])
def test_equal_or_unknown_amounts_leave_equal_weights_to_the_bit(name, samples):
    assert np.array_equal(weights_of(name, samples, [3, 3, 3]), weights_of(name, None, [3, 3, 3], weigh="equally"))


@pytest.mark.parametrize("name", ["wait", "drop", "salf", "adel"])
def test_equal_weights_are_an_option_with_a_name(name):
    assert np.ptp(weights_of(name, SIZES, [L, L, L], weigh="equally")) == pytest.approx(0.0)
    problem = Problem(Fleet.of([10.0] * 3), L, 10, 100.0, 0.1)
    assert "equal weights" in find_strategy(name)(problem, weigh="equally").label
    assert "equal weights" not in find_strategy(name)(problem).label
    with pytest.raises(ConfigError, match="weigh must be one of data, equally"):
        find_strategy(name)(problem, weigh="by size")


def test_the_papers_method_weighs_equally():
    A = weights_of("adel-paper", SIZES, [L, L, L])
    assert np.ptp(A) == pytest.approx(0.0)


def test_amounts_are_those_of_the_problem():
    problem = Problem(Fleet.of([10.0] * 3), L, 10, 100.0, 0.1, samples=SIZES)
    assert np.array_equal(problem.amounts, SIZES)
    assert replace(problem, samples=None).amounts is None
