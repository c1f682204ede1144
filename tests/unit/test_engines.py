"""Engines: three ways to compute one thing."""

from copy import deepcopy
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from adelfl.data import iid
from adelfl.errors import ConfigError
from adelfl.strategies import Progress
from adelfl.training import chain, operations, stacked
from adelfl.training.costs import layer_costs
from adelfl.training.engines import LocalWork, build_engine, choose, find_device
from adelfl.training.estimate import estimate_constants, look_at
from adelfl.training.layers import find_layers, given_layers
from adelfl.training.models import build_model
from adelfl.training.work import RoundWork, Samples
from support.small_worlds import (
    EVERY_MODEL,
    EVERY_STRATEGY,
    FOUR,
    Shifting,
    after_one_round,
    apply_change,
    assert_right,
    dataset_of,
    experiment_of,
    furthest,
    layers_of,
    model_of,
    reference,
    rounds,
    run,
    same_bits,
    samples_of,
    seeded,
    setting_of,
    small_run,
    tied,
)

CHAINS = ("mlp", "cnn", "vgg11 with groups", "vgg11 without")  # what heterofl takes, and fused without autograd
LIGHT = ("mlp", "cnn")
HERE = ("salf", "adel", "heterofl")

# vmap has no rule for attention's CPU kernel and says so; the result is right.
no_batching_rule = pytest.mark.filterwarnings("ignore:There is a performance drop")


def combinations():
    """Every strategy × model × E; those of deep networks that say little more than their neighbours are slow."""
    for model in EVERY_MODEL:
        for strategy in EVERY_STRATEGY:
            if strategy == "heterofl" and model not in CHAINS:
                continue
            for iterations in (1, 3):
                light = model in LIGHT or (strategy in HERE and (iterations == 1 or model == "transformer"))
                light &= (strategy, model) not in (("adel", "resnet18"), ("adel", "vgg11 without"))
                marks = [] if light else [pytest.mark.slow]
                if model == "transformer":
                    marks.append(no_batching_rule)
                yield pytest.param(strategy, model, iterations, marks=marks, id=f"{model}-{strategy}-{iterations}")


@pytest.mark.parametrize(("strategy", "model", "iterations"), list(combinations()))
def test_the_same_seed_gives_the_same_run_whichever_engine_computes_it(strategy, model, iterations):
    engines = ["loop", "stacked", *(["fused"] if iterations == 1 else [])]
    local = {"weight_decay": 0.01, "momentum": 0.5}
    # Without a norm a deep network is chaotic at large steps, and so divided by small widths that it explodes.
    gentle = {"rate": 0.01} if model == "vgg11 without" else {}
    if gentle and strategy == "heterofl":
        gentle = {"rate": 0.0003, "depth": 0.95}
    setting = setting_of(len(experiment_of("wait", model).layers), fleet=FOUR, local_iterations=iterations, **gentle)
    plain, *others = (run(experiment_of(strategy, model, engine=e, setting=setting, **local)) for e in engines)
    assert plain.result.rounds == (10 if strategy != "wait" else plain.result.rounds) > 0
    for engine, other in zip(engines[1:], others, strict=True):
        assert other.result.engine == engine
        assert furthest(plain.weights, other.weights) < 1e-5
        for one, two in zip(plain.rows[1:], other.rows[1:], strict=True):
            assert (one.batch, one.depth, one.contributors) == (two.batch, two.depth, two.contributors)
            # adel plans with gradients that it looks at, and they agree to three digits
            times = [two.time, two.deadline]
            assert [one.time, one.deadline] == (times if strategy != "adel" else pytest.approx(times, rel=1e-3))
            assert (one.train_loss or 0.0) == pytest.approx(two.train_loss or 0.0, rel=1e-4)


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
@pytest.mark.parametrize(
    ("iterations", "local"), [(1, {}), (3, {}), (3, {"momentum": 0.9}), (3, {"weight_decay": 0.3})], ids=str
)
def test_engines_agree_with_and_without_decay_and_momentum(strategy, iterations, local):
    engines = ["loop", "stacked", *(["fused"] if iterations == 1 else [])]
    plain, *others = (run(experiment_of(strategy, engine=e, local_iterations=iterations, **local)) for e in engines)
    assert all(furthest(plain.weights, other.weights) < 1e-5 for other in others)


