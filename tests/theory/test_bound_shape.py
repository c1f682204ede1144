"""The shape of a round's cost that the exact solver relies on: convex, falling, and defined where it says."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adelfl.theory import bound
from support.reference import feasible_points, log_uniform, problems

many = settings(max_examples=150, deadline=None, derandomize=True)


@given(problem=problems(), data=st.data())
@many
def test_the_cost_of_a_round_falls_and_is_convex_in_its_deadline(problem, data):
    cost = problem[0]
    T, m = data.draw(feasible_points(cost, nearest=1e-6, farthest=1e3))
    T = T * np.geomspace(1.0, 3.0, 5)
    log_slope, curvature = cost.log_slope(T, m)
    assert np.all(np.diff(log_slope) < 0)  # −f′ falls: f is convex; its logarithm exists: f falls
    assert np.all(curvature > 0)


@given(problem=problems(), data=st.data())
@many
def test_the_cost_is_jointly_convex_in_log_m_and_log_t_over_m(problem, data):
    cost = problem[0]
    (T1, m1), (T2, m2) = data.draw(feasible_points(cost, nearest=1e-3)), data.draw(feasible_points(cost, nearest=1e-3))
    T, m = math.sqrt(T1 * T2), math.sqrt(m1 * m2)
    assert cost.in_domain(T, m)

    def f(T, m):
        return bound.excess(cost, np.ones(1), np.array([T]), m)

    assert f(T, m) <= 0.5 * (f(T1, m1) + f(T2, m2)) * (1 + 1e-9)


@given(problem=problems(), nearness=log_uniform(1e-6, 1e-1))
@many
def test_a_deadline_has_a_batch_scale_iff_it_exceeds_the_needed_one(problem, nearness):
    cost = problem[0]
    needed = float(np.max(cost.B + cost.x_min / cost.P))
    T = needed * (1 + nearness)
    reach = float(np.min(cost.P * (T - cost.B)))  # layers of one sample each that the tightest device has time for
    assert cost.in_domain(T, T / (0.5 * (cost.x_min + reach)))
    T = needed * (1 - nearness)
    scales = np.append(np.geomspace(1e-3, 1e3, 100) * T / cost.x_min, T / cost.x_min)
    assert not any(cost.in_domain(T, m) for m in scales)
    assert all(cost.smallest_deadline(m) >= needed * (1 - 1e-12) for m in scales)


@given(problem=problems(), data=st.data())
@many
def test_the_domain_begins_at_the_smallest_deadline(problem, data):
    cost = problem[0]
    _, m = data.draw(feasible_points(cost))
    least = cost.smallest_deadline(m)
    assert cost.in_domain(least * (1 + 1e-9), m)
    assert not cost.in_domain(least * (1 - 1e-9), m)
    assert not cost.in_domain(np.array([least * 2, least * (1 - 1e-9)]), m)
    assert bound.excess(cost, np.ones(1), np.array([least * (1 - 1e-9)]), m) == math.inf
    assert cost.smallest_deadline(1.0 / float(np.min(cost.P))) == math.inf
