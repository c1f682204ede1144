"""Models that draw random numbers while they train (dropout and the like) give the same run for the same seed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_flower import task_message
from torch import nn
from torch.nn import functional

from adelfl.config.build import build_experiment
from adelfl.config.run import load_run
from adelfl.errors import ConfigError
from adelfl.flower.client import train
from adelfl.runner import resume, start
from adelfl.simulation import engine as simulation
from adelfl.strategies.rounds import Progress
from adelfl.training.loop import LoopEngine
from adelfl.training.masks import draws_numbers, mask_seeds
from adelfl.training.work import RoundWork
from support.flower_world import Being, Net, arrays
from support.small_worlds import dataset_of, kept_bytes, layers_of, run, same_bits, samples_of, seeded, small_run


class Hidden(nn.Module):
    """Dropout by a function, and a layer that is skipped at random: no module tells of either."""

    def __init__(self, inputs=16, classes=4):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(inputs, 8), nn.Linear(8, 8), nn.Linear(8, classes)

    def forward(self, x):
        x = functional.dropout(torch.relu(self.first(x.flatten(1))), 0.5, self.training)
        if not self.training or torch.rand(()) > 0.3:
            x = x + torch.relu(self.second(x))
        return self.third(x)


def dropping(inputs=16, classes=4, p=0.5):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(), nn.Dropout(p), nn.Linear(8, classes))


def dropout_model(shape, classes, seed):
    """What ``model.factory`` takes."""
    return dropping(int(np.prod(shape)), classes)


DATA = dataset_of((1, 4, 4))
DRAWING = {
    "dropout": dropping,
    "rrelu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.RReLU(), nn.Linear(8, 4)),
    "hidden": Hidden,
}


def experiment(build, **more):
    model = seeded(build)
    return small_run(model, layers_of(model, DATA), DATA, **more)


@pytest.mark.parametrize("build", DRAWING.values(), ids=DRAWING)
@pytest.mark.parametrize("strategy", ["salf", "adel"])
@pytest.mark.parametrize("iterations", [1, 2])
def test_the_same_seed_gives_the_same_run_whatever_was_drawn_before(build, strategy, iterations):
    this = experiment(build, strategy=strategy, local_iterations=iterations)
    first = run(this)
    torch.rand(7)
    again = run(this)
    assert first.result.engine == "loop"
    assert same_bits(first.weights, again.weights)
    assert first.rows == again.rows
    assert not same_bits(first.weights, run(replace(this, seed=2)).weights)


def test_a_run_leaves_torchs_generator_as_it_was():
    before = torch.get_rng_state()
    run(experiment(Hidden, strategy="adel"))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_device_computes_does_not_depend_on_who_is_computed_before_it():
    this = experiment(dropping)
    engine = LoopEngine(this.model.train(), this.layers, samples_of(DATA))
    devices = np.array([3, 5, 8])
    sizes = np.array([4, 6, 5])
    work = RoundWork(
        (np.arange(15),),
        sizes,
        np.ones((3, 2)),
        Progress(np.full(3, 2), 2, 1, np.ones(3)),
        0.1,
        mask_seeds=mask_seeds(1, 0, devices),
    )
    start, order = dict(engine.parameters), np.array([2, 0, 1])
    plain = [engine.train(work, u, start)[0] for u in range(3)]
    turned = [engine.train(work.only(order), u, start)[0] for u in range(3)]
    alone = [engine.train(work.only(np.array([u])), 0, start)[0] for u in range(3)]
    for u, place in enumerate((1, 2, 0)):
        for name, step in plain[u].items():
            assert torch.equal(step, turned[place][name])
            assert torch.equal(step, alone[u][name])


def test_masks_differ_between_devices_rounds_and_seeds():
    everyone = np.arange(20)
    seeds = [*mask_seeds(0, 0, everyone), *mask_seeds(0, 1, everyone), *mask_seeds(1, 0, everyone)]
    assert len(set(seeds)) == 60
    assert mask_seeds(0, 1, np.array([7]))[0] == mask_seeds(0, 1, everyone)[7]  # whoever else is in the cohort


def test_dropout_is_active_in_training_and_the_step_is_that_of_its_mask():
    this = experiment(dropping)
    engine = LoopEngine(this.model.train(), this.layers, samples_of(DATA))
    start = {name: p.detach() for name, p in this.model.named_parameters()}
    progress = Progress(np.array([2]), 2, 1, np.ones(1))
    work = RoundWork((np.arange(9),), np.array([9]), np.ones((1, 2)), progress, 1.0, mask_seeds=np.array([11]))
    step, *_ = engine.train(work, 0, start)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        x, y = samples_of(DATA).take(np.arange(9))
        loss = functional.cross_entropy(this.model(x), y)
    for (name, _), grad in zip(start.items(), torch.autograd.grad(loss, list(this.model.parameters())), strict=True):
        assert torch.equal(step[name], -grad)
    without, *_ = engine.train(replace(work, mask_seeds=np.array([12])), 0, start)
    assert not torch.equal(step["1.weight"], without["1.weight"])


@pytest.mark.parametrize("engine", ["fused", "stacked"])
@pytest.mark.parametrize("build", DRAWING.values(), ids=DRAWING)
def test_engines_that_compute_devices_together_refuse_such_models_in_one_sentence(engine, build):
    with pytest.raises(ConfigError, match=r"draws random numbers for each.*use 'loop'"):
        run(replace(experiment(build), engine=engine))


def test_a_model_that_draws_nothing_is_told_from_one_that_does():
    x = torch.zeros(2, 16)
    for build in DRAWING.values():
        assert draws_numbers(build(), x)
        assert not draws_numbers(build().eval(), x)
    assert not draws_numbers(dropping(p=0.0), x)
    assert draws_numbers(nn.LSTM(16, 3, num_layers=2, dropout=0.1), x)
    for p in (0.0, 0.1):
        assert draws_numbers(nn.TransformerEncoderLayer(16, 2, 8, dropout=p), x) == (p > 0)


@pytest.mark.parametrize("strategy", ["salf", "adel", "heterofl"])
def test_a_factory_may_make_a_model_with_dropout_and_its_run_is_resumed_to_the_same_bytes(
    tmp_path, monkeypatch, strategy
):
    monkeypatch.setattr(simulation, "_CHECKPOINT_SECONDS", -1.0)
    said = load_run(
        None,
        [
            "model.factory=test_masks:dropout_model",
            "fleet.devices=6",
            "training.rounds=6",
            "training.depth=0.8",
            f"strategy.name={strategy}",
        ],
    )
    start(said, tmp_path / "whole")

    def stop(row):
        if row.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(said, tmp_path / "cut", stop)
    torch.rand(3)
    resume(tmp_path / "cut")
    assert kept_bytes(tmp_path / "cut") == kept_bytes(tmp_path / "whole")


def test_the_constants_that_are_estimated_for_a_plan_are_the_same_every_time():
    said = load_run(None, ["model.factory=test_masks:dropout_model", "fleet.devices=6"])
    one = build_experiment(said).strategy.problem.constants.to_dict()
    torch.rand(5)
    assert build_experiment(said).strategy.problem.constants.to_dict() == one


class DroppingNet(Net):
    def forward(self, x):
        return self.third(functional.dropout(torch.relu(self.second(torch.relu(self.first(x)))), 0.5, self.training))


@pytest.mark.parametrize("number", [0, 1], ids=["measured", "trained"])
def test_a_flower_node_trains_a_model_with_dropout(number):
    net = DroppingNet()
    reply = train(task_message(number=number), net, Being().data)
    assert reply.content["metrics"]["adelfl-done"] == 3
    sent = {name: array.numpy() for name, array in arrays().items()}
    for name, p in net.named_parameters():
        assert np.allclose(p.detach().numpy(), sent[name] + reply.content["arrays"][name].numpy(), atol=1e-6)
