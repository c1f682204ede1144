"""Code, commands and links in the documents work as shown."""

import importlib.util
import inspect
import json
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import typer

from adelfl import InverseDecay
from adelfl.cli import app
from adelfl.config.run import RunFile, load_run
from adelfl.export import export_csv
from adelfl.planner import Constants
from adelfl.runner import start
from adelfl.strategies import BUILT_IN, find_strategy
from support.small_worlds import sets, typed

REPO = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"]
PAGES += sorted(path.relative_to(REPO).as_posix() for path in (REPO / "docs").rglob("*.md"))
SCRIPTS = [
    "compare_methods",
    "my_model_and_data",
    "own_partition",
    "natural_users",
    "traced_phones",
    "my_latency",
    "sign_codec",
    "clipped_step",
]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (REPO / name).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Return a folder with the examples and two exported runs of a comparison, as a reader has it."""
    folder = tmp_path_factory.mktemp("workplace")
    (folder / "examples").symlink_to(REPO / "examples")
    for name in ("adel", "salf"):
        start(
            load_run(None, ["training.rounds=3", f"strategy.name={name}"]), folder / "runs" / "demo" / f"{name}-seed0"
        )
        export_csv(folder / "runs" / "demo" / f"{name}-seed0")
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_the_code_of_every_page_runs_from_top_to_bottom(page, workplace, monkeypatch):
    if "flwr" in "".join(blocks(page, "python")):
        pytest.importorskip("flwr", reason="the extra adelfl[flower] is not installed")
    monkeypatch.chdir(workplace)
    names = {"__name__": "page"}
    for code in blocks(page, "python"):
        exec(compile(code, page, "exec"), names)


def test_models_and_data_are_found_by_import_path_as_shown(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    (code,) = [code for code in blocks("docs/howto/model-and-data.md", "python") if "def make_data" in code]
    exec(compile(code, "page", "exec"), {})
    (shown,) = [words for words in commands("docs/howto/model-and-data.md") if "data.factory=mine:make_data" in words]
    changes = [word for word in shown if word.startswith(("data.", "model."))]
    result = start(load_run(None, [*changes, "training.rounds=3"]), workplace / "runs" / "mine")
    assert result.rounds == 3


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_examples_run(name, tmp_path, monkeypatch, capsys):
    """Run a script in this process, since a new one would load torch again."""
    script = REPO / "examples" / f"{name}.py"
    words = [str(tmp_path / "out")] if name == "compare_methods" else []
    monkeypatch.chdir(REPO)
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    runpy.run_path(str(script), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 2
    if words:
        assert (tmp_path / "out" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_an_example_runs_in_a_process_of_its_own():
    command = [sys.executable, "-W", "error", REPO / "examples" / "plan_a_fleet.py"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2


def test_the_notebook_runs_from_top_to_bottom_and_is_small(tmp_path, monkeypatch, capsys):
    file = REPO / "examples" / "tour.ipynb"
    assert file.stat().st_size < 300_000
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = {"__name__": "__main__"}
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(line for line in cell["source"] if not line.startswith("%"))  # without magic commands
            exec(compile(code, file.name, "exec"), names)
    accuracy = {
        words[0]: float(words[1].rstrip("%"))
        for words in map(str.split, capsys.readouterr().out.splitlines())
        if words[0] in ("adel", "salf", "drop", "fitted-batch")
    }
    assert accuracy["adel"] > accuracy["salf"] > accuracy["drop"]
    assert accuracy["fitted-batch"] > 50


def test_every_example_is_listed():
    listed = (REPO / "examples" / "README.md").read_text(encoding="utf-8")
    for path in (REPO / "examples").iterdir():
        if path.name not in ("README.md", "__pycache__"):
            assert f"({path.name})" in listed, path.name


def commands(page: str) -> list[list[str]]:
    """Return the commands of a page's shell blocks, as words, without variables before them."""
    listed = []
    for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        for part in re.split(r";\s+", re.sub(r"(^|\s)#.*", "", line)):
            words = shlex.split(part)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words:
                listed.append(words)
    return listed


