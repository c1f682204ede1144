"""Every method of the literature in a small run: engines agree, and server steps and codecs combine with it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from adelfl.fleet import Fleet
from adelfl.runtime.server_step import ServerStep
from adelfl.simulation import simulate
from support.small_worlds import SMALL, experiment_of, furthest, run, sets, setting_of, typed

METHODS = (
    *("fedasync", "fedbuff", "fedcompass", "timelyfl", "anytime", "fedprox", "fednova"),
    *("over-selection", "fedcs", "oort", "scaffold"),
)
TEN = Fleet.of([10.0 + 3 * u for u in range(10)], 0.01)


def small(method, engine="auto", *, steps=2, budget=6.0):
    cohort = 4 if method in ("over-selection", "oort") else None
    setting = setting_of(3, fleet=TEN, local_iterations=steps, rounds=6, budget=budget, cohort=cohort)
    return experiment_of(method, setting=setting, options={"buffer": 3} if method == "fedbuff" else {}, engine=engine)


@pytest.mark.parametrize("method", METHODS)
def test_engines_agree(method):
    budget = 12.0 if method == "scaffold" else 6.0  # it waits for the slowest
    loop, stacked = (run(small(method, engine, budget=budget)) for engine in ("loop", "stacked"))
    assert len(loop.rows) > 3
    assert [row.depth for row in loop.rows] == [row.depth for row in stacked.rows]
    assert furthest(loop.weights, stacked.weights) < 1e-5


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("fedcompass", "timelyfl", "scaffold")])
def test_the_fused_engine_agrees_where_devices_take_one_step(method):
    loop, fused = (run(small(method, engine, steps=1, budget=3.0)) for engine in ("loop", "auto"))
    assert len(loop.rows) > 3
    assert furthest(loop.weights, fused.weights) < 1e-5


@pytest.mark.parametrize("step", ["momentum", "adam", "yogi", "adagrad", "average"])
@pytest.mark.parametrize("method", METHODS)
def test_any_server_step_combines_with_any_method(method, step):
    plain, stepped = (run(replace(small(method), server_step=ServerStep(name))) for name in ("sgd", step))
    assert [row.time for row in plain.rows] == [row.time for row in stepped.rows] or method == "oort"
    assert all(np.isfinite(w).all() for w in stepped.weights.values())
    # In so few rounds, the weights still move in one direction, and no average is better.
    assert furthest(plain.weights, stepped.weights) > 0 or step == "average"


@pytest.mark.parametrize("method", METHODS)
def test_codecs_combine_with_any_method(method):
    assert simulate(replace(small(method), codec="top-k[share=0.1]")).engine == "loop"


def test_comparisons_know_them_and_the_server_step_is_one_key(tmp_path):
    words = ",".join(METHODS)
    more = sets((*SMALL, "training.depth=0.95", "training.cohort=4", "server.step=momentum"))
    done = typed("compare", "--strategies", words, "--seeds=1", "--json", "--out", tmp_path / "c", *more)
    assert done.code == 0, done.err
    assert list(json.loads(done.out)) == list(METHODS)