def test_decay_and_momentum_change_a_run_so_agreeing_on_them_means_something():
    plain = run(experiment_of("salf", local_iterations=3))
    for local in ({"momentum": 0.9}, {"weight_decay": 0.3}):
        assert furthest(plain.weights, run(experiment_of("salf", local_iterations=3, **local)).weights) > 1e-3


def test_momentum_starts_anew_in_every_round_so_it_does_nothing_to_one_iteration():
    plain = run(experiment_of("salf", engine="loop"))
    assert same_bits(plain.weights, run(experiment_of("salf", engine="loop", momentum=0.9)).weights)


# -- one round against autograd, device by device


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("engine", ["fused", "stacked", "loop"])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(work=rounds(3, 96), chunk=st.sampled_from([1, 300, 1000, 96 << 20]))
def test_a_round_equals_autograd_layer_by_layer_whatever_the_depths_sizes_and_A(engine, decay, work, chunk):
    experiment = experiment_of("salf", weight_decay=decay)
    # A chunk of 300 bytes holds some three rows of activations, and the weights of one device.
    with patch.object(chain, "CHUNK_BYTES", chunk), patch.object(stacked, "_CHUNK_BYTES", chunk):
        after, loss = after_one_round(engine, experiment, work)
    assert furthest(after, reference(experiment, work)) < 2e-6
    contributes = (work.progress.z > 0) & work.A.any(axis=1)
    assert np.isnan(loss) == (not contributes.any())


@pytest.mark.parametrize("model", CHAINS)
@pytest.mark.parametrize("chunk", [1, 96 << 20], ids=["row by row", "at once"])
def test_the_fused_pass_equals_autograd_in_every_chain(model, chunk):
    experiment = experiment_of("salf", model, weight_decay=0.1)
    L = len(experiment.layers)
    rng = np.random.default_rng(0)
    sizes, z = np.array([3, 1, 4, 2, 0, 2]), np.array([L, L // 2, L - 1, 1, 0, 0])
    progress = Progress(z, L, 1, np.ones(6))
    A = np.where(progress.delivered, rng.uniform(0.1, 1.0, (6, L)), 0.0)
    work = RoundWork((rng.integers(0, 96, 12),), sizes, A, progress, 0.1)
    with patch.object(chain, "CHUNK_BYTES", chunk):
        after, _ = after_one_round("fused", experiment, work)
    assert furthest(after, reference(experiment, work)) < 1e-5


def test_rows_of_devices_that_stopped_leave_the_backward_pass():
    experiment = experiment_of("salf")
    sizes, z = np.array([2, 3, 4]), np.array([1, 3, 2])
    work = RoundWork((np.arange(9),), sizes, np.ones((3, 3)), Progress(z, 3, 1, np.ones(3)), 0.1)
    seen = []
    plain = operations._Linear.grads

    def watched(self, delta, row_weight):
        seen.append(delta.shape[0])
        return plain(self, delta, row_weight)

    with patch.object(operations._Linear, "grads", watched):
        after_one_round("fused", experiment, work)
    assert seen == [9, 7, 3]  # the last layer, then without the 2 rows of depth 1, then without the 4 of depth 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(work=rounds(3, 4), own=st.booleans(), chunk=st.sampled_from([1, 300, 96 << 20]))
def test_samples_that_are_drawn_several_times_count_as_often(work, own, chunk):
    if own:  # four of its own for each device; otherwise all draw from the same four
        work = replace(work, rows=(work.rows[0] + 4 * np.repeat(np.arange(work.sizes.size), work.sizes),))
    experiment = experiment_of("salf", weight_decay=0.5)
    with patch.object(chain, "CHUNK_BYTES", chunk):
        after, loss = after_one_round("fused", experiment, work)
    assert furthest(after, reference(experiment, work)) < 2e-6
    assert loss == pytest.approx(after_one_round("loop", experiment, work)[1], rel=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    ("rows", "through"),
    [
        ([0, 1, 0, 0, 7, 8, 7, 9], 5),
        ([0, 1, 2, 3, 7, 8, 9, 9], 7),
        ([0, 1, 2, 3, 6, 7, 8, 9], 8),
        ([0, 1, 0, 0, 0, 8, 7, 9], 8),
    ],
    ids=["several", "one", "none", "held by both"],
)
def test_what_a_device_draws_again_goes_through_once(rows, through):
    experiment = experiment_of("salf")
    work = RoundWork(
        (np.array(rows),), np.array([4, 4]), np.full((2, 3), 0.5), Progress(np.array([3, 3]), 3, 1, np.ones(2)), 0.1
    )
    seen = []
    plain = Samples.inputs

    def watched(self, index):
        seen.append(index.shape[0])
        return plain(self, index)

    with patch.object(Samples, "inputs", watched):
        after, _ = after_one_round("fused", experiment, work)
    assert seen == [through]
    assert furthest(after, reference(experiment, work)) < 2e-6


@pytest.mark.parametrize("engine", ["fused", "stacked", "loop"])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(works=st.lists(rounds(3, 96), min_size=2, max_size=3), again=st.booleans())
def test_rounds_that_are_prepared_ahead_train_as_one_after_the_other(engine, works, again):
    if again:  # alike but for the samples
        works.append(replace(works[-1], rows=(95 - works[-1].rows[0],)))
    experiment = experiment_of("salf")
    samples = samples_of(experiment.dataset)
    models = [deepcopy(experiment.model).train() for _ in range(2)]
    ahead = build_engine(engine, models[0], experiment.layers, samples, experiment.local)
    losses = []
    for train in [ahead.prepare(work) for work in works]:
        change = train()
        apply_change(models[0], change)
        losses.append(change.loss)
    for loss, work in zip(losses, works, strict=True):
        change = build_engine(engine, models[1], experiment.layers, samples, experiment.local).run(work)
        apply_change(models[1], change)
        assert change.loss == pytest.approx(loss, abs=0.0, nan_ok=True)
    assert same_bits(*({name: w.detach().numpy() for name, w in m.state_dict().items()} for m in models))


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize(
    "build",
    [Shifting, lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 4))],
    ids=["own", "relu"],
)
def test_data_stay_as_they_are_though_the_model_works_in_place(build, iterations):
    model, dataset = build(), deepcopy(dataset_of((1, 4, 4)))
    x_train, x_test = dataset.x_train.copy(), dataset.x_test.copy()
    assert x_train[0].min() < 0
    layers = layers_of(model, dataset)
    layer_costs(model, layers, torch.from_numpy(dataset.x_train[:2]))
    run(small_run(model, layers, dataset, local_iterations=iterations))
    assert np.array_equal(dataset.x_train, x_train)
    assert np.array_equal(dataset.x_test, x_test)


