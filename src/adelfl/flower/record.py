"""The record of a run on Flower, new or interrupted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from adelfl.clock import wall_seconds
from adelfl.errors import ConfigError
from adelfl.flower.backend import Weights
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunInfo
from adelfl.records.writer import RunWriter
from adelfl.runtime.reactions import Reaction


@dataclass(eq=False)
class Record:
    """The record of a run, new or interrupted; nothing is written without a folder.

    Attributes
    ----------
    folder : Path or None
        Where the run is recorded.
    info : RunInfo
        What run.json holds.
    round : int
        Last finished round of a run that is continued; 0 for a new one.
    time_used : float
        Seconds of the budget that are over, including those without a server.
    weights : dict or None
        The model after that round, and the memory of the server step.
    past : list of Reaction
        Reactions up to that round.
    rows : list of Row
        Rows up to that round.
    """

    folder: Path | None
    info: RunInfo
    round: int = 0
    time_used: float = 0.0
    weights: Weights | None = None
    past: list[Reaction] = field(default_factory=list)
    roster: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    writer: RunWriter | None = None

    @classmethod
    def open(cls, folder: Path | None, info: RunInfo) -> Record:
        """Prepare a new record, or read the one of an interrupted run."""
        record = cls(folder, info)
        if folder is None or not (folder / "run.json").is_file():
            return record
        old = RunRecord.open(folder)
        if old.result is not None:
            raise ConfigError(f"{folder}: this run has ended; choose another folder")
        for key in ("budget", "rounds", "strategy"):
            if getattr(old.info, key) != getattr(info, key):
                raise ConfigError(
                    f"{folder}: this run was begun with {key} = {getattr(old.info, key)}, not {getattr(info, key)}"
                )
        record.info, record.time_used = old.info, max(0.0, wall_seconds() - (old.info.started or wall_seconds()))
        record.writer, checkpoint = RunWriter.reopen(folder)
        if checkpoint is not None:
            again = RunRecord(folder)
            record.round, record.weights, record.rows = checkpoint.round, dict(checkpoint.weights), again.rounds
            for entry in again.events:
                record.past.append(Reaction.from_json(entry))
                record.roster = [int(node) for node in entry.get("roster", record.roster)]
        return record

    def close(self) -> None:
        """Release the files."""
        if self.writer is not None:
            self.writer.close()
