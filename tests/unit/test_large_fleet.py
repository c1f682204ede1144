"""Asynchronous training on large fleets: what an update costs does not depend on how many devices there are."""

import sys
import tracemalloc
from itertools import islice

import numpy as np
import pytest
import torch

from adelfl.data import Dataset, Partition
from adelfl.fleet import Fleet
from adelfl.learning_rate import ConstantRate
from adelfl.planner import Problem
from adelfl.runtime.loop import Loop
from adelfl.simulation import Experiment, engine
from adelfl.strategies.fedbuff import FedBuff
from adelfl.training.layers import find_layers
from adelfl.training.models import build_model

UNDER_WAY, BUFFER, MERGES = 50, 5, 20


def cost_of_merges(devices):
    """Calls of functions and peak of new memory in some merges of FedBuff, after as many that fill all caches."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((1000, 16), dtype=np.float32), rng.integers(0, 10, 1000)
    model = build_model("mlp", input_shape=(16,), classes=10, seed=0)
    layers = find_layers(model, torch.from_numpy(x[:2]))
    problem = Problem(
        Fleet.of(16.0, 0.0, devices), len(layers), 100, 1e4, ConstantRate(0.05), batch=4, cohort=UNDER_WAY
    )
    partition = Partition(np.arange(devices) % 1000, np.arange(devices + 1), 1000)
    experiment = Experiment(
        Dataset.from_arrays(x, y, x[:64], y[:64]), partition, model, layers, FedBuff(problem, buffer=BUFFER), seed=0
    )
    run = engine.Simulation(experiment)
    steps = Loop(run.strategy, run.backend, problem.budget).steps()
    calls, chosen = 0, set()

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    def merge():
        for step in islice(steps, MERGES):
            run.backend.prepare([step.merge])[0]()
            chosen.update(int(a.tasks.devices[0]) for a in step.merge.arrivals)

    merge()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    merge()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    sys.setprofile(count)
    try:
        merge()
    finally:
        sys.setprofile(None)
    return calls, peak, chosen


def test_time_and_memory_of_an_update_do_not_grow_with_the_fleet():
    calls, peak, _ = cost_of_merges(1_000)
    many_calls, many_peak, chosen = cost_of_merges(100_000)
    assert max(chosen) > 50_000
    assert many_calls == pytest.approx(calls, rel=0.01)
    # One number for each device would take 800,000 bytes.
    assert many_peak - peak < 100_000
