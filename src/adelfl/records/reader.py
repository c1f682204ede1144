"""Reader of recorded runs."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from adelfl.atomic import Weights
from adelfl.errors import ConfigError
from adelfl.plugins import optional
from adelfl.records.schema import Row, RunInfo, RunResult, read_failure

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")

_SUSPENDED = 100.0  # multiple of the median round's time from which the process must have been suspended


@dataclass(frozen=True)
class RunRecord:
    """Reads one run, finished or not."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> RunRecord:
        """Open a run's folder; raise ConfigError if it is not a run, or if run.json or result.json cannot be read."""
        folder = Path(folder)
        if not (folder / "run.json").is_file():
            raise ConfigError(f"{folder}: not a run (it has no run.json); adelfl list FOLDER shows where runs are")
        record = cls(folder)
        _ = record.info, record.result
        return record

    @cached_property
    def info(self) -> RunInfo:
        """Configuration, seed, versions, strategy and schedule."""
        return self._read("run.json", RunInfo.from_json)

    @cached_property
    def result(self) -> RunResult | None:
        """The summary; None if the run is not finished."""
        return self._read("result.json", RunResult.from_json) if (self.folder / "result.json").exists() else None

    @cached_property
    def failure(self) -> str | None:
        """The error that stopped the run, if there was one."""
        return self._read("failed.json", read_failure) if (self.folder / "failed.json").exists() else None

    @cached_property
    def rounds(self) -> list[Row]:
        """One row per merge, the initial model's first; an incomplete last line is ignored."""
        _ = self.result  # it is written after the last row
        rows = list(self._lines("rounds.jsonl", Row.from_json))
        self.check_last(rows[-1] if rows else None)
        return rows

    def check_last(self, row: Row | None) -> None:
        """Raise ConfigError if the run is finished, but its last row is of an earlier round."""
        last, end = -1 if row is None else row.round, 0 if self.result is None else self.result.rounds
        if self.result is not None and last < end:
            raise ConfigError(f"{self.folder}: rounds.jsonl has {max(0, last)} of {end} rounds; repeat this run")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The logged events; empty for runs without an event log."""
        return list(self._lines("events.jsonl", _event))

    def frame(self) -> DataFrame:
        """Return the rows as a pandas DataFrame with the columns of rounds.jsonl; a missing value is NaN."""
        pandas = optional("pandas", "pandas", "pandas")
        frame: DataFrame = pandas.DataFrame([row.to_json() for row in self.rounds] or {"round": []}).set_index("round")
        return frame

    @property
    def evaluations(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times and accuracies of the evaluations."""
        rows = [row for row in self.rounds if row.accuracy is not None]
        return np.array([row.time for row in rows]), np.array([row.accuracy for row in rows], dtype=np.float64)

    @property
    def wall_seconds(self) -> float:
        """Wall-clock time of all rounds."""
        return float(sum(self._lines("wall.jsonl", _seconds)))

    @property
    def computing_seconds(self) -> float:
        """Wall-clock time of all rounds; a round in which the process was suspended counts as the median round."""
        seconds = np.array(list(self._lines("wall.jsonl", _seconds)))
        if not (seconds > 0).any():
            return 0.0
        median = float(np.median(seconds[seconds > 0]))
        return float(np.where(seconds > _SUSPENDED * median, median, seconds).sum())

    def weights(self) -> Weights:
        """Return the final weights."""
        try:
            return load_file(self.folder / "model.safetensors")
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{self.folder}: no final model ({error}); finish the run first") from None

    def _read(self, name: str, convert: Callable[[object], T]) -> T:
        with open_record_file(self.folder / name) as file:
            return convert(json.loads(file.read()))

    def _lines(self, name: str, convert: Callable[[object], T]) -> Iterator[T]:
        if not (self.folder / name).exists():
            return
        with open_record_file(self.folder / name) as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    try:
                        value = convert(json.loads(line))
                    except ValueError as error:
                        raise ValueError(f"line {number}: {getattr(error, 'msg', error)}") from None
                    yield value


def _event(data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError("an event is not a JSON object")
    return data


def _seconds(data: object) -> float:
    if not isinstance(data, dict) or not isinstance(data.get("seconds"), int | float):
        raise ValueError("a line lacks seconds")
    return float(data["seconds"])


@contextmanager
def open_record_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of a record; raise ConfigError if reading fails, or if it is no plain file (a pipe may block)."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            yield file
    except (OSError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        raise ConfigError(f"{path.parent}: {path.name} cannot be read ({reason})") from None


def find_runs(folder: Path) -> list[RunRecord]:
    """Return all runs below a folder, sorted by path; hidden folders are skipped."""
    paths = sorted(folder.glob("**/run.json"))
    inner = ((path.parent, path.parent.relative_to(folder).parts) for path in paths)
    return [RunRecord(place) for place, parts in inner if not any(part.startswith(".") for part in parts)]


def run_folders(places: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of the runs at or below several paths, each once, and the paths without a run."""
    folders: dict[Path, None] = {}
    empty = []
    for place in places:
        if not place.exists():
            raise ConfigError(f"{place}: no such folder")
        below = [place] if (place / "run.json").is_file() else [record.folder for record in find_runs(place)]
        folders |= dict.fromkeys(below)
        if not below:
            empty.append(place)
    if not folders and empty:
        reason = "no runs in it (a run is a folder with a run.json)" if empty[0].is_dir() else "not a folder"
        raise ConfigError(f"{empty[0]}: {reason}")
    return list(folders), empty
