"""A broker core in virtual time, and peers that talk to it in frames."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from geminga.broker.admin.topic_actions import TopicActions
from geminga.broker.commands.session import Session
from geminga.broker.core import Broker, LoopAccess
from geminga.broker.runtime.cooperative import CooperativeScheduler
from geminga.broker.serving.credentials import make_authentication
from geminga.broker.settings import BrokerSettings
from geminga.ids import TopicName
from geminga.ledger.api import Buffer
from geminga.ledger.memory import MemoryStore
from geminga.wire.frames import Frame, FrameDecoder, encode_command, encode_send
from geminga.wire.metadata import build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

START_MS = 1_800_000_000_000
TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
Command = pb.BaseCommand
KEY = bytes(range(32))
SECRET = "data:;base64,AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
"""Key of tokens, and the setting that names it."""
SUBSCRIBE: dict[str, Any] = {"topic": TOPIC, "subscription": "s", "consumer_id": 1, "subType": 0}
"""Fields of the command for an Exclusive consumer."""


def entry_bytes(payload: bytes = b"x", **fields: Any) -> bytes:
    """An entry as a client makes it; ``fields`` go to its metadata."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=START_MS)
    for name, value in fields.items():
        if value is not None:
            setattr(metadata, name, value)
    return build_entry(metadata.SerializeToString(), payload)


def encoded(body: str, **fields: Any) -> bytes:
    """The frame of a command, given as the name of its body and its fields, without those that are None."""
    command = pb.BaseCommand(type=pb.BaseCommand.DESCRIPTOR.fields_by_name[body].number)
    message = getattr(command, body)
    message.SetInParent()
    for name, value in fields.items():
        if isinstance(value, dict):
            getattr(message, name).CopyFrom(type(getattr(message, name))(**value))
        elif isinstance(value, (list, tuple)):
            getattr(message, name).extend(value)
        elif value is not None:
            setattr(message, name, value)
    return encode_command(command)


def encoded_ack(ledger_id: int, entry_id: int, **fields: Any) -> bytes:
    place = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    return encoded("ack", **{"consumer_id": 1, "ack_type": 0, "message_id": [place], **fields})


def said(caplog: pytest.LogCaptureFixture, by: str = "geminga.broker") -> list[str]:
    """The lines of a logger; others of the process may have something to say."""
    return [record.getMessage() for record in caplog.records if record.name.startswith(by)]


