"""Export of a run to rounds.csv in its folder."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from adelfl.atomic import write_output
from adelfl.records.reader import RunRecord

_SCALARS = ("time", "deadline", "accuracy", "loss", "train_loss")
_QUANTILES = {"min": 0.0, "median": 0.5, "max": 1.0}


def export_csv(folder: Path) -> Path:
    """Write a line per round of a run, finished or not, and return the file's path.

    ``depth`` is the mean share of layers that devices finished, and ``contributors/…`` the number of devices whose
    updates were merged into a layer. Batch sizes and depths per device have a minimum, median and maximum. Missing
    values stay empty.
    """
    record = RunRecord.open(folder)
    width = len(str(len(record.info.layers)))
    layers = [f"contributors/{i:0{width}d} {name}" for i, name in enumerate(record.info.layers, start=1)]
    spreads = [f"{name}/{word}" for name in ("batch_sizes", "depths") for word in _QUANTILES]
    text = io.StringIO(newline="")
    lines = csv.DictWriter(text, ["round", *_SCALARS, "depth", *spreads, *layers])
    lines.writeheader()
    for row in record.rounds:
        line = {name: float(value) for name in _SCALARS if (value := getattr(row, name)) is not None}
        if row.depth:
            line["depth"] = float(np.mean(row.depth)) / record.info.steps
        for name, values in (("batch_sizes", row.batch), ("depths", row.depth)):
            line |= {f"{name}/{word}": float(np.quantile(values, q)) for word, q in _QUANTILES.items() if values}
        line |= {name: float(count) for name, count in zip(layers, row.contributors, strict=False)}
        lines.writerow({"round": row.round, **line})
    path = record.folder / "rounds.csv"
    write_output(path, text.getvalue())
    return path
