"""The leaderboard: equal effort for every method, choices besides the learning rate, and its tables and figure."""

import math
from dataclasses import replace

import numpy as np
import pytest

from adelfl.config.build import build_experiment
from adelfl.experiments.conduct import Setup, conduct
from adelfl.experiments.results import CHANCE, CURVE, StudyResults, StudyRun
from adelfl.experiments.study import FIRST_TUNING_SEED, Cell, Study
from adelfl.records.reader import find_runs
from adelfl.strategies import find_strategy
from adelfl.strategies.base import check_options
from studies import find_study
from studies.figures import draw_board
from studies.leaderboard import METHODS, NAMES, REFERENCES, encoding, finished, local_work, pace, parameter
from studies.page import best_method, board_table, winners_table


class Silent:
    def __init__(self):
        self.jobs = []

    def stage(self, name, runs):
        pass

    def row(self, job, row):
        pass

    def done(self, job, accuracy):
        self.jobs.append(job)


def steps(cell, method, best):
    return "training.local_iterations=1", "training.local_iterations=2"


def rounds(cell, method, best):
    return tuple(f"{best} training.rounds={n}" for n in (1, 12))


TINY = Study(
    name="tiny",
    title="Tiny",
    source="ours",
    changes=("training.rounds=3", "training.evaluations=4", "fleet.devices=4", "training.budget=12"),
    cells=(Cell("only", "lognormal, IID, tight", ()),),
    strategies=("salf", "drop"),
    seeds=1,
    tuning=("data.validation=0.25",),
    rates=(0.1, 0.5),
    choices=(steps, rounds),
)


CELL = TINY.cells[0]


# -- the studies


@pytest.mark.parametrize("name", NAMES)
def test_every_alternative_of_every_method_is_a_setting(name):
    study = find_study(name)
    assert study.strategies == (*METHODS, *REFERENCES)
    for cell in (study.cells[0], study.cells[-1]):
        for method in study.strategies:
            choices = [""]
            for alternatives in study.choices:  # one after the other, as a choice starts from the best of those before
                choices += [more for choice in choices[-2:] for more in alternatives(cell, method, choice)]
            for choice in choices:
                config = study.setting(cell, 0.1, *study.tuning, choice=choice)
                check_options(find_strategy(method), config.strategy.options)


def test_every_method_has_as_many_trials_of_local_work_and_pace():
    for method in METHODS:
        first = local_work(CELL, method, "")
        assert len(set(first)) == 3
        assert all(len(set(pace(CELL, method, choice))) == 3 for choice in first)
        assert 1 <= len(parameter(CELL, method, first[0], unequal=True)) <= 2


def test_uploads_are_encoded_only_where_they_take_time():
    study = find_study("leaderboard-digits")
    for cell in study.cells:
        takes_time = study.setting(cell, 0.1).fleet.kind == "traces"
        assert takes_time == bool(encoding(cell, "drop", ""))
        works = local_work(cell, "drop", "")
        assert len(set(works)) == (6 if takes_time else 3)
        tried = {
            study.setting(cell, 0.1, choice=c).training.codec for w in works for c in (w, *encoding(cell, "drop", w))
        }
        assert len(tried) == (3 if takes_time else 1)


def test_the_budgets_of_the_digits_are_starved_tight_and_ample():
    study = find_study("leaderboard-digits")
    cells = [cell for cell in study.cells if cell.key.startswith("lognormal-iid")]
    depth = []
    for cell in cells:
        problem = build_experiment(study.setting(cell, 0.1)).strategy.problem
        work = problem.compute * problem.uniform_deadline / problem.batch  # expected layers in a round
        depth.append(np.minimum(work / problem.layers, 1.0).mean())
    assert depth[0] < 0.3 < depth[1] < 0.6 < depth[2]


# -- choices besides the learning rate


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return conduct(TINY, Setup(folder), Silent()), folder


def test_the_first_choice_is_tried_at_all_rates_and_the_next_at_the_best_and_the_next_lower(tiny):
    outcome, _ = tiny
    for method in TINY.strategies:
        trials = [t for t in outcome.trials if t.strategy == method]
        first = [t for t in trials if "rounds" not in t.choice]
        then = [t for t in trials if "rounds" in t.choice]
        assert {t.point for t in first} == {(rate, choice) for rate in TINY.rates for choice in steps(None, "", "")}
        best = max(first, key=lambda t: t.accuracy)
        assert {t.point for t in then} == {
            (rate, choice) for choice in rounds(None, "", best.choice) for rate in TINY.rates if rate <= best.rate
        }
        assert {t.seed for t in trials} == {FIRST_TUNING_SEED}


def test_what_is_best_on_validation_data_is_run(tiny):
    outcome, folder = tiny
    for run in outcome.runs:
        best = max((t for t in outcome.trials if t.strategy == run.strategy), key=lambda t: t.accuracy)
        assert (run.rate, run.choice) == best.point
    for record in find_runs(folder):
        assert (record.info.config["data"]["validation"] > 0) == (record.folder.parent.name == "tuning")