class Peer:
    """A client's end of a connection: it sends commands and keeps the frames that came back."""

    def __init__(
        self,
        harness: Harness,
        *,
        connect: bool = True,
        version: int = 21,
        client: str = "test",
        token: str | None = None,
        refreshes: bool = True,
    ) -> None:
        self.harness = harness
        self.frames: list[Frame] = []
        self.is_closed = False
        self.reading = True
        self.writable = True
        self.answers_pings = True
        self._decoder = FrameDecoder()
        self._out: list[bytes] = []
        self.request_id = 1000
        self.session: Session = harness.broker.open_session(self, "/10.0.0.1:4242", harness.now)
        if connect:
            shown: dict[str, Any] = {}
            if token is not None:
                flags = {"supports_auth_refresh": refreshes}
                shown = {"auth_method_name": "token", "auth_data": token.encode(), "feature_flags": flags}
            self.command("connect", client_version=client, protocol_version=version, **shown)
            assert self.pop().type == Command.CONNECTED

    # --- the core's Output ---
    def write(self, data: Buffer) -> None:
        if self.is_closed:
            return
        for frame in self._decoder.feed(bytes(data)):
            if frame.type == Command.PING and self.answers_pings:
                self.harness.pongs.append(self)
            else:
                self.frames.append(frame)

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    # --- sending ---
    def send_bytes(self, data: bytes) -> None:
        harness = self.harness
        self.session.receive(data, harness.now, harness.now_ms)
        harness.deliver_pongs()
        if harness.auto_poll:
            harness.poll()

    def command(self, body: str, **fields: Any) -> None:
        """Send a command given as the name of its body and its fields."""
        self.send_bytes(encoded(body, **fields))

    def request(self, body: str, **fields: Any) -> Frame:
        """Send a command with a fresh request id and return the one frame that answers it."""
        self.request_id += 1
        self.command(body, request_id=self.request_id, **fields)
        return self.pop()

    def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> pb.CommandProducerSuccess:
        frame = self.request("producer", topic=topic, producer_id=producer_id, **fields)
        assert frame.type == Command.PRODUCER_SUCCESS, frame.command
        return frame.command.producer_success

    def subscribe(
        self, topic: str, subscription: str = "s", consumer_id: int = 1, *, kind: str = "Exclusive",
        permits: int = 1000, earliest: bool = True, **fields: Any,
    ) -> None:  # fmt: skip
        self.request_id += 1
        fields |= {"subType": pb.CommandSubscribe.SubType.Value(kind), "initialPosition": int(earliest)}
        fields |= {"topic": topic, "subscription": subscription, "consumer_id": consumer_id}
        self.command("subscribe", request_id=self.request_id, **fields)
        answer = next(frame for frame in self.frames if frame.type in (Command.SUCCESS, Command.ERROR))
        self.frames.remove(answer)
        assert answer.type == Command.SUCCESS, answer.command
        if permits:
            self.command("flow", consumer_id=consumer_id, messagePermits=permits)

    def send(
        self, sequence_id: int = 0, entry: bytes | None = None, *, producer_id: int = 1, messages: int = 1,
        highest: int | None = None, is_chunk: bool = False, transaction: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        entry = entry_bytes(b"m%d" % sequence_id, sequence_id=sequence_id) if entry is None else entry
        self.send_bytes(
            encode_send(
                producer_id, sequence_id, messages, highest, len(entry), is_chunk=is_chunk,
                transaction=transaction,
            ) + entry
        )  # fmt: skip

    def publish(self, count: int, first: int = 0, **fields: Any) -> None:
        """Send entries with the sequence ids from ``first`` on."""
        for sequence_id in range(first, first + count):
            self.send(sequence_id, **fields)

    def send_all(self, entries: Iterable[bytes]) -> None:
        """Send these entries with the sequence ids from 0 on."""
        for sequence_id, entry in enumerate(entries):
            self.send(sequence_id, entry)

    def ack(
        self, *ids: tuple[int, int], consumer_id: int = 1, cumulative: bool = False,
        ack_set: Iterable[int] = (), batch_size: int | None = None, txn: tuple[int, int] | None = None,
        **fields: Any,
    ) -> None:  # fmt: skip
        batch: dict[str, Any] = {"ack_set": ack_set, "batch_size": batch_size}
        places = [pb.MessageIdData(ledgerId=ledger, entryId=entry, **batch) for ledger, entry in ids]
        fields |= {"consumer_id": consumer_id, "ack_type": int(cumulative), "message_id": places}
        if txn is not None:
            fields |= {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}
        self.command("ack", **fields)

    def begin_transaction(self, timeout_ms: int = 600_000) -> tuple[int, int]:
        self.receipts()
        answer = self.request("newTxn", txn_ttl_seconds=timeout_ms, tc_id=0).command.newTxnResponse
        assert not answer.HasField("error"), answer
        return answer.txnid_most_bits, answer.txnid_least_bits

    def end_transaction(self, txn: tuple[int, int], *, commit: bool = True) -> pb.CommandEndTxnResponse:
        self.receipts()
        fields = {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1], "txn_action": int(not commit)}
        return self.request("endTxn", **fields).command.endTxnResponse

    def disconnect(self) -> None:
        self.is_closed = True
        self.writable = False
        self.session.closed(self.harness.now)
        if self.harness.auto_poll:
            self.harness.poll()

    # --- receiving ---
    def pop(self) -> Frame:
        """The oldest frame that was not looked at."""
        assert self.frames, "nothing was answered"
        return self.frames.pop(0)

    def take(self, kind: int) -> list[Frame]:
        """All frames of a type, in order; they are removed."""
        found = [frame for frame in self.frames if frame.type == kind]
        self.frames = [frame for frame in self.frames if frame.type != kind]
        return found

    def messages(self, consumer_id: int | None = None) -> list[Any]:
        """MESSAGE frames since the last look, of one consumer or all."""
        found = [
            frame for frame in self.frames
            if frame.type == Command.MESSAGE and consumer_id in (None, frame.consumer_id)
        ]  # fmt: skip
        self.frames = [frame for frame in self.frames if frame not in found]
        return found

    def ids(self) -> list[tuple[int, int]]:
        return [(message.ledger_id, message.entry_id) for message in self.messages()]

    def entry_ids(self, consumer_id: int | None = None) -> list[int]:
        return [message.entry_id for message in self.messages(consumer_id)]

    def payloads(self, consumer_id: int | None = None) -> list[bytes]:
        from geminga.wire.metadata import parse_entry

        return [bytes(parse_entry(each.entry).payload) for each in self.messages(consumer_id)]

    def receipts(self) -> list[Any]:
        return self.take(Command.SEND_RECEIPT)

    def last_message_id(self, consumer_id: int = 1) -> Any:
        """The last message of the topic, as the broker names it."""
        self.command("getLastMessageId", consumer_id=consumer_id, request_id=1)
        (answer,) = self.take(Command.GET_LAST_MESSAGE_ID_RESPONSE)
        return answer.command.getLastMessageIdResponse.last_message_id


