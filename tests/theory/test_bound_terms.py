"""Theorem 1 term by term: values, digits and exact derivatives."""

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adelfl.theory import bound
from adelfl.theory.participation import p_empty_bound, smallest_rate
from support import reference
from support.reference import C, feasible_points, problems, round_cost

some = settings(max_examples=50, deadline=None, derandomize=True)
many = settings(max_examples=150, deadline=None, derandomize=True)

FIXED = [
    # (cost, σ² per group, count), (T, m)
    ((round_cost(3, [10, 20], [2.0, 6.0], [0.5, 1.0], [20.0, 5.0]), [20.0, 5.0], [10, 20]), (6.0, 3.0)),
    ((round_cost(1, [2], [1.0], [0.0], [1.0]), [1.0], [2]), (4.0, 2.5)),
    ((round_cost(11, [10**6], [30.0], [2.0], [9.0]), [9.0], [10**6]), (40.0, 20.0)),
    ((round_cost(50, [3, 4], [5.0, 50.0], [1.0, 9.0], [1.0, 2.0]), [1.0, 2.0], [3, 4]), (60.0, 1.3)),
]


def derivative(f, at, n=1):
    """Central difference in 80 digits: its step error and its rounding are both far below a float's."""
    with mp.workdps(80):
        return mp.diff(f, mp.mpf(float(at)), n)


def exact_terms(problem):
    """b and c of the paper as functions of (T, m), c in the form that keeps its digits."""
    cost, sigma2, count = problem
    return (
        lambda T, m: reference.batch_term(cost, T, m, sigma2, count),
        lambda T, m: reference.plannable_truncation(cost, T, m),
    )


def assert_derivatives(problem, point):
    cost, (T, m) = problem[0], point
    for term, found in zip(
        exact_terms(problem),
        (cost.batch_variance(np.array([T]), m), cost.truncation(np.array([T]), m)),
        strict=True,
    ):
        with mp.workdps(80):
            value = float(term(mp.mpf(T), mp.mpf(m)))
        by_T = float(derivative(lambda v, term=term: term(v, mp.mpf(m)), T))
        by_m = float(derivative(lambda v, term=term: term(mp.mpf(T), v), m))
        np.testing.assert_allclose(np.ravel(found), [value, by_T, by_m], rtol=1e-9, atol=1e-280)


