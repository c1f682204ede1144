"""Laws of layer times and uploads: what is drawn, and what a plan is told of it."""

from dataclasses import replace

import numpy as np
import pytest

from adelfl.durations import Trace
from adelfl.errors import ConfigError
from adelfl.latency import Exponential, Latency, Law
from adelfl.seeds import rng_for
from adelfl.simulation import simulate
from adelfl.strategies import Orders
from adelfl.theory import participation
from support.small_worlds import draw_progress, experiment_of, setting_of

LAYERS, DRAWS = 4, 20_000
LAWS = {
    "exponential": Law(),
    "constant": Law("constant"),
    "shifted": Law("shifted", 0.4),
    "gamma": Law("gamma", 0.5),
    "lognormal": Law("lognormal", 1.2),
    "samples": Law("samples", values=(1.0, 1.0, 2.0, 7.0)),
}
UNEVEN = Trace(np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 4.0, 0.0, 2.0]))
LAP = 4.0 + 4.0 / 3.0  # the last rate holds as long as the mean of the others


@pytest.mark.parametrize("name", LAWS)
def test_a_law_has_mean_one_and_the_variation_that_it_says(name):
    times = LAWS[name].quantile(rng_for(1, name).random(400_000))
    error = times.std() / np.sqrt(times.size)
    assert abs(times.mean() - 1.0) <= 4 * error + 1e-12
    assert times.std() == pytest.approx(LAWS[name].variation, rel=0.03, abs=1e-9)
    assert times.min() >= 0


