"""Records: complete, readable, and the same bytes however often a run is interrupted."""

import errno
import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from adelfl.atomic import RunBusyError, lock, write_json
from adelfl.config.build import build_data
from adelfl.config.run import load_run
from adelfl.data import iid
from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.records import writer as writer_module
from adelfl.records.reader import RunRecord, find_runs
from adelfl.records.schema import Row
from adelfl.records.writer import RunWriter
from adelfl.report.time_series import plot
from adelfl.runner import RunJob, made_elsewhere, resume, run_job, start
from adelfl.simulation import engine as simulation
from support.dashboard_world import info
from support.problems import recorded_schedule
from support.small_worlds import everything_below, kept_bytes, typed

SMALL = (
    "fleet.devices=6",
    "fleet.upload=0.01",
    "model.hidden=[5]",
    "training.rounds=8",
    "training.depth=0.6",
    "training.evaluations=3",
)
FINISHED = ["model.safetensors", "result.json", "rounds.jsonl", "run.json", "wall.jsonl"]
KEYS = {"round", "time", "deadline", "loss", "accuracy", "train_loss", "batch", "depth", "contributors", "computing"}


def said(strategy="salf", *changes):
    return load_run(None, [*SMALL, f"strategy.name={strategy}", *changes])


class Killed(BaseException):
    pass


def kill_at(row):
    def report(reported):
        if reported.round == row:
            raise Killed

    return report


@pytest.fixture
def every_round(monkeypatch):
    """A checkpoint after every round."""
    monkeypatch.setattr(simulation, "_CHECKPOINT_SECONDS", -1.0)


@pytest.fixture
def checkpoints_at(monkeypatch):
    """A checkpoint after the given rounds only."""

    def choose(*rounds):
        plain = RunWriter.checkpoint
        monkeypatch.setattr(simulation, "_CHECKPOINT_SECONDS", -1.0)
        monkeypatch.setattr(
            RunWriter,
            "checkpoint",
            lambda self, round, time, weights: plain(self, round, time, weights) if round in rounds else None,
        )

    return choose


# -- what is recorded


@pytest.mark.parametrize("changes", [(), ("training.cohort=4",)], ids=["all", "cohort"])
def test_rows_are_complete(tmp_path, changes):
    start(said("salf", *changes), tmp_path / "run")
    first, *rows = RunRecord.open(tmp_path / "run").rounds
    assert first.to_json().keys() == {"round", "time", "loss", "accuracy"}
    assert len(rows) == 8
    U = 4 if changes else 6
    for t, row in enumerate(rows, start=1):
        assert row.to_json().keys() == (KEYS | {"devices"} if changes else KEYS)
        assert row.round == t
        assert len(row.batch) == len(row.depth) == len(row.devices or row.batch) == U
        assert len(row.contributors) == 2
        for l, count in enumerate(row.contributors, start=1):
            assert count == sum(z >= 3 - l for z in row.depth)
        assert (row.train_loss is None) == (max(row.contributors) == 0)
    assert rows[-1].accuracy is not None


def test_a_run_says_how_it_came_about_and_its_schedule_can_be_used_again(tmp_path):
    file = said("adel-paper")
    start(file, tmp_path / "run")
    info = RunRecord.open(tmp_path / "run").info
    assert info.config == file.model_dump(mode="json")
    assert (info.seed, info.strategy, info.devices, info.layers) == (0, "adel-paper", 6, ["dense1", "dense2"])
    assert {"python", "adelfl", "numpy", "torch"} <= info.versions.keys()
    schedule = recorded_schedule(info.schedule)
    for row in RunRecord(tmp_path / "run").rounds[1:]:
        assert row.batch == schedule.batch_sizes(row.round - 1).tolist()
        assert row.deadline == pytest.approx(schedule.deadlines[row.round - 1], rel=1e-12)


def test_a_finished_run_holds_its_model_its_result_and_no_checkpoint(tmp_path, every_round):
    result = start(said(), tmp_path / "run")
    assert everything_below(tmp_path / "run") == FINISHED
    found = RunRecord.open(tmp_path / "run")
    assert found.result == result
    assert list(result.to_json()) == [
        "final_accuracy",
        "accuracy",
        "depth",
        "rounds",
        "time",
        "engine",
        "slowest_accuracy",
    ]
    assert found.weights()["dense1.linear.weight"].shape == (5, 64)
    depths = [np.mean(row.depth) / 2 for row in found.rounds[1:]]
    assert result.depth == pytest.approx(np.mean(depths))
    assert found.wall_seconds > 0


