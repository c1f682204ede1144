"""``simulate(experiment, record=...)``: experiments built in Python are recorded and resumed like those of files."""

from dataclasses import replace

import pytest

import adelfl as ad
from adelfl.data import iid
from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.report.groups import gather
from adelfl.runtime.server_step import ServerStep
from adelfl.simulation import engine as simulation
from adelfl.simulation.world import World
from adelfl.strategies import find_strategy
from adelfl.training.engines import LocalWork
from support.small_worlds import EVERY_MODEL, dataset_of, experiment_of, kept_bytes, model_of, setting_of, typed


@pytest.fixture
def every_round(monkeypatch):
    """A checkpoint after every round."""
    monkeypatch.setattr(simulation, "_CHECKPOINT_SECONDS", -1.0)


class Killed(BaseException):
    """Ends a run from outside."""


def kill_at(row):
    def report(reported):
        if reported.round == row:
            raise Killed

    return report


@pytest.mark.parametrize("strategy", ["salf", "adel"])
def test_an_interrupted_run_is_continued_by_the_same_call_to_the_same_bytes(tmp_path, every_round, strategy):
    experiment = experiment_of(strategy)
    whole = ad.simulate(experiment, record=tmp_path / "whole")
    with pytest.raises(Killed):
        ad.simulate(experiment, record=tmp_path / "cut", report=kill_at(4))
    assert RunRecord.open(tmp_path / "cut").result is None
    assert ad.simulate(experiment_of(strategy), record=str(tmp_path / "cut")) == whole
    assert kept_bytes(tmp_path / "cut") == kept_bytes(tmp_path / "whole")
    assert ad.simulate(experiment) == whole  # a record changes nothing


def test_a_finished_run_is_not_run_again(tmp_path):
    experiment = experiment_of()
    result = ad.simulate(experiment, record=tmp_path / "run")
    before = (tmp_path / "run" / "rounds.jsonl").stat().st_mtime_ns

    def report(row):
        raise AssertionError("nothing is to be done")

    assert ad.simulate(experiment, record=tmp_path / "run", report=report) == result
    assert (tmp_path / "run" / "rounds.jsonl").stat().st_mtime_ns == before


def test_what_reads_records_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("salf", "drop"):
        ad.simulate(experiment_of(name), record=tmp_path / "runs" / name)
    with pytest.raises(Killed):
        ad.simulate(experiment_of("wait"), record=tmp_path / "runs" / "wait", report=kill_at(1))
    runs = tmp_path / "runs"
    listed = typed("list", runs)
    assert listed.code == 0
    assert "salf" in listed.out
    assert "call simulate(experiment, record=...) again" in listed.out
    for command in (("show", runs / "salf"), ("export", runs / "salf")):
        found = typed(*command)
        assert found.code == 0, found.err
    page = tmp_path / "report.html"
    found = typed("report", runs, "-o", page)
    assert found.code == 0, found.err
    assert not gather([runs / "salf", runs / "drop"]).unused
    assert "salf" in page.read_text(encoding="utf-8")
    ad.plot(runs / "salf")
    assert RunRecord.open(runs / "salf").info.config["training"]["local_iterations"] == 1


def test_the_dashboard_shows_it(tmp_path):
    from adelfl.dashboard.run_index import RunIndex

    ad.simulate(experiment_of(), record=tmp_path / "run")
    shelf = RunIndex(tmp_path)
    (card,) = shelf.look().values()
    assert (card["state"], card["label"]) == ("finished", "salf")


def other_dataset():
    return replace(dataset_of(EVERY_MODEL["mlp"][1]), y_train=dataset_of(EVERY_MODEL["mlp"][1]).y_train[::-1].copy())


