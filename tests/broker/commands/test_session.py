"""A connection's life: every command in every state, keepalive, deadlines, and back-pressure."""

from itertools import pairwise
from typing import Any

import pytest
from doubles import raising

from geminga.broker.commands import producing
from geminga.broker.commands.session import SessionState
from geminga.broker.commands.table import TABLE
from geminga.broker.runtime.memory_backpressure import HELD_BY_PENDING
from geminga.broker.topics.topic_registry import parse_topic
from geminga.errors import StoreStopped
from geminga.ledger.memory import MemoryStore
from geminga.wire.frames import encode_command, encode_send
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC, Command, encoded, encoded_ack

# All commands that the broker accepts from a client. Any other type closes the connection.
FROM_CLIENTS = {
    "CONNECT", "SUBSCRIBE", "PRODUCER", "SEND", "ACK", "FLOW", "UNSUBSCRIBE", "CLOSE_PRODUCER",
    "CLOSE_CONSUMER", "PING", "PONG", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "PARTITIONED_METADATA", "LOOKUP",
    "CONSUMER_STATS", "SEEK", "GET_LAST_MESSAGE_ID", "GET_TOPICS_OF_NAMESPACE", "GET_SCHEMA",
    "GET_OR_CREATE_SCHEMA", "NEW_TXN", "ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN", "END_TXN",
    "END_TXN_ON_PARTITION", "END_TXN_ON_SUBSCRIPTION", "TC_CLIENT_CONNECT_REQUEST", "WATCH_TOPIC_LIST",
    "WATCH_TOPIC_LIST_CLOSE", "AUTH_RESPONSE",
}  # fmt: skip
BEFORE_CONNECT = {"CONNECT", "PING", "PONG"}
# A second CONNECT; SEND of an unknown producer; credentials without a challenge.
ALWAYS_CLOSES_WHEN_CONNECTED = {"CONNECT", "SEND", "AUTH_RESPONSE"}
TRANSACTIONS = {name for name in FROM_CLIENTS if "TXN" in name or name.startswith("TC_")}


def example(name: str) -> bytes:
    """A minimal valid frame of each type."""
    number = Command.Type.Value(name)
    if name == "SEND":
        return encode_send(1, 0, 1, None, 6) + b"\x00\x00\x00\x02\x0a\x00"
    field = next(f for f in Command.DESCRIPTOR.fields if f.number == number)
    command = Command(type=number)
    body = getattr(command, field.name)
    body.SetInParent()
    for inner in body.DESCRIPTOR.fields:
        if inner.is_required or inner.name in ("messagePermits",):
            fill(body, inner)
    return encode_command(command)


def fill(body: Any, field: Any) -> None:
    if field.message_type is not None:
        message = getattr(body, field.name)
        message.SetInParent()
        for inner in message.DESCRIPTOR.fields:
            if inner.is_required:
                fill(message, inner)
    elif field.type == field.TYPE_STRING:
        setattr(body, field.name, TOPIC if field.name == "topic" else "x")
    elif field.type == field.TYPE_BYTES:
        setattr(body, field.name, b"x")
    elif field.enum_type is not None:
        setattr(body, field.name, field.enum_type.values[0].number)
    else:
        setattr(body, field.name, 1)


NUMBERS = {field.number for field in Command.DESCRIPTOR.fields}
ALL_TYPES = [value.name for value in Command.Type.DESCRIPTOR.values if value.number in NUMBERS]


@pytest.mark.parametrize("name", ALL_TYPES)
def test_only_some_commands_are_allowed_before_connect(harness, name):
    peer = harness.peer(connect=False)
    peer.send_bytes(example(name))
    assert peer.is_closed == (name not in BEFORE_CONNECT)
    answers = {"PING": [Command.PONG], "CONNECT": [Command.CONNECTED]}
    assert [frame.type for frame in peer.frames] == answers.get(name, [])