def test_training_leaves_the_samples_alone():
    dataset = dataset_of((1, 4, 4))
    model = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.ReLU(), nn.Linear(16, 4))
    samples = samples_of(dataset)
    assert (samples.x < 0).any()
    before = samples.x.clone()
    work = RoundWork((np.arange(6),), np.array([6]), np.ones((1, 1)), Progress(np.array([1]), 1, 1, np.ones(1)), 0.1)
    build_engine("fused", model, layers_of(model, dataset), samples, LocalWork()).run(work)
    assert torch.equal(samples.x, before)


# -- frozen parameters, heterofl, batch norm


@pytest.mark.parametrize("frozen", ["dense1", "dense2", "dense2.linear.weight", "dense3.linear.bias"])
@pytest.mark.parametrize("strategy", ["salf", "heterofl"])
def test_frozen_parameters_stay_and_the_others_train_alike_in_every_engine(strategy, frozen):
    model = build_model("mlp", input_shape=(1, 4, 4), classes=4, seed=3, hidden=(9, 7))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    dataset = dataset_of((1, 4, 4))
    layers = layers_of(model, dataset)
    assert len(layers) == (2 if frozen in ("dense1", "dense2") else 3)
    experiment = small_run(model, layers, dataset, strategy, rounds=10, depth=0.6)

    def after(engine):
        return run(replace(experiment, engine=engine, local=LocalWork(weight_decay=0.1))).weights

    plain = after("loop")
    for name, before in model.state_dict().items():
        assert np.array_equal(plain[name], before.numpy()) == name.startswith(frozen)
    assert furthest(plain, after("stacked")) < 1e-5
    assert furthest(plain, after("fused")) < 1e-5


class Residual(nn.Sequential):
    """A Sequential by name only."""

    def forward(self, x):
        return x + super().forward(x)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def shared_relu():
    relu = nn.ReLU(inplace=True)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), relu, nn.Linear(8, 8), relu, nn.Linear(8, 4))


