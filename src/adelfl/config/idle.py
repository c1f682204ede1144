"""Configuration keys that have no effect in combination with other keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from adelfl.config.run import RunFile

FLEET_KEYS = {
    "lognormal": {"compute", "sigma", "upload", "upload_sigma"},
    "uniform": {"low", "high", "upload"},
    "two-class": {"compute", "slow", "slow_share", "upload"},
    "phones": {"compute"},
    "traces": {"speeds", "network", "bandwidth", "availability", "start_hour", "speedup"}
    | {"compute", "sigma", "upload", "upload_sigma"},
}
IDLE_IN_MODEL = {"mlp": {"norm"}, "cnn": {"hidden", "norm"}, "transformer": {"hidden", "norm"}} | {
    name: {"hidden"} for name in ("vgg11", "vgg13", "resnet18")
}
_FILE_KEYS = {"user_column", "label_column", "skip_columns", "split", "test_share", "split_seed"}
LAW_KEYS = {"spread": {"shifted", "gamma", "lognormal"}, "samples": {"samples"}}
_ALWAYS_USED = {"latency", "dropout", "drift", "throttled", "churn", "misjudged", "misjudged_each"}


_Idle = tuple[str, set[str], str, tuple[str, ...]]
"""Section, its keys without effect, the reason, and the keys that cause it."""


def refuse_idle(config: RunFile, changed: Sequence[str], excused: set[str], where: str) -> None:
    """Raise ConfigError for a key that has no effect, unless a later change made it so.

    ``changed`` has the changed keys in order, ``excused`` keys that need not have an effect, ``where`` the start of the
    error message.
    """
    position = {key: number for number, key in enumerate(changed)}
    for section, keys, reason, causes in _idle(config):
        cause = max((position.get(key, -1) for key in causes), default=-1)
        for key in sorted(getattr(config, section).model_fields_set & keys):
            name = f"{section}.{key}"
            if position.get(name, -1) >= cause and name not in excused and not excused.intersection(causes):
                raise ConfigError(f"{where}{name}: {reason}")


def _idle(config: RunFile) -> Iterator[_Idle]:
    data, model, fleet, latency = config.data, config.model, config.fleet, config.latency
    if data.factory or data.file:
        cause = "data.factory" if data.factory else "data.file"
        yield "data", {"name", "data_dir"}, f"{cause} is the data set, and does not use it", (cause,)
    elif data.name == "digits":
        yield "data", {"data_dir"}, "digits are part of the package, and do not use it", ("data.name",)
    if data.file is None or data.factory:
        yield "data", _FILE_KEYS, "it belongs to data.file, and a data set without a file does not use it", ()
    if data.partition_file:
        reason = "data.partition_file defines the partition, and does not use it"
        yield "data", {"partition", "alpha"}, reason, ("data.partition_file",)
    elif data.partition != "dirichlet":
        yield "data", {"alpha"}, f'partition = "{data.partition}" does not use it', ("data.partition",)
    if config.training.momentum and config.training.local_iterations == 1:
        reason = "it begins at zero in every round, and local_iterations = 1 does not use it"
        yield "training", {"momentum"}, reason, ("training.local_iterations",)
    if model.factory:
        keys = set(type(model).model_fields) - {"factory", "layers"}
        yield "model", keys, "model.factory makes the model, and does not use it", ("model.factory",)
    else:
        keys = IDLE_IN_MODEL.get(model.name, set())
        yield "model", keys, f'name = "{model.name}" does not use it', ("model.name",)
    if data.partition == "users":
        reason = 'partition = "users" has a device per user, and does not use it'
        yield "fleet", {"devices"}, reason, ("data.file", "data.partition")
    used, kind = {"kind", "devices"} | FLEET_KEYS[fleet.kind], f'kind = "{fleet.kind}"'
    causes: tuple[str, ...] = ("fleet.kind",)
    if config.device:
        used, kind, causes = set(), "a fleet of [[device]] entries", ()
    elif fleet.file:
        used, kind, causes = {"file"}, "a fleet from a file", ("fleet.file",)
    if fleet.kind == "traces":
        yield from _idle_beside_traces(config)
    keys = set(type(fleet).model_fields) - used - _ALWAYS_USED
    yield "fleet", keys, f"{kind} does not use it", causes
    if fleet.latency:
        keys = set(type(latency).model_fields) - {"known"}
        yield "latency", keys, "fleet.latency is the latency model, and does not use it", ("fleet.latency",)
        return
    keys = {key for key, users in LAW_KEYS.items() if latency.law not in users}
    yield "latency", keys, f'law = "{latency.law}" does not use it', ("latency.law",)
    if latency.upload_law not in LAW_KEYS["spread"]:
        reason = f'upload_law = "{latency.upload_law}" does not use it'
        yield "latency", {"upload_spread"}, reason, ("latency.upload_law",)


def _idle_beside_traces(config: RunFile) -> Iterator[_Idle]:
    fleet, reason = config.fleet, "{} describes the devices, and does not use it"
    if fleet.speeds:
        yield "fleet", {"compute", "sigma"}, reason.format("fleet.speeds"), ("fleet.speeds",)
    else:
        yield "fleet", {"network"}, "it belongs to fleet.speeds, and a fleet without does not use it", ()
    if fleet.bandwidth:
        yield "fleet", {"upload", "upload_sigma"}, reason.format("fleet.bandwidth"), ("fleet.bandwidth",)
    if not fleet.availability:
        words = "it belongs to fleet.availability, and a fleet without does not use it"
        yield "fleet", {"start_hour", "speedup"}, words, ()
