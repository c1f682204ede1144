"""How many rounds and local steps: more lag asks for longer rounds, heterogeneous data for shorter ones."""

from dataclasses import replace

import numpy as np
import pytest

from adelfl.config.build import build_experiment
from adelfl.config.run import load_run
from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.fleet import Fleet
from adelfl.planner import Constants, Problem
from adelfl.planner.local_work import NOTHING_DONE, SPARE, WorkDone, drift, gains, scales, with_local_work
from adelfl.runner import parse_strategy
from adelfl.schedule import fitting_batch
from adelfl.strategies import find_strategy
from adelfl.theory.gradient_stats import GradientStats

L, S, P = 3, 16, 160.0


def problem_of(lag: float, zeta2: float = 0.0, rate: float = 0.3, devices: int = 10, budget: float = 1000.0) -> Problem:
    spread = GradientStats.of([1.0] * L, [zeta2] * L, [0.1] * L)
    fleet = Fleet.of(np.full(devices, P), lag)
    return Problem(fleet, L, 1, budget, rate, constants=Constants(spread=spread), batch=S)


def test_equal_devices_do_the_geometric_mean_of_lag_and_half_worth():
    """E = √(E_h B/c), where c is the time of a step: the maximum of E/((E_h + E)(B + cE)), by hand."""
    c = SPARE * L * S / P
    for lag in (1.0, 4.0, 16.0):
        problem = problem_of(lag)
        chosen = with_local_work(problem)
        E = (problem.budget / chosen.rounds - lag) / c
        natural, own = scales(problem)
        assert pytest.approx(((1.0 - own) * natural * lag / c) ** 0.5, rel=0.1) == E
        assert chosen.local_iterations == int(np.ceil(E))


def test_more_lag_and_likelier_data_ask_for_fewer_rounds_and_more_steps():
    near, far = with_local_work(problem_of(1.0)), with_local_work(problem_of(4.0))
    assert far.rounds < near.rounds
    assert far.local_iterations > near.local_iterations
    apart = with_local_work(problem_of(4.0, zeta2=0.4))
    assert apart.rounds > far.rounds
    assert apart.local_iterations < far.local_iterations
    slow = with_local_work(problem_of(4.0, rate=0.03))
    assert slow.rounds < far.rounds


def test_rounds_are_long_enough_for_a_slow_device_only_if_its_data_is_its_own():
    def chosen(zeta2: float) -> float:
        spread = GradientStats.of([1.0] * L, [zeta2] * L, [0.1] * L)
        fleet = Fleet.of(np.array([3000.0, 3000.0, 1500.0, 450.0]), np.array([10.0, 10.0, 13.0, 27.0]))
        problem = Problem(fleet, L, 1, 240.0, 0.3, constants=Constants(spread=spread), batch=S)
        return 240.0 / with_local_work(problem).rounds

    assert chosen(0.0) < 27.0 < chosen(0.03)  # 27 s: its lag


def test_updates_tell_how_much_of_them_is_their_devices_own():
    alike = GradientStats.of([1.0] * L, [-0.1] * L, [1.0] * L)
    apart = GradientStats.of([1.0] * L, [3.0] * L, [1.0] * L)
    unseen = GradientStats.of([None] * L, [None] * L, [None] * L)
    assert (drift(alike), drift(apart), drift(unseen)) == (0.0, 0.75, 0.0)


def after_ten_rounds(*steps: float) -> WorkDone:
    done = NOTHING_DONE
    for _ in range(10):
        done = done.plus(np.array(steps, dtype=np.float64), 0.3, 0.3)
    return done


def test_a_device_that_was_neglected_so_far_gets_longer_rounds_in_the_rest_of_the_run():
    fleet = Fleet.of(np.array([3000.0, 3000.0, 1500.0, 450.0]), np.array([10.0, 10.0, 13.0, 35.0]))
    problem = Problem(fleet, L, 1, 150.0, 0.3, batch=S)

    def length(*steps: float) -> float:
        return 150.0 / with_local_work(problem, h=0.3, done=after_ten_rounds(*steps)).rounds

    assert length(0, 0, 0, 0) < 35.0  # the way is long, and rounds without the slow device are short
    assert length(500, 500, 500, 0) > 35.0


def test_a_last_round_is_not_worth_while_if_it_has_no_time_for_a_device_with_data_of_its_own():
    fleet = Fleet.of(np.full(4, 3000.0), np.array([10.0, 10.0, 10.0, 35.0]))
    done = after_ten_rounds(500, 500, 500, 500)
    short, long = (Problem(fleet, L, 1, budget, 0.3, batch=S) for budget in (20.0, 60.0))
    assert gains(short, 0.0, done)
    assert not gains(short, 0.3, done)
    assert gains(long, 0.3, done)


