"""One look for every picture: colours that colour-blind readers tell apart, quiet axes, sizes fit for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from adelfl.errors import ConfigError

# Okabe and Ito's palette.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7f7f7f"
PURPLE, SKY, BROWN = "#CC79A7", "#56B4E9", "#7a5c00"
STRATEGY_COLOURS = {
    "adel": BLUE,
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


def save(fig: Figure, path: Path, dpi: int = 150) -> None:
    """Write the figure; the ending of the name tells the format."""
    allowed = sorted(fig.canvas.get_supported_filetypes())
    if path.suffix.lstrip(".").lower() not in allowed:
        raise ConfigError(f"{path}: a picture's name must end in one of {', '.join(allowed)}")
    try:
        fig.savefig(path, dpi=dpi)
    except OSError as trouble:
        raise ConfigError(f"{path}: cannot be written ({trouble.strerror})") from None