@pytest.mark.parametrize("name", ALL_TYPES)
def test_every_command_gets_its_answer_when_connected(harness, name):
    bystander, peer = harness.peer(), harness.peer()
    peer.send_bytes(example(name))
    expected = name not in FROM_CLIENTS or name in ALWAYS_CLOSES_WHEN_CONNECTED
    assert peer.is_closed == expected
    if name in TRANSACTIONS:
        [frame] = peer.frames
        [(field, answer)] = [each for each in frame.command.ListFields() if each[0].name != "type"]
        assert answer.HasField("error"), field.name
    bystander.send_bytes(example("PING"))
    assert [frame.type for frame in bystander.frames] == [Command.PONG]


@pytest.mark.parametrize("name", ALL_TYPES)
def test_nothing_is_read_after_the_session_has_ended(harness, name):
    peer = harness.peer()
    peer.session.close()
    assert peer.session.state is SessionState.CLOSED
    peer.send_bytes(example(name))
    assert not peer.frames


def test_the_table_of_handlers_is_complete():
    assert {Command.Type.Name(number) for number in TABLE.handlers} == FROM_CLIENTS - {"SEND"}


@pytest.mark.parametrize(("version", "answered"), [(21, 21), (20, 20), (10, 10), (99, 21)])
def test_the_lower_protocol_version_is_agreed_on(harness, version, answered):
    peer = harness.peer(connect=False)
    peer.command("connect", client_version="c", protocol_version=version)
    body = peer.pop().command.connected
    assert (body.protocol_version, body.max_message_size) == (answered, 5 * 1024 * 1024)
    assert body.server_version.startswith("Geminga ")
    assert body.feature_flags.supports_topic_watchers
    assert body.feature_flags.supports_get_partitioned_metadata_without_auto_creation


def test_a_connection_without_a_handshake_is_closed_in_time(harness):
    silent, talking = harness.peer(connect=False), harness.peer()
    harness.advance(harness.settings.handshake_seconds)
    assert silent.is_closed
    assert not talking.is_closed


def test_an_idle_peer_is_pinged_and_a_dead_one_is_dropped(harness):
    answering, dead = harness.peer(), harness.peer()
    answering.answers_pings = dead.answers_pings = False
    dead.producer(TOPIC)
    for _ in range(3):
        harness.advance(30)
        pings = answering.take(Command.PING)
        assert len(pings) == 1
        answering.command("pong")
    assert not answering.is_closed
    assert dead.is_closed
    assert answering.producer(TOPIC, producer_name="standalone-0-0").producer_name == "standalone-0-0"


def test_any_frame_shows_that_the_client_is_alive(harness):
    peer = harness.peer()
    peer.answers_pings = False
    for _ in range(5):
        harness.advance(29)
        peer.command("ping")
    assert not peer.is_closed


# --- a producer name or an exclusive subscription that is in use ---
def claim(peer: Any, what: str, **fields: Any) -> None:
    if what == "producer":
        peer.command("producer", topic=TOPIC, producer_id=1, request_id=9, producer_name="n", **fields)
    else:
        peer.command("subscribe", topic=TOPIC, subscription="s", consumer_id=1, request_id=9, subType=0)


BUSY = {"producer": pb.ProducerBusy, "consumer": pb.ConsumerBusy}
CREATED = {"producer": Command.PRODUCER_SUCCESS, "consumer": Command.SUCCESS}


@pytest.fixture(params=["producer", "consumer"])
def what(request):
    return request.param


@pytest.fixture
def holder(harness, what):
    """A peer that has what others claim, and answers no PING."""
    peer = harness.peer()
    claim(peer, what)
    peer.frames.clear()
    peer.answers_pings = False
    return peer


@pytest.fixture
def other(harness):
    return harness.peer()


