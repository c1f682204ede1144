"""What does a simulated round cost? adelfl and its peers side by side, each in an environment of its own.

    python bench/simulators.py                                    # everything; an hour on two cores
    python bench/simulators.py --workloads mlp,cnn --peers loop,jax
    python bench/simulators.py --quick --workloads mlp            # one thread, plain settings
    python bench/simulators.py --default-settings --workloads mlp # the best number of threads, plain settings
    python bench/simulators.py --check                            # do all peers compute the same update?

The number that counts is CPU seconds per round (user and system, all threads and child processes): unlike time on the
wall it hardly moves when the machine is busy with something else. Start-up, data and compilation are not counted.

Every peer is shown at its best. A first pass tries, one after the other, the peer's variants (memory layout, chunks),
glibc's heap as it is and told to keep its memory, and one and two threads; the setting with the lowest CPU time and
the one with the lowest wall time then run ``--repeats`` times, peers taking turns (A B C, A B C), and the table has
the medians. A shared machine's own speed drifts by a third within minutes, so ratios are taken within a turn, and the
table has their median and quartiles. A peer that cannot be installed, or fails, is named with the reason.

With one local step FedAvg is one SGD step on the rows of all devices, on which adelfl's fused engine rests. The rows
``batch`` and ``jax-batch`` do just that, in torch and JAX; the others keep devices apart, as a simulator must when they
take several steps or deliver different layers.

Environments are made in .bench-envs/ the first time they are needed (pip, torch from constraints.txt) and kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPTS = REPOSITORY / "bench" / "peers"
ENVIRONMENTS = REPOSITORY / ".bench-envs"
sys.path.insert(0, str(SCRIPTS))

from workloads import WORKLOADS, Floats, first_weights, fixed_batches  # noqa: E402

INSTALL_SECONDS = 1800
RUN_SECONDS = 1800
OURS = "adelfl"

PLAIN = ("",)
LAYOUTS = {"cnn": ("", "channels_last"), "vgg11": ("", "channels_last")}

KEEP_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_TOP_PAD_": str(2**26)}
"""Without these glibc hands large blocks back to the system after every step and fetches them again: page faults."""


@dataclass(frozen=True)
class Peer:
    """One row of the table, and how to get it. Rows may share a script and an environment, with other variants."""

    name: str
    script: str
    environment: str | None
    """A folder in .bench-envs, or None: the repository's own .venv."""
    requirements: tuple[str, ...] = ()
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Timed and warm-up rounds, by workload, where the workload's own would take too long, or too little."""


_OURS = {"mlp": (1500, 20), "mlp300": (150, 4)}  # a run is set up within them, which others do before
_MESSAGES = {"mlp": ("", "inline"), "mlp300": ("", "inline")}
_FLOWER = {"mlp": (30, 10), "mlp300": (5, 3), "cnn": (15, 5), "vgg11": (2, 1)}
_CHUNKS = {"cnn": ("", "chunks_of_5"), "vgg11": ("chunks_of_1", "chunks_of_3")}  # vgg11 in one piece: 73 s, 4 GB
_PIECES = LAYOUTS | {"vgg11": ("", "channels_last", "channels_last_chunks_of_6")}
_MAPS = {"mlp": ("vmap", "scan"), "mlp300": ("scan", "vmap"), "cnn": ("calls", "vmap"), "vgg11": ("calls",)}
_ONE_BATCH = dict.fromkeys(WORKLOADS, ("one_batch",))

PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "adelfl_sim.py", None, rounds=_OURS),
        Peer("plain", "plain_sim.py", "torch", ("torch", "numpy")),
        Peer("loop", "loop_sim.py", "torch", ("torch", "numpy"), LAYOUTS),
        Peer("vmap", "vmap_sim.py", "torch", ("torch", "numpy"), _CHUNKS),
        Peer("batch", "batch_sim.py", "torch", ("torch", "numpy"), _PIECES),
        Peer(
            "flower",
            "flower_sim.py",
            "flower",
            ("flwr[simulation]==1.41.0", "torch", "psutil"),
            LAYOUTS | _MESSAGES,
            _FLOWER,
        ),
        Peer("pfl", "pfl_sim.py", "pfl", ("pfl[pytorch]", "torch"), LAYOUTS, {"mlp": (100, 10), "mlp300": (15, 3)}),
        Peer("jax", "jax_sim.py", "jax", ("jax", "jaxlib", "numpy"), _MAPS, {"vgg11": (1, 1)}),
        Peer("jax-batch", "jax_sim.py", "jax", ("jax", "jaxlib", "numpy"), _ONE_BATCH, {"vgg11": (1, 1)}),
    )
}


@dataclass(frozen=True)
class Setting:
    """How a peer is run."""

    variant: str
    keep_heap: bool
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return ", ".join(filter(None, (threads, self.variant, "heap kept" if self.keep_heap else "")))


