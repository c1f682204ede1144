"""Draw docs/img/benchmarks.png from the tables in docs/benchmarks.md: CPU time of a round relative to adelfl's.

python docs/draw_benchmarks.py
"""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

from adelfl.report.style import save

DOCS = Path(__file__).parent
PANELS = {
    "### MLP, default settings": "MLP, 30 devices",
    "### 300 devices": "MLP, 300 devices",
    "The convolutions make the difference": "CNN, 30 devices",
    "### VGG11": "VGG11, 30 devices",
}
OURS, OTHERS = "#0072b2", "#b0b0b0"


def ratios(text: str, heading: str) -> dict[str, float]:
    """Return the CPU time of each program relative to adelfl's, from the first table after a heading."""
    table = re.search(r"(?:^\|.*\n)+", text[text.index(heading) :], flags=re.M)
    assert table is not None
    head, _, *rows = ([cell.strip(" *") for cell in line.split("|")[1:-1]] for line in table[0].splitlines())
    column = next(i for i, name in enumerate(head) if name.startswith("adelfl is faster by"))
    return {re.sub(r" \(.*| [\d.]+\b", "", row[0].replace("*", "")): float(row[column] or 1) for row in rows}


def main() -> None:
    """Draw one panel per workload."""
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    figure = Figure(figsize=(9.5, 5.6), layout="constrained")
    for ax, (heading, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        programs = sorted(ratios(text, heading).items(), key=lambda item: item[1], reverse=True)
        names, values = zip(*programs, strict=True)
        colours = [OURS if name.startswith("adelfl") else OTHERS for name in names]
        bars = ax.barh(range(len(names)), values, color=colours, height=0.7)
        ax.bar_label(bars, [f"{value:g}" for value in values], padding=3, fontsize=8)
        ax.set_yticks(range(len(names)), names, fontsize=8)
        ax.set_xscale("log")
        ax.set_xlim(0.5, max(values) * 2.2)
        ax.set_xticks([])
        ax.minorticks_off()
        ax.set_title(title, fontsize=10, loc="left")
        ax.spines[["top", "right", "bottom"]].set_visible(False)
    figure.supxlabel(
        "CPU time of a round relative to adelfl (log scale): median of the ratios within turns", fontsize=9
    )
    save(figure, DOCS / "img" / "benchmarks.png")


if __name__ == "__main__":
    main()
