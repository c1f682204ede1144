"""All runs below a folder: found without following links, read again only where files changed."""

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
from adelfl.dashboard.files import CorruptRunError, as_count, as_number, as_text, as_texts, read_json
from adelfl.dashboard.rows import Row, Tail, last_rows

Card = dict[str, Any]

_ABOUT = frozenset({"config", "seed", "strategy", "label", "budget", "rounds", "layers", "devices"})
_RESULT = frozenset({"final_accuracy", "rounds", "time"})
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
        Where runs are; it need not exist yet.
    now : callable
        Seconds since 1970.
    locked : callable
        Inodes of folders that somebody writes.
    share : float
        Seconds for which one look at the files does for all who ask.

    Attributes
    ----------
    lock : RLock
        Hold it for several questions that must fit together.
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
        """What there is now, by name: enough of each run for a line in a list."""
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
        """Folders with a run in them, as paths below the root. Links are passed over."""
        waiting = [("", 0)]
        while waiting:
            path, depth = waiting.pop()
            found: dict[str, os.stat_result] = {}
            try:
                with os.scandir(f"{self.root}/{path}") as entries:
                    for entry in entries:
                        name = entry.name
                        if name in _FILES:
                            found[name] = entry.stat(follow_symlinks=False)
                        elif depth < _DEEPEST and name[0] != "." and entry.is_dir(follow_symlinks=False):
                            waiting.append((f"{path}/{name}" if path else name, depth + 1))
            except OSError:  # gone since it was listed, or not ours to read
                continue
            if "run.json" in found:
                yield path, [found.get(name) for name in _FILES]

    def _with_state(self, known: _Known, locked: set[int], now: float) -> Card:
        card = known.card
        tail = self._tails.get(card["name"])
        if tail is not None and tail.trouble is not None:
            return card | {"state": "corrupt", "why": tail.trouble}
        if card["state"] != "open":
            return card
        now_is = activity(known.folder, now - card["changed"], known.patience, locked)
        return card | {"state": "stopped" if now_is == "stopped" else "running"}

    def about(self, name: str) -> Card | None:
        """All that is shown of a run but its rows; None if there is no such run."""
        with self.lock:
            known = self._known.get(name) or self._look_again(name)
            if known is None:
                return None
            card = self._with_state(known, self._locked(), self.now())
            try:
                return card | _details(read_json(known.folder / "run.json", _ABOUT))
            except CorruptRunError as trouble:
                return card | _details({}) | {"state": "corrupt", "why": str(trouble)}

    def tail(self, name: str) -> Tail | None:
        """The rows of a run, read up to now; None if there is no such run."""
        with self.lock:
            known = self._known.get(name) or self._look_again(name)
            if known is None:
                self._tails.pop(name, None)
                return None
            tail = self._tails.pop(name, None) or Tail(known.folder / "rounds.jsonl")
            self._tails[name] = tail  # the latest is last
            if len(self._tails) > _TAILS:
                del self._tails[next(iter(self._tails))]
            tail.read_on()
            return tail

    def row(self, name: str, number: int) -> Row | None:
        """One round of a run, whole."""
        tail = self.tail(name)
        return None if tail is None else tail.row(number)

    def _look_again(self, name: str) -> _Known | None:
        """Find a run that came since the last look. A name is only ever compared with names, never made a path."""
        self.look()
        return self._known.get(name)


def _card(name: str, folder: Path, stats: list[os.stat_result | None], changed: float) -> tuple[Card, float]:
    """A run's line in the list, and how many seconds of silence do not mean that it has stopped."""
    card: Card = {"name": name, "changed": changed, "state": "open", "why": ""}
    card |= dict.fromkeys(("label", "data", "clock"), "") | dict.fromkeys(("seed", "budget", "accuracy", "time"))
    card |= dict.fromkeys(("round", "rounds", "devices", "progress"), 0)
    patience = _RECENT
    _, rounds, result, failed = stats
    try:
        about = read_json(folder / "run.json", _ABOUT)
        budget = as_number(about["budget"])
        card |= {
            "label": as_text(about["label"]),
            "data": as_text(about.get("data")),
            "clock": "real" if about.get("clock") == "real" else "virtual",
            "seed": as_text(about["seed"]),
            "budget": budget,
            "rounds": as_count(about["rounds"]),
            "devices": as_count(about["devices"]),
        }
        if result is not None:
            found = read_json(folder / "result.json", _RESULT)
            done = {"round": as_count(found["rounds"]), "time": as_number(found["time"]), "progress": 1.0}
            return card | done | {"state": "finished", "accuracy": as_number(found["final_accuracy"])}, patience
        if rounds is not None:
            last, card["accuracy"] = last_rows(folder / "rounds.jsonl")
            if last is not None:
                share = min(1.0, last["time"] / budget) if budget else 0.0
                card |= {"round": last["round"], "time": last["time"], "progress": max(0.0, share)}
                patience = max(patience, patience_for(card["clock"], last["deadline"] or 0.0))
        if failed is not None:
            why = as_text(read_json(folder / "failed.json", frozenset({"error"}))["error"])
            card |= {"state": "failed", "why": why}
    except CorruptRunError as trouble:
        where = "" if ".json" in str(trouble) else "the end of rounds.jsonl: "
        card |= {"state": "corrupt", "why": f"{where}{trouble}"}
    except OSError as trouble:
        card |= {"state": "corrupt", "why": f"rounds.jsonl cannot be read ({trouble.strerror})"}
    return card, patience


def _details(about: dict[str, Any]) -> Card:
    schedule, config = (about[key] if isinstance(about.get(key), dict) else {} for key in ("schedule", "config"))
    said = config.get("flower", config.get("training"))
    deadlines = schedule.get("deadlines")
    return {
        "layers": as_texts(about.get("layers")),
        "nodes": as_texts(about.get("nodes")),
        "notes": as_texts(about.get("notes")),
        "started": as_number(about.get("started")),
        "iterations": max(1, as_count(about.get("local_iterations", said.get("local_iterations"))))
        if isinstance(said, dict)
        else 1,
        "deadlines": [as_number(v) or 0.0 for v in deadlines] if isinstance(deadlines, list) else [],
        "versions": {
            as_text(k): as_text(v)
            for k, v in (about["versions"].items() if isinstance(about.get("versions"), dict) else ())
        },
    }
