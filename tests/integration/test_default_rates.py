"""With the default rate, width and number of rounds, the oracle trains every built-in model on every data set."""

import os
from pathlib import Path

import pytest

from adelfl.config.build import build_experiment
from adelfl.config.defaults import RATES
from adelfl.config.run import load_run
from adelfl.process import settle
from adelfl.simulation import simulate

FOLDER = Path(os.environ.get("ADELFL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
PAIRS = [(data, model) for data, rates in RATES.items() for model in rates]
AT_LEAST = {"digits": 0.4, "mnist": 0.3, "cifar10": 0.2}  # two to four times chance


@pytest.mark.slow
@pytest.mark.parametrize(("data", "model"), PAIRS)
def test_the_oracle_trains_with_the_defaults(data, model):
    """Ten devices instead of thirty: a third of the time."""
    changes = (
        f"data.name={data}",
        "data.validation=0.1",
        "data.test_samples=1000",
        f"model.name={model}",
        "fleet.devices=10",
        "training.evaluations=1",
        "strategy.name=oracle",
    )
    if data != "digits" and not (FOLDER / data).is_dir():
        pytest.skip(f"{FOLDER / data} is absent; name the folder of parquet files in ADELFL_DATA")
    settle(1)
    experiment = build_experiment(
        load_run(None, [*changes, *([f"data.data_dir={FOLDER}"] if data != "digits" else [])])
    )
    assert simulate(experiment).final_accuracy > AT_LEAST[data]
