"""Faults on a real Flower deployment: processes that are killed or stopped. Minutes each: `make test-slow`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower"))

from deployment import Deployment

from adelfl.records.reader import RunRecord

pytestmark = pytest.mark.slow

BUDGET, ROUNDS = 110.0, 8
COMPUTING, UPLOADING, IDLE = "Start `flwr-clientapp` process", "Sending: train message", "Sent successfully"


class Trial:
    """A run with faults: what was asked for, where it is recorded, and what came out."""

    def __init__(self, flower, folder):
        self.flower, self.folder = flower, folder
        self.out, self.record = folder / "out.json", folder / "run"
        self.config = {"method": "adel", "budget": BUDGET, "rounds": ROUNDS, "out": str(self.out),
                       "record": str(self.record), "local-iterations": 2}  # fmt: skip

    def begin(self):
        self.run = self.flower.submit(self.config)
        return self

    def rounds(self):
        if not (self.record / "run.json").exists():
            return []
        return [row for row in RunRecord(self.record).rounds if row.round > 0]

    def wait_for_round(self, number):
        until(lambda: len(self.rounds()) >= number or self.ended(), BUDGET)
        assert len(self.rounds()) >= number, self.log()

    def wait_for(self, node, words, after=0.0):
        """Until a node's log says something that it has not said yet."""
        seen = self.flower.log(f"node{node}").count(words)
        until(lambda: self.flower.log(f"node{node}").count(words) > seen, BUDGET)

    def ended(self):
        return self.flower.ended(self.run)

    def finish(self):
        until(self.ended, 2 * BUDGET)
        assert self.flower.status(self.run) == "finished:completed", self.log()
        result = json.loads(self.out.read_text())
        record = RunRecord.open(self.record)
        rows = [[r.round, r.depth, r.abandoned, r.rejected] for r in self.rounds()]
        print(json.dumps({"seconds": result["seconds"], "last": result["evaluations"][-1], "rows": rows}))
        assert record.result is not None
        return result, record

    def log(self):
        return self.flower._flwr("log", self.run, "here", "--show")


def until(holds, seconds):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.3)


def in_time(seconds):
    return seconds <= BUDGET + max(0.01 * BUDGET, 1.0)


def signal_group(process, sign):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sign)


@pytest.fixture
def trial(tmp_path):
    with Deployment([1.0, 1.0, 1.0, 1.0], tmp_path / "flower") as flower:
        yield Trial(flower, tmp_path)


def test_nodes_are_killed_while_they_compute_upload_and_idle_and_the_run_goes_on(trial):
    trial.begin().wait_for_round(1)
    for node, moment in ((0, COMPUTING), (1, UPLOADING), (2, IDLE)):
        trial.wait_for(node, moment)
        signal_group(trial.flower.supernodes[node], signal.SIGKILL)
    killed = len(trial.rounds())
    result, record = trial.finish()
    assert in_time(result["seconds"])
    after = [row for row in record.rounds if row.round > killed + 1]
    assert after, "no round was left after the last kill"
    assert any(not row.abandoned for row in after)


def test_the_server_is_killed_in_a_round_and_goes_on_from_the_last_finished_one(trial):
    trial.begin().wait_for_round(1)
    (server,) = processes("flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    before = trial.rounds()
    trial.begin()
    _, record = trial.finish()
    rows = [row for row in record.rounds if row.round > 0]
    assert rows[: len(before)] == before
    assert [row.round for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) > len(before)
    assert in_time(record.result.time)


def test_all_nodes_die_and_the_run_ends_by_itself(trial):
    trial.begin().wait_for_round(2)
    for process in trial.flower.supernodes:
        signal_group(process, signal.SIGKILL)
    result, record = trial.finish()
    assert in_time(result["seconds"])
    assert record.rounds[-1].abandoned
    assert "abandoned" in trial.log()


def test_a_node_is_cut_off_at_four_points_and_comes_back(trial):
    trial.begin()
    node = trial.flower.supernodes[0]
    for moment in (COMPUTING, UPLOADING, IDLE, COMPUTING):
        trial.wait_for(0, moment)
        signal_group(node, signal.SIGSTOP)
        time.sleep(8.0)
        signal_group(node, signal.SIGCONT)
    restored = len(trial.rounds())
    result, record = trial.finish()
    assert in_time(result["seconds"])
    (mine,) = re.findall(r"SuperNode ID: (\d+)", trial.flower.log("node0"))
    after = [row for row in record.rounds if row.round > restored and mine in row.nodes]
    assert any(row.depth[row.nodes.index(mine)] > 0 for row in after)


def processes(words):
    """Numbers of processes whose command line has these words."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                if any(part.endswith(words.encode()) for part in command[:2]):
                    found.append(int(folder.name))
    return found
