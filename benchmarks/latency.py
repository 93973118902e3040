"""Latency of publishing and of delivery under load, beside other brokers: ``python -m benchmarks.latency``.

A generator sends messages of 100 bytes at times that are fixed before, and counts each from the time at which
it was due: a broker that pauses for 30 ms delays all messages that were due meanwhile, and they all count.
Published is a message with its receipt, delivered when a consumer has it. First the generator finds the
highest rate of the broker with a window of messages without receipts, then it sends 25, 50 and 75 % of it:
single messages, in bursts every millisecond; and batches as a client makes them, each 5 ms or 1,000 messages.
Geminga is measured last, and at the rates of Apache Pulsar's rows too, as shares of different highest rates
are different loads. The generator is one thread, in a process of its own. ``--publish`` writes the figures
from which ``make docs`` draws the page.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import brokers, figures, output
from benchmarks.harness import python
from benchmarks.load import PONG, Peer, Receiver, _frame, _send_command, batch_entry
from geminga.tuning.measuring.host import machine
from geminga.wire.proto import pulsar_wire_pb2 as pb

PUBLISHED = Path(__file__).parent.parent / "docs/proof/latency.json"
SHARES = (0.25, 0.5, 0.75)
SIZE = 100
BURST_SECONDS = 0.001
BATCH_SECONDS, BATCH_MESSAGES = 0.005, 1000
PERMITS = 100_000
POINTS = (50.0, 99.0, 99.9, 99.99)
BROKERS: dict[str, Any] = {"apache": brokers.apache, "lite": brokers.lite, "geminga": brokers.geminga}


class Latencies:
    """Times of frames that were due and have not come, in order, and the latencies of those that have."""

    def __init__(self) -> None:
        self._due: deque[list[float]] = deque()
        self.found: list[tuple[float, int]] = []
        """Seconds, and the number of frames that took them."""
        self.count = 0

    @property
    def missing(self) -> bool:
        return bool(self._due)

    def expect(self, due: float, frames: int) -> None:
        """Add frames that are due at a time of `time.perf_counter`."""
        self._due.append([due, frames])

    def came(self, now: float, frames: int) -> None:
        """Note that the oldest frames have come."""
        self.count += frames
        while frames:
            first = self._due[0]
            taken = min(frames, int(first[1]))
            self.found.append((now - first[0], taken))
            first[1] -= taken
            frames -= taken
            if not first[1]:
                self._due.popleft()

    def percentiles(self, spread: float) -> dict[str, float]:
        """Return percentiles in ms; the messages of a frame were due over ``spread`` seconds before it."""
        steps = 20 if spread else 1
        weighted = sorted(
            (seconds + spread * (step + 0.5) / steps if spread else seconds, frames)
            for seconds, frames in self.found
            for step in range(steps)
        )
        total, passed, result = sum(frames for _, frames in weighted), 0, {}
        points = deque(POINTS)
        for seconds, frames in weighted:
            passed += frames
            while points and passed >= total * points[0] / 100:
                result[f"p{points.popleft():g}"] = seconds * 1000
        return result


class Generator:
    """A producer and a consumer of one topic, each with its own connection, served by one thread.

    Without ``delivery`` there is no consumer: pulsar-lite delivers more messages than were sent.
    """

    def __init__(self, address: tuple[str, int], topic: str, messages: int, *, delivery: bool) -> None:
        self._messages = messages
        self._producer = Peer(address, topic)
        self._consumer = Receiver(address, topic, "latency") if delivery else None
        self._command, self._entry = _send_command(0, messages), batch_entry(messages, SIZE)
        self._out: deque[memoryview] = deque()
        self._unread = b""
        self._unacked = self._permits = 0
        self.published, self.delivered = Latencies(), Latencies()
        if self._consumer is not None:
            self._give_permits(self._consumer, PERMITS)

    def _give_permits(self, consumer: Receiver, count: int) -> None:
        flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, count
        consumer.socket.sendall(_frame(flow))

    def _next_frame(self) -> bytes:
        frame = _frame(self._command, self._entry)
        self._command.send.sequence_id += self._messages
        return frame

    def send(self, due: float, frames: int) -> None:
        """Queue frames that are due now."""
        self._out.append(memoryview(b"".join(self._next_frame() for _ in range(frames))))
        self.published.expect(due, frames)
        if self._consumer is not None:
            self.delivered.expect(due, frames)

    def serve(self, seconds: float) -> None:
        """Write queued frames and read receipts and messages, for at most ``seconds`` until the next."""
        producer = self._producer.socket
        sockets = [producer] if self._consumer is None else [producer, self._consumer.socket]
        readable, _, _ = select.select(sockets, [producer] if self._out else [], [], max(0.0, seconds))
        while self._out:
            try:
                written = producer.send(self._out[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if written == len(self._out[0]):
                self._out.popleft()
            else:
                self._out[0] = self._out[0][written:]
        if producer in readable:
            self.published.came(*self._producer._receipts())
        if self._consumer is not None and self._consumer.socket in readable:
            self._read_messages(self._consumer)

    def _read_messages(self, consumer: Receiver) -> None:
        data = consumer.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker closed the consumer's connection")
        now = time.perf_counter()
        buffer = self._unread + data if self._unread else data
        offset, limit, count, last = 0, len(buffer), 0, -1
        while limit - offset >= 10:
            total = int.from_bytes(buffer[offset : offset + 4], "big") + 4
            if limit - offset < total:
                break
            kind = buffer[offset + 9]
            if kind == pb.BaseCommand.MESSAGE:
                count, last = count + 1, offset
            elif kind == pb.BaseCommand.PING:
                consumer.socket.sendall(PONG)
            offset += total
        self._unread = buffer[offset:]
        if not count:
            return
        self.delivered.came(now, count)
        self._unacked += count * self._messages
        if self._unacked >= PERMITS // 2:
            size = int.from_bytes(buffer[last + 4 : last + 8], "big")
            command = pb.BaseCommand.FromString(buffer[last + 8 : last + 8 + size])
            ack = pb.BaseCommand(type=pb.BaseCommand.ACK)
            ack.ack.consumer_id, ack.ack.ack_type = 1, pb.CommandAck.Cumulative
            ack.ack.message_id.add().CopyFrom(command.message.message_id)
            consumer.socket.sendall(_frame(ack))
            self._give_permits(consumer, self._unacked)
            self._unacked = 0

    def close(self) -> None:
        self._producer.close()
        if self._consumer is not None:
            self._consumer.close()

    def _done(self) -> int:
        """Return the number of frames that were published, and delivered if there is a consumer."""
        published = self.published.count
        return published if self._consumer is None else min(published, self.delivered.count)

    def saturate(self, seconds: float, window: int) -> float:
        """Send with a window of frames without receipts; return messages a second."""
        chunk = max(1, window // 20)
        sent, start = self._done(), time.perf_counter()
        counted_from, counted = start + seconds / 4, -1
        while (now := time.perf_counter()) < start + seconds or self._done() <= counted:
            if counted < 0 and now >= counted_from:
                counted_from, counted = now, self._done()
            while sent - self._done() + chunk <= window:
                self.send(now, chunk)
                sent += chunk
            self.serve(0.1)
        rate = (self._done() - counted) / (time.perf_counter() - counted_from)
        self._finish(30)
        return rate * self._messages

    def keep_rate(self, seconds: float, interval: float, frames: int) -> None:
        """Send a number of frames at every interval, for the given time."""
        due = time.perf_counter() + interval
        end = due + seconds
        while due < end:
            now = time.perf_counter()
            while due <= now and due < end:
                self.send(due, frames)
                due += interval
            self.serve(due - time.perf_counter())
        self._finish(60)

    def _finish(self, seconds: float) -> None:
        """Wait for all receipts and messages; raise `TimeoutError` if they do not come."""
        end = time.perf_counter() + seconds
        while self.published.missing or self.delivered.missing:
            if time.perf_counter() > end:
                raise TimeoutError(f"receipts or messages are missing after {seconds} s")
            self.serve(0.1)


def measure_here(
    port: int, mode: str, seconds: float, warm: float, *, delivery: bool, peers: Sequence[Sequence[float]]
) -> list[dict[str, Any]]:
    """Find the highest rate of a broker and measure latencies at shares of it, and at those of a peer.

    ``peers`` has the peer's shares and rates.
    """
    address, messages = ("127.0.0.1", port), 1 if mode == "single" else BATCH_MESSAGES
    window = 2000 if mode == "single" else 32

    def topic(name: str) -> str:
        return f"persistent://public/default/latency-{mode}-{name}"

    generator = Generator(address, topic("saturated"), messages, delivery=delivery)
    generator.saturate(warm, window)
    highest = generator.saturate(max(1.0, seconds / 3), window)
    generator.close()
    rows: list[dict[str, Any]] = []
    loads = [(share, highest * share, False) for share in SHARES]
    loads += [(share, rate, True) for share, rate in peers]
    for share, rate, is_peers in loads:
        if mode == "single":
            interval, messages = BURST_SECONDS, 1
            frames = max(1, round(rate * interval))
            interval = frames / rate
        else:
            messages = min(BATCH_MESSAGES, max(2, round(rate * BATCH_SECONDS)))
            interval, frames = messages / rate, 1
        name = topic(f"{share}-{is_peers}")
        generator = Generator(address, name, messages, delivery=delivery)
        generator.keep_rate(1.0, interval, frames)
        generator.published, generator.delivered = Latencies(), Latencies()
        generator.keep_rate(seconds, interval, frames)
        generator.close()
        spread = 0.0 if mode == "single" else interval
        rows.append(
            {
                "mode": mode, "share": share, "rate": rate, "is_peers_rate": is_peers,
                "published": generator.published.percentiles(spread),
                "delivered": generator.delivered.percentiles(spread),
            }
        )  # fmt: skip
    return rows


def disk(folder: Path, seconds: float) -> dict[str, float]:
    """Return percentiles of a bare write of 4 KiB and fdatasync, one after another."""
    found, block, path = Latencies(), bytes(4096), folder / "disk"
    with path.open("wb", buffering=0) as file:
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            found.expect(start, 1)
            file.write(block)
            os.fdatasync(file.fileno())
            found.came(time.perf_counter(), 1)
    path.unlink()
    return found.percentiles(0.0)


def measure(names: list[str], seconds: float, warm: float) -> dict[str, Any]:
    """Measure the brokers, each alone on the machine."""
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    loads = [os.getloadavg()[0]]
    with brokers.work_folder() as folder:
        bare = disk(folder, seconds)
    for name in names:
        # A folder for each: together they would write more than many a disk has.
        with brokers.work_folder() as folder, BROKERS[name](folder) as broker:
            for mode in ("single", "batch"):
                peers = [
                    (row["share"], row["rate"])
                    for row in rows
                    if (row["who"], row["mode"]) == (brokers.APACHE, mode) and name == "geminga"
                ]
                command = python(
                    "benchmarks.latency", "--one", str(broker.address[1]), mode, str(seconds), str(warm),
                    broker.who, json.dumps(peers),
                )  # fmt: skip
                run = subprocess.run(
                    command, stdout=subprocess.PIPE, text=True, timeout=300 + 12 * seconds, check=False
                )
                loads.append(os.getloadavg()[0])
                if run.returncode:
                    failed.append(f"{broker.who}, {mode}: exit status {run.returncode}")
                    continue
                rows += [{"who": broker.who, **row} for row in json.loads(run.stdout)]
                print(run.stdout, file=sys.stderr, flush=True)
    return {
        "machine": machine(), "load": [round(min(loads), 1), round(max(loads), 1)], "seconds": seconds,
        "disk": bare, "rows": rows, "failed": failed,
    }  # fmt: skip


def main() -> int:
    """Run what the command line names and print the table; return 1 if a broker failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=tuple(BROKERS), action="append", help="broker; may be repeated")
    parser.add_argument("--seconds", type=float, help="time at each rate [default: 20; 2 if quick]")
    parser.add_argument("--quick", action="store_true", help="2 s at each rate, 2 s of warm-up")
    output.add_options(parser, PUBLISHED)
    given = parser.parse_args()
    if given.one:
        port, mode, seconds, warm, who, peers = given.one
        found = measure_here(
            int(port), mode, float(seconds), float(warm),
            delivery=who != brokers.LITE, peers=json.loads(peers),
        )  # fmt: skip
        print(json.dumps(found))
        return 0
    values = measure(
        given.only or list(BROKERS),
        given.seconds or (2.0 if given.quick else 20.0),
        2.0 if given.quick else 10.0,
    )
    table = figures.latency(values)
    output.show(given, table)
    if given.publish:
        output.publish(PUBLISHED, values)
    return bool(values["failed"])


if __name__ == "__main__":
    sys.exit(main())
