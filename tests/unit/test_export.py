"""Exports: the record's own numbers, entirely or not at all."""

import csv
import errno
import json
import os
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.export.runs import ExportedRun, export_run, find_target
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunInfo, RunResult
from adelfl.records.writer import RunWriter
from support.small_worlds import SMALL, kept_bytes, sets, typed

ABOUT = {
    "config": {
        "training": {"local_iterations": 2, "seed": 3},
        "strategy": {"name": "salf", "options": {}},
        "device": [],
    },
    "seed": 3,
    "strategy": "salf",
    "label": "SALF",
    "budget": 3.0,
    "rounds": 2,
    "layers": ["dense[1]", "dense2"],
    "devices": 3,
}
ROWS = [
    {"round": 0, "time": 0.0, "loss": 2.0, "accuracy": 0.1},
    {
        "round": 1,
        "time": 1.0,
        "deadline": 1.0,
        "loss": None,
        "accuracy": None,
        "train_loss": 1.5,
        "batch": [4, 8, 2],
        "depth": [4, 0, 2],
        "contributors": [1, 2],
    },
    {
        "round": 2,
        "time": 3.0,
        "deadline": 2.0,
        "loss": 1.0,
        "accuracy": 0.5,
        "train_loss": None,
        "batch": [4, 8, 2],
        "depth": [0, 0, 0],
        "contributors": [0, 0],
    },
]
RESULT = RunResult(0.5, {}, depth=0.25, rounds=2, time=3.0)
LAYERS = ["contributors/1 dense[1]", "contributors/2 dense2"]


@pytest.fixture
def folder(tmp_path):
    with RunWriter.create(tmp_path / "run", RunInfo.from_json(ABOUT)) as writer:
        for row in ROWS:
            writer.append(Row.from_json(row), 0.1)
        writer.finish(RESULT, {})
    return tmp_path / "run"


def change_facts(folder, facts):
    (folder / "run.json").write_text(json.dumps(ABOUT | facts))


@pytest.fixture
def install(monkeypatch):
    """Put a package of fakes in place of a real one, or of none."""

    def put(module, **members):
        parts = module.split(".")
        for i in range(1, len(parts) + 1):
            name = ".".join(parts[:i])
            if name not in fakes:
                fakes[name] = ModuleType(name)
                monkeypatch.setitem(sys.modules, name, fakes[name])
        vars(fakes[module]).update(members)
        monkeypatch.delitem(sys.modules, f"adelfl.export.{parts[0]}", raising=False)

    fakes = {}
    yield put
    for package in {name.partition(".")[0] for name in fakes}:
        sys.modules.pop(f"adelfl.export.{package}", None)


@pytest.fixture
def tensorboard(install):
    """TensorBoard's event writer; gives what was written."""
    written = SimpleNamespace(events=[], closed=False, folder=None)

    class Writer:
        def __init__(self, logdir):
            written.folder = logdir

        def add_event(self, event):
            written.events.append(event)

        def close(self):
            written.closed = True

    def summary(value):
        return {v.tag: v for v in value}

    summary.Value = SimpleNamespace
    install("tensorboard.compat.proto.event_pb2", Event=SimpleNamespace)
    install("tensorboard.compat.proto.summary_pb2", HistogramProto=SimpleNamespace, Summary=summary)
    install("tensorboard.summary.writer.event_file_writer", EventFileWriter=Writer)
    return written


@pytest.fixture
def mlflow(install, monkeypatch):
    """MLflow's client; gives what was sent."""
    sent = SimpleNamespace(
        uri=None, metrics=defaultdict(list), params={}, batches=[], ended=None, experiments={}, run={}
    )

    class Client:
        def __init__(self, tracking_uri):
            sent.uri = tracking_uri

        def get_experiment_by_name(self, name):
            return sent.experiments.get(name)

        def create_experiment(self, name):
            sent.experiments[name] = SimpleNamespace(experiment_id="7")
            return "7"

        def create_run(self, experiment_id, **said):
            sent.run = {"experiment_id": experiment_id, **said}
            return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

        def log_batch(self, run_id, metrics=(), params=()):
            sent.batches.append((len(metrics), len(params)))
            for key, value, moment, step in metrics:
                sent.metrics[key].append((step, moment, value))
            sent.params.update(params)

        def set_terminated(self, run_id, status, end_time):
            sent.ended = (run_id, status, end_time)

    install("mlflow", MlflowClient=Client)
    install("mlflow.entities", Metric=lambda *said: said, Param=lambda *said: said)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    return sent