class CannotRun(Exception):
    """A peer that is not there or fails; the message is the reason, for the table."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- environments ---------------------------------------------------------------------------------------------------


def interpreter(peer: Peer) -> Path:
    """The peer's python; makes its environment if it is missing or asks for other packages than before."""
    if not (SCRIPTS / peer.script).exists():
        raise CannotRun(f"bench/peers/{peer.script} is missing")
    if peer.environment is None:
        python = REPOSITORY / ".venv" / "bin" / "python"
        if not python.exists():
            raise CannotRun("no .venv in the repository: run make lint, which prepares it")
        return python
    folder = ENVIRONMENTS / peer.environment
    python, ready = folder / "bin" / "python", folder / "ready.txt"
    wanted = "\n".join(peer.requirements) + "\n"
    if ready.exists() and ready.read_text() == wanted:
        return python
    say(f"making {folder.relative_to(REPOSITORY)} ({', '.join(peer.requirements)})")
    ENVIRONMENTS.mkdir(exist_ok=True)
    run([sys.executable, "-m", "venv", "--clear", str(folder)], seconds=INSTALL_SECONDS)
    constraints = str(REPOSITORY / "constraints.txt")
    run([str(python), "-m", "pip", "install", "--quiet", "-c", constraints, *peer.requirements], INSTALL_SECONDS)
    ready.write_text(wanted)
    return python


