"""The schema of records: folders of earlier versions open, JSON is reproduced, damaged values are refused."""

import json
from pathlib import Path

import pytest

from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunInfo, RunResult
from adelfl.records.writer import RunWriter
from support.dashboard_world import about, info, row
from support.small_worlds import typed

OLD = Path(__file__).parents[1] / "fixtures" / "records"
NAMES = ("simulated", "flower")


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_version_0_1_is_read_and_its_json_reproduced(name):
    """The fixtures were written before records had a schema."""
    record = RunRecord.open(OLD / name)
    lines = (OLD / name / "rounds.jsonl").read_text().splitlines()
    assert [json.dumps(row.to_json(), separators=(",", ":")) for row in record.rounds] == lines
    assert record.result.to_json() == json.loads((OLD / name / "result.json").read_text())
    known = json.loads((OLD / name / "run.json").read_text())
    assert record.info.to_json() | known == record.info.to_json()
    assert all(not part.extra for part in (record.info, record.result, *record.rounds))
    assert record.events == []


def test_a_simulated_run_json_is_reproduced_with_its_order():
    written = RunRecord(OLD / "simulated").info.to_json()
    assert written.pop("codec") == "none"  # older runs had no other
    text = (OLD / "simulated" / "run.json").read_text(encoding="utf-8")
    assert json.dumps(written, indent=1) + "\n" == text


def test_what_flower_recorded_is_typed():
    record = RunRecord.open(OLD / "flower")
    assert (record.info.clock, record.info.nodes, record.info.steps) == ("real", ["1", "2", "3", "4"], 3)
    first, *rows = record.rounds
    assert (first.deadline, first.duration, first.rejected) == (None, None, {})
    assert [(row.rejected, row.abandoned, row.duration) for row in rows] == [
        ({"not finite": 1}, False, row.length) for row in rows
    ]
    assert record.result.abandoned == 0


@pytest.mark.parametrize("name", NAMES)
def test_commands_read_old_folders(name, tmp_path):
    assert "finished" in typed("show", OLD / name).out
    assert typed("report", OLD / name, "-o", tmp_path / "report.html").code == 0


def test_unknown_keys_are_kept_and_missing_ones_have_defaults():
    future = row(3) | {"temperature": [1, 2]}
    assert Row.from_json(future).extra == {"temperature": [1, 2]}
    assert Row.from_json(future).to_json() == future
    assert Row.from_json({"round": 1, "time": 2.0}) == Row(1, 2.0)
    few = {
        key: about()[key] for key in ("config", "seed", "strategy", "label", "budget", "rounds", "layers", "devices")
    }
    assert RunInfo.from_json(few).versions == {}
    assert RunInfo.from_json(few | {"weather": "fine"}).to_json()["weather"] == "fine"
    result = {"final_accuracy": None, "accuracy": {"25%": None}, "depth": 0.5, "rounds": 3, "time": 1.0, "cost": 2}
    assert RunResult.from_json(result).to_json() == result


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": -1}, "round cannot be"),
        ({"round": True}, "round cannot be"),
        ({"time": None}, "time cannot be"),
        ({"depth": [1, 2.5]}, "depth cannot be"),
        ({"depth": [1]}, "1 depths, but 2 values of batch"),
        ({"nodes": ["a"]}, "2 depths, but 1 values of nodes"),
        ({"rejected": {"late": "often"}}, "rejected cannot be"),
        ({"accuracy": "good"}, "accuracy cannot be"),
    ],
)
def test_a_damaged_row_is_refused(change, reason):
    with pytest.raises(ValueError, match=reason):
        Row.from_json(row(1) | change)


def test_events_are_read_back_and_cut_back_to_the_checkpoint(tmp_path):
    folder = tmp_path / "run"
    events = [{"kind": "arrival", "device": u, "time": 0.1 * u} for u in range(100)]
    with RunWriter.create(folder, info()) as writer:
        assert not (folder / "events.jsonl").exists()
        for event in events[:50]:
            writer.log_event(event)
        writer.append(Row.from_json(row(0)), 0.0)
        writer.checkpoint(0, 0.0, {})
        for event in events[50:]:
            writer.log_event(event)
    assert RunRecord.open(folder).events == events
    writer, checkpoint = RunWriter.reopen(folder)
    with writer:
        assert checkpoint.round == 0
        assert RunRecord.open(folder).events == events[:50]
        writer.log_event(events[50])
    assert RunRecord.open(folder).events == events[:51]


def test_without_a_checkpoint_a_run_begins_with_an_empty_event_log(tmp_path):
    with RunWriter.create(tmp_path / "run", info()) as writer:
        writer.log_event({"kind": "started"})
    RunWriter.reopen(tmp_path / "run")[0].close()
    assert RunRecord(tmp_path / "run").events == []


def test_an_event_log_shorter_than_its_checkpoint_is_refused(tmp_path):
    with RunWriter.create(tmp_path / "run", info()) as writer:
        writer.log_event({"kind": "started"})
        writer.checkpoint(0, 0.0, {})
    (tmp_path / "run" / "events.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"events\.jsonl is shorter"):
        RunWriter.reopen(tmp_path / "run")
