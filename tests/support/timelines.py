"""Small runs whose timelines and weights are kept in tests/fixtures, to show that a redesign changes neither.

python -m support.timelines (from the folder tests) makes them anew; do so only where a change of runs is meant.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

from adelfl.config.build import build_experiment
from adelfl.config.run import load_run
from adelfl.records.reader import RunRecord
from adelfl.runner import parse_strategy
from adelfl.simulation.engine import simulate

FOLDER = Path(__file__).parents[1] / "fixtures"
COMMON = ("data.name=digits", "training.rounds=10", "training.evaluations=2", "model.hidden=[16,8]", "fleet.devices=12")
COMMON += ("server.step=sgd",)
STRATEGIES = ("wait", "drop", "salf", "salf[average_over=all]", "heterofl", "adel-paper", "adel", "oracle")
WORLDS = {
    "plain": ("training.depth=0.4",),
    "rough": (
        "training.depth=0.5",
        "training.cohort=8",
        "fleet.upload=0.05",
        "fleet.upload_sigma=0.5",
        "fleet.dropout=0.1",
        "fleet.churn=0.2",
        "fleet.drift=0.5",
        "data.partition=dirichlet",
        "data.alpha=0.3",
    ),
    "steps": ("training.depth=0.3", "training.local_iterations=3", "latency.law=gamma", "latency.spread=0.4"),
    "misjudged": ("training.depth=0.6", "fleet.misjudged=2", "latency.forward=0.5", "training.weight_decay=0.01"),
}
KEPT = ("round", "time", "deadline", "batch", "depth", "contributors", "devices", "train_loss", "accuracy")


def run_one(world: str, word: str) -> tuple[list[dict], dict[str, np.ndarray]]:
    """Return the rows and the final weights of a run."""
    name, options = parse_strategy(word)
    config = load_run(None, [*COMMON, *WORLDS[world]]).with_strategy(name, options, 7)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        simulate(build_experiment(config), record=place)
        record = RunRecord(place)
        rows = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
        return [{key: row[key] for key in KEPT if key in row} for row in rows], record.weights()


def main() -> None:
    """Make every fixture."""
    FOLDER.mkdir(exist_ok=True)
    for world in WORLDS:
        timelines, arrays = {}, {}
        for word in STRATEGIES:
            timelines[word], weights = run_one(world, word)
            arrays |= {f"{word}/{name}": value for name, value in weights.items()}
        (FOLDER / f"runs-{world}.json").write_text(json.dumps(timelines, separators=(",", ":")) + "\n")
        np.savez_compressed(FOLDER / f"runs-{world}.npz", **arrays)


if __name__ == "__main__":
    main()