def assert_slope(problem, point):
    cost, (T, m) = problem[0], point
    by_term = [lambda v, term=term: term(v, mp.mpf(m)) for term in exact_terms(problem)]
    # term by term, since b may be constant and c 10⁻⁴⁰⁰⁰
    first, second = (sum(derivative(term, T, n) for term in by_term) for n in (1, 2))
    log_slope, curvature = cost.log_slope(np.array([T]), m)
    np.testing.assert_allclose(log_slope[0], float(mp.log(-first)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(curvature[0], float(-second / first), rtol=1e-8)


@pytest.mark.parametrize(("problem", "point"), FIXED)
def test_derivatives_agree_with_differences_on_known_problems(problem, point):
    assert problem[0].in_domain(*point)
    assert_derivatives(problem, point)
    assert_slope(problem, point)


@given(problem=problems(), data=st.data())
@some
def test_derivatives_agree_with_differences(problem, data):
    assert_derivatives(problem, data.draw(feasible_points(problem[0])))


@given(problem=problems(), data=st.data())
@some
def test_slope_agrees_with_differences_also_hundreds_of_decades_down(problem, data):
    assert_slope(problem, data.draw(feasible_points(problem[0])))


def test_slope_without_uploads_is_finite_where_the_truncation_term_underflows():
    """B = 0: then −f′ = −∂c/∂T alone, here about e^(−10⁴)."""
    problem = (round_cost(3, [1, 1], [2.0, 5.0], [0.0, 0.0], [20.0, 20.0]), [20.0, 20.0], [1, 1])
    assert_slope(problem, (5000.0, 1.0))


@given(problem=problems(), data=st.data())
@many
def test_log_scale_slopes_are_the_derivatives_in_log_m(problem, data):
    cost = problem[0]
    T, m = data.draw(feasible_points(cost))
    saved, paid = cost.log_scale_slopes(np.array([T]), m)
    b_m, c_m = cost.batch_variance(np.array([T]), m)[2], cost.truncation(np.array([T]), m)[2]
    np.testing.assert_allclose(np.exp(saved), -b_m * m, rtol=1e-10)
    np.testing.assert_allclose(np.exp(paid), c_m * m, rtol=1e-9, atol=1e-290)


@given(problem=problems(), data=st.data(), rounds=st.integers(1, 6))
@some
def test_excess_gradient_is_the_weighted_sum_of_the_derivatives_of_the_rounds(problem, data, rounds):
    cost = problem[0]
    T, m = data.draw(feasible_points(cost))
    T = T * np.linspace(1.5, 1.0, rounds)
    a = bound.weights(0.1 / np.arange(1, rounds + 1), 0.5)
    by_T, by_m = bound.excess_gradient(cost, a, T, m)
    value, expected_T, expected_m = mp.mpf(0), np.zeros(rounds), mp.mpf(0)
    for term in exact_terms(problem):
        for t, (a_t, T_t) in enumerate(zip(a, T, strict=True)):
            at = mp.mpf(float(T_t))
            with mp.workdps(80):
                value += a_t * term(at, mp.mpf(m))
            expected_T[t] += a_t * float(derivative(lambda v, term=term: term(v, mp.mpf(m)), T_t))
            expected_m += a_t * derivative(lambda v, term=term, at=at: term(at, v), m)
    assert bound.excess(cost, a, T, m) == pytest.approx(float(value), rel=1e-10)
    np.testing.assert_allclose(by_T, expected_T, rtol=1e-9, atol=1e-290)
    # b falls and c rises with m: near the minimum their sum cancels, so compare with the size of its parts
    size = abs(float(np.sum(a * cost.batch_variance(T, m)[2])))
    assert by_m == pytest.approx(float(expected_m), rel=1e-9, abs=1e-9 * size)


@given(problem=problems(), data=st.data(), rounds=st.integers(1, 6))
@some
def test_j_is_the_formula_of_theorem_1(problem, data, rounds):
    cost, sigma2, count = problem
    T, m = data.draw(feasible_points(cost))
    T = T * np.linspace(2.0, 1.0, rounds)
    eta, rho_c, rho_s, Gamma, Delta1 = 0.2 / np.arange(2, rounds + 2), 0.3, 1.1, 0.7, 5.0
    with mp.workdps(60):
        error = mp.mpf(Delta1)  # by its recursion: Δ_{t+1} = (1 − η ρ_c) Δ_t + η² (B + C)
        for step, deadline in zip(map(float, eta), map(float, T), strict=True):
            B = reference.batch_term(cost, mp.mpf(deadline), mp.mpf(m), sigma2, count) + 6 * rho_s * Gamma
            C = reference.truncation_term(cost, mp.mpf(deadline), mp.mpf(m))
            error = (1 - step * rho_c) * error + step**2 * (B + C)
    constants = {"rho_c": rho_c, "rho_s": rho_s, "Gamma": Gamma, "Delta1": Delta1}
    assert bound.J(cost, eta, T, m, **constants) == pytest.approx(float(error), rel=1e-10)


@pytest.mark.parametrize(("L", "U"), [(1, 2), (3, 30), (11, 30), (50, 10**6)])
def test_excess_keeps_its_digits_where_c_less_its_constant_part_has_none(L, U):
    cost = round_cost(L, [U], [1e3], [0.0], [1e-30])
    m = 1.0
    T = np.array([smallest_rate(L, U, 1e-18) * m])
    with mp.workdps(60):
        exact = float(
            reference.truncation_term(cost, mp.mpf(float(T[0])), mp.mpf(m)) - mp.mpf(float(cost.truncation_scale.sum()))
        )
    assert bound.excess(cost, np.ones(1), T, m) == pytest.approx(exact, rel=1e-11)
    by_subtraction = float((C(cost, T, m) - cost.truncation_scale.sum())[0])
    assert abs(by_subtraction / exact - 1.0) > 0.5


def test_cost_does_not_depend_on_how_alike_devices_are_grouped():
    grouped = round_cost(4, [3, 5], [2.0, 7.0], [0.1, 0.6], [4.0, 9.0])
    listed = round_cost(4, [1] * 8, [2.0] * 3 + [7.0] * 5, [0.1] * 3 + [0.6] * 5, [4.0] * 3 + [9.0] * 5)
    T = np.array([9.0, 7.0])
    for name in ("batch_variance", "truncation", "log_scale_slopes"):
        np.testing.assert_allclose(getattr(grouped, name)(T, 2.0), getattr(listed, name)(T, 2.0), rtol=1e-13)


@pytest.mark.parametrize("rounds", [1, 2, 7, 40])
def test_weights_are_the_naive_product(rounds):
    eta, rho_c = 0.9 / (1.0 + np.arange(rounds)), 0.8
    naive = [eta[t] ** 2 * math.prod(1 - e * rho_c for e in eta[t + 1 :]) for t in range(rounds)]
    np.testing.assert_allclose(bound.weights(eta, rho_c), naive, rtol=1e-13)
    assert bound.initial_error_left(eta, rho_c) == pytest.approx(math.prod(1 - e * rho_c for e in eta), rel=1e-13)


@pytest.mark.parametrize(
    ("eta", "rho_s", "said"),
    [
        ([0.25, 0.25, 0.125], 1.0, []),
        ([0.1, 0.11], 1.0, ["increases"]),
        ([0.2, 0.09], 1.0, ["half"]),
        ([0.3, 0.2], 1.0, ["1/(4 rho_s) = 0.25"]),
        ([0.3, 0.1, 0.2], 2.0, ["increases", "half", "1/(4 rho_s) = 0.125"]),
        ([0.25], 1.0, []),
    ],
)
def test_violated_conditions_of_theorem_1_are_named(eta, rho_s, said):
    found = bound.violated_conditions(eta, rho_s)
    assert len(found) == len(said)
    assert all(word in sentence for word, sentence in zip(said, found, strict=True))


def test_g2_per_layer_weighs_each_layers_own_p():
    """Equal numbers per layer are the paper's one number; unequal ones are a sum over layers."""
    L, U, T, m = 4, 12, np.array([3.0, 2.5]), 1.1
    one = reference.round_cost(L, [U], [16.0], [0.1], [20.0], 1.5)
    same = replace(one, G2=np.full(L, 1.5))
    assert np.allclose(one.truncation(T, m), same.truncation(T, m), rtol=1e-14)
    G2 = np.array([0.3, 2.0, 5.0, 0.1])
    parts = sum(replace(one, G2=np.where(np.arange(L) == l, G2, 0.0)).truncation(T, m)[0] for l in range(L))
    assert np.allclose(replace(one, G2=G2).truncation(T, m)[0], parts)
    p = p_empty_bound(L, T / m, U)
    assert np.allclose(parts, 4 * U / (U - 1) * (6 * p / (1 - 5 * p)) @ G2)
