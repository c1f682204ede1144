"""Runs and comparisons as folders: start, continue, take part in several processes, sum up."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Empty
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from adelfl.atomic import RunFinishedError
from adelfl.config.build import build_experiment
from adelfl.config.run import RunFile, parse_value
from adelfl.config.sections import first_mistake
from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.plugins import in_words, users_code
from adelfl.record import Checkpoint, RunRecord, RunWriter, discard, versions

if TYPE_CHECKING:
    from adelfl.simulation import Experiment

Report = Callable[["Job", dict[str, Any]], None]
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}  # full, or not to be written any more


@dataclass(frozen=True)
class Job:
    """One run of a comparison.

    Attributes
    ----------
    strategy : str
        As the user wrote it, options included.
    seed : int
    config : str
        The RunFile as JSON, so that it travels between processes.
    folder : Path
        Where it is recorded.
    fresh : bool
        Whether to run it again if it is there already.
    """

    strategy: str
    seed: int
    config: str
    folder: Path
    fresh: bool = False


def describe(said: RunFile, experiment: Experiment) -> dict[str, Any]:
    """All that decides what a run computes, for its run.json."""
    from adelfl.simulation.recording import describe as describe_experiment

    found: dict[str, Any] = {"config": said.model_dump(mode="json"), "inputs": said.fingerprints()}
    if said.training.local_iterations == "auto":
        found["local_iterations"] = experiment.strategy.problem.local_iterations
    return found | describe_experiment(experiment)


def rehearsed(said: RunFile) -> Experiment:
    """The experiment that a file describes, after finding out what would stop it before it begins."""
    from adelfl.simulation import rehearse

    experiment = build_experiment(said)
    with users_code("this experiment cannot begin"):
        if experiment.engine == "flower":
            _scale().rehearse_on_flower(experiment)
        else:
            rehearse(experiment)
    return experiment


def start(said: RunFile, folder: Path, report: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """Run an experiment into a new folder; its summary."""
    experiment = rehearsed(said)
    with RunWriter.create(folder, describe(said, experiment)) as writer:
        return _simulate(said, experiment, writer, None, report)


def resume(folder: Path, report: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """Continue an interrupted run to its end; a finished one is left alone."""
    record = RunRecord.open(folder)
    if record.result is not None:
        return record.result
    if record.about.get("clock") == "real":
        raise ConfigError(f"{folder}: this run was made on Flower; it goes on when its ServerApp is started again")
    if record.about.get("made_by") == "simulate":
        raise ConfigError(
            f"{folder}: this run was begun in Python; it goes on when simulate(experiment, record=...) is called again"
        )
    said = _config_of(record.about, folder)
    experiment = build_experiment(said)
    now = json.loads(json.dumps(describe(said, experiment)))
    for key, value in now.items():
        if key not in ("versions", "config") and record.about.get(key) != value:
            raise ConfigError(f"{folder}: its {key} would not be the same today; start this run over")
    try:
        writer, checkpoint = RunWriter.reopen(folder)
    except RunFinishedError:
        return resume(folder)
    with writer:
        return _simulate(said, experiment, writer, checkpoint, report)


def _config_of(about: dict[str, Any], folder: Path) -> RunFile:
    """What a run's run.json says; keys that adelfl has learned since then have their defaults."""
    try:
        return RunFile.model_validate(about["config"])
    except ValidationError as trouble:
        raise ConfigError(f"{folder}: run.json, config.{first_mistake(RunFile, trouble)}") from None


