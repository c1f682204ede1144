"""Build the fleet of a configuration: listed, drawn at random, or measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from adelfl.config.run import FleetSection, RunFile
from adelfl.config.sections import listed_fleet, read_fleet
from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.traces.formats import read_availability, read_bandwidth, read_speeds
from adelfl.traces.playback import Availability, Links, deal


def given_fleet(config: RunFile) -> Fleet | None:
    """Return the fleet of [[device]] entries or of a file; None if devices are drawn."""
    if config.device:
        return listed_fleet(config.device)
    return None if config.fleet.file is None else read_fleet(Path(config.fleet.file))


def build_fleet(config: RunFile, devices: int, layers: int, megabytes: float) -> tuple[Fleet, dict[str, Any]]:
    """Return the fleet, and ``links`` and ``availability`` of its world if devices are measured.

    ``layers`` and ``megabytes`` are the number of layers and the size of the model.
    """
    section, seed = config.fleet, config.training.seed
    if (fleet := given_fleet(config)) is not None:
        return fleet, {}
    if section.kind == "traces":
        return _measured(section, devices, seed, layers, megabytes)
    if section.kind == "phones":
        return Fleet.phones(devices, compute=section.compute, update_megabytes=megabytes, seed=seed), {}
    if section.kind == "uniform":
        if section.high <= section.low:
            raise ConfigError(f"fleet.high: must be above fleet.low = {section.low:g}, not {section.high:g}")
        return Fleet.uniform(devices, low=section.low, high=section.high, upload=section.upload, seed=seed), {}
    if section.kind == "two-class":
        speeds = {"fast": section.compute, "slow": section.slow, "slow_share": section.slow_share}
        return Fleet.two_class(devices, **speeds, upload=section.upload, seed=seed), {}
    return _lognormal(section, devices, seed), {}


def _lognormal(section: FleetSection, devices: int, seed: int) -> Fleet:
    keys = ("compute", "sigma", "upload", "upload_sigma")
    return Fleet.lognormal(devices, **{key: getattr(section, key) for key in keys}, seed=seed)


def _measured(
    section: FleetSection, devices: int, seed: int, layers: int, megabytes: float
) -> tuple[Fleet, dict[str, Any]]:
    """Return the mean speeds and uploads of measured devices, with their uplinks and availability.

    A training step takes as long as the measured one; speeds and uploads without a file are lognormal.
    """
    if not (section.speeds or section.bandwidth or section.availability):
        raise ConfigError('fleet.kind = "traces" needs fleet.speeds, fleet.bandwidth or fleet.availability')
    fleet = _lognormal(section, devices, seed)
    traces: dict[str, Any] = {"links": None, "availability": None}
    if section.speeds:
        fixed, per_sample = read_speeds(Path(section.speeds), section.network)
        row = deal(per_sample.size, devices, seed, "speeds")
        fleet = replace(fleet, compute=layers / per_sample[row], overhead=(fixed / per_sample)[row])
    if section.bandwidth:
        links = Links.dealt(read_bandwidth(Path(section.bandwidth)), devices, seed)
        fleet, traces["links"] = replace(fleet, upload=8.0 * megabytes / links.mean_rate), links
    if section.availability:
        begin = None if section.start_hour is None else 3600.0 * section.start_hour
        schedules = read_availability(Path(section.availability))
        traces["availability"] = Availability.dealt(schedules, devices, seed, begin, section.speedup)
    return fleet, traces
