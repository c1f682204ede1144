"""Index of the runs below a folder: links are not followed, and only changed files are read again."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adelfl.activity import RECENT as _RECENT
from adelfl.activity import activity, locked_inodes, patience_for
from adelfl.clock import monotonic, wall_seconds
from adelfl.dashboard.files import CorruptRunError, finite, read_json, short
from adelfl.dashboard.rows import Tail, last_rows
from adelfl.records.schema import RunInfo, RunResult, read_failure

Card = dict[str, Any]

_FILES = ("run.json", "rounds.jsonl", "result.json", "failed.json")
_DEEPEST = 8  # folders below the first
_TAILS = 32  # runs whose rows are kept in memory


@dataclass
class _Known:
    """A run as it was when it was last read."""

    folder: Path
    stamps: tuple[tuple[int, int, int] | None, ...]
    card: Card
    patience: float


class RunIndex:
    """The runs below a folder.

    Parameters
    ----------
    root : Path
        The folder; it need not exist yet.
    now : callable
        Returns seconds since 1970.
    locked : callable
        Returns the inodes of locked folders.
    share : float
        Seconds for which the result of :meth:`look` is reused.

    Attributes
    ----------
    lock : RLock
        Hold it for several calls that must be consistent.
    """

    def __init__(
        self,
        root: Path,
        now: Callable[[], float] = wall_seconds,
        locked: Callable[[], set[int]] = locked_inodes,
        share: float = 0.0,
    ) -> None:
        self.root, self.now, self.share = root.resolve(), now, share
        self.lock = threading.RLock()
        self._locked = locked
        self._known: dict[str, _Known] = {}
        self._tails: dict[str, Tail] = {}
        self._looked, self._cards = -math.inf, {}  # type: float, dict[str, Card]

    def look(self) -> dict[str, Card]:
        """Return what the list shows of each run, by name."""
        with self.lock:
            began = monotonic()
            if began - self._looked < self.share:
                return self._cards
            before, self._known = self._known, {}
            locked, now = self._locked(), self.now()
            for path, stats in self._folders():
                name = os.fsencode(path).decode("utf-8", "replace") or self.root.name
                stamps = tuple(None if s is None else (s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)
                known = before.get(name)
                if known is None or known.stamps != stamps:
                    changed = max(s.st_mtime for s in stats if s is not None)
                    folder = self.root / path
                    known = _Known(folder, stamps, *_card(name, folder, stats, changed))
                self._known[name] = known
            self._cards = {name: self._with_state(known, locked, now) for name, known in sorted(self._known.items())}
            self._looked = began
            return self._cards

    def _folders(self) -> Iterator[tuple[str, list[os.stat_result | None]]]:
        """Yield the folders of runs, relative to the root, with the status of their files."""
        waiting = [("", 0)]
        while waiting:
            path, depth = waiting.pop()
            present: dict[str, os.stat_result] = {}
            try:
                with os.scandir(f"{self.root}/{path}") as entries:
                    for entry in entries:
                        name = entry.name
                        if name in _FILES:
                            present[name] = entry.stat(follow_symlinks=False)
                        elif depth < _DEEPEST and name[0] != "." and entry.is_dir(follow_symlinks=False):
                            waiting.append((f"{path}/{name}" if path else name, depth + 1))
            except OSError:  # removed since it was listed, or not readable
                continue
            if "run.json" in present:
                yield path, [present.get(name) for name in _FILES]

    def _with_state(self, known: _Known, locked: set[int], now: float) -> Card:
        card = known.card
        tail = self._tails.get(card["name"])
        if tail is not None and tail.error is not None:
            return card | {"state": "corrupt", "why": tail.error}
        if card["state"] != "open":
            return card
        now_is = activity(known.folder, now - card["changed"], known.patience, locked)
        return card | {"state": "stopped" if now_is == "stopped" else "running"}

    def about(self, name: str) -> Card | None:
        """Return what the page shows of a run except its rows; None if there is no such run."""
        with self.lock:
            known = self._known.get(name) or self._look_again(name)
            if known is None:
                return None
            card = self._with_state(known, self._locked(), self.now())
            try:
                return card | _details(read_json(known.folder / "run.json", RunInfo.from_json))
            except CorruptRunError as error:
                return card | _details(None) | {"state": "corrupt", "why": str(error)}

    def tail(self, name: str) -> Tail | None:
        """Return the rows of a run so far; None if there is no such run."""
        with self.lock:
            known = self._known.get(name) or self._look_again(name)
            if known is None:
                self._tails.pop(name, None)
                return None
            tail = self._tails.pop(name, None) or Tail(known.folder / "rounds.jsonl")
            self._tails[name] = tail  # the most recently used is last
            if len(self._tails) > _TAILS:
                del self._tails[next(iter(self._tails))]
            tail.read_on()
            return tail

    def row(self, name: str, number: int) -> dict[str, Any] | None:
        """Return the details of one round."""
        tail = self.tail(name)
        return None if tail is None else tail.row(number)

    def _look_again(self, name: str) -> _Known | None:
        """Find a run that is newer than the last look. Names are compared with known names, never used as paths."""
        self.look()
        return self._known.get(name)


def _card(name: str, folder: Path, stats: list[os.stat_result | None], changed: float) -> tuple[Card, float]:
    """Return a run's entry in the list, and the seconds of silence after which it counts as stopped."""
    card: Card = {"name": name, "changed": changed, "state": "open", "why": ""}
    card |= dict.fromkeys(("label", "data", "clock"), "") | dict.fromkeys(("seed", "budget", "accuracy", "time"))
    card |= dict.fromkeys(("round", "rounds", "devices", "progress"), 0)
    patience = _RECENT
    _, rounds, result, failed = stats
    try:
        info = read_json(folder / "run.json", RunInfo.from_json)
        budget = finite(info.budget)
        card |= {
            "label": short(info.label),
            "data": short(info.data),
            "clock": "real" if info.clock == "real" else "virtual",
            "seed": str(info.seed),
            "budget": budget,
            "rounds": info.rounds,
            "devices": info.devices,
        }
        if result is not None:
            end = read_json(folder / "result.json", RunResult.from_json)
            done = {"round": end.rounds, "time": finite(end.time), "progress": 1.0}
            return card | done | {"state": "finished", "accuracy": finite(end.final_accuracy)}, patience
        if rounds is not None:
            last, card["accuracy"] = last_rows(folder / "rounds.jsonl")
            if last is not None:
                share = min(1.0, last.time / budget) if budget else 0.0
                card |= {"round": last.round, "time": last.time, "progress": max(0.0, share)}
                patience = max(patience, patience_for(card["clock"], finite(last.deadline) or 0.0))
        if failed is not None:
            card |= {"state": "failed", "why": short(read_json(folder / "failed.json", read_failure)["error"])}
    except CorruptRunError as error:
        where = "" if ".json" in str(error) else "the end of rounds.jsonl: "
        card |= {"state": "corrupt", "why": f"{where}{error}"}
    except OSError as error:
        card |= {"state": "corrupt", "why": f"rounds.jsonl cannot be read ({error.strerror})"}
    return card, patience


def _details(info: RunInfo | None) -> Card:
    """Return what the page shows of a run's information; empty if it cannot be read."""
    if info is None:
        lists = {key: list[str]() for key in ("layers", "nodes", "notes", "deadlines")}
        return {**lists, "started": None, "iterations": 1, "versions": {}}
    return {
        "layers": [short(name) for name in info.layers],
        "nodes": [short(node) for node in info.nodes or ()],
        "notes": [short(note) for note in info.notes],
        "started": finite(info.started),
        "iterations": info.local_iterations,
        "deadlines": [finite(deadline) or 0.0 for deadline in info.deadlines],
        "versions": {short(name): short(version) for name, version in info.versions.items()},
    }
