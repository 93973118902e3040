"""A temporary Apache Pulsar standalone for tests and benchmarks, with free ports and a temporary folder.

Requires an unpacked distribution (``PULSAR_HOME``) and Java 17 or newer. Starting takes about 10 s and
1-2 GB of memory::

    with ApachePulsar.start(home, folder) as pulsar:
        client = geminga.Client(pulsar.service_url)
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from geminga.testing.processes import Process, Stoppable

MEMORY = "-Xms512m -Xmx1500m -XX:MaxDirectMemorySize=1500m"


def free_ports(count: int) -> list[int]:
    """Return ports on which no process listens.

    If the system reports its range of ephemeral ports (as Linux does), other ports are returned: the system
    then never gives them to other processes before or between uses.
    """
    sockets: list[socket.socket] = []
    try:
        for port in _lasting_ports():
            if len(sockets) == count:
                break
            with contextlib.suppress(OSError):
                sockets.append(socket.create_server(("127.0.0.1", port)))
        while len(sockets) < count:
            sockets.append(socket.create_server(("127.0.0.1", 0)))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def _lasting_ports() -> list[int]:
    """Return ports outside the ephemeral range, in random order; empty if the range is unknown."""
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        return []
    ports = [port for port in range(10_000, 65_536) if not low <= port <= high]
    return random.SystemRandom().sample(ports, min(len(ports), 1000))


@dataclass(kw_only=True)
class ApachePulsar(Stoppable):
    """A running standalone broker."""

    home: Path
    folder: Path
    port: int
    web_port: int
    bookie_port: int
    process: Process

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @staticmethod
    def start(
        home: Path, folder: Path, *, timeout_seconds: float = 90.0, **settings: str | int | bool
    ) -> ApachePulsar:
        """Start a broker and wait until its health check succeeds.

        ``settings`` override ``conf/standalone.conf``. Raises `TimeoutError` with the end of the broker's log
        if it does not answer in time.
        """
        folder.mkdir(parents=True, exist_ok=True)
        port, web_port, bookie_port = free_ports(3)
        configured(
            home / "conf/standalone.conf", folder / "standalone.conf",
            **{"brokerServicePort": port, "webServicePort": web_port, **settings},
        )  # fmt: skip
        process = _standalone(home, folder, bookie_port)
        broker = ApachePulsar(
            home=home, folder=folder, port=port, web_port=web_port, bookie_port=bookie_port, process=process
        )
        broker._wait_until_healthy(timeout_seconds)
        return broker

    def start_again(self, *, timeout_seconds: float = 90.0) -> None:
        """Start again after `stop`, with the same ports, settings and data."""
        self.process = _standalone(self.home, self.folder, self.bookie_port)
        self._wait_until_healthy(timeout_seconds)

    def _wait_until_healthy(self, timeout_seconds: float) -> None:
        try:
            self.process.wait_until(self._is_healthy, timeout_seconds)
        except BaseException:
            self.stop()
            raise

    def _is_healthy(self) -> bool:
        """Return whether the health check succeeds and ``public/default`` exists, which it does not need."""
        try:
            health = _read(f"{self.admin_url}/admin/v2/brokers/health")
            return health.strip() == b"ok" and b"public/default" in _read(
                f"{self.admin_url}/admin/v2/namespaces/public"
            )
        except (OSError, urllib.error.URLError):
            return False

    def cpu_seconds(self) -> float:
        """Return user and system CPU seconds of the broker's process so far."""
        fields = Path(f"/proc/{self.process.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tool(
        self, name: str, *arguments: str, timeout_seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the distribution's command-line tools, e.g. ``pulsar-admin``; see `run_tool`."""
        return run_tool(
            self.home, name, *arguments, service_url=self.service_url, admin_url=self.admin_url,
            timeout_seconds=timeout_seconds,
        )  # fmt: skip

    def suspend(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open, nothing answers."""
        self.process.suspend()

    def resume(self) -> None:
        """Resume the process after `suspend`."""
        self.process.resume()

    def stop(self) -> None:
        self.process.kill()


def configured(template: Path, file: Path, **values: object) -> Path:
    """Write a copy of a configuration with some values replaced, and return its path."""
    text = template.read_text()
    for key, value in values.items():
        word = str(value).lower() if isinstance(value, bool) else str(value)
        text = re.sub(rf"(?m)^#?\s*{re.escape(key)}=.*\n", "", text) + f"\n{key}={word}\n"
    file.write_text(text)
    return file


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


def version_of(home: Path) -> tuple[int, ...]:
    """Return the version of a distribution, such as (4, 0, 4), by the name of its broker's library."""
    library = next(home.glob("lib/*pulsar-broker-[0-9]*.jar"))
    return tuple(map(int, re.findall(r"\d+", library.stem)))


def _standalone(home: Path, folder: Path, bookie_port: int) -> Process:
    metadata = ["--metadata-dir", str(folder / "metadata")]
    if version_of(home) < (2, 11):
        metadata = ["--zookeeper-dir", str(folder / "metadata"), "--zookeeper-port", str(free_ports(1)[0])]
    command = [
        str(home / "bin/pulsar"), "standalone", "-nss", "-nfw", *metadata,
        "--bookkeeper-dir", str(folder / "bookkeeper"),
        *(["--bookkeeper-port", str(bookie_port)] if version_of(home) < (5,) else []),  # later: any port
    ]  # fmt: skip
    return Process.start(
        "output", folder, command, PULSAR_MEM=MEMORY, PULSAR_GC_LOG=" ",
        PULSAR_STANDALONE_CONF=str(folder / "standalone.conf"), PULSAR_LOG_DIR=str(folder / "logs"),
    )  # fmt: skip


_BRIEF = ("pulsar-admin", "pulsar-client")
_BRIEF_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for short-lived tools, which hardly use optimised code: half the CPU of a start."""


def run_tool(
    home: Path, name: str, *arguments: str, service_url: str, admin_url: str, timeout_seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``bin/NAME`` of a distribution against any broker.

    ``pulsar-admin`` and ``pulsar-client`` receive the addresses as options; ``pulsar-perf`` takes
    ``--service-url`` after its sub-command.
    """
    command = [str(home / "bin" / name)]
    if name == "pulsar-admin":
        command += ["--admin-url", admin_url, *arguments]
    elif name == "pulsar-client":
        command += ["--url", service_url, *arguments]
    elif name == "pulsar-perf":
        command += [arguments[0], "--service-url", service_url, *arguments[1:]]
    else:
        command += list(arguments)
    environment = {**os.environ, "PULSAR_MEM": "-Xmx256m", "PULSAR_GC_LOG": " "}
    if name in _BRIEF:
        environment["PULSAR_EXTRA_OPTS"] = f"{_BRIEF_OPTIONS} {os.environ.get('PULSAR_EXTRA_OPTS', '')}"
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_seconds, env=environment, check=False
    )