def convolution(after=None, **options):
    """4×4 images through a convolution, perhaps something after it, and a dense layer."""
    front = [nn.Conv2d(1, 6, **({"kernel_size": 3, "padding": 1} | options)), nn.ReLU(), *([after] if after else [])]
    size = nn.Sequential(*front)(torch.zeros(1, 1, 4, 4)).numel()
    return nn.Sequential(*front, nn.Flatten(), nn.Linear(size, 4))


STRANGE = {
    "tied weights": tied,
    "one relu in two places": shared_relu,
    "a relu first": lambda: nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(16, 4)),
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8, bias=False), nn.ReLU(), nn.Linear(8, 4)),
    "norm of vectors": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.GroupNorm(2, 8), nn.Linear(8, 4)),
    "norm without weights": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4)
    ),
    "norm after many channels": lambda: nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4)
    ),
    "reflected padding": lambda: convolution(padding_mode="reflect"),
    "padding by name": lambda: convolution(padding="same"),
    "stride and dilation": lambda: convolution(stride=2, dilation=2, padding=2),
    "oblong kernel": lambda: convolution(kernel_size=(1, 3), padding=(0, 1), bias=False),
    "overlapping pool": lambda: convolution(nn.MaxPool2d(3, stride=2, padding=1)),
    "pool with a ceiling": lambda: convolution(nn.MaxPool2d(3, stride=2, ceil_mode=True)),
    "pool that leaves a row over": lambda: convolution(nn.MaxPool2d(2), kernel_size=2),
    "partial flatten": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(16, 4), nn.Flatten(1)),
    "dense layers on rows of pictures": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 4)
    ),
    "residual": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 8), Residual(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 4)
    ),
    "residual throughout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), Residual(nn.Linear(4, 4))),
    "a layer of one's own": lambda: nn.Sequential(nn.Flatten(), Doubled(16, 8), nn.ReLU(), nn.Linear(8, 4)),
    "another activation": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)),
}


@pytest.mark.parametrize("build", STRANGE.values(), ids=STRANGE)
def test_the_engine_that_is_chosen_is_right_for_strange_models_too(build):
    model = seeded(build)
    dataset = dataset_of((1, 4, 4))
    assert_right(model, layers_of(model, dataset), dataset)


@pytest.mark.parametrize(
    "groups",
    [
        [["dense3"], ["dense2"], ["dense1"]],
        [["dense1", "dense3"], ["dense2"]],
        [["dense1"], ["dense2", "dense3.linear.bias"], ["dense3.linear.weight"]],
        [["dense1", "dense2"], ["dense3"]],
    ],
    ids=str,
)
def test_the_engine_that_is_chosen_is_right_for_layers_that_the_user_gives(groups):
    model = model_of("mlp")
    split = ["dense3.linear.weight"] in groups  # a module of two layers
    assert_right(
        model, given_layers(model, groups), dataset_of((1, 4, 4)), engines=("auto",) if split else ("auto", "fused")
    )


@pytest.mark.parametrize("engine", ["fused", "stacked", "loop"])
def test_heterofl_averages_each_coordinate_over_those_who_hold_it_and_delivered(engine):
    experiment = experiment_of("heterofl")
    width, sizes = np.array([1.0, 0.5, 0.0625, 0.5]), np.array([4, 3, 5, 2])
    finished = np.array([True, True, True, False])
    rows = np.random.default_rng(0).integers(0, 96, sizes.sum())
    A = np.repeat(finished[:, None].astype(float), 3, axis=1)
    work = RoundWork((rows,), sizes, A, Progress(np.where(finished, 3, 2), 3, 1, np.ones(4)), 0.1, width)
    after, _ = after_one_round(engine, experiment, work)

    before = {name: w.double() for name, w in experiment.model.state_dict().items()}
    change = {name: torch.zeros_like(w) for name, w in before.items()}
    holders = {name: torch.zeros_like(w) for name, w in before.items()}
    x, y = torch.from_numpy(experiment.dataset.x_train).double(), torch.from_numpy(experiment.dataset.y_train)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    for u in np.flatnonzero(finished):
        units = [16, int(np.ceil(9 * width[u])), int(np.ceil(7 * width[u])), 4]
        part = {}
        for i in (1, 2, 3):
            part[f"dense{i}.linear.weight"] = np.s_[: units[i], : units[i - 1]]
            part[f"dense{i}.linear.bias"] = np.s_[: units[i]]
        w = {name: before[name][where].clone().requires_grad_() for name, where in part.items()}
        mine = rows[starts[u] : starts[u + 1]]
        h = x[mine].flatten(1)
        for i in (1, 2, 3):
            h = functional.linear(h, w[f"dense{i}.linear.weight"], w[f"dense{i}.linear.bias"])
            h = functional.relu(h / width[u]) if i < 3 else h
        grads = torch.autograd.grad(functional.cross_entropy(h, y[mine]), list(w.values()))
        for (name, where), grad in zip(part.items(), grads, strict=True):
            change[name][where] -= 0.1 * grad
            holders[name][where] += 1
    expected = {name: (before[name] + change[name] / holders[name].clamp(min=1)).numpy() for name in before}
    assert holders["dense1.linear.weight"].unique().tolist() == [1.0, 2.0, 3.0]
    assert furthest(after, expected) < 1e-6


