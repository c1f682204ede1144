"""adelfl plan, as a user types it: real files, exit codes, and real processes where the process is the claim."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import gammaincc

from adelfl.cli import main
from adelfl.config.plan import load_problem
from adelfl.planner import plan
from adelfl.report.plan import draw_plan
from support.small_worlds import typed

REPO = Path(__file__).parents[2]
GOOD = """
[problem]
rounds = 100
budget = 300.0
layers = 3
[learning_rate]
schedule = "inverse"
initial = 0.1
[constants]
sigma2 = 20.0
G2 = 1.5
rho_c = 0.1
rho_s = 1.0
Gamma = 0.0
Delta1 = 1.0
[[device]]
compute = 16.0
upload = 0.1
count = 30
"""


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "adelfl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def adelfl(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The same without a new process, which would load scipy again."""
    done = typed(*arguments)
    return subprocess.CompletedProcess(arguments, done.code, done.out, done.err)


@pytest.fixture
def good(tmp_path) -> Path:
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    return path


def test_json_is_all_there_is_on_stdout_and_agrees_with_the_formulas(good):
    done = process("plan", good, "--json", "--objective", "paper")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    T, m = np.array(said["deadlines"]), said["m"]
    assert T.shape == (100,)
    assert T.sum() == pytest.approx(300.0, rel=1e-9)
    assert np.all(np.diff(T) <= 0)
    S = np.array(said["batch_sizes"])
    assert np.array_equal(S[:, 0], np.maximum(1, np.floor(m * 16.0 * (T - 0.1) / T)))
    p = np.array(said["p_empty"])
    assert p.shape == (100, 3)
    assert np.allclose(p, gammaincc([3, 2, 1], T[:, None] / m) ** 30)
    rate = 16.0 * (T - 0.1) / S[:, 0]
    assert np.allclose(said["expected_depth"], sum(1 - gammaincc(k, rate) for k in (1, 2, 3)))
    assert said["excess"] < said["uniform_excess"]
    assert said["bound"] > said["excess"] > 0
    assert said["binding"] == ["budget"]
    assert said["seconds"] > 0


def test_the_default_is_the_tight_objective_with_a_scale_for_every_round(good):
    said = json.loads(adelfl("plan", good, "--json").stdout)
    T, m, S = (np.array(said[key]) for key in ("deadlines", "m", "batch_sizes"))
    assert said["objective"] == "tight"
    assert T.shape == m.shape == (100,)
    assert T.sum() == pytest.approx(300.0, rel=1e-9)
    assert np.array_equal(S[:, 0], np.maximum(1, np.floor(m * 16.0 * (T - 0.1) / T)))
    assert said["excess"] < said["uniform_excess"]
    done = adelfl("plan", good, "--method", "trust-region")
    assert done.returncode == 2
    assert "the paper's objective" in done.stderr


@pytest.mark.parametrize("objective", ["tight", "paper"])
def test_the_plan_file_page_lists_the_keys_of_the_json(good, objective):
    text = (REPO / "docs/plan-file.md").read_text(encoding="utf-8")
    section = text.partition("\n## JSON output\n")[2]
    keys = " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", keys)) == set(
        json.loads(adelfl("plan", good, "--json", "--objective", objective).stdout)
    )


def test_the_two_methods_agree(good):
    exact, other = (
        json.loads(adelfl("plan", good, "--json", "--objective", "paper", "--method", k).stdout)
        for k in ("exact", "trust-region")
    )
    assert exact["excess"] <= other["excess"] * (1 + 1e-6)
    assert np.allclose(exact["deadlines"], other["deadlines"], rtol=1e-2)


def test_without_json_there_is_a_table_a_sparkline_and_a_sentence(good):
    done = adelfl("plan", good)
    assert done.returncode == 0
    assert "█" in done.stdout
    assert "first layer empty" in done.stdout
    assert "the first layer would stay empty in" in done.stdout


def test_a_name_is_no_formula_in_a_plot(good, tmp_path):
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("name,compute,count\n$^$,16,30\n")
    done = adelfl("plan", good, "--fleet", fleet, "--plot", tmp_path / "plan.png")
    assert done.returncode == 0, done.stderr


def test_plot_is_a_picture(good, tmp_path):
    picture = tmp_path / "plan.png"
    assert adelfl("plan", good, "--json", "--plot", picture).returncode == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_legends_of_a_plan_name_what_is_drawn(good):
    path = good.with_name("two.toml")
    path.write_text(GOOD.replace("count = 30", 'count = 30\nname = "near"\n[[device]]\ncompute = 4.0\nupload = 1e4'))
    fig = draw_plan(plan(load_problem(path)))
    legends = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in fig.axes if ax.get_legend()]
    assert legends == [
        ["plan", "uniform deadline, 3 s"],
        ["plan", "uniform deadline, batch 16"],
        ["near", "without a plan, 16", "sitting out: 1 of 31"],
    ]


def test_csv_takes_the_place_of_the_devices(good, tmp_path):
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("compute,upload,count\n16,0.1,30\n")
    one, other = adelfl("plan", good, "--json"), adelfl("plan", good, "--json", "--fleet", fleet)
    assert json.loads(one.stdout)["deadlines"] == json.loads(other.stdout)["deadlines"]


def test_the_example_plans_and_names_who_sits_out():
    done = adelfl("plan", REPO / "examples" / "phones.toml", "--json")
    said = json.loads(done.stdout)
    assert [s["name"] for s in said["sitting_out"]] == ["one in a tunnel"]
    assert {row[3] for row in said["batch_sizes"]} == {0}
    strict = adelfl("plan", REPO / "examples" / "phones.toml", "--strict")
    assert strict.returncode == 2
    assert "one in a tunnel" in strict.stderr