def test_an_entry_has_the_rounds_numbers_and_no_others(folder):
    before, first, second = ExportedRun(folder).entries()
    assert before.scalars == {"time": 0.0, "accuracy": 0.1, "loss": 2.0}
    assert before.spreads == {}
    assert before.numbers == before.scalars
    depth = (4 + 0 + 2) / 3 / (2 * 2)  # layers finished, of two layers in each of two local iterations
    assert first.scalars == {
        "time": 1.0,
        "deadline": 1.0,
        "train_loss": 1.5,
        "depth": pytest.approx(depth),
        LAYERS[0]: 1.0,
        LAYERS[1]: 2.0,
    }
    assert first.spreads == {"batch_sizes": [4, 8, 2], "depths": [4, 0, 2]}
    assert first.numbers["batch_sizes/median"] == 4
    assert second.scalars["depth"] == 0.0


def test_layers_sort_as_they_are(folder):
    change_facts(folder, {"layers": [f"l{i}" for i in range(12)]})
    layers = ExportedRun(folder).layers
    assert layers == sorted(layers)


def test_csv_has_a_line_per_round(folder):
    assert export_run(folder, "csv") == str(folder / "rounds.csv")
    with open(folder / "rounds.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["round"] for line in lines] == ["0", "1", "2"]
    assert [line["accuracy"] for line in lines] == ["0.1", "", "0.5"]
    assert lines[1]["batch_sizes/max"] == "8.0"
    assert lines[1][LAYERS[1]] == "2.0"


def test_tensorboard_is_given_scalars_and_histograms_at_virtual_times(folder, tensorboard):
    assert export_run(folder, "tensorboard") == str(folder / "tensorboard")
    assert tensorboard.closed
    started = (folder / "run.json").stat().st_mtime
    assert [(e.step, e.wall_time) for e in tensorboard.events] == [(0, started), (1, started + 1), (2, started + 3)]
    values = tensorboard.events[1].summary
    assert values["deadline"].simple_value == 1.0
    assert "accuracy" not in values
    assert tensorboard.events[2].summary["accuracy"].simple_value == 0.5
    histogram = values["batch_sizes"].histo
    assert (histogram.min, histogram.max, histogram.num, histogram.sum, histogram.sum_squares) == (2, 8, 3, 14, 84)
    assert sum(histogram.bucket) == 3
    assert len(histogram.bucket) == len(histogram.bucket_limit)
    assert histogram.bucket_limit[-1] >= 8


def test_a_second_export_to_tensorboard_takes_the_place_of_the_first(folder, tensorboard):
    old = folder / "tensorboard" / "events.out.tfevents.1.host"
    old.parent.mkdir()
    old.touch()
    export_run(folder, "tensorboard")
    assert not old.exists()


def test_mlflow_is_given_metrics_parameters_and_an_end(folder, mlflow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = export_run(folder, "mlflow")
    assert said == "mlruns, experiment adelfl, run abc"
    assert mlflow.uri == (tmp_path / "mlruns").as_uri()
    started = round(1000 * (folder / "run.json").stat().st_mtime)
    assert mlflow.metrics["accuracy"] == [(0, started, 0.1), (2, pytest.approx(started + 3000, abs=1), 0.5)]
    assert mlflow.metrics["final_accuracy"][0][2] == 0.5
    assert mlflow.metrics["contributors/1 dense_1_"][0][2] == 1.0  # MLflow takes no brackets
    assert mlflow.metrics["depths/max"][0][2] == 4
    assert mlflow.params["training.seed"] == "3"
    assert mlflow.params["strategy.name"] == "salf"
    assert mlflow.run["run_name"] == "run"
    assert mlflow.ended[:2] == ("abc", "FINISHED")


def test_mlflow_goes_where_the_environment_says_and_uses_the_experiment_that_is_there(folder, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example")
    export_run(folder, "mlflow")
    export_run(folder, "mlflow")
    assert mlflow.uri == "http://tracking.example"
    assert list(mlflow.experiments) == ["adelfl"]
    assert mlflow.run["experiment_id"] == "7"


def test_mlflow_is_sent_no_more_at_once_than_it_takes(folder, mlflow):
    """1,000 metrics and 100 parameters are the most that a request may have."""
    many = {"config": {"training": {f"key{i}": i for i in range(250)}}, "layers": [f"l{i}" for i in range(1500)]}
    change_facts(folder, many)
    (folder / "rounds.jsonl").write_text(json.dumps(ROWS[1] | {"contributors": [1] * 1500}) + "\n")
    export_run(folder, "mlflow")
    assert sum(metrics for metrics, _ in mlflow.batches) > 1500
    assert max(metrics for metrics, _ in mlflow.batches) <= 1000
    assert max(params for _, params in mlflow.batches) <= 100


@pytest.mark.parametrize("target", ["tensorboard", "mlflow"])
def test_a_package_that_is_missing_is_one_sentence(folder, target, monkeypatch):
    monkeypatch.setitem(sys.modules, target, None)
    monkeypatch.delitem(sys.modules, f"adelfl.export.{target}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"adelfl\[{target}\]"):
        export_run(folder, target)
    answer = typed("export", folder, "--to", target)
    assert answer.code == 2
    assert answer.err == f"error: {target} is not installed; install it with: pip install 'adelfl[{target}]'\n"


def test_an_unknown_target_and_a_folder_that_is_no_run_are_said(tmp_path):
    with pytest.raises(ConfigError, match="allowed are tensorboard, mlflow, csv"):
        find_target("wandb")
    answer = typed("export", tmp_path, "--to", "csv")
    assert answer.code == 2
    assert "no runs in it" in answer.err
    answer = typed("export", tmp_path / "none", "--to", "csv")
    assert (answer.code, answer.err) == (2, f"error: {tmp_path / 'none'}: no such folder\n")


def all_bytes(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def second_run(folder):
    shutil.copytree(folder, folder.with_name("run2"))
    return folder.with_name("run2")


def test_a_folder_of_runs_is_exported_and_what_a_pattern_matches_besides_is_passed_over(folder, tmp_path):
    other = second_run(folder)
    (tmp_path / "accuracy.png").write_bytes(b"a picture")
    (tmp_path / "empty").mkdir()
    lines = [f"{run}: {run / 'rounds.csv'}" for run in (folder, other)]
    answer = typed("export", tmp_path, "--to", "csv")
    assert (answer.code, answer.out.splitlines(), answer.err) == (0, lines, "")
    answer = typed("export", *sorted(tmp_path.glob("*")), folder, "--to", "csv")  # as the shell expands a pattern
    assert (answer.code, answer.out.splitlines()) == (0, lines)
    passed = [f"note: {tmp_path / name}: no run there, passed over" for name in ("accuracy.png", "empty")]
    assert answer.err.splitlines() == passed


def test_a_run_that_cannot_be_exported_does_not_stop_the_others(folder, tmp_path):
    (second_run(folder) / "rounds.jsonl").write_text("{\n")
    third = folder.with_name("run3")
    shutil.copytree(folder, third)
    answer = typed("export", tmp_path, "--to", "csv")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "rounds.jsonl cannot be read" in answer.err
    assert (folder / "rounds.csv").read_bytes() == (third / "rounds.csv").read_bytes()


@pytest.mark.parametrize("moment", ["add", "close"])
def test_a_csv_export_that_fails_leaves_the_earlier_one(folder, monkeypatch, moment):
    (folder / "rounds.csv").write_bytes(b"earlier")
    before = all_bytes(folder)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if moment == "add":
        monkeypatch.setattr(csv.DictWriter, "writerow", full)
    else:
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AdelError, match="No space left"):
        export_run(folder, "csv")
    assert all_bytes(folder) == before


@pytest.mark.parametrize("moment", ["add_event", "close", None])
def test_a_tensorboard_export_takes_the_place_of_the_earlier_one_when_it_is_complete(
    folder, tensorboard, monkeypatch, moment
):
    old = folder / "tensorboard" / "events.out.tfevents.1.host"
    old.parent.mkdir()
    old.write_bytes(b"old")
    before = all_bytes(folder)
    writer = sys.modules["tensorboard.summary.writer.event_file_writer"].EventFileWriter

    def made(self, logdir):
        Path(logdir).mkdir(exist_ok=True)
        (Path(logdir) / "events.out.tfevents.2.host").write_bytes(b"new")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer, "__init__", made)
    if moment is None:
        export_run(folder, "tensorboard")
        assert [(file.name, file.read_bytes()) for file in old.parent.iterdir()] == [
            ("events.out.tfevents.2.host", b"new")
        ]
        assert not list(folder.glob(".*"))
        return
    monkeypatch.setattr(writer, moment, full)
    with pytest.raises(AdelError, match="No space left"):
        export_run(folder, "tensorboard")
    assert all_bytes(folder) == before


def test_an_export_that_breaks_is_one_sentence(folder):
    (folder / "rounds.csv").mkdir()
    with pytest.raises(AdelError, match="cannot be exported to csv"):
        export_run(folder, "csv")
    answer = typed("export", folder, "--to", "csv")
    assert answer.code == 2
    assert answer.err.count("\n") == 1


def test_a_run_without_a_result_is_exported_as_killed(folder, mlflow):
    (folder / "result.json").unlink()
    export_run(folder, "mlflow")
    assert mlflow.ended[1] == "KILLED"
    assert "final_accuracy" not in mlflow.metrics


def test_a_run_that_mlflow_does_not_take_is_marked_as_failed(folder, mlflow, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("refused\nand more")

    monkeypatch.setattr(sys.modules["mlflow"].MlflowClient, "log_batch", refuse)
    with pytest.raises(AdelError, match=r"cannot be exported to mlflow \(RuntimeError: refused\)$"):
        export_run(folder, "mlflow")
    assert mlflow.ended[1] == "FAILED"


def test_a_simulated_run_is_exported_with_all_its_rounds(tmp_path, tensorboard, mlflow, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = typed("run", *sets(SMALL), "--out", "run")
    assert answer.code == 0, answer.err
    before = kept_bytes(tmp_path / "run")
    for target in ("tensorboard", "mlflow", "csv"):
        assert typed("export", "run", "--to", target).code == 0
    record = RunRecord.open("run")
    assert [e.step for e in tensorboard.events] == [row.round for row in record.rounds]
    assert [value for _, _, value in mlflow.metrics["accuracy"]] == record.evaluations[1].tolist()
    assert (tmp_path / "run" / "rounds.csv").read_bytes().count(b"\n") == len(record.rounds) + 1
    assert kept_bytes(tmp_path / "run") == before


@pytest.mark.slow
def test_tensorboard_reads_what_was_written(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second takes the place of the first
        export_run(folder, "tensorboard")
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"histograms": 0})
    found.Reload()
    started = (folder / "run.json").stat().st_mtime
    accuracy = found.Scalars("accuracy")
    assert [(e.step, e.value) for e in accuracy] == [(0, pytest.approx(0.1)), (2, 0.5)]
    assert np.allclose([e.wall_time - started for e in accuracy], [0.0, 3.0], atol=1e-4)
    assert [e.value for e in found.Scalars(LAYERS[1])] == [2.0, 0.0]
    assert set(found.Tags()["histograms"]) == {"batch_sizes", "depths"}
    assert [e.histogram_value.sum for e in found.Histograms("batch_sizes")] == [14.0, 14.0]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_reads_what_was_written(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    mlflow = pytest.importorskip("mlflow")
    export_run(folder, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("adelfl").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["strategy.name"] == "salf"
    assert run.data.metrics["final_accuracy"] == 0.5
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [(0, 0.1), (2, 0.5)]
    assert history[1].timestamp - history[0].timestamp == pytest.approx(3000, abs=1)
