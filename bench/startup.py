"""Compare the duration of ``adelfl --help`` with that of its indispensable imports.

    python bench/startup.py

The two commands run in turns. Goal: at most twice the duration of ``import scipy.special, typer``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from adelfl.clock import monotonic

COMMANDS = {
    "adelfl --help": [sys.executable, "-m", "adelfl", "--help"],
    "import scipy.special, typer": [sys.executable, "-c", "import scipy.special, typer"],
}


def main() -> int:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(9):
        for name, command in COMMANDS.items():
            start = monotonic()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append(monotonic() - start)
    ours, theirs = (statistics.median(t) for t in times.values())
    for name, seconds in times.items():
        print(f"{name:30}{statistics.median(seconds) * 1e3:8.0f} ms")
    print(f"ratio {ours / theirs:.2f} (goal: at most 2)")
    return 0 if ours <= 2 * theirs else 1


if __name__ == "__main__":
    sys.exit(main())
