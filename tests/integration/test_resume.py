"""Real processes, killed at any moment: what is resumed ends with the bytes of what was never interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache

import numpy as np
import pytest

from support.small_worlds import kept_bytes, sets, typed

# Some seconds of training, and a checkpoint twenty times a second, so that kills meet checkpoints being written.
LONG = sets(("training.rounds=900", "training.evaluations=45", "fleet.devices=20"))
LONGER = sets(("training.rounds=1800", "training.evaluations=90"))
SALF = ("--set", "strategy.name=salf")
KINDS = {
    "salf": (*LONG, *SALF),
    "salf, longer": (*LONG, *SALF, *LONGER),
    "adel": (*LONG, "--set", "training.rounds=400"),  # one that learns as it goes, too
}
# Ctrl-C is heard as in a terminal, even where the tests run in the background and would pass its silence on.
DRIVER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import adelfl.simulation.engine as engine
engine._CHECKPOINT_SECONDS = 0.05
{more}
from adelfl.cli import main
main()
"""
# However quick the machine, there is time to end it.
SLOWLY = """
import time
from adelfl.records.writer import RunWriter
plain = RunWriter.append
def append(self, row, seconds):
    plain(self, row, seconds)
    time.sleep(0.003)
RunWriter.append = append
"""
# However slow the machine is that watches it: it waits for what will end it.
HELD = SLOWLY.replace(
    "time.sleep(0.003)", 'if row.round == 200 and "drop" not in self.folder.name: self.flush(), time.sleep(600)'
)


@pytest.fixture
def begin(tmp_path):
    """Start processes, each in a group of its own: Ctrl-C in a terminal reaches the workers too."""
    started = []

    def start(*arguments, more=""):
        command = [sys.executable, "-c", DRIVER.replace("{more}", more), *map(str, arguments)]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        )
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def wait_until(process, happened):
    """Poll; gives up when the process ends, or after so long that something is wrong."""
    for _ in range(12_000):
        if happened() or process.poll() is not None:
            return
        time.sleep(0.01)
    pytest.fail("the process neither ended nor did what was expected of it")


def lines_of(folder):
    try:
        return (folder / "rounds.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def interrupt(process, folder, delay, how, *, held=False):
    """Let it train for a moment, or until it waits to be ended, then end it; whether it was still at work."""
    seen = 200 if held else lines_of(folder)
    wait_until(process, lambda: lines_of(folder) > seen if held else lines_of(folder) not in (0, seen))
    moment = time.monotonic() + delay
    wait_until(process, lambda: time.monotonic() > moment)
    at_work = process.poll() is None
    if at_work:
        os.killpg(process.pid, how)
    out, err = process.communicate(timeout=120)
    return at_work, out, err


def nobody_is_left(process):
    """Whether the process and all its workers end."""
    for _ in range(2000):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an uninterrupted run leaves, by kind."""

    @cache
    def bytes_of(kind):
        folder = tmp_path_factory.mktemp("whole") / "run"
        assert typed("run", "--out", folder, *KINDS[kind]).code == 0
        return kept_bytes(folder)

    return bytes_of


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("salf", 2),
        ("adel", 1),
        pytest.param("salf, longer", 12, marks=pytest.mark.slow),
        pytest.param("adel", 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_bytes(begin, tmp_path, whole, kind, kills):
    folder = tmp_path / "run"
    moments = np.random.default_rng(kills).uniform(0.0, 0.6, kills)
    process = begin("run", "--out", folder, *KINDS[kind], more=SLOWLY)
    met = 0
    for moment in moments:
        at_work, _, err = interrupt(process, folder, moment, signal.SIGKILL)
        met += at_work
        assert at_work or process.returncode == 0, err
        if not at_work:
            break
        assert process.returncode == -signal.SIGKILL
        process = begin("resume", folder, more=SLOWLY)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "accuracy" in out
    assert met >= min(kills, 2)
    assert kept_bytes(folder) == whole(kind)
    assert typed("resume", folder).code == 0
    assert kept_bytes(folder) == whole(kind)


def test_ctrl_c_ends_a_run_with_130_and_one_line_and_resume_goes_on(begin, tmp_path, whole):
    folder = tmp_path / "run"
    process = begin("run", "--out", folder, *LONG, *SALF, more=HELD)
    wait_until(process, lambda: lines_of(folder) > 0)
    too_early = typed("resume", folder)
    assert process.poll() is None
    assert (too_early.code, too_early.out) == (2, "")
    assert "another process is writing this run" in too_early.err
    at_work, out, err = interrupt(process, folder, 0.0, signal.SIGINT, held=True)
    assert at_work
    assert process.returncode == 130
    assert out == ""
    assert err.startswith("interrupted")
    assert "".join(err.splitlines()).count("interrupted") == 1
    assert "Traceback" not in err
    assert not (folder / "result.json").exists()
    resumed = typed("resume", folder)
    assert resumed.code == 0, resumed.err
    assert kept_bytes(folder) == whole("salf")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_ends_a_comparison_and_the_same_command_goes_on(begin, tmp_path, whole, jobs):
    command = ["compare", "--strategies", "drop,salf", "--seeds=1", "--json", "--out", tmp_path / "c", *LONG]
    held = jobs == 1  # workers are other processes
    process = begin(*command, "--jobs", jobs, more=HELD if held else "")
    second = tmp_path / "c" / "salf-seed0"
    at_work, out, err = interrupt(process, second, 0.1, signal.SIGINT, held=held)
    assert at_work
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert sum(line.startswith("interrupted") for line in err.splitlines()) == 1
    assert nobody_is_left(process)
    assert not (second / "result.json").exists()
    if jobs == 1:
        assert (tmp_path / "c" / "drop-seed0" / "result.json").exists()  # what finished stays
    again = typed(*command)
    assert again.code == 0, again.err
    assert list(json.loads(again.out)) == ["drop", "salf"]
    assert kept_bytes(second) == whole("salf")


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(begin, tmp_path, whole):
    command = ["compare", "--strategies", "drop,salf", "--seeds=1", "--json", "--out", tmp_path / "c", *LONG]
    process = begin(*command, "--jobs=2")
    wait_until(process, lambda: lines_of(tmp_path / "c" / "salf-seed0") > 0)
    process.kill()  # the parent alone
    process.wait()
    assert nobody_is_left(process)
    assert typed(*command).code == 0
    assert kept_bytes(tmp_path / "c" / "salf-seed0") == whole("salf")