CHANGES = {
    "seed": ({"seed": 5}, "partition|seed"),
    "evaluations": ({"evaluations": 5}, "engine"),
    "weight decay": ({"weight_decay": 0.5}, "local work"),
    "strategy": ({"strategy": "drop"}, "strategy"),
    "options": ({"options": {"correction": "none"}}, "strategy"),
    "rounds": ({"rounds": 9}, "problem"),
    "rate": ({"rate": 0.2}, "problem"),
}


@pytest.mark.parametrize(("change", "what"), CHANGES.values(), ids=CHANGES)
def test_another_experiment_in_the_same_folder_is_refused_in_one_sentence(tmp_path, change, what):
    ad.simulate(experiment_of(), record=tmp_path / "run")
    before = kept_bytes(tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"holds a run with another ({what}); choose another folder"):
        ad.simulate(experiment_of(**change), record=tmp_path / "run")
    assert kept_bytes(tmp_path / "run") == before


def test_other_data_weights_or_partitions_are_seen(tmp_path):
    experiment = experiment_of()
    ad.simulate(experiment, record=tmp_path / "run")
    for what, other in {
        "data set": replace(experiment, dataset=other_dataset()),
        "model": replace(experiment, model=model_of("mlp", seed=9)),
        "partition": replace(experiment, partition=iid(experiment.dataset.y_train, 5, 7)),
    }.items():
        with pytest.raises(ConfigError, match=f"another {what}"):
            ad.simulate(other, record=tmp_path / "run")


@pytest.mark.parametrize("change", [{"oversample": True}, {"codec": "half"}, {"server_step": ServerStep("adam")}, {}])
def test_runs_that_differ_in_one_option_are_two_experiments(tmp_path, change):
    one = experiment_of()
    problem = one.strategy.problem
    one = replace(one, world=World(problem.fleet, one.seed, problem.budget))
    other = replace(one, **change) if change else replace(one, world=replace(one.world, dropout=0.3))
    ad.simulate(one, record=tmp_path / "one")
    with pytest.raises(ConfigError, match="holds a run with another"):
        ad.simulate(other, record=tmp_path / "one")
    ad.simulate(other, record=tmp_path / "other")
    assert len(gather([tmp_path]).groups) == 2


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    with pytest.raises(ConfigError, match="not a run"):
        ad.simulate(experiment_of(), record=tmp_path / "full")
    ad_hoc = ad.load_run(None, ["training.rounds=2"])
    from adelfl.runner import start

    start(ad_hoc, tmp_path / "file")
    with pytest.raises(ConfigError, match="was not made by simulate"):
        ad.simulate(experiment_of(), record=tmp_path / "file")


def test_the_command_line_says_how_such_a_run_goes_on(tmp_path):
    with pytest.raises(Killed):
        ad.simulate(experiment_of(), record=tmp_path / "run", report=kill_at(2))
    found = typed("resume", tmp_path / "run")
    assert found.code == 2
    assert "call simulate(experiment, record=...) again" in found.err


def test_an_experiment_that_cannot_begin_leaves_no_folder(tmp_path):
    with pytest.raises(ConfigError):
        ad.simulate(experiment_of(engine="fused", local_iterations=2), record=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Failing(find_strategy("drop")):
    """Fails in its third round."""

    name = "failing"

    def weights(self, t, progress):
        if t == 2:
            raise ZeroDivisionError("by mistake")
        return super().weights(t, progress)


def test_what_ends_a_run_is_in_its_record_and_raised_as_it_is(tmp_path):
    strategy = Failing(setting_of(3))
    experiment = replace(experiment_of(), strategy=strategy, local=LocalWork())
    with pytest.raises(ZeroDivisionError, match="by mistake"):
        ad.simulate(experiment, record=tmp_path / "run")
    assert "by mistake" in RunRecord.open(tmp_path / "run").failure


def test_an_exporter_counts_its_steps(tmp_path):
    ad.simulate(experiment_of(local_iterations=2), record=tmp_path / "run")
    assert RunRecord.open(tmp_path / "run").info.steps == 6
