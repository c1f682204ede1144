"""Know your device: times are taken apart as they were put together, and laws are told from each other."""

import json
import tomllib

import numpy as np
import pytest
import torch
from torch.nn import functional

from adelfl.errors import ConfigError
from adelfl.fitting import LAWS, fit_laws
from adelfl.learning.layers import find_layers
from adelfl.learning.models import build_model
from adelfl.learning.profile import measure
from adelfl.seeds import rng_for
from support.small_worlds import typed

P, START, FORWARD = 500.0, 0.002, 0.01
"""A machine: layers of one sample per second, seconds per layer and step, seconds per sample of a forward pass."""


class Machine:
    """A clock that goes on by what each piece of work takes on the machine above."""

    def __init__(self, costs):
        self.costs, self.time, self.size, self.asked = costs, 0.0, 0, None

    def loss(self, size):
        self.size, self.asked = size, 0

    def now(self):
        if self.asked is None or self.size == 0:
            return self.time
        if self.asked == 0:
            self.time += FORWARD * self.size
        elif self.asked <= len(self.costs):
            self.time += START + self.costs[-self.asked] * self.size / P
        self.asked += 1
        return self.time


def profile_of(costs, sizes, repeats=3):
    hidden = [4] * (len(costs) - 1)
    model = build_model("mlp", input_shape=(6,), classes=3, seed=0, hidden=hidden)
    x, y = torch.ones(64, 6), torch.zeros(64, dtype=torch.int64)
    machine = Machine(costs)

    def loss(size):
        machine.loss(size)
        return functional.cross_entropy(model(x[:size]), y[:size])

    def now():
        found = machine.now()
        if machine.asked == len(costs) + 2:
            machine.asked = None  # the step is over
        return found

    return measure(model, find_layers(model, x[:1]), loss, sizes, repeats, now)


def test_speed_and_overhead_of_a_known_machine_are_found():
    found = profile_of([1.0, 1.0, 1.0], [4, 8, 32])
    assert found.compute == pytest.approx(P)
    assert found.line == (pytest.approx(START), pytest.approx(1 / P))
    assert found.overhead == pytest.approx(FORWARD * 32 + 3 * START)
    assert found.variation == pytest.approx(0.0, abs=1e-12)


def test_layers_keep_their_own_costs_input_side_first():
    found = profile_of([3.0, 2.0, 1.0], [10])
    assert np.allclose(found.backward[0], START + np.array([3.0, 2.0, 1.0]) * 10 / P)
    assert np.allclose(found.forward, 10 * FORWARD)
    assert found.layers == ("dense1", "dense2", "dense3")


def test_one_batch_size_gives_a_speed_too():
    assert profile_of([1.0, 1.0], [10]).compute == pytest.approx(10 / (START + 10 / P))


SAMPLES = {
    "exponential": lambda rng: rng.exponential(2.0, 4000),
    "shifted exponential": lambda rng: 3.0 + rng.exponential(2.0, 4000),
    "gamma": lambda rng: rng.gamma(5.0, 0.4, 4000),
    "lognormal": lambda rng: rng.lognormal(0.3, 0.6, 4000),
}


@pytest.mark.parametrize("name", LAWS)
def test_each_law_is_recognised_by_its_samples(name):
    times = SAMPLES[name](rng_for(3, "law", name))
    best = fit_laws(times)[0]
    # A shift of nearly nothing, or a gamma of shape one, is an exponential law as well.
    assert best.name == name or (
        name == "exponential" and best.aic > {l.name: l for l in fit_laws(times)}[name].aic - 4
    )
    # Kolmogorov's 99 % limit is 1.63/√n; parameters that were fitted make it smaller still.
    assert best.distance < 1.63 / np.sqrt(times.size)
    assert np.allclose(best.quantile([0.25, 0.5, 0.75]), np.quantile(times, [0.25, 0.5, 0.75]), rtol=0.06)


def test_parameters_are_those_of_the_samples():
    rng = rng_for(4, "law")
    laws = {law.name: law for law in fit_laws(rng.gamma(5.0, 0.4, 20_000))}
    assert laws["gamma"].parameters["shape"] == pytest.approx(5.0, rel=0.05)
    assert laws["gamma"].parameters["mean"] == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("times", [[1.0] * 20, [1.0, 2.0], [-1.0, *range(1, 20)]])
def test_times_that_say_nothing_are_refused(times):
    with pytest.raises(ConfigError, match="at least 8 positive times"):
        fit_laws(times)


# -- the command


def test_the_entry_can_be_planned_with(tmp_path):
    plan = tmp_path / "fleet.toml"
    plan.write_text("[problem]\nrounds = 10\nbudget = 30.0\nlayers = 3\n")
    picture = tmp_path / "profile.png"
    for name in ("one", "two"):
        done = typed("profile", "--repeats", 3, "--name", name, "--out", plan, "--plot", picture)
        assert done.code == 0, done.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    devices = tomllib.loads(plan.read_text())["device"]
    assert [d["name"] for d in devices] == ["one", "two"]
    assert all(d["compute"] > 0 and d["upload"] > 0 for d in devices)
    assert typed("plan", plan).code == 0


def test_json_is_all_that_is_printed():
    done = typed("profile", "--repeats", 3, "--batch-sizes", "4,8", "--mbps", 1, "--json")
    said = json.loads(done.out)
    assert np.shape(said["backward"]) == (2, 3, 3)
    assert {law["name"] for law in said["laws"]} == set(LAWS)
    # An MLP 64-32-16-10 of 2,778 weights at four bytes and one megabit per second.
    assert said["device"]["upload"] > 2778 * 32 / 1e6


def test_batch_sizes_that_are_none_are_one_sentence():
    done = typed("profile", "--batch-sizes", "4,many")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "whole numbers" in done.err