def with_batch_norm():
    model = build_model("vgg11", input_shape=(2, 32, 32), classes=4, seed=3, norm="batch", width=0.0625)
    return model, layers_of(model, dataset_of((2, 32, 32)))


def test_engines_are_chosen_by_what_the_model_and_the_local_work_allow():
    chosen = {}
    for name in ("mlp", "cnn", "resnet18", "transformer"):
        layers = layers_of(model_of(name), dataset_of(EVERY_MODEL[name][1]))
        samples = samples_of(dataset_of(EVERY_MODEL[name][1]))
        chosen[name] = [choose(model_of(name), layers, samples, E) for E in (1, 3)]
    samples = samples_of(dataset_of((2, 32, 32)))
    chosen["batch norm"] = [choose(*with_batch_norm(), samples, E) for E in (1, 3)]
    assert chosen == {
        "mlp": ["fused", "stacked"],
        "cnn": ["fused", "stacked"],
        "resnet18": ["fused", "loop"],
        "transformer": ["fused", "loop"],
        "batch norm": ["loop", "loop"],
    }


@pytest.mark.parametrize("strategy", ["salf", "heterofl"])
def test_batch_norm_goes_to_the_loop_and_its_statistics_are_learned(strategy):
    model, layers = with_batch_norm()
    after = run(small_run(model, layers, dataset_of((2, 32, 32)), strategy, rounds=3, depth=0.9))
    assert after.result.engine == "loop"
    for name, before in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            assert not np.array_equal(before.numpy(), after.weights[name]), name


def test_buffers_that_nobody_changes_stay_as_they_are():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    kept = {
        "bytes": torch.tensor([200, 100], dtype=torch.uint8),
        "long": torch.tensor([2**60 + 1]),
        "yes": torch.tensor(True),
    }
    for name, value in kept.items():
        model.register_buffer(name, value.clone())
    dataset = dataset_of((1, 4, 4))
    after = run(replace(small_run(model, layers_of(model, dataset), dataset), engine="loop")).weights
    assert all(np.array_equal(after[name], value.numpy()) for name, value in kept.items())


def test_the_buffers_of_contributors_are_averaged_and_the_others_stay_out():
    model, layers = with_batch_norm()
    dataset = dataset_of((2, 32, 32))
    L = len(layers)

    def after(z, rows, sizes):

        trained = deepcopy(model).train()
        progress = Progress(np.array(z), L, 1, np.ones(len(z)))
        A = progress.delivered / max(1, len(z))
        engine = build_engine("loop", trained, layers, samples_of(dataset), LocalWork())
        apply_change(trained, engine.run(RoundWork((np.array(rows),), np.array(sizes), A, progress, 0.1)))
        return {name: b.double() for name, b in trained.named_buffers()}

    one, other = after([L], range(5), [5]), after([2], range(5, 9), [4])
    both = after([L, 2, 0], range(12), [5, 4, 3])
    for name in both:
        assert torch.allclose(both[name], (one[name] + other[name]) / 2, rtol=1e-5), name


