"""The paper's experiments as commands: what is tuned on what, who meets which luck, when a claim holds."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from adelfl.errors import ConfigError
from adelfl.experiments.conduct import Setup, conduct
from adelfl.experiments.results import CHANCE, Difference, StudyResults, StudyRun, Trial, judge
from adelfl.experiments.study import FIRST_TUNING_SEED, RATES, Cell, Claim, Study
from adelfl.records.reader import RunRecord, find_runs
from adelfl.strategies import find_strategy
from studies import NAMES, find_study
from studies.page import claims_table, closed, fill_page, goals_table, results_table, seeds_table, verdicts_table
from studies.paper import map_gains
from studies.regime import depth_by_seed, fit_regime
from support.small_worlds import dataset_of, typed

PAPER = ("mnist-mlp", "mnist-cnn", "cifar-vgg11", "cifar-vgg13", "robust-l2", "robust-constant", "robust-e3")
PAPER += ("robust-e5", "table-2")


class Silent:
    def __init__(self):
        self.ended = []

    def stage(self, name, runs):
        pass

    def row(self, job, row):
        pass

    def done(self, job, accuracy):
        self.ended.append((job, accuracy))


TINY = Study(
    name="tiny",
    title="Tiny",
    source="nowhere",
    changes=("data.name=digits", "training.rounds=6", "training.evaluations=6", "fleet.devices=4"),
    cells=(Cell("calm", "Calm", ("training.depth=0.5",)), Cell("starved", "Starved", ("training.depth=0.1",))),
    strategies=("adel-paper", "salf", "oracle"),
    claims=(Claim("adel wins", "adel-paper", "salf", 20.0), Claim("in one cell", "oracle", "salf", cells=("calm",))),
    seeds=2,
    tuning=("data.validation=0.25",),
    tuning_seeds=2,
    falling=True,
    rates=(0.1, 0.5, 1.0),
)


SMALL = replace(TINY, tuning_seeds=1, rates=(0.5,))


def run_of(cell, strategy, seed, final, **more):
    moments = {f"at_{share}": final for share in (25, 50, 60, 75, 100)}
    values = {"rate": 0.1, "depth": 0.5, "rounds": 6, "first_deadline": 2.0, "last_deadline": 1.0, "broke_down": False}
    return StudyRun(cell=cell, strategy=strategy, label=strategy, seed=seed, final=final, **moments, **values | more)


def outcome_of(study, accuracy):
    """An outcome with ``accuracy(cell, strategy, seed)`` in place of runs."""
    runs = [
        run_of(cell.key, strategy, seed, accuracy(cell.key, strategy, seed))
        for cell in study.cells
        for strategy in study.strategies
        for seed in range(study.seeds)
    ]
    return StudyResults(study, tuple(runs))


# -- the catalogue


@pytest.mark.parametrize("scale", ["cpu", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_every_study_can_be_read(name, scale):
    study = find_study(name, scale)
    assert study.name == name
    assert len({cell.key for cell in study.cells}) == len(study.cells)
    for cell in study.cells:
        for rate in RATES:
            said = study.setting(cell, rate)
            assert said.learning_rate.initial == rate
            assert said.data.validation == 0.0
            assert study.setting(cell, rate, *study.tuning).data.validation > 0
    for word in study.strategies:
        find_strategy(word.split("[")[0])
    for claim in study.claims:
        assert {claim.better, claim.worse} <= set(study.strategies)
        assert set(claim.cells) <= {cell.key for cell in study.cells}


def test_the_papers_studies_are_the_papers():
    assert set(PAPER) < set(NAMES)
    for name in PAPER:
        study = find_study(name, "full")
        everybody = {"adel-paper", "salf", "salf[average_over=all]", "drop", "wait", "heterofl", "oracle"}
        assert set(study.strategies) - {"adel"} == everybody
        assert study.seeds >= (5 if "mnist" in name else 3)
        said = study.setting(study.cells[0], 0.1)
        assert (said.fleet.devices, said.training.batch, said.model.width) == (30, 16, 1.0)
    budgets = {c.key: study.setting(c, 0.1).training.budget_share for c in find_study("table-2").cells[:4]}
    assert list(budgets) == ["T1200", "T1600", "T2000", "T2400"]
    assert np.allclose(list(budgets.values()), np.array([1200, 1600, 2000, 2400]) / 2400)


def test_a_study_that_is_not_known_is_one_sentence():
    with pytest.raises(ConfigError, match="did you mean 'mnist-mlp'"):
        find_study("mnist-mpl")


# -- carrying one out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    watch = Silent()
    return conduct(TINY, Setup(folder, seeds=2, first_seed=3), watch), folder, watch


def test_every_strategy_gets_the_same_effort_on_validation_data_only(tiny):
    outcome, folder, _ = tiny
    tried = {(t.cell, t.strategy): [] for t in outcome.trials}
    for t in outcome.trials:
        tried[t.cell, t.strategy].append(t.rate)
    assert set(tried) == {(c.key, s) for c in TINY.cells for s in TINY.strategies}
    assert all(sorted(rates) == sorted(2 * TINY.rates) for rates in tried.values())
    for record in find_runs(folder):
        tuning = record.folder.parent.name == "tuning"
        assert (record.info.config["data"]["validation"] > 0) == tuning
        assert (record.info.seed in (FIRST_TUNING_SEED, FIRST_TUNING_SEED + 1)) == tuning


def test_the_rate_that_is_best_on_validation_data_is_run(tiny):
    outcome, _, _ = tiny
    for cell in TINY.cells:
        for strategy in TINY.strategies:
            mine = [t for t in outcome.trials if (t.cell, t.strategy) == (cell.key, strategy)]
            trials = {rate: np.mean([t.accuracy for t in mine if t.rate == rate]) for rate in TINY.rates}
            (rate,) = {run.rate for run in outcome.of(cell, strategy)}
            assert trials[rate] == max(trials.values())


def test_the_best_on_the_first_seed_are_tried_on_the_others_and_similar_cells_take_their_rates_over(tmp_path):
    calm, starved = TINY.cells
    racing = replace(TINY, cells=(calm, replace(starved, rates_of=calm.key)), tuning_seeds=3, finalists=2, claims=())
    outcome = conduct(racing, Setup(tmp_path, seeds=1), Silent())
    for strategy in TINY.strategies:
        mine = [t for t in outcome.trials if t.strategy == strategy]
        assert {t.cell for t in mine} == {calm.key}
        first = {t.rate: t.accuracy for t in mine if t.seed == FIRST_TUNING_SEED}
        finalists = sorted(first, key=first.__getitem__)[-2:]
        assert sorted(first) == sorted(TINY.rates)
        for seed in (FIRST_TUNING_SEED + 1, FIRST_TUNING_SEED + 2):
            assert sorted(t.rate for t in mine if t.seed == seed) == sorted(finalists)
        mean = {rate: np.mean([t.accuracy for t in mine if t.rate == rate]) for rate in finalists}
        assert {run.rate for cell in racing.cells for run in outcome.of(cell, strategy)} == {max(mean, key=mean.get)}


def test_where_the_best_rate_is_at_the_edge_further_ones_are_tried(tmp_path):
    timid = replace(TINY, cells=TINY.cells[:1], strategies=("oracle",), rates=(0.01, 0.02), wider=3, claims=())
    outcome = conduct(timid, Setup(tmp_path, seeds=1), Silent())
    first = {t.rate: t.accuracy for t in outcome.trials if t.seed == FIRST_TUNING_SEED}
    tried = sorted(first)
    assert 2 < len(tried) <= 5
    assert tried == [0.01 * 2**k for k in range(len(tried))]
    assert max(first[rate] for rate in tried[1:-2]) <= first[tried[-2]]  # each step outwards was worth it
    assert first[tried[-1]] <= first[tried[-2]] or len(tried) == 5  # it ends inside, or where no more may be tried


def test_strategies_meet_the_same_luck(tiny):
    outcome, _, _ = tiny
    for cell in TINY.cells:
        assert [run.seed for run in outcome.of(cell, "adel-paper")] == [3, 4]
        for seed in (3, 4):
            infos = [RunRecord(outcome.folders[cell.key, s, seed]).info for s in TINY.strategies]
            for one, other in pairwise(infos):
                assert (one.budget, one.constants) == (other.budget, other.constants)


def test_what_is_finished_is_not_run_again(tiny):
    outcome, folder, _ = tiny
    before = {r.folder: (r.folder / "result.json").stat().st_mtime_ns for r in find_runs(folder)}
    again = conduct(TINY, Setup(folder, seeds=2, first_seed=3), Silent())
    assert again.runs == outcome.runs
    assert again.trials == outcome.trials
    assert {f: (f / "result.json").stat().st_mtime_ns for f in before} == before


def test_one_cell_is_run_with_what_it_takes_from_other_cells_and_the_rows_of_other_cells_stay(tmp_path):
    calm, starved = SMALL.cells
    study = replace(SMALL, cells=(calm, replace(starved, rates_of="calm", oracle_of="calm")), claims=())
    watch = Silent()
    first = conduct(study, Setup(tmp_path, seeds=1, cells=("starved",)), watch)
    places = {("starved", "adel-paper"), ("starved", "salf"), ("calm", "oracle")}
    assert {(run.cell, run.strategy) for run in first.runs} == places
    assert {(t.cell, t.strategy) for t in first.trials} == {("calm", strategy) for strategy in study.strategies}
    assert {run.seed for run in first.runs} == {0}
    more = conduct(study, Setup(tmp_path, seeds=2, cells=("calm",), earlier=first), Silent())
    assert {run for run in first.runs if run.cell == "starved"} <= set(more.runs)
    assert {(run.cell, run.strategy) for run in more.runs} == places | {("calm", s) for s in study.strategies}
    assert set(more.trials) == set(first.trials)
    fewer = conduct(study, Setup(tmp_path, seeds=1, cells=("starved",), earlier=more), Silent())
    assert set(fewer.runs) == set(more.runs)


def test_a_cell_is_run_with_the_oracle_that_its_claims_need(tmp_path):
    calm, starved = SMALL.cells
    lean = replace(starved, rates_of="calm", oracle_of="calm", strategies=("salf",))
    outcome = conduct(
        replace(SMALL, cells=(calm, lean), claims=()), Setup(tmp_path, seeds=1, cells=("starved",)), Silent()
    )
    assert {(run.cell, run.strategy) for run in outcome.runs} == {("starved", "salf"), ("calm", "oracle")}


def test_a_run_that_breaks_down_counts_as_guessing_and_loses_the_choice(tmp_path):
    # A weight decay of 50 times a step of 1 overshoots ever further.
    broken = replace(
        TINY,
        changes=(*TINY.changes, "training.rounds=60", "training.weight_decay=50"),
        cells=TINY.cells[:1],
        strategies=("salf", "oracle"),
        claims=(),
        falling=False,
        tuning_seeds=1,
    )
    watch = Silent()
    outcome = conduct(broken, Setup(tmp_path, seeds=1), watch)
    rates = [t for t in outcome.trials if t.strategy == "oracle"]
    assert [math.isnan(t.accuracy) for t in sorted(rates, key=lambda t: t.rate)][-1]
    assert any(math.isnan(accuracy) for _, accuracy in watch.ended)
    for run in outcome.runs:
        assert run.broke_down == (run.final == CHANCE and run.depth == 0.0)
    assert conduct(broken, Setup(tmp_path, seeds=1), Silent()).runs == outcome.runs


class Mistaken(find_strategy("drop")):
    """A strategy with a programming mistake, which is found in its third round."""

    name = "mistaken"

    def weights(self, t, progress):
        return super().weights(t, progress)[:, : 1 if t == 2 else None]


def test_a_mistake_in_a_strategy_ends_the_study_and_is_not_taken_for_a_run_that_broke_down(tmp_path, monkeypatch):
    study = replace(SMALL, strategies=("test_experiments:Mistaken", "oracle"), claims=(), falling=False)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    for _ in range(2):
        with pytest.raises(ConfigError, match="weights must have shape"):
            conduct(study, Setup(tmp_path, seeds=1), Silent())


# -- what came out


def test_differences_are_paired_by_seed():
    luck = {0: 0.3, 1: 0.9}
    outcome = outcome_of(TINY, lambda cell, strategy, seed: luck[seed] + (0.05 if strategy == "adel-paper" else 0.0))
    seen = outcome.difference(TINY.cells[0], "adel-paper", "salf")
    assert seen.mean == pytest.approx(5.0)
    assert seen.error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("claimed", "mean", "error", "seeds", "verdict"),
    [
        (None, 5.0, 1.0, 5, "holds"),
        (13.0, 12.0, 1.0, 5, "holds"),
        (20.0, 5.0, 1.0, 5, "holds, but smaller"),
        (None, 1.0, 1.0, 5, "not seen: no clear difference"),
        (20.0, 1.0, 1.0, 5, "does not hold: no such difference"),
        (None, -5.0, 1.0, 5, "does not hold: the reverse"),
        # Three seeds: Student's interval is 4.3 standard errors, not 2.
        (None, 4.0, 1.0, 3, "not seen: no clear difference"),
        (None, 5.0, math.nan, 1, "not judged (one seed)"),
    ],
)
def test_a_verdict_needs_95_percent(claimed, mean, error, seeds, verdict):
    assert judge(claimed, Difference(mean, error, seeds)) == verdict


def test_claims_are_looked_at_in_every_cell_or_where_they_say():
    outcome = outcome_of(TINY, lambda cell, strategy, seed: 0.5)
    places = [(v.claim.split(" [")[0], v.cell) for v in outcome.verdicts()]
    assert places == [
        ("adel wins", "calm"),
        ("adel wins", "starved"),
        ("in one cell", "calm"),
        ("planned deadlines decrease over the rounds", "calm"),
        ("planned deadlines decrease over the rounds", "starved"),
    ]


def test_a_claim_is_not_judged_while_its_strategies_have_no_seed_in_common():
    runs = [run_of("calm", strategy, seed, 0.5) for seed, strategy in enumerate(("adel-paper", "salf"))]
    study = replace(TINY, cells=TINY.cells[:1], falling=False)
    assert StudyResults(study, tuple(runs)).verdicts() == []


def test_a_rate_survives_a_file_exactly(tmp_path):
    trials = tuple(Trial("calm", "salf", rate, 1000, 0.5) for rate in (1 / 3, 0.1, 1.0))
    StudyResults(TINY, (), trials).write(tmp_path / "tiny")
    assert StudyResults.read(TINY, tmp_path / "tiny").trials == trials


def test_results_survive_a_file(tiny, tmp_path):
    outcome, _, _ = tiny
    outcome.write(tmp_path / "tiny")
    again = StudyResults.read(TINY, tmp_path / "tiny")
    for one, other in zip(outcome.runs, again.runs, strict=True):
        assert (one.cell, one.strategy, one.seed, one.broke_down) == (
            other.cell,
            other.strategy,
            other.seed,
            other.broke_down,
        )
        assert one.final == pytest.approx(other.final, rel=1e-5)
    assert results_table(outcome) == results_table(again)
    assert claims_table(outcome) == claims_table(again)


def test_a_claim_has_one_row_with_both_regimes_beside_each_other(tmp_path):
    calm, starved = TINY.cells
    cells = (replace(calm, regime="stated"), replace(starved, regime="inferred"))
    study = replace(TINY, cells=cells, claims=(replace(TINY.claims[0], cells=("calm", "starved")),), falling=False)
    gain = {"calm": 0.0, "starved": 0.3}
    outcome = outcome_of(
        study, lambda cell, name, seed: 0.5 + 0.0005 * seed + (gain[cell] + 0.002 * seed) * (name == "adel-paper")
    )
    (tmp_path / "tiny.json").write_text('{"about": {"core_minutes": 3.0}}')
    heading, _, row = verdicts_table(["tiny"], {"tiny": outcome}, {"tiny": tmp_path}).splitlines()
    assert heading == "| figure | claim | the paper | stated regime | inferred regime | command and core-minutes |"
    figure, claim, paper, stated, inferred, command = row.strip("| ").split(" | ")
    assert (figure, claim, paper) == ("nowhere", "adel wins [adel-paper − salf]", "+20")
    assert stated.startswith("+0.1 ± 0.1")
    assert inferred.startswith("+30.1 ± 0.1")
    assert command == "`adelfl reproduce tiny`: 3 core-minutes"


def test_results_with_other_seeds_are_beside_ours_with_their_difference_in_standard_errors(tmp_path):
    ours = outcome_of(TINY, lambda cell, name, seed: 0.5 + 0.01 * seed)
    again = outcome_of(TINY, lambda cell, name, seed: 0.5 + 0.01 * seed + 0.05 * (name == "adel-paper"))
    again.write(tmp_path / "tiny")
    text = seeds_table(["tiny/calm"], {"tiny": ours}, tmp_path)
    rows = {row.split(" | ")[2]: row.strip("| ").split(" | ")[-1] for row in text.splitlines()[2:] if row[:1] == "|"}
    error = 100 * np.std([0.01 * run.seed for run in ours.of(TINY.cells[0], "salf")], ddof=1)
    error /= math.sqrt(len(ours.of(TINY.cells[0], "salf")))
    assert rows["salf"] == "+0.0"
    assert float(rows["adel-paper"]) == pytest.approx(5.0 / math.hypot(error, error), abs=0.06)
    assert seeds_table(["tiny/calm"], {"tiny": ours}, tmp_path / "nowhere") == ""


def test_a_page_keeps_what_has_no_results(tmp_path):
    page = "Text.\n<!-- results: nowhere-at-all -->\nold\n<!-- end -->\nMore.\n"
    assert fill_page(page, tmp_path) == page


def test_the_map_knows_its_places():
    study = find_study("map")
    outcome = outcome_of(study, lambda cell, strategy, seed: 0.5 + 0.1 * (strategy == "adel-paper"))
    gains = map_gains(outcome)
    assert set(gains) == {"salf", "drop"}
    assert set(gains["salf"]) == {
        (U, L, d) for U in (5, 10, 30, 100) for L in (2, 3, 5, 8) for d in (0.1, 0.15, 0.25, 0.35, 0.5, 0.7)
    }
    assert all(mean == pytest.approx(10.0) for mean, _ in gains["drop"].values())


# -- the command line


def test_json_is_all_that_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = typed("reproduce", "test_experiments:SMALL", "--seeds", "2", "--jobs", "1", "--json")
    found = json.loads(done.out)
    assert set(found) == {"claims", "strategies"}
    assert set(found["claims"][0]) >= {"paper", "ours", "se", "verdict"}
    assert len(found["strategies"]["calm/adel-paper"]["final_accuracy"]) == 2
    for ending in (".csv", "-rates.csv", ".json", ".png"):
        assert (tmp_path / "results" / f"tiny{ending}").stat().st_size > 0


def test_a_study_of_the_users_own_is_named_by_its_import_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = typed("reproduce", "examples.own_study:STUDY", "--seeds", "1", "--jobs", "1", "--set", "training.rounds=3")
    assert done.code == 0
    assert "adel ends above salf" in done.out
    assert (tmp_path / "results" / "own-study.png").stat().st_size > 0
    done = typed("reproduce", "examples.own_study:STUDY", "--cell", "starved", "--summary")
    assert "--cell: has no effect with --summary" in done.err
    done = typed("reproduce", "examples.own_study:STUDY", "--cell", "elsewhere")
    assert done.code == 2
    assert "--cell elsewhere: not in own-study; choose from" in done.err
    done = typed("reproduce", "json:loads")
    assert done.code == 2
    assert "must be an adelfl.experiments.study.Study" in done.err


def test_without_a_package_of_studies_the_message_says_where_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("adelfl.cli.reproduce.find_spec", lambda name: None)
    done = typed("reproduce", "table-2")
    assert done.code == 2
    assert "run this in a clone of adelfl's repository" in done.err


def test_a_mistake_in_the_name_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = typed("reproduce", "table-3")
    assert done.code == 2
    assert "did you mean 'table-2'?" in done.err
    assert not list(tmp_path.iterdir())


# -- the paper's sizes


def cifar_like():
    return dataset_of((3, 32, 32), samples=1200, classes=10)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAPER if "mnist" not in name])
def test_the_papers_sizes_run(name, tmp_path):
    study = find_study(name, "full")
    cell = replace(study.cells[-1], rates_of="", oracle_of="", strategies=None)
    few = replace(study, cells=(cell,), strategies=("adel-paper",), claims=(), falling=False, rates=(0.05,))
    more = ("training.rounds=2", "training.evaluations=1", "data.factory=test_experiments:cifar_like")
    outcome = conduct(few, Setup(tmp_path, seeds=1, more=more), Silent())
    assert outcome.runs[0].rounds == 2


# -- beyond the paper


def beyond(accuracy):
    """Some seeds of the first study beyond the paper, with an accuracy for every strategy and cell."""
    study = find_study("beyond-digits")
    study = replace(study, cells=study.cells[:2], strategies=("salf", "adel-paper", "adel", "clairvoyant"))
    return outcome_of(study, accuracy)


def test_what_is_closed_is_the_share_of_the_gap_with_an_error_by_leaving_seeds_out():
    level = {"salf": 0.5, "adel-paper": 0.6, "adel": 0.86, "clairvoyant": 0.9}
    outcome = beyond(lambda cell, strategy, seed: level[strategy] + 0.01 * seed * (strategy == "adel"))
    share, error = closed(outcome, outcome.study.cells[0], "adel")
    seeds = np.arange(len(outcome.of(outcome.study.cells[0], "adel")))
    assert share == pytest.approx((0.86 - 0.5 + 0.01 * seeds.mean()) / 0.4)
    assert error == pytest.approx(0.01 * seeds.std(ddof=1) / np.sqrt(seeds.size) / 0.4)
    assert closed(beyond(lambda *_: 0.7), outcome.study.cells[0], "adel") is None


def test_the_table_of_gaps_names_every_cell_and_leaves_small_gaps_open():
    starved = beyond(lambda *_: 0.9).study.cells[0].key
    level = {"salf": 0.5, "adel-paper": 0.6, "adel": 0.86, "clairvoyant": 0.9}
    outcome = beyond(lambda cell, strategy, seed: level[strategy] if cell == starved else 0.9)
    lines = results_table(outcome).splitlines()
    assert lines[2].startswith(f"| {outcome.study.cells[0].title} | 50.0 ± 0.0 (0.1) |")
    assert lines[2].endswith("| 25% ± 0 | 90% ± 0 |")
    assert lines[3].endswith("| – | – |")


def test_the_table_of_goals_counts_what_is_met_and_names_what_is_not():
    first, second = (cell.key for cell in beyond(lambda *_: 0.9).study.cells)
    level = {first: {"salf": 0.5, "adel-paper": 0.6, "adel": 0.86, "clairvoyant": 0.9}}
    level[second] = {"salf": 0.5, "adel-paper": 0.8, "adel": 0.7, "clairvoyant": 0.9}
    outcome = beyond(lambda cell, strategy, seed: level[cell][strategy] + 0.001 * seed * (strategy == "adel"))
    row = goals_table(["beyond-digits"], {"beyond-digits": outcome}).splitlines()[2]
    titles = [cell.title for cell in outcome.study.cells]
    assert row == (f"| beyond-digits | 2 of 2 | 1 | 50% ({titles[1]}) | {titles[1]} (-9.8 ± 0.1) |")


def test_the_evidence_beyond_the_paper_has_all_that_was_promised():
    study = find_study("beyond-digits")
    assert {"wait", "drop", "salf", "heterofl", "adel-paper", "adel", "oracle", "clairvoyant"} < set(study.strategies)
    assert study.seeds >= 5
    titles = " ".join(cell.title for cell in study.cells)
    for word in ("15%", "25%", "50%", "85%", "IID", "Dirichlet 0.1", "Dirichlet 0.5", "constant", "η₀/(1+t"):
        assert word in titles
    wrong = {change for cell in find_study("beyond-beliefs").cells for change in cell.changes}
    assert {"fleet.misjudged=2.0", "fleet.misjudged_each=2.0", "latency.law=lognormal", "latency.known=false"} < wrong


# -- the regime of Table II


_MADE_UP = ("adel-paper", "salf", "drop", "wait")


def made_up_table(depth_at_largest, cells=(0.35, 0.5, 2 / 3, 5 / 6, 1.0, 1.3, 2.6), seeds=2):
    """Runs whose baselines are known functions of the deadline, and a paper that was measured at one of them."""
    table = find_study("table-2")
    study = replace(table, cells=tuple(Cell(f"x{x:.3f}", "", ()) for x in cells), strategies=(*_MADE_UP, "oracle"))

    def accuracy(strategy, x):
        rising = {"adel-paper": 0.6 * x / (0.1 + x), "salf": 0.6 * x / (0.3 + x), "drop": 0.05 + 0.2 * x}
        return (rising | {"wait": 0.4 * x**0.7, "oracle": 0.6})[strategy]

    def depth(x):
        return 1 - math.exp(-0.5 * x)

    runs = [
        run_of(f"x{x:.3f}", name, seed, accuracy(name, x), first_deadline=2.0 * x, depth=depth(x))
        for x in cells
        for name in study.strategies
        for seed in range(seeds)
    ]
    largest = -2.0 * math.log(1 - depth_at_largest)
    paper = {
        T: {name: 69 * accuracy(name, largest * T / 2400) / 0.6 for name in _MADE_UP} for T in (1200, 1600, 2000, 2400)
    }
    return StudyResults(study, tuple(runs)), paper


@pytest.mark.parametrize("depth", [0.36, 0.45, 0.6])
def test_the_depth_of_a_made_up_paper_is_found(depth):
    outcome, paper = made_up_table(depth)
    regime = fit_regime(outcome, paper, 69.0)
    assert regime.best == pytest.approx(depth, abs=0.01)
    assert regime.misfit.min() < 0.01 < regime.at(regime.depth[-1])
    assert depth_by_seed(outcome, paper, 69.0) == pytest.approx([depth, depth], abs=0.01)


def test_the_planned_methods_are_no_part_of_the_fit():
    outcome, paper = made_up_table(0.45)
    fit = fit_regime(outcome, paper, 69.0)
    boasting = {T: dict(row, **{"adel-paper": 99.0}) for T, row in paper.items()}
    assert fit_regime(outcome, boasting, 69.0).best == fit.best
    ours, theirs = fit.compared["adel-paper"]
    assert ours == pytest.approx(theirs, abs=0.01)
    assert theirs == pytest.approx([row["adel-paper"] / 69.0 for _, row in sorted(paper.items())])


def test_a_claim_is_tested_only_where_the_oracle_trains():
    claim = Claim("61 % against 36 %", "adel-paper", "salf", 25.0, reported=61.0)
    study = replace(TINY, claims=(claim,), falling=False)
    for oracle, tested in ((0.5, True), (0.45, False)):
        finals = {"adel-paper": 0.45, "salf": 0.2, "oracle": oracle}
        outcome = outcome_of(
            study, lambda cell, name, seed, finals=finals: finals[name] + 0.001 * seed * (name == "salf")
        )
        verdicts = [v.verdict for v in outcome.verdicts()]
        assert all(("not tested" not in v) == tested for v in verdicts)


def test_a_study_goes_on_from_the_rows_of_another_machine(tiny, tmp_path):
    outcome, _, _ = tiny
    outcome.write(tmp_path / "tiny")
    earlier = StudyResults.read(TINY, tmp_path / "tiny")
    watch = Silent()
    again = conduct(TINY, Setup(tmp_path / "runs", seeds=2, first_seed=3, earlier=earlier), watch)
    assert watch.ended == []
    assert [r.final for r in again.runs] == pytest.approx([r.final for r in outcome.runs], abs=1e-5)
    assert again.contenders()[0][1][0].curve(np.array([0.0, 1.0])).shape == (2, 2)
    older = replace(earlier, runs=[replace(run, curve="") for run in earlier.runs])
    assert np.isnan(older.contenders()[0][1][0].curve(np.array([0.0, 1.0]))).all()
    more = conduct(TINY, Setup(tmp_path / "runs", seeds=3, first_seed=3, earlier=earlier), watch)
    assert {job.seed for job, _ in watch.ended} == {5}
    assert len(more.runs) == len(outcome.runs) * 3 // 2


def test_the_oracle_of_cells_that_share_it_runs_once(tmp_path):
    calm, starved = TINY.cells
    study = replace(TINY, cells=(calm, replace(starved, oracle_of="calm", strategies=("salf", "oracle"))), claims=())
    kept = []
    outcome = conduct(study, Setup(tmp_path, seeds=1), Silent(), keep=kept.append)
    assert [(r.cell, r.strategy) for r in outcome.runs] == [
        ("calm", "adel-paper"), ("calm", "salf"), ("calm", "oracle"), ("starved", "salf")
    ]  # fmt: skip
    assert outcome.of(study.cells[1], "oracle") == outcome.of(study.cells[0], "oracle")
    assert [len(known.runs) for known in kept] == [1, 2, 3, 4]
    assert results_table(outcome).splitlines()[3].startswith("| Starved |  |")


@pytest.mark.parametrize("name", ["table-2", "cifar-vgg11"])
def test_every_cell_that_a_regime_is_inferred_from_has_an_oracle(name):
    study = find_study(name)
    for cell in study.cells:
        assert "oracle" in study.strategies_of(study.home(cell, "oracle"))
