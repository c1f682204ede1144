"""The built package works by itself: a wheel in an environment that has neither this repository nor the dev extra."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import adelfl

REPO = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
    assert adelfl.__version__ == PROJECT["version"] == citation["version"]


def test_the_changelog_has_a_section_for_this_version_with_known_headings():
    text = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[?{re.escape(adelfl.__version__)}\]? - \d{{4}}-\d\d-\d\d$", text, flags=re.M)
    known = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, flags=re.M)) <= known


def test_ci_runs_every_python_version_that_the_package_names():
    workflow = yaml.safe_load((REPO / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    tested = set(workflow["jobs"]["tests"]["strategy"]["matrix"]["python"])
    named = {version for line in PROJECT["classifiers"] if (version := line.rpartition(" :: ")[2]).startswith("3.")}
    assert tested == named


def run(*command, cwd):
    """Run a command without the variables that would make it import the code of this repository."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | {"COLUMNS": "100"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Both files that `make dist` writes."""
    if importlib.util.find_spec("build.env") is None:
        pytest.skip("the extra adelfl[dev] is not installed: no build")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, REPO, cwd=folder)
    return folder


@pytest.mark.slow
def test_the_source_distribution_has_what_its_tests_and_pages_need(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "Makefile", "constraints.txt", "docs/index.md", "tests/conftest.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "runs/", "site/"))]


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert all(name.startswith(("adelfl/", "adelfl-")) for name in archive.namelist())
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    programs = tmp_path / "env" / "bin"
    run(programs / "pip", "install", "--quiet", "-c", REPO / "constraints.txt", wheel, cwd=tmp_path)
    listed = run(programs / "pip", "list", "--format=json", cwd=tmp_path)
    installed = {row["name"].lower() for row in json.loads(listed)}
    assert not installed & {"pytest", "flwr", "mkdocs", "fastapi", "pandas"}
    assert not [name for name in installed if name.startswith("nvidia")]

    shown = run(programs / "python", "-c", "import adelfl; print(adelfl.__version__, adelfl.__file__)", cwd=tmp_path)
    version, file = shown.split()
    assert version == adelfl.__version__
    assert str(tmp_path) in file
    table = run(programs / "adelfl", "compare", "--seeds", 1, "--out", "runs", cwd=tmp_path)
    assert all(name in table for name in ("adel-paper", "salf", "drop", "wait", "oracle"))
    plan = json.loads(run(programs / "adelfl", "plan", REPO / "examples" / "phones.toml", "--json", cwd=tmp_path))
    assert sum(plan["deadlines"]) == pytest.approx(80.0)