class Branching(nn.Module):
    """What it computes depends on the numbers that it sees, which cannot be mapped."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(16, 4)

    def forward(self, x):
        x = self.dense(x.flatten(1))
        return 2.0 * x if x.sum() > 0 else x


class Recurrent(nn.Module):
    """Torch maps it by a loop of its own, and warns."""

    def __init__(self):
        super().__init__()
        self.cell, self.dense = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        return self.dense(self.cell(x[:, 0])[0][:, -1])


@pytest.mark.parametrize("build", [Branching, Recurrent])
def test_what_cannot_be_mapped_over_devices_or_only_slowly_is_left_to_the_loop(build):
    model, dataset = build(), dataset_of((1, 4, 4))
    layers = layers_of(model, dataset)
    assert run(small_run(model, layers, dataset, rounds=2, local_iterations=2)).result.engine == "loop"
    if build is Branching:
        with pytest.raises(ConfigError, match="use 'loop'"):
            build_engine("stacked", model, layers, samples_of(dataset), LocalWork(), iterations=2)


def test_a_batch_norm_that_is_meant_to_stay_as_it_is_does():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    model[2].eval()
    dataset = dataset_of((1, 4, 4))
    layers = layers_of(model, dataset)
    stays = run(small_run(model, layers, dataset)).weights
    assert np.array_equal(stays["2.running_mean"], np.zeros(6))
    model.eval()  # a model that comes in evaluation mode as a whole is trained all the same
    moves = run(small_run(model, layers, dataset)).weights
    assert moves["2.running_mean"].any()


@pytest.mark.parametrize("strategy", ["salf", "heterofl"])
def test_a_batch_norm_that_is_meant_to_stay_does_in_submodels_too(strategy):
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))
    model[1].eval()
    dataset = dataset_of((1, 4, 4))
    after = run(small_run(model, layers_of(model, dataset), dataset, strategy, depth=0.9)).weights
    assert np.array_equal(after["1.running_mean"], np.zeros(8))


def test_looking_at_gradients_leaves_halves_that_batch_norm_can_take():
    model, layers = with_batch_norm()
    dataset = dataset_of((2, 32, 32))
    L = len(layers)
    progress = Progress(np.full(4, L), L, 1, np.ones(4))
    work = RoundWork((np.arange(14),), np.array([2, 3, 4, 5]), progress.delivered / 4, progress, 0.1)
    seen = look_at(model.train(), layers, samples_of(dataset), work)
    assert np.isfinite(seen.sigma2).all()  # of the devices with 4 and 5


def test_no_engine_that_is_chosen_for_a_model_warns():
    for model in EVERY_MODEL:  # warnings are errors here
        run(experiment_of("salf", model, fleet=FOUR, rounds=2, local_iterations=3))


@pytest.mark.parametrize("engine", ["fused", "stacked"])
def test_asking_another_engine_for_batch_norm_is_refused(engine):
    model, layers = with_batch_norm()
    with pytest.raises(ConfigError, match="use 'loop'"):
        build_engine(engine, model, layers, samples_of(dataset_of((2, 32, 32))), LocalWork())


def test_asking_for_what_an_engine_cannot_do_is_refused():
    dataset = dataset_of((1, 4, 4))
    mlp = model_of("mlp")
    with pytest.raises(ConfigError, match="one local iteration"):
        build_engine("fused", mlp, layers_of(mlp, dataset), samples_of(dataset), LocalWork(), iterations=2)
    branching = Branching()
    with pytest.raises(ConfigError, match="use 'loop'"):
        build_engine("fused", branching, layers_of(branching, dataset), samples_of(dataset), LocalWork())
    with pytest.raises(ConfigError, match="must be one of"):
        build_engine("quick", mlp, layers_of(mlp, dataset), samples_of(dataset), LocalWork())


def test_devices_that_this_machine_does_not_have_are_refused():
    assert find_device("cpu").type == "cpu"
    for name in ("gpu", "meta", *([] if torch.cuda.is_available() else ["cuda"])):
        with pytest.raises(ConfigError, match="device"):
            find_device(name)


# -- the constants of the bound


def test_sigma2_is_the_variance_of_one_samples_gradient_and_G2_the_mean_square():
    model, dataset = model_of("mlp"), dataset_of((1, 4, 4))
    layers, samples = layers_of(model, dataset), samples_of(dataset)
    held = iid(dataset.y_train, 3, 0)[0]
    g = gradients_of_samples(model, layers, samples, held)
    variance = np.array([((v - v.mean(0)) ** 2).sum(1).mean() for v in g])
    mean_square = np.array([(v.mean(0) ** 2).sum() for v in g])

    rng, n, draws = np.random.default_rng(1), 32, 400
    found = [estimate_constants(model, layers, samples, [rng.choice(held, n)]) for _ in range(draws)]
    found = [(each.sigma2, each.G2) for each in found]
    sigma2, G2 = np.array([f[0] for f in found]), np.array([f[1] for f in found])

    def off(values, expected):
        return np.abs(values.mean(0) - expected) / (values.std(0, ddof=1) / np.sqrt(draws))

    assert off(sigma2, variance.sum()) < 3.5  # standard errors
    assert np.all(off(G2, mean_square + variance / n) < 3.5)
    assert estimate_constants(model, layers, samples, [held[:n]] * 3).sigma2 == pytest.approx(
        estimate_constants(model, layers, samples, [held[:n]]).sigma2, rel=1e-12
    )


def gradients_of_samples(model, layers, samples, held):
    """Each sample's own gradient of each layer: a list of arrays, shape (samples, parameters)."""
    x, y = samples.take(held)
    names = list(dict(model.named_parameters()))
    found = []
    for i in range(held.size):
        loss = functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        grads = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
        found.append([torch.cat([grads[n].flatten() for n in layer.parameters]).numpy() for layer in layers])
    return [np.stack(column).astype(np.float64) for column in zip(*found, strict=True)]


