"""Export to rounds.csv in the run's folder: a line per round, values per device as minimum, median and maximum."""

from __future__ import annotations

import csv
import io

from adelfl.atomic import write_output
from adelfl.export.runs import QUANTILES, SCALARS, ExportedRun


def write(run: ExportedRun) -> str:
    """Write a line per round; missing values stay empty."""
    spreads = [f"{name}/{word}" for name in ("batch_sizes", "depths") for word in QUANTILES]
    text = io.StringIO(newline="")
    lines = csv.DictWriter(text, ["round", *SCALARS, *spreads, *run.layers])
    lines.writeheader()
    for entry in run.entries():
        lines.writerow({"round": entry.round, **entry.numbers})
    path = run.folder / "rounds.csv"
    write_output(path, text.getvalue())
    return str(path)
