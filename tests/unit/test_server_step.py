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
    make = torch.tensor if torch_ else np.array
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


def test_the_average_hands_out_a_mean_of_iterates_and_trains_like_sgd():
    plain, averaged = walk(ServerStep()), walk(ServerStep("average", beta1=0.5))
    assert np.allclose([w for w, _ in averaged], [w for w, _ in plain])
    iterates = np.array([w for w, _ in plain])
    weights = 0.5 ** np.arange(2, -1, -1)
    assert averaged[-1][1] == pytest.approx(weights @ iterates / weights.sum())
    assert averaged[0][1] == pytest.approx(iterates[0])


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
