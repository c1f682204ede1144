"""The clairvoyant knows every layer time of a round beforehand, and gives each device the batch that just fits."""

import numpy as np

from adelfl.fleet import Fleet
from adelfl.simulation.draws import draw_work, fitted
from adelfl.simulation.world import World
from adelfl.strategies.actions import Tasks
from support.small_worlds import experiment_of, run

L = 3


def test_the_batch_fits_and_one_more_sample_would_not():
    fleet = Fleet.of(np.linspace(20.0, 90.0, 8), np.linspace(0.0, 0.4, 8), overhead=2.0)
    world = World(fleet, 3, 10.0, clairvoyant=True)
    for number in range(20):
        wanted = Tasks(np.arange(8), np.full(8, 10_000), 1, 0.1, 1.5)
        tasks = fitted(world, wanted, number, 0.0, L)
        more = Tasks(tasks.devices, tasks.batch + 1, 1, 0.1, 1.5)
        z, beyond = (draw_work(world, t, number, 0.0, L).z for t in (tasks, more))
        whole = tasks.batch > 1
        assert np.all(z[whole] == L)
        assert np.all(beyond[whole] < L)
    assert tasks.batch.max() > 1


def test_no_batch_exceeds_what_was_asked():
    world = World(Fleet.of([1e6, 1e6]), 0, 10.0, clairvoyant=True)
    tasks = fitted(world, Tasks(np.arange(2), np.array([7, 0]), 1, 0.1, 1.0), 0, 0.0, L)
    assert tasks.batch.tolist() == [7, 0]


def test_it_ends_above_salf_where_time_is_short():
    found = {name: run(experiment_of(name, depth=0.3)).result.final_accuracy for name in ("salf", "clairvoyant")}
    assert found["clairvoyant"] > found["salf"]
