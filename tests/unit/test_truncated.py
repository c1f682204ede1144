"""Backpropagation that stops in the middle: right gradients for what is complete, and nothing of what is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from adelfl.errors import ConfigError
from adelfl.training.layers import find_layers, given_layers
from adelfl.training.models import build_model
from adelfl.training.truncated import Truncation, backward, check_truncation
from support.small_worlds import EVERY_MODEL, dataset_of

torch.set_num_threads(1)


def stop_below(first):
    """Time is up when the layer before position ``first`` is complete."""
    return lambda l: l < first


def never(_):
    return False


def plain(model, loss):
    model.zero_grad()
    loss(model).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def batch_of(shape, classes=4, rows=6):
    data = dataset_of(shape, classes=classes)
    x, y = torch.from_numpy(data.x_train[:rows]), torch.from_numpy(data.y_train[:rows])
    return x, lambda model: functional.cross_entropy(model(x), y)


def world(words):
    name, shape, more = EVERY_MODEL[words]
    x, loss = batch_of(shape)
    model = build_model(name, input_shape=shape, classes=4, seed=0, **more)
    return model, find_layers(model, x[:1]), loss


@pytest.mark.parametrize("words", EVERY_MODEL)
def test_whatever_is_complete_has_the_gradient_of_a_plain_pass(words):
    model, layers, loss = world(words)
    whole = plain(model, loss)
    L = len(layers)
    for first in (0, 1, L // 2, L - 1, L):
        found = backward(loss(model), model, layers, stop_below(first))
        names = {name for layer in layers[first:] for name in layer.parameters}
        assert (found.depth, found.stopped) == (L - first, first > 0)
        assert set(found.gradients) == names
        for name in names:
            assert torch.equal(found.gradients[name], whole[name])


def test_the_clock_is_asked_from_the_last_layer_to_the_first():
    model, layers, loss = world("vgg11 with groups")
    asked = []
    backward(loss(model), model, layers, lambda l: asked.append(l) or False)
    assert asked == list(range(len(layers), -1, -1))


def test_what_is_not_reached_is_not_computed():
    model, layers, loss = world("mlp")
    computed = []
    for name, p in model.named_parameters():
        p.register_hook(lambda _, name=name: computed.append(name))
    backward(loss(model), model, layers, stop_below(2))  # the second of three layers comes too late
    assert {name.split(".")[0] for name in computed} == {"dense3", "dense2"}
    computed.clear()
    backward(loss(model), model, layers, never)
    assert {name.split(".")[0] for name in computed} == {"dense3", "dense2", "dense1"}


def test_no_time_at_all_gives_nothing():
    model, layers, loss = world("mlp")
    found = backward(loss(model), model, layers, lambda l: True)
    assert (found.gradients, found.depth, found.stopped) == ({}, 0, True)
    assert found.loss == pytest.approx(loss(model).item())


def test_the_callers_gradients_and_hooks_stay_as_they_were():
    model, layers, loss = world("cnn")
    mine = {name: torch.full_like(p, 7.0) for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.grad = mine[name]
    backward(loss(model), model, layers, stop_below(2))
    for name, p in model.named_parameters():
        assert p.grad is mine[name]
        assert torch.all(p.grad == 7.0)
        assert not p._post_accumulate_grad_hooks


# -- models that are not chains


class Tied(nn.Module):
    """The first and the last layer share a weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


