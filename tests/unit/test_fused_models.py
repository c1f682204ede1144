"""One pass for all devices, of whatever model: found to be exact, or left to the loop."""

from copy import deepcopy
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from adelfl.errors import ConfigError
from adelfl.training import autograd, chain
from adelfl.training.engines import LocalWork, build_engine, choose
from support.small_worlds import (
    Shifting,
    after_one_round,
    assert_right,
    dataset_of,
    furthest,
    layers_of,
    reference,
    rounds,
    run,
    samples_of,
    seeded,
    small_run,
    tied,
)


class Tutorial(nn.Module):
    """As people write a network."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 5, 2)
        self.drop = nn.Dropout(0.0)
        self.fc1, self.fc2 = nn.Linear(5, 7), nn.Linear(7, 4)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = torch.relu(self.conv2(x))
        x = x.view(x.size(0), -1)
        return functional.log_softmax(self.fc2(self.drop(self.fc1(x).relu())), dim=1)


class Written(nn.Module):
    """A network whose forward is given."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.does = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.does(self, x)


def meddled(how):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    how(model)
    return model


def shared(model):
    model.b.weight, model.b.bias = model.a.weight, None
    return model


class Lazy(nn.Module):
    """Keeps what it made in its first pass, and shows what it made in the last."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.mask, self.seen = nn.Linear(16, 8), nn.Linear(8, 4), None, None

    def forward(self, x):
        h = self.a(x.flatten(1))
        if self.mask is None:
            self.mask = h.new_ones(h.shape[1]).detach()
        self.seen = (torch.tanh(h) * self.mask).detach()
        return self.b(torch.tanh(h) * self.mask)


class Twofold(nn.Module):
    """Gives a tensor, and another that is made of it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        one = torch.tanh(self.a(x)) * self.scale
        return one, self.b(one)


def capped(model, x):
    """What it does with a sample depends on how many there are before it, beyond some."""
    kept = (torch.arange(len(x)) < 12).to(x.dtype)[:, None]
    return model.b(torch.tanh(model.a(x.flatten(1))) * kept)


def seen_as_words(model, x):
    """Four words of four numbers, with places that are learned."""
    return model.out(model.block(model.words(x[:, 0]) + model.places(torch.arange(4))).mean(1))


def block(batch_first):
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)


def dense(*sizes):
    return {name: nn.Linear(a, b) for name, a, b in zip("abcdef", sizes, sizes[1:], strict=False)}


TOGETHER = {
    "as in a tutorial": Tutorial,
    "a hook that triples": lambda: meddled(lambda m: m[1].register_forward_hook(lambda _, x, out: 3 * out)),
    "a hook on the whole": lambda: meddled(lambda m: m.register_forward_pre_hook(lambda _, x: (2 * x[0],))),
    "weights in two parts": lambda: meddled(lambda m: nn.utils.parametrizations.weight_norm(m[1])),
    "a forward of its own": lambda: meddled(lambda m: setattr(m[2], "forward", torch.tanh)),
    "nothing in between": lambda: nn.Sequential(
        nn.Flatten(), nn.Identity(), nn.Linear(16, 8), nn.Dropout(0.0), nn.ReLU(), nn.Linear(8, 4)
    ),
    "words": lambda: Written(
        seen_as_words, words=nn.Linear(4, 8), places=nn.Embedding(4, 8), block=block(True), out=nn.Linear(8, 4)
    ),
    "words first": lambda: Written(
        lambda m, x: m.b(m.block(m.a(x[:, 0].transpose(0, 1))).mean(0)), **dense(4, 8, 4), block=block(False)
    ),
    "recurrent": lambda: Written(
        lambda m, x: m.a(m.cell(x[:, 0])[0][:, -1]), cell=nn.LSTM(4, 5, batch_first=True), **dense(5, 4)
    ),
    "recurrent, its last state": lambda: Written(
        lambda m, x: m.a(m.cell(x[:, 0].transpose(0, 1))[1][0][0]), cell=nn.LSTM(4, 5), **dense(5, 4)
    ),
    "rows within rows": lambda: Written(
        lambda m, x: m.b(torch.relu(m.a(x.reshape(-1, 4))).view(-1, 4, 8).sum(1)), **dense(4, 8, 4)
    ),
    "two ways": lambda: Written(
        lambda m, x: m.c(torch.cat([torch.tanh(m.a(x.flatten(1))), m.b(x.flatten(1))], 1)),
        a=nn.Linear(16, 5), b=nn.Linear(16, 3), c=nn.Linear(8, 4),
    ),
    "called twice": lambda: Written(
        lambda m, x: m.c(m.b(torch.relu(m.b(m.a(x.flatten(1)))))), **dense(16, 8, 8, 4)
    ),
    "what it is given changes": Shifting,
    "one weight in two modules": lambda: shared(
        Written(lambda m, x: m.c(m.b(torch.tanh(m.a(x.flatten(1))))), **dense(16, 16, 16, 4))
    ),
    "kept in attributes": Lazy,
    "one made of the other": lambda: Written(
        lambda m, x: m.c(sum(m.two(x.flatten(1)))), two=Twofold(), c=nn.Linear(8, 4)
    ),
    "in pieces": lambda: Written(
        lambda m, x: torch.cat([m.b(torch.tanh(m.a(part))) for part in x.flatten(1).split(5)]), **dense(16, 8, 4)
    ),
    "statistics that stay": lambda: meddled(lambda m: m.insert(2, nn.BatchNorm1d(8).eval())),
    "weights that are used beside their module": lambda: Written(
        lambda m, x: m.c(functional.linear(torch.relu(m.b(m.a(x.flatten(1)))), m.b.weight)), **dense(16, 8, 8, 4)
    ),
    "columns first": lambda: Written(
        lambda m, x: m.b(torch.relu(m.a(x[:, 0].transpose(0, 1).reshape(-1, 4))).view(4, -1, 8).sum(0)),
        **dense(4, 8, 4),
    ),
}  # fmt: skip
APART = {
    "minus the mean of the batch": lambda: Written(
        lambda m, x: m.b(torch.relu((h := m.a(x.flatten(1))) - h.mean(0))), **dense(16, 8, 4)
    ),
    "what it does depends on the numbers": lambda: Written(
        lambda m, x: m.a(x.flatten(1)) * (2 if x.sum() > 0 else 1), **dense(16, 4)
    ),
    "a little of the mean of the batch": lambda: Written(
        lambda m, x: m.b(torch.tanh((h := m.a(x.flatten(1))) - 0.003 * h.mean(0))), **dense(16, 8, 4)
    ),
    "no more than twelve": lambda: Written(capped, **dense(16, 8, 4)),
}
no_rule = pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:RNN module weights")


