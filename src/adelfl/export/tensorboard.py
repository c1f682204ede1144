"""Export to TensorBoard event files in the run's folder.

The step of an event is the round, and its wall time is the run's start plus its virtual time: TensorBoard's horizontal
axis "Relative" shows virtual time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from adelfl.export.logs import Entry, ExportedRun
from adelfl.records.schema import RunResult

_FLUSH_SECONDS = 5
_BINS = 30


class TensorBoardLog:
    """Writes scalars and histograms; event files of an earlier export of the run are replaced."""

    def __init__(self, run: ExportedRun) -> None:
        self._folder = run.folder / "tensorboard"
        # The events of a finished run are written to a temporary folder first.
        self._written = self._folder if run.live else run.folder / ".tensorboard.tmp"
        if run.live:
            self._remove(self._old())
        else:
            shutil.rmtree(self._written, ignore_errors=True)
        self._started = run.started
        self._writer = EventFileWriter(str(self._written), flush_secs=_FLUSH_SECONDS)

    def _old(self) -> list[Path]:
        return list(self._folder.glob("events.out.tfevents.*"))

    def _remove(self, files: list[Path]) -> None:
        for file in files:
            file.unlink()

    def add(self, entry: Entry) -> None:
        """Write one event with all values of a round."""
        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in entry.scalars.items()]
        values += [Summary.Value(tag=tag, histo=_histogram(numbers)) for tag, numbers in entry.spreads.items()]
        wall_time = self._started + entry.time
        self._writer.add_event(Event(wall_time=wall_time, step=entry.round, summary=Summary(value=values)))

    def close(self, result: RunResult | None) -> str:
        """Flush the events, and replace an earlier export."""
        self._writer.close()
        if self._written != self._folder:
            new = {file.name for file in self._written.glob("*")}
            old = [file for file in self._old() if file.name not in new]
            self._folder.mkdir(exist_ok=True)
            for name in new:
                os.replace(self._written / name, self._folder / name)
            self._remove(old)
            shutil.rmtree(self._written, ignore_errors=True)
        return str(self._folder)

    def discard(self) -> None:
        """Remove the events of an incomplete export."""
        with suppress(Exception):  # its thread may have failed
            self._writer.close()
        if self._written != self._folder:
            shutil.rmtree(self._written, ignore_errors=True)


def _histogram(numbers: Sequence[float]) -> HistogramProto:
    values = np.asarray(numbers, dtype=np.float64)
    counts, edges = np.histogram(values, bins=_BINS)
    return HistogramProto(
        min=values.min(),
        max=values.max(),
        num=values.size,
        sum=values.sum(),
        sum_squares=(values**2).sum(),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )
