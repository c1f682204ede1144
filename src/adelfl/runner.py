"""Start, resume and repeat recorded runs."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from adelfl.config.build import build_experiment
from adelfl.config.run import RunFile, parse_value
from adelfl.config.sections import first_mistake
from adelfl.errors import AdelError, ConfigError
from adelfl.plugins import users_code
from adelfl.process import settle
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunInfo, RunResult
from adelfl.records.writer import discard, versions
from adelfl.runtime.run import Record, is_disk_error

if TYPE_CHECKING:
    from adelfl.simulation import Experiment


@dataclass(frozen=True)
class RunJob:
    """One run of a comparison."""

    strategy: str
    """Name and options, as ``adelfl compare --strategies`` takes them."""
    seed: int
    config: str
    """The RunFile as JSON, which can be sent between processes."""
    folder: Path
    """Folder of the record."""
    fresh: bool = False
    """Whether to repeat the run if it exists."""


def build_checked(run_file: RunFile) -> Experiment:
    """Build the experiment of a configuration and simulate its first step, so that errors appear before it is run."""
    from adelfl.simulation import check_start

    settle(run_file.engine.threads)
    experiment = build_experiment(run_file)
    with users_code("this experiment cannot begin"):
        check_start(experiment)
    return experiment


def start(run_file: RunFile, folder: Path, report: Callable[[Row], None] | None = None) -> RunResult:
    """Run an experiment, record it in a new folder, and return its result."""
    from adelfl.simulation.recording import describe

    experiment = build_checked(run_file)
    info = describe(experiment, run_file.model_dump(mode="json"), run_file.fingerprints())
    return _simulate(experiment, Record(folder, info), report)


def resume(folder: Path, report: Callable[[Row], None] | None = None) -> RunResult:
    """Continue an interrupted run to its end; return the result at once if the run is finished."""
    from adelfl.simulation.recording import MADE_BY, describe, first_difference

    record = RunRecord.open(folder)
    if record.result is not None:
        return record.result
    if record.info.clock == "real":
        raise ConfigError(f"{folder}: this run was recorded on Flower; start its ServerApp again to continue it")
    if record.info.made_by == MADE_BY:
        raise ConfigError(f"{folder}: this run was started in Python; call simulate(experiment, record=...) again")
    run_file = _config_of(record.info, folder)
    settle(run_file.engine.threads)
    experiment = build_experiment(run_file)
    now = describe(experiment, run_file.model_dump(mode="json"), run_file.fingerprints())

    def check(then: RunRecord) -> None:
        if changed := first_difference(then.info, now, ("config",)):
            raise ConfigError(f"{folder}: its {changed} has changed since the run was started; start a new run")

    return _simulate(experiment, Record.open(folder, now, check), report)


def _config_of(info: RunInfo, folder: Path) -> RunFile:
    """Return the configuration in run.json; keys that are missing have their defaults."""
    try:
        return RunFile.model_validate(info.config)
    except ValidationError as error:
        raise ConfigError(f"{folder}: run.json, config.{first_mistake(RunFile, error)}") from None


def _simulate(experiment: Experiment, record: Record, report: Callable[[Row], None] | None) -> RunResult:
    from adelfl.simulation import simulate

    try:
        with record:
            return simulate(experiment, record, report)
    except AdelError:
        raise
    except (Exception, SystemExit) as error:  # in user code or in adelfl
        if isinstance(error, OSError) and is_disk_error(error):  # the record stays valid
            raise AdelError(f"{record.folder}: cannot be written ({error.strerror}); resume the run later") from None
        raise AdelError(record.failure) from error


def parse_strategy(word: str) -> tuple[str, dict[str, Any]]:
    """Split ``name`` or ``name[key=value;key=value]`` into the name and its options."""
    match = re.fullmatch(r"\s*([^\[\]]+?)\s*(?:\[([^\[\]]*)\])?\s*", word)
    if match is None:
        raise ConfigError(f"strategy {word!r}: must look like name or name[key=value]")
    options = {}
    for pair in filter(None, (match[2] or "").split(";")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"strategy {word!r}: option {pair!r} must look like key=value")
        options[key.strip()] = parsed = parse_value(value)
        if isinstance(parsed, float) and not math.isfinite(parsed):
            raise ConfigError(f"strategy {word!r}: option {key.strip()} must be a finite number")
    return match[1], options


def file_name(strategy: str) -> str:
    """Return a strategy's name and options as a file name, with only characters that every file system allows."""
    return re.sub(r"[^\w=.-]+", "_", strategy.strip()).strip("_")


def jobs_of(
    run_file: RunFile, strategies: list[str], seeds: int, first_seed: int, out: Path, fresh: bool = False
) -> list[RunJob]:
    """Return the runs of a comparison, seed by seed, each in a folder named by strategy and seed."""
    jobs = []
    for seed in range(first_seed, first_seed + seeds):
        for word in strategies:
            name, options = parse_strategy(word)
            config = run_file.with_strategy(name, options, seed).model_dump_json()
            jobs.append(RunJob(word, seed, config, out / f"{file_name(word)}-seed{seed}", fresh))
    return jobs


def default_folder(run_file: RunFile, root: Path) -> Path:
    """Return the default folder of a comparison, which is the same for the same experiment."""
    same = run_file.model_dump(mode="json")
    same["strategy"], same["training"]["seed"] = None, None
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:8]
    model = run_file.model.factory or run_file.model.name
    names = [re.sub(r"\W+", "_", name) for name in (run_file.data.title, model)]
    return root / f"compare-{'-'.join(names)}-{digest}"


def made_elsewhere(folder: Path) -> str | None:
    """Return a sentence if a run was started with other package versions; None otherwise."""
    then, now = RunRecord.open(folder).info.versions, versions()
    if not then:
        return f"the package versions with which {folder} was started are unknown"
    changed = [f"{name} {then[name]} (now {now[name]})" for name in now if then.get(name, now[name]) != now[name]]
    return f"{folder} was started with {', '.join(changed)}" if changed else None


def run_job(job: RunJob, report: Callable[[Row], None] | None = None) -> RunResult:
    """Start or continue a job; a finished run of the same configuration is not repeated."""
    run_file = RunFile.model_validate_json(job.config)
    if job.fresh and (job.folder / "run.json").is_file():
        discard(job.folder)
    if not job.folder.exists():
        return start(run_file, job.folder, report)
    info = RunRecord.open(job.folder).info
    advice = "remove it (adelfl compare: --fresh)"  # adelfl reproduce has no such option
    if _config_of(info, job.folder) != run_file:
        raise ConfigError(f"{job.folder}: holds a run of another configuration; choose another folder, or {advice}")
    if info.inputs != run_file.fingerprints():
        raise ConfigError(f"{job.folder}: files or code that its configuration names have changed; {advice}")
    return resume(job.folder, report)
