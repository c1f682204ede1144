"""The house keeps its shape: light imports, one clock, no global randomness."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "adelfl"
FILES = sorted(SRC.rglob("*.py"))


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return {name.split(".")[0] for name in out.splitlines()[-1].split()}


def test_import_adelfl_loads_nothing_heavy():
    assert not loaded_after("import adelfl") & {"torch", "numpy", "scipy", "matplotlib", "pydantic", "rich", "typer"}


def test_planning_loads_neither_torch_nor_plots():
    statement = (
        "import adelfl as ad\nad.plan(ad.Problem(ad.Fleet.of(16.0, 0.1, 30), layers=3, rounds=5, budget=15.0)).outcome"
    )
    assert not loaded_after(statement) & {"torch", "matplotlib", "pydantic", "rich", "typer"}


def test_a_strategy_of_ours_is_found_without_reading_every_installed_package(monkeypatch):
    from adelfl import strategies

    def read(**_):
        raise AssertionError("entry points were read")

    monkeypatch.setattr(strategies, "entry_points", read)
    for name in strategies.BUILT_IN:
        assert strategies.find_strategy(name).name == name
        assert strategies.code_of(name) is None


def test_help_loads_neither_numpy_nor_scipy():
    statement = "import adelfl.cli"
    assert not loaded_after(statement) & {"torch", "numpy", "scipy", "matplotlib", "pydantic"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_only_the_clock_knows_the_time_and_nobody_draws_globally(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if path.name != "clock.py":
            assert "time" not in names
        assert "random" not in names
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "random":
            # fork_rng lends torch's generator to code that draws from it, and gives it back as it was.
            assert node.attr in ("Generator", "default_rng", "fork_rng"), f"{path.name}: random.{node.attr}"


def test_every_public_name_exists_and_is_listed():
    import adelfl

    assert set(dir(adelfl)) == set(adelfl.__all__)
    for name in adelfl.__all__:
        assert getattr(adelfl, name) is not None