class Harness:
    """A broker over a store; `restart` opens the same store again."""

    def __init__(self, store: Any = None, **settings: Any) -> None:
        self.store = store or MemoryStore()
        self.settings = BrokerSettings(memory=True, **settings)
        self.now = 1000.0
        self.start_ms = START_MS
        self.auto_poll = True
        self.pongs: list[Peer] = []
        self.broker = self._open()

    def _open(self) -> Broker:
        self.clock: Callable[[], float]
        """Measures the work of jobs; by default it takes no time."""
        self.advance_clock_on_read(0.0)
        return Broker(
            self.store, self.settings, now=self.now, now_ms=self.now_ms,
            loop=LoopAccess(lambda: self.clock()),
            authentication=make_authentication(self.settings),
        )  # fmt: skip

    def advance_clock_on_read(self, seconds: float) -> None:
        """Advance the clock of jobs by ``seconds`` each time it is read."""
        self.clock = itertools.count(seconds, seconds).__next__

    @property
    def gone(self) -> set[Any]:
        """Sessions of disconnected peers whose producers and consumers are not all closed yet."""
        return self.broker._services.gone

    @property
    def actions(self) -> TopicActions:
        return TopicActions(self.broker)

    def topic(self, name: TopicName = NAME) -> Any:
        """Return the topic, loaded if it was not in memory, or None if it does not exist."""
        return self.broker.topics.find(name)

    def subscription(self, name: str = "s", topic: TopicName = NAME) -> Any:
        return self.topic(topic).subscriptions[name]

    @property
    def now_ms(self) -> int:
        return self.start_ms + int((self.now - 1000.0) * 1000)

    def deliver_pongs(self) -> None:
        """Deliver the peers' answers to the broker's PINGs."""
        pongs, self.pongs = self.pongs, []
        for peer in pongs:
            if not peer.is_closed:
                peer.command("pong")

    def poll(self) -> None:
        """Take in the store's reports, and do what is due now."""
        self.broker.poll(self.now, self.now_ms)
        while self.broker.deadline <= self.now:
            self.broker.tick(self.now, self.now_ms)

    def run_slices(self) -> None:
        """Run turns until no work in slices is left."""
        while self.broker.slices.waiting:
            self.broker.turn(self.now, self.now_ms)

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at every deadline."""
        end = self.now + seconds
        while self.broker.deadline <= end:
            self.now = max(self.now, self.broker.deadline)
            self.broker.tick(self.now, self.now_ms)
            self.deliver_pongs()
            self.poll()
        self.now = end
        self.broker.tick(self.now, self.now_ms)
        self.deliver_pongs()
        self.poll()

    def peer(self, **options: Any) -> Peer:
        return Peer(self, **options)

    def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> Peer:
        """Return a new peer with a producer."""
        peer = self.peer()
        peer.producer(topic, producer_id, **fields)
        return peer

    def consumer(self, topic: str, *arguments: Any, **fields: Any) -> Peer:
        """Return a new peer with a consumer; see `Peer.subscribe`."""
        peer = self.peer()
        peer.subscribe(topic, *arguments, **fields)
        return peer

    def restart(self, **settings: Any) -> None:
        """Close the broker and open another one on the same store."""
        self.broker.close()
        self.store.poll()
        if settings:
            self.settings = BrokerSettings(memory=True, **settings)
        self.broker = self._open()

    def crash(self) -> None:
        """Forget the broker without closing it; what was written is kept."""
        self.broker = self._open()


@pytest.fixture
def harness():
    return Harness()


@pytest.fixture
def make_harness():
    return Harness


@pytest.fixture
def make_entry():
    return entry_bytes


@pytest.fixture
def jobs(monkeypatch):
    """Jobs that were started: the test runs their steps, each in a turn of its own."""
    found: list[Any] = []
    monkeypatch.setattr(CooperativeScheduler, "should_yield", True)
    monkeypatch.setattr(CooperativeScheduler, "start", lambda _, job, about, done=None: found.append(job))
    return found
