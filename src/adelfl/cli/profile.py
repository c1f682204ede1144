"""``adelfl profile``."""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adelfl.cli.runs import Changes, Config, DataDir, prepare
from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from adelfl.config.run import RunFile
    from adelfl.fitting import FittedLaw
    from adelfl.training.profile import Profile


def profile(
    config: Config = None,
    changes: Changes = None,
    batch_sizes: Annotated[str, typer.Option(help="Samples per step, separated by commas.")] = "4,8,16,32",
    repeats: Annotated[int, typer.Option(min=2, help="Steps at each batch size.")] = 20,
    upload: Annotated[float, typer.Option(min=0, help="Seconds to send an update.")] = 0.0,
    mbps: Annotated[float | None, typer.Option(min=0.001, help="Upload rate in Mbit/s, instead of --upload.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the device; by default the host name.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of devices of this kind.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help=r"Add the \[\[device]] entry to this file for adelfl plan; a new file also gets a \[problem] section.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Measure how fast this machine trains the model of CONFIG, for adelfl plan."""
    settings = prepare(config, changes, data_dir)
    try:
        sizes = [int(word) for word in batch_sizes.split(",")]
    except ValueError:
        raise ConfigError(f"--batch-sizes {batch_sizes}: must be whole numbers separated by commas") from None
    for option, value in (("--upload", upload), ("--mbps", mbps)):
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{option} {value}: must be a finite number")
    if upload and mbps is not None:
        raise ConfigError("--upload and --mbps: give one of them")
    name = name or platform.node() or "device"
    if out is not None:
        _check_out(out, name)
    from adelfl.atomic import write_output
    from adelfl.fitting import fit_laws

    measured, megabytes = _measured(settings, sizes, repeats)
    laws = sorted(fit_laws(measured.per_sample), key=lambda law: law.distance)
    if not measured.grows:
        typer.echo(
            "warning: the layer times do not grow measurably with the batch size, so compute is a guess; "
            "try larger --batch-sizes, or more --repeats",
            err=True,
        )
    seconds = upload + measured.overhead + (8.0 * megabytes / mbps if mbps is not None else 0.0)
    entry: dict[str, Any] = {"name": name, "compute": measured.compute, "upload": seconds}
    if count > 1:
        entry["count"] = count
    if out is not None:
        before = out.read_text(encoding="utf-8") if out.exists() else _problem(settings, len(measured.layers), entry)
        write_output(out, f"{before}\n{_entry(entry)}\n")
    if as_json:
        typer.echo(json.dumps(_as_json(measured, laws, entry)))
        return
    from adelfl.report.terminal import print_profile

    print_profile(measured.batch_sizes, measured.forward, measured.backward, measured.layers, laws, measured.variation)
    typer.echo(_entry(entry))
    if out is not None:
        typer.echo(f"Entry: {out}")


def _measured(settings: RunFile, sizes: list[int], repeats: int) -> tuple[Profile, float]:
    import torch
    from torch.nn import functional

    from adelfl.config.build import build_network
    from adelfl.process import settle
    from adelfl.training.profile import measure
    from adelfl.training.truncated import check_truncation

    settle(settings.engine.threads)
    dataset, model, layers = build_network(settings)
    x, y = torch.from_numpy(dataset.x_train), torch.from_numpy(dataset.y_train)
    if max(sizes) > y.shape[0]:
        raise ConfigError(f"--batch-sizes: the data set has {y.shape[0]} samples, fewer than {max(sizes)}")
    generator = torch.Generator().manual_seed(settings.training.seed)

    def loss(size: int, network: torch.nn.Module = model) -> torch.Tensor:
        rows = torch.randint(y.shape[0], (size,), generator=generator)
        return functional.cross_entropy(network(x[rows]), y[rows])

    first = torch.arange(min(sizes) if min(sizes) > 1 else 2)
    check_truncation(model, layers, lambda network: functional.cross_entropy(network(x[first]), y[first]))
    megabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    return measure(model, layers, loss, sizes, repeats), megabytes


def _entry(values: dict[str, Any]) -> str:
    # TOML has no surrogate pairs, with which JSON would write a character such as 📱 in ASCII.
    words = {k: f"{v:.6g}" if isinstance(v, float) else json.dumps(v, ensure_ascii=False) for k, v in values.items()}
    return "\n".join(("[[device]]", *(f"{key} = {word}" for key, word in words.items())))


def _problem(settings: RunFile, layers: int, entry: dict[str, Any]) -> str:
    """Return the [problem] section of a new file, with the budget that the configuration gives for this device."""
    from adelfl.config.build import budget_for
    from adelfl.fleet import Fleet

    t = settings.training
    budget = budget_for(t, Fleet.of([entry["compute"]], [entry["upload"]]), layers)
    return (
        "# Written by adelfl profile. Replace rounds and budget (in seconds) by your own.\n"
        f"[problem]\nlayers = {layers}\nrounds = {json.dumps(t.rounds)}\nbudget = {budget:.6g}\n"
    )


def _check_out(path: Path, name: str) -> None:
    """Raise ConfigError before the measurement if the entry cannot be added to the file."""
    from adelfl.config.sections import parse_toml, read_toml

    if path.suffix.lower() != ".toml":
        raise ConfigError(f"--out {path}: the file's name must end in .toml")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: cannot be written (there is no folder {path.parent})")
    if not path.exists():
        return
    devices = read_toml(path).get("device", [])
    if any(isinstance(device, dict) and device.get("name") == name for device in devices):
        raise ConfigError(f"--out {path}: already has a device named {name!r}; choose another --name, or remove it")
    try:
        parse_toml(f"{path.read_text(encoding='utf-8-sig')}\n[[device]]\n")
    except ValueError:
        raise ConfigError(f"--out {path}: its key 'device' is an array, to which an entry cannot be added") from None


def _as_json(measured: Profile, laws: list[FittedLaw], entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "device": entry,
        "layers": list(measured.layers),
        "batch_sizes": list(measured.batch_sizes),
        "forward": measured.forward.tolist(),
        "backward": measured.backward.tolist(),
        "variation": measured.variation,
        "laws": [{key: getattr(law, key) for key in ("name", "parameters", "aic", "distance")} for law in laws],
    }
