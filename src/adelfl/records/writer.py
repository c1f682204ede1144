"""Writer of recorded runs.

A run that is killed leaves its last checkpoint, and possibly lines written after it. :meth:`RunWriter.reopen` removes
those lines, so that a resumed run ends with the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from adelfl.atomic import RunBusyError, RunFinishedError, Weights, lock, write_json, write_weights
from adelfl.errors import AdelError, ConfigError
from adelfl.records.schema import Row, RunInfo, RunResult

_SECONDS_PER_WRITE = 0.5
_encode_line = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps with separators builds an encoder each time


@dataclass(frozen=True)
class Checkpoint:
    """State from which a run continues."""

    round: int
    time: float
    weights: Weights


class RunWriter:
    """Writes one run; :meth:`create` starts a new run, :meth:`reopen` continues an interrupted one."""

    def __init__(self, folder: Path, locked: int | None = None) -> None:
        self.folder = folder
        self._lock = lock(folder) if locked is None else locked
        self._files: dict[str, IO[bytes]] = {}
        self._rows: list[tuple[Row, float]] = []
        self._unwritten = 0.0  # wall-clock seconds of the buffered rows
        try:
            for name in ("rounds", "wall"):
                self._open(name)
            if (folder / "events.jsonl").exists():
                self._open("events")
        except OSError as error:
            self.close()
            raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None

    def _open(self, name: str) -> IO[bytes]:
        file = self._files[name] = (self.folder / f"{name}.jsonl").open("ab")
        return file

    @classmethod
    def create(cls, folder: Path, info: RunInfo) -> RunWriter:
        """Start a run; the folder is created together with its run.json, or not at all."""
        if folder.exists():
            content, advice = "not a run", ""
            if (folder / "result.json").exists():
                content = "a finished run"
            elif (folder / "run.json").exists():
                if (locked := lock(folder)) is not None:  # raises RunBusyError while another process is writing
                    os.close(locked)
                content, advice = "an interrupted run", f", or continue it with: adelfl resume {folder}"
            raise ConfigError(f"{folder} exists already ({content}); choose another folder{advice}")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
        locked = None
        try:
            locked = lock(temporary)  # the lock moves with the folder, so that the run is locked when it appears
            write_json(temporary / "run.json", info.to_json())
            temporary.chmod(0o755)
            temporary.rename(folder)
        except BaseException as error:
            if locked is not None:
                os.close(locked)
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise RunBusyError(f"{folder}: another process has just started this run") from None
            if isinstance(error, OSError):
                raise ConfigError(f"{folder}: cannot be written ({error.strerror or error})") from None
            raise
        return cls(folder, locked)

    @classmethod
    def reopen(cls, folder: Path) -> tuple[RunWriter, Checkpoint | None]:
        """Continue a run from its last checkpoint; lines written after it are removed."""
        writer = cls(folder)
        try:
            return writer, writer._rewind()
        except AdelError:
            writer.close()
            raise

    def _rewind(self) -> Checkpoint | None:
        if (self.folder / "result.json").exists():
            raise RunFinishedError(f"{self.folder}: another process has just finished this run")
        (self.folder / "failed.json").unlink(missing_ok=True)
        path = self.folder / "checkpoint.safetensors"
        checkpoint, ends = None, {"rounds": 0, "wall": 0, "events": 0}
        if path.exists():
            try:
                with safe_open(path, framework="numpy") as saved:
                    metadata = saved.metadata()
                checkpoint = Checkpoint(int(metadata["round"]), float(metadata["time"]), load_file(path))
                ends = {name: int(metadata.get(f"{name}_bytes", 0)) for name in ends}
            except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path}: cannot be read ({error}); remove it to restart this run") from None
        for name, end in ends.items():
            file = self._files.get(name)
            if (0 if file is None else file.seek(0, os.SEEK_END)) < end:
                raise ConfigError(f"{self.folder}: {name}.jsonl is shorter than the checkpoint says; repeat this run")
            if file is not None:
                file.truncate(end)
        return checkpoint

    def describe(self, info: RunInfo) -> None:
        """Replace run.json, to add information that was not known when the run started."""
        write_json(self.folder / "run.json", info.to_json())

    def append(self, row: Row, wall_seconds: float) -> None:
        """Add a row. Rows are buffered, because encoding several at a time is faster; an evaluation flushes them."""
        self._rows.append((row, wall_seconds))
        self._unwritten += wall_seconds
        if row.accuracy is not None or self._unwritten > _SECONDS_PER_WRITE:
            self.flush()

    def log_event(self, event: Mapping[str, Any]) -> None:
        """Add a line to events.jsonl; :meth:`reopen` removes it if it is later than the checkpoint."""
        file = self._files.get("events") or self._open("events")
        file.write(_encode_line(event).encode() + b"\n")

    def flush(self) -> None:
        """Write the buffered lines."""
        rows, self._rows, self._unwritten = self._rows, [], 0.0
        for row, seconds in rows:
            self._files["rounds"].write(_encode_line(row.to_json()).encode() + b"\n")
            self._files["wall"].write(b'{"round":%d,"seconds":%.6f}\n' % (row.round, seconds))
        for file in self._files.values():
            file.flush()

    def checkpoint(self, round: int, time: float, weights: Weights) -> None:
        """Save the state from which the run can continue: first the buffered lines, then the weights."""
        self.flush()
        metadata = {"round": str(round), "time": repr(time)}
        for name, file in self._files.items():
            os.fsync(file.fileno())
            metadata[f"{name}_bytes"] = str(file.seek(0, os.SEEK_END))
        write_weights(self.folder / "checkpoint.safetensors", weights, metadata)

    def finish(self, result: RunResult, weights: Weights) -> None:
        """Finish the run: write the model, then the result, then remove the checkpoint."""
        self.flush()
        write_weights(self.folder / "model.safetensors", weights, {})
        write_json(self.folder / "result.json", result.to_json())
        for path in self.folder.glob("*checkpoint.safetensors*"):  # including temporary files of killed processes
            path.unlink(missing_ok=True)

    def fail(self, sentence: str, traceback: str | None = None) -> None:
        """Write failed.json, which :meth:`reopen` removes."""
        self.flush()
        write_json(self.folder / "failed.json", {"error": sentence} | ({"traceback": traceback} if traceback else {}))

    def close(self) -> None:
        """Write the buffered lines, close the files, and release the lock."""
        try:
            if self._rows:
                self.flush()
            for file in self._files.values():
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
        except OSError as error:
            if kind is None:  # otherwise the first exception states why the run ended
                raise AdelError(f"{self.folder}: cannot be written ({error.strerror})") from None


def discard(folder: Path) -> None:
    """Remove a run completely; raise RunBusyError if another process is writing it."""
    locked = lock(folder)
    try:
        shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.{uuid4().hex[:8]}.gone")))
    finally:
        if locked is not None:
            os.close(locked)


@cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that influence the last bits of a run's results."""
    packages = ("adelfl", "numpy", "scipy", "torch")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