def test_equal_runs_have_equal_bytes(tmp_path):
    for name in ("one", "two"):
        start(said("adel"), tmp_path / name)
    assert kept_bytes(tmp_path / "one") == kept_bytes(tmp_path / "two")
    assert (tmp_path / "one" / "run.json").read_bytes() == (tmp_path / "two" / "run.json").read_bytes()


def test_pandas_reads_the_rounds_in_one_line(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not one of our dependencies")
    start(said(), tmp_path / "run")
    table = pandas.read_json(tmp_path / "run" / "rounds.jsonl", lines=True)
    assert KEYS <= set(table.columns)
    assert table["round"].tolist() == list(range(9))


def test_rounds_are_lines_of_json_that_any_reader_takes(tmp_path):
    start(said("drop", "training.depth=0.1"), tmp_path / "run")
    for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # NaN and Infinity are not JSON


def test_a_line_that_is_not_complete_yet_is_left_out(tmp_path):
    start(said(), tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    (tmp_path / "run" / "result.json").unlink()
    assert [row.round for row in RunRecord(tmp_path / "run").rounds] == list(range(8))


# -- interrupted and resumed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs, one per configuration."""
    root, made = tmp_path_factory.mktemp("whole"), {}

    def find(*words):
        if words not in made:
            made[words] = root / str(len(made))
            start(said(*words), made[words])
        return kept_bytes(made[words])

    return find


@pytest.mark.parametrize("row", range(9))
def test_a_run_interrupted_after_any_row_ends_with_the_same_bytes(tmp_path, whole, every_round, row):
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        start(said(), folder, kill_at(row))
    assert not (folder / "result.json").exists()
    result = resume(folder)
    assert kept_bytes(folder) == whole("salf")
    assert result == RunRecord(folder).result
    assert not (folder / "checkpoint.safetensors").exists()


NORMED = ("model.factory=support.small_worlds:with_batch_norm", "training.batch=4")


@pytest.mark.parametrize(
    "words",
    [
        ("adel",),
        ("wait", "training.depth=0.9"),
        ("heterofl",),
        ("drop", "training.cohort=3"),
        ("salf", "training.local_iterations=3", "training.momentum=0.5", "training.weight_decay=0.1"),
        ("salf", *NORMED),
        ("salf", "model.factory=support.small_worlds:tiring"),
        ("support.small_worlds:Fading", "training.depth=0.9"),
        ("fedasync",),
        ("fedcompass",),
        ("timelyfl", "training.depth=0.9"),
        ("anytime",),
        ("fedprox", "training.local_iterations=3"),
        ("fednova", "training.local_iterations=3"),
        ("over-selection", "training.depth=0.9", "training.cohort=3"),
        ("fedcs",),
        ("oort", "training.depth=0.9", "training.cohort=3"),
        ("scaffold", "training.depth=0.95", "training.local_iterations=2"),
    ],
    ids=[
        "adel",
        "wait",
        "heterofl",
        "cohort",
        "local iterations",
        "batch norm",
        "buffers that are not saved",
        "a strategy that remembers",
        *("fedasync", "fedcompass", "timelyfl", "anytime", "fedprox", "fednova"),
        *("over-selection", "fedcs", "oort", "scaffold"),
    ],
)
def test_every_kind_of_run_resumes(tmp_path, whole, checkpoints_at, words):
    expected = whole(*words)
    checkpoints_at(2)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        start(said(*words), folder, kill_at(4 if words[0] not in ("wait", "scaffold") else 3))
    resume(folder)
    assert kept_bytes(folder) == expected


@pytest.mark.parametrize("checkpoints", [(), (3,), (2, 5)], ids=str)
@pytest.mark.parametrize(
    "garbage",
    [b"", b'{"round":99,"time"', b'{"round":99}\n', b"\x00\xff\x00\n", b"\n\n", b"x" * 100_000],
    ids=["nothing", "half a line", "a line", "no text", "empty lines", "much"],
)
def test_what_was_written_after_the_checkpoint_is_cut_off(tmp_path, whole, checkpoints_at, checkpoints, garbage):
    expected = whole("salf")
    checkpoints_at(*checkpoints)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        start(said(), folder, kill_at(7))
    for name in ("rounds.jsonl", "wall.jsonl"):
        with open(folder / name, "ab") as file:
            file.write(garbage)
    resume(folder)
    assert kept_bytes(folder) == expected
    wall = [json.loads(line)["round"] for line in (folder / "wall.jsonl").read_text().splitlines()]
    assert wall == list(range(9))


def test_rows_that_were_lost_after_the_checkpoint_are_computed_again(tmp_path, whole, checkpoints_at):
    expected = whole("salf")
    checkpoints_at(3)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        start(said(), folder, kill_at(6))
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:9])
    resume(folder)
    assert kept_bytes(folder) == expected