@pytest.mark.parametrize("connected", [False, True])
def test_bytes_behind_a_violation_are_not_counted_any_more(harness, connected):
    """They would stay on the limit of received bytes, which all peers share."""
    peer = harness.peer(connect=connected)
    peer.send_bytes(encode_send(9, 0, 1, None, 1) + b"x" + encoded("ping") * 5_000)
    assert peer.is_closed
    peer.disconnect()
    assert harness.broker.backpressure.received_bytes == 0


def test_a_holder_that_answers_the_ping_keeps_its_place(harness, what, holder, other):
    claim(other, what)
    assert not other.frames
    assert holder.pop().type == Command.PING
    claim(other, what)
    assert other.pop().command.error.error == pb.ServiceNotReady
    holder.command("pong")
    assert other.pop().command.error.error == BUSY[what]
    harness.advance(10)
    assert not holder.is_closed


def test_a_holder_that_does_not_answer_the_ping_loses_its_place(harness, what, holder):
    others = [harness.peer(), harness.peer()]
    for other in others:
        claim(other, what)
    harness.advance(4.9)
    assert not any(other.frames for other in others)
    harness.advance(0.2)
    assert holder.is_closed
    assert others[0].pop().type == CREATED[what]
    assert others[1].pop().command.error.error == BUSY[what]


def test_a_client_waiting_for_a_subscription_may_disconnect(harness, what, holder, other):
    claim(other, what)
    other.command(f"close_{what}", request_id=3, **{f"{what}_id": 1})
    assert other.pop().type == Command.SUCCESS
    harness.advance(6)
    assert not other.frames
    claim(harness.peer(), what)


def test_no_peer_is_dropped_because_the_store_is_slow(harness, what, holder, other):
    holder.session.hold(HELD_BY_PENDING)
    claim(other, what)
    assert other.pop().command.error.error == BUSY[what]
    harness.advance(300)
    assert not holder.is_closed


def test_bytes_may_come_one_at_a_time_and_frames_before_a_bad_one_are_served(harness):
    peer = harness.peer()
    for byte in example("PING"):
        peer.send_bytes(bytes([byte]))
    peer.send_bytes(example("PING") + b"\xff\xff\xff\xff")
    assert [frame.type for frame in peer.frames] == [Command.PONG] * 2
    assert peer.is_closed


def test_publishing_is_paused_while_the_store_is_behind(harness):
    harness.broker.backpressure.pending_bytes_per_peer_max = 1000
    peer = harness.producer(TOPIC)
    harness.auto_poll = False
    entry = b"\x00\x00\x00\x02\x0a\x00" + b"x" * 100
    peer.send_all(entry for sequence_id in range(10))
    assert not peer.reading
    assert harness.broker.backpressure.pending_bytes == 1060
    harness.poll()
    assert peer.reading
    assert harness.broker.backpressure.pending_bytes == 0
    assert len(peer.receipts()) == 10


def test_the_pending_bytes_of_all_connections_together_are_limited(harness):
    harness.broker.backpressure.pending_bytes_max = 500
    peers = [harness.producer(TOPIC) for _ in range(3)]
    harness.auto_poll = False
    entry = b"\x00\x00\x00\x02\x0a\x00" + b"x" * 200
    for peer in peers:
        peer.send(0, entry)
    assert [peer.reading for peer in peers] == [True, True, False]
    harness.poll()
    assert all(peer.reading for peer in peers)


