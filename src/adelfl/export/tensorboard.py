"""Export to TensorBoard event files in the run's folder.

The step of an event is the round, and its wall time is the run's start plus its virtual time: TensorBoard's horizontal
axis "Relative" shows virtual time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import closing

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from adelfl.export.runs import ExportedRun

_BINS = 30


def write(run: ExportedRun) -> str:
    """Write scalars and histograms to a temporary folder, then replace the event files of an earlier export."""
    folder, temporary = run.folder / "tensorboard", run.folder / ".tensorboard.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with closing(EventFileWriter(str(temporary))) as writer:
            for entry in run.entries():
                values = [Summary.Value(tag=tag, simple_value=number) for tag, number in entry.scalars.items()]
                values += [Summary.Value(tag=tag, histo=_histogram(numbers)) for tag, numbers in entry.spreads.items()]
                wall_time = run.started + entry.scalars["time"]
                writer.add_event(Event(wall_time=wall_time, step=entry.round, summary=Summary(value=values)))
        new = [file.name for file in temporary.glob("*")]
        old = [file for file in folder.glob("events.out.tfevents.*") if file.name not in new]
        folder.mkdir(exist_ok=True)
        for name in new:
            os.replace(temporary / name, folder / name)
        for file in old:
            file.unlink()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return str(folder)


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
