"""An Apache Pulsar cluster on one machine: processes of ZooKeeper, a bookie and two brokers.

Requires an unpacked distribution, Java 17 or newer, some 20 s and 2.5 GB::

    with ApacheCluster.start(home, folder) as cluster:
        client = geminga.Client(cluster.service_url)
"""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from geminga.testing.apache_pulsar import configured, free_ports
from geminga.testing.processes import START_SECONDS_MAX, Process, Stoppable

ZOOKEEPER_MEMORY = "-Xmx256m"
SERVER_MEMORY = "-Xmx700m -XX:MaxDirectMemorySize=700m"


@dataclass(slots=True, kw_only=True)
class ApacheCluster(Stoppable):
    """A running cluster, created by `start`."""

    home: Path
    folder: Path
    brokers: list[tuple[int, int]] = field(default_factory=list)
    """Binary and web port of each broker."""
    processes: list[Process] = field(default_factory=list)

    @property
    def service_url(self) -> str:
        """Service URL of all brokers; clients try them in turn."""
        return "pulsar://" + ",".join(f"127.0.0.1:{port}" for port, _ in self.brokers)

    def admin_url(self, broker: int = 0) -> str:
        """Web address of a broker."""
        return f"http://127.0.0.1:{self.brokers[broker][1]}"

    @staticmethod
    def start(home: Path, folder: Path, *, brokers: int = 2) -> ApacheCluster:
        """Start everything and wait until all brokers are ready.

        Raises `TimeoutError` with the end of a log if a server does not start.
        """
        folder.mkdir(parents=True, exist_ok=True)
        cluster = ApacheCluster(home=home, folder=folder)
        try:
            store = cluster._zookeeper()
            cluster._initialize(store)
            cluster._bookie(store)
            started = [cluster._broker(number, store) for number in range(brokers)]
            for (_, web_port), process in zip(cluster.brokers, started, strict=True):
                address = f"http://127.0.0.1:{web_port}/admin/v2/brokers/ready"
                process.wait_until(lambda address=address: _answers(address))  # type: ignore[misc]
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()

    # --- servers ----------------------------------------------------------------------------------

    def _start(self, name: str, *arguments: str, **environment: str) -> Process:
        command = [str(self.home / "bin/pulsar"), *arguments]
        process = Process.start(name, self.folder, command, PULSAR_GC_LOG=" ", **environment)
        self.processes.append(process)
        return process

    def _zookeeper(self) -> str:
        """Start ZooKeeper and return its address."""
        port, admin_port, metrics_port = free_ports(3)
        file = configured(
            self.home / "conf/zookeeper.conf", self.folder / "zookeeper.conf",
            **{
                "dataDir": self.folder / "zookeeper", "clientPort": port, "admin.serverPort": admin_port,
                "metricsProvider.httpPort": metrics_port,
            },
        )  # fmt: skip
        process = self._start("zookeeper", "zookeeper", PULSAR_ZK_CONF=str(file), PULSAR_MEM=ZOOKEEPER_MEMORY)
        process.wait_for_port(port)
        return f"127.0.0.1:{port}"

    def _initialize(self, store: str) -> None:
        command = [
            str(self.home / "bin/pulsar"), "initialize-cluster-metadata", "--cluster", "real",
            "--metadata-store", f"zk:{store}", "--configuration-metadata-store", f"zk:{store}",
            "--web-service-url", "http://127.0.0.1:1", "--broker-service-url", "pulsar://127.0.0.1:1",
        ]  # fmt: skip
        done = subprocess.run(
            command, env={**os.environ, "PULSAR_MEM": "-Xmx256m", "PULSAR_GC_LOG": " "}, cwd=self.folder,
            capture_output=True, text=True, timeout=START_SECONDS_MAX, check=False,
        )  # fmt: skip
        if done.returncode:
            raise TimeoutError(
                f"the cluster's metadata were not made:\n{done.stdout[-2000:]}{done.stderr[-1000:]}"
            )

    def _bookie(self, store: str) -> None:
        port, web_port = free_ports(2)
        data = self.folder / "bookie"
        file = configured(
            self.home / "conf/bookkeeper.conf", self.folder / "bookie.conf",
            journalDirectory=data / "journal", ledgerDirectories=data / "ledgers", bookiePort=port,
            metadataServiceUri=f"zk+hierarchical://{store}/ledgers", prometheusStatsHttpPort=web_port,
            httpServerPort=web_port, advertisedAddress="127.0.0.1", allowLoopback=True,
        )  # fmt: skip
        process = self._start("bookie", "bookie", PULSAR_BOOKKEEPER_CONF=str(file), PULSAR_MEM=SERVER_MEMORY)
        process.wait_for_port(port)

    def _broker(self, number: int, store: str) -> Process:
        port, web_port = free_ports(2)
        file = configured(
            self.home / "conf/broker.conf", self.folder / f"broker-{number}.conf",
            metadataStoreUrl=f"zk:{store}", configurationMetadataStoreUrl=f"zk:{store}", clusterName="real",
            brokerServicePort=port, webServicePort=web_port, advertisedAddress="127.0.0.1",
            bindAddress="127.0.0.1", managedLedgerDefaultEnsembleSize=1,
            managedLedgerDefaultWriteQuorum=1, managedLedgerDefaultAckQuorum=1, loadBalancerEnabled=True,
        )  # fmt: skip
        self.brokers.append((port, web_port))
        return self._start(
            f"broker-{number}", "broker", PULSAR_BROKER_CONF=str(file), PULSAR_MEM=SERVER_MEMORY
        )


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