def test_names_and_metadata_of_all_connections_together_are_limited(harness, monkeypatch):
    monkeypatch.setattr(producing, "NAMED_BYTES_MAX", 20_000)
    first, second = harness.peer(), harness.peer()
    first.request("producer", topic=TOPIC, producer_id=1, producer_name="p" * 8000)
    second.subscribe(TOPIC, consumer_name="c" * 8000)
    metadata = [pb.KeyValue(key="k", value="v" * 8000)]
    refused = first.request("producer", topic=TOPIC, producer_id=2, metadata=metadata)
    assert refused.command.error.error == pb.ServiceNotReady  # a client that reconnects survives it
    assert first.request("producer", topic=TOPIC, producer_id=3).command.type == Command.PRODUCER_SUCCESS
    assert harness.broker.backpressure.named_bytes == 16_000
    first.request("close_producer", producer_id=1)
    assert harness.broker.backpressure.named_bytes == 8000
    second.request("unsubscribe", consumer_id=1)
    assert harness.broker.backpressure.named_bytes == 0
    second.subscribe(TOPIC, consumer_name="c" * 8000)
    second.disconnect()
    assert harness.broker.backpressure.named_bytes == 0


def test_pending_bytes_of_a_lost_connection_are_released(harness):
    peer = harness.producer(TOPIC)
    harness.auto_poll = False
    peer.send(0)
    peer.disconnect()
    assert harness.broker.backpressure.pending_bytes > 0
    harness.poll()
    assert harness.broker.backpressure.pending_bytes == 0


def test_producers_and_consumers_of_a_connection_are_limited(make_harness):
    harness = make_harness(handles_per_connection_max=2)
    peer = harness.producer(TOPIC)
    peer.subscribe(TOPIC)
    consumer = {"consumer_id": 9, "subscription": "s", "subType": 0}
    for body, fields in (("producer", {"producer_id": 9}), ("subscribe", consumer)):
        assert peer.request(body, topic=TOPIC, **fields).command.error.error == pb.NotAllowedError


def test_a_store_failure_in_a_command_is_its_answer_or_closes_the_connection(harness, monkeypatch):
    peer, failing = harness.peer(), raising(StoreStopped("no space left on device"))
    monkeypatch.setattr(harness.store.keys, "get", failing)
    frame = peer.request("partitionMetadata", topic=TOPIC)
    assert frame.command.partitionMetadataResponse.error == pb.PersistenceError
    monkeypatch.setattr(harness.broker.coordinator, "begin", failing)
    peer.command("newTxn", request_id=1)
    assert peer.is_closed


def test_publishing_clients_are_not_read_from_while_the_store_is_behind(harness, monkeypatch):
    monkeypatch.setattr(MemoryStore, "is_behind", True)
    busy, idle = harness.producer(TOPIC), harness.peer()
    busy.send(0)
    assert not busy.reading
    harness.advance(45)
    assert not busy.is_closed
    assert len(busy.take(Command.PONG)) == 4
    gone = harness.peer()
    gone.send_bytes(b"\xff" * 8)
    assert gone.is_closed
    monkeypatch.setattr(MemoryStore, "is_behind", False)
    harness.poll()
    assert busy.reading
    busy.send(1)
    assert len(busy.receipts()) == 2
    assert not idle.is_closed


def test_pings_are_answered_while_the_store_is_behind(harness, monkeypatch):
    calm = harness.peer()
    monkeypatch.setattr(MemoryStore, "is_behind", True)
    for _ in range(3):
        calm.command("ping")
        assert calm.pop().type == Command.PONG
        assert calm.reading
    calm.send_bytes(encoded("ping") + encoded("producer", topic=TOPIC, producer_id=1, request_id=1))
    assert not calm.reading
    monkeypatch.setattr(MemoryStore, "is_behind", False)
    harness.poll()
    for first in (encode_send(1, 0, 1, None, 7) + b"\x00\x00\x00\x02\x0a\x00x", acks([(0, 0)])):
        assert calm.reading
        monkeypatch.setattr(MemoryStore, "is_behind", True)
        calm.send_bytes(first)
        assert not calm.reading
        monkeypatch.setattr(MemoryStore, "is_behind", False)
        harness.poll()


