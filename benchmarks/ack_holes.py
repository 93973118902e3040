"""Millions of ack holes in one cursor: what they cost to make, to keep, and to have again after kill -9.

A broker core over a real store keeps twice as many entries as there will be holes; a Shared consumer
acknowledges every other one, first in lists of 100 and then one by one, as frames of the protocol. Then the
process kills itself, and another one opens the store, loads the topic, and counts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS, Figure, Measurement, collect, emit, python, resident_megabytes

TOPIC = "persistent://public/default/holes"
LIST = 100
MAKING, MEMORY, DISK = "ack holes: acknowledging", "ack holes: memory", "ack holes: disk after a snapshot"
OPENING, LOADING, TURN = (
    "ack holes: opening the store after kill -9",
    "ack holes: loading the cursor after kill -9",
    "ack holes: longest turn of the loop while acknowledging",
)


class Peer:
    """A client that takes no notice of what it is sent."""

    writable = True

    def write(self, data: Any) -> None:
        return

    def close(self) -> None:
        raise RuntimeError("the broker has closed the connection")

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


class Bench:
    """A broker core on a store, and one session."""

    def __init__(self, folder: Path) -> None:
        from geminga.broker.core import Broker
        from geminga.broker.settings import BrokerSettings
        from geminga.ids import TopicName
        from geminga.ledger.store import FileStore

        begin = time.process_time()
        self.store = FileStore.open(folder / "store")
        self.opening_seconds = time.process_time() - begin
        settings = BrokerSettings(data_dir=folder / "store", unacked_messages_per_consumer_max=0)
        self.broker = Broker(self.store, settings, now=time.monotonic(), now_ms=int(time.time() * 1000))
        self.name = TopicName.parse(TOPIC)

    @property
    def topic(self) -> Any:
        found = self.broker.topics.find(self.name)
        assert found is not None
        return found

    def poll(self) -> None:
        self.broker.poll(time.monotonic(), int(time.time() * 1000))

    def drain(self) -> None:
        while self.store.stats().pending_writes:
            self.poll()
            time.sleep(0.01)
        self.poll()

    def fill(self, entries: int) -> None:
        """Entries of a small message each, in ledgers of the usual size."""
        from geminga.wire.metadata import build_entry
        from geminga.wire.proto import pulsar_wire_pb2 as pb

        topic = self.broker.topics.make(self.name)
        self.broker.topics.find(self.name)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1_800_000_000_000)
        entry = build_entry(metadata.SerializeToString(), b"x")
        ledger, limits = topic.ledger, topic.limits

        def done(error: Any) -> None:
            assert error is None
            ledger.confirmed += 1

        for number in range(entries):
            ledger.append(entry, 1, now_ms=1, limits=limits, done=done)
            if number % 20_000 == 0:
                self.drain()
        self.drain()
        topic.subscription("s", offset=0)
        self.drain()

    def session(self) -> Any:
        from geminga.wire.frames import encode_command
        from geminga.wire.proto import pulsar_wire_pb2 as pb

        session = self.broker.open_session(Peer(), "/127.0.0.1:1", time.monotonic())  # type: ignore[arg-type]
        connect = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        connect.connect.client_version, connect.connect.protocol_version = "bench", 21
        subscribe = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        body = subscribe.subscribe
        body.topic, body.subscription, body.subType = TOPIC, "s", pb.CommandSubscribe.Shared
        body.consumer_id, body.request_id = 1, 1
        for command in (connect, subscribe):
            session.receive(encode_command(command), time.monotonic(), int(time.time() * 1000))
        self.drain()
        return session


def ack_frames(topic: Any, offsets: range, ids_per_frame: int) -> Iterator[bytes]:
    from geminga.wire.frames import encode_command
    from geminga.wire.proto import pulsar_wire_pb2 as pb

    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, pb.CommandAck.Individual
    for first in range(0, len(offsets), ids_per_frame):
        del command.ack.message_id[:]
        for offset in offsets[first : first + ids_per_frame]:
            ledger_id, entry_id = topic.ledger.position(offset)
            command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        yield encode_command(command)


def acknowledge(
    bench: Bench, session: Any, offsets: range, ids_per_frame: int, frames_per_read: int
) -> tuple[float, float, float]:
    """Wall and CPU seconds for the broker alone, and the longest turn; the frames are made beforehand."""
    wall = cpu = longest = 0.0
    slices = 50
    for part in range(slices):
        low, high = len(offsets) * part // slices, len(offsets) * (part + 1) // slices
        frames = list(ack_frames(bench.topic, offsets[low:high], ids_per_frame))
        frames = [
            b"".join(frames[at : at + frames_per_read]) for at in range(0, len(frames), frames_per_read)
        ]
        bench.drain()
        started, used = time.perf_counter(), time.process_time()
        for number, frame in enumerate(frames):
            begin = time.perf_counter()
            session.receive(frame, begin, 1_800_000_000_000)
            if number % 64 == 0:
                bench.poll()
            longest = max(longest, time.perf_counter() - begin)
        bench.drain()
        wall += time.perf_counter() - started
        cpu += time.process_time() - used
    return wall, cpu, longest


def make_holes(folder: Path, holes: int) -> None:
    """The first process: it ends by kill -9."""
    bench = Bench(folder)
    bench.fill(2 * holes)
    session = bench.session()
    cursor = bench.topic.subscriptions["s"].cursor
    singles = min(200_000, holes // 10)
    longest = 0.0
    low, middle = 2 * (holes - 2 * singles), 2 * (holes - singles)
    ways = (
        (f"in lists of {LIST}", range(1, low, 2), LIST, 1),
        ("one by one, 64 in a read", range(low + 1, middle, 2), 1, 64),
        ("one by one, each in its own read", range(middle + 1, 2 * holes, 2), 1, 1),
    )
    for way, offsets, ids, frames in ways:
        wall, cpu, turn = acknowledge(bench, session, offsets, ids, frames)
        longest = max(longest, turn)
        work = f"{MAKING}, {way}"
        emit(Measurement(work=work, who=OURS, messages=len(offsets), seconds=wall, cpu_seconds=cpu))
    emit(
        Figure(work=DISK, who=OURS, value=len(cursor.take_snapshot()) / holes, unit="B a hole"),
        Figure(work=TURN, who=OURS, value=longest * 1000, unit="ms"),
    )
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def load_again(folder: Path, holes: int) -> None:
    """The second process: the same holes, and nothing else, are there."""
    bench = Bench(folder)
    before = resident_megabytes(os.getpid())
    begin, wall = time.process_time(), time.perf_counter()
    topic = bench.topic
    loading, turn = time.process_time() - begin, time.perf_counter() - wall
    grown = resident_megabytes(os.getpid()) - before
    subscription = topic.subscriptions["s"]
    cursor = subscription.cursor
    begin = time.process_time()
    tally = subscription.backlog_tally()
    counting = time.process_time() - begin
    assert len(cursor.holes) == holes, f"{len(cursor.holes)} holes"
    assert cursor.mark == 0
    assert subscription.backlog == holes
    assert tally == (holes, holes * topic.ledger.size_bytes // (2 * holes)), tally
    for start, stop in cursor.holes.ranges(1000):
        assert start % 2
        assert stop == start + 1
    emit(
        Figure(work=OPENING, who=OURS, value=bench.opening_seconds * 1000, unit="ms of CPU"),
        Figure(work=LOADING, who=OURS, value=loading * 1000, unit="ms of CPU"),
        Figure(work=f"{LOADING}, the turn", who=OURS, value=turn * 1000, unit="ms"),
        Figure(work=MEMORY, who=OURS, value=grown * 1e6 / holes, unit="B a hole, with all of the topic"),
        Figure(work="ack holes: the first exact backlog", who=OURS, value=counting * 1000, unit="ms of CPU"),
    )


def measure(folder: Path, runs: int, holes: int = 1_000_000) -> list[Measurement | Figure]:
    """Both processes, ``runs`` times."""
    results: list[Measurement | Figure] = []
    for run in range(runs):
        place = folder / f"holes-{run}"
        place.mkdir()
        arguments = ("--folder", str(place), "--holes", str(holes))
        command = python("benchmarks.ack_holes", "make", *arguments)
        made = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
        if made.returncode != -signal.SIGKILL:
            raise RuntimeError(f"{' '.join(command)} exited with {made.returncode}")
        for line in made.stdout.splitlines():
            row = json.loads(line)
            results.append(Measurement(**row) if row.pop("kind") == "Measurement" else Figure(**row))
        results += collect(python("benchmarks.ack_holes", "load", *arguments), timeout_seconds=300)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("make", "load", "all"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--holes", type=int, default=1_000_000)
    given = parser.parse_args()
    if given.action == "all":
        from benchmarks.harness import table

        print(table(measure(given.folder, 1, given.holes)))
    elif given.action == "make":
        make_holes(given.folder, given.holes)
    else:
        load_again(given.folder, given.holes)


if __name__ == "__main__":
    main()
