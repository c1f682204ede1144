"""Exports: the record's own numbers, live or later, and never at the cost of the run."""

import csv
import errno
import os
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.export.logs import ExportedRun, Logs, export_run, find_target
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
        def __init__(self, logdir, flush_secs):
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
    source = ExportedRun(folder, RunRecord.open(folder).info)
    before, first, second = (source.entry(Row.from_json(row)) for row in ROWS)
    assert before.scalars == {"time": 0.0, "accuracy": 0.1, "loss": 2.0}
    assert before.spreads == before.quantiles == {}
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
    assert first.quantiles["batch_sizes/median"] == 4
    assert second.scalars["depth"] == 0.0


def test_layers_sort_as_they_are(folder):
    source = ExportedRun(folder, RunInfo.from_json(ABOUT | {"layers": [f"l{i}" for i in range(12)]}))
    assert source.layers == sorted(source.layers)


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
    source = ExportedRun(folder, RunInfo.from_json(ABOUT | many))
    log = find_target("mlflow")(source)
    log.add(source.entry(Row.from_json(ROWS[1] | {"contributors": [1] * 1500})))
    log.close(None)
    assert sum(metrics for metrics, _ in mlflow.batches) > 1500
    assert max(metrics for metrics, _ in mlflow.batches) <= 1000
    assert max(params for _, params in mlflow.batches) <= 100
    assert mlflow.ended[1] == "KILLED"


@pytest.mark.parametrize("target", ["tensorboard", "mlflow"])
def test_a_package_that_is_missing_is_one_sentence(folder, target, monkeypatch):
    monkeypatch.setitem(sys.modules, target, None)
    monkeypatch.delitem(sys.modules, f"adelfl.export.{target}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"adelfl\[{target}\]"):
        export_run(folder, target)
    for words in (("export", folder, "--to", target), ("run", "--log", target, "--out", folder.parent / "new")):
        answer = typed(*words)
        assert answer.code == 2
        assert answer.err == f"error: {target} is not installed; install it with: pip install 'adelfl[{target}]'\n"
    assert not (folder.parent / "new").exists()


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
        monkeypatch.setattr("adelfl.export.csv.CsvLog.add", full)
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

    def made(self, logdir, flush_secs):
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


def test_live_logs_are_the_export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = typed("run", *sets(SMALL), "--set", "strategy.name=salf", "--out", "run", "--log", "csv")
    assert answer.code == 0, answer.err
    live = (tmp_path / "run" / "rounds.csv").read_bytes()
    assert typed("export", "run", "--to", "csv").out == "run: run/rounds.csv\n"
    assert (tmp_path / "run" / "rounds.csv").read_bytes() == live
    assert live.count(b"\n") == 10


def test_several_logs_at_once(tmp_path, tensorboard, mlflow, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = typed("run", *sets(SMALL), "--out", "run", "--log", "tensorboard", "--log", "mlflow", "--log", "csv")
    assert answer.code == 0, answer.err
    assert "warning" not in answer.err
    record = RunRecord.open("run")
    assert [e.step for e in tensorboard.events] == [row.round for row in record.rounds]
    assert [value for _, _, value in mlflow.metrics["accuracy"]] == record.evaluations[1].tolist()
    assert mlflow.ended[1] == "FINISHED"


@pytest.mark.parametrize("moment", ["open", "add", "close"])
def test_a_logger_that_crashes_is_one_warning_and_the_run_goes_on(tmp_path, monkeypatch, moment):
    monkeypatch.chdir(tmp_path)
    typed("run", *sets(SMALL), "--out", "quiet")

    class Broken:
        def __init__(self, source):
            self.fail("open")

        def add(self, entry):
            self.fail("add")

        def close(self, result):
            self.fail("close")

        def fail(self, now):
            if now == moment:
                raise RuntimeError("disk full\nand more")

    monkeypatch.setattr("adelfl.export.csv.CsvLog", Broken)
    answer = typed("run", *sets(SMALL), "--out", "run", "--log", "csv")
    assert answer.code == 0
    warnings = [line for line in answer.err.splitlines() if line.startswith("warning: csv")]
    assert warnings == [
        "warning: csv failed and is left out (RuntimeError: disk full); "
        "the record is complete, and adelfl export run --to csv sends it again"
    ]
    assert kept_bytes(tmp_path / "run") == kept_bytes(tmp_path / "quiet")


def test_a_run_that_breaks_closes_its_logs_without_a_result(folder, mlflow):
    (folder / "result.json").unlink()
    with Logs(["mlflow"], folder, pytest.fail) as logs:
        logs.row(Row.from_json(ROWS[0]))
    assert mlflow.ended[1] == "KILLED"
    assert "final_accuracy" not in mlflow.metrics


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


@pytest.mark.slow
def test_a_live_run_is_read_by_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    answer = typed("run", *sets(SMALL), "--out", tmp_path / "run", "--log", "tensorboard")
    assert answer.code == 0, answer.err
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    record = RunRecord.open(tmp_path / "run")
    assert [e.step for e in found.Scalars("deadline")] == [row.round for row in record.rounds[1:]]
    assert np.allclose([e.value for e in found.Scalars("accuracy")], record.evaluations[1])