def options_in(words: list[str]) -> list[str]:
    """Return the options among the words of a command; a synopsis has them in brackets."""
    return [match[1] for word in words if (match := re.match(r"\[?(--?[a-z][a-z-]*)", word))]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")])
def test_shell_blocks_name_commands_and_options_that_exist(page):
    ours = typer.main.get_command(app).commands
    targets = re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    extras = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for words in commands(page):
        program, *rest = words
        if program == "adelfl":
            assert rest[0] in ours, words
            known = {o for p in ours[rest[0]].params for o in [*p.opts, *p.secondary_opts]} | {"--help"}
            assert set(options_in(rest)) <= known, words
            load_run(None, [value for flag, value in pairwise(rest) if flag == "--set"])
        elif program == "make":
            assert rest[0] in targets, words
        elif program == "cd":
            assert (REPO / rest[0]).is_dir(), words
        elif program == "python":
            assert (REPO / rest[0]).is_file(), words
        elif program == "pytest":
            assert all((REPO / word).exists() for word in rest if word.endswith(".py")), words
        elif program == "pip":
            assert set(",".join(re.findall(r"\[([\w,]+)\]", " ".join(rest))).split(",")) - {""} <= set(extras), words
        elif program in ("flwr", "flower-superlink", "flower-supernode"):
            assert set(options_in(rest)) <= options_of_flower(), words
        else:
            assert program in ("openssl", "ssh", "ssh-keygen", "echo"), words


@cache
def options_of_flower() -> set[str]:
    """Return all options that Flower's sources name; running its programs takes seconds each."""
    if (spec := importlib.util.find_spec("flwr")) is None:
        pytest.skip("the extra adelfl[flower] is not installed")
    package = Path(spec.submodule_search_locations[0])
    sources = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    return set(re.findall(r'"(--[a-z-]+)"', sources))


def test_the_readme_goes_from_a_fleet_to_a_plan(capsys):
    (code,) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line]) <= 10
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "Deadlines rise from" in printed
    assert len(printed.splitlines()) == 3


