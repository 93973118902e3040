"""Brokers to compare, each in a process of its own: Geminga's, Apache Pulsar standalone, pulsar-lite."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import OURS
from geminga.testing.apache_pulsar import ApachePulsar, free_ports

APACHE = "Apache Pulsar 4.0.4"
LITE = "pulsar-lite 0.2.0"
CACHED = Path(__file__).parent.parent / ".cache/apache-pulsar-4.0.4"
PING = bytes.fromhex("00000009000000050812920100")


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """Addresses and process of a broker."""

    who: str
    service_url: str
    admin_url: str
    pid: int
    start_seconds: float
    tls_port: int = 0

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.service_url.removeprefix("pulsar://").rpartition(":")
        return host, int(port)


def pulsar_home() -> Path:
    """The unpacked distribution (``make bench`` fetches it)."""
    return Path(os.environ.get("PULSAR_HOME", CACHED))


def wait_for_pong(address: tuple[str, int], process: subprocess.Popen[bytes], started: float) -> float:
    """Seconds from ``started`` until the broker answers a PING."""
    while time.perf_counter() - started < 60:
        if process.poll() is not None:
            raise RuntimeError(f"the broker ended with {process.returncode} before it answered")
        try:
            with socket.create_connection(address, timeout=5) as connection:
                connection.sendall(PING)
                if connection.recv(64):
                    return time.perf_counter() - started
        except OSError:
            time.sleep(0.005)
    raise RuntimeError("no PONG within 60 s")


@contextmanager
def geminga(
    folder: Path,
    *,
    sync: str = "always",
    extra: tuple[str, ...] = (),
    certificate: tuple[Path, Path] | None = None,
) -> Iterator[RunningBroker]:
    """Geminga's standalone broker as a user starts it, with a web server.

    With ``certificate``, the files of a certificate and its key, it has TLS ports, too.
    """
    port, web_port, tls_port, web_tls_port = free_ports(4)
    if certificate is not None:
        extra += (
            "--tls-certificate", str(certificate[0]), "--tls-key", str(certificate[1]),
            "--tls-port", str(tls_port), "--web-tls-port", str(web_tls_port),
        )  # fmt: skip
    command = [
        sys.executable, "-m", "geminga.cli.main", "standalone", "--data-dir", str(folder / "geminga"),
        "--port", str(port), "--web-port", str(web_port), "--sync", sync, *extra,
    ]  # fmt: skip
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        seconds = wait_for_pong(("127.0.0.1", port), process, started)
        yield RunningBroker(
            OURS, f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{web_port}", process.pid, seconds, tls_port
        )
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def apache(folder: Path, *, certificate: tuple[Path, Path] | None = None) -> Iterator[RunningBroker]:
    """Apache Pulsar standalone with its own defaults: it does not sync its journal.

    With ``certificate``, the files of a certificate and its key, it has a TLS port, too.
    """
    (tls_port,) = free_ports(1)
    settings: dict[str, str | int | bool] = {}
    if certificate is not None:
        settings = {
            "brokerServicePortTls": tls_port,
            "tlsCertificateFilePath": str(certificate[0]),
            "tlsKeyFilePath": str(certificate[1]),
        }
    started = time.perf_counter()
    with ApachePulsar.start(pulsar_home(), folder / "apache", timeout_seconds=300, **settings) as broker:
        yield RunningBroker(
            APACHE, broker.service_url, broker.admin_url, broker.process.process.pid,
            time.perf_counter() - started, tls_port,
        )  # fmt: skip


@contextmanager
def lite(folder: Path) -> Iterator[RunningBroker]:
    """pulsar-lite: a broker in Rust, without sync, not meant for production."""
    import pulsar_lite

    binary = Path(pulsar_lite.__file__).parent / "bin/pulsar-lite"
    (port,) = free_ports(1)
    started = time.perf_counter()
    process = subprocess.Popen(
        [
            str(binary), "--addr", f"127.0.0.1:{port}", "--db-path", str(folder / "lite"),
            "--log-level", "error",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
    )  # fmt: skip
    try:
        seconds = wait_for_pong(("127.0.0.1", port), process, started)
        yield RunningBroker(LITE, f"pulsar://127.0.0.1:{port}", "", process.pid, seconds)
    finally:
        process.kill()
        process.wait(timeout=30)


@contextmanager
def work_folder(base: Path | None = None) -> Iterator[Path]:
    """A folder in ``base``, else on the project's disk (a memory file system would make every sync free)."""
    base = base or Path(__file__).parent.parent / ".cache"
    base.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def slug(text: str) -> str:
    """A topic name made of a title."""
    return re.sub(r"\W+", "-", text).strip("-").lower()
