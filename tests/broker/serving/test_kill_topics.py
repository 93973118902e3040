"""``kill -9`` while topics are created, read ahead, published to and fenced: no receipted message is lost.

The broker's store makes a checkpoint every few writes and rebuilds the Bloom filter over its catalog all the
time, so that each start looks up topics of the starts before in the filter and by the reading threads.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually, until_some_moment

from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.wire.frames import FrameDecoder, encode_command, encode_send
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

Command = pb.BaseCommand
TOPICS = [f"persistent://public/default/t{number}" for number in range(60)]
NAMES = ("one", "two")
LIVES, ROUNDS = 3, 50
PROGRAM = """
import asyncio, sys
from geminga.broker.serving.server import BrokerServer
from geminga.broker.settings import BrokerSettings
from geminga.ledger import bloom_filter_builder, key_bloom_filter
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore

key_bloom_filter.DENIED_MIN, key_bloom_filter._STEMS_FIRST, bloom_filter_builder.PAGE_NAMES = 5, 64, 20

async def main(folder, deduplication):
    settings = StoreSettings(checkpoint_records=150, cache_bytes=20_000)
    server = BrokerServer(
        BrokerSettings(memory=True, port=0, web_port=None, deduplication=deduplication),
        store=lambda wakeup: FileStore.open(folder, settings=settings, wakeup=wakeup),
    )
    await server.start()
    print(server.settings.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], sys.argv[2] == "True"))
"""


def message(topic: str, name: str, sequence_id: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1)
    return build_entry(metadata.SerializeToString(), f"{topic} {name} {sequence_id}".encode())


class Publisher:
    """Producers of one name on many topics; knows what it has sent, and what of that is receipted."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.chance = random.Random(seed)
        self.next = dict.fromkeys(TOPICS, 0)
        """The first that is not receipted."""
        self.fenced = 0
        self.rounds = 0

    def start(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.decoder = FrameDecoder()
        self.frames: list[Any] = []
        self.send("connect", client_version="kill-test", protocol_version=20)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def send(self, body: str, **fields: Any) -> None:
        command = Command(type=Command.DESCRIPTOR.fields_by_name[body].number)  # type: ignore[arg-type]
        message = getattr(command, body)
        message.SetInParent()
        for name, value in fields.items():
            setattr(message, name, value)
        self.socket.sendall(encode_command(command))

    def expect(self, *kinds: int) -> Any:
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if frame.type in kinds:
                    return frame
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker has gone")
            self.frames += self.decoder.feed(data)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            self.expect(Command.CONNECTED)
            number = 0
            while True:
                number += 1
                # Some topics are wanted by both at once.
                topics = TOPICS if self.chance.random() < 0.6 else TOPICS[:2]
                self._publish(self.chance.choice(topics), number)
                self.rounds += 1

    def _publish(self, topic: str, number: int) -> None:
        mode = pb.ExclusiveWithFencing if self.chance.random() < 0.15 else pb.Shared
        self.send(
            "producer", topic=topic, producer_id=number, request_id=number, producer_name=self.name,
            user_provided_producer_name=True, producer_access_mode=mode,
        )  # fmt: skip
        answer = self.expect(Command.PRODUCER_SUCCESS, Command.ERROR)
        if answer.type == Command.ERROR:
            return  # the other one has the topic for itself
        first = self.next[topic]
        stored = answer.command.producer_success.last_sequence_id
        assert stored == -1 or stored >= first - 1, "what was receipted is not known any more"
        count = self.chance.randrange(1, 30)
        run = []
        for sequence_id in range(first, first + count):
            entry = message(topic, self.name, sequence_id)
            run.append(encode_send(number, sequence_id, 1, None, len(entry)) + entry)
        self.socket.sendall(b"".join(run))
        for sequence_id in range(first, first + count):
            frame = self.expect(Command.SEND_RECEIPT, Command.CLOSE_PRODUCER)
            while frame.type == Command.SEND_RECEIPT and frame.command.send_receipt.producer_id != number:
                frame = self.expect(Command.SEND_RECEIPT, Command.CLOSE_PRODUCER)  # of one that was fenced
            if frame.type != Command.SEND_RECEIPT:
                self.fenced += 1
                return
            assert frame.command.send_receipt.sequence_id == sequence_id
            self.next[topic] = sequence_id + 1
        self.send("close_producer", producer_id=number, request_id=number)
        self.expect(Command.SUCCESS)

    def end(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.socket.close()


@pytest.mark.parametrize("deduplication", [True, False])
def test_topics_survive_kills(tmp_path: Path, deduplication: bool) -> None:
    folder, chance = str(tmp_path / "store"), random.Random(7)
    publishers = [Publisher(name, seed) for seed, name in enumerate(NAMES)]
    for _ in range(LIVES):
        broker = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, folder, str(deduplication)], stdout=subprocess.PIPE
        )
        try:
            assert broker.stdout is not None
            port = int(broker.stdout.readline())
            for publisher in publishers:
                publisher.start(port)
            enough = [publisher.rounds + ROUNDS for publisher in publishers]
            eventually(
                lambda enough=enough: (
                    not any(each.rounds < rounds for each, rounds in zip(publishers, enough, strict=True))
                )
            )
            until_some_moment(chance, 0.1)
        finally:
            broker.send_signal(signal.SIGKILL)
            broker.wait()
            broker.stdout.close()
        for publisher in publishers:
            publisher.end()
    assert sum(publisher.fenced for publisher in publishers) > 0
    assert sum(sum(publisher.next.values()) for publisher in publishers) > 500
    with FileStore.open(folder, settings=StoreSettings()) as store:
        for topic in TOPICS:
            found: dict[str, list[int]] = {name: [] for name in NAMES}
            for info in store.ledgers(topic):
                at = 0
                while at < info.entries:
                    entries = store.read(info.ledger_id, at, entries_max=1000, bytes_max=1 << 20)
                    at += len(entries)
                    for entry in entries:
                        metadata = parse_entry(entry).metadata
                        assert bytes(entry) == message(topic, metadata.producer_name, metadata.sequence_id)
                        found[metadata.producer_name].append(metadata.sequence_id)
            for publisher in publishers:
                mine = found[publisher.name]
                if deduplication:
                    assert mine == [*range(len(mine))], "something is stored twice, or out of order"
                assert {*range(publisher.next[topic])} <= {*mine}, "something that was receipted is lost"
            if any(found.values()):
                assert store.keys.get(f"topic/{topic}") is not None
