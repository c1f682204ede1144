"""Exports: the record's own numbers, entirely or not at all."""

import csv
import errno
import json
import os
import shutil

import pytest

from adelfl.errors import ConfigError
from adelfl.export import export_csv
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


def lines_of(folder):
    with open(export_csv(folder), newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_has_the_rounds_numbers_and_no_others(folder):
    before, first, second = ({key: value for key, value in line.items() if value} for line in lines_of(folder))
    assert before == {"round": "0", "time": "0.0", "accuracy": "0.1", "loss": "2.0"}
    depth = (4 + 0 + 2) / 3 / (2 * 2)  # layers finished, of two layers in each of two local iterations
    assert {key: float(value) for key, value in first.items()} == {
        "round": 1,
        "time": 1.0,
        "deadline": 1.0,
        "train_loss": 1.5,
        "depth": pytest.approx(depth),
        LAYERS[0]: 1.0,
        LAYERS[1]: 2.0,
        "batch_sizes/min": 2,
        "batch_sizes/median": 4,
        "batch_sizes/max": 8,
        "depths/min": 0,
        "depths/median": 2,
        "depths/max": 4,
    }
    assert second["depth"] == "0.0"


def test_layers_sort_as_they_are(folder):
    change_facts(folder, {"layers": [f"l{i}" for i in range(12)]})
    layers = [name for name in lines_of(folder)[0] if name.startswith("contributors/")]
    assert len(layers) == 12
    assert layers == sorted(layers)


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path):
    answer = typed("export", tmp_path)
    assert answer.code == 2
    assert "no runs in it" in answer.err
    answer = typed("export", tmp_path / "none")
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
    answer = typed("export", tmp_path)
    assert (answer.code, answer.out.splitlines(), answer.err) == (0, lines, "")
    answer = typed("export", *sorted(tmp_path.glob("*")), folder)  # as the shell expands a pattern
    assert (answer.code, answer.out.splitlines()) == (0, lines)
    passed = [f"note: {tmp_path / name}: contains no runs, skipped" for name in ("accuracy.png", "empty")]
    assert answer.err.splitlines() == passed


def test_a_run_that_cannot_be_exported_does_not_stop_the_others(folder, tmp_path):
    (second_run(folder) / "rounds.jsonl").write_text("{\n")
    third = folder.with_name("run3")
    shutil.copytree(folder, third)
    answer = typed("export", tmp_path)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "rounds.jsonl cannot be read" in answer.err
    assert (folder / "rounds.csv").read_bytes() == (third / "rounds.csv").read_bytes()


def test_an_export_that_fails_leaves_the_earlier_one(folder, monkeypatch):
    (folder / "rounds.csv").write_bytes(b"earlier")
    before = all_bytes(folder)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        export_csv(folder)
    assert all_bytes(folder) == before


def test_an_export_that_cannot_be_written_is_one_sentence(folder):
    (folder / "rounds.csv").mkdir()
    answer = typed("export", folder)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "rounds.csv: cannot be written" in answer.err


def test_a_simulated_run_is_exported_with_all_its_rounds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = typed("run", *sets(SMALL), "--out", "run")
    assert answer.code == 0, answer.err
    before = kept_bytes(tmp_path / "run")
    assert typed("export", "run").code == 0
    record = RunRecord.open("run")
    assert (tmp_path / "run" / "rounds.csv").read_bytes().count(b"\n") == len(record.rounds) + 1
    assert kept_bytes(tmp_path / "run") == before