def test_clients_paused_for_moments_get_no_unrequested_pong(harness):
    peer = harness.peer()
    for _ in range(40):
        peer.session.hold(HELD_BY_PENDING)
        harness.advance(0.9)
        peer.session.release(HELD_BY_PENDING)
        harness.advance(0.1)
    assert not peer.take(Command.PONG)
    peer.session.hold(HELD_BY_PENDING)
    harness.advance(20.5)
    assert len(peer.take(Command.PONG)) == 2


# --- a peer that hangs up while there is work of it ---
def acks(ids: list[tuple[int, int]], consumer_id: int = 1) -> bytes:
    """An ACK of its own for each entry."""
    return b"".join(encoded_ack(*each, consumer_id=consumer_id) for each in ids)


ENDS = {"hangs up": lambda peer: peer.disconnect(), "is thrown out": lambda peer: peer.session.close()}


@pytest.mark.parametrize("end", ENDS)
def test_remaining_commands_of_a_client_that_has_gone_are_dropped(harness, end):
    """Its unhandled acknowledgements too: their messages are redelivered."""
    peer = harness.producer(TOPIC)
    peer.subscribe(TOPIC, permits=300)
    peer.publish(300)
    ids = peer.ids()
    assert len(ids) == 300
    harness.advance_clock_on_read(0.001)
    peer.send_bytes(acks(ids))
    left = harness.subscription().backlog
    assert left > 200
    ENDS[end](peer)
    assert harness.broker.slices.waiting
    harness.run_slices()
    assert harness.subscription().backlog == left
    assert peer.session.state is SessionState.CLOSED
    assert peer.session not in harness.broker.sessions
    assert harness.broker.backpressure.received_bytes == 0


def test_a_reconnecting_client_subscribes_after_its_old_work_is_done(harness, what, holder, other):
    harness.advance_clock_on_read(0.001)
    holder.send_bytes(encoded("ping") * 300)
    holder.disconnect()
    claim(other, what)
    harness.run_slices()
    harness.poll()
    assert other.pop().type == CREATED[what]


@pytest.mark.parametrize("end", ENDS)
def test_producers_of_a_disconnected_client_are_closed_in_slices(harness, end):
    """Closing tens of thousands of producers does not block other clients; their names become free."""
    count = 300
    peer, other = harness.peer(), harness.peer()
    for number in range(count):
        peer.producer(f"{TOPIC}-{number}", producer_id=number, producer_name="n")
        peer.subscribe(f"{TOPIC}-{number}", consumer_id=number, kind="Exclusive", permits=0)
    topics = [harness.broker.topics.find(parse_topic(f"{TOPIC}-{number}")) for number in range(count)]

    def opened() -> int:
        return sum(len(each.access.producers) + each.consumers_connected for each in topics)

    assert opened() == 2 * count
    harness.advance_clock_on_read(0.001)
    ENDS[end](peer)
    left = [2 * count, opened()]
    fields = {"topic": f"{TOPIC}-{count - 1}", "subscription": "s", "consumer_id": 1, "subType": 0}
    other.command("subscribe", request_id=9, **fields)
    while harness.broker.slices.waiting:
        harness.broker.turn(harness.now, harness.now_ms)
        left.append(opened())
    assert max(before - after for before, after in pairwise(left)) < 50
    assert left[-1] <= 1
    assert peer.session not in harness.broker.sessions
    harness.poll()
    assert other.pop().type == Command.SUCCESS
    assert opened() == 1


def test_the_end_of_the_broker_closes_all_producers_and_consumers(harness):
    peer, leaving = harness.peer(), harness.peer()
    for number in range(100):
        peer.producer(f"{TOPIC}-{number}", producer_id=number)
        leaving.producer(f"{TOPIC}-{number}", producer_id=number)
    topics = [harness.broker.topics.find(parse_topic(f"{TOPIC}-{number}")) for number in range(100)]
    harness.advance_clock_on_read(0.001)
    leaving.disconnect()
    assert harness.broker.slices.waiting
    harness.broker.close()
    assert not any(each.access.producers for each in topics)
    assert not harness.broker.sessions
