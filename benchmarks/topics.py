"""Very many topics: created, restarted, listed, published to, trimmed and deleted, and what each costs.

``python -m benchmarks.topics --topics 600000`` runs all steps against a broker of its own. During each step a
peer sends a PING every 5 ms from a process of its own. The output has its longest wait, and the CPU of the
broker's event loop during that wait, which does not depend on the other load of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks import brokers
from benchmarks.harness import OURS, Figure, Measurement, resident_megabytes
from benchmarks.load import batch_entry
from geminga.testing.apache_pulsar import free_ports
from geminga.wire.frames import encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

Command = pb.BaseCommand
NAMESPACE = "public/many"
PEERS, WINDOW = 8, 64
WEB_PEERS = 64
LOADED = 100_000
"""Topics that are held in memory at once, to see what one takes: as many as are opened within a minute."""
LOOKED_AT = 30_000
"""Topics that a request for their statistics loads: many unused topics are unloaded soon."""
IDLE_SECONDS = 45
"""Seconds after which an idle broker has saved its state and given memory back."""
UNLOADING_SECONDS_MAX = 600
ORDERED = 10_000
PER_ORDERED = 10
PING_SECONDS = 0.005


def names_of(topics: int) -> list[str]:
    """Local names, created in no order of theirs."""
    return [f"device-{number * 2654435761 % (1 << 32):08x}" for number in range(topics)]


# --- the broker ---
class Standalone:
    """``geminga standalone``, to be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "geminga"
        self.port, self.web_port = free_ports(2)
        self.process: subprocess.Popen[bytes]

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def start(self) -> float:
        """Seconds until it answers a PING."""
        command = [
            sys.executable, "-m", "geminga.cli.main", "standalone", "--data-dir", str(self.folder),
            "--port", str(self.port), "--web-port", str(self.web_port),
        ]  # fmt: skip
        started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        return brokers.wait_for_pong(self.address, self.process, started)

    def kill(self) -> None:
        """As ``kill -9`` does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()

    @property
    def megabytes(self) -> float:
        return resident_megabytes(self.process.pid)

    def web(self, path: str, method: str = "GET", body: object = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.web_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=1800) as answer:
            return bytes(answer.read())

    def store(self) -> dict[str, float]:
        """The store's counters."""
        found: dict[str, float] = json.loads(self.web("/admin/v2/broker-stats/metrics"))[0]["metrics"]
        return found


# --- waits of other clients ---
@dataclass
class Waits:
    """Waits of PINGs during a step, in seconds."""

    longest: float = 0.0
    loop_cpu: float = 0.0
    count: int = 0

    def __str__(self) -> str:
        return f"{self.longest * 1e3:.0f} ms, {self.loop_cpu * 1e3:.0f} ms of CPU"


def _ping(address: tuple[str, int], pid: int, pipe: Connection) -> None:
    """Sends PINGs until asked for the waits so far; ends with the pipe."""
    clock = Path(f"/proc/{pid}/task/{pid}/schedstat")
    peer = socket.create_connection(address, timeout=60)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connect = Command(type=Command.CONNECT)
    connect.connect.client_version = "calm"
    connect.connect.protocol_version = 19
    peer.sendall(encode_command(connect))
    peer.recv(4096)
    longest = most_cpu = 0.0
    count = 0
    while True:
        cpu, began = int(clock.read_text().split()[0]), time.perf_counter()
        peer.sendall(brokers.PING)
        peer.recv(64)
        longest = max(longest, time.perf_counter() - began)
        most_cpu = max(most_cpu, (int(clock.read_text().split()[0]) - cpu) / 1e9)
        count += 1
        if pipe.poll(PING_SECONDS):
            if pipe.recv() is None:
                return
            pipe.send((longest, most_cpu, count))
            longest = most_cpu = 0.0
            count = 0


class Probe:
    """The calm peer of one life of a broker."""

    def __init__(self, broker: Standalone) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_ping, args=(broker.address, broker.process.pid, theirs), daemon=True
        )
        self._process.start()
        self.waits()

    def waits(self) -> Waits:
        """Those since the last call."""
        self._pipe.send(True)
        return Waits(*self._pipe.recv())

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


@contextmanager
def probing(broker: Standalone) -> Iterator[Probe]:
    probe = Probe(broker)
    try:
        yield probe
    finally:
        probe.close()


