"""What the documents show is what the program does."""

import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
from small_worlds import sets, typed

from adelfl import InverseDecay
from adelfl.cli import app
from adelfl.config.run import RunFile, load_run
from adelfl.planner import Constants

REPO = Path(__file__).parents[2]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (REPO / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_readme_goes_from_a_fleet_to_a_plan(capsys):
    (code,) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line]) <= 10
    exec(compile(code, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert "Deadlines rise from" in said
    assert len(said.splitlines()) == 3


def test_a_plan_is_swept_as_shown(capsys):
    (code,) = blocks("docs/planner.md", "python")
    exec(compile(code, "docs/planner.md", "exec"), {})
    words, numbers = capsys.readouterr().out.splitlines()
    assert "nee at" in words
    assert len(numbers.split(",")) == 8


def test_the_sweeps_in_the_docs_say_what_is_quoted(tmp_path, monkeypatch):
    commands = next(b for b in blocks("docs/planner.md", "sh") if "--sweep" in b)
    monkeypatch.chdir(tmp_path)
    said = []
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        assert words.pop(0) == "adelfl"
        answer = typed(*(REPO / word if word.endswith(".toml") else word for word in words))
        assert answer.code == 0, answer.err
        said.append(answer.out)
    quoted = re.search(r'"(Knee at [^"]*)"', (REPO / "docs/planner.md").read_text(encoding="utf-8"))[1]
    assert " ".join(quoted.split()) in said[0]
    assert (tmp_path / "sweep.png").exists()


def test_a_record_is_read_and_drawn_as_shown(tmp_path, monkeypatch):
    (code, _) = blocks("docs/simulator.md", "python")
    monkeypatch.chdir(tmp_path)
    short = sets(["training.rounds=6", "training.depth=0.5", "fleet.devices=5"])
    assert typed("compare", "--strategies", "salf,drop", "--seeds", 1, "--out", "runs/demo", *short).code == 0
    names: dict[str, object] = {}
    exec(compile(code, "docs/simulator.md", "exec"), names)
    assert list(names["rounds"].index) == list(range(7))
    assert all((tmp_path / name).exists() for name in ("accuracy.png", "all.png"))


def test_the_simulator_runs_from_python_as_shown(capsys):
    (_, code) = blocks("docs/simulator.md", "python")
    exec(compile(code, "docs/simulator.md", "exec"), {})
    accuracy, depth = map(float, capsys.readouterr().out.split())
    assert 0 < accuracy < 1
    assert 0.05 < depth < 0.3


def test_a_pass_is_truncated_as_shown(capsys):
    (code,) = blocks("docs/devices.md", "python")
    exec(compile(code, "docs/devices.md", "exec"), {})
    assert capsys.readouterr().out == "1 ['2.bias', '2.weight']\n"


def test_the_strategy_in_the_docs_is_the_example_and_is_short():
    (code,) = blocks("docs/strategies.md", "python")
    assert code == (REPO / "examples" / "fitted_batch.py").read_text(encoding="utf-8")
    assert len(code.splitlines()) < 40


def test_the_file_in_the_docs_says_the_defaults(tmp_path):
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


def test_the_readme_lists_the_planners_defaults():
    text = (REPO / "README.md").read_text(encoding="utf-8")
    assert f"| `constants.sigma2` | {Constants.sigma2} |" in text
    assert f"| `constants.G2` | {Constants.G2} |" in text
    assert f"| {Constants.rho_c}, {Constants.rho_s} |" in text
    assert InverseDecay(0.1).time_scale == 1.0


def test_every_command_is_documented():
    text = (REPO / "README.md").read_text(encoding="utf-8") + (REPO / "docs/simulator.md").read_text(encoding="utf-8")
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        assert f"adelfl {name}" in text, name


def test_links_lead_somewhere():
    for page in [REPO / "README.md", REPO / "CONTRIBUTING.md", *(REPO / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_planners_proof_has_its_number_right():
    """docs/planner.md: (−log p)((1+5p)/(1−5p) − 1/2) is at least 2.7 on 0 < p < 0.2, near p = 0.013."""
    p = np.linspace(1e-7, 0.2 - 1e-7, 2_000_001)
    factor = -np.log(p) * ((1 + 5 * p) / (1 - 5 * p) - 0.5)
    assert factor.min() > 2.7
    assert abs(p[factor.argmin()] - 0.013) < 5e-4