def test_a_plan_is_swept_as_shown(capsys):
    (code,) = blocks("docs/planner.md", "python")
    exec(compile(code, "docs/planner.md", "exec"), {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["50", "75", "120", "300"]
    assert [row[-1] for row in rows] == ["None"] * 4


def test_the_sweeps_in_the_docs_can_be_typed(tmp_path, monkeypatch):
    commands = next(b for b in blocks("docs/planner.md", "sh") if "--sweep" in b)
    monkeypatch.chdir(tmp_path)
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        assert words.pop(0) == "adelfl"
        answer = typed(*(REPO / word if word.endswith(".toml") else word for word in words))
        assert answer.code == 0, answer.err
    assert (tmp_path / "sweep.png").exists()


def test_a_record_is_read_and_drawn_as_shown(tmp_path, monkeypatch):
    code, table = blocks("docs/howto/report.md", "python")
    monkeypatch.chdir(tmp_path)
    short = sets(["training.rounds=6", "training.depth=0.5", "fleet.devices=5"])
    assert typed("compare", "--strategies", "salf,drop", "--seeds", 1, "--out", "runs/demo", *short).code == 0
    names: dict[str, object] = {}
    exec(compile(code, "docs/howto/report.md", "exec"), names)
    assert list(names["rounds"].index) == list(range(7))
    assert all((tmp_path / name).exists() for name in ("accuracy.png", "all.png"))
    assert typed("export", "runs/demo").code == 0
    exec(compile(table, "docs/howto/report.md", "exec"), names)
    assert list(names["rounds"].index) == list(range(7))


def test_the_start_page_quotes_the_advice_that_its_code_prints(capsys):
    (code,) = blocks("docs/index.md", "python")
    exec(compile(code, "docs/index.md", "exec"), {})
    quoted = re.findall(r"^> (.*)$", (REPO / "docs/index.md").read_text(encoding="utf-8"), flags=re.M)
    assert " ".join(quoted) == capsys.readouterr().out.strip()


def test_the_simulator_runs_from_python_as_shown(capsys):
    (code,) = blocks("docs/simulator.md", "python")
    exec(compile(code, "docs/simulator.md", "exec"), {})
    accuracy, depth = map(float, capsys.readouterr().out.split())
    assert 0 < accuracy < 1
    assert 0.05 < depth < 0.3


def test_a_pass_is_truncated_as_shown(capsys):
    (code,) = blocks("docs/devices.md", "python")
    exec(compile(code, "docs/devices.md", "exec"), {})
    assert capsys.readouterr().out == "1 ['2.bias', '2.weight']\n"


@pytest.mark.parametrize(
    ("page", "example"),
    [
        ("plan", "plan_a_fleet.py"),
        ("compare", "compare_methods.py"),
        ("strategy", "fitted_batch.py"),
        ("latency", "my_latency.py"),
        ("codec", "sign_codec.py"),
        ("server-step", "clipped_step.py"),
        ("model-and-data", "my_model_and_data.py"),
        ("model-and-data", "own_partition.py"),
        ("users", "natural_users.py"),
        ("traces", "traced_phones.py"),
    ],
)
def test_the_code_of_how_to_pages_is_that_of_the_examples(page, example):
    code = (REPO / "examples" / example).read_text(encoding="utf-8")
    assert code in blocks(f"docs/howto/{page}.md", "python")
    assert len(code.splitlines()) <= 60


def test_the_fleet_of_the_how_to_page_is_that_of_the_example():
    assert (REPO / "examples" / "fleet.csv").read_text(encoding="utf-8") in blocks("docs/howto/plan.md", "text")


def test_the_file_in_the_docs_shows_the_defaults(tmp_path):
    (text,) = blocks("docs/simulator.md", "toml")
    path = tmp_path / "shown.toml"
    path.write_text(text)
    assert load_run(path) == load_run(None)
    commented = re.findall(r"^# (\w+) = |^# \[(\w+)\]", text, flags=re.MULTILINE)
    shown = {section: set(keys) for section, keys in tomllib.loads(text).items()}
    left_out = {
        f"{section}.{key}"
        for section, model in RunFile.model_fields.items()
        if section in shown
        for key in model.annotation.model_fields
        if key not in shown[section] | {a or b for a, b in commented}
    }
    assert left_out <= {"fleet.low", "fleet.high", "fleet.slow", "fleet.slow_share", "learning_rate.time_scale"}


def test_the_plan_file_page_lists_the_planners_defaults():
    text = (REPO / "docs/plan-file.md").read_text(encoding="utf-8")
    assert f"| `constants.sigma2` | {Constants.sigma2} |" in text
    assert f"| `constants.G2` | {Constants.G2} |" in text
    assert f"| {Constants.rho_c}, {Constants.rho_s} |" in text
    assert InverseDecay(0.1).time_scale == 1.0


def test_the_reference_lists_every_command():
    text = (REPO / "docs/reference/index.md").read_text(encoding="utf-8")
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        assert f"| `adelfl {name}` |" in text, name


def test_the_page_of_strategies_lists_every_built_in_strategy_and_option():
    text = (REPO / "docs/strategies.md").read_text(encoding="utf-8")
    for name in BUILT_IN:
        assert f"| `{name}` |" in text, name
        for option in set(inspect.signature(find_strategy(name)).parameters) - {"problem", "schedule"}:
            assert f"`{option}`" in text, f"{name}: {option}"


def test_links_lead_somewhere():
    for page in [REPO / page for page in PAGES]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_planners_proof_has_its_number_right():
    """docs/planner.md: (−log p)((1+5p)/(1−5p) − 1/2) is at least 2.7 on 0 < p < 0.2, near p = 0.013."""
    p = np.linspace(1e-7, 0.2 - 1e-7, 2_000_001)
    factor = -np.log(p) * ((1 + 5 * p) / (1 - 5 * p) - 0.5)
    assert factor.min() > 2.7
    assert abs(p[factor.argmin()] - 0.013) < 5e-4