def _simulate(
    said: RunFile,
    experiment: Experiment,
    writer: RunWriter,
    checkpoint: Checkpoint | None,
    report: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    from adelfl.simulation import simulate

    try:
        if experiment.engine == "flower":
            found: dict[str, Any] = _scale().simulate_on_flower(said, experiment, writer, checkpoint, report)
            return found
        return simulate(experiment, writer, checkpoint, report)
    except AdelError as trouble:
        writer.fail(str(trouble))
        raise
    except (Exception, SystemExit) as trouble:  # of a model, a strategy or a data set of the user's, or ours
        if isinstance(trouble, OSError) and trouble.errno in _DISK:  # what is recorded stays
            raise AdelError(f"{writer.folder}: cannot be written ({trouble.strerror}); adelfl resume goes on") from None
        sentence = f"{writer.folder}: {in_words(trouble)}; failed.json there has the traceback"
        writer.fail(sentence, traceback.format_exc())
        raise AdelError(sentence) from trouble


def _scale() -> ModuleType:
    """The module that needs Flower."""
    try:
        from adelfl.flower import scale
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "flwr":
            raise
        raise MissingExtraError("flwr", "scale") from None
    return scale


def parse_strategy(word: str) -> tuple[str, dict[str, Any]]:
    """``name`` or ``name[key=value;key=value]`` as a name and its options."""
    found = re.fullmatch(r"\s*([^\[\]]+?)\s*(?:\[([^\[\]]*)\])?\s*", word)
    if found is None:
        raise ConfigError(f"strategy {word!r}: must look like name or name[key=value]")
    options = {}
    for pair in filter(None, (found[2] or "").split(";")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"strategy {word!r}: option {pair!r} must look like key=value")
        options[key.strip()] = parse_value(value)
    return found[1], options


def file_name(strategy: str) -> str:
    """A strategy as the user wrote it, in characters that every file system takes."""
    return re.sub(r"[^\w=.-]+", "_", strategy.strip()).strip("_")


def jobs_of(
    said: RunFile, strategies: list[str], seeds: int, first_seed: int, out: Path, fresh: bool = False
) -> list[Job]:
    """The runs of a comparison, seed by seed, each in a folder that its strategy and seed name."""
    found = []
    for seed in range(first_seed, first_seed + seeds):
        for word in strategies:
            name, options = parse_strategy(word)
            config = said.with_strategy(name, options, seed).model_dump_json()
            found.append(Job(word, seed, config, out / f"{file_name(word)}-seed{seed}", fresh))
    return found


def default_folder(said: RunFile, root: Path) -> Path:
    """Where a comparison goes if the user does not say: the same experiment, the same folder."""
    same = said.model_dump(mode="json")
    same["strategy"], same["training"]["seed"] = None, None
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:8]
    names = [re.sub(r"\W+", "_", part.factory or part.name) for part in (said.data, said.model)]
    return root / f"compare-{'-'.join(names)}-{digest}"


def made_elsewhere(folder: Path) -> str | None:
    """A sentence, if a run was begun with other versions than today's: it may not be what it would be now."""
    then, now = RunRecord.open(folder).about.get("versions"), versions()
    if not isinstance(then, dict):
        return f"it is not known what {folder} was begun with"
    changed = [f"{name} {then[name]} (now {now[name]})" for name in now if then.get(name, now[name]) != now[name]]
    return f"{folder} was begun with {', '.join(changed)}" if changed else None


def run_job(job: Job, report: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """Start a job, or continue it; one that is finished with the same configuration is not run again."""
    said = RunFile.model_validate_json(job.config)
    if job.fresh and (job.folder / "run.json").is_file():
        discard(job.folder)
    if not job.folder.exists():
        return start(said, job.folder, report)
    about = RunRecord.open(job.folder).about
    if _config_of(about, job.folder) != said:
        raise ConfigError(f"{job.folder}: holds a run of another configuration; choose another --out, or use --fresh")
    if about.get("inputs") != said.fingerprints():
        raise ConfigError(f"{job.folder}: the files or code that its configuration names have changed; use --fresh")
    return resume(job.folder, report)


_queue: Any = None


def _end_with_parent() -> None:
    """End this process when the one that started it does, however that came about."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _begin_worker(queue: Any) -> None:  # noqa: ANN401 - a manager's proxy
    global _queue
    _queue = queue
    _end_with_parent()
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(job: Job) -> dict[str, Any]:
    def report(row: dict[str, Any]) -> None:
        if row["accuracy"] is not None:
            _queue.put((job, {"time": row["time"], "accuracy": row["accuracy"], "round": row["round"]}))

    return run_job(job, report)


def run_all(jobs: list[Job], workers: int, report: Report) -> Iterator[tuple[Job, dict[str, Any] | AdelError]]:
    """Run jobs, several at a time; yields each with its summary, or with the error that ended it, as it ends."""
    if workers <= 1 or len(jobs) <= 1:
        for job in jobs:
            try:
                yield job, run_job(job, lambda row, job=job: report(job, row))  # type: ignore[misc]
            except AdelError as error:
                yield job, error
        return
    context = multiprocessing.get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_end_with_parent)
    with (
        manager,
        ProcessPoolExecutor(min(workers, len(jobs)), context, _begin_worker, (queue := manager.Queue(),)) as pool,
    ):
        pending: dict[Future[dict[str, Any]], Job] = {pool.submit(_work, job): job for job in jobs}
        try:
            while pending:
                done, _ = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
                _drain(queue, report)
                for future in done:
                    job = pending.pop(future)
                    try:
                        yield job, future.result()
                    except AdelError as error:
                        yield job, error
                    except BrokenProcessPool:
                        yield (
                            job,
                            AdelError(f"{job.folder}: its process was killed; the same command goes on from there"),
                        )
        except BaseException:
            # What they recorded stays, and can be resumed. (The manager ends with its own context.)
            for child in multiprocessing.active_children():
                if not child.name.startswith("SyncManager"):
                    child.terminate()
            raise


def _drain(queue: Any, report: Report) -> None:  # noqa: ANN401 - a manager's proxy
    while True:
        try:
            job, row = queue.get_nowait()
        except Empty:
            return
        report(job, row)
