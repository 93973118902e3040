"""``kill -9`` under load, again and again: what was receipted is there afterwards.

The broker is a process of its own on a real folder. The official client publishes, one raw connection
acknowledges and counts only what the broker confirmed. After each kill the next process must serve
every receipted message byte for byte and in order, and redeliver no acknowledged one. Between rounds
the broker is sometimes killed while it recovers.
"""

import contextlib
import os
import random
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess
from waiting import until_some_moment

from geminga.broker.core import Broker
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.persistent import PersistentTopic
from geminga.ids import TopicName
from geminga.ledger.store import FileStore
from geminga.wire.frames import FrameDecoder, encode_flow
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import encoded, encoded_ack

pulsar = pytest.importorskip("pulsar", reason="needs the official client: pip install pulsar-client")

ROUNDS = int(os.environ.get("GEMINGA_KILL_ROUNDS", "4"))


class Acknowledger:
    """A raw consumer that acknowledges every other message and believes only ACK_RESPONSE."""

    def __init__(self, url: str, topic: str) -> None:
        host, port = url.removeprefix("pulsar://").rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.decoder = FrameDecoder()
        self.asked: dict[int, tuple[int, int]] = {}
        self.confirmed: set[tuple[int, int]] = set()
        position = {"subType": pb.CommandSubscribe.Shared, "initialPosition": pb.CommandSubscribe.Earliest}
        subscribe = {"topic": topic, "subscription": "acks", "consumer_id": 1, "request_id": 1, **position}
        self.socket.sendall(encoded("connect", client_version="kill-test", protocol_version=20))
        self.socket.sendall(encoded("subscribe", **subscribe))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = self.socket.recv(1 << 16)
                if not data:
                    return
                answers = [self._answer(frame) for frame in self.decoder.feed(data)]
                self.socket.sendall(b"".join(answers))

    def _answer(self, frame: Any) -> bytes:
        if frame.type == pb.BaseCommand.PING:
            return encoded("pong")
        if frame.type == pb.BaseCommand.SUCCESS:
            return encode_flow(1, 1_000_000)
        if frame.type == pb.BaseCommand.ACK_RESPONSE:
            response = frame.command.ackResponse
            if not response.HasField("error"):
                self.confirmed.add(self.asked[response.request_id])
            return b""
        if frame.type != pb.BaseCommand.MESSAGE or frame.entry_id % 2:
            return b""
        place = (frame.ledger_id, frame.entry_id)
        number = len(self.asked) + 10
        self.asked[number] = place
        return encoded_ack(*place, request_id=number)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(60)
        self.socket.close()


def connect(url: str) -> Any:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    return pulsar.Client(url, operation_timeout_seconds=10, logger=logger)


class Load:
    """Two producers, one batching and one not; ``receipts`` holds what the broker receipted."""

    def __init__(self, url: str, topic: str) -> None:
        self.receipts: dict[str, list[int]] = {"batched": [], "single": []}
        self.client = connect(url)
        self.stop = threading.Event()
        self.producers = {
            name: self.client.create_producer(
                topic, producer_name=name, batching_enabled=name == "batched", max_pending_messages=200,
                block_if_queue_full=True, batching_max_publish_delay_ms=1, send_timeout_millis=3000,
            )
            for name in self.receipts
        }  # fmt: skip
        self.threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in self.producers]
        for thread in self.threads:
            thread.start()

    def _run(self, name: str) -> None:
        number = 0
        kept = self.receipts[name]

        def note(result: Any, _id: Any, sent: int) -> None:
            if result == pulsar.Result.Ok:
                kept.append(sent)

        with contextlib.suppress(pulsar.PulsarException):
            while not self.stop.is_set():
                self.producers[name].send_async(
                    payload(name, number), lambda result, place, n=number: note(result, place, n)
                )
                number += 1

    def close(self) -> None:
        self.stop.set()
        # The broker was killed: the official client may or may not find its connections gone.
        with contextlib.suppress(pulsar.PulsarException):
            self.client.close()
        for thread in self.threads:
            thread.join(60)


