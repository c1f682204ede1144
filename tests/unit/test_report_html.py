"""The report: complete, one file, the numbers of the records, and nothing that a record says gets out of hand."""

import base64
import errno
import json
import os
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from adelfl.atomic import write_json
from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row
from adelfl.records.summary import QUARTERS, Summary
from adelfl.report.comparison import Contender, standard_error
from adelfl.report.groups import MOST_GROUPS, gather
from adelfl.report.html import write_report
from adelfl.report.rounds import MOST_CELLS, MOST_DEVICES, draw_batches, draw_coverage, used_work
from adelfl.report.run_data import read_run
from adelfl.report.style import SERIES, STRATEGY_COLOURS, figure, looks_of, save
from support.small_worlds import everything_below, typed

L = 3
SECTIONS = ["result", "accuracy", "loss", "deadlines", "coverage", "contributions", "batches", "configuration", "runs"]
HOSTILE = (
    "</style></title><script>alert(1)</script><img src=http://evil.example/x onerror='x()'>\"$\\frac$ \ud800\x00\u202e"
)


def run_at(folder, strategy="salf", seed=0, *, rounds=6, devices=5, cohort=None, end=True, about=None, change=None):
    """Write a small record as the simulator does; ``change`` may spoil its rows."""
    rng = np.random.default_rng([seed, len(strategy)])
    facts = {
        "config": {
            "model": {"name": "mlp"},
            "training": {"rounds": rounds, "local_iterations": 1, "seed": seed},
            "strategy": {"name": strategy, "options": {}},
        },
        "seed": seed,
        "strategy": strategy,
        "label": strategy,
        "data": "digits",
        "budget": 2.0 * rounds,
        "rounds": rounds,
        "layers": [f"dense{l + 1}" for l in range(L)],
        "devices": devices,
        "schedule": {"deadlines": np.linspace(3.0, 1.0, rounds).tolist()} if strategy == "adel" else None,
        "notes": [],
        "versions": {"adelfl": "0.1.0", "numpy": "2.0.0"},
    } | (about or {})
    rows = [{"round": 0, "time": 0.0, "loss": 2.3, "accuracy": 0.1}]
    for t in range(1, rounds + 1):
        who = np.sort(rng.choice(devices, cohort or devices, replace=False))
        z = rng.integers(0, L + 1, who.size)
        row = {
            "round": t,
            "time": 2.0 * t,
            "deadline": 2.0,
            "loss": 2.3 / (t + 1),
            "accuracy": float(0.1 + 0.8 * t / rounds * rng.uniform(0.8, 1.0)),
            "train_loss": 1.0,
            "batch": rng.integers(1, 9, who.size).tolist() if strategy == "adel" else [4] * who.size,
            "depth": z.tolist(),
            "contributors": [int((z >= L - l).sum()) for l in range(L)],
        }
        rows.append(row | ({"devices": who.tolist()} if cohort else {}))
    if change is not None:
        change(rows)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", facts)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if end:
        summary = Summary(facts["budget"], L)
        for row in rows:
            summary.add(Row.from_json(row))
        write_json(folder / "result.json", summary.result().to_json())
    return folder


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Three strategies, three seeds."""
    root = tmp_path_factory.mktemp("compared")
    for seed in range(3):
        for strategy in ("adel", "salf", "oracle"):
            run_at(root / f"{strategy}-seed{seed}", strategy, seed)
    return root


@pytest.fixture(scope="module")
def page(compared, tmp_path_factory):
    """The report about them."""
    return written(compared, tmp_path_factory.mktemp("page") / "r.html")


def written(place, path):
    write_report(gather([place]), path)
    return path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """All elements, and all text outside of the style sheet."""

    def __init__(self, text):
        super().__init__()
        self.found, self.words, self.inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def cells_of(text, first):
    """The cells of the table row that begins with ``first``."""
    rows = re.findall(r"<tr>(.*?)</tr>", text, flags=re.DOTALL)
    cells = [[unescape(re.sub(r"<[^>]+>", "", c)) for c in re.findall(r"<td.*?>(.*?)</td>", row)] for row in rows]
    return next(row for row in cells if row and row[0] == first)


# -- one file


def test_the_page_needs_no_other_file_and_runs_nothing(page):
    elements = Elements(page)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"base64,[A-Za-z0-9+/=]*", "", page))
    assert {tag for tag, _ in elements.found} & {"script", "link", "iframe", "object", "embed", "base", "form"} == set()
    for tag, attributes in elements.found:
        assert not any(key.startswith("on") for key in attributes), (tag, attributes)
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("src", "data:image/svg+xml;base64,").startswith("data:image/svg+xml;base64,")
    policy = next(a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


def test_pictures_inside_the_page_refer_to_nothing_outside(page):
    pictures = re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]*)", page)
    assert len(pictures) == 6
    for picture in pictures:
        svg = base64.b64decode(picture).decode()
        assert "<script" not in svg
        assert all(to.startswith(("#", "data:image/png;base64,")) for to in re.findall(r'href="([^"]*)', svg))


def test_every_section_is_there_and_linked(page):
    for name in SECTIONS:
        assert f'<h2 id="{name}">' in page
        assert f'href="#{name}"' in page
    assert 'id="refused"' not in page  # nothing was


def test_every_picture_has_a_text_in_its_place_and_an_explanation(page):
    elements = Elements(page).found
    assert all(attributes["alt"] for tag, attributes in elements if tag == "img")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page, flags=re.DOTALL)
    assert len(captions) == 6
    assert all(len(caption.split()) > 8 for caption in captions)


def test_the_page_prints_and_knows_dark_screens(page):
    assert "@media print" in page
    assert "prefers-color-scheme: dark" in page


def test_the_same_runs_give_the_same_bytes(compared, page, tmp_path):
    assert written(compared, tmp_path / "again.html") == page


def test_figures_are_written_for_a_paper(compared, tmp_path):
    done = typed("report", compared, "-o", tmp_path / "r.html", "--figures", tmp_path / "new" / "figures")
    assert done.code == 0, done.err
    assert done.err == ""
    names = [s for s in SECTIONS if s not in ("result", "configuration", "runs")]
    found = sorted(path.name for path in (tmp_path / "new" / "figures").iterdir())
    assert found == sorted(f"{name}.{ending}" for name in names for ending in ("png", "pdf"))
    assert (tmp_path / "new" / "figures" / "accuracy.pdf").read_bytes().startswith(b"%PDF")


# -- numbers


def test_the_table_says_what_contenders_say(compared, page):
    records = {s: [RunRecord(compared / f"{s}-seed{k}") for k in range(3)] for s in ("adel", "salf", "oracle")}
    contenders = {name: Contender(name, name, found) for name, found in records.items()}
    ceiling = contenders["oracle"].final.mean()
    for name, c in contenders.items():
        assert cells_of(page, name) == [
            name,
            "3",
            f"{c.final.mean():.1%} ± {100 * standard_error(c.final):.1f}",
            *(f"{c.at(quarter):.0%}" for quarter in QUARTERS),
            f"{c.final.mean() / ceiling:.0%}",
            f"{c.depth:.0%}",
            f"{c.rounds:.0f}",
        ]


def test_without_an_oracle_nothing_is_a_share_of_it(tmp_path):
    run_at(tmp_path / "runs" / "a", "salf")
    text = written(tmp_path / "runs", tmp_path / "r.html")
    assert "of oracle" not in text
    assert len(cells_of(text, "salf")) == 9


def test_configuration_seeds_versions_and_notes_are_said(compared, tmp_path):
    run_at(tmp_path / "runs" / "a", "adel", 7, about={"notes": ["the fleet is slow"]})
    text = Elements(written(tmp_path / "runs", tmp_path / "r.html")).text
    for said in ("Seeds: 7.", "adelfl 0.1.0, numpy 2.0.0", "rounds = 6", "name = mlp", "adel: the fleet is slow"):
        assert said in text, said


def test_coverage_is_contributors_over_those_asked(tmp_path):
    trace = read_run(run_at(tmp_path / "a", devices=50, cohort=4))
    for share, row in zip(trace.coverage, RunRecord(tmp_path / "a").rounds[1:], strict=True):
        assert share.tolist() == [count / 4 for count in row.contributors]


def test_who_contributed_is_blank_where_a_device_was_not_asked(tmp_path):
    trace = read_run(run_at(tmp_path / "a", devices=50, cohort=4, rounds=9))
    work = used_work(trace)
    assert np.isfinite(work).sum(axis=0).tolist() == [4] * 9
    assert np.nansum(work) == pytest.approx(sum(share.sum() for share in trace.work[1]))


def test_work_that_was_thrown_away_is_no_contribution(tmp_path):
    """drop: two of three layers are finished, but only finished devices count."""

    def drop(rows):
        rows[1:] = [row | {"depth": [3, 2, 0, 3, 1], "contributors": [2, 2, 2]} for row in rows[1:]]

    trace = read_run(run_at(tmp_path / "a", "drop", change=drop))
    assert all(share.tolist() == [1, 0, 0, 1, 0] for share in trace.work[1])


def test_large_fleets_are_thinned_and_long_runs_averaged_and_it_is_said(tmp_path):
    rounds, devices = MOST_CELLS + 1, MOST_DEVICES + 1
    run_at(tmp_path / "runs" / "a", rounds=rounds, devices=devices)
    assert used_work(read_run(tmp_path / "runs" / "a")).shape == (MOST_DEVICES, rounds)
    (image,) = draw_coverage(gather([tmp_path]).groups).axes[0].images
    assert image.get_array().shape == (L, -(-rounds // 2))
    text = Elements(written(tmp_path / "runs", tmp_path / "r.html")).text
    assert f"Of more than {MOST_DEVICES} devices, {MOST_DEVICES} are shown" in text
    assert f"With more than {MOST_CELLS} rounds, a column is the mean of several." in text


def test_devices_without_samples_do_not_count_among_batch_sizes(tmp_path):
    def some_idle(rows):
        rows[1:] = [row | {"batch": [4, 2, 0, 0]} for row in rows[1:]]
        rows[-1]["batch"] = [0, 0, 0, 0]

    run = read_run(run_at(tmp_path / "a", devices=4, change=some_idle))
    assert run.batches[:-1].tolist() == [[2.0, 2.0, 2.0, 4.0, 4.0]] * 5
    assert np.isnan(run.batches[-1]).all()


def test_batch_sizes_of_every_strategy_are_drawn_if_it_finished_a_single_round_too(tmp_path):
    run_at(tmp_path / "a", "adel", rounds=6)
    run_at(tmp_path / "b", "wait", rounds=1)
    for ax in draw_batches(gather([tmp_path]).groups).axes:
        median = ax.patches[-1].get_data()
        assert np.isfinite(median.values).all()
        assert median.edges[0] == 0.5


# -- which runs


def test_one_run_is_enough(compared, tmp_path):
    text = written(compared / "adel-seed0", tmp_path / "r.html")
    assert [name for name in SECTIONS if f'id="{name}"' not in text] == []
    assert "±" not in re.sub(r"base64,\S*", "", text)  # there is nothing to take an error of


def test_several_folders_are_put_together_and_none_counts_twice(compared, tmp_path):
    found = gather([compared / "salf-seed0", compared, compared / "salf-seed0"])
    assert [(g.label, g.total) for g in sorted(found.groups, key=lambda g: g.label)] == [
        ("adel", 3),
        ("oracle", 3),
        ("salf", 3),
    ]
    shutil.copytree(compared / "salf-seed0", tmp_path / "copy")
    found = gather([compared, tmp_path / "copy"])
    assert sum(g.total for g in found.groups) == 9
    assert "the same strategy, configuration and seed" in found.unused[tmp_path / "copy"]


def test_one_strategy_in_two_configurations_is_two_lines_whose_labels_say_so(tmp_path):
    for rate in (0.1, 0.5):
        config = {"learning_rate": {"initial": rate}, "strategy": {"name": "salf", "options": {}}}
        for seed in (0, 1):
            run_at(tmp_path / f"{rate}-{seed}", seed=seed, about={"config": config})
    found = gather([tmp_path])
    assert sorted((g.label, g.total) for g in found.groups) == [("salf, initial 0.1", 2), ("salf, initial 0.5", 2)]
    assert len({(g.colour, g.line) for g in found.groups}) == 2


def test_strategies_keep_their_colours_and_no_two_look_alike():
    names = ["unheard of", "adel", "oracle", "salf", "adel", *(f"s{i}" for i in range(MOST_GROUPS - 5))]
    looks = looks_of(names)
    assert looks[1][0] == STRATEGY_COLOURS["adel"]
    assert looks[2] == (STRATEGY_COLOURS["oracle"], "--")
    assert looks[names.index("s0")][0] in SERIES
    assert len(set(looks)) == len(names)


def test_a_strategy_looks_the_same_whatever_the_order_of_the_others():
    names = ["adel", "fedbuff", "oort", "timelyfl", "fedasync", "wait"]
    looks = dict(zip(names, looks_of(names), strict=True))
    assert looks_of(names[::-1]) == [looks[name] for name in names[::-1]]


def test_unfinished_failed_and_corrupt_runs_are_named_and_do_not_count(tmp_path):
    runs = tmp_path / "runs"
    run_at(runs / "good", seed=0)
    run_at(runs / "stopped", seed=1, end=False, change=lambda rows: rows.__delitem__(slice(3, None)))
    write_json(run_at(runs / "broken-down", seed=2, end=False) / "failed.json", {"error": "the loss became nan"})
    (run_at(runs / "torn", seed=3) / "run.json").write_text('{"half')
    with (run_at(runs / "scribbled", seed=4) / "rounds.jsonl").open("a") as file:
        file.write("not json\n")
    run_at(runs / "begun", "drop", end=False, change=lambda rows: rows.__delitem__(slice(1, None)))
    done = typed("report", runs, "-o", tmp_path / "r.html")
    assert done.code == 0, done.err
    assert [line.split(":")[0] for line in done.err.splitlines()] == ["warning"] * 2
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert cells_of(text, "salf")[1] == "1 of 3"
    assert cells_of(text, "drop")[1:3] == ["0 of 1", "not finished"]
    states = {name: cells_of(text, str(runs / name))[-1] for name in ("stopped", "broken-down", "torn", "scribbled")}
    assert states["stopped"].startswith("unfinished")
    assert states["broken-down"] == "failed: the loss became nan"
    assert states["torn"].startswith("corrupt: run.json")
    assert states["scribbled"].startswith("corrupt: rounds.jsonl")


SPOILED = [
    ("label", ["a list"]),
    ("budget", "much"),
    ("budget", 0.0),
    ("rounds", 0),
    ("rounds", 2.5),
    ("layers", []),
    ("layers", [1, 2, 3]),
    ("config", []),
    ("config", {"strategy": None}),
    ("devices", -1),
    ("schedule", {"deadlines": ["soon"]}),
    ("notes", "a word"),
    ("seed", float("nan")),
]


@pytest.mark.parametrize(("key", "value"), SPOILED, ids=str)
def test_a_run_whose_facts_are_spoiled_is_said_to_be(tmp_path, key, value):
    run_at(tmp_path / "runs" / "good")
    bad = run_at(tmp_path / "runs" / "bad", seed=1)
    facts = json.loads((bad / "run.json").read_text())
    write_json(bad / "run.json", facts | {key: value})
    found = gather([tmp_path / "runs"])
    assert list(found.unused) == [bad]
    assert len(found.runs) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"depth": "deep"},
        {"depth": [1, 2]},
        {"contributors": [1, 2]},
        {"batch": [[1], [2]]},
        {"deadline": 1e300},
        {"deadline": None},
        {"rejected": ["late"]},
        {"accuracy": "good"},
    ],
    ids=str,
)
def test_a_run_with_a_spoiled_row_is_said_to_be(tmp_path, change):
    devices = {"devices": [0, 1, 2, 3, 4]}
    folder = run_at(tmp_path / "bad", end=False, change=lambda rows: rows.__setitem__(2, rows[2] | devices | change))
    with pytest.raises(ConfigError, match="bad: ") as trouble:
        read_run(folder)
    assert "\n" not in str(trouble.value)


# -- text from records


def test_nothing_that_a_record_says_becomes_markup(tmp_path):
    about = {
        "label": HOSTILE,
        "strategy": HOSTILE,
        "notes": [HOSTILE],
        "layers": [HOSTILE, "__b", "$c$"],
        "versions": {HOSTILE: HOSTILE},
        "data": HOSTILE,
        "clock": HOSTILE,
        "config": {HOSTILE: {HOSTILE: HOSTILE}},
    }

    def refuse(rows):
        rows[1]["rejected"] = {HOSTILE: 2}

    run_at(tmp_path / "runs" / "<b>bad", seed=0, about=about, change=refuse)
    write_json(run_at(tmp_path / "runs" / "c", seed=1, end=False, about=about) / "failed.json", {"error": HOSTILE})
    text = written(tmp_path / "runs", tmp_path / "r.html")
    elements = Elements(text)
    tags = {tag for tag, _ in elements.found}
    assert tags <= {
        *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "nav", "a", "div", "span"),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "img", "figcaption", "b", "code", "footer"),
    }
    assert sum(tag in ("title", "style") for tag, _ in elements.found) == 2
    assert all(a["src"].startswith("data:") for tag, a in elements.found if tag == "img")
    assert "<script>alert(1)</script>" in elements.text  # as words
    assert not {"\x00", "\u202e", "\ud800"} & set(text)
    for svg in re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]*)", text):
        assert b"<script" not in base64.b64decode(svg)


def test_refused_updates_are_counted_by_reason(tmp_path):
    def refuse(rows):
        rows[1] |= {"rejected": {"not finite": 2}, "late": {"0": 5}}  # round 0 is the measurement
        rows[2] |= {"rejected": {"not finite": 1}, "late": {"1": 4}, "abandoned": True}

    run_at(tmp_path / "runs" / "a", about={"clock": "real"}, change=refuse)
    assert read_run(tmp_path / "runs" / "a").refused == {
        "not finite": 3,
        "late": 4,
        "abandoned round: too few updates": 1,
    }
    text = written(tmp_path / "runs", tmp_path / "r.html")
    section = text[text.index('id="refused"') : text.index('id="configuration"')]
    assert cells_of(section, "salf") == ["salf", "4", "3", "1"]
    assert "not finite" in section


def test_a_run_on_a_real_clock_that_nobody_evaluated_has_a_report(tmp_path):
    def unseen(rows):
        rows[:] = [row | {"accuracy": None, "loss": None, "length": 0.5} for row in rows]

    for name in ("a", "b"):  # the same seed, but not the same run
        run_at(tmp_path / "runs" / name, "adel", about={"clock": "real"}, change=unseen)
    text = written(tmp_path / "runs", tmp_path / "r.html")
    assert cells_of(text, "adel")[:4] == ["adel", "2", "not evaluated", "–"]
    assert "No accuracy was recorded." in text
    assert read_run(tmp_path / "runs" / "a").lengths.tolist() == [0.5] * 6


def test_accuracies_that_some_rounds_lack_are_no_trouble(tmp_path):
    def seldom(rows):
        for row in rows[:3] + rows[5:]:
            row |= {"accuracy": None, "loss": None}

    run_at(tmp_path / "runs" / "a", about={"clock": "real"}, change=seldom)
    text = written(tmp_path / "runs", tmp_path / "r.html")
    assert "on Flower" in text
    assert "No accuracy was recorded." not in text


# -- mistakes


def assert_one_sentence(done, sentence):
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert sentence in done.err


def test_mistakes_are_one_sentence_and_nothing_is_written(compared, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("precious")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    out = ("-o", tmp_path / "r.html")
    assert_one_sentence(typed("report", tmp_path / "none", *out), "no such folder")
    assert_one_sentence(typed("report", tmp_path / "file", *out), "not a folder")
    assert_one_sentence(typed("report", tmp_path / "empty", *out), "no runs in it")
    assert_one_sentence(typed("report", tmp_path / "torn", *out), "run.json cannot be read")
    assert_one_sentence(typed("report", compared, tmp_path / "none", *out), "no such folder")
    assert_one_sentence(typed("report", compared, "-o", tmp_path / "run.json"), "must end in .html")
    assert not (tmp_path / "r.html").exists()
    assert_one_sentence(typed("report", compared / "salf-seed0", "-o", tmp_path / "no" / "r.html"), "cannot be written")
    figures = ("--figures", tmp_path / "file")
    assert_one_sentence(typed("report", compared / "salf-seed0", *out, *figures), "file: cannot be written")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.fixture
def full_disk(monkeypatch):
    """Half of what is written arrives, then the disk is full."""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_bytes(path, content):
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise error

    def savefig(_, path, **__):
        if isinstance(path, Path):
            write_bytes(path, b"half a picture")

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    monkeypatch.setattr(Figure, "savefig", savefig)


def test_on_a_full_disk_the_earlier_report_and_figures_stay(tmp_path, full_disk):
    run_at(tmp_path / "runs" / "a")
    kept = {tmp_path / name: f"precious {name}" for name in ("r.html", "accuracy.png", "accuracy.pdf")}
    for path, text in kept.items():
        path.write_text(text)
    before = everything_below(tmp_path)
    gathered = gather([tmp_path / "runs"])
    with pytest.raises(ConfigError, match=r"r\.html: cannot be written \(No space left on device\)"):
        write_report(gathered, tmp_path / "r.html")
    for ending in ("png", "pdf"):
        with pytest.raises(ConfigError, match="No space left on device"):
            save(figure(1.0, 1.0), tmp_path / f"accuracy.{ending}")
    assert {path: path.read_text() for path in kept} == kept
    assert everything_below(tmp_path) == before


def test_a_report_behind_a_link_is_replaced_and_the_link_stays(tmp_path):
    run_at(tmp_path / "runs" / "a")
    (tmp_path / "there").mkdir()
    (tmp_path / "r.html").symlink_to(tmp_path / "there" / "real.html")
    written(tmp_path / "runs", tmp_path / "r.html")
    assert (tmp_path / "r.html").is_symlink()
    assert (tmp_path / "there" / "real.html").read_text().startswith("<!")


def test_what_a_pattern_matches_besides_runs_is_passed_over(tmp_path):
    run_at(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "accuracy.png").write_bytes(b"a picture")
    answer = typed("report", *sorted((tmp_path / "runs").glob("*")), "-o", tmp_path / "r.html")
    assert answer.code == 0
    assert answer.err == f"note: {tmp_path / 'runs' / 'accuracy.png'}: contains no runs, skipped\n"


def test_more_strategies_than_anybody_can_tell_apart_are_refused(tmp_path):
    for i in range(MOST_GROUPS + 1):
        run_at(tmp_path / f"{i}", f"s{i}", rounds=1)
    assert_one_sentence(typed("report", tmp_path, "-o", tmp_path / "r.html"), f"up to {MOST_GROUPS}")
