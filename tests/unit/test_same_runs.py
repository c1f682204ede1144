"""Runs are what they were before the redesign of the core: the same timeline to the digit, the same weights to 1e-5."""

import json

import numpy as np
import pytest

from support.timelines import FOLDER, STRATEGIES, WORLDS, run_one


@pytest.mark.parametrize("word", STRATEGIES)
@pytest.mark.parametrize("world", WORLDS)
def test_a_run_is_what_it_was(world, word):
    before = json.loads((FOLDER / f"runs-{world}.json").read_text())[word]
    with np.load(FOLDER / f"runs-{world}.npz") as kept:
        weights = {key.partition("/")[2]: kept[key] for key in kept.files if key.startswith(f"{word}/")}
    rows, now = run_one(world, word)
    assert len(rows) == len(before)
    # The last bits of exp and log depend on the processor, and so do the sums of gradients that adel plans with.
    tolerance = 1e-6 if word.startswith("adel") else 1e-12
    for row, old in zip(rows, before, strict=True):
        for key in ("round", "batch", "depth", "contributors", "devices"):
            assert row.get(key) == old.get(key), (key, old["round"])
        for key in ("time", "deadline"):
            assert (row.get(key) or 0.0) == pytest.approx(old.get(key) or 0.0, rel=tolerance)
    assert now.keys() == weights.keys()
    for name, value in now.items():
        assert np.abs(value - weights[name]).max() < 1e-5, name
