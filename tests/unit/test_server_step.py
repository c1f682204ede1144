"""Server steps: the rules of FedOpt, on arrays of NumPy and tensors of torch alike, and limits between them."""

import numpy as np
import pytest
import torch

from adelfl.errors import ConfigError
from adelfl.runtime.server_step import ServerStep

CHANGES = [np.array([0.5, -1.0, 0.0]), np.array([0.1, 0.2, 0.0]), np.array([-0.3, 0.4, 0.2])]
NAMES = ("sgd", "momentum", "adagrad", "adam", "yogi", "average")


def walk(step, changes=CHANGES, torch_=False):
    """Weights after each change, and what the server hands out then."""
    make = torch.DoubleTensor if torch_ else np.array
    weights, state, path = {"w": make([1.0, 2.0, 3.0])}, {}, []
    for change in changes:
        step.apply(weights, {"w": make(change)}, state)
        shown = step.shown(weights, state)["w"]
        path.append(tuple(v.numpy().copy() if torch_ else v.copy() for v in (weights["w"], shown)))
    return path


def test_sgd_adds_the_change():
    after = [w for w, _ in walk(ServerStep())]
    assert np.allclose(after, np.array([1.0, 2.0, 3.0]) + np.cumsum(CHANGES, axis=0))


def test_momentum_adam_yogi_and_adagrad_follow_reddi_et_al():
    w = {name: np.array([1.0, 2.0, 3.0]) for name in NAMES}
    b1, b2, tau = 0.8, 0.95, 1e-2
    m, v = {name: np.zeros(3) for name in NAMES}, {name: np.full(3, tau**2) for name in NAMES}
    for d in CHANGES:
        m["momentum"] = b1 * m["momentum"] + d
        w["momentum"] = w["momentum"] + 0.5 * m["momentum"]
        v["adagrad"] = v["adagrad"] + d**2
        w["adagrad"] = w["adagrad"] + 0.5 * d / (np.sqrt(v["adagrad"]) + tau)
        for name in ("adam", "yogi"):
            m[name] = b1 * m[name] + (1 - b1) * d
            v[name] = (
                b2 * v[name] + (1 - b2) * d**2
                if name == "adam"
                else v[name] - (1 - b2) * d**2 * np.sign(v[name] - d**2)
            )
            w[name] = w[name] + 0.5 * m[name] / (np.sqrt(v[name]) + tau)
    for name in ("momentum", "adagrad", "adam", "yogi"):
        found = walk(ServerStep(name, lr=0.5, beta1=b1, beta2=b2, tau=tau))[-1][0]
        assert found == pytest.approx(w[name], rel=1e-12), name


@pytest.mark.parametrize("name", NAMES)
def test_numpy_and_torch_take_the_same_step(name):
    for one, other in zip(walk(ServerStep(name)), walk(ServerStep(name), torch_=True), strict=True):
        assert np.allclose(one, other, rtol=1e-6)


def test_momentum_without_memory_is_sgd():
    assert np.allclose(walk(ServerStep("momentum", beta1=0.0)), walk(ServerStep()))


POWER_LAW = 1 / np.arange(1, 201.0)


def descend(rate, rounds, curvature=POWER_LAW, torch_=False, seed=0):
    """Losses of noisy gradient descent from afar on a quadratic: those of the iterates, and of what is handed out."""
    rng, make = np.random.default_rng(seed), torch.tensor if torch_ else np.array
    step, weights, state, losses = ServerStep("average"), {"w": make(np.full(curvature.size, 3.0))}, {}, []
    for _ in range(rounds):
        noise = np.sqrt(curvature) * rng.standard_normal(curvature.size)
        gradient = curvature * np.asarray(weights["w"]) + noise
        step.apply(weights, {"w": make(-rate * gradient)}, state)
        both = weights["w"], step.shown(weights, state)["w"]
        losses.append([curvature @ np.square(np.asarray(w)) / 2 for w in both])
    return np.array(losses).T


def test_the_average_trains_like_sgd():
    assert np.allclose([w for w, _ in walk(ServerStep("average"))], [w for w, _ in walk(ServerStep())])


def test_far_from_the_minimum_the_iterate_itself_is_handed_out():
    plain, averaged = descend(rate=0.01, rounds=200)
    assert np.array_equal(plain, averaged)


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_near_the_minimum_the_average_has_less_than_half_of_the_loss(rate):
    """SGD on ‖w‖²/2 levels off at the loss η/(2 − η)/2 per weight; a mean of its iterates falls further."""
    plain, averaged = descend(rate, 600, np.ones(50))
    assert plain[-100:].mean() == pytest.approx(25 * rate / (2 - rate), rel=0.1)
    assert averaged[-100:].mean() < 0.5 * plain[-100:].mean()


@pytest.mark.parametrize("curvature", [POWER_LAW, POWER_LAW**2, np.ones(50)], ids=["1/k", "1/k²", "equal"])
@pytest.mark.parametrize("rate", [0.003, 0.03, 0.1, 0.3, 1.0])
def test_the_average_is_not_worse_at_any_rate_and_any_time(rate, curvature):
    """The mean over ten seeds, in 95 % of the rounds; the others are at the transition to noise."""
    plain, averaged = np.mean([descend(rate, 300, curvature, seed=seed) for seed in range(10)], axis=0)
    assert (averaged <= 1.05 * plain).mean() >= 0.95


def test_the_average_of_torch_tensors_is_the_same():
    assert np.allclose(descend(0.3, 50), descend(0.3, 50, torch_=True))


@pytest.mark.parametrize("name", NAMES)
def test_parameters_without_a_change_stay(name):
    weights, state = {"a": np.ones(2), "b": np.ones(2)}, {}
    ServerStep(name).apply(weights, {"a": np.ones(2)}, state)
    assert np.array_equal(weights["b"], np.ones(2))
    assert not np.array_equal(weights["a"], np.ones(2))


@pytest.mark.parametrize(
    ("options", "match"), [({"name": "sdg"}, "one of"), ({"lr": -1.0}, "positive"), ({"beta1": 1.0}, "below 1")]
)
def test_bad_options_are_one_sentence(options, match):
    with pytest.raises(ConfigError, match=match):
        ServerStep(**options)
