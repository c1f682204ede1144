"""Measure the cost of a simulated round in adelfl and in other programs, each in its own environment.

    python bench/simulators.py                                    # everything; an hour on two cores
    python bench/simulators.py --workloads mlp,cnn --peers loop,jax
    python bench/simulators.py --quick --workloads mlp            # one thread, default settings
    python bench/simulators.py --default-settings --workloads mlp # the best number of threads
    python bench/simulators.py --quick --workloads mlp-e5,cnn-e5,fedbuff --peers adelfl,plain,jax
    python bench/simulators.py --check                            # check that all peers compute the same update

The main quantity is CPU seconds per round (user and system time of all threads and child processes). Unlike wall-clock
time, it hardly depends on other load. Start-up, data loading and compilation are not counted.

Every program ("peer") runs with its best settings. A first pass tries the variants of the peer (memory layout, chunks),
a default and a retained glibc heap, and one and two threads. The settings with the lowest CPU time and the lowest wall
time then run ``--repeats`` times, with the peers in turns (A B C, A B C). The table shows medians. The speed of a
shared machine drifts by a third within minutes, so ratios are computed within a turn, and the table shows their median
and quartiles. For a peer that cannot be installed or fails, the table shows the reason.

With one local step, FedAvg equals one SGD step on the samples of all devices. adelfl's fused engine relies on this. The
peers ``batch`` and ``jax-batch`` do only that, in torch and JAX. The other peers keep devices apart, as a simulator
must if devices take several steps or deliver different layers.

Environments are created in .bench-envs/ when they are first needed (with pip, and torch from constraints.txt).
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPTS = REPOSITORY / "bench" / "peers"
ENVIRONMENTS = REPOSITORY / ".bench-envs"
sys.path.insert(0, str(SCRIPTS))

from workloads import WORKLOADS, Floats, Workload, first_weights, fixed_batches  # noqa: E402

INSTALL_SECONDS = 1800
RUN_SECONDS = 1800
OURS = "adelfl"

PLAIN = ("",)
LAYOUTS = dict.fromkeys(("cnn", "cnn-e5", "vgg11"), ("", "channels_last"))

KEEP_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_TOP_PAD_": str(2**26)}
"""Settings that keep glibc from returning large blocks to the system after every step, which causes page faults."""


@dataclass(frozen=True)
class Peer:
    """One row of the table and how to measure it; rows may share a script and an environment."""

    name: str
    script: str
    environment: str | None
    """Folder in .bench-envs, or None for the .venv of the repository."""
    requirements: tuple[str, ...] = ()
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Timed and warm-up rounds by workload, where the defaults of the workload do not suit."""
    does: Callable[[Workload], bool] = lambda w: w.steps == 1 and w.buffer is None
    """Whether the script has a workload."""


def _any(workload: Workload) -> bool:
    return True


def _merges(workload: Workload) -> bool:
    return workload.buffer is not None


def _rounds(workload: Workload) -> bool:
    return workload.buffer is None


_OURS = {
    "mlp": (1500, 20),
    "mlp300": (150, 4),
    "mlp-e5": (300, 5),
    "fedbuff": (1000, 40),
}  # these include the set-up of a run, which other peers do earlier
_MESSAGES = {"mlp": ("", "inline"), "mlp300": ("", "inline")}
_FLOWER = {"mlp": (30, 10), "mlp300": (5, 3), "cnn": (15, 5), "vgg11": (2, 1)}
_CHUNKS = {"cnn": ("", "chunks_of_5"), "vgg11": ("chunks_of_1", "chunks_of_3")}  # vgg11 in one piece: 73 s, 4 GB
_PIECES = LAYOUTS | {"vgg11": ("", "channels_last", "channels_last_chunks_of_6")}
_MAPS = {"mlp": ("vmap", "scan"), "mlp300": ("scan", "vmap"), "cnn": ("calls", "vmap"), "vgg11": ("calls",)}
_MAPS |= {"mlp-e5": ("vmap", "vmap_unrolled"), "cnn-e5": ("calls", "vmap_unrolled")}
_ONE_BATCH = dict.fromkeys(WORKLOADS, ("one_batch",))

PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "adelfl_sim.py", None, rounds=_OURS, does=_any),
        Peer("plain", "plain_sim.py", "torch", ("torch", "numpy"), does=_any),
        Peer("loop", "loop_sim.py", "torch", ("torch", "numpy"), LAYOUTS, does=_rounds),
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
        Peer("flgo", "flgo_sim.py", "flgo", ("torch", "flgo"), rounds={"fedbuff": (60, 5)}, does=_merges),
        Peer("jax", "jax_sim.py", "jax", ("jax", "jaxlib", "numpy"), _MAPS, {"vgg11": (1, 1)}, _rounds),
        Peer("jax-batch", "jax_sim.py", "jax", ("jax", "jaxlib", "numpy"), _ONE_BATCH, {"vgg11": (1, 1)}),
    )
}


@dataclass(frozen=True)
class Setting:
    """Settings of a run: variant, heap, threads."""

    variant: str
    keep_heap: bool
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return ", ".join(filter(None, (threads, self.variant, "heap retained" if self.keep_heap else "")))


class CannotRun(Exception):
    """Raised if a peer is missing or fails; the message is the reason shown in the table."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- environments ---------------------------------------------------------------------------------------------------


def interpreter(peer: Peer) -> Path:
    """Return the Python of a peer; create its environment if it is missing or its requirements have changed."""
    if not (SCRIPTS / peer.script).exists():
        raise CannotRun(f"bench/peers/{peer.script} is missing")
    if peer.environment is None:
        python = REPOSITORY / ".venv" / "bin" / "python"
        if not python.exists():
            raise CannotRun("there is no .venv in the repository; run make lint to create it")
        return python
    folder = ENVIRONMENTS / peer.environment
    python, ready = folder / "bin" / "python", folder / "ready.txt"
    wanted = "\n".join(peer.requirements) + "\n"
    if ready.exists() and ready.read_text() == wanted:
        return python
    say(f"creating {folder.relative_to(REPOSITORY)} ({', '.join(peer.requirements)})")
    ENVIRONMENTS.mkdir(exist_ok=True)
    run([sys.executable, "-m", "venv", "--clear", str(folder)], seconds=INSTALL_SECONDS)
    constraints = str(REPOSITORY / "constraints.txt")
    run([str(python), "-m", "pip", "install", "--quiet", "-c", constraints, *peer.requirements], INSTALL_SECONDS)
    ready.write_text(wanted)
    return python


def run(command: list[str], seconds: float, extra: dict[str, str] | None = None) -> str:
    """Run a command in its own process group, and kill the group if it takes too long."""
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
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CannotRun(f"not done after {seconds:.0f} s") from None
        raise
    if process.returncode:
        raise CannotRun(_reason(errors) or f"exit code {process.returncode}")
    return out


def _reason(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    messages = [line for line in lines if line.startswith("ERROR:")] or lines
    return messages[-1][:200] if messages else ""


# --- measuring ------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """Measurements of one peer on one workload."""

    peer: Peer
    tried: dict[Setting, dict[str, Any]] = field(default_factory=dict)
    """Results of the first pass, one run per setting."""
    runs: dict[Setting, list[dict[str, Any]]] = field(default_factory=dict)
    """Results of the repeats, for the best settings only."""
    reason: str = ""
    """Why the peer could not be measured."""

    def median(self, setting: Setting, key: str) -> float:
        """Return the median of a quantity over the repeats."""
        return statistics.median(float(run[key]) for run in self.runs[setting])

    def best(self, key: str) -> tuple[float, Setting]:
        """Return the lowest median of a quantity and its setting."""
        return min(((self.median(setting, key), setting) for setting in self.runs), key=lambda pair: pair[0])

    def ratio(self, ours: Row) -> tuple[float, float, float]:
        """Return the quartiles over turns of this peer's CPU time divided by adelfl's."""
        mine, its = (row.runs[row.best("cpu_s_per_round")[1]] for row in (ours, self))
        ratios = [b["cpu_s_per_round"] / a["cpu_s_per_round"] for a, b in zip(mine, its, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return low, middle, high


@dataclass(frozen=True)
class Bench:
    """Measurement of one workload for several peers."""

    workload: str
    rounds: int | None
    folder: Path

    def measure(self, peer: Peer, setting: Setting) -> dict[str, Any]:
        """Run the script of a peer once and return its JSON output."""
        command = [str(interpreter(peer)), str(SCRIPTS / peer.script), self.workload, "--threads", str(setting.threads)]
        if setting.variant:
            command += ["--variant", setting.variant]
        timed, warmup = peer.rounds.get(self.workload, (None, None))
        for option, value in (("--rounds", self.rounds or timed), ("--warmup", warmup)):
            if value is not None:
                command += [option, str(value)]
        out = run(command, RUN_SECONDS, self.environment(setting))
        try:
            result: dict[str, Any] = json.loads(out.splitlines()[-1])
        except (IndexError, json.JSONDecodeError):
            raise CannotRun("the script printed no JSON line") from None
        cpu, wall = result["cpu_s_per_round"], result["wall_s_per_round"]
        say(f"  {self.workload:7}{peer.name:10}{cpu:10.4f} CPU s {wall * 1e3:10.1f} wall ms   {setting}")
        return result

    def environment(self, setting: Setting) -> dict[str, str]:
        """Return the environment variables that are set in addition to the user's."""
        # Threads that spin while waiting would add to the CPU time that is measured here.
        return {"OMP_WAIT_POLICY": "passive", "TMPDIR": str(self.folder)} | (KEEP_HEAP if setting.keep_heap else {})

    def try_settings(self, row: Row, tuned: bool) -> list[Setting]:
        """Try variants and heaps with one thread, then the best of them with two; return the best settings."""
        variants = row.peer.variants.get(self.workload, PLAIN)
        for variant in variants if tuned else variants[:1]:
            for keep_heap in (False, True) if tuned else (False,):
                self._try(row, Setting(variant, keep_heap, threads=1))
        if not row.tried:
            raise CannotRun(row.reason)
        row.reason = ""  # one working setting is enough
        best = min(row.tried, key=lambda s: row.tried[s]["cpu_s_per_round"])
        self._try(row, Setting(best.variant, best.keep_heap, threads=2))
        row.reason = ""
        wanted = [min(row.tried, key=lambda s: row.tried[s][key]) for key in ("cpu_s_per_round", "wall_s_per_round")]
        return list(dict.fromkeys(wanted))

    def _try(self, row: Row, setting: Setting) -> None:
        try:
            row.tried[setting] = self.measure(row.peer, setting)
        except CannotRun as error:
            row.reason = str(error)
            say(f"  {self.workload:7}{row.peer.name:10} {setting} fails: {error}")

    def compare(self, peers: Iterable[Peer], repeats: int, quick: bool, tuned: bool) -> list[Row]:
        """Measure all peers; rows of peers that fail state the reason."""
        rows = [Row(peer) for peer in peers if peer.does(WORKLOADS[self.workload])]
        chosen: dict[str, list[Setting]] = {}
        for row in rows:
            try:
                first = row.peer.variants.get(self.workload, PLAIN)[0]
                chosen[row.peer.name] = [Setting(first, False, 1)] if quick else self.try_settings(row, tuned)
            except CannotRun as error:
                row.reason = str(error)
        for _ in range(repeats):
            for row in rows:
                if row.reason:
                    continue
                try:
                    for setting in chosen[row.peer.name]:
                        row.runs.setdefault(setting, []).append(self.measure(row.peer, setting))
                except CannotRun as error:
                    row.reason = str(error)
        return rows


