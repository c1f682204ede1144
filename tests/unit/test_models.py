"""The networks: how deep they are, what they are made of, and that a seed says all."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

from adelfl.errors import ConfigError
from adelfl.training.models import MODELS, build_model
from adelfl.training.networks import CNN_CHANNELS, CNN_DENSE, NORMS, narrowed

MNIST, CIFAR, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)
CHAINS = ("mlp", "cnn", "vgg11", "vgg13")
PRIMITIVES = (nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.GroupNorm, nn.BatchNorm2d)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def narrow_model(name, shape=CIFAR, **options):
    return build_model(name, input_shape=shape, classes=10, seed=3, width=0.125, **options)


def all_tensors(model):
    return [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_depends_on_its_seed_alone(name):
    def draw(seed):
        return all_tensors(build_model(name, input_shape=CIFAR, classes=10, seed=seed, width=0.125))

    torch.randn(3)  # moves the global generator between the two
    first, again, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_building_does_not_move_the_global_generator(name):
    before = torch.get_rng_state()
    narrow_model(name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_one_finite_logit_per_class_and_lives_on_the_cpu(name, norm):
    model = narrow_model(name, norm=norm)
    assert model.training
    assert all(p.device.type == "cpu" and p.requires_grad for p in model.parameters())
    logits = model(noise(4, *CIFAR))
    assert logits.shape == (4, 10)
    assert logits.isfinite().all()


@pytest.mark.parametrize("shape", [MNIST, CIFAR, DIGITS, (1, 4, 4), (2, 16, 20)])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "transformer"])
def test_models_but_vgg_take_small_images(name, shape):
    assert narrow_model(name, shape)(noise(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_sequentials_of_primitives_with_one_inner_sequential_per_layer(name):
    model = narrow_model(name, norm="batch")
    assert type(model) is nn.Sequential
    for layer in model:
        assert type(layer) is nn.Sequential
        assert all(type(module) in PRIMITIVES for module in layer)
        assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in layer) == 1
    assert not any(module.inplace for module in model.modules() if isinstance(module, nn.ReLU))


@pytest.mark.parametrize(("name", "depth"), [("mlp", 3), ("cnn", 4), ("vgg11", 11), ("vgg13", 13)])
def test_chains_are_as_deep_as_the_paper_says(name, depth):
    assert len(narrow_model(name)) == depth


def shapes(model):
    return [tuple(p.shape) for p in model.parameters() if p.ndim > 1]


def test_the_mlp_is_784_32_16_10_on_mnist():
    model = build_model("mlp", input_shape=MNIST, classes=10, seed=0)
    assert shapes(model) == [(32, 784), (16, 32), (10, 16)]


def test_the_mlp_takes_any_hidden_sizes_and_any_shape():
    model = build_model("mlp", input_shape=[7], classes=3, seed=0, hidden=[5])
    assert shapes(model) == [(5, 7), (3, 5)]
    assert shapes(build_model("mlp", input_shape=(2, 3), classes=4, seed=0, hidden=())) == [(4, 6)]


def test_the_cnn_has_the_sizes_of_the_released_salf_code():
    # github.com/langnatalie/SALF, models.py, CNN2Layer: 5×5 without padding, 6 and 6 channels, dense 50.
    assert (CNN_CHANNELS, CNN_DENSE) == ((6, 6), 50)
    model = build_model("cnn", input_shape=MNIST, classes=10, seed=0)
    assert shapes(model) == [(6, 1, 5, 5), (6, 6, 5, 5), (50, 6 * 4 * 4), (10, 50)]


def test_vgg11_has_the_published_channels_and_dense_layers():
    model = build_model("vgg11", input_shape=CIFAR, classes=10, seed=0)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [64, 128, 256, 256, 512, 512, 512, 512]
    assert all(m.kernel_size == (3, 3) for m in convolutions)
    assert [m.out_features for m in model.modules() if isinstance(m, nn.Linear)] == [512, 512, 10]
    assert sum(isinstance(m, nn.MaxPool2d) for m in model.modules()) == 5


def test_width_multiplies_hidden_sizes_and_nothing_else():
    model = build_model("vgg13", input_shape=CIFAR, classes=7, seed=0, width=0.25)
    outputs = [s[0] for s in shapes(model)]
    assert outputs == [16, 16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 7]
    assert shapes(model)[0] == (16, 3, 3, 3)


def test_the_narrowed_size_is_rounded_up_but_not_by_floating_point():
    assert [narrowed(10, w) for w in (1.0, 0.5, 0.51, 0.01)] == [10, 5, 6, 1]
    assert narrowed(30, 0.1) == 3


@pytest.mark.parametrize(("norm", "kind"), [("none", ()), ("group", nn.GroupNorm), ("batch", nn.BatchNorm2d)])
@pytest.mark.parametrize(("name", "count"), [("vgg11", 8), ("resnet18", 20)])
def test_norm_chooses_what_follows_every_convolution(name, count, norm, kind):
    modules = list(narrow_model(name, norm=norm).modules())
    norms = [m for m in modules if isinstance(m, nn.GroupNorm | nn.BatchNorm2d)]
    assert len(norms) == (0 if norm == "none" else count)
    assert all(isinstance(m, kind) for m in norms)


@pytest.mark.parametrize("width", [1.0, 0.25, 0.3, 1 / 16])
def test_groups_divide_the_channels_at_every_width(width):
    model = build_model("vgg11", input_shape=CIFAR, classes=10, seed=0, width=width)
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            assert module.num_channels % module.num_groups == 0
            assert module.num_channels < 16 or module.num_channels // module.num_groups >= 8


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["vgg13", "resnet18"])
def test_signals_neither_vanish_nor_explode_in_deep_models(name, norm):
    model = build_model(name, input_shape=CIFAR, classes=10, seed=0, width=0.25, norm=norm)
    logits = model(noise(8, *CIFAR))
    assert 0.05 < logits.std() < 5
    logits.square().mean().backward()
    # A block of resnet18 without a norm starts as its shortcut, so half of its convolutions wait one step.
    waiting = ".conv1." if name == "resnet18" and norm == "none" else "none"
    sizes = {n: p.grad.norm() for n, p in model.named_parameters() if p.ndim > 1 and waiting not in n}
    assert min(sizes.values()) > 1e-4
    assert max(sizes.values()) < 1e2


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", MODELS)
def test_a_small_gradient_step_lowers_the_loss_as_much_as_the_gradient_promises(name, norm):
    model = narrow_model(name, norm=norm)
    x, y = noise(4, *CIFAR), torch.arange(4)
    before = functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(before, list(model.parameters()))
    step = 0.01 * before.item() / sum(g.square().sum() for g in gradients).item()
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= step * gradient
        after = functional.cross_entropy(model(x), y)
    # To first order the step takes 1 % off the loss; curvature may take some of it back.
    assert 0.98 * before < after < 0.995 * before


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vgg12", {}, "did you mean 'vgg1"),
        ("MLP", {}, "did you mean 'mlp'"),
        ("perceptron", {}, "allowed are mlp, cnn"),
        ("mlp", {"hidden": (32, 0)}, "hidden must consist of whole numbers of at least 1, not 0"),
        ("mlp", {"hidden": (32, 1.5)}, "hidden"),
        ("mlp", {"hidden": 32}, "hidden must be a list"),
        ("mlp", {"hidden": "32"}, "hidden must be a list"),
        ("mlp", {"classes": 1}, "classes"),
        ("mlp", {"classes": True}, "classes"),
        ("mlp", {"seed": -1}, "seed"),
        ("mlp", {"input_shape": ()}, "input_shape of mlp must be at least one size"),
        ("cnn", {"input_shape": (784,)}, "input_shape of cnn must be (channels, height, width)"),
        ("cnn", {"input_shape": (1, 0, 8)}, "input_shape"),
        ("cnn", {"input_shape": (1, 3, 8)}, "at least 4×4"),
        ("vgg11", {"input_shape": MNIST}, "vgg11 halves the image five times and needs at least 32×32, not 28×28"),
        ("vgg13", {"norm": "layer"}, "norm must be one of none, group, batch, not 'layer'"),
        ("vgg13", {"width": 0.0}, "width"),
        ("vgg13", {"width": float("nan")}, "width"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_key(name, options, message):
    arguments = {"input_shape": CIFAR, "classes": 10, "seed": 0} | options
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_model(name, **arguments)
