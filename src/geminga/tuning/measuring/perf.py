"""Java's ``pulsar-perf produce`` as a measured client, with the same rate and kind of messages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from geminga.client.cluster import Cluster
from geminga.tuning.measuring.conversation import ChildFailedError
from geminga.tuning.measuring.outcome import Latency
from geminga.tuning.measuring.payloads import STAMP_BASE_NS, STAMP_SIZE, of_samples, stamp_ns, structured_json
from geminga.tuning.publish_settings import PublishSettings

PAYLOADS = 2000
MEMORY = "-Xms128m -Xmx512m"
_READY = re.compile(r"Created \d+ producers")
_AGGREGATED = re.compile(
    r"Aggregated latency stats --- Latency: mean:\s*([\d.]+) ms - med:\s*([\d.]+) - 95pct:\s*([\d.]+) - "
    r"99pct:\s*([\d.]+) - 99.9pct:\s*([\d.]+) - 99.99pct:\s*([\d.]+) - 99.999pct:\s*([\d.]+) - "
    r"Max:\s*([\d.]+)"
)
_RECORDS = re.compile(r"Aggregated throughput stats --- (\d+) records sent")


def _configured(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Return an environment with a temporary ``client.conf`` if credentials or TLS are needed, to keep them
    out of the process's arguments."""
    lines = []
    if cluster.auth_plugin is not None:
        lines += [f"authPlugin={cluster.auth_plugin}", f"authParams={cluster.auth_params or ''}"]
    if cluster.tls_trust_certs_file_path is not None:
        lines.append(f"tlsTrustCertsFilePath={cluster.tls_trust_certs_file_path}")
    if cluster.tls_allow_insecure_connection:
        lines.append("tlsAllowInsecureConnection=true")
    if not lines:
        return {}
    file = folder / "client.conf"
    file.touch(mode=0o600)
    file.write_text("\n".join([f"brokerServiceUrl={cluster.service_url}", *lines]) + "\n")
    return {"PULSAR_CLIENT_CONF": str(file)}


class JavaLoad(NamedTuple):
    """Messages that ``pulsar-perf produce`` publishes."""

    topic: str
    rate: float
    """Messages per second."""
    seconds: float
    payload: Mapping[str, Any]


class JavaPerf:
    """A running ``pulsar-perf produce``.

    The tool replaces ``%t`` in messages by the time: nanoseconds of the clock that the other clients use,
    without leading zeros, so that the digits before it are constant.
    """

    def __init__(
        self,
        *,
        home: Path,
        folder: Path,
        cluster: Cluster,
        settings: PublishSettings,
        load: JavaLoad,
    ) -> None:
        file = folder / "payloads.txt"
        file.write_bytes(_lines(load.payload))
        self._lines: list[str] = []
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [
                str(home / "bin/pulsar-perf"), "produce", "-u", cluster.service_url, "-r", f"{load.rate:g}",
                "-time", str(round(load.seconds + 2)), "-f", str(file), "-fp", *arguments(settings),
                load.topic,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, "PULSAR_MEM": MEMORY, "PULSAR_GC_LOG": " ", **_configured(cluster, folder)},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="geminga-pulsar-perf", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @staticmethod
    def stamp_ns() -> int:
        """Return the current time in the form of the tool's messages."""
        return stamp_ns()

    def wait_until_publishing(self, timeout_seconds: float) -> None:
        """Wait until its producers are open. Raises `ChildFailedError`."""
        if not self._ready.wait(timeout_seconds) or self._process.poll() is not None:
            raise ChildFailedError("pulsar-perf did not begin; it said: " + " | ".join(self._lines[-5:]))

    def finish(self, timeout_seconds: float) -> Latency:
        """Wait for its end and read the latencies of its receipts."""
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.close()
        self._reader.join(timeout=5)
        text = "\n".join(self._lines)
        match = _AGGREGATED.search(text)
        if match is None:
            return Latency()
        records = _RECORDS.search(text)
        median, _, p99, p999, _, _, most = (float(number) for number in match.groups()[1:])
        return Latency(
            count=int(records[1]) if records else 0, p50_ms=median, p99_ms=p99, p999_ms=p999, max_ms=most
        )

    def close(self) -> None:
        """Kill it with all its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            del self._lines[:-500]
            if _READY.search(line):
                self._ready.set()
        self._ready.set()

    def __enter__(self) -> JavaPerf:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def arguments(settings: PublishSettings) -> list[str]:
    """Return the tool's options for settings. It has no option for the partition switch frequency: Java's
    default of 10 applies."""
    producer = settings.producer
    found = ["-z", producer.compression_type.name.upper()] if int(producer.compression_type) else []
    if producer.batching_enabled:
        found += [
            "-b", f"{producer.batching_max_publish_delay_seconds * 1000:g}",
            "-bm", str(producer.batching_max_messages),
            "-bb", str(producer.batching_max_allowed_size_in_bytes),
        ]  # fmt: skip
    else:
        found.append("--disable-batching")
    found += ["--send-timeout", str(round(producer.send_timeout_seconds))]
    found += ["-o", str(producer.max_pending_messages)]
    found += ["-p", str(producer.max_pending_messages_across_partitions)]
    return [*found, "-ml", str(settings.memory_limit_bytes)]


def _lines(payload: Mapping[str, Any]) -> bytes:
    if payload.get("samples"):
        made = of_samples([sample.encode("latin-1") for sample in payload["samples"]])
    else:
        made = structured_json(
            payload["message_bytes"], kind=payload["kind"], variation=payload["variation"], count=PAYLOADS
        )
    digits = len(str(time.monotonic_ns()))
    front = str(STAMP_BASE_NS)[: STAMP_SIZE - digits].encode()
    return b"".join(made.head + front + b"%t" + tail + b"\n" for tail in made.tails[:PAYLOADS])
