"""Strongly convex quadratics whose constants are all known, trained by eq. (5) in plain numpy.

F_u(w) = ½ Σ_l h_{u,l} ‖w_l − c_{u,l}‖² over L blocks of d numbers. One sample's gradient is ∇F_u plus Gaussian noise
of variance σ², so a batch of S has exactly σ²/S (A2). Hence ρ_c = min h, ρ_s = max h (A1), w_opt and Γ in closed form.
"""

from dataclasses import dataclass

import numpy as np

from .simulate import finished_layers, merge_weights


@dataclass(frozen=True, eq=False)
class Quadratics:
    h: np.ndarray  # (U, L)
    c: np.ndarray  # (U, L, d)
    sigma2: float

    @classmethod
    def draw(cls, rng, U, L, d=3, spread=1.0, sigma2=2.0):
        """Curvatures between 0.5 and 2, and minima that differ between devices by the spread."""
        return cls(rng.uniform(0.5, 2.0, (U, L)), spread * rng.standard_normal((U, L, d)), sigma2)

    @property
    def rho_c(self):
        return float(self.h.min())

    @property
    def rho_s(self):
        return float(self.h.max())

    @property
    def w_opt(self):
        """Where the mean gradient vanishes, (L, d)."""
        return np.einsum("ul,uld->ld", self.h, self.c) / self.h.sum(0)[:, None]

    @property
    def Gamma(self):
        """F(w_opt) less the mean of the devices' own minima, which are 0."""
        return float(0.5 * np.sum(self.h * ((self.w_opt - self.c) ** 2).sum(-1)) / self.h.shape[0])

    def gradients(self, w):
        """∇F_u(w) for w of shape (n, L, d): (n, U, L, d)."""
        return self.h[:, :, None] * (w[:, None] - self.c)


@dataclass(frozen=True, eq=False)
class Run:
    deviation: np.ndarray  # (R, n): ‖w̃_{t+1} − w_FedAvg,t+1‖², the FedAvg step taken from the same weights
    error: np.ndarray  # (n,): ‖w̃_{R+1} − w_opt‖²
    G2: float  # largest E‖∇F_u(w; i)‖² = ‖∇F_u(w)‖² + σ²/S_u over all devices at all weights that any replica visited


def train(quadratics, schedule, eta, w1, rng, replicas):
    """R rounds of eq. (5) with B3's integer batch sizes and exponential layer times, for many replicas at once.

    A3 asks for one G² at all weights, which no quadratic has. But Lemma 3 and Theorem 1 use it only at weights that
    the training visits, so the largest value met there will do: no more than the largest over a ball that contains
    them all, so the bounds below are the smallest that the paper allows, and the test the sharpest.
    """
    q, fleet, L = quadratics, schedule.fleet, schedule.layers
    w = np.repeat(w1[None], replicas, axis=0)
    deviation, G2 = [], 0.0
    for t, T in enumerate(schedule.deadlines):
        S = schedule.batch_sizes(t)
        g = q.gradients(w)
        G2 = max(G2, float((np.square(g).sum((-1, -2)) + q.sigma2 / S).max()))
        g += rng.standard_normal(g.shape) * np.sqrt(q.sigma2 / (S * w1.size))[:, None, None]
        z = finished_layers(rng, replicas, L, fleet.compute, fleet.upload, S, T)
        fedavg = w - eta[t] * g.mean(1)
        w = w - eta[t] * np.einsum("nul,nuld->nld", merge_weights(z, L, schedule.p_empty(t)), g)
        deviation.append(np.square(w - fedavg).sum((-1, -2)))
    return Run(np.array(deviation), np.square(w - q.w_opt).sum((-1, -2)), G2)