def test_a_run_may_be_interrupted_again_and_again(tmp_path, whole, checkpoints_at):
    expected = whole("salf")
    checkpoints_at(1, 4, 6)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        start(said(), folder, kill_at(3))
    for row in (3, 5, 5, 8, 7):
        with pytest.raises(Killed):
            resume(folder, kill_at(row))
    resume(folder)
    assert kept_bytes(folder) == expected


@pytest.mark.parametrize("name", ["model.safetensors", "result.json"])
def test_a_run_killed_while_it_ends_ends_the_same(tmp_path, whole, every_round, monkeypatch, name):
    expected = whole("salf")
    plain = writer_module.os.replace

    def fails(source, target):
        if str(target).endswith(name):
            raise Killed
        plain(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(writer_module.os, "replace", fails)
        with pytest.raises(Killed):
            start(said(), tmp_path / "run")
    assert not (tmp_path / "run" / name).exists()
    resume(tmp_path / "run")
    assert kept_bytes(tmp_path / "run") == expected
    assert everything_below(tmp_path / "run") == FINISHED


def test_a_checkpoint_is_the_old_one_or_the_new_one(tmp_path, whole, every_round, monkeypatch):
    expected = whole("salf")
    plain, count = Path.write_bytes, []

    def half(path, content):
        count.append(path)
        if len(count) == 4:
            plain(path, content[: len(content) // 2])
            raise Killed
        plain(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", half)
        with pytest.raises(Killed):
            start(said(), tmp_path / "run")
    assert len(count) == 4
    monkeypatch.setattr(simulation, "_CHECKPOINT_SECONDS", 1e9)
    resume(tmp_path / "run")
    assert kept_bytes(tmp_path / "run") == expected
    assert everything_below(tmp_path / "run") == FINISHED


def test_whoever_may_read_a_runs_rows_may_read_its_model(tmp_path):
    start(said(), tmp_path / "run")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()}
    assert modes["model.safetensors"] == modes["rounds.jsonl"]


def test_resuming_a_finished_run_leaves_it_alone(tmp_path):
    result = start(said(), tmp_path / "run")
    before = {path: (tmp_path / "run" / path).stat().st_mtime_ns for path in everything_below(tmp_path / "run")}
    assert resume(tmp_path / "run", pytest.fail) == result
    assert before == {path: (tmp_path / "run" / path).stat().st_mtime_ns for path in everything_below(tmp_path / "run")}


# -- one writer


def test_a_second_writer_is_refused_and_touches_nothing(tmp_path):
    folder = tmp_path / "run"
    with RunWriter.create(folder, info()) as writer:
        writer.append(Row(0, 0.0, accuracy=0.5), 0.0)
        before = (folder / "rounds.jsonl").read_bytes()
        assert before
        with pytest.raises(RunBusyError, match="another process"):
            RunWriter.reopen(folder)
        assert (folder / "rounds.jsonl").read_bytes() == before
        with pytest.raises(RunBusyError, match="another process is writing this run"):
            RunWriter.create(folder, info())
    writer, checkpoint = RunWriter.reopen(folder)
    writer.close()
    assert checkpoint is None


def test_a_run_that_is_under_way_cannot_be_resumed(tmp_path):
    folder = tmp_path / "run"
    busy = []

    def report(row):
        if row.round == 3:
            with pytest.raises(RunBusyError):
                resume(folder)
            busy.append(row)

    start(said(), folder, report)
    assert len(busy) == 1


def test_a_run_that_another_process_has_just_finished_is_its_result(tmp_path, whole, monkeypatch):
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        start(said(), folder, kill_at(3))
    plain = RunWriter.reopen

    def outrun(folder):
        monkeypatch.setattr(RunWriter, "reopen", plain)
        resume(folder)
        return plain(folder)

    monkeypatch.setattr(RunWriter, "reopen", outrun)
    assert resume(folder) == RunRecord(folder).result
    assert kept_bytes(folder) == whole("salf")


def test_a_disk_that_knows_no_locks_can_be_written(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    start(said(), tmp_path / "run")
    assert RunRecord(tmp_path / "run").result is not None


def test_a_run_that_another_process_writes_is_not_thrown_away_for_a_fresh_one(tmp_path):
    folder = tmp_path / "run"
    job = RunJob("salf", 0, said().model_dump_json(), folder, fresh=True)
    busy = []

    def report(row):
        if row.round == 3:
            with pytest.raises(RunBusyError):
                run_job(job)
            busy.append(row)

    result = start(said(), folder, report)
    assert len(busy) == 1
    assert RunRecord.open(folder).result == result
    assert run_job(job) == result  # now nobody does


def test_a_crash_of_the_code_is_noted_with_its_traceback_and_the_run_can_go_on(tmp_path):
    folder = tmp_path / "run"

    def crash(row):
        if row.round == 3:
            raise LookupError("a bug\nof two lines")

    with pytest.raises(AdelError, match=r"LookupError: a bug; test_record\.py, line \d+; failed\.json"):
        start(said(), folder, crash)
    record = RunRecord.open(folder)
    assert "a bug;" in record.failure
    assert "in crash" in json.loads((folder / "failed.json").read_text())["traceback"]
    resume(folder)
    start(said(), tmp_path / "whole")
    assert kept_bytes(folder) == kept_bytes(tmp_path / "whole")


def test_a_run_begun_with_other_versions_is_named(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        start(said(), folder, kill_at(3))
    assert made_elsewhere(folder) is None
    about = json.loads((folder / "run.json").read_text())
    about["versions"]["torch"] = "1.0"
    write_json(folder / "run.json", about)
    assert "torch 1.0 (now " in made_elsewhere(folder)
    done = typed("resume", folder)
    assert done.code == 0
    assert "note: " in done.err
    assert "torch 1.0 (now " in done.err


def test_a_folder_that_exists_is_refused_and_stays_as_it_is(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"exists already \(not a run\); choose another folder$"):
        start(said(), folder)
    assert everything_below(tmp_path) == ["mine", "mine/notes.txt"]
    with pytest.raises(Killed):
        start(said(), tmp_path / "run", kill_at(2))
    with pytest.raises(ConfigError, match=rf"\(an interrupted run\).* continue it with: adelfl resume {tmp_path}/run$"):
        start(said(), tmp_path / "run")
    resume(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"\(a finished run\); choose another folder$"):
        start(said(), tmp_path / "run")


@pytest.mark.parametrize(
    ("trouble", "raised"),
    [(OSError(28, "disk full"), ConfigError), (KeyboardInterrupt(), KeyboardInterrupt), (TypeError(), TypeError)],
    ids=["disk full", "Ctrl-C", "not JSON"],
)
def test_a_folder_appears_with_its_run_json_or_not_at_all(tmp_path, monkeypatch, trouble, raised):
    def fails(path, value):
        path.write_text("{")
        raise trouble

    monkeypatch.setattr(writer_module, "write_json", fails)
    with pytest.raises(raised):
        RunWriter.create(tmp_path / "runs" / "run", info())
    assert everything_below(tmp_path) == ["runs"]


def test_folders_that_a_killed_process_left_half_created_are_no_runs(tmp_path):
    half = tmp_path / ".run.abc123"
    half.mkdir()
    (half / "run.json").write_text("{}")
    assert find_runs(tmp_path) == []


def test_a_job_is_done_once_and_another_configuration_is_not_taken_for_it(tmp_path):
    file = said()
    job = RunJob("salf", 0, file.model_dump_json(), tmp_path / "run")
    result = run_job(job)
    assert run_job(job, pytest.fail) == result
    other = RunJob("salf", 0, said("salf", "training.batch=3").model_dump_json(), tmp_path / "run")
    with pytest.raises(ConfigError, match="another configuration"):
        run_job(other)


def test_inputs_that_changed_since_are_noticed(tmp_path):
    partition = tmp_path / "held.npz"
    file = said("salf", f"data.partition_file='{partition}'")
    dataset, held = build_data(said())
    held.save(partition)
    job = RunJob("salf", 0, file.model_dump_json(), tmp_path / "run")
    with pytest.raises(Killed):
        run_job(job, kill_at(3))
    iid(dataset.y_train, 6, seed=99).save(partition)
    with pytest.raises(ConfigError, match="have changed"):
        run_job(job)
    with pytest.raises(ConfigError, match="has changed since the run was started"):
        resume(tmp_path / "run")
    held.save(partition)
    run_job(job)
    assert RunRecord(tmp_path / "run").result is not None


OWN = """
from adelfl.strategies.salf import Salf


class Own(Salf):
    name = "own"
"""


def test_the_code_of_a_strategy_by_entry_point_is_an_input_too(tmp_path, monkeypatch):
    code = tmp_path / "own_strategy.py"
    code.write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("own", "own_strategy:Own", "adelfl.strategies")
    monkeypatch.setattr("adelfl.strategies.entry_points", lambda group: [point])
    assert said("own").fingerprints().keys() == {str(code)}
    assert said("salf").fingerprints() == {}
    job = RunJob("own", 0, said("own").model_dump_json(), tmp_path / "run")
    run_job(job)
    code.write_text(OWN + "# changed\n")
    with pytest.raises(ConfigError, match="have changed"):
        run_job(job)


def test_a_checkpoint_that_cannot_be_read_or_promises_more_than_is_there_is_said(tmp_path, every_round):
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        start(said(), folder, kill_at(4))
    rows, weights = (folder / "rounds.jsonl").read_bytes(), (folder / "checkpoint.safetensors").read_bytes()
    (folder / "rounds.jsonl").write_bytes(rows[:40])
    with pytest.raises(ConfigError, match="shorter than the checkpoint says"):
        resume(folder)
    (folder / "rounds.jsonl").write_bytes(rows)
    (folder / "checkpoint.safetensors").write_bytes(weights[:40])
    with pytest.raises(ConfigError, match="cannot be read"):
        resume(folder)
    (folder / "checkpoint.safetensors").write_bytes(weights)
    resume(folder)


# -- readers of what is broken

BROKEN = {
    "half": b"{",
    "empty": b"",
    "a list": b"[]",
    "null": b"null",
    "no keys": b"{}",
    "no text": b"\xff\xfe\x00",
    "nested": b'{"a":' * 100_000,
    "many digits": b'{"seed": %s}' % (b"1" * 5000),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_corrupt_run_is_listed_as_unreadable_and_breaks_nothing(tmp_path, monkeypatch, content):
    monkeypatch.setenv("COLUMNS", "500")
    start(said(), tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_bytes(content)
    listed = typed("list", tmp_path)
    assert listed.code == 0
    lines = listed.out.splitlines()
    assert len(lines) == 3
    assert "unreadable" in next(line for line in lines if "bad" in line)
    assert "finished" in next(line for line in lines if "good" in line)


@pytest.mark.parametrize("command", ["show", "resume"])
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_corrupt_run_is_one_sentence(tmp_path, command, content):
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / "run.json").write_bytes(content)
    answer = typed(command, folder)
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("name", ["result.json", "rounds.jsonl"])
def test_a_run_with_a_corrupt_file_is_listed_as_unreadable(tmp_path, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "500")
    start(said(), tmp_path / "run")
    if name == "rounds.jsonl":
        (tmp_path / "run" / "result.json").unlink()
    for content in (b"what?\n", b"[" * 100_000 + b"\n"):
        (tmp_path / "run" / name).write_bytes(content)
        assert "unreadable" in typed("list", tmp_path).out
        assert typed("show", tmp_path / "run").code == 2


@pytest.mark.parametrize("left", [None, 0, 1, 4])
def test_a_finished_run_that_lost_rows_is_damaged(tmp_path, monkeypatch, left):
    monkeypatch.setenv("COLUMNS", "500")
    start(said(), tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.unlink() if left is None else path.write_bytes(b"".join(lines[:left]) + lines[left][:9])
    reason = f"rounds.jsonl has {max(0, (left or 0) - 1)} of 8 rounds; repeat"
    for command in ("show", "export", "report"):
        answer = typed(command, tmp_path / "run")
        assert (answer.code, reason in answer.err) == (2, True), command
    assert ("cannot be read" if left is None else reason) in typed("list", tmp_path).out


def test_a_damaged_line_is_named(tmp_path):
    start(said(), tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b"what?\n", *lines[5:]]))
    with pytest.raises(ConfigError, match=r"rounds.jsonl cannot be read \(line 5: Expecting value\)"):
        _ = RunRecord.open(tmp_path / "run").rounds


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    names = ("run.json", "result.json", "failed.json", "rounds.jsonl")
    for name in names:
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        write_json(folder / "run.json", info().to_json())
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    # In a process of its own, so that waiting for a pipe would end in an error and not go on for ever.
    words = [sys.executable, "-m", "adelfl", "list", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=os.environ | {"COLUMNS": "500"})
    assert (done.returncode, done.stderr) == (0, "")
    for name in names:
        assert f"{name} cannot be read (not a plain file)" in done.stdout


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="locks cannot be seen here")
def test_a_run_that_is_written_is_told_from_one_that_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    start(said(), tmp_path / "run")
    folder = tmp_path / "run"
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    again = f"adelfl resume {folder}"

    def state():
        (line,) = (line for line in typed("list", tmp_path).out.splitlines() if str(folder) in line)
        return line

    assert f"running, or just stopped; {again}" in state()
    for file in ("run.json", "rounds.jsonl"):
        os.utime(folder / file, (0.0, 0.0))
    assert f"stopped; {again}" in state()
    assert "running" not in state()
    held = lock(folder)
    try:
        assert state().rstrip().endswith("running")
    finally:
        os.close(held)


def test_a_folder_that_is_no_run_is_said(tmp_path):
    with pytest.raises(ConfigError, match="not a run"):
        RunRecord.open(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="no final model"):
        RunRecord(tmp_path).weights()


def test_a_frame_is_the_record(tmp_path):
    start(said(), tmp_path / "run")
    record = RunRecord.open(tmp_path / "run")
    frame = record.frame()
    assert frame.index.tolist() == [row.round for row in record.rounds]
    assert frame["time"].tolist() == [row.time for row in record.rounds]
    assert frame["accuracy"].dropna().tolist() == record.evaluations[1].tolist()
    assert frame["depth"][1] == record.rounds[1].depth


def test_a_run_that_has_not_begun_is_an_empty_frame(tmp_path):
    (tmp_path / "rounds.jsonl").touch()
    assert RunRecord(tmp_path).frame().empty


def test_a_frame_without_pandas_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"adelfl\[pandas\]"):
        RunRecord(tmp_path).frame()


def test_a_run_is_drawn_whether_it_is_finished_or_not(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        start(said(), folder, kill_at(6))
    figure = plot(folder)
    (ax,) = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["salf\n(not finished)"]
    shown = np.isfinite(ax.lines[0].get_ydata())
    (times, _), budget = RunRecord.open(folder).evaluations, RunRecord.open(folder).info.budget
    assert ax.lines[0].get_xdata()[shown].max() == pytest.approx(times[-1], abs=budget / 1000)
    resume(folder)
    figure = plot(str(folder))
    (ax,) = figure.axes
    moments, drawn = ax.lines[0].get_data()
    times, accuracies = RunRecord.open(folder).evaluations
    last = np.searchsorted(times, moments * (1 + 1e-9), side="right") - 1
    assert np.array_equal(drawn, accuracies[last])
    assert (list(ax.texts), "last tenth of the time" in figure.get_supxlabel()) == ([], True)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["salf"]
    assert ax.get_title(loc="left") == "digits, 6 devices"


def test_runs_are_drawn_by_strategy(tmp_path):
    for name, strategy, seed in (("a", "salf", 0), ("b", "salf", 1), ("c", "drop", 0)):
        start(said(strategy, f"training.seed={seed}"), tmp_path / name)
    for fig in (plot(tmp_path), plot(*(RunRecord.open(tmp_path / name) for name in "abc"))):
        (ax,) = fig.axes
        assert len(ax.lines) == 2


def test_unfinished_runs_are_drawn_only_without_finished_ones_of_their_strategy(tmp_path):
    with pytest.raises(Killed):
        start(said("salf", "training.seed=1"), tmp_path / "one", kill_at(6))
    start(said("drop"), tmp_path / "other")
    assert len(plot(tmp_path).axes[0].lines) == 2
    start(said(), tmp_path / "third")
    (ax,) = plot(tmp_path).axes
    assert all(np.isfinite(line.get_ydata()).all() for line in ax.lines)


def test_what_cannot_be_drawn_is_said(tmp_path):
    with pytest.raises(ConfigError, match="at least one run"):
        plot()
    with pytest.raises(ConfigError, match="no runs in it"):
        plot(tmp_path)
    with pytest.raises(Killed):
        start(said(), tmp_path / "one", kill_at(6))
    (tmp_path / "one" / "rounds.jsonl").write_text("")
    with pytest.raises(ConfigError, match="never evaluated"):
        plot(tmp_path / "one")
