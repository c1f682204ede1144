"""Take the screenshots of docs/dashboard.md: light, dark and on a phone.

    python docs/screenshots.py [--out docs/img]

Needs playwright and a Chromium (the system's, or playwright's own). It makes the runs that are seen: a comparison of
two seeds, and copies of its parts that look running, stopped, failed and corrupt.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from adelfl.clock import wall_seconds
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row
from adelfl.records.writer import RunWriter

SIZES = {"phone": (380, 800), "light": (1280, 1080), "dark": (1280, 1080)}  # first the one whose clock runs


def make_runs(folder: Path) -> list[RunWriter]:
    """Make runs in every state; return the writers that must stay open so that their runs look running."""
    options = ["compare", "--seeds", "2", "--jobs", "1", "--out", str(folder / "digits"), "--strategies"]
    subprocess.run([sys.executable, "-m", "adelfl", *options, "adel,salf,drop,heterofl"], check=True)
    first = RunRecord.open(folder / "digits" / "adel-seed0")
    with part(first, folder / "later" / "salf-seed4", 0.3) as stopped:
        pass
    for file in stopped.folder.iterdir():
        os.utime(file, (0, wall_seconds() - 3600))
    with part(first, folder / "later" / "adel-seed5", 0.2) as failing:
        failing.fail("the training loss became nan in round 21; lower the learning rate (now 3)")
    shutil.copytree(first.folder, folder / "later" / "adel-seed6")
    (folder / "later" / "adel-seed6" / "run.json").write_text('{"config": {"data"')
    return [part(first, folder / "digits" / "adel-seed2", 0.62), real(first, folder / "flower" / "four-nodes")]


def part(whole: RunRecord, folder: Path, share: float) -> RunWriter:
    """Write the first share of a run, without a result."""
    label = folder.name.partition("-")[0]
    writer = RunWriter.create(folder, replace(whole.info, seed=int(folder.name[-1]), label=label))
    for row in itertools.islice(whole.rounds, int(share * len(whole.rounds))):
        writer.append(row, 0.01)
    writer.flush()
    return writer


def real(whole: RunRecord, folder: Path) -> RunWriter:
    """Write five rounds of a run on Flower; the sixth is under way."""
    nodes = [str(7_000_000_000_000_001_234 + 1111 * u) for u in range(4)]
    begun = wall_seconds() - 62.0
    info = replace(
        whole.info,
        data="held by the nodes",
        clock="real",
        started=begun,
        nodes=nodes,
        devices=4,
        rounds=12,
        config={"flower": {"local_iterations": 1}},
        budget=160.0,
        label="adel",
        seed=0,
        schedule=None,
    )
    writer = RunWriter.create(folder, info)
    writer.append(Row(0, 8.0, loss=2.3, accuracy=0.1), 8.0)
    for t in range(1, 6):
        depth = [3, 3, 2 + t % 2, t % 2]
        row = Row(
            round=t,
            time=8.0 + 10.5 * t,
            deadline=10.4,
            length=10.4,
            loss=1.0,
            accuracy=0.25 + 0.1 * t,
            train_loss=1.0,
            batch=[24, 22, 20, 5],
            depth=depth,
            contributors=[sum(z >= 3 - l for z in depth) for l in range(3)],
            devices=[0, 1, 2, 3],
            nodes=nodes,
        )
        writer.append(row, 10.4)
    return writer


@contextmanager
def dashboard(folder: Path) -> Iterator[str]:
    """Start a dashboard and yield its address; stop it at the end of the block."""
    command = [sys.executable, "-m", "adelfl", "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def shoot(browser: Browser, address: str, name: str, path: Path) -> None:
    """Take one screenshot."""
    width, height = SIZES[name]
    scheme = "dark" if name == "dark" else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    runs = (
        ["flower/four-nodes"]
        if name == "phone"
        else [f"digits/{s}" for s in ("adel-seed2", "salf-seed0", "drop-seed0")]
    )
    page.goto(f"{address}#{'&'.join(f'run={run}' for run in runs)}")
    page.locator("#legend li").nth(len(runs) - 1).wait_for()
    page.wait_for_timeout(900)
    page.screenshot(path=path, full_page=name == "phone")
    context.close()


def main() -> None:
    """Make runs and take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        writers = make_runs(Path(folder))
        with dashboard(Path(folder)) as address, sync_playwright() as tools:
            browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name in SIZES:
                shoot(browser, address, name, out / f"dashboard-{name}.png")
                print(json.dumps({name: str(out / f"dashboard-{name}.png")}))
            browser.close()
        for writer in writers:
            writer.close()


if __name__ == "__main__":
    main()