@no_rule
@pytest.mark.parametrize("few", [0.0, 1e30], ids=["cut where devices stop", "all at once"])
@pytest.mark.parametrize("build", TOGETHER.values(), ids=TOGETHER)
def test_any_model_whose_samples_do_not_mix_goes_through_once_for_all_devices(build, few):
    model, dataset = seeded(build), dataset_of((1, 4, 4))
    layers = layers_of(model, dataset)
    with patch.object(autograd, "_WORTH_A_PASS", few):
        assert_right(model, layers, dataset, engines=("fused",))
        assert choose(model, layers, samples_of(dataset)) == "fused"  # so auto is no other run


@pytest.mark.parametrize("build", APART.values(), ids=APART)
def test_what_cannot_go_through_together_is_found_out_and_left_to_the_loop(build):
    model, dataset = seeded(build), dataset_of((1, 4, 4))
    layers = layers_of(model, dataset)
    assert_right(model, layers, dataset, engines=("auto",))
    with pytest.raises(ConfigError, match="use 'loop'"):
        build_engine("fused", deepcopy(model).train(), layers, samples_of(dataset), LocalWork())


def test_a_network_written_as_a_class_is_as_quick_as_a_chain_of_modules():
    dataset = dataset_of((1, 4, 4))
    model = seeded(Tutorial)
    engine = build_engine("fused", model, layers_of(model, dataset), samples_of(dataset), LocalWork())
    assert isinstance(engine.walk, chain.ChainPass)


@pytest.mark.parametrize("few", [0.0, 1e30])
@settings(max_examples=24, deadline=None, derandomize=True)
@given(work=rounds(4, 96), chunk=st.sampled_from([1, 2000, 96 << 20]))
def test_the_pass_by_autograd_equals_the_loop_whatever_the_depths_sizes_and_A(few, chunk, work):
    model, dataset = seeded(lambda: Written(
        lambda m, x: m.d(torch.tanh(m.c((h := torch.tanh(m.a(x.flatten(1)))) + m.b(h)))), **dense(16, 6, 6, 6, 4)
    )), dataset_of((1, 4, 4))  # fmt: skip
    experiment = replace(small_run(model, layers_of(model, dataset), dataset), local=LocalWork(weight_decay=0.5))
    with patch.object(autograd, "_WORTH_A_PASS", few), patch.object(autograd, "CHUNK_BYTES", chunk):
        after, loss = after_one_round("fused", experiment, work)
    assert furthest(after, reference(experiment, work)) < 2e-6
    assert loss == pytest.approx(after_one_round("loop", experiment, work)[1], rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_module_in_two_places_is_evaluated_with_the_weights_that_it_was_trained_to(engine):
    model, dataset = seeded(tied), dataset_of((1, 4, 4))
    experiment = small_run(model, layers_of(model, dataset), dataset, rounds=3)
    plain, other = (run(replace(experiment, engine=name)) for name in ("fused", engine))
    assert furthest(plain.weights, other.weights) < 1e-5
    for one, two in zip(plain.rows, other.rows, strict=True):
        assert one.loss == pytest.approx(two.loss, rel=1e-5)
