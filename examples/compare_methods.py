"""Compare three ways to treat stragglers on embedded data, and draw accuracy against time.

python examples/compare_methods.py [FOLDER]
"""

import sys
from pathlib import Path

import adelfl as ad
from adelfl.report.comparison import Contender
from adelfl.report.style import save
from adelfl.report.time_series import draw_comparison
from adelfl.runner import start

METHODS, SEEDS = ("adel", "salf", "drop"), (0, 1)


def main(folder: Path) -> None:
    """Run every method on every seed; all of them see the same data, weights and luck."""
    contenders = []
    for method in METHODS:
        for seed in SEEDS:
            said = ad.load_run(None, [f"strategy.name={method}", f"training.seed={seed}", "training.rounds=60"])
            start(said, folder / f"{method}-seed{seed}")
        records = [ad.RunRecord.open(folder / f"{method}-seed{seed}") for seed in SEEDS]
        contenders.append(Contender(method, method, records))
        print(f"{method:5s} {contenders[-1].final.mean():.1%} final accuracy, {contenders[-1].depth:.0%} of the layers")
    save(draw_comparison(contenders, "Digits, 30 devices, little time"), folder / "accuracy.png")
    print(f"Picture: {folder / 'accuracy.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example"))