def run(command: list[str], seconds: float, extra: dict[str, str] | None = None) -> str:
    """Run a command in a process group of its own, and end that group, children and all, if it takes too long."""
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=os.environ | (extra or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except BaseException as problem:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(problem, subprocess.TimeoutExpired):
            raise CannotRun(f"not done after {seconds:.0f} s") from None
        raise
    if process.returncode:
        raise CannotRun(_reason(errors) or f"exit code {process.returncode}")
    return out


def _reason(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("ERROR:")] or lines
    return said[-1][:200] if said else ""


# --- measuring ------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """All that is known of one peer on one workload."""

    peer: Peer
    tried: dict[Setting, dict[str, Any]] = field(default_factory=dict)
    """The first pass, one run each."""
    runs: dict[Setting, list[dict[str, Any]]] = field(default_factory=dict)
    """The repeats, for the best settings alone."""
    reason: str = ""
    """Why there is no number."""

    def median(self, setting: Setting, key: str) -> float:
        """The middle of the repeats."""
        return statistics.median(float(run[key]) for run in self.runs[setting])

    def best(self, key: str) -> tuple[float, Setting]:
        """The lowest median of a quantity, and the setting that gave it."""
        return min(((self.median(setting, key), setting) for setting in self.runs), key=lambda pair: pair[0])

    def ratio(self, ours: Row) -> tuple[float, float, float]:
        """How many times our CPU time this peer takes, turn by turn: lower quartile, median, upper quartile."""
        mine, its = (row.runs[row.best("cpu_s_per_round")[1]] for row in (ours, self))
        found = [b["cpu_s_per_round"] / a["cpu_s_per_round"] for a, b in zip(mine, its, strict=True)]
        low, middle, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
        return low, middle, high


@dataclass(frozen=True)
class Bench:
    """One workload, measured for some peers."""

    workload: str
    rounds: int | None
    folder: Path

    def measure(self, peer: Peer, setting: Setting) -> dict[str, Any]:
        """Run a peer's script once and read its line of JSON."""
        command = [str(interpreter(peer)), str(SCRIPTS / peer.script), self.workload, "--threads", str(setting.threads)]
        if setting.variant:
            command += ["--variant", setting.variant]
        timed, warmup = peer.rounds.get(self.workload, (None, None))
        for option, value in (("--rounds", self.rounds or timed), ("--warmup", warmup)):
            if value is not None:
                command += [option, str(value)]
        out = run(command, RUN_SECONDS, self.environment(setting))
        try:
            found: dict[str, Any] = json.loads(out.splitlines()[-1])
        except (IndexError, json.JSONDecodeError):
            raise CannotRun("the script printed no JSON line") from None
        cpu, wall = found["cpu_s_per_round"], found["wall_s_per_round"]
        say(f"  {self.workload:7}{peer.name:10}{cpu:10.4f} CPU s {wall * 1e3:10.1f} wall ms   {setting}")
        return found

    def environment(self, setting: Setting) -> dict[str, str]:
        """The variables that a run gets on top of the user's own."""
        # Passive waiting: a thread that spins until its next task would only burn the CPU time that is counted here.
        return {"OMP_WAIT_POLICY": "passive", "TMPDIR": str(self.folder)} | (KEEP_HEAP if setting.keep_heap else {})

    def try_settings(self, row: Row, tuned: bool) -> list[Setting]:
        """First variant and heap with one thread, if it may be tuned, then two threads with the best of these."""
        variants = row.peer.variants.get(self.workload, PLAIN)
        for variant in variants if tuned else variants[:1]:
            for keep_heap in (False, True) if tuned else (False,):
                self._try(row, Setting(variant, keep_heap, threads=1))
        if not row.tried:
            raise CannotRun(row.reason)
        row.reason = ""  # one that works is enough
        best = min(row.tried, key=lambda s: row.tried[s]["cpu_s_per_round"])
        self._try(row, Setting(best.variant, best.keep_heap, threads=2))
        row.reason = ""
        wanted = [min(row.tried, key=lambda s: row.tried[s][key]) for key in ("cpu_s_per_round", "wall_s_per_round")]
        return list(dict.fromkeys(wanted))

    def _try(self, row: Row, setting: Setting) -> None:
        try:
            row.tried[setting] = self.measure(row.peer, setting)
        except CannotRun as problem:
            row.reason = str(problem)
            say(f"  {self.workload:7}{row.peer.name:10} {setting} fails: {problem}")

    def compare(self, peers: Iterable[Peer], repeats: int, quick: bool, tuned: bool) -> list[Row]:
        """Measure all peers; those that fail keep their reason."""
        rows = [Row(peer) for peer in peers]
        chosen: dict[str, list[Setting]] = {}
        for row in rows:
            try:
                first = row.peer.variants.get(self.workload, PLAIN)[0]
                chosen[row.peer.name] = [Setting(first, False, 1)] if quick else self.try_settings(row, tuned)
            except CannotRun as problem:
                row.reason = str(problem)
        for _ in range(repeats):
            for row in rows:
                if row.reason:
                    continue
                try:
                    for setting in chosen[row.peer.name]:
                        row.runs.setdefault(setting, []).append(self.measure(row.peer, setting))
                except CannotRun as problem:
                    row.reason = str(problem)
        return rows


# --- the table ------------------------------------------------------------------------------------------------------


def machine() -> str:
    """Processor, cores, memory and how busy they are: numbers without their machine say little."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, load {load}"


def table(workload: str, rows: list[Row]) -> str:
    """The rows of one workload, as text."""
    w = WORKLOADS[workload]
    lines = [
        f"{workload}: {w.about}; {w.devices} devices, batch {w.batch}, {w.samples} samples each; one step",
        f"{'peer':10}{'CPU s/round':>13}{'÷ adelfl':>10}{'quartiles':>17}{'wall ms/round':>15}{'peak MB':>9}"
        "   setting (CPU; wall)",
    ]
    measured = {row.peer.name: row for row in rows if row.runs and not row.reason}
    ours = measured.get(OURS)
    for row in rows:
        if row.peer.name not in measured:
            lines.append(f"{row.peer.name:10}  not measured: {row.reason}")
            continue
        (cpu, by_cpu), (wall, by_wall) = row.best("cpu_s_per_round"), row.best("wall_s_per_round")
        low, ratio, high = row.ratio(ours) if ours else (math.nan,) * 3
        settings = str(by_cpu) if by_cpu == by_wall else f"{by_cpu}; {by_wall}"
        peak = row.median(by_cpu, "peak_mb")
        ratios = f"{ratio:10.2f}{f'{low:.2f} to {high:.2f}':>17}"
        lines.append(f"{row.peer.name:10}{cpu:13.4g}{ratios}{wall * 1e3:15.4g}{peak:9.0f}   {settings}")
    return "\n".join(lines)


def versions(rows: Iterable[Row]) -> str:
    """What was measured, peer by peer."""
    found = {row.peer.name: next(iter(row.runs.values()))[0]["versions"] for row in rows if row.runs}
    return "\n".join(f"{name:10}{', '.join(f'{k} {v}' for k, v in given.items())}" for name, given in found.items())


def as_json(results: dict[str, list[Row]]) -> dict[str, Any]:
    """Everything, for a program to read."""

    def one(row: Row, ours: Row | None) -> dict[str, Any]:
        if row.reason or not row.runs:
            return {"reason": row.reason}
        (cpu, by_cpu), (wall, by_wall) = row.best("cpu_s_per_round"), row.best("wall_s_per_round")
        return {
            "cpu_s_per_round": cpu,
            "cpu_setting": str(by_cpu),
            "times_ours": row.ratio(ours) if ours else None,
            "wall_s_per_round": wall,
            "wall_setting": str(by_wall),
            "peak_mb": row.median(by_cpu, "peak_mb"),
            "versions": row.runs[by_cpu][0]["versions"],
            "runs": {str(setting): runs for setting, runs in row.runs.items()},
            "tried": {str(setting): run for setting, run in row.tried.items()},
        }

    found = {}
    for name, rows in results.items():
        ours = next((row for row in rows if row.peer.name == OURS and row.runs and not row.reason), None)
        found[name] = {row.peer.name: one(row, ours) for row in rows}
    return found


# --- the cross-check ------------------------------------------------------------------------------------------------


YARDSTICK = "loop", "float64"
TOLERANCE = 1e-4
"""Of float32 sums in another order."""
GATES = 3.0
"""In a deep network a few of many ReLUs and maxima are so close that rounding decides them, and a whole path opens or
closes: nobody can be asked to be much nearer to the yardstick than the same loop in float32 is."""


def check(workloads: list[str], peers: list[Peer], folder: Path) -> bool:
    """Let every peer do one round on the same weights and batches, in each of its variants, and compare the updates.

    adelfl goes first and does what is timed, its own draws included; the rows that it drew are the others' batches. The
    error is the largest difference to the update of a plain loop in float64, over all entries of a weight, relative to
    the largest entry of that update; the worst weight counts.
    """
    import numpy as np

    good = True
    ours, loop = PEERS[OURS], PEERS[YARDSTICK[0]]
    for name in workloads:
        rows = folder / f"{name}-rows.npy"
        np.save(rows, fixed_batches(WORKLOADS[name]))
        try:
            own = _update(name, ours, "", rows) if ours in peers else None
            yardstick = _update(name, loop, YARDSTICK[1], rows)
            rounding = _error(_update(name, loop, "", rows), yardstick)
        except CannotRun as problem:
            print(f"{name:8}not checked: {problem}", flush=True)
            good = False
            continue
        tolerance = max(TOLERANCE, GATES * rounding)
        print(f"{name:8}tolerance {tolerance:.0e} (the loop's own rounding: {rounding:.1e})", flush=True)
        settings = [(peer, variant) for peer in peers for variant in peer.variants.get(name, PLAIN)]
        for peer, variant in settings:
            label = f"{name:8}{peer.name:10}{variant:28}"
            try:
                error = _error(own if peer is ours and own else _update(name, peer, variant, rows), yardstick)
            except CannotRun as problem:
                print(f"{label} not checked: {problem}", flush=True)
                good = False
                continue
            good &= error <= tolerance
            print(f"{label} error {error:.1e}{'' if error <= tolerance else ' — DIFFERENT'}", flush=True)
    return good


def _update(name: str, peer: Peer, variant: str, rows: Path) -> list[Floats]:
    """What one round adds to each of the first weights."""
    import numpy as np

    out = rows.with_name("weights.npz")
    out.unlink(missing_ok=True)
    command = [str(interpreter(peer)), str(SCRIPTS / peer.script), name, "--check", str(out), "--rows", str(rows)]
    run(command + (["--variant", variant] if variant else []), RUN_SECONDS, {"TMPDIR": str(rows.parent)})
    with np.load(out) as saved:
        return [saved[key] - before for key, before in zip(saved, first_weights(WORKLOADS[name]), strict=True)]


def _error(update: list[Floats], reference: list[Floats]) -> float:
    """Of the worst weight; NaN counts as infinitely wrong."""
    import numpy as np

    errors = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(update, reference, strict=True)]
    return max(error if math.isfinite(error) else math.inf for error in errors)


def listed(given: str, allowed: Iterable[str]) -> list[str]:
    """Split a list of names; one sentence if a name is not known."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    if unknown := [name for name in names if name not in allowed]:
        sys.exit(f"{', '.join(unknown)}: not known; choose from {', '.join(allowed)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="default: %(default)s")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, help="timed rounds per run; default: set by workload and peer")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each peer's best settings; default: 3")
    parser.add_argument("--quick", action="store_true", help="one thread and plain settings, without the first pass")
    parser.add_argument("--default-settings", action="store_true", help="plain settings, one and two threads")
    parser.add_argument("--json", action="store_true", help="JSON, and only JSON, on stdout; tables on stderr")
    parser.add_argument("--check", action="store_true", help="compare the peers' updates instead of their speed")
    given = parser.parse_args()
    workloads = listed(given.workloads, WORKLOADS)
    peers = [PEERS[name] for name in listed(given.peers, PEERS)]
    folder = Path(tempfile.mkdtemp(prefix="sb-", dir="/tmp"))  # a short path, for the sockets that Ray puts into it
    try:
        if given.check:
            return 0 if check(workloads, peers, folder) else 1
        results: dict[str, list[Row]] = {}
        show = say if given.json else partial(print, flush=True)
        before = machine()
        say(before)
        for name in workloads:
            bench = Bench(name, given.rounds, folder)
            results[name] = bench.compare(peers, max(1, given.repeats), given.quick, not given.default_settings)
            show(table(name, results[name]) + "\n")
        show(versions(row for rows in results.values() for row in rows))
        show(f"\nbefore: {before}\nafter:  {machine()}")
        if given.json:
            print(json.dumps({"machine": before, "workloads": as_json(results)}, indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
