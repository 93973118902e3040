"""An Apache Pulsar cluster on one machine: processes of ZooKeeper, bookies and brokers.

For tests that a standalone broker does not allow: a broker dies while another lives, and entries have several
copies. Requires an unpacked distribution, Java 17 or newer, some 20 s and 2.5 GB::

    with ApacheCluster.start(home, folder) as cluster:
        cluster.kill_broker(0)
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from geminga.testing.apache_pulsar import free_ports

ZOOKEEPER_MEMORY = "-Xmx256m"
SERVER_MEMORY = "-Xmx700m -XX:MaxDirectMemorySize=700m"
START_SECONDS_MAX = 120.0


@dataclass(slots=True, kw_only=True)
class _Server:
    """A server process: command and port."""

    name: str
    command: list[str]
    environment: dict[str, str]
    port: int
    web_port: int = 0
    process: subprocess.Popen[bytes] | None = None


@dataclass(slots=True, kw_only=True)
class ApacheCluster:
    """A running cluster, created by `start`."""

    home: Path
    folder: Path
    zookeeper: _Server
    bookies: list[_Server] = field(default_factory=list)
    brokers: list[_Server] = field(default_factory=list)

    @property
    def service_url(self) -> str:
        """Service URL of all brokers; clients try them in turn."""
        return "pulsar://" + ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    def admin_url(self, broker: int = 0) -> str:
        """Web address of a broker."""
        return f"http://127.0.0.1:{self.brokers[broker].web_port}"

    @staticmethod
    def start(home: Path, folder: Path, *, brokers: int = 2, bookies: int = 1) -> ApacheCluster:
        """Start everything and wait until all brokers are ready.

        Entries have at most as many copies as there are bookies; the default is one. Raises `TimeoutError`
        with the end of a log if a server does not start.
        """
        folder.mkdir(parents=True, exist_ok=True)
        cluster = ApacheCluster(home=home, folder=folder, zookeeper=_zookeeper(home, folder))
        try:
            cluster._run(cluster.zookeeper)
            cluster._initialize()
            cluster.bookies = [cluster._bookie(number) for number in range(bookies)]
            for server in cluster.bookies:
                cluster._run(server)
            cluster.brokers = [cluster._broker(number) for number in range(brokers)]
            for server in cluster.brokers:
                cluster._launch(server)
            for number in range(brokers):
                cluster._wait_until_ready(number)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def kill_broker(self, broker: int) -> None:
        """Kill a broker (SIGKILL), as a power failure would."""
        self._end(self.brokers[broker])

    def restart_broker(self, broker: int) -> None:
        """Restart a broker and wait until it is ready."""
        self._end(self.brokers[broker])
        self._launch(self.brokers[broker])
        self._wait_until_ready(broker)

    def stop(self) -> None:
        """Kill everything; may be called repeatedly."""
        for server in (*self.brokers, *self.bookies, self.zookeeper):
            self._end(server)

    def __enter__(self) -> ApacheCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- processes --------------------------------------------------------------------------------

    def _launch(self, server: _Server) -> None:
        with (self.folder / f"{server.name}.log").open("ab") as output:
            server.process = subprocess.Popen(
                server.command, env={**os.environ, "PULSAR_GC_LOG": " ", **server.environment},
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def _run(self, server: _Server) -> None:
        self._launch(server)
        self._wait(server, lambda: _listens(server.port))

    @staticmethod
    def _end(server: _Server) -> None:
        if server.process is not None:
            if server.process.poll() is None:
                os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait(timeout=30)

    def _wait_until_ready(self, broker: int) -> None:
        address = f"{self.admin_url(broker)}/admin/v2/brokers/ready"
        self._wait(self.brokers[broker], lambda: _answers(address))

    def _wait(self, server: _Server, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        assert server.process is not None
        while time.monotonic() < deadline and server.process.poll() is None:
            if ready():
                return
            time.sleep(0.3)
        log = (self.folder / f"{server.name}.log").read_text(errors="replace")[-3000:]
        raise TimeoutError(f"the {server.name} did not come up; end of its log:\n{log}")

    def _pulsar(self, *arguments: str) -> list[str]:
        return [str(self.home / "bin/pulsar"), *arguments]

    def _initialize(self) -> None:
        store = f"zk:127.0.0.1:{self.zookeeper.port}"
        done = subprocess.run(
            self._pulsar(
                "initialize-cluster-metadata", "--cluster", "real", "--metadata-store", store,
                "--configuration-metadata-store", store, "--web-service-url", "http://127.0.0.1:1",
                "--broker-service-url", "pulsar://127.0.0.1:1",
            ),
            env={**os.environ, "PULSAR_MEM": "-Xmx256m", "PULSAR_GC_LOG": " "}, cwd=self.folder,
            capture_output=True, text=True, timeout=START_SECONDS_MAX, check=False,
        )  # fmt: skip
        if done.returncode:
            raise TimeoutError(
                f"the cluster's metadata were not made:\n{done.stdout[-2000:]}{done.stderr[-1000:]}"
            )

    # --- servers ----------------------------------------------------------------------------------

    def _bookie(self, number: int) -> _Server:
        port, web_port = free_ports(2)
        data = self.folder / f"bookie-{number}"
        file = _configured(
            self.home / "conf/bookkeeper.conf", self.folder / f"bookie-{number}.conf",
            journalDirectory=data / "journal", ledgerDirectories=data / "ledgers", bookiePort=port,
            metadataServiceUri=f"zk+hierarchical://127.0.0.1:{self.zookeeper.port}/ledgers",
            prometheusStatsHttpPort=web_port, httpServerPort=web_port, advertisedAddress="127.0.0.1",
            allowLoopback="true",
        )  # fmt: skip
        environment = {"PULSAR_BOOKKEEPER_CONF": str(file), "PULSAR_MEM": SERVER_MEMORY}
        return _Server(
            name=f"bookie-{number}", command=self._pulsar("bookie"), environment=environment, port=port
        )

    def _broker(self, number: int) -> _Server:
        port, web_port = free_ports(2)
        store = f"zk:127.0.0.1:{self.zookeeper.port}"
        file = _configured(
            self.home / "conf/broker.conf", self.folder / f"broker-{number}.conf",
            metadataStoreUrl=store, configurationMetadataStoreUrl=store, clusterName="real",
            brokerServicePort=port, webServicePort=web_port, advertisedAddress="127.0.0.1",
            bindAddress="127.0.0.1", managedLedgerDefaultEnsembleSize=1,
            managedLedgerDefaultWriteQuorum=1, managedLedgerDefaultAckQuorum=1, loadBalancerEnabled="true",
        )  # fmt: skip
        environment = {"PULSAR_BROKER_CONF": str(file), "PULSAR_MEM": SERVER_MEMORY}
        return _Server(
            name=f"broker-{number}", command=self._pulsar("broker"), environment=environment, port=port,
            web_port=web_port,
        )  # fmt: skip


def _zookeeper(home: Path, folder: Path) -> _Server:
    port, admin_port, metrics_port = free_ports(3)
    file = _configured(
        home / "conf/zookeeper.conf", folder / "zookeeper.conf",
        **{
            "dataDir": folder / "zookeeper", "clientPort": port, "admin.serverPort": admin_port,
            "metricsProvider.httpPort": metrics_port,
        },
    )  # fmt: skip
    environment = {"PULSAR_ZK_CONF": str(file), "PULSAR_MEM": ZOOKEEPER_MEMORY}
    command = [str(home / "bin/pulsar"), "zookeeper"]
    return _Server(name="zookeeper", command=command, environment=environment, port=port)


def _configured(template: Path, file: Path, **values: object) -> Path:
    """Return a copy of a configuration with some values replaced."""
    text = template.read_text()
    for key, value in values.items():
        text = re.sub(rf"(?m)^#?\s*{re.escape(key)}=.*\n", "", text) + f"\n{key}={value}\n"
    file.write_text(text)
    return file


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
