"""The file of run and compare: defaults, changes, mistakes in one sentence, and what is built of it."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from adelfl.config.build import build_data, build_experiment
from adelfl.config.build_fleet import given_fleet
from adelfl.config.defaults import RATES
from adelfl.config.run import RunFile, load_run
from adelfl.data import Partition, iid, load_dataset
from adelfl.data.datasets import DATASETS
from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.learning_rate import ConstantRate, InverseDecay
from adelfl.runner import default_folder, jobs_of, parse_strategy
from adelfl.simulation import simulate
from adelfl.theory.participation import mean_depth
from adelfl.training.models import MODELS, build_model
from support.small_worlds import dataset_of

# -- what factories in a user's module look like


def small_data():
    return dataset_of((1, 4, 4))


def linear(shape, classes, seed):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


def unused(shape, classes, seed):
    model = linear(shape, classes, seed)
    model.spare = nn.Parameter(torch.zeros(3))
    return model


def backwards(shape, classes, seed):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))


def frozen(shape, classes, seed):
    return linear(shape, classes, seed).requires_grad_(False)


def nothing(*_):
    return None


# -- defaults


def test_without_a_file_it_is_the_embedded_experiment():
    said = load_run(None)
    assert (said.data.name, said.model.name, said.model.hidden) == ("digits", "mlp", [32, 16])
    assert (said.fleet.devices, said.fleet.kind, said.fleet.sigma) == (30, "lognormal", 0.5)
    assert (said.training.rounds, said.training.depth, said.training.batch) == (100, 0.15, 16)
    assert said.learning_rate.build() == ConstantRate(0.3)


def test_the_budget_makes_the_mean_depth_what_was_asked():
    for depth, iterations in ((0.15, 1), (0.6, 1), (0.5, 3)):
        changes = [f"training.depth={depth}", f"training.local_iterations={iterations}", "fleet.upload=0.05"]
        setting = build_experiment(load_run(None, [*changes, "strategy.name=drop"])).strategy.problem
        steps, T = setting.layers * iterations, setting.uniform_deadline
        found = mean_depth(steps, T, setting.compute, setting.upload, setting.batch)
        assert found == pytest.approx(depth, rel=1e-9)


def test_a_budget_is_taken_as_it_is():
    setting = build_experiment(load_run(None, ["training.budget=77", "training.rounds=7"])).strategy.problem
    assert (setting.budget, setting.rounds, setting.uniform_deadline) == (77.0, 7, 11.0)


def test_the_seed_decides_weights_fleet_and_partition_and_the_strategy_does_not():
    def build(strategy, seed):
        return build_experiment(load_run(None, [f"strategy.name={strategy}", f"training.seed={seed}"]))

    one, other, third = build("salf", 3), build("adel", 3), build("salf", 4)
    for name, w in one.model.state_dict().items():
        assert torch.equal(w, other.model.state_dict()[name])
        assert not torch.equal(w, third.model.state_dict()[name])
    assert one.partition == other.partition != third.partition
    assert np.array_equal(one.strategy.problem.compute, other.strategy.problem.compute)
    assert one.strategy.problem.constants == other.strategy.problem.constants
    assert one.strategy.problem.constants != third.strategy.problem.constants


def test_constants_are_estimated_unless_they_are_given():
    estimated = build_experiment(load_run(None)).strategy.problem.constants
    assert len(estimated.G2) == 3
    assert estimated.sigma2 > 0
    given = build_experiment(load_run(None, ["constants.sigma2=5.0", "constants.G2=2.0"])).strategy.problem.constants
    assert (given.sigma2, given.G2) == (5.0, 2.0)


# -- files and changes


def test_a_file_is_read_and_changes_take_the_place_of_its_keys(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        """
        [data]
        partition = "dirichlet"
        alpha = 0.3
        [training]
        rounds = 7
        budget = 20.0
        [learning_rate]
        schedule = "inverse"
        initial = 0.2
        time_scale = 50
        [strategy]
        name = "salf"
        options = { average_over = "all" }
        [[device]]
        compute = 12
        count = 3
        [[device]]
        compute = 30.0
        upload = 0.2
        """
    )
    said = load_run(path, ["training.rounds=9", "model.hidden=[8, 4]", "data.partition=iid"])
    assert (said.training.rounds, said.training.budget, said.training.depth) == (9, 20.0, None)
    assert said.model.hidden == [8, 4]
    assert (said.data.partition, said.data.alpha) == ("iid", 0.3)
    assert said.learning_rate.build() == InverseDecay(0.2, 50.0)
    experiment = build_experiment(said)
    assert experiment.strategy.problem.compute.tolist() == [12.0, 12.0, 12.0, 30.0]
    assert experiment.strategy.label == "salf (average over all)"


def test_a_change_is_toml_or_a_bare_word():
    changes = ["data.name=digits", 'strategy.name="drop"', "training.seed=5", "fleet.sigma=0", "training.batch = 8"]
    said = load_run(None, [*changes, "strategy.options.average_over=all"])
    assert (said.data.name, said.strategy.name, said.training.seed) == ("digits", "drop", 5)
    assert (said.fleet.sigma, said.training.batch) == (0.0, 8)
    assert said.strategy.options == {"average_over": "all"}


@pytest.mark.parametrize("value", ["[" * 5000 + "1" + "]" * 5000, "1" * 5000])
def test_a_change_that_toml_cannot_hold_is_one_sentence(value):
    with pytest.raises(ConfigError, match="not a value") as caught:
        load_run(None, [f"training.rounds={value}"])
    assert len(str(caught.value)) < 200


def test_a_byte_order_mark_is_passed_over(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[training]\nrounds = 7\n", encoding="utf-8-sig")
    assert load_run(path).training.rounds == 7


def test_what_a_run_records_of_its_file_builds_it_again():
    said = load_run(None, ["fleet.compute=12", "constants.sigma2=[1.0, 2.0]", "strategy.options.correction=none"])
    assert RunFile.model_validate(said.model_dump(mode="json")) == said
    assert RunFile.model_validate_json(said.model_dump_json()) == said


MISTAKES = {
    "no equals sign": ("training.rounds", "must look like section.key=value"),
    "no section": ("rounds=5", "must look like section.key=value"),
    "empty section": (".rounds=5", "must look like section.key=value"),
    "unknown section": ("trainning.rounds=5", "trainning: unknown key; did you mean 'training'?"),
    "unknown key": ("training.round=5", "training.round: unknown key; did you mean 'rounds'?"),
    "key below a key": ("training.rounds.more=5", "training.rounds: must be a whole number"),
    "not whole": ("training.rounds=1.5", "training.rounds: must be a whole number or 'auto', not 1.5"),
    "a word for a number": ("training.rounds=many", "training.rounds: must be a whole number or 'auto', not 'many'"),
    "nothing": ("training.rounds=", "training.rounds: must be a whole number or 'auto', not ''"),
    "a truth for a number": ("fleet.sigma=true", "fleet.sigma: must be a number"),
    "a number for a word": ("data.name=3", "data.name: must be a text in quotes, not 3"),
    "zero": ("training.rounds=0", "training.rounds: must be at least 1"),
    "negative": ("fleet.compute=-1", "fleet.compute: must be greater than 0"),
    "nan": ("fleet.compute=nan", "fleet.compute: must be"),
    "inf": ("training.budget=inf", "training.budget: must be a finite number"),
    "depth of one": ("training.depth=1.0", "training.depth: "),
    "depth of zero": ("training.depth=0", "training.depth: must be greater than 0"),
    "wrong kind": (
        "fleet.kind=fast",
        "fleet.kind: must be 'lognormal', 'uniform', 'two-class', 'phones' or 'traces'",
    ),
    "wrong engine": ("engine.name=quick", "engine.name: must be 'auto', 'fused', 'stacked' or 'loop'"),
    "wrong norm": ("model.norm=layer", "model.norm: must be 'none', 'group' or 'batch'"),
    "wrong list": ("model.hidden=5", "model.hidden: must be a list"),
    "wrong item": ("model.hidden=[5, 'a']", "model.hidden[2]: must be a whole number"),
    "options": ("strategy.options=3", "strategy.options: "),
    "momentum of one": ("training.momentum=1.0", "training.momentum: "),
    "cohort of one": ("training.cohort=1", "training.cohort: must be at least 2"),
    "traces of another kind": ("fleet.bandwidth=links.csv", "fleet: speeds, bandwidth and availability need kind"),
    "momentum of one step": ("training.momentum=0.9", "training.momentum: it begins at zero in every round"),
    "one device": ("fleet.devices=1", "fleet.devices: must be at least 2"),
    "device is no section": (
        "device.compute=3",
        "device: must be a list of tables, each below a line [[device]], not {",
    ),
    "a section in another": (
        "training.learning_rate=0.1",
        "[learning_rate] is a section of its own, with schedule, initial",
    ),
    "rate in words": ("learning_rate.initial=x", "learning_rate.initial: must be a number or 'auto', not 'x'"),
    "misplaced time scale": ("learning_rate.time_scale=5.0", "learning_rate.time_scale"),
    "unknown model": ("model.name=mpl", "did you mean 'mlp'?"),
    "no units": ("model.hidden=[0]", "hidden must consist of whole numbers of at least 1"),
    "unknown data": ("data.name=imagenet", "there is no data set 'imagenet'"),
    "unknown strategy": ("strategy.name=sallf", "did you mean 'salf'?"),
    "unknown option": ("strategy.options.average=all", "strategy.options"),
    "wrong option": ("strategy.options.average_over=some", "average_over must be one of contributors, all"),
    "an option of the wrong kind": ("strategy.options.schedule=mine", "schedule"),
    "model too large for the image": ("model.name=vgg11", "needs at least 32×32"),
    "no such factory": ("model.factory=no_such_module:model", "model.factory"),
    "no such function": ("model.factory=test_run_config:missing", "model.factory"),
    "factory without a function": ("data.factory=test_run_config", "data.factory"),
    "factory that makes no model": ("model.factory=test_run_config:nothing", "must return an nn.Module, not NoneType"),
    "factory that makes no data": ("data.factory=test_run_config:nothing", "must return an adelfl.data.Dataset"),
    "layers that cannot be found": ("model.factory=test_run_config:unused", "'spare' does not affect"),
    "model that does not run": ("model.factory=test_run_config:backwards", "cannot be run on the example input"),
    "all frozen": ("model.factory=test_run_config:frozen", "cannot be trained"),
    "layers that are not there": ("model.layers=[['dense9']]", "'dense9'"),
    "layers that leave some out": ("model.layers=[['dense1'], ['dense2']]", "is in no entry"),
    "cohort larger than the fleet": ("training.cohort=31", "training.cohort: must be at most the fleet's 30"),
    "no such file": ("fleet.file=none.csv", "none.csv"),
    "no such partition": ("data.partition_file=none.npz", "none.npz"),
    "no data there": ("data.data_dir=/nonexistent", "is not a folder"),
}


@pytest.mark.parametrize(("change", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence_with_its_key(change, sentence):
    changes = [change]
    if change.startswith("strategy.options.average"):
        changes.append("strategy.name=salf")
    if change.startswith("data.data_dir"):
        changes.append("data.name=mnist")
    with pytest.raises(ConfigError) as trouble:
        build_experiment(load_run(None, changes))
    assert sentence in str(trouble.value)
    assert "\n" not in str(trouble.value)


def test_budget_and_depth_exclude_each_other(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text("[training]\nbudget = 3.0\ndepth = 0.5\n")
    with pytest.raises(ConfigError, match=r"both\.toml: training: give budget .* or depth .*, not both"):
        load_run(path)


def test_a_changed_budget_takes_the_place_of_a_depth_and_the_reverse(tmp_path):
    path = tmp_path / "depth.toml"
    path.write_text("[training]\ndepth = 0.5\n")
    assert (load_run(path, ["training.budget=3.0"]).training.budget, load_run(path).training.budget) == (3.0, None)
    with pytest.raises(ConfigError, match="not both"):
        load_run(path, ["training.budget=3.0", "training.depth=0.4"])


def test_mistakes_in_a_file_name_the_file(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("[training]\nrouns = 3\n")
    with pytest.raises(ConfigError, match=r"bad\.toml: training\.rouns: unknown key; did you mean 'rounds'"):
        load_run(path)
    with pytest.raises(ConfigError, match="rouns"):
        load_run(str(path))
    path.write_text("[training\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_run(path)
    path.write_text("training = 3\n")
    with pytest.raises(ConfigError, match="training: must be a table"):
        load_run(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_run(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["training.budget=0.01", "fleet.upload=0.001"], "smallest feasible budget"),
        (["training.budget=0.001"], "even the last layer is expected to arrive"),
    ],
    ids=["uploads take longer", "nobody gets anywhere"],
)
def test_a_budget_with_no_plan_is_said_by_adel_and_left_to_the_others(changes, sentence):
    with pytest.raises(InfeasibleBudgetError, match=sentence):
        build_experiment(load_run(None, [*changes, "strategy.name=adel"]))
    build_experiment(load_run(None, [*changes, "strategy.name=salf"]))


@pytest.mark.parametrize("changes", [["fleet.devices=2"], ["fleet.devices=6"], ["training.cohort=2"]], ids=str)
def test_one_round_of_a_small_fleet_can_be_planned(changes):
    experiment = build_experiment(load_run(None, ["training.rounds=1", "training.depth=0.9", *changes]))
    assert experiment.strategy.rounds == 1
    with pytest.raises(InfeasibleBudgetError, match=r"in 1 round and .* give more time$"):
        build_experiment(load_run(None, ["training.rounds=1", "training.budget=0.0001", *changes]))


def test_a_first_layer_that_hardly_ever_arrives_is_noted():
    strategy = build_experiment(load_run(None, ["training.budget=0.3", "strategy.name=adel"])).strategy
    assert any("the first layer is expected to arrive" in note for note in strategy.notes)
    calm = build_experiment(load_run(None, ["strategy.name=adel"])).strategy
    assert not any("first layer" in note for note in calm.notes)


# -- fleets, data, models


@pytest.mark.parametrize(
    ("changes", "speeds", "uploads"),
    [
        (["fleet.kind=uniform", "fleet.low=5.0", "fleet.high=6.0"], (5.0, 6.0), (0.0, 0.0)),
        (["fleet.kind=two-class", "fleet.compute=40.0", "fleet.slow=4.0", "fleet.slow_share=0.5"], (4, 40), (0, 0)),
        (["fleet.sigma=0.0", "fleet.compute=9.0", "fleet.upload=0.3"], (9.0, 9.0), (0.3, 0.3)),
        (["fleet.kind=phones"], (1e-9, 1e9), (1e-9, 10.0)),
    ],
    ids=["uniform", "two classes", "lognormal", "phones"],
)
def test_fleets_are_of_their_kind(changes, speeds, uploads):
    setting = build_experiment(load_run(None, ["fleet.devices=12", "strategy.name=drop", *changes])).strategy.problem
    assert setting.devices == 12
    assert speeds[0] <= setting.compute.min() <= setting.compute.max() <= speeds[1]
    assert uploads[0] <= setting.upload.min() <= setting.upload.max() <= uploads[1]
    if "slow" in str(changes):
        assert (setting.compute == 4.0).sum() == 6


def test_a_fleet_may_come_from_a_csv_file(tmp_path):
    (tmp_path / "fleet.csv").write_text("compute,upload,count\n10,0.1,3\n20,0,2\n")
    setting = build_experiment(load_run(None, [f"fleet.file='{tmp_path / 'fleet.csv'}'"])).strategy.problem
    assert setting.compute.tolist() == [10, 10, 10, 20, 20]
    assert setting.upload.tolist() == [0.1, 0.1, 0.1, 0, 0]


def test_a_partition_can_be_saved_and_used_again(tmp_path):
    dirichlet = load_run(None, ["data.partition=dirichlet", "data.alpha=0.2"])
    _, held = build_data(dirichlet)
    held.save(tmp_path / "held.npz")
    again = load_run(None, [f"data.partition_file='{tmp_path / 'held.npz'}'", "training.seed=9"])
    assert build_experiment(again).partition == held == build_experiment(dirichlet).partition


def test_a_partition_that_does_not_fit_is_refused(tmp_path):
    y = build_data(load_run(None))[0].y_train
    for name, held in {"devices": iid(y, 7, 0), "samples": iid(np.zeros(9000, dtype=int), 30, 0)}.items():
        path = tmp_path / f"{name}.npz"
        held.save(path)
        with pytest.raises(ConfigError, match=name):
            build_experiment(load_run(None, [f"data.partition_file='{path}'"]))


def test_a_users_own_data_and_model_are_found_by_import_path():
    changes = ["data.factory=test_run_config:small_data", "model.factory=test_run_config:linear"]
    experiment = build_experiment(load_run(None, [*changes, "fleet.devices=4", "training.batch=8"]))
    assert experiment.dataset is small_data()
    assert len(experiment.layers) == 1
    assert experiment.partition.sizes.min() >= 8


def unseeded(shape, classes, seed):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


def test_a_model_that_does_not_seed_itself_has_the_first_weights_of_the_seed():
    changes = ["model.factory=test_run_config:unseeded", "training.rounds=2"]

    def weights(seed, strategy):
        torch.rand(3)  # whatever else was drawn before
        said = load_run(None, [*changes, f"training.seed={seed}", f"strategy.name={strategy}"])
        return build_experiment(said).model[1].weight.detach().numpy()

    before = torch.random.get_rng_state()
    assert np.array_equal(weights(1, "salf"), weights(1, "drop"))
    assert not np.array_equal(weights(1, "salf"), weights(2, "salf"))
    torch.random.set_rng_state(before)


def few_scores(shape, classes, seed):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)), x


def pair(shape, classes, seed):
    return Pair(64, classes)


def of_one_argument(shape):
    raise AssertionError


class NoLatency:
    """Has none of the methods."""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("model.factory=test_run_config:few_scores", "3 scores per sample, but the data has 10 classes"),
        ("model.factory=test_run_config:pair", "must return scores of shape (samples, 10), not a tuple"),
        (
            "model.factory=test_run_config:of_one_argument",
            "(input_shape, classes, seed) fails (TypeError",
        ),
        ("data.factory=test_run_config:of_one_argument", "of_one_argument() fails (TypeError"),
        ("fleet.latency=test_run_config:NoLatency", "has no method layer_times"),
    ],
)
def test_users_code_that_does_not_fit_is_one_sentence(change, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        build_experiment(load_run(None, [change]))


def test_listed_devices_are_the_fleet_and_another_one_beside_them_is_refused(tmp_path):
    file = tmp_path / "listed.toml"
    file.write_text("[[device]]\ncompute = 9.0\ncount = 4\n")
    assert given_fleet(load_run(file)).size == 4
    load_run(file, ["fleet.dropout=0.1"])
    for change in ("fleet.devices=500", "fleet.kind=phones", "fleet.file=other.csv"):
        with pytest.raises(ConfigError, match=r"listed.toml: fleet\..*the \[\[device\]\] entries define the fleet"):
            load_run(file, [change])


def test_a_key_that_belongs_to_another_choice_has_no_effect():
    plain, other = (build_experiment(load_run(None, more)) for more in ([], ["data.alpha=0.1", "fleet.slow=1.0"]))
    assert plain.partition == other.partition
    assert plain.strategy.problem.fleet.compute.tolist() == other.strategy.problem.fleet.compute.tolist()


def test_each_device_holds_at_least_a_batch_where_there_is_enough():
    experiment = build_experiment(load_run(None, ["data.partition=dirichlet", "data.alpha=0.1", "strategy.name=drop"]))
    assert experiment.partition.sizes.min() >= 16


def test_layers_can_be_given():
    changes = ["model.layers=[['dense1', 'dense2'], ['dense3']]"]
    experiment = build_experiment(load_run(None, changes))
    assert [len(layer.parameters) for layer in experiment.layers] == [4, 2]
    assert experiment.strategy.problem.layers == 2


# -- comparisons


def test_strategies_are_named_with_their_options():
    assert parse_strategy(" salf ") == ("salf", {})
    assert parse_strategy("salf[average_over=all]") == ("salf", {"average_over": "all"})
    assert parse_strategy("a.b:C[x=1; y = two]") == ("a.b:C", {"x": 1, "y": "two"})
    for wrong in ("", "[x=1]", "salf[", "salf[x]", "salf[x=1]y"):
        with pytest.raises(ConfigError, match="must look like"):
            parse_strategy(wrong)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_an_option_that_json_cannot_hold_is_refused(value):
    with pytest.raises(ConfigError, match="staleness_rate must be a finite number"):
        parse_strategy(f"fedasync[staleness_rate={value}]")
    with pytest.raises(ConfigError, match="staleness_rate must be a finite number"):
        load_run(None, ["strategy.name=fedasync", f"strategy.options.staleness_rate={value}"])


def test_jobs_differ_in_strategy_seed_and_folder_only(tmp_path):
    said = load_run(None)
    jobs = jobs_of(said, ["adel", "salf[average_over=all]", "salf"], 2, 5, tmp_path)
    assert [(job.strategy, job.seed) for job in jobs[:3]] == [
        ("adel", 5),
        ("salf[average_over=all]", 5),
        ("salf", 5),
    ]
    assert len({job.folder for job in jobs}) == 6
    for job in jobs:
        file = RunFile.model_validate_json(job.config)
        assert file.training.seed == job.seed
        assert file.model_copy(update={"strategy": said.strategy, "training": said.training}) == said


def test_the_same_experiment_has_the_same_folder_and_another_has_another(tmp_path):
    one, again = load_run(None), load_run(None, ["training.seed=3", "strategy.name=drop"])
    other = load_run(None, ["training.rounds=99"])
    assert default_folder(one, tmp_path) == default_folder(again, tmp_path) != default_folder(other, tmp_path)


# -- a partition of the user's own


def by_user(dataset):
    """Twelve users, of whom the first four hold one or two samples."""
    sizes = np.array([1, 1, 2, 2, 20, 30, 40, 50, 60, 70, 80, 90])
    return np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])


def no_positions(dataset):
    return [["a", "b"]]


USERS = ["fleet.devices=12", "data.validation=0.3"]


def held_by(experiment):
    """The labels and inputs of each device."""
    d = experiment.dataset
    return [(d.y_train[own], d.x_train[own]) for own in experiment.partition]


def test_natural_users_from_a_file_or_an_import_path_keep_their_samples_beside_a_validation_set(tmp_path):
    whole = load_dataset("digits")
    users = by_user(whole)
    Partition.of(users, whole.y_train.size).save(tmp_path / "users.npz")
    file = build_experiment(load_run(None, [f"data.partition_file='{tmp_path / 'users.npz'}'", *USERS]))
    path = build_experiment(load_run(None, ["data.partition=test_run_config:by_user", *USERS]))
    assert file.partition == path.partition
    assert file.dataset.y_train.size + file.dataset.y_test.size == whole.y_train.size
    assert file.dataset.y_test.size == pytest.approx(0.3 * whole.y_train.size, abs=4)
    for (labels, inputs), own in zip(held_by(file), users, strict=True):
        assert 1 <= labels.size <= own.size
        for y, x in zip(labels, inputs, strict=True):  # each of a user's samples is one of its own
            assert any(y == whole.y_train[i] and np.array_equal(x, whole.x_train[i]) for i in own)
    assert sum(labels.size for labels, _ in held_by(file)) < sum(own.size for own in users)
    simulate(replace(file, evaluations=1))


def test_what_is_held_out_does_not_depend_on_the_partition_but_for_users_with_too_little():
    plain = build_data(load_run(None, ["data.validation=0.3"]))[0]
    users = build_data(load_run(None, ["data.partition=test_run_config:by_user", *USERS]))[0]
    assert 0 <= plain.y_test.size - users.y_test.size <= 4


def test_a_partition_of_what_validation_leaves_is_taken_as_it_is(tmp_path):
    _, held = build_data(load_run(None, ["data.validation=0.3"]))
    held.save(tmp_path / "rest.npz")
    again = load_run(None, [f"data.partition_file='{tmp_path / 'rest.npz'}'", "data.validation=0.3"])
    assert build_data(again)[1] == held


def test_a_partition_by_import_path_is_fingerprinted_and_its_mistakes_are_one_sentence():
    said = load_run(None, ["data.partition=test_run_config:by_user", *USERS])
    assert any(name.endswith("test_run_config.py") for name in said.fingerprints())
    for change, sentence in {
        "data.partition=test_run_config:no_positions": "data.partition|partition: device #1 must hold",
        "data.partition=test_run_config:missing": "data.partition: .*cannot be imported",
        "data.partition=test_run_config:by_user": "set fleet.devices to 12",
        "data.partition=natural": "must be 'iid', 'dirichlet', 'users' or package.module:function, not 'natural'",
    }.items():
        with pytest.raises(ConfigError, match=sentence):
            build_data(load_run(None, [change]))


# -- learning rates that suit the data and the model


def test_the_default_rate_depends_on_data_and_model_and_a_number_stays_as_given():
    assert load_run(None).learning_rate.initial == 0.3  # the demonstration's
    assert load_run(None, ["data.name=mnist"]).learning_rate.initial == 0.1
    assert load_run(None, ["data.name=cifar10", "model.name=vgg11"]).learning_rate.initial == 0.05
    assert load_run(None, ["data.name=mnist", "learning_rate.initial=auto"]).learning_rate.initial == 0.1
    assert load_run(None, ["data.name=mnist", "learning_rate.initial=0.3"]).learning_rate.initial == 0.3
    assert load_run(None, ["data.factory=test_run_config:small_data"]).learning_rate.initial == 0.1


def test_building_an_experiment_changes_no_setting_of_the_process(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text("from test_run_config import small_data\n")
    monkeypatch.chdir(tmp_path)
    before, threads = list(sys.path), torch.get_num_threads()
    build_experiment(load_run(None, ["data.factory=elsewhere:small_data", f"engine.threads={threads + 1}"]))
    assert (sys.path, torch.get_num_threads()) == (before, threads)


def test_deep_networks_have_more_rounds_by_default_and_a_number_stays_as_given():
    deep = ["data.name=cifar10", "model.name=resnet18"]
    assert load_run(None, deep).training.rounds == 300
    assert load_run(None, deep).model.width < 1
    assert load_run(None, [*deep, "model.width=1"]).model.width == 1
    assert load_run(None, [*deep, "training.rounds=100"]).training.rounds == 100
    assert load_run(None, ["data.name=cifar10"]).training.rounds == 100
    assert load_run(None, [*deep, "data.factory=test_run_config:small_data"]).training.rounds == 100
    again = RunFile.model_validate_json(load_run(None, deep).model_dump_json())
    assert again == load_run(None, deep)


def test_every_data_set_has_a_rate_for_every_model_that_takes_its_images():
    shapes = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
    assert set(shapes) == set(DATASETS)
    for name, shape in shapes.items():
        for model in MODELS:
            try:
                build_model(model, input_shape=shape, classes=10, seed=0, width=0.1)
            except ConfigError:
                continue  # too small images
            assert model in RATES[name], (name, model)


def test_a_file_that_is_read_again_has_the_same_rate():
    said = load_run(None, ["data.name=mnist"])
    assert RunFile.model_validate_json(said.model_dump_json()) == said
    assert said.model_dump()["learning_rate"]["initial"] == 0.1