def test_version_and_help():
    assert adelfl("--version").stdout.startswith("adelfl ")
    assert "plan" in adelfl("--help").stdout


BAD = {
    "unknown key": (("rounds = 100", "rounds = 100\nround = 5"), "problem.round: unknown key; did you mean 'rounds'?"),
    "unknown section": (("[constants]", "[constant]"), "constant: unknown key; did you mean 'constants'?"),
    "negative": (("compute = 16.0", "compute = -16.0"), "device[1].compute: must be greater than 0"),
    "zero compute": (("compute = 16.0", "compute = 0"), "device[1].compute"),
    "nan": (("budget = 300.0", "budget = nan"), "problem.budget: must be"),
    "inf": (("budget = 300.0", "budget = inf"), "problem.budget: must be a finite number"),
    "not a number": (("budget = 300.0", 'budget = "much"'), "problem.budget: must be a number, not 'much'"),
    "true is no number": (("budget = 300.0", "budget = true"), "problem.budget: must be a number"),
    "half a round": (("rounds = 100", "rounds = 1.5"), "problem.rounds: must be a whole number"),
    "no rounds": (("rounds = 100", "rounds = 0"), "problem.rounds: must be at least 1"),
    "no layers": (("layers = 3", "layers = 0"), "problem.layers"),
    "missing key": (("budget = 300.0", ""), "problem.budget: is missing"),
    "one device": (("count = 30", "count = 1"), "one device"),
    "negative upload": (("upload = 0.1", "upload = -1"), "device[1].upload"),
    "upload longer than any deadline": (("upload = 0.1", "upload = 900"), "the quickest upload takes 900 s"),
    "huge count": (("count = 30", "count = 1000000000"), "device[1].count: must be at most 100000000"),
    "wrong schedule": (('"inverse"', '"cosine"'), "learning_rate.schedule: must be 'inverse' or 'constant'"),
    "misplaced time scale": (('"inverse"', '"constant"\ntime_scale = 3'), "learning_rate.time_scale"),
    "bad sigma2 list": (("sigma2 = 20.0", "sigma2 = [1.0, -2.0]"), "constants.sigma2"),
    "sigma2 list of wrong length": (("sigma2 = 20.0", "sigma2 = [1.0, 2.0]"), "sigma2"),
    "G2 list of wrong length": (("G2 = 1.5", "G2 = [1.0, 2.0]"), "G2 must be one number or 3, one per layer, not 2"),
    "zero G2": (("G2 = 1.5", "G2 = 0"), "constants.G2: must be greater than 0"),
    "learning rate too large": (("initial = 0.1", "initial = 100"), "rho_c"),
    "device is a table": (("[[device]]", "[device]"), "device: must be a list"),
    "broken toml": (("rounds = 100", "rounds = "), "not valid TOML"),
    "nested arrays": (("rounds = 100", f"rounds = {'[' * 5000}1{']' * 5000}"), "nested too deeply"),
    "nested tables": (("[[device]]", f"[{'.'.join('a' * 5000)}]\nb = 1\n[[device]]"), "a: unknown key"),
    "a number of 5,000 digits": (("rounds = 100", f"rounds = {'1' * 5000}"), "not valid TOML"),
    "a hexadecimal number of 5,000 digits": (("rounds = 100", f"rounds = 0x{'f' * 5000}"), "problem.rounds: must be"),
    "a budget of 4,000 digits": (("budget = 300.0", f"budget = {'1' * 4000}"), "problem.budget: must be"),
    "budget too small": (("budget = 300.0", "budget = 0.001"), "the smallest feasible budget is"),
}


@pytest.mark.parametrize(("change", "sentence"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_with_its_key(tmp_path, monkeypatch, capsys, change, sentence):
    path = tmp_path / "bad.toml"
    assert change[0] in GOOD
    path.write_text(GOOD.replace(*change))
    monkeypatch.setattr(sys, "argv", ["adelfl", "plan", str(path), "--json"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def test_bad_input_ends_the_process_with_2_and_no_traceback(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace("rounds = 100", "rounds = 0"))
    done = process("plan", path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_byte_order_mark_is_passed_over(good):
    marked = good.with_name("marked.toml")
    marked.write_text(good.read_text(), encoding="utf-8-sig")
    assert load_problem(marked).fleet.compute.tolist() == load_problem(good).fleet.compute.tolist()


def test_empty_fleet_and_missing_files_are_said(tmp_path, good):
    path = tmp_path / "empty.toml"
    path.write_text(GOOD.split("[[device]]")[0])
    for arguments, sentence in [
        ((path,), "the fleet is empty"),
        ((tmp_path / "none.toml",), "no such file"),
        ((tmp_path,), "cannot be read"),
        ((good, "--fleet", tmp_path / "none.csv"), "none.csv"),
        ((good, "--plot", tmp_path / "plan.xyz"), "must end in one of"),
        ((good, "--plot", tmp_path / "no" / "plan.png"), "cannot be written"),
    ]:
        done = adelfl("plan", *arguments)
        assert done.returncode == 2, arguments
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


def test_the_smallest_budget_that_is_named_works(tmp_path):
    path = tmp_path / "tight.toml"
    path.write_text(GOOD.replace("budget = 300.0", "budget = 0.001"))
    said = adelfl("plan", path).stderr
    smallest = float(said.split("the smallest feasible budget is ")[1].split()[0])
    path.write_text(GOOD.replace("budget = 300.0", f"budget = {smallest}"))
    assert adelfl("plan", path).returncode == 0
