"""Style of the figures, and helpers that several modules use."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from adelfl.array_types import Floats
from adelfl.atomic import replacing
from adelfl.errors import ConfigError

# Okabe and Ito's palette, which colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7f7f7f"
PURPLE, SKY, BROWN, BLACK = "#CC79A7", "#56B4E9", "#7a5c00", "#333333"
STRATEGY_COLOURS = {
    "adel": BLUE,
    "adel-paper": SKY,
    "salf": ORANGE,
    "salf[average_over=all]": BROWN,
    "drop": GREEN,
    "wait": RED,
    "heterofl": PURPLE,
    "oracle": GREY,
}
SERIES = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)

RC: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
}


@matplotlib.rc_context(RC)
def figure(width: float, height: float) -> Figure:
    """Return an empty figure that is independent of pyplot's global state."""
    return Figure(figsize=(width, height), layout="constrained")


def looks_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return colour and line style of each strategy: its own, or the first free ones in the order of the names.

    They do not depend on the order of the strategies, so that a strategy looks the same in every figure of a
    comparison. A repeated name gets another colour or line style.
    """
    palette = [(colour, line) for line in ("-", ":", "-.") for colour in (*SERIES, BROWN, BLACK)]
    known = [name for name in names if name in STRATEGY_COLOURS]
    own = {name: (STRATEGY_COLOURS[name], "--" if name == "oracle" else "-") for name in known}
    left = [look for look in palette if look not in own.values()]
    looks = {
        i: own.pop(names[i]) if names[i] in own else left.pop(0) if left else (GREY, ":")
        for i in sorted(range(len(names)), key=names.__getitem__)
    }
    return [looks[i] for i in range(len(names))]


def check_picture(path: Path) -> None:
    """Raise ConfigError if a figure cannot be saved under this name."""
    allowed = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lstrip(".").lower() not in allowed:
        raise ConfigError(f"{path}: the name of a figure must end in one of {', '.join(allowed)}")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            writable = not path.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise ConfigError(f"{path}: cannot be written; give a file name in a folder that exists and is writable")


def save(fig: Figure, path: Path, dpi: int = 150) -> None:
    """Save the figure atomically, in the format of the name's suffix."""
    check_picture(path)
    try:
        with replacing(path, shared=True) as temporary:
            fig.savefig(temporary, dpi=dpi, format=path.suffix.lstrip(".").lower())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def short(text: str, most: int = 32) -> str:
    """Return text for a figure: one line of at most ``most`` printable characters, without formulas."""
    line = "".join(c if c.isprintable() else " " for c in text).strip()
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    return line.replace("$", r"\$")


def mean_and_error(values: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard error over the first axis, ignoring NaN; NaN where there are too few values."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    mean = np.where(known, values, 0.0).sum(axis=0) / np.where(count > 0, count, np.nan)
    squares = np.where(known, values - mean, 0.0) ** 2
    return mean, np.sqrt(squares.sum(axis=0) / np.where(count > 1, count - 1.0, np.nan) / np.maximum(count, 1))
