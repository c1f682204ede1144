"""adelfl run, compare, list, show and resume, as a user types them."""

import io
import json
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from rich.console import Console

from adelfl import errors, pools
from adelfl.cli import app
from adelfl.cli.display import Display
from adelfl.cli.runs import _title
from adelfl.config.run import load_run
from adelfl.records.reader import RunRecord
from adelfl.records.schema import RunResult
from adelfl.records.summary import QUARTERS
from adelfl.report.comparison import Contender, standard_error, untrained_note
from adelfl.report.terminal import print_comparison, print_runs
from adelfl.report.time_series import plot
from adelfl.strategies import find_strategy
from support.small_worlds import SMALL, Answer, everything_below, kept_bytes, sets, typed

REPO = Path(__file__).parents[2]
small = sets(SMALL)


def process(*arguments, cwd):
    """A real one."""
    command = [sys.executable, "-m", "adelfl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


# -- tables


@pytest.mark.parametrize("width", [80, 200])
def test_tables_fit_the_screen_and_show_every_number(here, width):
    assert typed("compare", "--strategies=salf,salf[average_over=all]", "--seeds=2", "--out", "c", *small).code == 0
    records = [RunRecord.open(folder) for folder in sorted(Path("c").glob("*-seed*"))]
    words = ("salf", "salf[average_over=all]")
    contenders = [Contender(w, records[2 * k].info.label, records[2 * k : 2 * k + 2]) for k, w in enumerate(words)]
    seen = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_comparison(contenders, seen)
    print_runs(records, here, seen)
    lines = seen.file.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert sum(line.rstrip().endswith(" 8") for line in lines) == 2  # rounds
    assert sum(f"{record.result.final_accuracy:.1%}" in line for record in records for line in lines) >= 4


def contender(label, accuracies):
    """One strategy with a finished run per accuracy."""
    results = [RunResult(a, dict.fromkeys(QUARTERS, a), depth=0.15, rounds=100, time=1.0) for a in accuracies]
    records = [SimpleNamespace(result=result) for result in results]
    return Contender(label, label, records)


@pytest.mark.parametrize("width", [20, 40, 60])
def test_strategies_can_be_told_apart_on_a_narrow_screen(width):
    seen = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_comparison([contender(name, [0.1, 0.5]) for name in ("adel", "adel-paper", "salf[average_over=all]")], seen)
    rows = [line.split() for line in seen.file.getvalue().splitlines()[2:5]]
    assert [row[0] for row in rows] == ["adel", "adel-paper", "salf[average_over=all]"]
    assert all(row[1:4] == ["30.0%", "±", "20.0"] for row in rows)


def test_the_footer_counts_the_seeds_that_finished():
    seen = Console(file=io.StringIO(), width=200, color_system=None)
    print_comparison([contender("adel", [0.5] * 5), contender("wait", [0.5] * 3), contender("drop", [0.5] * 5)], seen)
    assert "standard error over 5 seeds (3 of wait: the others failed); final" in seen.file.getvalue()
    seen.file = io.StringIO()
    print_comparison([contender("adel", [0.5] * 5), contender("drop", [0.5] * 5)], seen)
    assert "standard error over 5 seeds; final" in seen.file.getvalue()


# -- comparisons


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The same comparison, one run at a time in this process and two at a time in others."""
    root = tmp_path_factory.mktemp("compared")
    common = ("compare", "--strategies", "adel,salf[average_over=all]", "--seeds=2", "--json", *small)
    one = typed(*common, "--jobs=1", "--out", root / "1")
    done = process(*common, "--jobs=2", "--out", root / "2", cwd=root)
    return {1: (root / "1", one), 2: (root / "2", Answer(done.returncode, done.stdout, done.stderr))}


def test_compare_json_is_all_there_is_on_stdout(compared):
    for _, done in compared.values():
        assert done.code == 0, done.err
        said = json.loads(done.out)  # fails if anything else is there
        assert list(said) == ["adel", "salf[average_over=all]"]
        for found in said.values():
            assert found.keys() >= {"final_accuracy", "depth", "rounds"}
            assert len(found["final_accuracy"]) == 2
            assert all(0.0 <= accuracy <= 1.0 for accuracy in found["final_accuracy"])
            assert 0.0 < found["depth"] <= 1.0
            assert found["rounds"] == 8
        assert "Traceback" not in done.err
        assert "seed 1" in done.err  # progress


def test_records_are_equal_whether_one_or_two_run_at_a_time(compared):
    (one, first), (two, second) = compared[1], compared[2]
    assert first.out == second.out
    runs = sorted(path.name for path in one.iterdir() if path.is_dir())
    assert len(runs) == 4
    assert runs == sorted(path.name for path in two.iterdir() if path.is_dir())
    for name in runs:
        assert kept_bytes(one / name) == kept_bytes(two / name)
        assert (one / name / "run.json").read_bytes() == (two / name / "run.json").read_bytes()


def test_strategies_of_a_comparison_start_from_the_same_weights(compared):
    folder, _ = compared[1]
    for seed in (0, 1):
        first = {(run / "rounds.jsonl").read_text().splitlines()[0] for run in folder.glob(f"*-seed{seed}")}
        assert len(first) == 1  # round 0: loss and accuracy before training


def test_a_comparison_is_a_table_and_a_picture(here):
    done = typed("compare", "--strategies", "salf,oracle", "--seeds=2", "--out", "c", *small)
    assert done.code == 0, done.err
    assert {"salf", "oracle", "final", "depth", "rounds"} <= set(done.out.split())
    assert (here / "c" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_finished_is_not_run_again_unless_asked(here):
    arguments = ("compare", "--strategies", "salf,drop", "--seeds=1", "--json", "--out", "c", *small)
    first = typed(*arguments)
    times = {path: (here / path).stat().st_mtime_ns for path in everything_below(here) if path.endswith("json")}
    again = typed(*arguments)
    assert (again.code, again.out) == (0, first.out)
    assert all((here / path).stat().st_mtime_ns == time for path, time in times.items())
    fresh = typed(*arguments, "--fresh")
    assert (fresh.code, fresh.out) == (0, first.out)
    assert all((here / path).stat().st_mtime_ns != time for path, time in times.items())


def test_more_seeds_are_added_to_those_that_are_there(here):
    arguments = ("compare", "--strategies", "drop", "--json", *small)
    one = json.loads(typed(*arguments, "--seeds=1").out)
    before = {path: (here / path).stat().st_mtime_ns for path in everything_below(here) if "seed0" in path}
    three = json.loads(typed(*arguments, "--seeds=3").out)
    assert three["drop"]["final_accuracy"][:1] == one["drop"]["final_accuracy"]
    assert len(three["drop"]["final_accuracy"]) == 3
    assert before == {path: (here / path).stat().st_mtime_ns for path in everything_below(here) if "seed0" in path}


def test_another_experiment_in_the_same_folder_is_refused(here):
    arguments = ("compare", "--strategies", "drop", "--seeds=1", "--out", "c", "--json")
    assert typed(*arguments, *small).code == 0
    before = kept_bytes(here / "c" / "drop-seed0")
    other = typed(*arguments, *small, "--set", "training.batch=3")
    assert_one_sentence(other, "another configuration")
    assert kept_bytes(here / "c" / "drop-seed0") == before


def test_the_default_comparison_shows_adel_above_salf_and_drop(here):
    """A claim about the method: at a tight budget, planned deadlines and batches beat fixed ones."""
    done = typed("compare", "--strategies", "adel,salf,drop", "--seeds=5", "--json")
    assert done.code == 0, done.err
    final = {name: np.array(found["final_accuracy"]) for name, found in json.loads(done.out).items()}
    for other in ("salf", "drop"):
        difference = final["adel"] - final[other]  # of the same seed: the same data, weights and luck
        assert difference.mean() > 2 * standard_error(difference) > 0, (other, difference)


# -- one run


def test_run_list_show_and_resume(here):
    done = typed("run", "--set", "strategy.name=salf", *small)
    assert done.code == 0, done.err
    folder = here / "runs" / "digits-mlp-salf-seed0"
    result = json.loads((folder / "result.json").read_text())
    assert f"{result['final_accuracy']:.1%}" in done.out
    assert done.out.startswith("runs/digits-mlp-salf-seed0")

    listed = typed("list")
    assert listed.code == 0
    line = next(line for line in listed.out.splitlines() if "digits-mlp-salf-seed0" in line)
    assert "finished" in line
    assert f"{result['final_accuracy']:.1%}" in line

    shown = typed("show", folder)
    assert shown.code == 0
    assert "salf" in shown.out
    assert "dense1" in shown.out
    assert "finished" in shown.out

    before = kept_bytes(folder)
    resumed = typed("resume", folder)
    assert resumed.code == 0
    assert "already finished" in resumed.err
    assert kept_bytes(folder) == before

    assert typed("run", "--set", "strategy.name=salf", *small).code == 0
    assert kept_bytes(here / "runs" / "digits-mlp-salf-seed0-2") == before


def test_a_finished_deployment_that_was_never_evaluated_is_not_resumed(here):
    assert typed("run", "--set", "strategy.name=salf", "--out", "r", *small).code == 0
    info, result = Path("r/run.json"), Path("r/result.json")
    info.write_text(json.dumps(json.loads(info.read_text()) | {"clock": "real"}))
    result.write_text(json.dumps(json.loads(result.read_text()) | {"final_accuracy": None, "engine": None}))
    done = typed("resume", "r")
    assert done.code == 0
    assert re.fullmatch(r"r: accuracy not evaluated after 8 rounds and .* real seconds\n", done.out)


def test_the_name_of_a_run_can_be_copied_from_the_list_whatever_the_width(here, monkeypatch):
    assert typed("run", "--set", "strategy.name=salf", "--out", f"runs/{'x' * 90}", *small).code == 0
    monkeypatch.setenv("COLUMNS", "80")
    assert "x" * 90 in typed("list").out


@pytest.mark.parametrize("columns", ["80", "40"])
def test_no_number_of_a_comparison_is_cut_off_however_narrow_the_terminal(here, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    done = typed("compare", "--strategies", "adel,salf[average_over=all]", "--seeds=2", "--out", "c", *small)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[1].split() == ["strategy", "final", "25%", "50%", "75%", "100%", "oracle", "depth", "rounds"]
    assert all(line.endswith("%       8") for line in lines[2:4])  # depth and rounds, the last two


def test_runs_in_hidden_folders_are_listed_only_on_request(here):
    assert typed("run", "--set", "strategy.name=salf", "--out", "runs/.old/deep/r", *small).code == 0
    assert "no runs" in typed("list").out
    assert "deep/r" in typed("list", "runs/.old").out


def test_nothing_to_list_is_said(here):
    assert "no runs" in typed("list").out


def test_a_run_that_is_not_finished_is_listed_and_shown_as_such(here):
    typed("run", "--set", "strategy.name=salf", "--out", "r", *small)
    for name in ("result.json", "model.safetensors"):
        (here / "r" / name).unlink()
    assert "adelfl resume r" in typed("list", ".").out
    assert "running, or just stopped" in typed("show", "r").out
    assert typed("resume", "r").code == 0
    assert "finished" in typed("show", "r").out


def test_partition_says_who_holds_what_and_it_can_be_reused(here):
    done = typed(
        "partition", "--set", "data.partition=dirichlet", "--set", "data.alpha=0.1", "--save", "held.npz", *small
    )
    assert done.code == 0, done.err
    assert "6 devices hold" in done.out
    plain = typed("run", "--out", "r", *small, "--set", "data.partition_file=held.npz")
    assert plain.code == 0, plain.err


# -- mistakes: exit code 2, one sentence, nothing half-written


def assert_one_sentence(done, sentence):
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert sentence in done.err


def unused_parameter(shape, classes, seed):
    import torch
    from torch import nn

    model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
    model.spare = nn.Parameter(torch.zeros(3))
    return model


MISTAKES = {
    "unknown section": (("trainning.rounds=3",), "trainning: unknown key"),
    "unknown key": (("training.round=3",), "training.round: unknown key; did you mean 'rounds'?"),
    "wrong type": (("training.rounds=soon",), "training.rounds: must be a whole number or 'auto', not 'soon'"),
    "no value": (("training.rounds",), "must look like section.key=value"),
    "unknown model": (("model.name=alexnet",), "unknown name 'alexnet'"),
    "budget and depth": (("training.depth=0.5", "training.budget=3.0"), "not both"),
    "unknown data": (("data.name=imagenet",), "there is no data set 'imagenet'"),
    "layers that cannot be found": (("model.factory=test_cli_runs:unused_parameter",), "'spare' does not affect"),
    "engine that cannot do it": (("engine.name=fused", "training.local_iterations=3"), "one local iteration"),
    "engine that cannot do this model": (
        ("engine.name=fused", "model.name=resnet18", "model.norm=batch", "model.width=0.1"),
        "samples do not influence each other",
    ),
    "no such device": (("engine.device=xpu9",), "device"),
}
FOR_ONE = {
    "unknown strategy": (("strategy.name=sallf",), "did you mean 'salf'?"),
    "strategy that is none": (("strategy.name=adelfl.fleet:Fleet",), "not a subclass"),
    "unknown option": (("strategy.name=salf", "strategy.options.average=all"), "strategy.options"),
    "wrong option": (("strategy.name=salf", "strategy.options.average_over=some"), "must be one of"),
    "no plan": (("strategy.name=adel-paper", "training.budget=0.001"), "the smallest feasible budget is"),
    "no narrower model": (("strategy.name=heterofl", "model.name=transformer"), "cannot be scaled in width"),
}


@pytest.mark.parametrize(("changes", "sentence"), (MISTAKES | FOR_ONE).values(), ids=MISTAKES | FOR_ONE)
def test_a_mistake_in_a_run_is_one_sentence_and_nothing_is_written(here, changes, sentence):
    quick = [change for change in SMALL if "depth" not in change or "budget" not in str(changes)]
    assert_one_sentence(typed("run", *sets(quick), *sets(changes)), sentence)
    assert everything_below(here) == []


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_comparison_is_one_sentence_and_nothing_is_written(here, changes, sentence):
    quick = [change for change in SMALL if "depth" not in change or "budget" not in str(changes)]
    done = typed("compare", "--strategies=salf,drop", "--seeds=1", "--json", *sets(quick), *sets(changes))
    assert_one_sentence(done, sentence)
    assert everything_below(here) == []


@pytest.mark.parametrize(
    ("strategies", "sentence"),
    [
        ("salf,sallf", "did you mean 'salf'?"),
        ("salf,no.such:Thing", "cannot be imported"),
        ("salf,drop[average_over=all]", "does not take these"),
        ("fedbuff[bufer=3]", "its options are buffer, "),
        ("salf[average_over]", "must look like key=value"),
        ("salf,salf", "give each strategy once"),
        (",", "give at least one strategy"),
        ("salf,heterofl", "cannot be scaled in width"),
    ],
)
def test_a_mistake_among_strategies_is_said_before_anything_runs(here, strategies, sentence):
    deep = ("--set", "model.name=transformer") if "heterofl" in strategies else ()
    done = typed("compare", "--strategies", strategies, "--seeds=1", "--json", *small, *deep)
    assert_one_sentence(done, sentence)
    assert everything_below(here) == []


@pytest.mark.parametrize("name", ["empty", "📱"])
def test_missing_data_is_one_sentence(here, name):
    (here / name).mkdir()
    done = typed("run", "--set", "data.name=mnist", "--data-dir", name)
    assert_one_sentence(done, f"{name} (data_dir) holds no mnist: expected mnist/train-*.parquet")
    assert everything_below(here) == [name]


def test_a_bad_file_is_one_sentence(here):
    (here / "bad.toml").write_text("[training]\nrounds = -1\n")
    assert_one_sentence(typed("run", "bad.toml"), "bad.toml: training.rounds: must be at least 1, not -1")
    (here / "bad.toml").write_text("[training\n")
    assert_one_sentence(typed("compare", "bad.toml"), "not valid TOML")
    (here / "bad.toml").write_text("[training]\nbudget = 3.0\ndepth = 0.5\n")
    assert_one_sentence(typed("run", "bad.toml"), "not both")
    assert_one_sentence(typed("compare", "none.toml"), "none.toml: no such file")
    assert everything_below(here) == ["bad.toml"]


def test_a_mistake_ends_a_real_process_with_2_and_no_traceback(here):
    done = process("run", "--set", "training.round=3", cwd=here)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert everything_below(here) == []


def test_a_comparison_takes_strategies_and_seeds_from_its_own_options(here):
    for change in ("strategy.name=salf", "training.seed=3"):
        done = typed("compare", "--strategies", "drop", "--seeds=1", *small, "--set", change)
        assert_one_sentence(done, "--strategies and --first-seed")
    assert everything_below(here) == []


def test_a_folder_that_is_taken_is_refused(here):
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("precious")
    assert_one_sentence(typed("run", "--out", "mine", *small), "exists already")
    assert_one_sentence(typed("show", "mine"), "not a run")
    assert_one_sentence(typed("resume", "mine"), "not a run")
    assert everything_below(here) == ["mine", "mine/thesis.txt"]


def test_a_folder_that_cannot_be_made_is_said(here):
    (here / "file").write_text("precious")
    for out in ("file/run", "file"):
        done = typed("compare", "--strategies", "drop", "--seeds=1", "--json", "--out", out, *small)
        assert_one_sentence(done, "file")
    assert_one_sentence(typed("run", "--out", "file/run", *small), "file")
    assert (here / "file").read_text() == "precious"


def test_a_run_of_another_version_cannot_be_resumed_and_it_is_said(here):
    assert typed("run", "--out", "r", *small).code == 0
    (here / "r" / "result.json").unlink()
    about = json.loads((here / "r" / "run.json").read_text())
    about["config"]["training"]["from_the_future"] = 3
    (here / "r" / "run.json").write_text(json.dumps(about))
    assert_one_sentence(typed("resume", "r"), "training.from_the_future")


def test_a_comparison_beside_other_files_touches_only_its_own(here):
    (here / "c" / "drop-seed0").mkdir(parents=True)
    (here / "c" / "drop-seed0" / "thesis.txt").write_text("precious")
    arguments = ("compare", "--strategies", "drop", "--seeds=1", "--json", "--out", "c", *small)
    for more in ((), ("--fresh",)):
        assert_one_sentence(typed(*arguments, *more), "not a run")
        assert everything_below(here) == ["c", "c/drop-seed0", "c/drop-seed0/thesis.txt"]


# -- when training breaks down

EXPLOSIVE = """
import numpy as np
from adelfl.strategies.drop import Drop


class Explosive(Drop):
    name = "explosive"

    def weights(self, t, progress):
        return np.full((progress.z.size, progress.layers), 1e30)
"""


def test_a_run_that_breaks_down_is_one_sentence_and_its_rows_stay(here):
    done = typed("run", "--set", "strategy.name=oracle", "--set", "learning_rate.initial=1e20", "--out", "r", *small)
    assert_one_sentence(done, "lower the learning rate")
    rows = [json.loads(line) for line in (here / "r" / "rounds.jsonl").read_text().splitlines()]
    assert rows[0]["round"] == 0
    assert not (here / "r" / "result.json").exists()
    assert "failed: the training loss became" in typed("show", "r").out
    assert "failed" in typed("list", ".").out


def test_a_run_of_a_comparison_that_breaks_down_does_not_stop_the_others(here, monkeypatch):
    (here / "explosive.py").write_text(EXPLOSIVE)
    monkeypatch.syspath_prepend(here)
    strategies = "explosive:Explosive,salf"
    done = typed("compare", "--strategies", strategies, "--seeds=2", "--json", "--out", "c", *small)
    assert done.code == 2
    assert list(json.loads(done.out)) == ["salf"]  # what finished
    assert [line for line in done.err.splitlines() if "lower the learning rate" in line and line.startswith("error: ")]
    assert "Traceback" not in done.err
    for seed in (0, 1):
        assert (here / "c" / f"salf-seed{seed}" / "result.json").exists()
        assert not (here / "c" / f"explosive_Explosive-seed{seed}" / "result.json").exists()
    again = typed("compare", "--strategies", "salf", "--seeds=2", "--json", "--out", "c", *small)
    assert again.code == 0


CRASHING = """
import torch
from torch import nn


class Crashing(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.calls = nn.Linear(64, 10), 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 60:
            raise KeyError("what is this?")
        return torch.tanh(self.dense(x.flatten(1)))


def build(shape, classes, seed):
    return Crashing()
"""


def test_a_crash_in_a_users_model_is_one_sentence_for_each_run_and_the_rows_stay(here, monkeypatch):
    (here / "crashing.py").write_text(CRASHING)
    monkeypatch.syspath_prepend(here)
    model = ("--set", "model.factory=crashing:build", "--set", "fleet.devices=6", "--set", "training.depth=0.9")
    done = typed("compare", "--strategies=salf,drop", "--seeds=1", "--out", "c", *model)
    assert done.code == 2
    assert "Traceback" not in done.err
    said = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert [line.partition(": ")[2].partition(":")[0] for line in said] == ["salf, seed 0", "drop, seed 0"]
    assert all("KeyError: 'what is this?'" in line for line in said)
    for name in ("salf", "drop"):
        assert "in forward" in json.loads((here / "c" / f"{name}-seed0" / "failed.json").read_text())["traceback"]
        assert (here / "c" / f"{name}-seed0" / "rounds.jsonl").read_text()


TROUBLED = """
import numpy as np
from torch import nn
from adelfl.strategies import Orders, RoundStrategy
from adelfl.strategies.merge import finished_only


def second_seed(shape, classes, seed):
    if seed == 1:
        raise RuntimeError("no seed one")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def leaves(*_):
    raise SystemExit(0)


class Broken(RoundStrategy):
    name = "broken"

    def __init__(self, setting):
        raise LookupError("nothing there")

    def orders(self, t, devices):
        return None

    def weights(self, t, progress):
        return None


class Silent(Broken):
    def __init__(self, setting):
        super(Broken, self).__init__(setting)


class Leaves(Silent):
    def orders(self, t, devices):
        if t == 3:
            raise SystemExit(0)
        return Orders(self.problem.uniform_deadline, np.full(devices.size, 4))

    def weights(self, t, progress):
        return finished_only(progress)


class Reads(Leaves):
    def orders(self, t, devices):
        if t == 3:
            open("nowhere.csv")
        return super().orders(t, devices)


class InTraining(nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.dense = nn.Linear(64, 10)

    def forward(self, x):
        if self.training:
            raise ArithmeticError("not so")
        return self.dense(x.flatten(1))
"""


def test_code_that_fails_for_one_seed_costs_the_runs_of_that_seed_alone(here, monkeypatch):
    (here / "troubled.py").write_text(TROUBLED)
    monkeypatch.syspath_prepend(here)
    model = ("--set", "model.factory=troubled:second_seed", "--set", "training.rounds=4")
    done = typed("compare", "--strategies=salf,drop", "--seeds=3", "--json", "--out", "c", *model)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert {name: found["seeds"] for name, found in json.loads(done.out).items()} == {"salf": [0, 2], "drop": [0, 2]}
    said = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in said] == ["salf, seed 1", "drop, seed 1"]
    assert all("RuntimeError: no seed one; troubled.py, line 10" in line for line in said)


TROUBLED_BY_SEED = """

def by_seed(shape, classes, seed):
    if seed == 2:
        from crashing import build

        return build(shape, classes, seed)
    return second_seed(shape, classes, seed)
"""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("model.factory=unwritten:f", "cannot be imported (SyntaxError"),
        (
            "model.factory=troubled:leaves",
            "troubled:leaves(input_shape, classes, seed) fails (SystemExit",
        ),
        ("data.factory=troubled:leaves", "data.factory: troubled:leaves() fails (SystemExit"),
        ("strategy.name=troubled:Broken", "cannot be created (LookupError: nothing there; troubled.py, line "),
        ("strategy.name=troubled:Silent", "orders must return an Orders"),
        ("model.factory=troubled:InTraining", "ArithmeticError: not so; troubled.py, line "),
        ("training.budget=1e-300", "training.budget: must be at least 1e-09"),
        ("fleet.sigma=30", "fleet.sigma: must be at most 10"),
        ("model.layers=[]", "model.layers: "),
        ("training.momentum=0.9", "training.momentum: it begins at zero"),
        ("strategy.options=3", "strategy.options: must be a table"),
    ],
)
def test_what_goes_wrong_before_a_run_begins_is_one_sentence(here, monkeypatch, change, sentence):
    (here / "troubled.py").write_text(TROUBLED)
    (here / "unwritten.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(here)
    assert_one_sentence(typed("run", "--out", "r", "--set", change), sentence)
    assert not (here / "r").exists()


def test_the_whole_of_what_a_users_code_raised_is_shown_if_asked(here, monkeypatch):
    (here / "troubled.py").write_text(TROUBLED)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("ADELFL_TRACEBACK", "1")
    with pytest.raises(errors.ConfigError) as trouble:
        typed("run", "--set", "strategy.name=troubled:Broken")
    assert isinstance(trouble.value.__cause__, LookupError)


def test_code_that_ends_the_program_or_misses_a_file_costs_its_own_run_alone(here, monkeypatch):
    (here / "troubled.py").write_text(TROUBLED)
    monkeypatch.syspath_prepend(here)
    words = "troubled:Leaves,troubled:Reads,drop"
    done = typed("compare", "--strategies", words, "--seeds=1", "--json", "--out", "c", *small)
    assert done.code == 2
    assert list(json.loads(done.out)) == ["drop"]
    said = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert "SystemExit: 0; troubled.py, line " in said[0]
    assert "FileNotFoundError: " in said[1]
    assert "cannot be written" not in done.err
    assert len(list(here.glob("c/*/failed.json"))) == 2


def test_failures_of_every_kind_cost_their_own_runs_alone_with_two_jobs_too(here, monkeypatch):
    """In one comparison, since each that has two jobs loads torch in two more processes."""
    (here / "crashing.py").write_text(CRASHING)
    (here / "every_trouble.py").write_text(TROUBLED + TROUBLED_BY_SEED)
    monkeypatch.syspath_prepend(here)
    words = "drop,every_trouble:Leaves,every_trouble:Reads"
    model = ("--set", "model.factory=every_trouble:by_seed", "--set", "fleet.devices=6", "--set", "training.depth=0.9")
    done = typed("compare", "--strategies", words, "--seeds=3", "--jobs=2", "--json", "--out", "c", *model)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert {name: found["seeds"] for name, found in json.loads(done.out).items()} == {"drop": [0]}
    said = dict(line[7:].split(": ", 1) for line in done.err.splitlines() if line.startswith("error: "))
    reasons = {
        "drop": "KeyError: 'what is this?'",
        "every_trouble:Leaves": "SystemExit: 0",
        "every_trouble:Reads": "FileNotFound",
    }
    assert list(said) == [f"{name}, seed {seed}" for seed in range(3) for name in reasons][1:]
    for place, sentence in said.items():
        assert ("RuntimeError: no seed one" if place.endswith("1") else reasons[place.split(",")[0]]) in sentence
    crashed = here / "c" / "drop-seed2"
    assert "in forward" in json.loads((crashed / "failed.json").read_text())["traceback"]
    assert (crashed / "rounds.jsonl").read_text()


def test_a_damaged_run_costs_nobody_else_anything(here):
    arguments = ("compare", "--strategies=salf,drop", "--json", "--out", "c", *small)
    assert typed(*arguments, "--seeds=1").code == 0
    (here / "c" / "salf-seed0" / "run.json").write_text("{")
    done = typed(*arguments, "--seeds=2")
    assert done.code == 2
    assert "salf, seed 0: " in done.err
    assert {name: found["seeds"] for name, found in json.loads(done.out).items()} == {"salf": [1], "drop": [0, 1]}


def test_a_removal_that_is_killed_leaves_a_run_or_none(here, monkeypatch):
    arguments = ("compare", "--strategies=salf", "--seeds=1", "--json", "--out", "c", *small)
    first = typed(*arguments)
    monkeypatch.setattr("adelfl.records.writer.shutil.rmtree", lambda folder: (folder / "run.json").unlink())
    assert typed(*arguments, "--fresh").out == first.out
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert typed(*arguments).out == first.out


def test_two_ways_to_write_one_strategy_are_one(here):
    words = "salf[correction=none],salf[correction='none']"
    assert_one_sentence(typed("compare", "--strategies", words, "--out", "c", *small), "give each strategy once")


@pytest.mark.parametrize(
    "words", [("list",), ("plan", REPO / "examples" / "phones.toml", "--json")], ids=["list", "plan"]
)
def test_output_that_cannot_be_written_is_one_sentence(here, words):
    command = [sys.executable, "-m", "adelfl", *words]  # commands that load no torch; main() answers for all of them
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, cwd=here)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_what_failed_is_said_in_the_order_asked_whichever_ended_first(here, monkeypatch):
    def backwards(jobs, workers, report, on):
        return ((job, errors.AdelError("it broke")) for job in reversed(jobs))

    monkeypatch.setattr(pools, "run_all", backwards)
    done = typed("compare", "--strategies=salf,drop", "--seeds=2", "--out", "c", *small)
    said = [line.split(": ")[1] for line in done.err.splitlines() if line.startswith("error: ")]
    assert said == ["salf, seed 0", "drop, seed 0", "salf, seed 1", "drop, seed 1"]


@pytest.mark.parametrize("plot", ["picture.xyz", "nowhere/picture.png", "/proc/picture.png"])
def test_a_picture_that_cannot_be_written_is_said_before_anything_runs(here, plot):
    done = typed("compare", "--strategies=salf", "--seeds=1", "--plot", plot, "--out", "c", *small)
    assert_one_sentence(done, "picture")
    assert not (here / "c").exists()


def test_names_with_options_are_shown_whole(here):
    done = typed("compare", "--strategies=salf[average_over=all]", "--seeds=1", "--out", "c", *small)
    assert "salf[average_over=all] seed 0: " in done.err
    assert "one seed; final" in done.out
    (here / "[x]").mkdir()
    assert "no runs below [x]" in typed("list", "[x]").out
    assert_one_sentence(typed("list", "[y]"), "[y]: no such folder")
    assert "name[option=value]" in " ".join(typed("compare", "--help").out.split())


@pytest.mark.parametrize(
    "damage",
    [{"versions": ["1"]}, {"budget": "much"}, {"layers": 3}, {"layers": ["one"]}],
    ids=str,
)
def test_a_record_of_the_wrong_shape_is_one_sentence(here, damage):
    assert typed("run", "--out", "r", *small).code == 0
    about = json.loads((here / "r" / "run.json").read_text())
    (here / "r" / "run.json").write_text(json.dumps(about | damage))
    assert_one_sentence(typed("show", "r"), "r: r")  # run.json or rounds.jsonl


def test_without_ray_its_extra_is_named(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    done = typed("compare", "--strategies=salf", "--seeds=1", "--on=ray", *small)
    assert_one_sentence(done, "adelfl[scale]")


def test_a_picture_does_not_promise_a_depth_that_the_layer_times_do_not_keep(here):
    said = load_run(None, ["latency.law=constant", *SMALL])
    done = typed("compare", "--strategies=salf", "--seeds=1", "--out", "c", "--set", "latency.law=constant", *small)
    assert done.code == 0
    contender = SimpleNamespace(records=[RunRecord.open(here / "c" / "salf-seed0")])
    assert "depth" not in _title(said, [contender])
    assert "mean depth 60% at batch 16" in _title(load_run(None, SMALL), [contender])
    assert "depth" not in _title(load_run(None, [*SMALL, "training.budget_share=0.5"]), [contender])


def test_batch_norm_on_a_batch_of_one_is_one_sentence(here):
    changes = ("model.factory=support.small_worlds:with_batch_norm", "training.batch=1", "strategy.name=oracle")
    assert_one_sentence(typed("run", *small, *sets(changes)), "batch")


STRANGE = """
import numpy as np
from adelfl.strategies.rounds import Orders, RoundStrategy


class Nameless(RoundStrategy):
    def orders(self, t, devices):
        return Orders(1.0, np.full(devices.size, 4))

    def weights(self, t, progress):
        return np.zeros((progress.z.size, progress.layers))


class Flat(Nameless):
    name = "flat"

    def weights(self, t, progress):
        return np.ones(progress.z.size)


class Unfinished(RoundStrategy):
    name = "unfinished"


class Halves(Nameless):
    name = "halves"

    def orders(self, t, devices):
        return Orders(1.0, np.full(devices.size, 4.5))


class Debts(Nameless):
    name = "debts"

    def orders(self, t, devices):
        return Orders(1.0, np.full(devices.size, -4))


class Backwards(Nameless):
    name = "backwards"

    def orders(self, t, devices):
        return Orders(-1.0, np.full(devices.size, 4))
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Nameless", "name"),
        ("Flat", "weights"),
        ("Unfinished", "does not define"),
        ("Halves", "whole numbers"),
        ("Debts", "a batch size of -4"),
        ("Backwards", "a deadline of -1.0 s"),
    ],
)
def test_a_users_strategy_with_a_mistake_in_it_is_told_so(here, monkeypatch, name, sentence):
    (here / "strange.py").write_text(STRANGE)
    monkeypatch.syspath_prepend(here)
    assert_one_sentence(typed("run", "--set", f"strategy.name=strange:{name}", *small), sentence)


@pytest.mark.parametrize("recorded", [False, True])
def test_an_interruption_says_how_to_go_on(here, capsys, recorded):
    folder = here / "r"
    if recorded:
        folder.mkdir()
    with pytest.raises(KeyboardInterrupt), Display(["r"], folder=folder):
        raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert ("start it again" in said, f"adelfl resume {folder} continues" in said) == (not recorded, recorded)


def test_a_comparison_of_a_damaged_run_names_it(here):
    arguments = ("compare", "--strategies=salf", "--seeds=1", "--out", "c", *small)
    assert typed(*arguments).code == 0
    (here / "c" / "salf-seed0" / "rounds.jsonl").write_text("")
    done = typed(*arguments)
    assert done.code == 2
    assert "c/salf-seed0: rounds.jsonl has 0 of 8 rounds" in done.err


def test_errors_travel_between_processes_as_they_are():
    found = [
        errors.ConfigError("a"),
        errors.InfeasibleBudgetError("b", binding="upload", smallest_budget=3.0),
        errors.MissingExtraError("pyarrow", "data"),
    ]
    for error in found:
        copied = pickle.loads(pickle.dumps(error))
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)


