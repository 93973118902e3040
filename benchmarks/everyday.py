"""Everyday programs with ``pulsar-client``, Geminga and Java: ``python -m benchmarks.everyday``.

Each program of `benchmarks.everyday_programs` runs in a process of its own, the libraries in turn in every
round. The table shows the best rate of the rounds, the lowest CPU of the client's process, and their ratios;
programs in which Geminga has the lower rate come first. ``pulsar-perf`` (with ``--java``) is warm: its rate
and the CPU of its JVM are those of ten seconds after the first ten. ``--publish`` writes the figures from
which ``make docs`` draws the page.

    python -m benchmarks.everyday --only receive --only send     both libraries, two programs
    python -m benchmarks.everyday --java --publish               all programs, on our broker
    python -m benchmarks.everyday --java --publish --broker apache
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import geminga
import geminga.schema
from benchmarks import brokers, figures, output
from benchmarks.brokers import RunningBroker
from benchmarks.everyday_programs import CONTENT, KEYS, LARGE, PROGRAMS, PROPERTIES, Program, Run
from benchmarks.figures import JAVA, OURS, PULSAR_CLIENT
from benchmarks.harness import process_cpu_seconds
from geminga.tuning.measuring.host import machine
from tests.support.certificates import Authority

LIBRARIES = {PULSAR_CLIENT: "pulsar", OURS: "geminga"}
PUBLISHED = Path(__file__).parent.parent / "docs/proof/everyday.json"
QUICK = 20
"""Divisor of the number of messages with ``--quick``."""
JAVA_BACKLOG = {"plain": 8_000_000, "batched": 25_000_000}
"""Messages that ``pulsar-perf`` finds: enough for two of its intervals of 10 s."""
COMPILED = {"GEMINGA_KERNELS": "compiled"}


class Order(geminga.schema.Record):
    """The record of the programs with schemas."""

    id = geminga.schema.Integer()
    customer = geminga.schema.String()
    amount = geminga.schema.Double()
    tags = geminga.schema.Array(geminga.schema.String())


def make_files(folder: Path) -> tuple[Path, Path]:
    """Write the files that TLS and encryption need; return the broker's certificate and its key."""
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "private.pem").write_bytes(private)
    (folder / "public.pem").write_bytes(public)
    return Authority(folder).sign("broker")


# --- messages that programs find -----------------------------------------------------------------------


class Topics:
    """Topics of a broker: new ones, and those with messages, which are filled once and kept."""

    def __init__(self, broker: RunningBroker, folder: Path) -> None:
        self._broker, self._folder = broker, folder
        self._filled: dict[tuple[str, int], str] = {}
        self._made = 0

    def for_program(self, program: Program, backlog: int) -> str:
        """Return a new topic, or one with ``backlog`` messages if the program receives them."""
        if program.backlog:
            return self.filled(program.backlog, backlog, program.partitions)
        return self.new(program.partitions)

    def new(self, partitions: int = 0) -> str:
        """Return the name of a topic that no program has used; create it if it has partitions."""
        self._made += 1
        name = f"everyday-{self._made}"
        if partitions:
            request = urllib.request.Request(
                f"{self._broker.admin_url}/admin/v2/persistent/public/default/{name}/partitions",
                data=str(partitions).encode(),
                method="PUT",
                headers={"Content-Type": "application/json"},
            )
            urllib.request.urlopen(request, timeout=30).close()
        return f"persistent://public/default/{name}"

    def filled(self, kind: str, count: int, partitions: int = 0) -> str:
        """Return a topic with ``count`` messages of a kind of backlog."""
        if (kind, count) not in self._filled:
            topic = self.new(partitions)
            with geminga.Client(self._broker.service_url, operation_timeout_seconds=60) as client:
                self._fill(client, kind, topic, count)
            self._filled[kind, count] = topic
        return self._filled[kind, count]

    def _fill(self, client: geminga.Client, kind: str, topic: str, count: int) -> None:
        if kind == "topics":
            for number in range(100):
                _publish(client, f"{topic}-{number}", count // 100, lambda _: (CONTENT, {}))
            return
        options: dict[str, Any] = {"batching_enabled": kind in ("batched", "partitions-4", "table")}
        message: Callable[[int], tuple[Any, dict[str, Any]]] = lambda _: (CONTENT, {})  # noqa: E731
        if kind == "large":
            message = lambda _: (LARGE, {})  # noqa: E731
        elif kind == "keyed":
            message = lambda n: (CONTENT, {"partition_key": KEYS[n % 100], "properties": PROPERTIES})  # noqa: E731
        elif kind == "table":
            message = lambda n: (CONTENT, {"partition_key": f"key-{n}"})  # noqa: E731
        elif kind in ("json", "avro"):
            schema = geminga.schema.JsonSchema if kind == "json" else geminga.schema.AvroSchema
            options["schema"] = schema(Order)
            message = lambda n: (Order(id=n, customer="Ada", amount=1.5, tags=["new"]), {})  # noqa: E731
        elif kind == "encrypted":
            keys = geminga.CryptoKeyReader(
                str(self._folder / "public.pem"), str(self._folder / "private.pem")
            )
            options |= {"encryption_key": "orders", "crypto_key_reader": keys}
        _publish(client, topic, count, message, **options)


def _publish(
    client: geminga.Client,
    topic: str,
    count: int,
    message: Callable[[int], tuple[Any, dict[str, Any]]],
    **options: Any,
) -> None:
    """Publish messages that the subscription ``keeps`` retains."""
    client.subscribe(topic, "keeps", initial_position=geminga.InitialPosition.Earliest).close()
    producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=20_000, **options)
    for number in range(count):
        content, fields = message(number)
        producer.send_async(content, None, **fields)
    producer.flush()
    producer.close()


