"""The simulator's local work on Flower's simulation engine: the same model as on one machine."""

from __future__ import annotations

import numpy as np
import pytest

from adelfl.config.run import load_run
from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.runner import start

CHANGES = ["fleet.devices=300", "training.rounds=3", "training.evaluations=3"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_300_virtual_clients_give_the_simulators_model(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    weights = []
    for engine in ("flower", "loop", "fused"):
        result = start(load_run(None, [*CHANGES, f"engine.name={engine}"]), tmp_path / engine)
        assert result.engine == engine
        weights.append(RunRecord.open(tmp_path / engine).weights())
    for other in weights[1:]:
        for name, value in weights[0].items():
            assert np.allclose(value, other[name], rtol=0, atol=1e-6), name


def test_heterofl_is_refused_before_anything_starts(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match="HeteroFL's submodels"):
        start(load_run(None, ["engine.name=flower", "strategy.name=heterofl"]), tmp_path / "run")
