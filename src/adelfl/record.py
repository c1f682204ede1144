"""What happened in every round: one run is one folder, written as it goes. One writer, many readers.

    run.json                 configuration, seed, versions, strategy, schedule: written before the first round
    rounds.jsonl             a line per round; ``RunRecord.open(folder).frame()`` is a pandas DataFrame of it
    wall.jsonl               how long rounds took on the wall clock: the only thing that differs between equal runs
    checkpoint.safetensors   weights and place in the files above, replaced as the run goes, gone at its end
    model.safetensors        the final weights
    result.json              summary; a run that has it is finished

A run that is killed leaves the last checkpoint and perhaps lines after it; :meth:`RunWriter.reopen` cuts those off, so
that it ends with the same bytes as a run that was never interrupted.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from adelfl.atomic import RunBusyError, RunFinishedError, Weights, lock, write_json, write_weights
from adelfl.errors import AdelError, ConfigError, MissingExtraError

if TYPE_CHECKING:
    from pandas import DataFrame

_LINES_AT_ONCE, _SECONDS_AT_ONCE = 32, 0.5
_STOPPED = 100.0  # times a usual round: no round takes that long
_one_line = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps with separators builds an encoder every time


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands."""

    round: int
    time: float
    weights: Weights


class RunWriter:
    """Writes one run. Use :meth:`create` for a new one, :meth:`reopen` for one that was interrupted."""

    def __init__(self, folder: Path, held: int | None = None) -> None:
        self.folder = folder
        self._lock = lock(folder) if held is None else held
        try:
            self._rounds: IO[bytes] = (folder / "rounds.jsonl").open("ab")
            self._wall: IO[bytes] = (folder / "wall.jsonl").open("ab")
        except OSError as trouble:
            if self._lock is not None:
                os.close(self._lock)
            raise ConfigError(f"{folder}: cannot be written ({trouble.strerror})") from None
        self._waiting: list[tuple[Mapping[str, Any], float]] = []
        self._unseen = 0.0  # seconds that the rounds in waiting took

    @classmethod
    def create(cls, folder: Path, about: Mapping[str, Any]) -> RunWriter:
        """Begin a run; the folder appears with its run.json inside, or not at all."""
        if folder.exists():
            raise ConfigError(f"{folder} exists already; choose another name, or continue it with: adelfl resume")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        except OSError as trouble:
            raise ConfigError(f"{folder}: cannot be written ({trouble.strerror})") from None
        held = None
        try:
            held = lock(temporary)  # and so the folder, from the moment when it is seen
            write_json(temporary / "run.json", about)
            temporary.chmod(0o755)
            temporary.rename(folder)
        except BaseException as trouble:
            if held is not None:
                os.close(held)
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(trouble, OSError) and trouble.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise RunBusyError(f"{folder}: another process has just begun this run") from None
            if isinstance(trouble, OSError):
                raise ConfigError(f"{folder}: cannot be written ({trouble.strerror or trouble})") from None
            raise
        return cls(folder, held)

    @classmethod
    def reopen(cls, folder: Path) -> tuple[RunWriter, Checkpoint | None]:
        """Continue a run from its last checkpoint; what was written after it is cut off."""
        writer = cls(folder)
        try:
            return writer, writer._rewind()
        except AdelError:
            writer.close()
            raise

    def _rewind(self) -> Checkpoint | None:
        if (self.folder / "result.json").exists():  # finished by another process since it was looked at
            raise RunFinishedError(f"{self.folder}: another process has just finished this run")
        (self.folder / "failed.json").unlink(missing_ok=True)
        path = self.folder / "checkpoint.safetensors"
        found, ends = None, {"rounds": 0, "wall": 0}
        if path.exists():
            try:
                with safe_open(path, framework="numpy") as file:
                    said = file.metadata()
                found = Checkpoint(int(said["round"]), float(said["time"]), load_file(path))
                ends = {name: int(said[f"{name}_bytes"]) for name in ends}
            except (SafetensorError, OSError, KeyError, TypeError, ValueError) as trouble:
                raise ConfigError(f"{path}: cannot be read ({trouble}); remove it to start this run over") from None
        for name, file in self._files():
            if file.seek(0, os.SEEK_END) < ends[name]:
                raise ConfigError(
                    f"{self.folder}: {name}.jsonl is shorter than the checkpoint says; start this run over"
                )
            file.truncate(ends[name])
        return found

    def append(self, row: Mapping[str, Any], wall_seconds: float) -> None:
        """Add a round. Lines are written some at a time, which is quicker, but soon, and at every evaluation."""
        self._waiting.append((row, wall_seconds))
        self._unseen += wall_seconds
        if row["accuracy"] is not None or len(self._waiting) >= _LINES_AT_ONCE or self._unseen > _SECONDS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Let readers see what was added so far."""
        waiting, self._waiting, self._unseen = self._waiting, [], 0.0
        for row, wall_seconds in waiting:
            self._rounds.write(_one_line(row).encode() + b"\n")
            self._wall.write(b'{"round":%d,"seconds":%.6f}\n' % (row["round"], wall_seconds))
        self._rounds.flush()
        self._wall.flush()

    def checkpoint(self, round: int, time: float, weights: Weights) -> None:
        """Remember where the run stands: first the rows, then the weights that follow from them."""
        self.flush()
        for _, file in self._files():
            os.fsync(file.fileno())
        ends = {f"{name}_bytes": str(file.seek(0, os.SEEK_END)) for name, file in self._files()}
        metadata = {"round": str(round), "time": repr(time), **ends}
        write_weights(self.folder / "checkpoint.safetensors", weights, metadata)

    def finish(self, result: Mapping[str, Any], weights: Weights) -> None:
        """End the run: model, then result, then the checkpoint goes."""
        self.flush()
        write_weights(self.folder / "model.safetensors", weights, {})
        write_json(self.folder / "result.json", result)
        for left in self.folder.glob("*checkpoint.safetensors*"):  # and the temporary one of a writer that was killed
            left.unlink(missing_ok=True)

    def fail(self, sentence: str, traceback: str | None = None) -> None:
        """Note why the run could not go on, and where in the code if that helps; :meth:`reopen` forgets it."""
        self.flush()
        write_json(self.folder / "failed.json", {"error": sentence} | ({"traceback": traceback} if traceback else {}))

    def _files(self) -> tuple[tuple[str, IO[bytes]], ...]:
        return ("rounds", self._rounds), ("wall", self._wall)

    def close(self) -> None:
        """Write what is left, and release the files."""
        try:
            if not self._rounds.closed:
                self.flush()
            for _, file in self._files():
                file.close()
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except OSError as trouble:
            if kind is None:  # otherwise it has been said why the run ended
                raise AdelError(f"{self.folder}: cannot be written ({trouble.strerror})") from None


def discard(folder: Path) -> None:
    """Remove a run, unless another process is writing it; whole, or not at all."""
    held = lock(folder)
    try:
        shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.{uuid4().hex[:8]}.gone")))
    finally:
        if held is not None:
            os.close(held)


@dataclass(frozen=True)
class RunRecord:
    """Reads one run, finished or not."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> RunRecord:
        """Open a run folder, or say why it is none."""
        folder = Path(folder)
        if not (folder / "run.json").is_file():
            raise ConfigError(f"{folder}: not a run (it has no run.json)")
        record = cls(folder)
        _ = record.about, record.result
        return record

    @cached_property
    def about(self) -> dict[str, Any]:
        """Configuration, seed, versions, strategy, schedule."""
        return self._read("run.json", {"config", "seed", "strategy", "label", "budget", "rounds", "layers", "devices"})

    @staticmethod
    def steps_of(about: Mapping[str, Any]) -> int:
        """E of a run with this run.json, as configured or chosen."""
        config = about["config"]
        section = config.get("training") or config.get("flower") or {}
        return max(1, int(about.get("local_iterations") or section.get("local_iterations", 1)))

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """The summary, or None while the run is not finished."""
        if not (self.folder / "result.json").exists():
            return None
        return self._read("result.json", {"final_accuracy", "accuracy", "depth", "rounds", "time"})

    @cached_property
    def _failed(self) -> dict[str, Any]:
        return self._read("failed.json", {"error"}) if (self.folder / "failed.json").exists() else {}

    @property
    def failure(self) -> str | None:
        """Why the run could not go on, if it could not."""
        return self._failed.get("error")

    @property
    def broke_down(self) -> bool:
        """Whether training came to no good end, as it will again; a crash of the code is another thing."""
        return bool(self._failed) and "traceback" not in self._failed

    def _read(self, name: str, keys: set[str]) -> dict[str, Any]:
        try:
            with _open_plain(self.folder / name) as file:
                found = json.loads(file.read())
        except (OSError, ValueError, RecursionError) as trouble:
            raise ConfigError(f"{self.folder}: {name} cannot be read ({_why(trouble)})") from None
        if not isinstance(found, dict) or (missing := keys - found.keys()):
            what = ", ".join(sorted(missing)) if isinstance(found, dict) else "everything"
            raise ConfigError(f"{self.folder}: {name} is not a run's (it lacks {what})")
        return found

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """A row per round; a line that is not complete yet is left out."""
        return list(self._rows("rounds.jsonl"))

    def frame(self) -> DataFrame:
        """The rounds as a pandas DataFrame: a line per round, columns as in rounds.jsonl, NaN for what was not there.

        Raises
        ------
        MissingExtraError
            If pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as missing:
            if missing.name != "pandas":
                raise
            raise MissingExtraError("pandas", "pandas") from None
        return pandas.DataFrame(self.rounds or {"round": []}).set_index("round")

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        try:
            with _open_plain(self.folder / name) as file:
                for line in file:
                    if line.endswith("\n"):
                        yield json.loads(line)
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as trouble:
            raise ConfigError(f"{self.folder}: {name} cannot be read ({_why(trouble)})") from None

    @property
    def evaluations(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Virtual times and accuracies of the evaluations."""
        rows = [row for row in self.rounds if row["accuracy"] is not None]
        return np.array([row["time"] for row in rows]), np.array([row["accuracy"] for row in rows])

    @property
    def wall_seconds(self) -> float:
        """Wall-clock time that the rounds took."""
        return float(sum(row["seconds"] for row in self._rows("wall.jsonl")))

    @property
    def computing_seconds(self) -> float:
        """As :attr:`wall_seconds`, but for rounds in which the process was stopped: they count like the others."""
        seconds = np.array([row["seconds"] for row in self._rows("wall.jsonl")])
        if seconds.size == 0:
            return 0.0
        usual = float(np.median(seconds[seconds > 0])) if (seconds > 0).any() else 0.0
        return float(np.where(seconds > _STOPPED * usual, usual, seconds).sum())

    def weights(self) -> Weights:
        """The final weights."""
        try:
            return load_file(self.folder / "model.safetensors")
        except (OSError, SafetensorError) as trouble:
            raise ConfigError(f"{self.folder}: no final model ({trouble})") from None