# --- one measurement -----------------------------------------------------------------------------------


def in_process(
    name: str,
    library: str,
    arguments: Mapping[str, Any],
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] = COMPILED,
    seconds_max: float = 120,
) -> dict[str, float]:
    """Run a program in a process of its own; raise `RuntimeError` if it prints no figures."""
    run = subprocess.run(
        [python, "-m", "benchmarks.everyday", "--one", name, library, json.dumps(arguments)],
        capture_output=True, text=True, timeout=seconds_max, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if not lines:
        # Without the traceback, which has this machine's paths.
        error = run.stderr.strip().rpartition("\n")[2]
        raise RuntimeError(f"exit status {run.returncode}: {error[-300:]}")
    found: dict[str, float] = json.loads(lines[-1])
    return found


def run_here(name: str, library: str, arguments: Mapping[str, Any]) -> None:
    """Run a program in this process, print its figures and exit: closing the client is not measured."""
    run = Run(importlib.import_module(library), **arguments)
    PROGRAMS[name].run(run)
    print(json.dumps(run.found), flush=True)
    os._exit(0)


_INTERVAL = re.compile(r"Throughput (?:produced|received):.*?([\d.]+)\s+msg/s")
_WARM, _COUNTED = 1, 1
"""Intervals of 10 s of ``pulsar-perf``."""


def java(url: str, topic: str, arguments: Sequence[str]) -> dict[str, float]:
    """Run ``pulsar-perf`` with the work of a program; return its figures without its first interval."""
    action, *rest = arguments
    if action == "consume":
        rest = ["-ss", f"java-{time.time_ns()}", "-st", *rest, "-sp", "Earliest", "-q", "10000"]
    else:
        rest = ["-r", "10000000", "-s", str(len(CONTENT)), "-o", "20000", *rest]
    command = [
        str(brokers.pulsar_home() / "bin/pulsar-perf"),
        action,
        topic,
        "-u",
        url,
        *rest,
        "-time",
        "120",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "PULSAR_MEM": "-Xms1g -Xmx1g", "PULSAR_GC_LOG": " "},
    )  # fmt: skip
    watchdog = threading.Timer(90, process.kill)
    watchdog.start()
    printed: list[str] = []
    marks: list[tuple[float, float, float]] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            printed = [*printed[-19:], line]
            match = _INTERVAL.search(line)
            if match is not None and (float(match[1]) or marks):
                marks.append((time.perf_counter(), process_cpu_seconds(process.pid), float(match[1])))
            if len(marks) == _WARM + _COUNTED:
                break
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    if len(marks) < _WARM + _COUNTED:
        raise RuntimeError(f"pulsar-perf {action} printed no rates:\n{''.join(printed)}")
    (start, cpu, _), (end, cpu_end, _) = marks[_WARM - 1], marks[-1]
    rate = sum(rate for _, _, rate in marks[_WARM:]) / _COUNTED
    return {"messages": rate * (end - start), "seconds": end - start, "cpu": cpu_end - cpu}


# --- all programs --------------------------------------------------------------------------------------


