"""The stacked engine: several local steps, and starts from several weights, equal the loop device by device."""

from copy import deepcopy
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adelfl.strategies import Progress
from adelfl.training import stacked
from adelfl.training.engines import LocalWork, build_engine
from adelfl.training.loop import LoopEngine
from adelfl.training.stacked import Stacked
from adelfl.training.work import RoundWork
from support.small_worlds import dataset_of, layers_of, samples_of, seeded

IMAGES = (1, 6, 6)
DATA = dataset_of(IMAGES)
SAMPLES = samples_of(DATA)


def small_cnn():
    """Padding, a bias left out, a pool that leaves a row over, and a pool before its activation."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 4),
    )  # fmt: skip


MODELS = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4)
    ),
    "cnn": small_cnn,
    "mapped": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 4)),
}


@st.composite
def several_steps(draw, layers, steps=3):
    """Any depths over some steps, any batch sizes, any A."""
    U = draw(st.integers(1, 5))
    sizes = np.array(draw(st.lists(st.integers(1, 4), min_size=U, max_size=U)))
    z = np.array(draw(st.lists(st.integers(0, steps * layers), min_size=U, max_size=U)))
    A = np.array(draw(st.lists(st.sampled_from([0.0, 0.3, 1.0, -0.5]), min_size=U * layers, max_size=U * layers)))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    rows = tuple(rng.integers(0, len(SAMPLES.y), sizes.sum()) for _ in range(steps))
    proximal = draw(st.sampled_from([0.0, 0.2]))
    progress = Progress(z, layers, steps, np.ones(U))
    return RoundWork(rows, sizes, A.reshape(U, layers), progress, 0.3, proximal=proximal)


def assert_same(one, other):
    assert one.loss == pytest.approx(other.loss, rel=1e-5, nan_ok=True)
    for name in one.parameters.keys() | other.parameters.keys():
        values = [change.parameters.get(name, torch.zeros(())) for change in (one, other)]
        assert torch.allclose(*torch.broadcast_tensors(*values), atol=1e-5), name


@pytest.mark.parametrize("local", [{}, {"weight_decay": 0.1}, {"momentum": 0.5}], ids=str)
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data(), chunk=st.sampled_from([1, 5000, 1 << 30]))
def test_steps_of_a_stack_equal_those_of_one_device_after_another(name, local, data, chunk):
    model = seeded(MODELS[name]).train()
    layers = layers_of(model, DATA)
    work = data.draw(several_steps(len(layers)))
    loop, stack = (
        build_engine(e, model, layers, SAMPLES, LocalWork(**local), iterations=3) for e in ("loop", "stacked")
    )
    with patch.object(stacked, "_CHUNK_BYTES", chunk), patch.object(stacked, "_CACHE_BYTES", chunk):
        assert_same(stack.run(work), loop.run(work))


@pytest.mark.parametrize("engine", ["loop", "stacked", "fused"])
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_work_from_several_weights_is_what_each_device_does_from_its_own(name, engine, data):
    steps = 1 if engine == "fused" else 2
    model = seeded(MODELS[name]).train()
    layers = layers_of(model, DATA)
    drawn = data.draw(several_steps(len(layers), steps))
    works = [replace(drawn.only(np.array([u])), eta=0.1 + 0.1 * (u % 2)) for u in range(drawn.sizes.size)]
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    versions = [{name: w + 0.1 * k for name, w in first.items()} for k in range(3)]
    starts = [versions[data.draw(st.integers(0, 2))] for _ in works]
    change = build_engine(engine, model, layers, SAMPLES, LocalWork(), iterations=steps).run_apart(works, starts)
    assert all(torch.equal(p, first[name]) for name, p in model.named_parameters())
    alone = []
    for work, start in zip(works, starts, strict=True):
        copied = deepcopy(model)
        copied.load_state_dict(start)
        alone.append(LoopEngine(copied, layers, SAMPLES).run(work))
    losses = [one.loss for one, work in zip(alone, works, strict=True) if work.contributes.any()]
    assert change.loss == pytest.approx(np.mean(losses) if losses else np.nan, rel=1e-5, nan_ok=True)
    for key in first:
        expected = sum((one.parameters[key] for one in alone if key in one.parameters), torch.zeros(()))
        assert torch.allclose(change.parameters.get(key, torch.zeros(())), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_arrivals_from_many_versions_go_through_in_one_pass(name):
    model = seeded(MODELS[name]).train()
    layers = layers_of(model, DATA)
    L = len(layers)
    works = [
        RoundWork((np.arange(4) + u,), np.array([4]), np.ones((1, L)), Progress(np.array([L]), L, 1, np.ones(1)), 0.1)
        for u in range(8)
    ]
    starts = [{key: p.detach() + 0.01 * u for key, p in model.named_parameters()} for u in range(8)]
    seen = []
    plain = stacked._Products.step

    def watched(self, stack, x, *rest):
        seen.append(x.shape[0])
        return plain(self, stack, x, *rest)

    with patch.object(stacked._Products, "step", watched):
        build_engine("fused", model, layers, SAMPLES, LocalWork()).run_apart(works, starts)
    assert seen == [8]


def test_devices_that_stopped_leave_the_stack():
    model = seeded(MODELS["mlp"]).train()
    layers = layers_of(model, DATA)
    z = np.array([1, 9, 5])  # of three layers: one of the first step, all of three, two of the second
    work = RoundWork(
        tuple(np.arange(6) for _ in range(3)), np.full(3, 2), np.ones((3, 3)), Progress(z, 3, 3, np.ones(3)), 0.1
    )
    seen = []
    plain = stacked._Stack.move_along

    def watched(self, name, left, right):
        seen.append((name[0], left.shape[0]))
        plain(self, name, left, right)

    with patch.object(stacked._Stack, "move_along", watched):
        Stacked(model, layers, SAMPLES).run(work)
    assert [n for _, n in seen] == [3, 2, 2, 2, 2, 1, 1, 1, 1]
