"""Know your device: times are taken apart as they were put together, and laws are told from each other."""

import importlib
import json
import re
import tomllib

import numpy as np
import pytest
import torch
from torch.nn import functional

from adelfl.config.build_fleet import given_fleet
from adelfl.config.run import load_run
from adelfl.errors import ConfigError
from adelfl.fitting import fit_laws
from adelfl.seeds import rng_for
from adelfl.training.layers import find_layers
from adelfl.training.models import build_model
from adelfl.training.profile import Profile, measure
from support.small_worlds import typed

LAWS = ("exponential", "shifted exponential", "gamma", "lognormal")

cli_profile = importlib.import_module("adelfl.cli.profile")

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
    for name in ("one", "two"):
        done = typed("profile", "--repeats", 3, "--name", name, "--out", plan)
        assert done.code == 0, done.err
    devices = tomllib.loads(plan.read_text())["device"]
    assert [d["name"] for d in devices] == ["one", "two"]
    assert all(d["compute"] > 0 and d["upload"] > 0 for d in devices)
    assert typed("plan", plan).code == 0


def test_what_profile_writes_can_be_planned_with_by_itself_and_as_the_fleet_of_another_problem(tmp_path):
    fleet, problem = tmp_path / "fleet.toml", tmp_path / "p.toml"
    problem.write_text("[problem]\nrounds = 10\nbudget = 30.0\nlayers = 3\n")
    assert typed("profile", "--repeats", 3, "--name", "one", "--count", 5, "--out", fleet).code == 0
    said = tomllib.loads(fleet.read_text())
    assert (said["problem"]["layers"], said["problem"]["rounds"]) == (3, 100)  # of the model and of the experiment
    assert said["problem"]["budget"] > 0
    assert typed("plan", fleet).code == 0
    planned = typed("plan", problem, "--fleet", fleet)
    assert planned.code == 0, planned.err
    assert "5 devices, 3 layers, 10 rounds in 30 s" in planned.out


def test_any_name_and_automatic_rounds_are_written_as_toml(tmp_path):
    fleet, sizes = tmp_path / "fleet.toml", ("--repeats", 3, "--batch-sizes", "2,4")
    auto = ("--set", "training.rounds=auto", "--set", "training.budget=50")
    done = typed("profile", *sizes, *auto, "--name", "a 📱", "--count", 2, "--out", fleet)
    assert done.code == 0, done.err
    said = tomllib.loads(fleet.read_text(encoding="utf-8"))
    assert (said["problem"]["rounds"], said["device"][0]["name"]) == ("auto", "a 📱")


def test_a_file_of_devices_alone_is_told_apart_from_a_problem(tmp_path):
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[[device]]\ncompute = 1.0\ncount = 3\n")
    done = typed("plan", fleet)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no [problem]" in done.err
    assert "--fleet" in done.err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[device]]\ncompute = 0\n", "device[1].compute: must be greater than 0"),
        ("[[devices]]\ncompute = 1.0\n", "the fleet is empty"),
        ("compute,upload\n1,0\n", "not valid TOML"),
    ],
)
def test_a_fleet_file_that_is_none_is_one_sentence_with_its_name(tmp_path, text, sentence):
    fleet, problem = tmp_path / "fleet.toml", tmp_path / "p.toml"
    problem.write_text("[problem]\nrounds = 10\nbudget = 30.0\nlayers = 3\n")
    fleet.write_text(text)
    done = typed("plan", problem, "--fleet", fleet)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"error: {fleet}: ")
    assert done.err.count(str(fleet)) == 1
    assert sentence in done.err


def test_a_run_reads_what_profile_writes(tmp_path):
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[problem]\nlayers = 3\n[[device]]\ncompute = 8.0\ncount = 3\n[[device]]\ncompute = 2.0\n")
    built = given_fleet(load_run(None, [f"fleet.file={fleet}"]))
    assert (built.compute.tolist(), built.count.tolist()) == ([8.0, 2.0], [3, 1])


@pytest.mark.parametrize(
    ("before", "options", "sentence"),
    [
        (None, ("--upload", "nan"), "--upload nan: must be a finite number"),
        (None, ("--upload", "inf"), "--upload inf: must be a finite number"),
        (None, ("--mbps", "nan"), "--mbps nan: must be a finite number"),
        (None, ("--mbps", "inf"), "--mbps inf: must be a finite number"),
        (None, ("--mbps", "2", "--upload", "1"), "--upload and --mbps: give one of them"),
        ('[[device]]\nname = "one"\ncompute = 1.0\n', (), "already has a device named 'one'"),
        ("device = [{ compute = 1.0 }]\n", (), "cannot be added"),
        ("[[device\n", (), "not valid TOML"),
    ],
)
def test_what_cannot_be_added_is_said_before_measuring_and_the_file_stays(
    tmp_path, monkeypatch, before, options, sentence
):
    monkeypatch.setattr(cli_profile, "_measured", lambda *_: pytest.fail("measured"))
    out = tmp_path / "fleet.toml"
    if before is not None:
        out.write_text(before)
    done = typed("profile", "--name", "one", "--out", out, *options)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert sentence in done.err
    assert (out.read_text() if out.exists() else None) == before


def test_another_name_for_the_file_is_refused(tmp_path):
    done = typed("profile", "--out", tmp_path / "fleet.csv")
    assert (done.code, "must end in .toml" in done.err) == (2, True)


def profile_with_noise(slope, noise=1.0):
    """A profile whose mean layer takes 100 + slope · batch seconds, give or take ``noise``."""
    sizes = (4, 8, 16, 32)
    steps = 100.0 + slope * np.array(sizes)[:, None] + noise * rng_for(5, "steps").standard_normal((4, 20))
    return Profile(("a", "b"), sizes, np.ones((4, 20)), np.repeat(steps[:, :, None], 2, axis=2))


@pytest.mark.parametrize(("slope", "grows"), [(1.0, True), (0.0, False), (-1.0, False)])
def test_times_that_do_not_grow_with_the_batch_are_noticed_and_all_count_as_the_samples(slope, grows):
    found = profile_with_noise(slope)
    assert found.grows == grows
    expected = slope if grows else (100.0 + 32 * slope) / 32
    assert 1.0 / found.compute == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("slope", "warned"), [(1.0, False), (0.0, True)])
def test_times_that_do_not_grow_with_the_batch_are_a_warning(monkeypatch, slope, warned):
    monkeypatch.setattr(cli_profile, "_measured", lambda *_: (profile_with_noise(slope), 1.0))
    done = typed("profile")
    assert done.code == 0
    assert ("warning: the layer times do not grow measurably with the batch size" in done.err) == warned


def test_laws_are_in_the_order_of_the_distances_that_are_printed():
    printed = [float(d) for d in re.findall(r"distance (\d\.\d\d)", typed("profile", "--repeats", 5).out)]
    assert len(printed) == len(LAWS)
    assert printed == sorted(printed)
    told = json.loads(typed("profile", "--repeats", 5, "--json").out)["laws"]
    assert [law["distance"] for law in told] == sorted(law["distance"] for law in told)


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