# --- peers that publish ---
class Peer(asyncio.Protocol):
    """A connection whose answers are counted."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted = 0
        self._arrived: asyncio.Future[None]
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 8:
            total, size = struct.unpack_from(">II", buffer, start)
            if len(buffer) - start < 4 + total:
                break
            kind = buffer[start + 9]  # the type is a command's first field
            if kind == Command.PING:
                self.transport.write(encode_command(Command(type=Command.PONG, pong=pb.CommandPong())))
            elif kind == Command.PONG:
                pass  # the broker has not read from us for a while, and lives
            elif kind in (Command.ERROR, Command.SEND_ERROR):
                self._fail(str(Command.FromString(bytes(buffer[start + 8 : start + 8 + size]))))
            else:
                self._wanted -= 1
            start += 4 + total
        del buffer[:start]
        if self._wanted <= 0 and not self._arrived.done():
            self._arrived.set_result(None)

    def _fail(self, why: str) -> None:
        if not self._arrived.done():
            self._arrived.set_exception(RuntimeError(why))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the broker ended the connection: {error}")

    async def ask(self, data: bytes, answers: int) -> None:
        """Send commands and wait until ``answers`` answers have arrived."""
        self._wanted = answers
        self._arrived = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        await self._arrived


async def connect(broker: Standalone, count: int) -> list[Peer]:
    peers = []
    for _ in range(count):
        _, peer = await asyncio.get_running_loop().create_connection(Peer, *broker.address)
        peers.append(peer)
        hello = Command(type=Command.CONNECT)
        hello.connect.client_version = "many"
        hello.connect.protocol_version = 19
        await peer.ask(encode_command(hello), 1)
    return peers


def _producer(name: str, number: int) -> bytes:
    made = Command(type=Command.PRODUCER)
    made.producer.topic = f"persistent://{NAMESPACE}/{name}"
    made.producer.producer_id = made.producer.request_id = number
    return encode_command(made)


def _send(number: int, sequence_id: int, entry: bytes) -> bytes:
    made = Command(type=Command.SEND)
    made.send.producer_id = number
    made.send.sequence_id = sequence_id
    body = made.SerializeToString()
    return struct.pack(">II", 4 + len(body) + len(entry), len(body)) + body + entry


def _close(number: int) -> bytes:
    made = Command(type=Command.CLOSE_PRODUCER)
    made.close_producer.producer_id = made.close_producer.request_id = number
    return encode_command(made)


async def _publish_once(broker: Standalone, names: Sequence[str]) -> None:
    """A producer for each topic, which sends a message, waits for its receipt and closes."""
    entry = batch_entry(1, 100)
    left = iter(range(0, len(names), WINDOW))

    async def work(peer: Peer) -> None:
        for start in left:
            part = list(enumerate(names[start : start + WINDOW], start))
            await peer.ask(b"".join(_producer(name, number) for number, name in part), len(part))
            await peer.ask(b"".join(_send(number, 0, entry) for number, _ in part), len(part))
            await peer.ask(b"".join(_close(number) for number, _ in part), len(part))

    peers = await connect(broker, PEERS)
    await asyncio.gather(*map(work, peers))
    for peer in peers:
        peer.transport.abort()


async def _publish_in_no_order(broker: Standalone, names: Sequence[str], messages: int) -> float:
    """Messages to topics drawn at random, with a producer open on each; seconds of the sending."""
    entry = batch_entry(1, 100)
    peers = await connect(broker, PEERS)
    numbered = list(enumerate(names))
    for index, peer in enumerate(peers):
        mine = numbered[index::PEERS]
        for start in range(0, len(mine), WINDOW):
            part = mine[start : start + WINDOW]
            await peer.ask(b"".join(_producer(name, number) for number, name in part), len(part))
    chance = random.Random(7)

    async def work(peer: Peer, mine: Sequence[int]) -> None:
        sequence_ids = dict.fromkeys(mine, 0)
        for _ in range(0, messages // PEERS, 250):
            frames = []
            for number in chance.choices(mine, k=250):
                frames.append(_send(number, sequence_ids[number], entry))
                sequence_ids[number] += 1
            await peer.ask(b"".join(frames), len(frames))

    began = time.perf_counter()
    await asyncio.gather(*(work(peer, range(index, len(names), PEERS)) for index, peer in enumerate(peers)))
    took = time.perf_counter() - began
    for peer in peers:
        peer.transport.abort()
    return took


async def _open_all(broker: Standalone, names: Sequence[str]) -> list[Peer]:
    """Producers that stay open, with a message each."""
    entry = batch_entry(1, 100)
    left = iter(range(0, len(names), WINDOW))
    peers = await connect(broker, PEERS)

    async def work(peer: Peer) -> None:
        for start in left:
            part = list(enumerate(names[start : start + WINDOW], start))
            await peer.ask(b"".join(_producer(name, number) for number, name in part), len(part))
            await peer.ask(b"".join(_send(number, 0, entry) for number, _ in part), len(part))

    await asyncio.gather(*map(work, peers))
    return peers


# --- administrators ---
class WebPeer(asyncio.Protocol):
    """A kept-alive connection with one request at a time."""

    def __init__(self) -> None:
        self._buffer = self._end = b""
        self._answered: asyncio.Future[bytes]
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._buffer.endswith(b"\r\n\r\n" + self._end) and not self._answered.done():
            self._answered.set_result(self._buffer)
            self._buffer = b""

    async def ask(self, method: str, path: str, status: int, body: bytes = b"") -> None:
        """A request without a body, and what is answered."""
        self._end = body
        self._answered = asyncio.get_running_loop().create_future()
        self.transport.write(
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode()
        )
        answer = await self._answered
        if not answer.startswith(b"HTTP/1.1 %d" % status):
            raise RuntimeError(f"{method} {path}: {answer[:200]!r}")


async def _administrate(
    broker: Standalone,
    method: str,
    names: Sequence[str],
    what: str = "",
    status: int = 204,
    body: bytes = b"",
) -> None:
    """One request for each topic, or for something of it."""
    left = iter(names)
    loop = asyncio.get_running_loop()
    peers = [
        (await loop.create_connection(WebPeer, "127.0.0.1", broker.web_port))[1] for _ in range(WEB_PEERS)
    ]

    async def work(peer: WebPeer) -> None:
        for name in left:
            await peer.ask(method, f"/admin/v2/persistent/{NAMESPACE}/{name}{what}", status, body)

    await asyncio.gather(*map(work, peers))
    for peer in peers:
        peer.transport.abort()


# --- the run ---
@dataclass
class Run:
    """Figures measured so far."""

    topics: int
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    results: list[Measurement | Figure] = field(default_factory=list)

    def note(self, what: str, figure: str, goal: str = "", waits: Waits | None = None) -> None:
        self.rows.append((what, figure, goal, "" if waits is None else str(waits)))
        print(
            f"{what}: {figure}{f' (goal {goal})' if goal else ''} {waits or ''}", file=sys.stderr, flush=True
        )

    def rate(self, what: str, count: int, seconds: float, goal: str = "", waits: Waits | None = None) -> None:
        self.note(what, f"{count / seconds:,.0f} a second ({count:,} in {seconds:.1f} s)", goal, waits)
        self.results.append(
            Measurement(work=f"{self.topics:,} topics: {what}", who=OURS, messages=count, seconds=seconds)
        )

    def figure(
        self, what: str, value: float, unit: str, goal: str = "", waits: Waits | None = None, more: str = ""
    ) -> None:
        self.note(what, f"{value:,.2f} {unit}{more}", goal, waits)
        self.results.append(Figure(work=f"{self.topics:,} topics: {what}", who=OURS, value=value, unit=unit))

    def table(self) -> str:
        lines = [
            "| what | measured | goal | a PING waited at most, the loop worked meanwhile |",
            "|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join(lines)


def run(folder: Path, topics: int) -> Run:
    """All steps, in a folder whose disk has 2 kB for each topic."""
    run = Run(topics)
    names = names_of(topics)
    broker = Standalone(folder)
    try:
        broker.start()
        run.figure("idle", broker.megabytes, "MB resident", "45 MB")
        broker.web(f"/admin/v2/namespaces/{NAMESPACE}", "PUT", {})
        run.figure("after the first request of the web", broker.megabytes, "MB resident")
        with probing(broker) as probe:
            _create(run, broker, probe, names)
        broker.kill()
        run.figure("kill -9 to ready", broker.start(), "s", "1.5 s")
        time.sleep(3)
        run.figure("resident after that", broker.megabytes, "MB", "150 MB")
        with probing(broker) as probe:
            _list(run, broker, probe)
            run.figure("resident after listing", broker.megabytes, "MB")
            _look(run, broker, probe, names)
            _load(run, broker, probe, names)
            _publish(run, broker, probe, names)
            _look_at_loaded(run, broker, probe)
            _trim(run, broker, probe, names)
            _limit(run, broker, probe)
            _delete(run, broker, probe, names)
        broker.kill()
        run.figure("kill -9 to ready, all deleted", broker.start(), "s")
        left = json.loads(broker.web("/admin/v2/namespaces/public/default/topics"))
        exists = NAMESPACE in json.loads(broker.web("/admin/v2/namespaces/public"))
        run.note("left of them", f"{len(left)} topics, namespace {'there' if exists else 'gone'}", "none")
    finally:
        broker.stop()
    return run


def _create(run: Run, broker: Standalone, probe: Probe, names: Sequence[str]) -> None:
    half = len(names) // 2
    probe.waits()
    began = time.perf_counter()
    asyncio.run(_administrate(broker, "PUT", names[:half]))
    run.rate("created by admin", half, time.perf_counter() - began, "3,000", probe.waits())
    run.figure("resident after that", broker.megabytes, "MB")
    began = time.perf_counter()
    asyncio.run(_publish_once(broker, names[half:]))
    run.rate("created by producers", len(names) - half, time.perf_counter() - began, "3,000", probe.waits())
    run.figure("resident after that", broker.megabytes, "MB")
    began = time.perf_counter()
    asyncio.run(_publish_once(broker, names[:half]))
    run.rate("first messages", half, time.perf_counter() - began, "", probe.waits())
    run.figure("resident after that", broker.megabytes, "MB")


def _list(run: Run, broker: Standalone, probe: Probe) -> None:
    probe.waits()
    began = time.perf_counter()
    listed = len(json.loads(broker.web(f"/admin/v2/persistent/{NAMESPACE}")))
    run.figure("listed by admin", time.perf_counter() - began, "s", "", probe.waits(), f", {listed:,} names")
    began = time.perf_counter()
    found = asyncio.run(_ask_for_list(broker))
    run.figure(
        "part of them listed by a client",
        time.perf_counter() - began,
        "s",
        "",
        probe.waits(),
        f", {found / 1e6:.1f} MB",
    )
    began = time.perf_counter()
    broker.web("/metrics")
    run.figure("/metrics, none loaded", time.perf_counter() - began, "s", "", probe.waits())


async def _ask_for_list(broker: Standalone) -> int:
    """The bytes of a client's list; what a pattern lets through must fit into a message."""
    reader, writer = await asyncio.open_connection(*broker.address, limit=1 << 28)
    hello = Command(type=Command.CONNECT)
    hello.connect.client_version = "many"
    hello.connect.protocol_version = 19
    wanted = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
    wanted.getTopicsOfNamespace.request_id = 1
    wanted.getTopicsOfNamespace.namespace = NAMESPACE
    wanted.getTopicsOfNamespace.topics_pattern = f"persistent://{NAMESPACE}/device-0.*"
    writer.write(encode_command(hello) + encode_command(wanted))
    while True:
        (total,) = struct.unpack(">I", await reader.readexactly(4))
        body = await reader.readexactly(total)
        if body[5] == Command.GET_TOPICS_OF_NAMESPACE_RESPONSE:
            writer.close()
            return total
        if body[5] == Command.ERROR:
            raise RuntimeError(str(Command.FromString(body[4:])))


