"""One look for every picture: colours that colour-blind readers tell apart, quiet axes, sizes fit for a paper."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from adelfl.atomic import replacing
from adelfl.errors import ConfigError

# Okabe and Ito's palette.
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


def figure(width: float, height: float) -> Figure:
    """Make an empty figure that no window system and no global state knows of."""
    with matplotlib.rc_context(RC):
        return Figure(figsize=(width, height), layout="constrained")


def panels(count: int, height: float, *, sharey: bool = False) -> tuple[Figure, list[Axes], int]:
    """Make a figure ten inches wide with so many axes, each ``height`` inches high; the axes, and how many in a row."""
    columns = 2 if count == 4 else min(3, count)
    rows = -(-count // columns)
    fig = figure(10.0, 0.5 + height * rows)
    with matplotlib.rc_context(RC):
        axes = fig.subplots(rows, columns, squeeze=False, sharey=sharey).ravel().tolist()
    for ax in axes[count:]:
        ax.set_axis_off()
    return fig, axes[:count], columns


def looks_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Colour and line style for strategies that are drawn together: their own, or the first that nobody has.

    Parameters
    ----------
    names : sequence of str
        A name may be there twice; the second is then drawn otherwise.
    """
    palette = [(colour, line) for line in ("-", ":", "-.") for colour in (*SERIES, BROWN, BLACK)]
    own = {
        name: (STRATEGY_COLOURS[name], "--" if name == "oracle" else "-") for name in names if name in STRATEGY_COLOURS
    }
    left = [look for look in palette if look not in own.values()]
    return [own.pop(name) if name in own else left.pop(0) if left else (GREY, ":") for name in names]


def check_picture(path: Path) -> None:
    """Raise ConfigError if no picture can be written there: better before the work than after it."""
    allowed = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lstrip(".").lower() not in allowed:
        raise ConfigError(f"{path}: a picture's name must end in one of {', '.join(allowed)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: cannot be written (there is no folder {path.parent})")
    if path.is_dir():
        raise ConfigError(f"{path}: cannot be written (it is a folder)")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as trouble:
        raise ConfigError(f"{path}: cannot be written ({trouble.strerror})") from None


def save(fig: Figure, path: Path, dpi: int = 150) -> None:
    """Write the figure, whole or not at all; the ending of the name tells the format."""
    check_picture(path)
    try:
        with replacing(path, shared=True) as temporary:
            fig.savefig(temporary, dpi=dpi, format=path.suffix.lstrip(".").lower())
    except OSError as trouble:
        raise ConfigError(f"{path}: cannot be written ({trouble.strerror or trouble})") from None