# --- the table ------------------------------------------------------------------------------------------------------


def machine() -> str:
    """Return a description of the processor, cores, memory and load."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, load {load}"


def table(workload: str, rows: list[Row]) -> str:
    """Format the rows of one workload as text."""
    w = WORKLOADS[workload]
    steps = f"{w.steps} step{'s' if w.steps > 1 else ''}"
    merges = "" if w.buffer is None else f"; a round is a merge of {w.buffer} updates"
    lines = [
        f"{workload}: {w.about}; {w.devices} devices, batch {w.batch}, {w.samples} samples each; {steps}{merges}",
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
    """Format the package versions of each peer."""
    packages = {row.peer.name: next(iter(row.runs.values()))[0]["versions"] for row in rows if row.runs}
    return "\n".join(f"{name:10}{', '.join(f'{k} {v}' for k, v in used.items())}" for name, used in packages.items())


def as_json(results: dict[str, list[Row]]) -> dict[str, Any]:
    """Return all measurements as a JSON-compatible dictionary."""

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

    workloads = {}
    for name, rows in results.items():
        ours = next((row for row in rows if row.peer.name == OURS and row.runs and not row.reason), None)
        workloads[name] = {row.peer.name: one(row, ours) for row in rows}
    return workloads


# --- the cross-check ------------------------------------------------------------------------------------------------


REFERENCE = "loop", "float64"
TOLERANCE = 1e-4
"""Relative error that float32 sums in a different order may cause."""
SLACK = 3.0
"""Tolerance as a multiple of the error of the float32 loop. In a deep network, rounding decides some ReLUs and maxima
and thereby changes whole paths, so no peer can be much closer to the reference than this loop."""


def check(workloads: list[str], peers: list[Peer], folder: Path) -> bool:
    """Run one round in every variant of every peer on the same weights and batches, and compare the updates.

    adelfl runs first, with the code that is timed and its own random draws; the other peers use the samples that it
    drew. The error of a weight is the largest difference to the update of a plain loop in float64, relative to the
    largest entry of that update. The error of a peer is that of its worst weight.
    """
    import numpy as np

    good = True
    ours, loop = PEERS[OURS], PEERS[REFERENCE[0]]
    for name in workloads:
        if WORKLOADS[name].buffer is not None:
            continue  # arrivals come in another order in every program
        rows = folder / f"{name}-rows.npy"
        np.save(rows, fixed_batches(WORKLOADS[name]))
        try:
            own = _update(name, ours, "", rows) if ours in peers else None
            reference = _update(name, loop, REFERENCE[1], rows)
            rounding = _error(_update(name, loop, "", rows), reference)
        except CannotRun as error:
            print(f"{name:8}not checked: {error}", flush=True)
            good = False
            continue
        tolerance = max(TOLERANCE, SLACK * rounding)
        print(f"{name:8}tolerance {tolerance:.0e} (the loop's own rounding: {rounding:.1e})", flush=True)
        able = [peer for peer in peers if peer.does(WORKLOADS[name])]
        settings = [(peer, variant) for peer in able for variant in peer.variants.get(name, PLAIN)]
        for peer, variant in settings:
            label = f"{name:8}{peer.name:10}{variant:28}"
            try:
                error = _error(own if peer is ours and own else _update(name, peer, variant, rows), reference)
            except CannotRun as error:
                print(f"{label} not checked: {error}", flush=True)
                good = False
                continue
            good &= error <= tolerance
            print(f"{label} error {error:.1e}{'' if error <= tolerance else ' — DIFFERENT'}", flush=True)
    return good


def _update(name: str, peer: Peer, variant: str, rows: Path) -> list[Floats]:
    """Return what one round adds to each initial weight."""
    import numpy as np

    out = rows.with_name("weights.npz")
    out.unlink(missing_ok=True)
    command = [str(interpreter(peer)), str(SCRIPTS / peer.script), name, "--check", str(out), "--rows", str(rows)]
    run(command + (["--variant", variant] if variant else []), RUN_SECONDS, {"TMPDIR": str(rows.parent)})
    with np.load(out) as saved:
        return [saved[key] - before for key, before in zip(saved, first_weights(WORKLOADS[name]), strict=True)]


def _error(update: list[Floats], reference: list[Floats]) -> float:
    """Return the relative error of the worst weight; NaN counts as infinite."""
    import numpy as np

    errors = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(update, reference, strict=True)]
    return max(error if math.isfinite(error) else math.inf for error in errors)


def listed(text: str, allowed: Iterable[str]) -> list[str]:
    """Split a comma-separated list of names; exit with a message if a name is unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in allowed]:
        sys.exit(f"{', '.join(unknown)}: unknown; choose from {', '.join(allowed)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="default: %(default)s")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, help="timed rounds per run; default: set by workload and peer")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each peer's best settings; default: 3")
    parser.add_argument("--quick", action="store_true", help="one thread and default settings, without the first pass")
    parser.add_argument("--default-settings", action="store_true", help="default settings, one and two threads")
    parser.add_argument("--json", action="store_true", help="print only JSON on stdout; tables go to stderr")
    parser.add_argument("--check", action="store_true", help="compare the peers' updates instead of their speed")
    args = parser.parse_args()
    workloads = listed(args.workloads, WORKLOADS)
    peers = [PEERS[name] for name in listed(args.peers, PEERS)]
    folder = Path(tempfile.mkdtemp(prefix="sb-", dir="/tmp"))  # a short path, because Ray creates sockets in it
    try:
        if args.check:
            return 0 if check(workloads, peers, folder) else 1
        results: dict[str, list[Row]] = {}
        show = say if args.json else partial(print, flush=True)
        before = machine()
        say(before)
        for name in workloads:
            bench = Bench(name, args.rounds, folder)
            results[name] = bench.compare(peers, max(1, args.repeats), args.quick, not args.default_settings)
            show(table(name, results[name]) + "\n")
        show(versions(row for rows in results.values() for row in rows))
        show(f"\nbefore: {before}\nafter:  {machine()}")
        if args.json:
            print(json.dumps({"machine": before, "workloads": as_json(results)}, indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
