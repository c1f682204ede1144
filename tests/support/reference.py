"""The paper's formulas as they stand, in mpmath, and hypothesis-made problems to compare them on."""

import mpmath as mp
import numpy as np
from hypothesis import strategies as st

from adelfl.theory.bound import RoundCost

GROUPS = 4


def survival(L, x):
    """Q(s, x) = Σ_{k<s} e^{−x} x^k / k! for s = 1..L, at the working precision."""
    term, total, out = mp.exp(-x), mp.mpf(0), []
    for s in range(1, L + 1):
        total += term
        out.append(total)
        term = term * x / s
    return out


def batch_term(cost, T, m, sigma2, count):
    """U⁻² Σ_u σ_u² / (m P_u (1 − B_u/T) − 1)."""
    total = mp.mpf(0)
    for P, B, s2, n in zip(cost.P, cost.B, sigma2, count, strict=True):
        total += n * mp.mpf(float(s2)) / (m * mp.mpf(float(P)) * (1 - mp.mpf(float(B)) / T) - 1)
    return total / mp.mpf(cost.U) ** 2


def truncation_term(cost, T, m):
    """C_t = G² 4U/(U−1) Σ_l (1+p)/(1−5p), p = Q(L+1−l, T/m)^U."""
    p = [Q**cost.U for Q in survival(cost.L, T / m)]
    return mp.mpf(cost.G2) * 4 * cost.U / (cost.U - 1) * sum((1 + v) / (1 - 5 * v) for v in p)


def plannable_truncation(cost, T, m):
    """The same less its value at p = 0, in the form that keeps its digits: (1+p)/(1−5p) − 1 = 6p/(1−5p)."""
    p = [Q**cost.U for Q in survival(cost.L, T / m)]
    return mp.mpf(cost.G2) * 4 * cost.U / (cost.U - 1) * sum(6 * v / (1 - 5 * v) for v in p)


def round_cost(L, count, P, B, sigma2, G2=1.5):
    """RoundCost of all devices of a fleet in groups."""
    count = np.asarray(count, dtype=np.float64)
    share = np.asarray(sigma2, dtype=np.float64) * count / count.sum()
    return RoundCost(L, int(count.sum()), np.asarray(P, np.float64), np.asarray(B, np.float64), share, G2)


def log_uniform(low, high):
    return st.floats(np.log(low), np.log(high)).map(lambda v: float(np.exp(v)))


@st.composite
def problems(draw, largest_L=50, largest_U=10**6):
    """A cost with U from 2 to about 10⁶ devices, and each group's σ² and count."""
    groups = draw(st.integers(1, GROUPS))
    L = draw(st.integers(1, largest_L))
    count = [draw(log_uniform(2, largest_U / groups).map(round)) for _ in range(groups)]
    P = [draw(log_uniform(0.1, 100.0)) for _ in range(groups)]
    B = [draw(st.one_of(st.just(0.0), log_uniform(1e-3, 10.0))) for _ in range(groups)]
    sigma2 = [draw(log_uniform(0.1, 100.0)) for _ in range(groups)]
    return round_cost(L, count, P, B, sigma2, draw(log_uniform(0.1, 100.0))), sigma2, count


@st.composite
def feasible_points(draw, cost, nearest=0.01, farthest=20.0):
    """(T, m) in the domain: m above 1/min P, T a relative distance above the smallest deadline."""
    m = (1.0 + draw(log_uniform(0.01, 1e4))) / float(np.min(cost.P))
    return cost.smallest_deadline(m) * (1.0 + draw(log_uniform(nearest, farthest))), m


def C(cost, T, m):
    """C_t of Theorem 1 (Lemma 3 without η_t²) in floating point, shape (R,)."""
    return cost.truncation(T, m)[0] + float(cost.truncation_scale.sum())
