"""Millions of delayed messages on one subscription: memory, recovery after kill -9, and lateness.

A broker core over a real store keeps entries that are due at random times of ten hours (``--span-seconds``),
and a ready one behind them. A consumer connects, and the process kills itself once all are known to be
delayed. Another one opens the store, loads the topic, and measures the time until the ready message arrives,
and then how late the messages of ten seconds are, and the longest call into the broker.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import ack_holes
from benchmarks.harness import OURS, Figure, Measurement, collect, emit, python, resident_megabytes

TOPIC = "persistent://public/default/delayed"
FIRST_MS = 2_000_000_000_000
"""The broker's wall clock is set: the first message is due at ``FIRST_MS``."""
READY = 1
RUN = 500
WORK = "delayed messages"


class Peer(ack_holes.Peer):
    """Client that notes when messages arrive: their delivery times are their payloads."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.late_ms: list[int] = []
        self.got_ready = False
        self.answers = 0
        self._unparsed = b""

    def write(self, data: Any) -> None:
        self.answers += 1
        self._unparsed += bytes(data)
        at = 0
        while (end := at + 4 + int.from_bytes(self._unparsed[at : at + 4], "big")) <= len(self._unparsed):
            at = end
            due_ms = int.from_bytes(self._unparsed[at - 8 : at], "big")
            if due_ms == READY:
                self.got_ready = True
            elif FIRST_MS <= due_ms < 2 * FIRST_MS:
                self.late_ms.append(self._bench.now_ms - due_ms)
        self._unparsed = self._unparsed[at:]


class Bench:
    """Broker core on a store, whose wall clock is at ``now_ms`` when it starts."""

    def __init__(self, folder: Path, now_ms: int) -> None:
        from geminga.broker.core import Broker
        from geminga.broker.settings import BrokerSettings
        from geminga.ids import TopicName
        from geminga.ledger.store import FileStore

        self._offset_ms = now_ms - time.monotonic() * 1000
        self.store = FileStore.open(folder / "store")
        settings = BrokerSettings(
            data_dir=folder / "store", unacked_messages_per_consumer_max=0, keepalive_seconds=3600.0
        )
        self.broker = Broker(self.store, settings, now=time.monotonic(), now_ms=self.now_ms)
        self.name = TopicName.parse(TOPIC)
        self.longest_ms = 0.0
        """CPU of the longest call into the broker."""

    @property
    def now_ms(self) -> int:
        return int(self._offset_ms + time.monotonic() * 1000)

    def set_clock(self, now_ms: int) -> None:
        self._offset_ms += now_ms - self.now_ms

    @property
    def topic(self) -> Any:
        found = self.broker.topics.find(self.name)
        assert found is not None
        return found

    @property
    def delayed(self) -> int:
        return self.topic.subscriptions["s"].dispatcher.delayed_size

    def turn(self) -> None:
        for act in (self.broker.poll, self.broker.turn, self.broker.tick):
            began = time.thread_time()
            act(time.monotonic(), self.now_ms)
            self.longest_ms = max(self.longest_ms, (time.thread_time() - began) * 1000)

    def drain(self) -> None:
        while self.store.stats().pending_writes:
            self.turn()
            time.sleep(0.001)
        self.turn()

    def fill(self, messages: int, span_ms: int) -> None:
        """Store the messages, and the ready one behind them."""
        from geminga.wire.metadata import build_entry
        from geminga.wire.proto import pulsar_wire_pb2 as pb

        self.broker.topics.make(self.name)
        topic, draw = self.topic, random.Random(1).randrange
        topic.subscription("s", offset=0)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=FIRST_MS - 1)
        ready = build_entry(metadata.SerializeToString(), READY.to_bytes(8, "big"))

        def store(entries: list[bytes]) -> None:
            def done(error: Any) -> None:
                assert error is None, error
                topic.ledger.confirmed = offset + len(entries)

            if not topic.ledger.has_room(RUN, 100 * RUN, 1, topic.limits):
                topic.ledger.close_current(1)
                topic.ledger.next_position(1, topic.limits)
            sizes = list(map(len, entries))
            offset = topic.ledger.append_run(entries, sizes, sum(sizes), now_ms=1, done=done)

        for first in range(0, messages, RUN):
            entries = []
            for _ in range(min(RUN, messages - first)):
                due_ms = metadata.deliver_at_time = FIRST_MS + draw(span_ms)
                entries.append(build_entry(metadata.SerializeToString(), due_ms.to_bytes(8, "big")))
            store(entries)
            if first % (40 * RUN) == 0:
                self.drain()
        store([ready])
        self.drain()

    def consume(self, kind: str) -> Peer:
        from geminga.wire.frames import encode_command
        from geminga.wire.proto import pulsar_wire_pb2 as pb

        peer = Peer(self)
        session = self.broker.open_session(peer, "/127.0.0.1:1", time.monotonic())  # type: ignore[arg-type]
        connect = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        connect.connect.client_version, connect.connect.protocol_version = "bench", 21
        subscribe = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        body = subscribe.subscribe
        body.topic, body.subscription, body.subType = TOPIC, "s", pb.CommandSubscribe.SubType.Value(kind)
        body.consumer_id, body.request_id = 1, 1
        flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, 1_000_000
        for command in (connect, subscribe, flow):
            answers = peer.answers
            session.receive(encode_command(command), time.monotonic(), self.now_ms)
            while command is not flow and peer.answers == answers:
                self.turn()
        return peer


def make(folder: Path, messages: int, span_ms: int, kind: str) -> None:
    """The first process: it ends by kill -9."""
    bench = Bench(folder, FIRST_MS - 3_600_000)
    bench.fill(messages, span_ms)
    before, began, used = resident_megabytes(os.getpid()), time.perf_counter(), time.process_time()
    peer = bench.consume(kind)
    while bench.delayed < messages or not peer.got_ready:
        bench.turn()
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    bench.drain()
    grown = resident_megabytes(os.getpid()) - before
    emit(
        Measurement(
            work=f"{WORK}, read first", who=OURS, messages=messages, seconds=seconds, cpu_seconds=cpu
        ),
        Figure(work=f"{WORK}: memory, all read", who=OURS, value=grown, unit="MB"),
    )
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def recover(folder: Path, messages: int, kind: str) -> None:
    """The second process: messages of ten seconds are delivered."""
    began, used = time.perf_counter(), time.process_time()
    bench = Bench(folder, FIRST_MS - 60_000)
    opened, before = time.perf_counter(), resident_megabytes(os.getpid())
    bench.topic  # noqa: B018 - loads it
    loaded = time.perf_counter()
    peer = bench.consume(kind)
    while not peer.got_ready:
        bench.turn()
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    assert bench.delayed == messages, bench.delayed
    bench.set_clock(FIRST_MS - 11_000)  # a clock that was set is noticed within 10 s
    used, bench.longest_ms = time.process_time(), 0.0
    while bench.now_ms < FIRST_MS + 10_000:
        bench.turn()
        time.sleep(max(0.0, min(0.001, bench.broker.deadline - time.monotonic())))
    late = sorted(peer.late_ms)
    cpu_due, grown = time.process_time() - used, resident_megabytes(os.getpid()) - before
    emit(
        Figure(work=f"{WORK}: opening the store after kill -9", who=OURS, value=opened - began, unit="s"),
        Figure(work=f"{WORK}: loading the topic after kill -9", who=OURS, value=loaded - opened, unit="s"),
        Figure(work=f"{WORK}: recovery until the ready message", who=OURS, value=seconds, unit="s"),
        Figure(work=f"{WORK}: recovery, CPU", who=OURS, value=cpu, unit="s of CPU"),
        Figure(work=f"{WORK}: memory after recovery", who=OURS, value=grown, unit="MB"),
        Figure(work=f"{WORK}: late, median", who=OURS, value=late[len(late) // 2], unit="ms"),
        Figure(work=f"{WORK}: late, 99 %", who=OURS, value=late[len(late) * 99 // 100], unit="ms"),
        Figure(work=f"{WORK}: longest call, CPU", who=OURS, value=bench.longest_ms, unit="ms"),
        Measurement(
            work=f"{WORK}, delivered in 10 s", who=OURS, messages=len(late), cpu_seconds=cpu_due,
            seconds=10.0,
        ),
    )  # fmt: skip


def measure(given: argparse.Namespace) -> list[Measurement | Figure]:
    """Run both processes."""
    results: list[Measurement | Figure] = []
    options = {"folder": given.folder, "messages": given.messages, "kind": given.kind}
    options["span-seconds"] = given.span_seconds
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = python("benchmarks.delayed", "make", *arguments)
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{' '.join(command)} exited with {made.returncode}")
    for line in made.stdout.splitlines():
        row = json.loads(line)
        results.append(Measurement(**row) if row.pop("kind") == "Measurement" else Figure(**row))
    return results + collect(python("benchmarks.delayed", "recover", *arguments), timeout_seconds=900)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("make", "recover", "all"), nargs="?", default="all")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--span-seconds", type=float, default=36_000.0, help="0.001: all at one moment")
    parser.add_argument("--kind", choices=("Shared", "Key_Shared"), default="Shared")
    given = parser.parse_args()
    if given.action == "all":
        from benchmarks.harness import table

        print(table(measure(given)))
    elif given.action == "make":
        make(given.folder, given.messages, max(1, round(1000 * given.span_seconds)), given.kind)
    else:
        recover(given.folder, given.messages, given.kind)


if __name__ == "__main__":
    main()