def test_a_device_stops_where_further_steps_would_gain_next_to_nothing():
    fleet = Fleet.of(np.full(4, 1e6), 10.0)  # with time for 200,000 steps in 10 s
    problem = Problem(fleet, L, 1, 240.0, 0.3, batch=S)
    natural, own = scales(problem)
    assert with_local_work(problem, rounds=12).local_iterations == np.ceil(8.0 * (1.0 - own) * natural)


def test_without_lag_devices_take_one_step_a_round():
    assert with_local_work(problem_of(0.0)).local_iterations == 1


def test_a_round_has_time_for_the_fixed_cost_of_a_step_and_for_enough_samples():
    for overhead in (0.0, 5.0, 20.0):
        problem = replace(problem_of(0.001), fleet=Fleet.of(np.full(10, P), 0.001, overhead=overhead))
        seconds = problem.budget / with_local_work(problem).rounds - 0.001
        samples = P * seconds / (L * SPARE) - overhead
        assert 4 * S <= 10 * samples * (1 + 1e-6) <= 4.5 * S


def test_what_is_given_is_kept():
    problem = problem_of(4.0)
    assert with_local_work(problem, rounds=7).rounds == 7
    assert with_local_work(problem, steps=5).local_iterations == 5
    assert with_local_work(problem, steps=5).rounds > with_local_work(problem).rounds
    both = with_local_work(problem, rounds=7, steps=5)
    assert (both.rounds, both.local_iterations) == (7, 5)


def test_a_very_fast_device_does_larger_batches_rather_than_ever_more_steps():
    problem = problem_of(4.0)
    fast = replace(problem, fleet=Fleet.of([*[P] * 9, 100 * P], 4.0))
    chosen = with_local_work(fast, rounds=50)
    assert chosen.local_iterations <= 4 * with_local_work(problem, rounds=50).local_iterations
    batch = find_strategy("adel")(chosen).orders(0, np.arange(10)).batch
    assert batch[-1] > 10 * S
    assert np.all(batch[:-1] == 7)  # ten devices with seven samples each: four batches of S in a step


def test_a_budget_without_a_single_batch_is_refused():
    with pytest.raises(InfeasibleBudgetError, match="give more time, or a smaller batch"):
        with_local_work(problem_of(4.0, budget=4.02))


def test_slow_devices_get_smaller_batches_only_where_one_step_does_not_fit():
    fleet = Fleet.of([160.0, 80.0, 40.0, 4.0], 2.0)
    problem = replace(problem_of(2.0), fleet=fleet, budget=100.0, rounds=25, local_iterations=20)
    batch = find_strategy("adel")(problem).orders(0, np.arange(4)).batch
    assert batch.tolist() == [S, S, S, 2]


def test_in_a_large_fleet_slow_devices_take_smaller_batches_rather_than_fewer_steps():
    """A step of all devices keeps to four batches of S, which forty devices reach with two samples each."""
    fleet = Fleet.of([160.0, 80.0, 40.0, 4.0], 2.0, 10)
    problem = replace(problem_of(2.0), fleet=fleet, budget=100.0, rounds=25, local_iterations=20)
    batch = find_strategy("adel")(problem).orders(0, np.arange(0, 40, 10)).batch
    assert batch.tolist() == [4, 2, 2, 2]


def test_a_file_may_leave_rounds_and_steps_to_the_plan():
    config = load_run(None, ["training.rounds=auto", "training.local_iterations=auto", "training.budget=100",
                             "fleet.compute=160", "fleet.upload=4", "fleet.devices=6"])  # fmt: skip
    for word in ("adel", "salf"):
        name, options = parse_strategy(word)
        problem = build_experiment(config.with_strategy(name, options, 0)).strategy.problem
        assert 3 <= problem.rounds <= 20
        assert problem.local_iterations > 4
    with pytest.raises(ConfigError, match="needs a budget"):
        load_run(None, ["training.rounds=auto", "training.depth=0.5"])


def test_more_devices_are_worth_more_rounds():
    few, many = (with_local_work(problem_of(0.0, devices=n)).rounds for n in (4, 200))
    assert few < many


def test_no_batch_is_smaller_than_half_of_the_fixed_cost_of_a_step():
    samples = np.array([0.5, 12.0, 16.0, 20.0, 60.0])
    assert fitting_batch(samples, 20.0, 1, 7).tolist() == [7, 7, 7, 7, 40]
    assert fitting_batch(samples, 6.0, 1, 7).tolist() == [3, 6, 10, 14, 54]
    assert fitting_batch(samples, 0.0, 1, 7).tolist() == [1, 12, 16, 20, 60]


def test_a_plan_for_single_steps_has_the_batch_sizes_that_devices_get():
    fleet = Fleet.of([200.0, 150.0, 100.0, 60.0, 30.0, 15.0], 0.001, overhead=16.0)
    strategy = find_strategy("adel")(replace(problem_of(0.001), fleet=fleet, rounds=900))
    sizes = strategy.schedule.batch_sizes(0)
    assert sizes.min() == 8 < sizes.max()
    assert strategy.orders(0, np.arange(6)).batch.tolist() == sizes.tolist()
