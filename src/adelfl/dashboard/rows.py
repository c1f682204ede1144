"""The rows of a run, read as its file grows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

from adelfl.dashboard.files import CorruptRunError, finite, open_file, parse, short
from adelfl.records.schema import Row

_TAIL, _LONGEST_TAIL = 1 << 14, 1 << 23  # bytes from the end of the file that are searched for an evaluation
_COMPARED = 64  # bytes before the end of what was read: they show whether the file is still the same


def read_row(line: bytes) -> Row:
    """Parse and check a line of rounds.jsonl."""
    row = parse(line, Row.from_json)
    if finite(row.time) is None:
        raise CorruptRunError("its time is not finite")
    return row


def summary(row: Row) -> dict[str, Any]:
    """Return a row for the browser, without the values per device."""
    return {
        "round": row.round,
        "time": row.time,
        "deadline": finite(row.deadline),
        "length": finite(row.length),
        "accuracy": finite(row.accuracy),
        "train_loss": finite(row.train_loss),
        "contributors": row.contributors,
        "abandoned": row.abandoned,
        "rejected": {short(reason): count for reason, count in row.rejected.items()},
        "late": sum(row.late.values()),
    }


def details(row: Row) -> dict[str, Any]:
    """Return a row for the browser, with the values per device."""
    nodes = [short(node) for node in row.nodes or ()]
    return summary(row) | {"batch": row.batch, "depth": row.depth, "devices": row.devices or (), "nodes": nodes}


def last_rows(path: Path) -> tuple[Row | None, float | None]:
    """Return the last complete row and the last accuracy, read from the end of the file."""
    size = _TAIL
    while True:
        with open_file(path) as file:
            length = file.seek(0, os.SEEK_END)
            start = max(0, length - size)
            file.seek(start)
            lines = file.read(length - start).split(b"\n")[:-1]
        if start > 0:
            lines = lines[1:]  # incomplete
        last = read_row(lines[-1]) if lines else None
        accuracy = None if last is None else finite(last.accuracy)
        for line in reversed(lines[:-1]):
            if accuracy is not None:
                break
            if b'"accuracy":null' not in line:
                accuracy = finite(read_row(line).accuracy)
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
    rows : list of dict
        A summary of each row.
    edition : int
        Increases when the file was replaced, and all rows with it.
    error : str or None
        Why no further rows can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.edition = 0
        self._begin()

    def _begin(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._last: Row | None = None
        self.error: str | None = None
        self._offsets: list[int] = []
        self._end, self._inode, self._compared = 0, None, b""  # type: int, int | None, bytes

    def read_on(self) -> None:
        """Read the lines that have been completed since the last call."""
        try:
            with open_file(self.path) as file:
                self._check_same(os.fstat(file.fileno()).st_ino, file)
                if self.error is not None:
                    return
                file.seek(self._end)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._add(line)
        except FileNotFoundError:
            if self.rows:
                self._restart()
        except OSError as error:
            self.error = f"{self.path.name} cannot be read ({error.strerror})"
        except CorruptRunError as error:
            self.error = f"{self.path.name}, line {len(self.rows) + 1}: {error}"

    def _check_same(self, inode: int, file: IO[bytes]) -> None:
        """Begin again if the file was replaced, or truncated and continued differently."""
        file.seek(max(0, self._end - len(self._compared)))
        if (self._inode is not None and inode != self._inode) or file.read(len(self._compared)) != self._compared:
            self._restart()
        self._inode = inode

    def _restart(self) -> None:
        self._begin()
        self.edition += 1

    def _add(self, line: bytes) -> None:
        row = read_row(line)
        self._offsets.append(self._end)
        self._end += len(line)
        self._compared = (self._compared + line)[-_COMPARED:]
        self.rows.append(summary(row))
        self._last = row

    @property
    def last(self) -> dict[str, Any] | None:
        """Details of the last row."""
        return None if self._last is None else details(self._last)

    def row(self, number: int) -> dict[str, Any] | None:
        """Return the details of one round; None if there is no such round."""
        for offset, row in zip(reversed(self._offsets), reversed(self.rows), strict=True):
            if row["round"] == number:
                try:
                    with open_file(self.path) as file:
                        file.seek(offset)
                        return details(read_row(file.readline()))
                except (OSError, CorruptRunError):  # changed since it was read
                    return None
        return None