MODELS = {
    **{f"{name} layers": Latency(law) for name, law in LAWS.items()},
    "layers of unequal cost": Latency(Law("gamma", 0.7), costs=(1.0, 5.0, 2.0, 0.5)),
    "a forward pass": Latency(Law("gamma", 0.7), forward=1.5),
    "random uploads": Latency(Law("exponential"), upload=Law("lognormal", 0.8)),
    "uploads by size": Latency(Law("exponential"), shares=(8.0, 4.0, 2.0, 1.0)),
    "random uploads by size": Latency(Law("lognormal", 0.5), upload=Law("gamma", 0.5), shares=(8.0, 4.0, 2.0, 1.0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_told_how_often_layers_really_arrive(name):
    """Within 4 standard errors of 20,000 draws, and the 0.02 that a table and 16 points of an upload may be off."""
    model, rng = MODELS[name], rng_for(2, name)
    mean, upload, T = np.array([0.2, 0.4, 0.9]), np.array([0.3, 0.0, 0.6]), 2.0
    arrived = np.zeros((3, LAYERS))
    for _ in range(DRAWS // 100):
        many, later = np.repeat(mean, 100), np.repeat(upload, 100)
        finished = np.cumsum(model.layer_times(rng, many, LAYERS, LAYERS), axis=1)
        sending = model.upload_times(rng, later, LAYERS)
        sending = sending[:, None] if sending.ndim == 1 else sending
        arrived += (finished + sending <= T)[:, ::-1].reshape(3, 100, LAYERS).sum(axis=1)
    share = arrived / DRAWS
    said = model.delivery(mean, upload, T, LAYERS)
    error = np.sqrt(share * (1 - share) / DRAWS)
    if name == "constant layers":  # all or nothing
        assert np.array_equal(said > 0.5, share > 0.5)
    else:
        assert np.all(np.abs(said - share) <= 4 * error + 0.02), (said, share)
    assert np.all(np.diff(said, axis=1) >= -1e-12)  # later layers first


def test_exponential_times_by_table_are_those_of_the_closed_form():
    mean, upload = np.array([0.1, 0.5]), np.array([0.0, 0.2])
    table, closed = (m.delivery(mean, upload, 1.3, 3) for m in (Latency(), Exponential()))
    assert table == pytest.approx(closed, abs=0.01)
    assert closed == pytest.approx(participation.delivery(3, np.array([13.0, 2.2])))


def test_delivery_of_devices_of_extremely_different_speed_does_not_overflow():
    with np.errstate(all="raise"):
        said = Latency(LAWS["constant"]).delivery(np.array([1e-200, 1.0]), np.zeros(2), np.array([1.5]), LAYERS)
    assert said[0].tolist() == [1.0] * LAYERS
    assert said[1, -1] == 1.0


def test_delivery_takes_many_deadlines_at_once():
    mean, upload = np.full((5, 2), 0.3), np.array([0.1, 0.4])
    T = np.linspace(0.5, 2.0, 5)[:, None]
    for model in (Exponential(), MODELS["random uploads"], MODELS["uploads by size"]):
        whole = model.delivery(mean, upload, T, LAYERS)
        assert whole.shape == (5, 2, LAYERS)
        assert whole[3] == pytest.approx(model.delivery(mean[3], upload, T[3], LAYERS))


def test_the_forward_pass_is_paid_in_every_iteration_and_costs_follow_the_layers():
    model = Latency(Law("constant"), costs=(1.0, 2.0, 3.0), forward=0.5)
    times = model.layer_times(rng_for(3), np.array([2.0]), 6, 3)[0]
    assert times == pytest.approx(2.0 * np.array([2.0, 1.0, 0.5, 2.0, 1.0, 0.5]))  # layers 3, 2, 1 of mean 1, twice


def test_a_steady_trace_changes_nothing_and_an_uneven_one_nothing_on_average():
    steady = Trace(np.array([0.0, 1.0, 2.0]), np.array([3.0, 3.0, 3.0]))
    amount = np.array([0.5, 5.0])
    assert steady.times(amount, np.array([0.2, 0.7])) == pytest.approx(amount)
    luck = (np.arange(2000) + 0.5) / 2000
    # A whole lap takes a lap, wherever it begins while something is sent.
    sending = (luck * LAP < 2.0) | (luck * LAP > 4.0)
    assert UNEVEN.times(np.full(2000, LAP), luck)[sending] == pytest.approx(np.full(sending.sum(), LAP))
    assert UNEVEN.times(np.zeros(2000), luck) == pytest.approx(np.zeros(2000))


def test_where_a_trace_stands_still_an_upload_waits():
    # From second 2 to 4 nothing is sent.
    assert UNEVEN.times(np.array([1e-9, 0.0]), np.full(2, 2.5 / LAP)) == pytest.approx([1.5, 0.0])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Law("weibull"),
        lambda: Law("samples", values=(1.0,)),
        lambda: Law("shifted", 1.5),
        lambda: Law("gamma", 0.0),
        lambda: Latency(costs=(0.0, 0.0)),
        lambda: Latency(forward=-1.0),
        lambda: Latency(costs=(1.0, 2.0)).delivery(np.ones(1), np.zeros(1), 1.0, 3),
    ],
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()


# -- a model of the user's is checked like a strategy of the user's


def spoiled(method, change):
    """The paper's model, of which one method gives something that cannot be."""
    return type(
        "Spoiled", (Exponential,), {method: lambda self, *given: change(getattr(Exponential, method)(self, *given))}
    )()


def put(value):
    def change(values):
        values = np.array(values, dtype=np.float64)
        values.flat[0] = value
        return values

    return change


WRONG = {
    "NaN durations": ("layer_times", put(np.nan), "layer_times gave NaN in round 1"),
    "negative durations": ("layer_times", put(-2.5), "layer_times gave -2.5 in round 1"),
    "durations of a layer alone": (
        "layer_times",
        lambda v: v[:, 0],
        r"layer_times gave numbers of shape \(5,\) in round 1",
    ),
    "no numbers": ("layer_times", lambda v: "long", "layer_times gave str in round 1"),
    "NaN uploads": ("upload_times", put(np.nan), "upload_times gave NaN in round 1"),
    "negative uploads": ("upload_times", put(-1.0), "upload_times gave -1 in round 1"),
    "uploads of one device": ("upload_times", lambda v: v[:1], r"upload_times gave numbers of shape \(1,\) in round 1"),
    "probabilities above one": ("delivery", put(1.5), "delivery gave a probability of 1.5 in (round 1|a plan)"),
    "negative probabilities": ("delivery", put(-0.5), "delivery gave -0.5 in (round 1|a plan)"),
    "NaN probabilities": ("delivery", put(np.nan), "delivery gave NaN in (round 1|a plan)"),
    "one probability per device": (
        "delivery",
        lambda v: v[..., 0],
        r"delivery gave numbers of shape .* the shape must be",
    ),
}


@pytest.mark.parametrize("strategy", ["salf", "adel"])
@pytest.mark.parametrize(("method", "change", "sentence"), WRONG.values(), ids=WRONG)
def test_what_a_latency_model_cannot_mean_is_one_sentence_with_its_name_and_the_round(
    strategy, method, change, sentence
):
    latency = spoiled(method, change)
    setting = replace(setting_of(3), latency=latency)
    with pytest.raises(ConfigError, match=f"^latency model Spoiled: {sentence}"):
        simulate(experiment_of(strategy, setting=setting))


def test_a_later_round_is_named():
    class Later(Exponential):
        calls = 0

        def layer_times(self, *given):
            self.calls += 1
            return -super().layer_times(*given) if self.calls == 3 else super().layer_times(*given)

    with pytest.raises(ConfigError, match=r"^latency model Later: layer_times gave -.* in round 3"):
        simulate(experiment_of("salf", setting=replace(setting_of(3), latency=Later())))


def test_a_device_may_take_forever():
    latency = spoiled("layer_times", put(np.inf))
    result = simulate(experiment_of("salf", setting=replace(setting_of(3), latency=latency)))
    assert result.rounds == 10


def test_the_merge_corrects_with_the_probabilities_of_a_subclass_too():
    """A subclass of the paper's model that overrides ``delivery`` is asked, and not taken for the paper's."""

    class Certain(Exponential):
        def delivery(self, mean, upload, deadline, layers):
            return np.ones_like(super().delivery(mean, upload, deadline, layers))

    setting = setting_of(3)
    devices = np.arange(setting.devices)
    orders = Orders(1.0, np.full(devices.size, 4))
    progress, _ = draw_progress(setting, Certain(), 0, 0, devices, orders)
    assert (progress.pi == 1.0).all()
