"""Layers: found in any module, in the order in which it runs, and nothing about the module changed."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

from adelfl.errors import ConfigError
from adelfl.training.layers import Layer, find_layers, given_layers, is_per_sample
from adelfl.training.models import MODELS, build_model

IMAGE = torch.zeros(1, 3, 32, 32)


@pytest.fixture(autouse=True)
def _same_weights_in_every_run():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def model_of(name, **options):
    return build_model(name, input_shape=(3, 32, 32), classes=10, seed=0, width=0.125, **options)


def names(layers):
    return [layer.name for layer in layers]


def parameters(layers):
    return [layer.parameters for layer in layers]


class Backwards(nn.Module):
    """Registers its layers in another order than it runs them."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.first = nn.Linear(3, 4)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


# -- find_layers: counts and order


@pytest.mark.parametrize(
    ("name", "count"),
    [("mlp", 3), ("cnn", 4), ("vgg11", 11), ("vgg13", 13), ("resnet18", 21), ("transformer", 10)],
)
@pytest.mark.parametrize("norm", ["none", "group", "batch"])
def test_models_have_the_layers_of_the_paper_whatever_their_norm(name, count, norm):
    assert len(find_layers(model_of(name, norm=norm), IMAGE)) == count


@pytest.mark.parametrize("name", MODELS)
def test_layers_share_out_the_trainable_parameters(name):
    model = model_of(name)
    found = [p for layer in find_layers(model, IMAGE) for p in layer.parameters]
    assert sorted(found) == sorted(n for n, _ in model.named_parameters())


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg11"])
def test_backpropagation_visits_the_layers_from_the_last_to_the_first(name):
    model = model_of(name)
    where = {p: i for i, layer in enumerate(find_layers(model, IMAGE)) for p in layer.parameters}
    visited = []
    for parameter, tensor in model.named_parameters():
        tensor.register_post_accumulate_grad_hook(lambda _, i=where[parameter]: visited.append(i))
    model(IMAGE).sum().backward()
    assert visited == sorted(visited, reverse=True)


def test_layers_of_built_models_are_named_as_their_blocks():
    assert names(find_layers(model_of("cnn"), IMAGE)) == ["conv1", "conv2", "dense1", "dense2"]


def test_order_is_that_of_execution_and_not_of_registration():
    assert names(find_layers(Backwards(), torch.zeros(1, 3))) == ["first", "last"]


def test_a_module_that_runs_twice_is_one_layer_where_it_ran_first():
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Linear(3, 3), shared)
    assert parameters(find_layers(model, torch.zeros(1, 3))) == [
        ("0.weight", "0.bias"),
        ("1.weight", "1.bias"),
    ]


def test_a_lone_module_is_one_layer():
    assert find_layers(nn.Linear(2, 3), torch.zeros(1, 2)) == (Layer("Linear", ("weight", "bias")),)


# -- find_layers: what joins what


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.PReLU(4)])
def test_a_norm_joins_the_layer_before_it(norm):
    model = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2))
    assert parameters(find_layers(model, torch.zeros(2, 3))) == [
        ("0.weight", "0.bias", *(f"1.{n}" for n, _ in norm.named_parameters())),
        ("2.weight", "2.bias"),
    ]


def test_a_norm_with_no_layer_before_it_joins_the_next():
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 4), nn.Linear(4, 2))
    assert parameters(find_layers(model, torch.zeros(1, 3)))[0] == ("0.weight", "0.bias", "1.weight", "1.bias")


def test_norms_of_other_makers_are_known_by_name_and_shape():
    class MyRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1, 4))

        def forward(self, x):
            return x * self.gain

    model = nn.Sequential(nn.Linear(3, 4), MyRMSNorm(), nn.Linear(4, 2))
    assert parameters(find_layers(model, torch.zeros(1, 3)))[0] == ("0.weight", "0.bias", "1.gain")


def test_norms_alone_are_layers():
    model = nn.Sequential(nn.LayerNorm(3), nn.LayerNorm(3))
    assert len(find_layers(model, torch.zeros(1, 3))) == 2


def test_the_output_projection_of_attention_is_in_the_layer_of_the_attention():
    model = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True)
    attention, up, down = find_layers(model, torch.zeros(1, 5, 8))
    assert [attention.name, up.name, down.name] == ["self_attn", "linear1", "linear2"]
    assert {"self_attn.in_proj_weight", "self_attn.out_proj.weight", "norm1.weight"} < set(attention.parameters)
    assert "norm2.weight" in down.parameters


