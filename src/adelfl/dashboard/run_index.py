"""Index of the runs below a folder; only files that have changed are read again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from adelfl.atomic import is_written, locked_inodes
from adelfl.clock import wall_seconds
from adelfl.errors import AdelError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row
from adelfl.records.tail import RowTail, rows_backwards

Card = dict[str, Any]

_FILES = ("run.json", "rounds.jsonl", "result.json", "failed.json")
_DEEPEST = 8  # levels of folders below the root
_TAILS = 32  # runs whose rows are kept in memory


class Tail(RowTail):
    """The rows of a run so far: a summary of each, and details of the last."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rows: list[dict[str, Any]] = []
        self.last: dict[str, Any] | None = None

    def read_on(self) -> None:
        """Add the rows that were completed since the last call."""
        edition = self.edition
        new = self.read()
        if self.edition != edition:
            self.rows, self.last = [], None
        self.rows += map(_summary, new)
        self.last = _details(new[-1]) if new else self.last


def _summary(row: Row) -> dict[str, Any]:
    """Return a row for the browser, without the values per device."""
    names = ("round", "time", "deadline", "length", "accuracy", "train_loss", "contributors", "abandoned", "rejected")
    return {name: getattr(row, name) for name in names} | {"late": sum(row.late.values())}


def _details(row: Row) -> dict[str, Any]:
    """Return a row for the browser, with the values per device."""
    values = {"batch": row.batch, "depth": row.depth, "devices": row.devices or (), "nodes": row.nodes or ()}
    return _summary(row) | values


class RunIndex:
    """The runs below a folder, which need not exist yet.

    ``now`` returns seconds since 1970. Acquire ``lock`` around several calls that must see the same state.
    """

    def __init__(self, root: Path, now: Callable[[], float] = wall_seconds) -> None:
        self.root, self.now = root.resolve(), now
        self.lock = threading.RLock()
        self._known: dict[str, tuple[Path, object, Card]] = {}  # folder, state of its files, card
        self._tail = lru_cache(_TAILS)(Tail)

    def look(self) -> dict[str, Card]:
        """Return the entry of each run in the list, by name."""
        with self.lock:
            before, self._known = self._known, {}
            for path, stats in self._folders():
                name = os.fsencode(path).decode("utf-8", "replace") or self.root.name
                stamps = {file: (s.st_ino, s.st_size, s.st_mtime_ns) for file, s in stats.items()}
                known = before.get(name)
                if known is None or known[1] != stamps:
                    changed = max(s.st_mtime for s in stats.values())
                    known = self.root / path, stamps, _card(name, self.root / path, changed)
                self._known[name] = known
            locked, now = locked_inodes(), self.now()
            return {name: _with_state(*known, locked, now) for name, known in sorted(self._known.items())}

    def _folders(self) -> Iterator[tuple[str, dict[str, os.stat_result]]]:
        """Yield the folders of runs, relative to the root, with the status of their files; links are not followed."""
        for folder, below, names in os.walk(self.root):
            path = folder.removeprefix(str(self.root)).strip(os.sep)
            below[:] = [name for name in below if name[0] != "." and path.count(os.sep) < _DEEPEST - 1]
            if "run.json" in names:
                with suppress(OSError):  # removed since it was listed
                    yield path, {name: os.lstat(f"{folder}/{name}") for name in _FILES if name in names}

    def about(self, name: str) -> Card | None:
        """Return what the page shows of a run, without its rows; None if there is no such run."""
        with self.lock:
            card = self.look().get(name)
            return None if card is None else card | _about(self._known[name][0])

    def tail(self, name: str) -> Tail | None:
        """Return the rows of a run so far; None if there is no such run.

        A name is only looked up among the runs that were found, and never used as a path.
        """
        with self.lock:
            if name not in self._known and name not in self.look():
                return None
            tail = self._tail(self._known[name][0] / "rounds.jsonl")
            tail.read_on()
            return tail

    def row(self, name: str, number: int) -> dict[str, Any] | None:
        """Return the details of one round; None if there is no such round."""
        with self.lock, suppress(AdelError):  # the file may have changed since it was read
            tail = self.tail(name)
            row = None if tail is None else tail.row(number)
            return None if row is None else _details(row)
        return None


def _card(name: str, folder: Path, changed: float) -> Card:
    """Return a run's entry in the list; its state is ``open`` unless its files show that it ended."""
    card: Card = {"name": name, "changed": changed, "state": "open", "why": ""}
    card |= dict.fromkeys(("label", "data", "clock"), "") | dict.fromkeys(("seed", "budget", "accuracy", "time"))
    card |= dict.fromkeys(("round", "rounds", "devices", "progress"), 0)
    try:
        record = RunRecord(folder)
        info, result = record.info, record.result
        card |= {key: getattr(info, key) for key in ("label", "data", "clock", "budget", "rounds", "devices")}
        card["seed"] = str(info.seed)
        if result is not None:
            done = {"round": result.rounds, "time": result.time, "progress": 1.0, "state": "finished"}
            return card | done | {"accuracy": result.final_accuracy}
        last = None
        for row in rows_backwards(folder / "rounds.jsonl") if (folder / "rounds.jsonl").exists() else ():
            last, card["accuracy"] = last or row, row.accuracy
            if row.accuracy is not None:
                break
        if last is not None:
            card |= {"round": last.round, "time": last.time, "progress": min(1.0, last.time / info.budget)}
        if record.failure is not None:
            card |= {"state": "failed", "why": record.failure}
    except AdelError as error:
        card |= {"state": "corrupt", "why": str(error).removeprefix(f"{folder}: ")}
    return card


def _with_state(folder: Path, _: object, card: Card, locked: set[int], now: float) -> Card:
    if card["state"] != "open":
        return card
    return card | {"state": "running" if is_written(folder, now - card["changed"], locked) else "stopped"}


def _about(folder: Path) -> Card:
    """Return what the page shows of a run's information; empty if it cannot be read."""
    try:
        info = RunRecord(folder).info
    except AdelError:
        lists = {key: list[str]() for key in ("layers", "nodes", "notes", "deadlines")}
        return {**lists, "started": None, "iterations": 1, "versions": {}}
    about = {key: getattr(info, key) for key in ("layers", "notes", "started", "deadlines", "versions")}
    return about | {"nodes": info.nodes or (), "iterations": info.local_iterations}
