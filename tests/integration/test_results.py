"""Pages, verdicts and figures agree with the tables of results."""

import json
import shutil
from pathlib import Path

import pytest

from adelfl.experiments.results import StudyResults
from studies import NAMES, find_study
from studies.page import fill_page
from support.small_worlds import typed

REPO = Path(__file__).parents[2]
RESULTS = REPO / "docs" / "results"
DONE = [name for name in NAMES if (RESULTS / f"{name}.csv").is_file()]


@pytest.mark.parametrize("page", ["README.md", "docs/reproduction.md", "docs/beyond.md", "docs/leaderboard.md"])
def test_the_pages_agree_with_the_tables_of_results(page):
    text = (REPO / page).read_text(encoding="utf-8")
    assert fill_page(text, RESULTS) == text


@pytest.mark.parametrize("name", DONE)
def test_the_verdicts_follow_from_the_runs(name):
    study = find_study(name)
    outcome = StudyResults.read(study, RESULTS / name)
    cells = {cell.key: cell for cell in study.cells}
    summary = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert [c["verdict"] for c in summary["claims"]] == [v.verdict for v in outcome.verdicts()]
    for claim, verdict in zip(summary["claims"], outcome.verdicts(), strict=True):
        assert claim["ours"] == pytest.approx(verdict.ours, abs=1e-2)
    # A leaderboard is shown before all of its cells are finished.
    for cell in study.cells if "leaderboard" not in name else {cells[run.cell] for run in outcome.runs}:
        for strategy in study.strategies_of(cell):
            assert len(outcome.of(cell, strategy)) >= (study.home(cell, strategy).seeds or study.seeds)


@pytest.mark.parametrize("name", DONE)
def test_pictures_are_there_and_small(name):
    picture = RESULTS / ("leaderboard.png" if name.startswith("leaderboard") else f"{name}.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sum(path.stat().st_size for path in RESULTS.glob(f"{name}*")) < 2_000_000


def test_a_page_shows_the_runs_so_far_of_a_study_that_is_not_finished(tmp_path):
    partial = tmp_path / "results" / "partial"
    partial.mkdir(parents=True)
    for path in RESULTS.glob("beyond-cifar*"):
        shutil.copy(path, partial)
    page = fill_page("<!-- results: beyond-cifar -->\n<!-- end -->\n", tmp_path / "results")
    assert "*This study is not finished; these are the runs so far.*" in page
    assert "(results/partial/beyond-cifar.png)" in page


def test_a_summary_of_stored_rows_keeps_their_computing_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in RESULTS.glob("beyond-cifar*"):
        shutil.copy(path, tmp_path)
    tables = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.csv")}
    before = json.loads((tmp_path / "beyond-cifar.json").read_text(encoding="utf-8"))["about"]
    assert before["core_minutes"] > 0
    done = typed("reproduce", "beyond-cifar", "--summary", "--out", tmp_path)
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "beyond-cifar.json").read_text(encoding="utf-8"))["about"] == before
    assert {path: path.stat().st_mtime_ns for path in tables} == tables
    assert "nan" not in done.out
    assert "Runs: " not in done.out
    assert typed("reproduce", "beyond-cnn", "--summary", "--out", tmp_path / "none").code == 2
    assert not (tmp_path / "none").exists()