def test_a_parameter_on_a_parent_joins_the_first_layer_inside_that_parent():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(4))
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x):
            return self.gain * self.inner(x)

    model = nn.Sequential(nn.Linear(3, 4), Scaled())
    assert parameters(find_layers(model, torch.zeros(1, 3))) == [
        ("0.weight", "0.bias"),
        ("1.gain", "1.inner.0.weight", "1.inner.0.bias"),
        ("1.inner.1.weight", "1.inner.1.bias"),
    ]


def test_a_module_with_weights_of_its_own_and_a_norm_inside_is_one_layer():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(x @ self.weight)

    model = nn.Sequential(nn.Linear(3, 4), Normed(), nn.Linear(4, 2))
    assert names(find_layers(model, torch.zeros(1, 3))) == ["0", "1", "2"]


def test_weights_used_without_calling_their_module_join_what_ran_around_it():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return functional.linear(functional.linear(x, self.a.weight, self.a.bias), self.b.weight, self.b.bias)

    model = nn.Sequential(Functional(), nn.Linear(2, 2))
    assert parameters(find_layers(model, torch.zeros(1, 3))) == [
        ("0.a.weight", "0.a.bias", "0.b.weight", "0.b.bias"),
        ("1.weight", "1.bias"),
    ]


def test_a_parametrised_weight_stays_with_its_bias():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    first, last = find_layers(model, torch.zeros(1, 3))
    assert first.name == "0"
    assert len(first.parameters) == 3
    assert last.parameters == ("1.weight", "1.bias")


@pytest.mark.parametrize("decoder_first", [False, True])
def test_a_tied_weight_is_in_the_layer_that_ran_first(decoder_first):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            if decoder_first:
                self.decoder = nn.Linear(4, 9)
            self.encoder = nn.Embedding(9, 4)
            self.middle = nn.Linear(4, 4)
            if not decoder_first:
                self.decoder = nn.Linear(4, 9)
            self.decoder.weight = self.encoder.weight

        def forward(self, x):
            return self.decoder(self.middle(self.encoder(x)))

    layers = find_layers(Tied(), torch.zeros(1, 2, dtype=torch.long))
    # named_parameters() knows a tied weight by the name that was registered first.
    weight = "decoder.weight" if decoder_first else "encoder.weight"
    assert parameters(layers) == [(weight,), ("middle.weight", "middle.bias"), ("decoder.bias",)]


def test_frozen_parameters_are_left_out_and_frozen_layers_with_them():
    model = model_of("cnn")
    model.conv1.requires_grad_(False)
    model.conv2.conv.bias.requires_grad_(False)
    layers = find_layers(model, IMAGE)
    assert names(layers) == ["conv2", "dense1", "dense2"]
    assert layers[0].parameters == ("conv2.conv.weight",)


def test_a_trainable_norm_does_not_move_when_the_layer_before_it_is_frozen():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model[1].requires_grad_(False)
    assert parameters(find_layers(model, torch.zeros(1, 3)))[1] == ("2.weight", "2.bias")


def test_outputs_in_tuples_and_dictionaries_count():
    class Two(Backwards):
        def forward(self, x):
            hidden = self.first(x)
            return {"logits": (self.last(hidden),), "none": None}

    assert names(find_layers(Two(), torch.zeros(1, 3))) == ["first", "last"]


# -- find_layers: the model is left as it was