class Measuring:
    """Figures of the programs on one broker."""

    def __init__(self, broker: RunningBroker, folder: Path, *, quick: bool) -> None:
        self.broker, self.folder, self.quick = broker, folder, quick
        self.topics = Topics(broker, folder)
        self.rows: dict[tuple[str, str], list[dict[str, float]]] = {}
        self.failed: list[str] = []
        self.loads: list[float] = []

    def count(self, program: Program) -> int:
        """Return the number of messages of a run."""
        return max(10, program.count // QUICK) if self.quick else program.count

    def measure(self, program: Program, who: str) -> None:
        """Run a program once with a library."""
        arguments = {
            "url": self.broker.service_url,
            "tls_url": f"pulsar+ssl://localhost:{self.broker.tls_port}",
            "topic": self.topics.for_program(program, self._backlog(program)),
            "count": self.count(program),
            "folder": str(self.folder),
        }
        self._record(program, who, lambda: in_process(program.name, LIBRARIES[who], arguments))

    def _backlog(self, program: Program) -> int:
        """Return the size of a backlog: that of the program with the most messages of its kind."""
        return max(self.count(each) for each in PROGRAMS.values() if each.backlog == program.backlog)

    def measure_java(self, program: Program) -> None:
        """Run ``pulsar-perf`` with the work of a program."""
        topic = self.topics.for_program(program, JAVA_BACKLOG.get(program.backlog, 0))
        self._record(program, JAVA, lambda: java(self.broker.service_url, topic, program.java))

    def _record(self, program: Program, who: str, measure: Callable[[], dict[str, float]]) -> None:
        self.loads.append(os.getloadavg()[0])
        try:
            found = measure()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            self.failed.append(f"{program.title}, {who}: {error}")
            print(f"{program.name:24} {who:18} failed: {error}", file=sys.stderr, flush=True)
            return
        self.rows.setdefault((program.name, who), []).append(found)
        rate, cpu = found["messages"] / found["seconds"], found["cpu"] / found["messages"] * 1e6
        print(f"{program.name:24} {who:18} {rate:12,.0f}/s {cpu:9.2f} µs", file=sys.stderr, flush=True)

    def values(self) -> dict[str, Any]:
        """Return the figures as they are published."""
        return {
            "machine": machine(),
            "load": [round(min(self.loads), 1), round(max(self.loads), 1)],
            "quick": self.quick,
            "rows": [
                {"name": name, "work": PROGRAMS[name].title, "who": who, "runs": runs}
                for (name, who), runs in self.rows.items()
            ],
            "failed": self.failed,
        }


def measure_all(given: argparse.Namespace) -> dict[str, Any]:
    """Run the chosen programs on the chosen broker; return their figures."""
    programs = [PROGRAMS[name] for name in given.only or PROGRAMS]
    start = brokers.geminga if given.broker == "embedded" else brokers.apache
    with brokers.work_folder() as folder, start(folder, certificate=make_files(folder)) as broker:
        measuring = Measuring(broker, folder, quick=given.quick)
        for number in range(given.rounds):
            turns = list(LIBRARIES) if number % 2 == 0 else list(reversed(LIBRARIES))
            for program in programs:
                for who in turns:
                    if program.only in ("", LIBRARIES[who]):
                        measuring.measure(program, who)
        if given.java:
            for program in programs:
                if program.java:
                    measuring.measure_java(program)
        return measuring.values()


def main() -> int:
    """Run what the command line names and print the table; return 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--broker", choices=("embedded", "apache"), default="embedded")
    parser.add_argument("--only", choices=tuple(PROGRAMS), action="append", metavar="NAME",
                        help="program to run, may be repeated; one of\n" + "\n".join(PROGRAMS))  # fmt: skip
    parser.add_argument(
        "--rounds", type=int, default=None, help="runs of each library [default: 3; 1 if quick]"
    )
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK}th of the messages, one round")
    parser.add_argument(
        "--java", action="store_true", help="pulsar-perf beside them where it can do the work"
    )
    output.add_options(parser, PUBLISHED)
    given = parser.parse_args()
    if given.one:
        run_here(given.one[0], given.one[1], json.loads(given.one[2]))
    given.rounds = given.rounds or (1 if given.quick else 3)
    values = measure_all(given)
    table = figures.everyday(values, given.broker)
    output.show(given, table)
    if given.publish:
        published = json.loads(PUBLISHED.read_text()) if PUBLISHED.exists() else {}
        before = published.get(given.broker, {"rows": [], "failed": []})
        if given.only:  # the other programs keep their figures
            values["rows"] += [row for row in before["rows"] if row["name"] not in given.only]
            titles = tuple(PROGRAMS[name].title for name in given.only)
            values["failed"] += [line for line in before["failed"] if not line.startswith(titles)]
        output.publish(PUBLISHED, {**published, given.broker: values})
    return bool(values["failed"])


if __name__ == "__main__":
    sys.exit(main())
