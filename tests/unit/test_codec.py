"""What uploads are turned into: sizes, rounding, the time that a round takes, and what is remembered across a crash."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from adelfl.config.build import build_experiment
from adelfl.config.run import load_run
from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.records.reader import RunRecord
from adelfl.runtime.codec import QSGD, Codec, Decoded, TernGrad, TopK, Uploads, find_codec
from adelfl.seeds import rng_for
from adelfl.simulation import engine, simulate
from adelfl.simulation.world import World
from support.small_worlds import SMALL, experiment_of, kept_bytes, run, same_bits

RNG = np.random.default_rng(0)


def update_of(scale=1.0, dtype=np.float32):
    return {"a.weight": (scale * RNG.standard_normal((7, 5))).astype(dtype), "b.bias": np.zeros(3, dtype)}


@dataclass(frozen=True)
class Dithered(Codec):
    """Round to multiples of a step, up or down at random: unbiased."""

    step: float = 0.01
    name: str = "dithered"
    lossy: bool = True

    def bytes(self, update):
        return sum(int(value.nbytes // value.itemsize) for value in update.values())

    def encode(self, update, rng, memory):
        rounded = {
            name: self.step * torch.floor(value / self.step + torch.from_numpy(rng.random(tuple(value.shape))))
            for name, value in update.items()
        }
        return Decoded({name: value.float() for name, value in rounded.items()}, memory)


@pytest.mark.parametrize(("dtype", "share"), [(np.float32, 0.5), (np.float64, 0.25)])
def test_half_takes_two_bytes_for_each_number_and_none_what_the_numbers_take(dtype, share):
    update = update_of(dtype=dtype)
    assert find_codec("half").bytes(update) == 2 * 38
    assert find_codec("none").bytes(update) == 38 * np.dtype(dtype).itemsize
    assert find_codec("half").relative_size(update) == share
    assert find_codec("none").relative_size(update) == 1.0
    part = {"b.bias": update["b.bias"]}  # a device that finished its last layer only
    assert find_codec("half").bytes(part) == 6
    tensors = {name: torch.from_numpy(value) for name, value in update.items()}
    assert all(find_codec(name).bytes(tensors) == find_codec(name).bytes(update) for name in ("none", "half"))


def test_none_returns_the_update_itself():
    update = update_of()
    assert find_codec("none").encode(update, RNG, {}).update is update


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 1e3])
def test_half_is_off_by_at_most_the_spacing_of_float16_on_arrays_and_tensors_alike(scale):
    update = update_of(scale)
    decoded = find_codec("half").encode(update, RNG, {}).update
    tensors = {name: torch.from_numpy(value) for name, value in update.items()}
    on_torch = find_codec("half").encode(tensors, RNG, {}).update
    for name, value in update.items():
        bound = np.maximum(2.0**-11 * np.abs(value), 2.0**-25)
        assert (np.abs(decoded[name] - value) <= bound).all()
        assert decoded[name].dtype == value.dtype
        np.testing.assert_array_equal(on_torch[name].numpy(), decoded[name])
    again = find_codec("half").encode(decoded, RNG, {}).update
    np.testing.assert_array_equal(again["a.weight"], decoded["a.weight"])
    assert (decoded["a.weight"] != update["a.weight"]).any()


@pytest.mark.parametrize("chosen", ["loop", "fused"])
def test_none_changes_nothing_to_the_bit(chosen):
    plain = experiment_of(engine=chosen)
    one, other = run(plain), run(replace(plain, codec="none"))
    assert one.rows == other.rows
    assert same_bits(one.weights, other.weights)


def test_half_trains_nearly_as_none_when_uploads_take_no_time():
    fleet = Fleet.of([10.0, 20.0, 14.0, 40.0, 25.0], 0.0)
    plain, half = (run(replace(experiment_of(engine="loop", fleet=fleet), codec=c)) for c in ("none", "half"))
    assert [row.depth for row in plain.rows[1:]] == [row.depth for row in half.rows[1:]]
    moved = [np.abs(plain.weights[name] - value).max() for name, value in half.weights.items()]
    assert 0 < max(moved) < 1e-3


@pytest.mark.parametrize(
    ("codec", "share"), [("half", 0.5), (TopK(0.25), 0.5), (Dithered(), 0.25), ("qsgd", 0.25), ("terngrad", 1 / 16)]
)
def test_a_round_shortens_by_what_the_codec_saves_of_the_upload(codec, share):
    """A round of ``wait`` lasts as long as its slowest device: computing, then its upload."""
    fleet = Fleet.of([1e12] * 5, [1.0, 2.0, 4.0, 8.0, 3.0])  # computing takes no time
    slow = experiment_of("wait", fleet=fleet, budget=100.0)
    slow = replace(slow, world=World(fleet, slow.seed, 100.0))
    lengths = [run(replace(slow, codec=c)).rows[1].deadline for c in ("none", codec)]
    exactly = find_codec(codec).relative_size(dict(slow.model.named_parameters()))
    assert lengths[1] == pytest.approx(exactly * lengths[0], rel=1e-6)
    assert share <= exactly <= 1.05 * share + 0.03  # a scale for each of some small parameters, and whole bytes
    assert lengths[0] == pytest.approx(8.0)


def test_run_files_name_the_codec_and_strategies_plan_with_the_shorter_upload():
    changes = [*SMALL, "fleet.upload=0.2", "fleet.upload_sigma=0.5"]
    plain, half = (build_experiment(load_run(None, [*changes, f"training.codec={c}"])) for c in ("none", "half"))
    np.testing.assert_array_equal(half.strategy.problem.fleet.upload, plain.strategy.problem.fleet.upload / 2)
    np.testing.assert_array_equal(half.world.fleet.upload, plain.world.fleet.upload)
    assert half.strategy.problem.budget == plain.strategy.problem.budget
    assert (plain.codec, half.codec) == ("none", "half")


def test_records_name_the_codec(tmp_path):
    simulate(replace(experiment_of(), codec="half"), record=tmp_path / "run")
    assert RunRecord.open(tmp_path / "run").info.codec == "half"
    with pytest.raises(ConfigError, match=r"another training\.codec"):
        simulate(experiment_of(), record=tmp_path / "run")


def test_a_record_of_a_version_without_codecs_is_one_of_none(tmp_path):
    first = simulate(experiment_of(), record=tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about.pop("codec") == "none"
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    assert simulate(experiment_of(), record=tmp_path / "run") == first


def test_a_lossy_codec_uses_the_loop_engine_and_no_other_is_accepted():
    assert simulate(replace(experiment_of(), codec="half")).engine == "loop"
    for name in ("fused", "stacked"):
        with pytest.raises(ConfigError, match=f"engine '{name}' does not compute the update of each device"):
            simulate(replace(experiment_of(engine=name), codec="half"))


def test_an_unknown_codec_is_one_sentence():
    known = "must be one of none, half, top-k, qsgd, terngrad"
    with pytest.raises(ConfigError, match=f"codec {known}, or a Codec, not 'zip'"):
        replace(experiment_of(), codec="zip")
    with pytest.raises(ConfigError, match=f"training.codec: {known}, not 'zip'"):
        load_run(None, ["training.codec=zip"])
    for word in ("top-k[k=3]", "top-k[share=x]", "qsgd[bits]", "terngrad[bits=2]"):
        with pytest.raises(ConfigError, match="options must be those of"):
            find_codec(word)
    for word in ("top-k[share=0]", "top-k[share=2]", "qsgd[bits=1]", "qsgd[bits=4.5]", "qsgd[bucket=0]"):
        with pytest.raises(ConfigError, match=r"codec (top-k|qsgd): (share|bits|bucket) must be"):
            find_codec(word)


@pytest.mark.parametrize("strategy", ["salf", "adel", "heterofl", "fedbuff", "scaffold"])
@pytest.mark.parametrize("codec", ["top-k[share=0.1]", "qsgd[bits=4]", "terngrad", Dithered()], ids=str)
def test_what_a_codec_remembers_and_draws_survives_a_crash(tmp_path, monkeypatch, strategy, codec):
    monkeypatch.setattr(engine, "_CHECKPOINT_SECONDS", -1.0)
    experiment = replace(experiment_of(strategy, depth=0.95), codec=codec)
    assert simulate(experiment, record=tmp_path / "whole").rounds >= 4

    def interrupt(row):
        if row.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(experiment, record=tmp_path / "cut", report=interrupt)
    simulate(experiment, record=tmp_path / "cut")
    assert kept_bytes(tmp_path / "cut") == kept_bytes(tmp_path / "whole")


def test_what_is_not_sent_is_remembered_for_each_device_and_layer():
    uploads = Uploads(TopK(0.2), seed=1)
    last, first = torch.tensor([5.0, 1.0, 1.0, 1.0, 1.0]), torch.tensor([0.0, 3.0, 0.0, 0.0, 1.0])
    assert uploads.send({"last": last}, 0, 7)["last"].tolist() == [5.0, 0.0, 0.0, 0.0, 0.0]
    both = uploads.send({"first": first, "last": torch.tensor([0.0, 0.0, 0.5, 0.0, 0.0])}, 1, 7)
    assert both["last"].tolist() == [0.0, 0.0, 1.5, 0.0, 0.0]  # what was left, and what came
    assert both["first"].tolist() == [0.0, 3.0, 0.0, 0.0, 0.0]
    assert uploads.memory[7]["last"].tolist() == [0.0, 1.0, 0.0, 1.0, 1.0]
    assert 3 not in uploads.memory


def test_random_numbers_of_an_upload_depend_on_seed_task_and_device_alone():
    update = {"a": torch.full((2000,), 0.003)}
    one, same, other = (Uploads(Dithered(), seed=2).send(update, *who)["a"] for who in ((4, 1), (4, 1), (4, 2)))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    expected = 0.01 * np.floor(0.3 + rng_for(2, "codec", 4, 1).random(2000))
    np.testing.assert_allclose(one.numpy(), expected, atol=1e-7)


# -- top-k, QSGD, TernGrad

LOSSY = ("top-k[share=0.2]", "qsgd", "qsgd[bits=4;bucket=16]", "terngrad")


@pytest.mark.parametrize("name", LOSSY)
def test_arrays_and_tensors_are_encoded_alike_and_keep_their_type(name):
    update = update_of()
    tensors = {key: torch.from_numpy(value) for key, value in update.items()}
    one, other = (find_codec(name).encode(u, rng_for(1, "x"), {}).update for u in (update, tensors))
    assert find_codec(name).bytes(update) == find_codec(name).bytes(tensors)
    for key, value in one.items():
        assert value.dtype == np.float32
        assert value.shape == update[key].shape
        np.testing.assert_array_equal(other[key].numpy(), value)
    nothing = {"w": np.zeros((0, 3), np.float32)}
    assert find_codec(name).encode(nothing, RNG, {}).update["w"].shape == (0, 3)
    assert find_codec(name).bytes(nothing) == 0


@pytest.mark.parametrize("name", ["qsgd", "qsgd[bits=4]", "qsgd[bits=4;bucket=7]", "terngrad"])
def test_quantisation_is_right_on_average(name):
    value, codec, draws = update_of()["a.weight"], find_codec(name), 4000
    decoded = np.stack([codec.encode({"w": value}, rng_for(k, "draw"), {}).update["w"] for k in range(draws)])
    decoded = decoded.astype(np.float64)
    error = np.abs(decoded.mean(axis=0) - value)
    standard = decoded.std(axis=0, ddof=1) / np.sqrt(draws)
    assert (error <= 4.5 * standard + 1e-6).all()  # 35 numbers
    assert standard.max() > 0


def test_quantised_numbers_lie_on_their_levels_and_are_off_by_less_than_one():
    value = update_of()["a.weight"]
    for codec, scale in ((QSGD(4, 35), 7), (QSGD(8, 35), 127), (TernGrad(), 1)):
        step = np.abs(value).max() / scale
        decoded = codec.encode({"w": value}, rng_for(3, "x"), {}).update["w"]
        np.testing.assert_allclose(decoded / step, np.round(decoded / step), atol=1e-3)
        assert np.abs(decoded - value).max() < step * (1 + 1e-6)
        assert (decoded * value >= 0).all()


def test_smaller_buckets_and_more_bits_have_less_noise():
    value = {"w": RNG.standard_normal(4096).astype(np.float32)}

    def noise(name):
        return float(np.square(find_codec(name).encode(value, rng_for(0, "x"), {}).update["w"] - value["w"]).mean())

    assert noise("qsgd[bits=8]") < noise("qsgd[bits=4;bucket=64]") < noise("qsgd[bits=4]") < noise("terngrad")


def test_bytes_of_each_codec():
    update = {"w": np.zeros((100, 10), np.float32), "b": np.zeros(10, np.float32)}
    assert find_codec("top-k[share=0.01]").bytes(update) == 8 * 10 + 8 * 1
    assert find_codec("top-k[share=0.9]").bytes(update) == 4 * 1010  # all numbers take less than most with positions
    assert find_codec("qsgd").bytes(update) == 1000 + 2 * 4 + 10 + 4
    assert find_codec("qsgd[bits=4;bucket=100]").bytes(update) == 500 + 10 * 4 + 5 + 4
    assert find_codec("terngrad").bytes(update) == 250 + 4 + 3 + 4
    part = {"b": update["b"]}  # a device that finished its last layer only
    assert find_codec("top-k[share=0.01]").bytes(part) == 8


def test_top_k_of_everything_is_none():
    fleet = Fleet.of([10.0, 20.0, 14.0, 40.0, 25.0], 0.2)
    plain, all_of_it = (run(replace(experiment_of(engine="loop", fleet=fleet), codec=c)) for c in ("none", TopK(1.0)))
    assert [row.time for row in plain.rows] == [row.time for row in all_of_it.rows]
    assert same_bits(plain.weights, all_of_it.weights)


def test_what_top_k_sends_and_what_it_keeps_add_up_to_what_was_given():
    uploads, given, sent = Uploads(TopK(0.1), seed=1), 0.0, 0.0
    for task in range(30):
        update = RNG.standard_normal(200).astype(np.float32)
        decoded = uploads.send({"w": update}, task, 5)["w"]
        assert np.count_nonzero(decoded) == 20
        given, sent = given + update, sent + decoded
    np.testing.assert_allclose(sent + uploads.memory[5]["w"], given, atol=1e-4)
    # Each number is sent after a while, so that what is kept does not grow with the number of updates.
    assert np.abs(uploads.memory[5]["w"]).max() < 0.5 * np.abs(given).max() + 10


def test_run_files_take_codecs_with_options():
    experiment = build_experiment(load_run(None, [*SMALL, "training.codec=top-k[share=0.05]", "fleet.upload=0.2"]))
    assert find_codec(experiment.codec) == TopK(0.05)
    assert experiment.codec == "top-k[share=0.05]"
    assert simulate(experiment).engine == "loop"
