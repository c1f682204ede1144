"""SCAFFOLD: its steps against plain torch, its limits, and its neighbour FedAvg."""

import numpy as np
import pytest
import torch

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.runtime.controls import SERVER, Controls
from adelfl.simulation import engine, simulate
from support.plain_fl import plain_rounds
from support.small_worlds import experiment_of, furthest, run, setting_of, steps_of_run

FLEET = Fleet.of([10.0, 20.0, 14.0, 40.0, 25.0], 0.0)


def setting(**more):
    return setting_of(3, **{"fleet": FLEET, "local_iterations": 3, "rounds": 4, "budget": 1e6, "rate": 0.2} | more)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("cohort", [None, 3])
def test_scaffold_is_option_two_of_the_paper(engine, cohort):
    experiment = experiment_of("scaffold", setting=setting(cohort=cohort), engine=engine)
    found = run(experiment)
    c, own, eta, E, N = {}, {}, 0.2, 3, 5

    def of_round(row, devices, train):
        moves, updates = [], []
        for i, u in enumerate(devices):
            mine = own.get(u, {})
            y = train(i, lambda name, w, start: c.get(name, 0.0) - mine.get(name, 0.0))  # noqa: B023
            new = {name: mine.get(name, 0.0) - c.get(name, 0.0) - d / (E * eta) for name, d in y.items()}
            moves.append({name: new[name] - mine.get(name, 0.0) for name in new})
            updates.append(y)
            own[u] = new
        for name in updates[0]:
            c[name] = c.get(name, 0.0) + sum(m[name] for m in moves) / N
        return {name: sum(y[name] for y in updates) / len(updates) for name in updates[0]}

    assert furthest(plain_rounds(experiment, found.rows[1:], of_round), found.weights) < 2e-5


def test_the_first_round_has_no_control_variates_and_is_fedavg_and_later_ones_differ():
    for rounds, same in ((1, True), (2, False)):
        one, other = (run(experiment_of(name, setting=setting(rounds=rounds))) for name in ("wait", "scaffold"))
        assert (furthest(one.weights, other.weights) < 1e-6) == same


def test_control_variates_add_up_to_that_of_the_server_when_all_take_part():
    simulation = engine.Simulation(experiment_of("scaffold", setting=setting()))
    for step in steps_of_run(simulation, 1e6):
        step.computed = simulation.backend.prepare([step.merge])[0]()
    devices = dict(simulation.controls.variates)
    server = devices.pop(SERVER)
    assert len(devices) == 5
    for name, c in server.items():
        mean = torch.stack([own[name] for own in devices.values()]).mean(dim=0)
        assert torch.allclose(c, mean, atol=1e-5)


def test_control_variates_are_mean_gradients_after_one_step():
    controls = Controls()
    controls.move(3, {"w": np.array([-0.2, 0.4])}, {"w": 2}, 0.1, 0.5)
    controls.close()
    assert controls.variates[3]["w"] == pytest.approx([1.0, -2.0])  # −Δ/(k η)
    assert controls.variates[SERVER]["w"] == pytest.approx([0.5, -1.0])
    assert controls.correction(3)["w"] == pytest.approx([-0.5, 1.0])
    assert controls.correction(1)["w"] == pytest.approx([0.5, -1.0])
    controls.move(3, {"w": np.array([9.0, 9.0])}, {"w": 0}, 0.1, 0.5)  # a layer that was not reached
    assert controls.variates[3]["w"] == pytest.approx([1.0, -2.0])


def test_scaffold_needs_an_engine_that_keeps_devices_apart():
    assert simulate(experiment_of("scaffold", setting=setting(local_iterations=1))).engine == "stacked"
    with pytest.raises(ConfigError, match="does not support control variates"):
        simulate(experiment_of("scaffold", setting=setting(local_iterations=1), engine="fused"))
