"""Send a record to a target: all of it at once, or round by round while the run goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Self

from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.export.entry import Log, Source
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row

Open = Callable[[Source], Log]

_KINDS = {"tensorboard": "TensorBoardLog", "mlflow": "MlflowLog", "csv": "CsvLog"}


def find_target(target: str) -> Open:
    """What opens a log of this kind.

    Raises
    ------
    MissingExtraError
        If its package is not installed.
    """
    if target not in _KINDS:
        raise ConfigError(f"{target!r} is no target of an export; allowed are {', '.join(_KINDS)}")
    try:
        found: Open = getattr(import_module(f"adelfl.export.{target}"), _KINDS[target])
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != target:
            raise
        raise MissingExtraError(target, target) from None
    return found


def export_run(folder: Path, target: str) -> str:
    """Export a record that exists; says where to."""
    record = RunRecord.open(folder)
    rows, source, opens = record.rounds, Source.of(record), find_target(target)
    log = None
    try:
        log = opens(source)
        for row in rows:
            log.add(source.entry(row))
        return log.close(record.result)
    except Exception as trouble:
        if log is not None:
            with suppress(Exception):  # the first error is the one to be told
                log.discard()
        raise AdelError(f"{folder}: cannot be exported to {target} ({_said(trouble)})") from trouble


def _said(trouble: Exception) -> str:
    first = next(iter(str(trouble).splitlines()), "")
    return f"{type(trouble).__name__}: {first}" if first else type(trouble).__name__


class Logs:
    """Sends rounds as they come. A log that breaks is left out from then on, with one warning: the run goes on.

    Parameters
    ----------
    targets : sequence of str
        Names; what is not installed is said at once.
    folder : Path
        Of the run; it may not be there before the first round.
    warn : callable
        Called with a sentence.
    """

    def __init__(self, targets: Sequence[str], folder: Path, warn: Callable[[str], None]) -> None:
        self._wanted = {target: find_target(target) for target in targets}
        self._logs: dict[str, tuple[Source, Log]] = {}
        self._folder, self._warn = folder, warn

    def row(self, row: Row) -> None:
        """Take a row of the record."""
        wanted, self._wanted = self._wanted, {}
        for target, opens in wanted.items():
            with self._careful(target):
                source = Source.of(RunRecord.open(self._folder), live=True)
                self._logs[target] = source, opens(source)
        for target, (source, log) in list(self._logs.items()):
            with self._careful(target):
                log.add(source.entry(row))

    @contextmanager
    def _careful(self, target: str) -> Iterator[None]:
        try:
            yield
        except Exception as trouble:
            self._logs.pop(target, None)
            self._warn(
                f"{target} failed and is left out ({_said(trouble)}); "
                f"the record is complete, and adelfl export {self._folder} --to {target} sends it again"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *trouble: object) -> None:
        for target, (_, log) in list(self._logs.items()):
            with self._careful(target):
                log.close(RunRecord(self._folder).result)