def _look(run: Run, broker: Standalone, probe: Probe, names: Sequence[str]) -> None:
    """Load topics without clients by requests, and measure their memory."""
    some = names[-min(LOOKED_AT, len(names) // 2) :]
    before = broker.megabytes
    probe.waits()
    began = time.perf_counter()
    asyncio.run(_administrate(broker, "GET", some, "/subscriptions", 200, b"[]"))
    took, held = time.perf_counter() - began, broker.megabytes - before
    run.rate("looked at by admin", len(some), took, "", probe.waits())
    loaded = int(broker.store()["loadedTopics"])
    run.figure(
        "a loaded topic", held * 1e3 / max(loaded, 1), "kB", "2.5 kB", more=f", {loaded:,} are in memory"
    )
    _give_back(run, broker, probe, before)


def _give_back(run: Run, broker: Standalone, probe: Probe, before: float) -> None:
    _until_unloaded(broker)
    after = broker.megabytes
    more = f", {after - before:.0f} more than before"
    run.figure("resident after unloading", after, "MB", "", probe.waits(), more)
    time.sleep(IDLE_SECONDS)
    after = broker.megabytes
    more = f", {after - before:.0f} more than before"
    run.figure("resident when it is idle", after, "MB", "", probe.waits(), more)


def _load(run: Run, broker: Standalone, probe: Probe, names: Sequence[str]) -> None:
    """As many topics in memory as are opened within the minute for which an unused one stays there."""
    count = min(LOADED, len(names))

    async def hold() -> None:
        before = broker.megabytes
        peers = await _open_all(broker, names[:count])
        took = time.perf_counter() - began
        run.rate("loaded, a producer and a message each", count, took, "", probe.waits())
        held = (broker.megabytes - before) * 1e3 / count
        run.figure("a loaded topic with its producer", held, "kB")
        for peer in peers:
            peer.transport.abort()

    before = broker.megabytes
    began = time.perf_counter()
    asyncio.run(hold())
    time.sleep(2)
    run.figure("a topic that lost its producer", (broker.megabytes - before) * 1e3 / count, "kB")
    _give_back(run, broker, probe, before)


def _until_unloaded(broker: Standalone) -> None:
    deadline = time.monotonic() + UNLOADING_SECONDS_MAX
    while broker.store()["loadedTopics"] and time.monotonic() < deadline:
        time.sleep(2)


def _publish(run: Run, broker: Standalone, probe: Probe, names: Sequence[str]) -> None:
    some = random.Random(3).sample(names, min(ORDERED, len(names)))
    messages = len(some) * PER_ORDERED
    before = broker.store()
    probe.waits()
    seconds = asyncio.run(_publish_in_no_order(broker, some, messages))
    after = broker.store()
    syncs = after["syncs"] - before["syncs"]
    entries = after["appended_entries"] - before["appended_entries"]
    run.rate(f"published to {len(some):,} topics in no order", messages, seconds, "", probe.waits())
    run.figure("entries a sync meanwhile", entries / syncs, "entries")


def _look_at_loaded(run: Run, broker: Standalone, probe: Probe) -> None:
    probe.waits()
    began = time.perf_counter()
    broker.web("/metrics")
    run.figure(f"/metrics, {ORDERED:,} loaded", time.perf_counter() - began, "s", "", probe.waits())
    began = time.perf_counter()
    broker.web("/admin/v2/broker-stats/topics")
    run.figure(f"stats of {ORDERED:,} loaded", time.perf_counter() - began, "s", "", probe.waits())


def _trim(run: Run, broker: Standalone, probe: Probe, names: Sequence[str]) -> None:
    """Retention ends: every message goes, topics that are not in memory included."""
    disk = broker.store()["disk_bytes"]
    path = f"/admin/v2/namespaces/{NAMESPACE}/retention"
    probe.waits()
    began = time.perf_counter()
    broker.web(path, "POST", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    # Topics are trimmed in order. A request for statistics loads its topic: one request for each of the last.
    for name in sorted(names)[-1000:]:
        stats = json.loads(broker.web(f"/admin/v2/persistent/{NAMESPACE}/{name}/stats"))
        if not stats["storageSize"]:
            break
        time.sleep(2)
    run.rate("trimmed", len(names), time.perf_counter() - began, "", probe.waits())
    time.sleep(20)
    freed = disk - broker.store()["disk_bytes"]
    run.figure("disk freed", freed / 1e6, "MB", "", probe.waits(), f" of {disk / 1e6:.0f}")
    run.figure("resident after that", broker.megabytes, "MB")


def _limit(run: Run, broker: Standalone, probe: Probe) -> None:
    """A topic limit has all topics of the namespace counted at the next creation."""
    broker.web(f"/admin/v2/namespaces/{NAMESPACE}/maxTopicsPerNamespace", "POST", 10_000_000)
    probe.waits()
    began = time.perf_counter()
    broker.web(f"/admin/v2/persistent/{NAMESPACE}/one-more", "PUT", {})
    run.figure("created under a limit", time.perf_counter() - began, "s", "", probe.waits())


def _delete(run: Run, broker: Standalone, probe: Probe, names: Sequence[str]) -> None:
    some = names[: min(50_000, len(names) // 4)]
    probe.waits()
    began = time.perf_counter()
    asyncio.run(_administrate(broker, "DELETE", some))
    run.rate("deleted by admin", len(some), time.perf_counter() - began, "", probe.waits())
    began = time.perf_counter()
    broker.web(f"/admin/v2/namespaces/{NAMESPACE}?force=true", "DELETE")
    left = len(names) - len(some)
    run.rate("deleted with their namespace", left, time.perf_counter() - began, "", probe.waits())
    run.figure("resident after that", broker.megabytes, "MB")


def measure(folder: Path, _runs: int) -> list[Measurement | Figure]:
    """For ``make bench``: once, for it takes some minutes."""
    return run(folder, 100_000).results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the broker's data goes, and is removed from")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with brokers.work_folder(given.folder) as folder:
        text = run(folder, given.topics).table()
    print(text)
    if given.output:
        given.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