def test_the_spread_of_gradients_is_that_of_the_devices_and_their_samples():
    model, dataset = model_of("mlp"), dataset_of((1, 4, 4))
    layers, samples = layers_of(model, dataset), samples_of(dataset)
    shares = [
        np.flatnonzero(dataset.y_train == label)[:14] for label in range(4)
    ]  # one label each: as unequal as can be
    own = [gradients_of_samples(model, layers, samples, held) for held in shares]
    means = [np.stack([g[l].mean(0) for g in own]) for l in range(3)]
    within = np.array([np.mean([((g[l] - g[l].mean(0)) ** 2).sum(1).mean() for g in own]) for l in range(3)])
    zeta2 = np.array([((m - m.mean(0)) ** 2).sum() / 3 for m in means])
    rng, draws = np.random.default_rng(2), 150
    found = [
        estimate_constants(model, layers, samples, [rng.choice(held, 16) for held in shares]).spread
        for _ in range(draws)
    ]
    for seen, expected in (("sigma2", within), ("zeta2", zeta2), ("norm2", None)):
        values = np.array([getattr(f, seen) for f in found])
        expected = np.array([(m.mean(0) ** 2).sum() for m in means]) - zeta2 / 4 if expected is None else expected
        assert np.all(np.abs(values.mean(0) - expected) < 3.5 * values.std(0, ddof=1) / np.sqrt(draws)), seen


def test_a_round_is_looked_at_as_far_as_its_devices_came():
    model, dataset = model_of("mlp"), dataset_of((1, 4, 4))
    layers, samples = layers_of(model, dataset), samples_of(dataset)
    sizes, z = np.array([4, 4, 4, 1]), np.array([3, 2, 1, 3])
    work = RoundWork((np.arange(13),), sizes, np.ones((4, 3)), Progress(z, 3, 1, np.ones(4)), 0.1)
    seen = look_at(model, layers, samples, work)
    assert np.isnan(seen.sigma2).tolist() == [
        True,
        False,
        False,
    ]  # one sample cannot be split, and one device tells nothing
    assert np.all(seen.sigma2[1:] > 0)
    nobody = RoundWork((np.arange(13),), sizes, np.ones((4, 3)), Progress(0 * z, 3, 1, np.ones(4)), 0.1)
    assert np.isnan(look_at(model, layers, samples, nobody).sigma2).all()


def test_estimating_leaves_the_model_alone():
    model, layers = with_batch_norm()
    before = {name: w.clone() for name, w in model.state_dict().items()}
    estimate_constants(model, layers, samples_of(dataset_of((2, 32, 32))), [np.arange(8)])
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert model.training


def test_estimates_of_a_frozen_model_count_what_is_trained_only():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    model[1].requires_grad_(False)
    dataset = dataset_of((1, 4, 4))
    layers = find_layers(model, torch.from_numpy(dataset.x_train[:1]))
    constants = estimate_constants(model, layers, samples_of(dataset), [np.arange(16)])
    sigma2, G2 = constants.sigma2, constants.G2
    assert len(G2) == 1
    assert sigma2 > 0
