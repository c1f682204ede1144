"""Run many jobs at a time: in processes of this machine, or on a Ray cluster.

Progress is read from the records of the runs, so a job needs no connection to this process.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from adelfl.atomic import RunBusyError
from adelfl.clock import RealClock
from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.records.schema import Row, RunResult
from adelfl.runner import RunJob, run_job

Ended = tuple[RunJob, RunResult | AdelError]
Where = Literal["here", "ray"]

_POLL = 0.2  # seconds between two looks at records
_RETRIES = 3  # of a job whose machine fails
_LONGEST_WAIT = 60.0  # seconds for the process that ran a job before to end


def run_all(
    jobs: list[RunJob], workers: int, report: Callable[[RunJob, Row], None], on: Where = "here"
) -> Iterator[Ended]:
    """Run jobs, several at a time; yield each with its result or error when it ends.

    Parameters
    ----------
    jobs : list of RunJob
        The runs.
    workers : int
        Runs at a time on this machine; a Ray cluster runs as many as it has processors.
    report : callable
        Called with a job and each of its rows that has an accuracy.
    on : {"here", "ray"}
        Where they run.
    """
    if on == "here" and (workers <= 1 or len(jobs) <= 1):
        for job in jobs:
            try:
                yield job, run_job(job, lambda row, job=job: report(job, row))  # type: ignore[misc]
            except AdelError as error:
                yield job, error
        return
    if not jobs:
        return
    tails = {job: _Tail(job.folder / "rounds.jsonl") for job in jobs}
    pool: _Pool = _Ray(jobs) if on == "ray" else _Processes(jobs, workers)
    try:
        while tails:
            ended = pool.ended(_POLL)
            for job, tail in tails.items():
                for row in tail.rows():
                    report(job, row)
            for job, result in ended:
                del tails[job]
                yield job, result
    finally:
        pool.stop()  # interrupted runs can be resumed


class _Pool(Protocol):
    """Jobs under way."""

    def ended(self, timeout: float) -> list[Ended]:
        """Wait for a job to end, for some seconds at most; return those that did."""

    def stop(self) -> None:
        """End all workers at once."""


class _Tail:
    """Rows with an accuracy that are added to a file from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end = path.stat().st_size if path.exists() else 0

    def rows(self) -> list[Row]:
        """Return the new rows."""
        with contextlib.suppress(OSError, ValueError):
            if (size := self.path.stat().st_size) <= self.end:
                self.end = size  # a resumed run is cut back to its checkpoint first
                return []
            with open(self.path, "rb") as file:
                file.seek(self.end)
                lines = file.read()[: size - self.end].rpartition(b"\n")[0]
            self.end += len(lines) + 1 if lines else 0
            rows = [Row.from_json(json.loads(line)) for line in lines.splitlines()]
            return [row for row in rows if row.accuracy is not None]
        return []


class _Processes:
    """Jobs in processes of this machine."""

    def __init__(self, jobs: list[RunJob], workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(min(workers, len(jobs)), context, _begin_worker)
        self.pending: dict[Future[RunResult], RunJob] = {self.pool.submit(run_job, job): job for job in jobs}

    def ended(self, timeout: float) -> list[Ended]:
        done, _ = wait(self.pending, timeout, FIRST_COMPLETED)
        return [self._result(self.pending.pop(future), future) for future in done]

    def _result(self, job: RunJob, future: Future[RunResult]) -> Ended:
        try:
            return job, future.result()
        except AdelError as error:
            return job, error
        except BrokenProcessPool:
            return job, _killed(job)

    def stop(self) -> None:
        if self.pending:
            for child in multiprocessing.active_children():
                child.terminate()
        self.pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """End this process when its parent ends; leave Ctrl-C, which reaches the whole process group, to the parent."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Ray:
    """Jobs on a Ray cluster: the one at $RAY_ADDRESS, or one that is started on this machine.

    Ray moves the jobs of a machine that fails to others, where they are resumed.
    """

    def __init__(self, jobs: list[RunJob]) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise MissingExtraError("ray", "scale") from None
        self.ray = ray
        if not ray.is_initialized():
            try:
                ray.init(log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError, ValueError) as error:
                address = os.environ.get("RAY_ADDRESS", "this machine")
                raise ConfigError(f"--on ray: there is no cluster at {address} ({error})") from None
        self.pending: dict[Any, RunJob] = {}
        for job in jobs:
            folder = job.folder.absolute()
            folder.parent.mkdir(parents=True, exist_ok=True)
            engine = json.loads(job.config)["engine"]
            needs = {"num_cpus": engine["threads"], "num_gpus": int(engine["device"] != "cpu")}
            remote = ray.remote(**needs, max_retries=_RETRIES)(_run_on_node)
            self.pending[remote.remote(replace(job, folder=folder))] = job

    def ended(self, timeout: float) -> list[Ended]:
        done, _ = self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=timeout)
        return [self._result(self.pending.pop(ref), ref) for ref in done]

    def _result(self, job: RunJob, ref: Any) -> Ended:  # noqa: ANN401 - Ray comes without types
        try:
            return job, self.ray.get(ref)
        except self.ray.exceptions.RayError:
            return job, _killed(job)

    def stop(self) -> None:
        for ref in self.pending:
            self.ray.cancel(ref, force=True)


def _run_on_node(job: RunJob) -> RunResult | AdelError:
    """Run a job on a machine of a cluster; wait if the process that ran it before has not ended yet."""
    if not job.folder.parent.is_dir():
        return ConfigError(
            f"{job.folder.parent}: not on {platform.node()}; runs must be in a folder that all machines share"
        )
    clock = RealClock()
    while True:
        try:
            return run_job(job)
        except RunBusyError as error:
            if clock.now() > _LONGEST_WAIT:
                return error
            clock.sleep_until(clock.now() + 1.0)
        except AdelError as error:
            return error


def _killed(job: RunJob) -> AdelError:
    return AdelError(f"{job.folder}: its process was killed; the same command goes on from there")
