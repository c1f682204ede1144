"""The dashboard: the state of every run, no file read twice, no access to files outside its folder."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from adelfl.cli import app as command_line
from adelfl.clock import wall_seconds
from adelfl.config.run import load_run
from adelfl.dashboard import run_index
from adelfl.dashboard.run_index import RunIndex, Tail, locked_inodes
from adelfl.dashboard.server import Follower, build, events
from adelfl.errors import ConfigError, MissingExtraError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row
from adelfl.runner import start
from support.dashboard_world import LAYERS, begin, finish, row, told

knows_locks = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel does not tell who locks what")

TOKEN = "a-token-of-some-length"
LATER = 1e6  # seconds: nothing that was written is recent any more


async def over():
    return False


def later():
    return wall_seconds() + LATER


def client(folder, pause=over, hosts=("testserver",), now=wall_seconds, token=None):
    return TestClient(build(RunIndex(folder, now), list(hosts), token, pause))


def shown(folder, now=wall_seconds):
    return {card["name"]: card for card in client(folder, now=now).get("/api/runs").json()}


# -- the list


def test_the_list_tells_what_a_run_is_and_how_far_it_is(tmp_path):
    with begin(tmp_path / "deep" / "down" / "one", rounds=5):
        (card,) = shown(tmp_path).values()
    assert card["name"] == "deep/down/one"
    said = {"label": "SALF", "data": "digits", "seed": "3", "state": "running", "round": 5, "rounds": 20, "time": 2.5}
    assert card | said == card
    assert card["progress"] == 0.25
    assert card["accuracy"] == pytest.approx(0.14)  # of round 4, the last that was evaluated


@knows_locks
def test_every_state_is_told_apart(tmp_path):
    with begin(tmp_path / "running", 3), begin(tmp_path / "failed", 3) as failed:
        begin(tmp_path / "stopped", 3).close()
        finish(begin(tmp_path / "finished", 20))
        failed.fail("the training loss became nan")
        begin(tmp_path / "corrupt", 3).close()
        (tmp_path / "corrupt" / "run.json").write_text('{"config": ')
        found = shown(tmp_path, now=later)
    assert {name: card["state"] for name, card in found.items()} == {name: name for name in found}
    assert len(found) == 5
    assert found["failed"]["why"] == "the training loss became nan"
    assert "run.json cannot be read" in found["corrupt"]["why"]
    assert found["finished"]["accuracy"] == 0.75
    assert found["finished"]["progress"] == 1.0


@knows_locks
def test_who_writes_is_seen_without_touching_the_lock(tmp_path):
    writer = begin(tmp_path / "run")
    inode = os.stat(tmp_path / "run").st_ino
    assert inode in locked_inodes()
    writer.close()
    assert inode not in locked_inodes()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.json", "[]"),
        ("run.json", "{}"),
        ("run.json", "\x00\xff"),
        ("run.json", '{"a":' * 100_000),
        ("result.json", "{"),
        ("result.json", '{"rounds": 3}'),
        ("failed.json", "nothing"),
        ("rounds.jsonl", "not a row\n"),
        ("rounds.jsonl", '{"round": 1}\n'),
        ("rounds.jsonl", '{"round":1,"time":1,"accuracy":null,"batch":[1],"depth":[1,2]}\n'),
    ],
)
def test_a_corrupt_run_is_shown_as_such_and_breaks_nothing(tmp_path, file, text):
    begin(tmp_path / "bad", 3).close()
    finish(begin(tmp_path / "good", 20))
    (tmp_path / "bad" / file).write_text(text, encoding="latin-1")
    page = client(tmp_path)
    cards = {card["name"]: card for card in page.get("/api/runs").json()}
    assert cards["bad"]["state"] == "corrupt"
    assert file in cards["bad"]["why"]
    assert cards["good"]["state"] == "finished"
    assert page.get("/api/run", params={"name": "bad"}).json()["about"]["state"] == "corrupt"
    assert page.get("/events", params={"run": ["bad", "good"]}).status_code == 200


def test_numbers_that_are_none_reach_no_browser(tmp_path):
    begin(tmp_path / "run", budget=float("inf"), config={"flower": {"norm_limit": float("inf")}}).close()
    odd = '{"round":1,"time":1.5,"deadline":Infinity,"accuracy":NaN,"batch":[1],"depth":[1]}\n'
    with (tmp_path / "run" / "rounds.jsonl").open("a") as file:
        file.write(odd)
    page = client(tmp_path)
    found = page.get("/api/run", params={"name": "run"})
    assert found.json()["last"] | {"deadline": None, "accuracy": None} == found.json()["last"]
    assert "Infinity" not in found.text
    assert page.get("/api/runs").json()[0]["budget"] is None


def test_unchanged_files_are_not_read_again(tmp_path, monkeypatch):
    finish(begin(tmp_path / "done", 20))
    writer = begin(tmp_path / "going", 3)
    read = []
    plain = run_index._card
    monkeypatch.setattr(run_index, "_card", lambda name, *rest: read.append(name) or plain(name, *rest))
    index = RunIndex(tmp_path)
    index.look()
    index.look()
    writer.append(Row.from_json(row(4, 0.5)), 0.01)
    assert index.look()["going"]["accuracy"] == 0.5
    writer.close()
    assert sorted(read) == ["done", "going", "going"]


def test_the_list_reads_the_end_of_the_rows_only(tmp_path):
    """Were the beginning read, it would be found corrupt."""
    begin(tmp_path / "run", 3).close()
    with (tmp_path / "run" / "rounds.jsonl").open("w") as file:
        file.write("garbage\n" * 10_000)
        file.writelines(json.dumps(row(t, 0.2), separators=(",", ":")) + "\n" for t in range(1, 1000))
        file.write('{"round":1000,"ti')
    card = RunIndex(tmp_path).look()["run"]
    assert (card["round"], card["accuracy"]) == (999, 0.2)


def test_a_folder_that_is_not_there_yet_is_empty(tmp_path):
    assert shown(tmp_path / "none") == {}


def test_a_run_itself_can_be_shown(tmp_path):
    begin(tmp_path / "run", 2).close()
    assert list(shown(tmp_path / "run")) == ["run"]


# -- one run


def test_one_run_is_told_with_all_its_rows(tmp_path):
    begin(tmp_path / "a b" / "ü&?#", 6).close()
    found = client(tmp_path).get("/api/run", params={"name": "a b/ü&?#"}).json()
    assert found["about"]["layers"] == LAYERS
    assert found["about"]["deadlines"] == [0.5] * 20
    assert [r["round"] for r in found["rows"]] == list(range(7))
    assert "depth" not in found["rows"][-1]
    assert found["last"]["depth"] == row(6)["depth"]
    assert found["error"] is None


def test_one_round_is_told_device_by_device(tmp_path):
    begin(tmp_path / "run", 6).close()
    page = client(tmp_path)
    found = page.get("/api/round", params={"name": "run", "number": 4}).json()
    assert (found["round"], found["batch"], found["depth"]) == (4, [8, 4], [3, 1])
    assert page.get("/api/round", params={"name": "run", "number": 7}).status_code == 404
    assert page.get("/api/round", params={"name": "nobody", "number": 1}).status_code == 404


def test_a_record_of_flower_is_read_like_any_other(tmp_path):
    flower = {"clock": "real", "started": 5.0, "nodes": ["17", "18"], "schedule": None}
    writer = begin(tmp_path / "run", 0, **flower, config={"flower": {"local_iterations": 2}})
    more = {"length": 0.4, "nodes": ["17", "18"], "devices": [0, 1], "abandoned": True}
    refused = {"rejected": {"late": 2}, "late": {"0": 1, "1": 2}}
    writer.append(Row.from_json(row(1, 0.3) | more | refused), 0.4)
    writer.close()
    found = client(tmp_path).get("/api/run", params={"name": "run"}).json()
    assert found["about"] | {"clock": "real", "started": 5.0, "iterations": 2, "deadlines": []} == found["about"]
    assert found["last"] | {"abandoned": True, "rejected": {"late": 2}, "late": 3} == found["last"]


def test_what_the_simulator_writes_is_shown(tmp_path):
    small = ["fleet.devices=6", "model.hidden=[5]", "training.rounds=8", "training.depth=0.6", "strategy.name=salf"]
    result = start(load_run(None, small), tmp_path / "run")
    page = client(tmp_path)
    (card,) = page.get("/api/runs").json()
    assert card | {"state": "finished", "round": 8, "accuracy": result.final_accuracy, "data": "digits"} == card
    record, found = RunRecord.open(tmp_path / "run"), page.get("/api/run", params={"name": "run"}).json()
    assert [r["contributors"] for r in found["rows"][1:]] == [r.contributors for r in record.rounds[1:]]
    assert found["last"]["depth"] == record.rounds[-1].depth
    assert found["about"]["layers"] == record.info.layers


# -- rows as they come


def test_a_tail_takes_complete_lines_only(tmp_path):
    path = tmp_path / "rounds.jsonl"
    tail = Tail(path)
    tail.read_on()
    assert tail.rows == []
    line = json.dumps(row(0)).encode()
    path.write_bytes(line + b"\n" + line[:10])
    tail.read_on()
    tail.read_on()
    assert len(tail.rows) == 1
    path.write_bytes(line + b"\n" + line + b"\n")
    tail.read_on()
    assert len(tail.rows) == 2
    assert tail.edition == 0


@pytest.mark.parametrize("how", ["shorter", "another", "gone"])
def test_a_tail_begins_again_when_the_file_does(tmp_path, how):
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(json.dumps(row(t)) + "\n" for t in range(4)))
    tail = Tail(path)
    tail.read_on()
    if how == "shorter":
        os.truncate(path, len(json.dumps(row(0))) + 1)
    elif how == "another":  # longer than before
        (tmp_path / "new").write_text("".join(json.dumps(row(t) | {"time": 0.25 * t}) + "\n" for t in range(6)))
        (tmp_path / "new").replace(path)
    else:
        path.unlink()
    tail.read_on()
    assert tail.edition == 1
    assert len(tail.rows) == {"shorter": 1, "another": 6, "gone": 0}[how]


def test_a_stream_tells_the_list_then_new_rows(tmp_path):
    writer = begin(tmp_path / "run", 2)
    other = tmp_path / "other"
    steps = iter([
        lambda: (writer.append(Row.from_json(row(3)), 0.01), writer.flush()),
        lambda: None,
        lambda: begin(other, 1).close(),
        lambda: shutil.rmtree(other),
        lambda: finish(writer),
    ])  # fmt: skip

    async def go_on():
        return next((True for step in steps if step() or True), False)

    async def all_of_it():
        return [text async for text in events(Follower(RunIndex(tmp_path), ["run", "other"]), go_on)]

    found = told(asyncio.run(all_of_it()))
    assert [event for event, _ in found] == [
        "runs", "run", "gone",  # at first
        "runs", "rows",  # a round
        "runs", "run",  # another run
        "runs", "gone",  # which goes again
        "runs",  # the end
    ]  # fmt: skip
    assert found[0][1]["first"] is True
    assert [card["name"] for card in found[0][1]["changed"]] == ["run"]
    assert [r["round"] for r in found[1][1]["rows"]] == [0, 1, 2]
    assert [r["round"] for r in found[4][1]["rows"]] == [3]
    assert found[4][1]["last"]["depth"] == row(3)["depth"]
    assert found[7][1]["gone"] == ["other"]
    assert found[9][1]["changed"][0]["state"] == "finished"


def test_a_stream_over_http(tmp_path):
    begin(tmp_path / "run", 2).close()
    answer = client(tmp_path).get("/events", params={"run": "run"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [event for event, _ in told([answer.content])] == ["runs", "run"]


# -- who may see what


@pytest.fixture
def secret(tmp_path):
    """A folder of runs, and a run outside it."""
    (tmp_path / "runs").mkdir()
    begin(tmp_path / "runs" / "mine", 2).close()
    begin(tmp_path / "outside", 2, label="SECRET").close()
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "..%2foutside",
        "%2e%2e%2foutside",
        "%252e%252e%252foutside",
        "mine/../../outside",
        "mine%2f..%2f..%2foutside",
        "..\\outside",
        "{absolute}",
        "/{absolute}",
        "file://{absolute}",
        "mine%00",
        "./mine",
        "mine/",
        "",
    ],
)
def test_a_name_leads_nowhere_but_to_a_listed_run(secret, name):
    page = client(secret / "runs")
    name = name.format(absolute=secret / "outside")
    for address in (f"/api/run?name={name}", f"/api/round?name={name}&number=1"):
        answer = page.get(address)
        assert answer.status_code == 404
        assert "SECRET" not in answer.text
    answer = page.get(f"/events?run={name}")
    assert [event for event, _ in told([answer.content])] == ["runs", "gone"]


@pytest.mark.parametrize(
    "path", ["/static/..%2fserver.py", "/static/../server.py", "/static/%2e%2e/server.py", "/static/x"]
)
def test_only_the_pages_own_files_are_handed_out(secret, path):
    assert client(secret / "runs").get(path).status_code == 404


def test_linked_folders_are_not_followed(secret):
    (secret / "runs" / "link").symlink_to(secret / "outside")
    (secret / "runs" / "up").symlink_to(secret)
    assert list(shown(secret / "runs")) == ["mine"]


def test_a_strange_host_name_is_refused(tmp_path):
    page = client(tmp_path, hosts=("localhost", "127.0.0.1"))
    for good in ("localhost", "localhost:8765", "127.0.0.1:8765"):
        assert page.get("/api/runs", headers={"host": good}).status_code == 200
    for bad in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        assert page.get("/api/runs", headers={"host": bad}).status_code == 400


def test_without_the_token_nothing_is_seen(tmp_path):
    page = client(tmp_path, token=TOKEN)
    for path in ("/", "/static/main.js", "/api/runs", "/events", "/?token=", "/?token=wrong", "/?token=é"):
        answer = page.get(path)
        assert answer.status_code == 401, path
        assert TOKEN not in answer.text
    for word in ("Bearer", "Bearer wrong", f"Basic {TOKEN}"):
        assert page.get("/api/runs", headers={"authorization": word}).status_code == 401
    assert page.get("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_token_is_given_once_and_then_kept_in_a_cookie(tmp_path):
    page = client(tmp_path, token=TOKEN)
    first = page.get(f"/?token={TOKEN}")
    assert first.status_code == 200
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "samesite=strict" in first.headers["set-cookie"].lower()
    assert page.get("/api/runs").status_code == 200  # the client keeps the cookie
    page.cookies.clear()
    assert page.get("/api/runs").status_code == 401


def test_a_damaged_line_ends_the_rows_and_is_named(tmp_path):
    begin(tmp_path / "run", 4).close()
    path = tmp_path / "run" / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], "}{\n", *lines[3:]]))
    index = RunIndex(tmp_path)
    for _ in range(2):
        tail = index.tail("run")
        assert "rounds.jsonl cannot be read" in tail.error
        assert [r["round"] for r in tail.rows] == [0, 1]


def test_a_pipe_does_not_hold_the_page_up(secret):
    (secret / "runs" / "mine" / "rounds.jsonl").unlink()
    os.mkfifo(secret / "runs" / "mine" / "rounds.jsonl")
    assert shown(secret / "runs")["mine"]["state"] == "corrupt"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/events"])
def test_nothing_can_be_changed(tmp_path, method, path):
    assert client(tmp_path).request(method, path).status_code == 405


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_there_is_nothing_else(tmp_path, path):
    assert client(tmp_path).get(path).status_code == 404


# -- the page


def test_the_page_names_only_files_that_are_here(tmp_path):
    page = client(tmp_path)
    text = page.get("/").text
    assert "http:" not in text
    assert "https:" not in text
    for part in ("static/style.css", "static/theme.js", "static/main.js", "static/icon.svg"):
        assert f'"{part}"' in text
        assert page.get(f"/{part}").status_code == 200


def test_the_page_makes_no_markup_of_data():
    static = Path(run_index.__file__).parent / "static"
    for path in static.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "http:",
            "https:",
        ):
            assert word not in text, f"{path.name}: {word}"


# -- the command


@pytest.fixture
def served(monkeypatch):
    """What the command would serve."""
    calls = []

    def serve(root, listener, hosts, token):
        calls.append((root, listener.getsockname(), hosts, token))

    monkeypatch.setattr("adelfl.dashboard.server.serve", serve)
    return calls


def typed(*words):
    return CliRunner().invoke(command_line, ["dashboard", *words])


def test_the_command_listens_on_this_machine_unless_told_otherwise(tmp_path, served):
    local = typed(str(tmp_path), "--port", "0").output
    remote = typed(str(tmp_path), "--port", "0", "--host", "0.0.0.0").output
    own = typed(str(tmp_path), "--port", "0", "--token", TOKEN).output
    (root, (host, port), hosts, none), (_, _, all_hosts, generated), (*_, given) = served
    assert (root, host, none) == (tmp_path, "127.0.0.1", None)
    assert f"http://127.0.0.1:{port}/" in local
    assert set(hosts) == {"localhost", "127.0.0.1"}
    assert all_hosts == ["*"]
    assert len(generated) >= 32
    assert f"/?token={generated}" in remote
    assert given == TOKEN
    assert TOKEN not in own


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--token", "short"], "at least 16 characters"),
        (["--host", "256.1.1.1"], "cannot listen"),
        ([__file__], "is not a folder"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(words, sentence, served):
    error = typed(*words).exception
    assert isinstance(error, ConfigError)
    assert sentence in str(error)
    assert not served


def test_a_port_that_is_taken_is_said_in_a_sentence(tmp_path, served, monkeypatch):
    def serve(root, listener, hosts, token):
        again = typed(str(tmp_path), "--port", str(listener.getsockname()[1]))
        assert "cannot listen" in str(again.exception)
        served.append(None)

    monkeypatch.setattr("adelfl.dashboard.server.serve", serve)
    assert typed(str(tmp_path), "--port", "0").exit_code == 0
    assert served == [None]


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_without_the_extra_it_says_how_to_get_it(tmp_path, package, monkeypatch):
    monkeypatch.delitem(sys.modules, "adelfl.dashboard.server", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    error = typed(str(tmp_path), "--port", "0").exception
    assert isinstance(error, MissingExtraError)
    assert "pip install 'adelfl[dashboard]'" in str(error)


def test_no_other_command_loads_the_server():
    code = "import adelfl.cli, adelfl.cli.dashboard, sys; print(*{name.split('.')[0] for name in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert not set(out.split()) & {"fastapi", "starlette", "uvicorn", "asyncio"}