@pytest.mark.slow
def test_a_plan_that_fails_for_a_later_seed_is_said_with_two_jobs_too(here):
    """Speeds are drawn by the seed: a budget may do for seed 0, and not for seed 1."""
    budget = smallest_budget_per_seed(here)
    enough_for_0 = ("--set", f"training.budget={budget}")
    quick = [change for change in SMALL if "depth" not in change]
    command = ("compare", "--strategies=adel-paper", "--seeds=2", "--jobs=2", "--json", *sets(quick), *enough_for_0)
    done = process(*command, cwd=here)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "the smallest feasible budget is" in done.stderr.splitlines()[-1]


def smallest_budget_per_seed(here):
    """Between what seed 0 and what seed 1 need."""
    needed = []
    quick = [*(change for change in SMALL if "depth" not in change), "strategy.name=adel-paper"]
    for seed in (0, 1):
        said = typed("run", *sets(quick), "--set", "training.budget=1e-6", "--set", f"training.seed={seed}").err
        needed.append(float(said.split("the smallest feasible budget is ")[1].split()[0]))
    if needed[0] >= needed[1]:
        pytest.fail(f"seed 0 needs no less than seed 1: {needed}")
    return sum(needed) / 2


@pytest.mark.parametrize("command", ["plan", "compare", "run", "profile", "export", "report", "dashboard", "list"])
def test_help_shows_every_word_of_its_texts_brackets_too(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    shown = " ".join(typed(command, "--help").out.replace("│", " ").split())
    texts = [option.help for option in typer.main.get_command(app).commands[command].params if option.help]
    assert texts
    for text in texts:
        assert text.replace("\\[", "[").rstrip(".") in shown


def test_help_names_every_command():
    said = typed("--help").out
    assert all(command in said for command in ("run", "compare", "resume", "list", "show", "plan"))
    assert "Did you mean 'compare'?" in typed("compar").err
    assert "Folder of an interrupted run." in typed("resume", "--help").out


class Tuned(find_strategy("drop")):
    """A user's strategy with an option of its own."""

    name = "tuned"

    def __init__(self, setting, gain=1.0):
        super().__init__(setting)
        self.gain = gain


def test_options_of_a_users_strategy_are_in_tables_pictures_json_and_list(here):
    words = "test_cli_runs:Tuned,test_cli_runs:Tuned[gain=0.5]"
    arguments = ("--strategies", words, "--seeds", 1, "--out", "runs", *sets(["training.rounds=3"]))
    shown = typed("compare", *arguments)
    assert shown.code == 0, shown.err
    assert "tuned (gain=0.5)" in shown.out
    labels = [entry["label"] for entry in json.loads(typed("compare", *arguments, "--json").out).values()]
    assert labels == ["tuned", "tuned (gain=0.5)"]
    assert "tuned (gain=0.5)" in typed("list", "runs").out
    figure = plot("runs")
    drawn = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert any("tuned (gain=0.5)" in text for text in drawn), drawn
    page = here / "report.html"
    assert typed("report", "runs", "-o", page).code == 0
    assert "tuned (gain=0.5)" in page.read_text(encoding="utf-8")


def test_a_comparison_whose_oracle_does_not_train_says_so(here):
    learning = typed("compare", "--strategies=oracle,drop", "--seeds=1", "--out", "a", *sets(["training.rounds=60"]))
    assert learning.code == 0, learning.err
    assert "near chance" not in learning.err
    short = sets(["training.rounds=5", "learning_rate.initial=0.001"])
    both = typed("compare", "--strategies=oracle,drop", "--seeds=1", "--out", "b", *short)
    assert re.search(r"note: the oracle ends near chance .* \(now 0.001\), or more training.rounds", both.err)
    others = typed("compare", "--strategies=salf,drop", "--seeds=1", "--out", "c", *short)
    assert "note: every strategy ends near chance" in others.err
    alone = typed("run", "--out", "d", *short, *sets(["strategy.name=salf"]))
    assert "note: salf ends near chance" in alone.err
    slow = typed("compare", "--strategies=wait", "--seeds=1", "--out", "e", *short)
    assert "note: no round was finished within the budget" in slow.err
    assert "learning_rate.initial" not in slow.err


def test_a_strategy_that_fails_to_train_beside_an_oracle_that_does_is_no_news(tmp_path):
    def contender(name, final):
        info = SimpleNamespace(config={"learning_rate": {"initial": 0.3}})
        record = SimpleNamespace(result=SimpleNamespace(final_accuracy=final, rounds=10), info=info)
        return Contender(name, name, [record])

    good, bad = contender("oracle", 0.9), contender("drop", 0.11)
    assert untrained_note([good, bad], 0.1) is None
    assert untrained_note([bad, contender("salf", 0.8)], 0.1) is None
    assert untrained_note([contender("oracle", 0.17), contender("salf", 0.8)], 0.1).startswith("the oracle")
    assert untrained_note([contender("salf", 0.28)], 0.1) is None
    assert untrained_note([contender("oracle", math.nan)], 0.1) is None
