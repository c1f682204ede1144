"""Start a complete Flower deployment on this machine: a SuperLink and SuperNodes with TLS and node authentication.

    with Deployment(slowdowns=[1, 1, 1, 8]) as flower:
        flower.run({"method": "adel", "out": "adel.json"}, seconds=120)

Each deployment creates its own certificates and keys. All processes are stopped at the end, also after an error.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

APP = Path(__file__).parent
_BIN = Path(sys.executable).parent
_BOOT_SECONDS = 60.0
_PERIOD = 0.1  # seconds in which a node that is held back runs once and is stopped once


class Deployment:
    """Context manager that starts a SuperLink and SuperNodes on loopback, and stops them at the end.

    Parameters
    ----------
    slowdowns : list of float
        How much slower than a device of speed 1 each node is.
    folder : Path, optional
        Folder for certificates, keys and logs. By default a temporary folder, which is removed at the end.
    shares : dict of int to float, optional
        Share of a core that nodes may use. Their processes are stopped for the rest of every tenth of a second.
    """

    def __init__(
        self, slowdowns: list[float], folder: Path | None = None, shares: dict[int, float] | None = None
    ) -> None:
        self.slowdowns, self.keep, self.shares = slowdowns, folder is not None, shares or {}
        self._stopping = threading.Event()
        self._holding: list[threading.Thread] = []
        self.folder = folder or Path(tempfile.mkdtemp(prefix="adelfl-flower-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        self.superlink: subprocess.Popen[bytes] | None = None
        self.supernodes: list[subprocess.Popen[bytes]] = []
        self.last_log = ""
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def __enter__(self) -> Deployment:
        try:
            self._make_certificates()
            home = self.folder / "home"
            home.mkdir(exist_ok=True)
            home.joinpath("config.toml").write_text(
                f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
                f'root-certificates = "{self.folder / "ca.crt"}"\n'
            )
            self.superlink = self._start("superlink", self._superlink_command())
            self._wait_for_port()
            for i in range(len(self.slowdowns)):
                self._make_key(i)
                self._flwr("supernode", "register", str(self.folder / f"node{i}.pub"), "here")
                self.supernodes.append(self.start_supernode(i))
            self._wait_for_supernodes()
            for i, share in self.shares.items():
                self._holding.append(threading.Thread(target=self._hold_back, args=(i, share)))
                self._holding[-1].start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._holding:
            thread.join()
        for process in [*self.supernodes, self.superlink]:
            if process is not None:
                _end(process)
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _superlink_command(self) -> list[str]:
        f = self.folder
        return [
            str(_BIN / "flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", str(f / "ca.crt"), "--ssl-certfile", str(f / "server.crt"),
            "--ssl-keyfile", str(f / "server.key"), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip

    def start_supernode(self, i: int) -> subprocess.Popen[bytes]:
        """Start node i, for the first time or after it was killed."""
        nodes = len(self.slowdowns)
        config = f"partition-id={i} num-partitions={nodes} slowdown={self.slowdowns[i]}"
        command = [
            str(_BIN / "flower-supernode"), "--superlink", f"127.0.0.1:{self.port}",
            "--root-certificates", str(self.folder / "ca.crt"), "--host", "127.0.0.1", "--port", str(_free_port()),
            "--auth-supernode-private-key", str(self.folder / f"node{i}.key"), "--node-config", config,
            "--ssl-ca-certfile", str(self.folder / "ca.crt"), "--ssl-certfile", str(self.folder / "server.crt"),
            "--ssl-keyfile", str(self.folder / "server.key"),
        ]  # fmt: skip
        return self._start(f"node{i}", command)

    def _hold_back(self, i: int, share: float) -> None:
        """Let a node and its child processes run for a share of the time."""
        while not self._stopping.wait(share * _PERIOD):
            self._signal(i, signal.SIGSTOP)
            self._stopping.wait((1.0 - share) * _PERIOD)
            self._signal(i, signal.SIGCONT)

    def _signal(self, i: int, sign: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.supernodes[i].pid, sign)

    @contextlib.contextmanager
    def away(self, i: int, leaves: float, returns: float) -> Iterator[None]:
        """Kill node i after ``leaves`` seconds, and start it again after ``returns`` seconds or at the end."""
        over = threading.Event()

        def leave_and_return() -> None:
            if not over.wait(leaves):
                self._signal(i, signal.SIGKILL)
                self.supernodes[i].wait()
                over.wait(returns - leaves)
                self.supernodes[i] = self.start_supernode(i)

        thread = threading.Thread(target=leave_and_return)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def submit(self, config: dict[str, object]) -> str:
        """Start the app with these settings, and return the number of the run."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        answer = json.loads(self._flwr("run", str(APP), "here", "--run-config", settings, "--format", "json"))
        if not answer.get("success", True):
            raise RuntimeError(f"flwr run: {answer}")
        return str(answer["run-id"])

    def status(self, run: str) -> str:
        """Return the status of a run, such as ``finished:completed``."""
        answer = json.loads(self._flwr("list", "--run-id", run, "here", "--format", "json"))
        return str(answer["runs"][0]["status"])

    def ended(self, run: str) -> bool:
        """Return whether the server of a run has ended, from the SuperLink's log; the command flwr takes seconds."""
        return re.search(rf"Finished task \d+ of run {run}", self.log("superlink")) is not None

    def run(self, config: dict[str, object], seconds: float) -> str:
        """Run the app to its end and return its status; raise an error if it takes longer than ``seconds``."""
        run = self.submit(config)
        end = time.monotonic() + seconds
        while not self.ended(run):
            if time.monotonic() > end:
                self._flwr("stop", run, "here")
                raise TimeoutError(f"run {run} had not ended after {seconds:.0f} s")
            time.sleep(0.5)
        self.last_log = self._flwr("log", run, "here", "--show")
        return self.status(run)

    def log(self, name: str) -> str:
        """Return the log of ``superlink``, ``node0``, ``node1``, … so far."""
        return self.folder.joinpath(f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with self.folder.joinpath(f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, cwd=self.folder, start_new_session=True
            )

    def _flwr(self, *words: str) -> str:
        command = [str(_BIN / "flwr"), *words]
        for attempt in range(3):
            done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=120)
            if done.returncode == 0:
                return done.stdout
            time.sleep(1.0 + attempt)
        raise RuntimeError(f"flwr {words[0]}: {done.stdout}{done.stderr}")

    def _wait_for_port(self) -> None:
        end = time.monotonic() + _BOOT_SECONDS
        while time.monotonic() < end:
            if self.superlink is not None and self.superlink.poll() is not None:
                raise RuntimeError(f"the SuperLink did not start:\n{self.log('superlink')}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return
            time.sleep(0.2)
        raise TimeoutError("the SuperLink does not listen")

    def _wait_for_supernodes(self) -> None:
        end = time.monotonic() + _BOOT_SECONDS
        names = [f"node{i}" for i in range(len(self.slowdowns))]
        while not all("startup complete" in self.log(name) for name in names):
            if time.monotonic() > end:
                raise TimeoutError("a SuperNode did not start")
            time.sleep(0.2)

    def _make_certificates(self) -> None:
        ca = ec.generate_private_key(ec.SECP384R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "adelfl demo")])
        own = _certificate(name, name, ca.public_key(), ca, authority=True)
        self.folder.joinpath("ca.crt").write_bytes(own.public_bytes(serialization.Encoding.PEM))
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        certificate = _certificate(subject, name, key.public_key(), ca, authority=False)
        self.folder.joinpath("server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(self.folder / "server.key", key, serialization.PrivateFormat.PKCS8)

    def _make_key(self, i: int) -> None:
        key = ec.generate_private_key(ec.SECP384R1())
        _write_key(self.folder / f"node{i}.key", key, serialization.PrivateFormat.OpenSSH)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        self.folder.joinpath(f"node{i}.pub").write_bytes(public)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePrivateKey,
    *, authority: bool,
) -> x509.Certificate:  # fmt: skip
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if not authority:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and those that it started, which are in its session."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
