"""Run several jobs at a time: in processes on this machine, or on a Ray cluster.

Progress is read from the records of the runs, so jobs need no connection to this process.
"""

from __future__ import annotations

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
from typing import Any

from adelfl.atomic import RunBusyError
from adelfl.clock import RealClock
from adelfl.errors import AdelError, ConfigError
from adelfl.plugins import optional
from adelfl.records.schema import Row, RunResult
from adelfl.records.tail import RowTail
from adelfl.runner import RunJob, run_job

Ended = tuple[RunJob, RunResult | AdelError]
_Pool = tuple[Callable[[RunJob], Future[RunResult]], Callable[[list[Future[RunResult]]], None]]

_POLL = 0.2  # seconds between reads of the records
_RETRIES = 3  # retries of a job whose machine failed
_LONGEST_WAIT = 60.0  # seconds until a job's previous process must have ended


def run_all(
    jobs: list[RunJob], workers: int, report: Callable[[RunJob, Row], None], on: str = "here"
) -> Iterator[Ended]:
    """Run jobs, several at a time; yield each with its result or error when it ends.

    ``on`` is "here", where ``workers`` runs are computed at a time, or "ray", where the cluster's processors set their
    number. ``report`` is called with a job and each of its rows that has an accuracy.
    """
    if not jobs or (on == "here" and min(workers, len(jobs)) <= 1):
        for job in jobs:
            try:
                yield job, run_job(job, lambda row, job=job: report(job, row))  # type: ignore[misc]
            except AdelError as error:
                yield job, error
        return
    tails = {job: RowTail(job.folder / "rounds.jsonl") for job in jobs}
    for tail in tails.values():
        tail.skip()
    submit, stop = _ray() if on == "ray" else _processes(min(workers, len(jobs)))
    pending = {submit(job): job for job in jobs}
    try:
        while pending:
            done, _ = wait(pending, _POLL, FIRST_COMPLETED)
            for job, tail in tails.items():
                for row in tail.read():
                    if row.accuracy is not None:
                        report(job, row)
            for future in done:
                job = pending.pop(future)
                del tails[job]
                yield job, _result(job, future)
    finally:
        stop(list(pending))  # interrupted runs can be resumed


def _result(job: RunJob, future: Future[RunResult]) -> RunResult | AdelError:
    try:
        return future.result()
    except AdelError as error:
        return error
    except Exception as error:  # raised by the pool
        if isinstance(error, BrokenProcessPool) or type(error).__module__.startswith("ray."):
            return AdelError(f"{job.folder}: its process was killed; run the same command again to continue it")
        raise


def _processes(workers: int) -> _Pool:
    """Return functions that submit a job to processes on this machine, and that stop them."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker)

    def stop(pending: list[Future[RunResult]]) -> None:
        if pending:
            for child in multiprocessing.active_children():
                child.terminate()
        pool.shutdown(cancel_futures=True)

    return lambda job: pool.submit(run_job, job), stop


def _begin_worker() -> None:
    """Make this process end with its parent, and ignore Ctrl-C, which the parent handles."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ray() -> _Pool:
    """Return functions that submit a job to a Ray cluster, and that stop the jobs.

    The cluster is the one at $RAY_ADDRESS, or a new one on this machine. If a machine fails, Ray moves its jobs to
    other machines, where they are resumed.
    """
    ray = optional("ray", "ray", "scale")
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            address = os.environ.get("RAY_ADDRESS", "this machine")
            raise ConfigError(f"--on ray: no cluster at {address} ({error}); check $RAY_ADDRESS") from None
    started: dict[Future[RunResult], Any] = {}

    def submit(job: RunJob) -> Future[RunResult]:
        folder = job.folder.absolute()
        folder.parent.mkdir(parents=True, exist_ok=True)
        engine = json.loads(job.config)["engine"]
        needs = {"num_cpus": engine["threads"], "num_gpus": int(engine["device"] != "cpu")}
        reference = ray.remote(**needs, max_retries=_RETRIES)(_run_on_node).remote(replace(job, folder=folder))
        future: Future[RunResult] = reference.future()
        started[future] = reference
        return future

    def stop(pending: list[Future[RunResult]]) -> None:
        for future in pending:
            ray.cancel(started[future], force=True)

    return submit, stop


def _run_on_node(job: RunJob) -> RunResult | AdelError:
    """Run a job on a machine of a cluster; wait until the job's previous process has ended."""
    if not job.folder.parent.is_dir():
        return ConfigError(f"{job.folder.parent}: does not exist on {platform.node()}; use a shared folder")
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
