"""Width-scaled submodels: where they sit in the full model, and which function they are."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adelfl.errors import ConfigError
from adelfl.training.layers import find_layers
from adelfl.training.models import build_model
from adelfl.training.submodel import Scaler, load, shrink

CIFAR = (3, 32, 32)
CHAINS = ("mlp", "cnn", "vgg11")
WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)


def chain(name, seed=0, **options):
    options = {"width": 0.25} | options if name == "vgg11" else options
    return build_model(name, input_shape=CIFAR, classes=10, seed=seed, **options)


def images(n=4):
    return torch.randn(n, *CIFAR, generator=torch.Generator().manual_seed(0))


def settle(model):
    """Give BatchNorm running statistics that differ from channel to channel."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(torch.linspace(-0.5, 0.5, module.num_features))
            module.running_var.copy_(torch.linspace(0.5, 2.0, module.num_features))
    return model


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("norm", ["none", "group", "batch"])
@pytest.mark.parametrize("name", CHAINS)
def test_slices_cut_the_full_parameters_to_the_submodels_shapes_and_values(name, norm, width):
    full = chain(name, norm=norm)
    sub = shrink(full, width)
    values = full.state_dict()
    assert list(sub.slices) == list(values) == list(sub.model.state_dict())
    for key, value in sub.model.state_dict().items():
        assert torch.equal(values[key][sub.slices[key]], value)
        assert tuple(s.stop for s in sub.slices[key]) == tuple(value.shape)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CHAINS)
def test_a_submodel_has_the_sizes_and_groups_of_a_model_built_at_its_width(name, width):
    sub, built = shrink(chain(name, width=1.0), width).model, chain(name, width=width)
    assert {n: p.shape for n, p in sub.named_parameters()} == {n: p.shape for n, p in built.named_parameters()}
    groups = [[m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)] for model in (sub, built)]
    assert groups[0] == groups[1]


@given(width=st.floats(min_value=0.0, max_value=1.0, exclude_min=True), seed=st.integers(0, 5))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_submodels_of_every_width_run_and_keep_input_and_output_whole(width, seed):
    full = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 12, 3), nn.GroupNorm(4, 12), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(12 * 9, 7), nn.GroupNorm(1, 7), nn.ReLU()),
        nn.Linear(7, 5),
    )
    sub = shrink(full, width).model
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    assert sub(x).shape == (2, 5)
    assert sub[0][0].out_channels * 9 == sub[1][1].in_features


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", ["none", "group", "batch"])
@pytest.mark.parametrize("name", CHAINS)
def test_width_one_is_the_same_function(name, norm, training):
    full = settle(chain(name, norm=norm)).train(training)
    sub = shrink(full, 1.0).model
    assert torch.equal(sub(images()), full(images()))


@torch.no_grad()
def silence(full, sub):
    """Zero the weights that read what the submodel does not have, in all layers."""
    for key, value in full.named_parameters():
        if value.ndim > 1:
            value[:, sub.slices[key][1].stop :] = 0


@pytest.mark.parametrize("norm", ["none", "group", "batch"])
@pytest.mark.parametrize("name", CHAINS)
def test_in_evaluation_a_submodel_is_the_full_model_that_ignores_the_other_units(name, norm):
    # With groups of a fixed size the first half of the channels is the first half of the groups, so norms agree too.
    full = settle(chain(name, norm=norm)).eval()
    sub = shrink(full, 0.5)
    silence(full, sub)
    assert torch.allclose(sub.model(images()), full(images()), rtol=1e-4, atol=1e-5)


def test_in_training_hidden_activations_are_divided_by_the_width():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        full = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    sub = shrink(full, 0.5).model
    x = torch.tensor([[1.0, -2.0, 3.0]])
    first = ((x @ full[1].weight[:2].T + full[1].bias[:2]) / 0.5).relu()
    second = ((first @ full[3].weight[:3, :2].T + full[3].bias[:3]) / 0.5).relu()
    expected = second @ full[5].weight[:, :3].T + full[5].bias
    assert torch.allclose(sub(x), expected)
    assert sum(isinstance(m, Scaler) for m in sub.modules()) == 2


@pytest.mark.parametrize("name", CHAINS)
def test_a_submodel_has_the_layers_of_the_full_model(name):
    full = chain(name)
    assert find_layers(shrink(full, 0.25).model, images(1)) == find_layers(full, images(1))


def test_a_submodel_shares_no_memory_with_the_full_model_and_draws_nothing():
    full = chain("cnn")
    before = {key: value.clone() for key, value in full.state_dict().items()}
    generator = torch.get_rng_state()
    sub = shrink(full, 0.5)
    with torch.no_grad():
        for value in sub.model.parameters():
            value.zero_()
    assert all(torch.equal(value, before[key]) for key, value in full.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_modes_frozen_parameters_and_a_shared_activation_carry_over():
    relu = nn.ReLU()
    full = nn.Sequential(nn.Linear(3, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2)).eval()
    full[0].requires_grad_(False)
    sub = shrink(full, 0.5).model
    assert not any(m.training for m in sub.modules())
    assert [p.requires_grad for p in sub.parameters()] == [False, False, True, True, True, True]
    assert sum(isinstance(m, nn.ReLU) for m in sub) == 2


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_load_brings_the_part_of_another_full_model_into_the_submodel(norm):
    old, new = chain("vgg11", seed=0, norm=norm), settle(chain("vgg11", seed=1, norm=norm))
    sub = shrink(old, 0.5)
    load(sub, new.state_dict())
    expected = shrink(new, 0.5).model.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in sub.model.state_dict().items())


@pytest.mark.parametrize("width", [0.0, -0.5, 1.5, float("nan"), "half"])
def test_impossible_widths_are_refused(width):
    with pytest.raises(ConfigError, match="more than 0 and at most 1"):
        shrink(chain("mlp"), width)


SHARED = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 2), "the model (Linear) cannot be scaled in width: it must be a nested nn.Sequential"),
        (build_model("resnet18", input_shape=CIFAR, classes=2, seed=0, width=0.1), "it must be a nested nn.Sequential"),
        (nn.Sequential(nn.ReLU()), "neither Linear nor Conv2d"),
        (nn.Sequential(SHARED, nn.ReLU(), SHARED), "a weight in two places, the second of which is 2.weight"),
        (nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 3)), "0.1 (Tanh) cannot be scaled"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 2)), "0 (Conv2d)"),
        (nn.Sequential(nn.Linear(4, 4), nn.Conv2d(4, 4, 3)), "1 (Conv2d)"),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.Linear(4, 2)), "1 (Linear) cannot be scaled in width: a Flatten must"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(2), nn.Linear(4, 2)), "1 (Flatten)"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(3, 4, 3)), "it takes 3 inputs, but the modules before it give 4"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(9, 2)), "it takes 9 inputs"),
    ],
)
def test_models_that_are_not_such_chains_are_refused_with_the_module(model, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        shrink(model, 0.5)