class Twice(nn.Module):
    """One module is called twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.again(torch.relu(self.first(x))))
        return self.last(torch.relu(self.again(x)))


class Shortcut(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        y = self.first(x)
        return self.last(y + torch.tanh(self.middle(torch.tanh(y))))


class Sometimes(nn.Module):
    """A layer that this batch does not use."""

    def __init__(self):
        super().__init__()
        self.first, self.spare, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.use = False

    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.last(torch.relu(self.spare(y)) if self.use else y)


def small(kind, classes=4):
    torch.manual_seed(0)
    model = kind()
    x, y = torch.randn(5, 8), torch.arange(5) % classes
    return model, x, lambda m: functional.cross_entropy(m(x), y)


@pytest.mark.parametrize("kind", [Tied, Twice, Shortcut])
def test_a_weight_that_is_used_in_several_places_is_complete_after_the_last_of_them(kind):
    model, x, loss = small(kind)
    layers = find_layers(model, x)
    whole = plain(model, loss)
    for first in range(len(layers) + 1):
        found = backward(loss(model), model, layers, stop_below(first))
        assert found.depth == len(layers) - first
        for name, grad in found.gradients.items():
            assert torch.equal(grad, whole[name])
    check_truncation(model, layers, loss)


def test_a_tied_weight_is_not_delivered_before_its_first_use_was_passed():
    model, x, loss = small(Tied)
    layers = find_layers(model, x)
    found = backward(loss(model), model, layers, stop_below(1))
    assert "last.bias" in found.gradients
    assert "first.weight" not in found.gradients


def test_frozen_parameters_have_no_gradient_and_cost_no_layer():
    model, x, loss = small(Shortcut)
    model.middle.requires_grad_(False)
    layers = find_layers(model, x)
    assert [layer.name for layer in layers] == ["first", "last"]
    found = backward(loss(model), model, layers, never)
    assert found.depth == 2
    assert not any(name.startswith("middle") for name in found.gradients)


def test_a_layer_that_the_loss_does_not_depend_on_is_complete_without_a_gradient():
    model, x, loss = small(Sometimes)
    model.use = True
    layers = find_layers(model, x)
    model.use = False
    found = backward(loss(model), model, layers, never)
    assert (found.depth, found.stopped) == (3, False)
    assert set(found.gradients) == {"first.weight", "first.bias", "last.weight", "last.bias"}
    short = backward(loss(model), model, layers, stop_below(1))
    assert short.depth == 2
    assert set(short.gradients) == {"last.weight", "last.bias"}


class Checkpointed(Shortcut):
    """Its middle layer is computed again in the backward pass, in graphs of its own, and used twice."""

    def forward(self, x):
        y = self.first(x)
        for _ in range(2):
            y = torch.tanh(checkpoint(self.middle, y, use_reentrant=self.reentrant))
        return self.last(y)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_is_truncated_too(reentrant):
    model, _, loss = small(Checkpointed)
    model.reentrant = reentrant
    layers = given_layers(model, ["first", "middle", "last"])
    whole = plain(model, loss)
    for first in range(3):
        found = backward(loss(model), model, layers, stop_below(first))
        assert found.depth == 3 - first
        assert all(torch.equal(grad, whole[name]) for name, grad in found.gradients.items())
    check_truncation(model, layers, loss)


def test_autocast_gives_the_gradients_of_autocast():
    model, layers, loss = world("cnn")

    def cast(m):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(m)

    whole = plain(model, cast)
    found = backward(cast(model), model, layers, stop_below(2))
    assert found.depth == 2
    for name, grad in found.gradients.items():
        assert torch.equal(grad, whole[name])


# -- several iterations


def test_iterations_step_what_they_completed_and_only_that():
    model, x, loss = small(Shortcut)
    layers = find_layers(model, x)
    reference, _, _ = small(Shortcut)
    steps = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    steps.zero_grad()
    loss(reference).backward()
    steps.step()
    steps.zero_grad()
    loss(reference).backward()
    for name, p in reference.named_parameters():
        if name.startswith("first"):
            p.grad = None  # the second iteration is cut after two of three layers
    steps.step()
    asked = []

    def stop(l):
        asked.append(l)
        return len(asked) == 8  # 3, 2, 1, 0 of the first; 3, 2, 1, 0 of the second

    optimizer, passes = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    with Truncation(model, layers) as truncation:
        for _ in range(2):
            passes.append(truncation.backward(loss(model), stop))
            for name, p in model.named_parameters():
                p.grad = passes[-1].gradients.get(name)
            optimizer.step()
    assert [(partly.depth, partly.stopped) for partly in passes] == [(3, False), (2, True)]
    assert passes[0].loss == pytest.approx(loss(small(Shortcut)[0]).item())
    for (name, p), (_, q) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        assert torch.equal(p, q), name


# -- what cannot be done is said before the first round


def test_layers_in_the_wrong_order_are_refused():
    model, _, loss = small(Shortcut)
    with pytest.raises(ConfigError, match="order is not that of backpropagation"):
        check_truncation(model, given_layers(model, ["last", "middle", "first"]), loss)


def test_checking_leaves_no_trace():
    model, layers, loss = world("resnet18")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    check_truncation(model, layers, loss)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_dropout_and_batch_norm_can_be_truncated():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 4))
    x, y = torch.randn(6, 8), torch.arange(6) % 4
    check_truncation(model, find_layers(model, x), lambda m: functional.cross_entropy(m(x), y))