def payload(name: str, number: int) -> bytes:
    return f"{name}:{number}:".encode() + random.Random(f"{name}{number}").randbytes(number % 300)


def place_of(message: Any) -> tuple[int, int]:
    return message.message_id().ledger_id(), message.message_id().entry_id()


def check(url: str, topic: str, receipts: dict[str, list[int]], confirmed: set[tuple[int, int]]) -> None:
    """Every receipted message is there once and in order (I1); unreceipted ones may be, once, in order too.
    No acknowledged message is delivered again (I3), no other one is left out (I4)."""
    client = connect(url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
    found: dict[str, list[int]] = {name: [] for name in receipts}
    everything = set()
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=30_000)
        name, number = message.data().split(b":", 2)[:2]
        assert message.data() == payload(name.decode(), int(number))
        found[name.decode()].append(int(number))
        everything.add(place_of(message))
    for name, numbers in receipts.items():
        assert found[name] == sorted(set(found[name])), "order or single copies are lost"
        missing = set(numbers) - set(found[name])
        assert not missing, f"{len(missing)} receipted messages of {name} are lost: {sorted(missing)[:5]}"
    consumer = client.subscribe(  # a kill before the first answer may have prevented its creation
        topic, "acks", pulsar.ConsumerType.Shared, receiver_queue_size=5000,
        initial_position=pulsar.InitialPosition.Earliest,
    )  # fmt: skip
    odd = {place for place in everything if place[1] % 2}
    delivered: set[tuple[int, int]] = set()
    while not odd <= delivered:
        delivered.add(place_of(consumer.receive(timeout_millis=30_000)))
    with contextlib.suppress(pulsar.Timeout):
        while True:
            delivered.add(place_of(consumer.receive(timeout_millis=20)))
    client.close()
    again = delivered & confirmed
    assert not again, f"{len(again)} acknowledged entries come again: {sorted(again)[:5]}"


def check_backlogs(folder: Path, topics: list[str]) -> int:
    """Backlogs are those of the entries themselves, read one by one; returns how many messages."""
    store = FileStore.open(folder)
    broker = Broker(store, BrokerSettings(data_dir=folder), now=0.0, now_ms=0)
    counted = 0
    for name in topics:
        topic = broker.topics.find(TopicName.parse(name))
        subscription = None if topic is None else topic.subscriptions.get("acks")
        if not isinstance(topic, PersistentTopic) or not isinstance(subscription, PersistentSubscription):
            continue
        told = subscription.backlog_tally()
        messages = size = 0
        for offset in range(topic.ledger.start, topic.ledger.confirmed):
            if not subscription.cursor.is_acknowledged(offset):
                entry = topic.ledger.read_one(offset)
                assert entry is not None
                messages += max(1, parse_entry(entry).metadata.num_messages_in_batch)
                size += len(entry)
        assert told == (messages, size), name
        counted += messages
    broker.close()
    store.close()
    return counted


@pytest.mark.witness
def test_everything_receipted_survives_kills(tmp_path, request):
    seed = request.config.option.rotation
    chance = random.Random(seed)
    topic, receipts, confirmed = "", {"batched": [], "single": []}, set()
    topics: list[str] = []
    total_messages = total_acks = 0

    broker = BrokerProcess(tmp_path / "store")
    url = broker.service_url
    for number in range(ROUNDS):
        with broker:
            if number % 4 == 3:
                # Killed while it recovers: the next recovery must not mind.
                until_some_moment(chance, 0.4)
                broker.again()
            broker.wait_ready()
            if topic:
                check(url, topic, receipts, confirmed)
            topic = f"persistent://public/default/round-{number}"
            topics.append(topic)
            load = Load(url, topic)
            acknowledger = Acknowledger(url, topic)
            until_some_moment(chance, 0.35)
        acknowledger.close()
        load.close()
        receipts, confirmed = load.receipts, acknowledger.confirmed
        total_messages += sum(map(len, receipts.values()))
        total_acks += len(confirmed)
    assert total_messages > ROUNDS * 20
    assert total_acks > ROUNDS
    assert check_backlogs(tmp_path / "store", topics) > ROUNDS * 10