@contextmanager
def _open_plain(path: Path) -> Iterator[IO[str]]:
    """Open a plain file for reading; a pipe, which could block for ever, is an error."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        yield file


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def run_folders(places: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Find the runs at or below some places.

    Parameters
    ----------
    places : sequence of Path
        Folders of runs, folders that hold some, and perhaps what else a pattern of the shell matches.

    Returns
    -------
    tuple of lists of Path
        The folders of the runs, each once, and the places without a run.

    Raises
    ------
    ConfigError
        If a place does not exist, or if no place holds a run.
    """
    found: dict[Path, None] = {}
    empty = []
    for place in places:
        if not place.exists():
            raise ConfigError(f"{place}: no such folder")
        below = [place] if (place / "run.json").is_file() else [record.folder for record in find_runs(place)]
        found |= dict.fromkeys(below)
        if not below:
            empty.append(place)
    if not found and empty:
        why = "no runs in it (a run is a folder with a run.json)" if empty[0].is_dir() else "not a folder"
        raise ConfigError(f"{empty[0]}: {why}")
    return list(found), empty


def versions() -> dict[str, str]:
    """Of all that decides the last bits of a run."""
    return {"python": platform.python_version()} | {
        name: version(name) for name in ("adelfl", "numpy", "scipy", "torch")
    }


def find_runs(folder: Path) -> list[RunRecord]:
    """All runs below a folder, by name; what is not a run is passed over."""
    return [
        RunRecord(path.parent) for path in sorted(folder.glob("**/run.json")) if not path.parent.name.startswith(".")
    ]
