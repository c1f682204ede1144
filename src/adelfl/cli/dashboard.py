"""``adelfl dashboard``."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer

from adelfl.errors import ConfigError
from adelfl.plugins import optional

_MIN_TOKEN = 16


def dashboard(
    root: Annotated[Path, typer.Argument(metavar="[RUNS]", help="Folder with runs.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen on; any but 127.0.0.1 needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(envvar="ADELFL_DASHBOARD_TOKEN", help="Secret that viewers need; generated if necessary."),
    ] = None,
) -> None:
    """Show runs in a browser; the page is updated while runs are in progress."""
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root}: is not a folder; give the folder that contains the runs")
    if token is not None and len(token) < _MIN_TOKEN:
        raise ConfigError(f"--token: must have at least {_MIN_TOKEN} characters, not {len(token)}")
    for package in ("fastapi", "uvicorn"):
        optional(package, package, "dashboard")
    from adelfl.dashboard.server import serve

    try:  # opened here, so that a busy port is reported at once
        listener = socket.create_server((host, port))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--host {host} --port {port}: cannot listen ({reason}); choose another one") from None
    with listener:
        address, port = listener.getsockname()
        local = ipaddress.ip_address(address).is_loopback
        if not root.exists():
            typer.echo(f"note: {root} does not exist yet; runs will be shown as they appear", err=True)
        generated = token is None and not local
        token = secrets.token_urlsafe(24) if generated else token
        if not local:
            typer.echo("note: the pages and the token are sent unencrypted; see docs/dashboard.md", err=True)
        typer.echo(f"Runs below {root}: http://{host}:{port}/{f'?token={token}' if generated else ''}")
        if token is not None and not generated:
            typer.echo("note: add ?token= and your token to this address when you open it", err=True)
        typer.echo("Press Ctrl-C to stop.", err=True)
        serve(root, listener, ["localhost", "127.0.0.1", host] if local else ["*"], token)
