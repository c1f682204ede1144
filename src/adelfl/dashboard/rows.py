"""The rows of one run, read on as the file grows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from adelfl.dashboard.files import CorruptRunError, as_count, as_number, as_text, as_texts, open_file, parse

Row = dict[str, Any]

_PER_DEVICE = ("batch", "depth", "devices", "nodes")
_TAIL, _LONGEST_TAIL = 1 << 14, 1 << 23  # bytes from the end of the file that are searched for an evaluation
_SEEN = 64  # bytes before the place that was read to: they tell if the file is still the same


def read_row(line: bytes) -> Row:
    """What a line of rounds.jsonl says, checked."""
    found = parse(line)
    time, batch, depth = as_number(found.get("time")), _counts(found, "batch"), _counts(found, "depth")
    if time is None or as_number(found.get("round")) is None or len(batch) != len(depth):
        raise CorruptRunError("it is not a round's")
    rejected, late = (found[key] if isinstance(found.get(key), dict) else {} for key in ("rejected", "late"))
    return {
        "round": as_count(found["round"]),
        "time": time,
        "deadline": as_number(found.get("deadline")),
        "length": as_number(found.get("length")),
        "accuracy": as_number(found.get("accuracy")),
        "train_loss": as_number(found.get("train_loss")),
        "contributors": _counts(found, "contributors"),
        "abandoned": found.get("abandoned") is True,
        "rejected": {as_text(reason): as_count(count) for reason, count in rejected.items()},
        "late": sum(as_count(count) for count in late.values()),
        "batch": batch,
        "depth": depth,
        "devices": _counts(found, "devices"),
        "nodes": as_texts(found.get("nodes")),
    }


def _counts(found: dict[str, Any], key: str) -> list[int]:
    value = found.get(key)
    return [as_count(v) for v in value] if isinstance(value, list) else []


def last_rows(path: Path) -> tuple[Row | None, float | None]:
    """The last complete row, and the last accuracy, from the end of the file; None where there is none."""
    size = _TAIL
    while True:
        with open_file(path) as file:
            length = file.seek(0, os.SEEK_END)
            start = max(0, length - size)
            file.seek(start)
            lines = file.read(length - start).split(b"\n")[:-1]
        if start > 0:
            lines = lines[1:]  # begins in the middle
        last = read_row(lines[-1]) if lines else None
        accuracy = None if last is None else last["accuracy"]
        for line in reversed(lines[:-1]):
            if accuracy is not None:
                break
            if b'"accuracy":null' not in line:
                accuracy = read_row(line)["accuracy"]
        if start == 0 or size >= _LONGEST_TAIL or accuracy is not None:
            return last, accuracy
        size *= 8


class Tail:
    """The rows of a run so far.

    Parameters
    ----------
    path : Path
        Its rounds.jsonl.

    Attributes
    ----------
    rows : list of Row
        All of them, without what there is per device.
    last : Row or None
        The last one, whole.
    edition : int
        Goes up when the file was begun again, and all rows with it.
    trouble : str or None
        Why nothing more can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.edition = 0
        self._begin()

    def _begin(self) -> None:
        self.rows: list[Row] = []
        self.last: Row | None = None
        self.trouble: str | None = None
        self._places: list[int] = []
        self._end, self._inode, self._seen = 0, None, b""  # type: int, int | None, bytes

    def read_on(self) -> None:
        """Take in the lines that are complete by now."""
        try:
            with open_file(self.path) as file:
                self._check_same(os.fstat(file.fileno()).st_ino, file)
                if self.trouble is not None:
                    return
                file.seek(self._end)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._add(line)
        except FileNotFoundError:
            if self.rows:
                self._restart()
        except OSError as trouble:
            self.trouble = f"{self.path.name} cannot be read ({trouble.strerror})"
        except CorruptRunError as trouble:
            self.trouble = f"{self.path.name}, line {len(self.rows) + 1}: {trouble}"

    def _check_same(self, inode: int, file: Any) -> None:  # noqa: ANN401 - IO[bytes]
        """Begin again if the file was replaced, or cut off and written on differently."""
        file.seek(max(0, self._end - len(self._seen)))
        if (self._inode is not None and inode != self._inode) or file.read(len(self._seen)) != self._seen:
            self._restart()
        self._inode = inode

    def _restart(self) -> None:
        self._begin()
        self.edition += 1

    def _add(self, line: bytes) -> None:
        row = read_row(line)
        self._places.append(self._end)
        self._end += len(line)
        self._seen = (self._seen + line)[-_SEEN:]
        self.rows.append({key: value for key, value in row.items() if key not in _PER_DEVICE})
        self.last = row

    def row(self, number: int) -> Row | None:
        """One round with all that there is per device; None if there is no such round."""
        for place, row in zip(reversed(self._places), reversed(self.rows), strict=True):
            if row["round"] == number:
                try:
                    with open_file(self.path) as file:
                        file.seek(place)
                        return read_row(file.readline())
                except (OSError, CorruptRunError):  # changed since it was read
                    return None
        return None