def test_choices_are_kept_in_the_tables_and_not_run_again(tiny, tmp_path):
    outcome, _ = tiny
    outcome.write(tmp_path / "tiny")
    earlier = StudyResults.read(TINY, tmp_path / "tiny")
    assert [(r.choice, r.rate, r.final) for r in earlier.runs] == [
        (r.choice, r.rate, pytest.approx(r.final, rel=1e-5)) for r in outcome.runs
    ]
    watch = Silent()
    conduct(TINY, Setup(tmp_path / "runs", earlier=earlier), watch)
    assert not watch.jobs


def test_a_setting_without_a_plan_counts_as_guessing(tmp_path):
    """The paper's plan needs a sample of every device in every round."""
    study = replace(TINY, strategies=("adel-paper",), choices=(lambda *_: ("training.rounds=5000",),))
    (run,) = conduct(study, Setup(tmp_path), Silent()).runs
    assert (run.broke_down, run.final, run.counted) == (True, CHANCE, 0.0)


def test_time_that_counts_is_that_of_devices_that_were_merged(tmp_path):
    """Of the same layers, salf merges all that arrive in time, and drop those of devices that finish."""
    study = replace(TINY, choices=())
    outcome = conduct(study, Setup(tmp_path), Silent())
    counted = {run.strategy: run.counted for run in outcome.runs}
    assert 0.0 < counted["drop"] < counted["salf"] <= 1.0


# -- tables and figure


def board(accuracy, seeds=3):
    """Results of two cells with ``accuracy(cell, method, seed)`` in place of runs."""
    study = find_study("leaderboard-wisdm")
    study = replace(study, cells=study.cells[:2])
    runs = []
    for cell in study.cells:
        for method in study.strategies:
            for seed in range(seeds):
                final = accuracy(cell.key, method, seed)
                curve = " ".join(f"{final * share:.6g}" for share in CURVE)
                moments = [final] * 6
                choice = local_work(cell, method, "")[0]
                runs.append(
                    StudyRun(cell.key, method, method, seed, 0.2, *moments, 1.0, 9, 1.0, 1.0, False, curve, choice, 0.5)
                )
    return StudyResults(study, tuple(runs))


def test_times_to_a_level_are_those_of_the_curve():
    outcome = board(lambda cell, method, seed: 0.8 if seed else 0.4)
    cell = outcome.study.cells[0]
    reached = outcome.reached(cell, "adel", 60.0)
    assert math.isnan(reached[0])  # ends at 40 %
    assert reached[1:] == pytest.approx(0.75)  # a straight line to 80 %


def test_the_best_method_is_no_reference():
    level = {"oracle": 0.9, "clairvoyant": 0.85, "adel": 0.8, "fedbuff": 0.7}
    outcome = board(lambda cell, method, seed: level.get(method, 0.5))
    cell = outcome.study.cells[0]
    assert best_method(outcome, cell) == "adel"
    assert best_method(outcome, cell, "adel") == "fedbuff"


def test_the_table_of_winners_states_how_far_adel_is_ahead_or_behind():
    outcome = board(
        lambda cell, method, seed: 0.5 + 0.1 * (method == "oort") + 0.2 * (method == "adel") * ("t" in cell)
    )
    text = winners_table(outcome)
    for cell in outcome.study.cells:
        assert f"| {cell.title} | **adel** | 70.0 ± 0.0 | 70.0 ± 0.0 | +10.0 ± 0.0 (oort) |" in text
    assert "η 0.2, E 1, R 100" in text
    behind = winners_table(board(lambda cell, method, seed: 0.5 + 0.1 * (method == "oort")))
    assert "| oort | 60.0 ± 0.0 | 50.0 ± 0.0 | -10.0 ± 0.0 (oort) |" in behind


def test_the_table_of_all_methods_has_accuracy_time_and_counted_time():
    outcome = board(lambda cell, method, seed: 0.8 if method in ("clairvoyant", "adel") else 0.4)
    lines = {line.split("|")[1].strip(): line for line in board_table(outcome).splitlines() if line.startswith("|")}
    assert lines["adel"].count("80.0 ± 0.0; 90%; 50%") == 2
    assert lines["salf"].count("40.0 ± 0.0; –; 50%") == 2
    assert lines["oracle"].count("40.0 ± 0.0; – |") == 2  # its devices take no time


def test_cells_without_all_methods_are_left_out():
    outcome = board(lambda cell, method, seed: 0.5)
    first, second = outcome.study.cells
    fewer = [run for run in outcome.runs if (run.cell, run.strategy, run.seed) != (second.key, "oort", 2)]
    assert finished(StudyResults(outcome.study, tuple(fewer))) == [first]


def test_the_figure_boxes_the_best_methods_and_sorts_by_distance():
    scores = {"salf": (60.0, 1.0), "adel": (80.0, 1.0), "drop": (79.5, 1.0), "oracle": (90.0, 1.0)}
    fig = draw_board([("Digits, phones, IID", "tight", scores), ("Digits, phones, IID", "ample", scores)], ["oracle"])
    ax = fig.axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["adel", "drop", "salf", "oracle"]
    assert sorted((box.get_x() > 0, round(box.get_y() + 0.45)) for box in ax.patches) == [
        (False, 0),
        (False, 1),
        (True, 0),
        (True, 1),
    ]