class Counting(nn.Module):
    """Changes its buffers in every forward pass, one in place and one by putting another in its place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.seen = self.seen + 1
        return x


@pytest.mark.parametrize("fails", [False, True])
def test_finding_layers_leaves_the_model_as_it_was(fails):
    model = nn.Sequential(Counting(), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[2].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    kept = [*model.parameters(), *model.buffers()]
    generator = torch.get_rng_state()
    if fails:
        with pytest.raises(ConfigError):
            find_layers(model, torch.zeros(5, 7))
    else:
        find_layers(model, torch.ones(5, 3))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert all(a is b for a, b in zip([*model.parameters(), *model.buffers()], kept, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), generator)


def test_one_sample_is_enough_even_with_batch_norm_and_without_gradients_around():
    with torch.no_grad():
        assert len(find_layers(model_of("vgg11", norm="batch"), IMAGE)) == 11


# -- find_layers: refusals


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ConfigError, match="it has no parameters"):
        find_layers(nn.Sequential(nn.ReLU()), torch.zeros(1, 3))


def test_a_model_with_frozen_parameters_only_is_refused():
    with pytest.raises(ConfigError, match="all its parameters are frozen"):
        find_layers(nn.Linear(3, 2).requires_grad_(False), torch.zeros(1, 3))


def test_a_parameter_that_is_never_used_is_refused_by_name():
    class Spare(Backwards):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(2, 2)

    with pytest.raises(ConfigError, match=re.escape("'spare.weight' (and 1 more) does not affect")):
        find_layers(Spare(), torch.zeros(1, 3))


def test_a_parameter_that_runs_but_does_not_reach_the_output_is_refused():
    class Spare(Backwards):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(2, 2, bias=False)

        def forward(self, x):
            y = super().forward(x)
            self.spare(y)
            return y

    with pytest.raises(ConfigError, match=re.escape("parameter 'spare.weight' does not affect")):
        find_layers(Spare(), torch.zeros(1, 3))


def test_an_example_of_the_wrong_shape_is_refused_with_its_shape():
    with pytest.raises(ConfigError, match=re.escape("example input of shape (1, 5)")):
        find_layers(nn.Linear(3, 2), torch.zeros(1, 5))


def test_a_lazy_model_is_refused_before_it_is_changed():
    model = nn.LazyLinear(3)
    with pytest.raises(ConfigError, match="has no shape yet"):
        find_layers(model, torch.zeros(1, 5))
    assert model.has_uninitialized_params()


# -- given_layers


def test_given_layers_follow_the_list_and_take_modules_and_parameters():
    model = model_of("cnn")
    layers = given_layers(model, ["conv1.conv.weight", ["conv1.conv.bias", "conv2"], ["dense1", "dense2.linear"]])
    assert names(layers) == ["conv1.conv.weight", "conv1.conv.bias, conv2", "dense1, dense2.linear"]
    assert parameters(layers) == [
        ("conv1.conv.weight",),
        ("conv1.conv.bias", "conv2.conv.weight", "conv2.conv.bias"),
        ("dense1.linear.weight", "dense1.linear.bias", "dense2.linear.weight", "dense2.linear.bias"),
    ]


@pytest.mark.parametrize("name", MODELS)
def test_found_layers_given_back_are_the_same_layers(name):
    model = model_of(name)
    found = find_layers(model, IMAGE)
    assert parameters(given_layers(model, parameters(found))) == parameters(found)


def test_a_name_ends_where_the_module_ends():
    model = nn.ModuleDict({"a": nn.Linear(1, 1), "ab": nn.Linear(1, 1)})
    assert parameters(given_layers(model, ["a", "ab"])) == [("a.weight", "a.bias"), ("ab.weight", "ab.bias")]


def test_frozen_parameters_need_not_be_given():
    model = Backwards()
    model.first.requires_grad_(False)
    assert parameters(given_layers(model, ["last"])) == [("last.weight", "last.bias")]


def test_a_tied_weight_given_under_both_names_is_in_the_first_layer():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    assert parameters(given_layers(model, ["b", "a"])) == [("a.weight", "b.bias"), ("a.bias",)]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["conv1", "conv2", "dense1"], "parameter 'dense2.linear.weight' is in no entry"),
        ([], "'conv1.conv.weight' is in no entry"),
        (["conv1", ["conv2", "conv1"], "dense1", "dense2"], "'conv1.conv.weight' is named by entries 1 and 2"),
        ([["conv1", "conv1.conv.bias"], "conv2", "dense1", "dense2"], "'conv1.conv.bias' is named twice by entry 1"),
        (["conv1", "convv2", "dense1", "dense2"], "entry 2 names 'convv2', which holds no parameters"),
        (["conv1", "convv2", "dense1", "dense2"], "did you mean 'conv2'?"),
        (["conv1", "", "dense1", "dense2"], "entry 2 names ''"),
        (["conv1", [], "conv2", "dense1", "dense2"], "entry 2 () holds no trainable parameter"),
        (["conv1", "conv1.relu", "conv2", "dense1", "dense2"], "entry 2 names 'conv1.relu'"),
    ],
)
def test_given_layers_that_do_not_share_out_the_parameters_are_refused(groups, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        given_layers(model_of("cnn"), groups)


# -- what a trainer may assume


@pytest.mark.parametrize("norm", ["none", "group", "batch"])
@pytest.mark.parametrize("mode", [True, False])
def test_is_per_sample_is_true_where_no_row_changes_another(norm, mode):
    model = model_of("vgg11", norm=norm).train(mode)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    changed = torch.cat([x[:3], 5 * x[3:]])
    with torch.no_grad():
        alike = torch.allclose(model(x)[:3], model(changed)[:3], rtol=1e-4, atol=1e-5)
    assert is_per_sample(model) == alike == (norm != "batch" or not mode)


def test_batch_norm_without_running_statistics_is_never_per_sample():
    assert not is_per_sample(nn.BatchNorm1d(3, track_running_stats=False).eval())
