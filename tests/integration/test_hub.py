"""Data from the Hugging Face hub: its real client, and a hub on loopback that speaks as much of its protocol."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.parquet_world import write_set
from support.small_worlds import SMALL, kept_bytes, sets

pytest.importorskip("huggingface_hub", reason="not installed: pip install 'adelfl[data]'")

COMMIT = "c0ffee" * 6 + "0000"
SETS = {"mnist": ("ylecun/mnist", "mnist"), "cifar10": ("uoft-cs/cifar10", "plain_text")}


class Hub(ThreadingHTTPServer):
    """Serves the files of a folder as one data set; remembers what it was asked for."""

    def __init__(self, folder, repo):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.repo, self.asked, self.cut = repo, [], None


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        hub, path = self.server, self.path.partition("?")[0]
        hub.asked.append((self.command, path))
        resolve = f"/datasets/{hub.repo}/resolve/{COMMIT}/"
        if path.startswith(f"/api/datasets/{hub.repo}/tree/"):
            told = [{"type": "file", "path": k, "size": len(v), "oid": digest(v)} for k, v in hub.files.items()]
            self.answer(json.dumps(told).encode())
        elif path.startswith(f"/api/datasets/{hub.repo}"):
            told = {"id": hub.repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in hub.files]}
            self.answer(json.dumps(told).encode())
        elif path.startswith(resolve) and (name := path.removeprefix(resolve)) in hub.files:
            self.answer(hub.files[name], {"ETag": f'"{digest(hub.files[name])}"'}, name == hub.cut)
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def answer(self, body, headers=None, cut=False):
        self.send_response(200)
        for name, value in {"X-Repo-Commit": COMMIT, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
            self.close_connection = cut

    def log_message(self, format, *args):
        pass


def digest(body):
    return hashlib.sha1(body).hexdigest()


@pytest.fixture
def start(tmp_path):
    """Start a hub that has one of the sets; all are stopped in the end."""
    running = []

    def started(name="mnist", files=SETS["mnist"][1]):
        folder = tmp_path / "remote"
        write_set(folder / files, name, "img" if name == "cifar10" else "image", rows=(240, 40))
        (folder / "README.md").write_text("not wanted")
        hub = Hub(folder, SETS[name][0])
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        running.append(hub)
        return hub

    yield started
    for hub in running:
        hub.shutdown()
        hub.server_close()


RUN = ("run", "--out")
PARTITION = ("partition", "--save")  # fetches the data as a run does, and loads no torch


def run(folder, hub_port, out="run", name="mnist", command=RUN):
    """``adelfl run`` in a process of its own: the client reads its environment when it is imported."""
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub_port}",
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "ADELFL_CACHE": str(folder / "cache"),
    }
    kept = {k: v for k, v in os.environ.items() if k not in ("ADELFL_DATA", "HF_TOKEN", "HF_HUB_OFFLINE")}
    changes = sets((*SMALL, f"data.name={name}", "strategy.name=salf"))
    return subprocess.run(
        [sys.executable, "-m", "adelfl", command[0], *changes, command[1], str(folder / out)],
        env=kept | settings,
        capture_output=True,
        text=True,
        timeout=300,
    )


def downloads(hub):
    return sorted(path.rpartition("/")[2] for command, path in hub.asked if command == "GET" and "/resolve/" in path)


@pytest.mark.parametrize(("name", "command"), [("mnist", RUN), ("cifar10", PARTITION)], ids=SETS)
def test_a_run_fetches_the_parquet_files_alone_and_only_once(tmp_path, start, name, command):
    hub = start(name, SETS[name][1])
    done = run(tmp_path, hub.server_port, "first", name, command)
    assert done.returncode == 0, done.stderr
    assert downloads(hub) == ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]
    hub.shutdown()
    hub.server_close()
    again = run(tmp_path, hub.server_port, "second", name, command)
    assert again.returncode == 0, again.stderr
    if command == RUN:
        assert kept_bytes(tmp_path / "first") == kept_bytes(tmp_path / "second")


def test_no_hub_is_one_sentence_and_nothing_is_written(tmp_path):
    with socket.socket() as nobody:  # has the port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        done = run(tmp_path, nobody.getsockname()[1])
    assert done.returncode == 2
    assert "mnist cannot be fetched from huggingface.co/datasets/ylecun/mnist" in done.stderr
    assert "$ADELFL_DATA" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_after_a_transfer_that_was_cut_the_next_run_fetches_the_rest(tmp_path, start):
    hub = start()
    hub.cut = "mnist/train-00000-of-00001.parquet"
    done = run(tmp_path, hub.server_port)
    assert done.returncode == 2
    assert "mnist cannot be fetched" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    hub.cut = None
    done = run(tmp_path, hub.server_port, "held.npz", command=PARTITION)
    assert done.returncode == 0, done.stderr
