"""The consumer core in virtual time: output for frames, calls and passing time."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.consumer.events import AcksSettled, ActiveChanged, DeadLettered, EndOfTopic, EntryRefused
from geminga.consumer.message import Message, place_of
from geminga.consumer.settings import ConsumerDeadLetterPolicy, ConsumerType, RedeliveryBackoff
from geminga.consumer.state import ConsumerInput, ConsumerState, next_state
from geminga.errors import BrokerMetadataError, ConsumerNotInitialized, CryptoError
from geminga.ids import MessageId
from geminga.wire.metadata import build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

Make = Callable[..., Any]
B = pb.BaseCommand
CHUNK_OF_THREE = {"uuid": "u", "num_chunks_from_msg": 3, "total_chunk_msg_size": 6}
LATE_AFTER_10_SECONDS = {
    "consumer_type": ConsumerType.Shared, "unacked_messages_timeout_ms": 10_000,
    "unacked_messages_tick_ms": 1000,
}  # fmt: skip


def kinds(commands: list[pb.BaseCommand]) -> list[str]:
    return [B.Type.Name(command.type) for command in commands]


def entry_ids(redeliver: pb.BaseCommand) -> list[int]:
    return [each.entryId for each in redeliver.redeliverUnacknowledgedMessages.message_ids]


def data(messages: list[Message]) -> list[bytes]:
    return [message.data() for message in messages]


@pytest.fixture
def consumer(subscribed):
    return subscribed()


# --- the connection ---
def test_subscribe_then_permits(subscribed):
    consumer = subscribed(attach=False, receiver_queue_size=7)
    assert consumer.core.state is ConsumerState.IDLE
    subscribe, flow = consumer.attach()
    assert subscribe.subscribe.subscription == "s"
    assert subscribe.subscribe.consumer_epoch == 0
    assert flow.flow.messagePermits == 7
    assert consumer.core.state is ConsumerState.READY


def test_reconnect_clears_the_queue_and_grants_permits_again(subscribed, make):
    consumer = subscribed(receiver_queue_size=4, batch_index_ack_enabled=False)
    consumer.receive(make.batch([b"a", b"b", b"c"]), 0)
    first = consumer.queue.take()
    consumer.core.acknowledge_messages([first], consumer.now)
    subscribe, flow = consumer.reconnect()
    assert len(consumer.queue) == 0
    assert not subscribe.subscribe.HasField("start_message_id")
    assert flow.flow.messagePermits == 4
    # The broker knows nothing of the acknowledged part of a batch, and may redeliver it.
    consumer.receive(make.batch([b"a", b"b", b"c"]), 0, redelivery_count=1)
    again = consumer.take()
    assert data(again) == [b"a", b"b", b"c"]
    make.sent(consumer.core)
    consumer.core.acknowledge_messages(again, consumer.now)
    assert [c.ack.message_id[0].entryId for c in consumer.advance(0.1)] == [0]


@pytest.mark.parametrize("durable", [True, False])
def test_queued_messages_are_received_without_a_connection_and_only_unacknowledged_ones_again(
    subscribed, make, durable
):
    first = {} if durable else {"durable": False, "start_message_id": MessageId.earliest}
    consumer = subscribed(**first)
    consumer.receive_numbers(5)
    consumer.core.disconnected(consumer.now)
    taken = [consumer.queue.take() for _ in range(3)]
    assert data(taken) == [b"0", b"1", b"2"]
    consumer.core.acknowledge_messages(taken[:2], consumer.now)
    subscribe, *sent = consumer.attach()
    assert [c.type for c in sent] == [pb.BaseCommand.ACK, pb.BaseCommand.FLOW]
    assert [each.entryId for each in sent[0].ack.message_id] == [0, 1]
    assert len(consumer.queue) == 0
    if not durable:
        assert subscribe.subscribe.start_message_id.entryId == 3


def test_redelivery_requested_without_a_connection_removes_unread_messages(make, consumer):
    """A cumulative acknowledgement of a later message would acknowledge the one that is to be redelivered."""
    consumer.receive_numbers(3)
    failed = consumer.queue.take()
    consumer.core.disconnected(consumer.now)
    consumer.core.redeliver_unacknowledged()
    assert consumer.queue.take() is None
    assert failed is not None
    consumer.attach()
    consumer.receive_numbers(3)
    assert data(consumer.take()) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("asks_for_redelivery", [False, True])
def test_a_batch_completed_without_a_connection_is_acknowledged(subscribed, make, asks_for_redelivery):
    consumer = subscribed(batch_index_ack_enabled=False)
    consumer.receive(make.batch([b"a", b"b"]), 4)
    consumer.core.acknowledge_messages([consumer.queue.take()], consumer.now)
    consumer.core.disconnected(consumer.now)
    second = consumer.queue.take()
    if asks_for_redelivery:
        consumer.core.redeliver_unacknowledged()
    consumer.core.acknowledge_messages([second], consumer.now)
    _, ack, flow = consumer.attach()
    assert [each.entryId for each in ack.ack.message_id] == [4]
    assert flow.HasField("flow")


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover])
def test_queued_messages_that_another_consumer_may_have_are_not_received_without_a_connection(
    subscribed, make, kind
):
    consumer = subscribed(consumer_type=kind)
    consumer.receive(make.single(b"a"), 0)
    consumer.core.disconnected(consumer.now)
    assert consumer.queue.take() is None


@pytest.mark.parametrize("durable", [True, False])
def test_ids_of_the_old_cluster_are_not_sent_to_the_new_one(subscribed, make, durable):
    """Ids of the old cluster name other messages in the new one: none of them may leave."""
    first = {} if durable else {"durable": False, "start_message_id": MessageId.earliest}
    consumer = subscribed(ack_receipt_enabled=True, **first)
    consumer.receive_numbers(4)
    consumer.receive(make.batch([b"a", b"b"]), 4)
    old = consumer.take()
    consumer.core.acknowledge_messages(old[:1], consumer.now)
    consumer.core.await_receipt("waiting", consumer.now)
    consumer.core.disconnected(consumer.now)
    consumer.core.cluster_changed(1)
    assert [e.tokens for e in consumer.core.take_events() if isinstance(e, AcksSettled)] == [["waiting"]]
    commands = consumer.attach()
    assert kinds(commands) == ["SUBSCRIBE", "FLOW"]
    assert commands[0].subscribe.HasField("start_message_id") is not durable
    core, now = consumer.core, consumer.now
    core.taken(old, now)
    core.acknowledge_messages(old[1:], now)
    core.acknowledge_id(old[2].message_id(), now)
    core.acknowledge_through([old[3]], now)
    core.acknowledge_id_through(old[3].message_id(), now)
    entry, _ = place_of(old[4])
    core.acknowledge_entries([entry], now)
    core.acknowledge_indexes((5, 4), 2, [0, 1], now)
    core.negative_acknowledge([old[1]], now)
    core.negative_acknowledge_id(old[1].message_id(), now)
    assert kinds(consumer.advance(3600)) == []
    consumer.receive(make.single(b"new"), 0)
    (new,) = consumer.take()
    core.acknowledge_messages([new], consumer.now)
    assert "ACK" in kinds(consumer.advance(1))


def test_nothing_is_delivered_while_not_subscribed(subscribed, make):
    consumer = subscribed(attach=False)
    consumer.receive(make.single(b"late"))
    assert len(consumer.queue) == 0
    consumer.attach()
    consumer.core.begin_close()
    consumer.receive(make.single(b"late"))
    assert len(consumer.queue) == 0


# --- readers: the position over reconnects ---
def reader(subscribed: Make, **fields: Any) -> Any:
    return subscribed(durable=False, start_message_id=MessageId.earliest, **fields)


def start_of(commands: list[pb.BaseCommand]) -> tuple[int, int]:
    start = commands[0].subscribe.start_message_id
    return (start.ledgerId, start.entryId)


def test_a_reconnected_reader_resumes_with_its_first_unread_message(subscribed, make):
    consumer = reader(subscribed)
    consumer.receive(make.batch([b"a", b"b", b"c"]), 4)
    consumer.receive(make.single(b"d"), 5)
    assert consumer.queue.take().data() == b"a"
    assert start_of(consumer.reconnect()) == (7, 4)
    consumer.receive(make.batch([b"a", b"b", b"c"]), 4)
    consumer.receive(make.single(b"d"), 5)
    assert data(consumer.take()) == [b"b", b"c", b"d"]


def test_a_reconnected_reader_without_unread_messages_resumes_after_the_last(subscribed, make):
    consumer = reader(subscribed)
    consumer.receive(make.batch([b"a", b"b"]), 4)
    consumer.take()
    assert start_of(consumer.reconnect()) == (7, 4)
    consumer.receive(make.batch([b"a", b"b"]), 4)
    consumer.receive(make.single(b"c"), 5)
    assert data(consumer.take()) == [b"c"]
    consumer.core.disconnected(consumer.now)
    assert start_of(consumer.reconnect()) == (7, 5), "a second loss does not forget the place"


def test_a_reader_of_the_end_skips_nothing_over_a_lost_connection(subscribed, make):
    consumer = subscribed(durable=False, start_message_id=MessageId.latest)
    consumer.core.pin_start(MessageId(-1, 7, 4))
    assert start_of(consumer.reconnect()) == (7, 5)
    consumer.receive(make.single(b"published meanwhile"), 5)
    assert data(consumer.take()) == [b"published meanwhile"]
    consumer.core.pin_start(MessageId(-1, 7, 4))
    assert start_of(consumer.reconnect()) == (7, 5)
    consumer.receive(make.single(b"published meanwhile"), 5)
    assert data(consumer.take()) == [], "it was read before"


@pytest.mark.parametrize(
    ("start", "newest"),
    [
        (MessageId.latest, MessageId.earliest),
        (MessageId.earliest, MessageId(-1, 7, 4)),
        (MessageId.earliest, None),
    ],
    ids=["latest-of-an-empty-topic", "earliest", "earliest-and-not-pinned"],
)
def test_a_reader_that_got_nothing_starts_at_earliest_after_a_reconnect(subscribed, start, newest):
    consumer = subscribed(durable=False, start_message_id=start)
    if newest is not None:
        consumer.core.pin_start(newest)
    assert start_of(consumer.reconnect()) == ((1 << 64) - 1, (1 << 64) - 1)


@pytest.mark.parametrize(("inclusive", "expected"), [(False, [b"c", b"x"]), (True, [b"b", b"c", b"x"])])
def test_a_start_inside_a_batch(subscribed, make, inclusive, expected):
    consumer = subscribed(
        durable=False, start_message_id=MessageId(-1, 7, 4, 1), start_message_id_inclusive=inclusive
    )
    consumer.receive(make.batch([b"a", b"b", b"c"]), 4)
    consumer.receive(make.single(b"x"), 5)
    assert data(consumer.take()) == expected


@pytest.mark.parametrize("start", [MessageId(-1, 7, 4), MessageId(-1, 7, 4, 1)], ids=["entry", "message"])
def test_dropped_messages_before_the_start_give_their_permits_back(subscribed, make, start):
    count = 2 if start.batch_index() < 0 else 3  # exclusive: the last of three is delivered
    consumer = subscribed(durable=False, start_message_id=start, receiver_queue_size=2 * (count - 1))
    consumer.receive(make.batch([b"x"] * count), 4)
    assert [c.flow.messagePermits for c in make.sent(consumer.core)] == [2]


# --- messages from the broker ---
def test_acknowledged_positions_are_skipped_and_not_refilled(subscribed, make):
    consumer = subscribed(receiver_queue_size=2, batch_index_ack_enabled=True)
    consumer.receive(make.batch([b"0", b"1", b"2", b"3", b"4"]), 0, ack_set=[0b10101])
    messages = consumer.take()
    assert data(messages) == [b"0", b"2", b"4"]
    assert sum(c.flow.messagePermits for c in make.sent(consumer.core)) == 3
    consumer.core.acknowledge_messages(messages[:2], consumer.now)
    (ack,) = consumer.advance(1.0)
    assert list(ack.ack.message_id[0].ack_set) == [0b10000]


def damaged(entry: bytes) -> bytes:
    return entry[:-1] + bytes([entry[-1] ^ 0xFF])


@pytest.mark.parametrize("whole", [False, True])
def test_corrupt_entries_are_acknowledged_with_the_reason(subscribed, make, whole):
    consumer = subscribed(receiver_queue_size=1)
    consumer.core.opener.whole = whole
    consumer.receive(damaged(make.single(b"abc")), 8)
    if whole:
        assert not consumer.core.explode(consumer.queue.entries.popleft())
    ack, flow = make.sent(consumer.core)
    assert ack.ack.validation_error == pb.CommandAck.ChecksumMismatch
    assert ack.ack.message_id[0].entryId == 8
    assert flow.flow.messagePermits == 1
    (event,) = consumer.core.take_events()
    assert isinstance(event, EntryRefused)
    assert event.acknowledged
    assert len(consumer.queue) == 0


def test_undecryptable_entries_stay_with_the_broker(subscribed, make):
    consumer = subscribed(receiver_queue_size=1)
    metadata = make.metadata()
    metadata.encryption_keys.add(key="k", value=b"v")
    consumer.receive(build_entry(metadata.SerializeToString(), b"?"), 8)
    assert kinds(make.sent(consumer.core)) == ["FLOW"]
    (event,) = consumer.core.take_events()
    assert isinstance(event, EntryRefused)
    assert not event.acknowledged
    assert isinstance(event.error, CryptoError)


def test_a_batch_compacted_out_completely_is_acknowledged(make, consumer):
    body = make.body([b"", b""], compacted_out=True)
    metadata = make.metadata(num_messages_in_batch=2).SerializeToString()
    consumer.receive(build_entry(metadata, body), 3)
    body = make.body([b"a"]) + make.body([b""], compacted_out=True)
    consumer.receive(build_entry(metadata, body), 4)
    messages = consumer.take()
    assert data(messages) == [b"a"]
    consumer.core.acknowledge_messages(messages, consumer.now)
    (ack,) = consumer.advance(0.2)
    assert [m.entryId for m in ack.ack.message_id] == [3, 4]


def test_never_finished_chunks_are_acknowledged_in_the_end(make, consumer):
    consumer.receive(make.single(b"ab", chunk_id=0, **CHUNK_OF_THREE), 10)
    assert consumer.core.next_deadline() == consumer.now + 60
    assert consumer.advance(59.0) == []
    consumer.advance(1.0)
    (ack,) = consumer.advance(0.2)
    assert [m.entryId for m in ack.ack.message_id] == [10]


def test_chunks_of_a_message_in_hand_do_not_expire(make, consumer):
    """The broker has begun to deliver it again, after a transaction was aborted: it is not processed yet."""
    for index in (0, 1, 2, 0, 1):
        consumer.receive(make.single(b"ab", chunk_id=index, **CHUNK_OF_THREE), index)
    messages = consumer.take()
    assert "ACK" not in kinds([*consumer.advance(61.0), *consumer.advance(0.2)])
    consumer.core.acknowledge_messages(messages, consumer.now)
    (ack,) = consumer.advance(0.2)
    assert [m.entryId for m in ack.ack.message_id] == [0, 1, 2]


def test_a_chunk_that_comes_late_after_a_redelivery_request_is_not_acknowledged(make, consumer):
    """Old as it is, it would count as the rest of a message that is never complete, which would be lost."""
    old = {
        "uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 4, "publish_time": 1,
    }  # fmt: skip
    consumer.receive(make.single(b"ab", chunk_id=0, **old), 10, consumer_epoch=0)
    consumer.core.redeliver_unacknowledged()
    consumer.receive(make.single(b"cd", chunk_id=1, **old), 11, consumer_epoch=0)
    for index, part in enumerate((b"ab", b"cd")):
        consumer.receive(make.single(part, chunk_id=index, **old), 10 + index, consumer_epoch=1)
    assert data(consumer.take()) == [b"abcd"]
    assert "ACK" not in kinds([*make.sent(consumer.core), *consumer.advance(0.2)])


def test_dropped_chunks_are_requested_again_after_the_ack_timeout(subscribed, make):
    consumer = subscribed(consumer_type=ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    for index in (0, 2):  # chunk 1 is at another consumer, which is about to lose its connection
        consumer.receive(make.single(b"ab", chunk_id=index, **CHUNK_OF_THREE), index)
    make.sent(consumer.core)
    (again,) = consumer.advance(11)
    assert [m.entryId for m in again.redeliverUnacknowledgedMessages.message_ids] == [0, 2]
    for index in range(3):
        consumer.receive(make.single(b"ab", chunk_id=index, **CHUNK_OF_THREE), index)
    assert data(consumer.take()) == [b"ababab"]


def test_chunks_of_an_earlier_attempt_are_requested_again_once_the_later_one_expires(subscribed, make):
    consumer = subscribed(consumer_type=ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    consumer.receive(make.single(b"ab", chunk_id=0, **CHUNK_OF_THREE), 3)  # its other chunks never come
    for index in range(2):
        consumer.receive(make.single(b"ab", chunk_id=index, **CHUNK_OF_THREE), index)
    make.sent(consumer.core)
    commands = [command for seconds in (60.0, 0.2, 11.0) for command in consumer.advance(seconds)]
    assert [m.entryId for each in commands for m in each.ack.message_id] == [3]
    again = [m.entryId for each in commands for m in each.redeliverUnacknowledgedMessages.message_ids]
    assert again == [0, 1]


def test_other_commands(subscribed):
    consumer = subscribed(consumer_type=ConsumerType.Failover)
    for active in (False, True):
        consumer.change_active(active)
        assert consumer.core.is_active is active
    end = pb.CommandReachedEndOfTopic(consumer_id=1)
    consumer.core.command(B(type=B.REACHED_END_OF_TOPIC, reachedEndOfTopic=end))
    assert consumer.core.reached_end
    assert consumer.core.take_events() == [ActiveChanged(False), ActiveChanged(True), EndOfTopic()]


# --- acknowledgements in time ---
def test_grouping_time(subscribed, make):
    consumer = subscribed(ack_grouping_time_ms=100)
    consumer.receive_numbers(3)
    consumer.core.acknowledge_messages(consumer.take(), consumer.now)
    assert consumer.core.next_deadline() == pytest.approx(100.1)
    assert consumer.advance(0.05) == []
    (ack,) = consumer.advance(0.06)
    assert [m.entryId for m in ack.ack.message_id] == [0, 1, 2]
    assert consumer.core.next_deadline() == float("inf")


def test_an_acknowledgement_that_the_broker_could_not_store_fails(subscribed, make):
    consumer = subscribed(ack_receipt_enabled=True)
    consumer.receive(make.single(b"x"), 0)
    consumer.core.acknowledge_messages(consumer.take(), consumer.now)
    consumer.core.await_receipt("token", consumer.now)
    (ack,) = consumer.advance(0.0)
    answer = B(type=B.ACK_RESPONSE)
    answer.ackResponse.request_id = ack.ack.request_id
    answer.ackResponse.error = pb.MetadataError
    consumer.core.command(answer)
    (event,) = consumer.core.take_events()
    assert isinstance(event, AcksSettled)
    assert event.tokens == ["token"]
    assert isinstance(event.error, BrokerMetadataError)


# --- redelivery ---
@pytest.mark.parametrize("by_id", [False, True])
def test_negative_acks_after_their_delay(subscribed, make, by_id):
    consumer = subscribed(consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=2000)
    consumer.receive(make.single(b"a"), 5)
    (message,) = consumer.take()
    if by_id:
        consumer.core.negative_acknowledge_id(message.message_id(), consumer.now)
    else:
        consumer.core.negative_acknowledge([message], consumer.now)
    assert "REDELIVER_UNACKNOWLEDGED_MESSAGES" not in kinds(consumer.advance(1.9))
    redeliver = next(c for c in consumer.advance(0.3) if c.type == B.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    assert entry_ids(redeliver) == [5]


def test_an_acknowledgement_cancels_the_negative_one(subscribed, make):
    consumer = subscribed(consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=2000)
    consumer.receive(make.single(b"a"), 5)
    (message,) = consumer.take()
    consumer.core.negative_acknowledge([message], consumer.now)
    consumer.core.acknowledge_messages([message], consumer.now)
    assert kinds(consumer.advance(5.0)) == ["ACK"]


def test_negative_acks_with_backoff(subscribed, make):
    backoff = RedeliveryBackoff(first_seconds=1, max_seconds=100, multiplier=10)
    consumer = subscribed(consumer_type=ConsumerType.Shared, negative_ack_redelivery_backoff=backoff)
    consumer.receive(make.single(b"a"), 5, redelivery_count=1)
    consumer.core.negative_acknowledge([consumer.take()[0]], consumer.now)
    assert consumer.advance(9.9) == []
    assert kinds(consumer.advance(0.2)) == ["REDELIVER_UNACKNOWLEDGED_MESSAGES"]


@pytest.mark.parametrize("cause", ["refused", "late"])
def test_all_chunks_are_redelivered(subscribed, make, cause):
    consumer = subscribed(**LATE_AFTER_10_SECONDS, negative_ack_redelivery_delay_ms=0)
    for index in range(2):
        fields = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 4, "chunk_id": index}
        consumer.receive(make.single(b"ab", **fields), 3 + index)
    (message,) = consumer.take()
    consumer.core.taken([message], consumer.now)
    if cause == "refused":
        consumer.core.negative_acknowledge([message], consumer.now)
    (redeliver,) = consumer.advance(0.0 if cause == "refused" else 11.0)
    assert entry_ids(redeliver) == [3, 4]


def test_exclusive_redelivers_everything_in_a_new_epoch(subscribed, make):
    consumer = subscribed(negative_ack_redelivery_delay_ms=1000, receiver_queue_size=4)
    for number in range(3):
        consumer.receive(make.single(b"%d" % number), number, consumer_epoch=0)
    consumer.core.negative_acknowledge([consumer.queue.take()], consumer.now)
    redeliver, flow = consumer.advance(2.0)
    body = redeliver.redeliverUnacknowledgedMessages
    assert (list(body.message_ids), body.consumer_epoch) == ([], 1)
    assert len(consumer.queue) == 0
    assert flow.flow.messagePermits == 3, "unread messages give their permits back"
    consumer.receive(make.single(b"late"), 3, consumer_epoch=0)
    assert len(consumer.queue) == 0
    consumer.receive(make.single(b"0"), 0, consumer_epoch=1)
    assert data(consumer.take()) == [b"0"]
    assert consumer.reconnect()[0].subscribe.consumer_epoch == 1


def test_redeliver_all_shared(subscribed, make):
    consumer = subscribed(consumer_type=ConsumerType.Shared)
    consumer.receive(make.single(b"a"), 0)
    consumer.core.redeliver_unacknowledged()
    redeliver = make.sent(consumer.core)[0].redeliverUnacknowledgedMessages
    assert not redeliver.HasField("consumer_epoch")
    consumer.core.disconnected(consumer.now)
    consumer.core.redeliver_unacknowledged()
    assert make.sent(consumer.core) == [], "a new connection redelivers anyway"


def test_ack_timeout(subscribed, make):
    consumer = subscribed(**LATE_AFTER_10_SECONDS)
    for number in range(2):
        consumer.receive(make.batch([b"a", b"b"]), number)
    messages = consumer.take()
    consumer.core.taken(messages, consumer.now)
    consumer.core.acknowledge_messages(messages[:2], consumer.now)
    assert kinds(consumer.advance(9.0)) == ["ACK"]
    (redeliver,) = consumer.advance(2.0)
    assert entry_ids(redeliver) == [1]
    consumer.core.acknowledge_messages(messages[2:], consumer.now)
    consumer.core.taken(messages[2:], consumer.now)
    assert len(consumer.core.unsettled.ack_timeout) == 0, "taken is noted after the acknowledgement"
    consumer.advance(60.0)
    assert consumer.core.counted.timed_out == 1, "one entry was late"


def test_queued_messages_of_a_batch_do_not_time_out(subscribed, make):
    """Messages put back are in the queue: redelivering their entry would deliver them twice."""
    consumer = subscribed(**LATE_AFTER_10_SECONDS)
    consumer.receive(make.batch([b"a", b"b", b"c"]), 1)
    messages = consumer.take()
    consumer.core.taken(messages[:1], consumer.now)
    consumer.core.acknowledge_messages(messages[:1], consumer.now)
    assert kinds(consumer.advance(30.0)) == ["ACK"]
    assert len(consumer.core.unsettled.ack_timeout) == 0
    consumer.core.taken(messages[1:2], consumer.now)
    (redeliver,) = consumer.advance(11.0)
    assert entry_ids(redeliver) == [1]


def test_messages_that_were_put_back_are_not_late(subscribed, make):
    """A call that had taken them was interrupted: they wait in the queue."""
    consumer = subscribed(**LATE_AFTER_10_SECONDS)
    consumer.receive(make.batch([b"a", b"b"]), 1)
    consumer.receive(make.single(b"c"), 2)
    first, second, alone = consumer.take()
    consumer.core.taken([first, second, alone], consumer.now)
    consumer.core.put_back([first, alone])
    consumer.core.put_back([alone])
    (redeliver,) = consumer.advance(11.0)
    assert entry_ids(redeliver) == [1], "for the second"
    again = subscribed(**LATE_AFTER_10_SECONDS)
    again.receive(make.batch([b"a", b"b"]), 1)
    messages = again.take()
    again.core.taken(messages, again.now)
    again.core.put_back([Message(*place_of(each)) for each in messages])  # matched by index, not by object
    assert again.core.next_deadline() == float("inf")


def test_many_ids_are_redelivered_in_several_commands(subscribed, make):
    consumer = subscribed(
        consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=1000, receiver_queue_size=5000
    )
    consumer.receive_numbers(2500)
    for message in consumer.take():
        consumer.core.negative_acknowledge([message], consumer.now)
    commands = [c for c in consumer.advance(2.0) if c.type == B.REDELIVER_UNACKNOWLEDGED_MESSAGES]
    assert [len(c.redeliverUnacknowledgedMessages.message_ids) for c in commands] == [1000, 1000, 500]


# --- dead letters ---
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("published", [True, False])
def test_dead_letters(subscribed, make, published, whole):
    consumer = subscribed(
        consumer_type=ConsumerType.Shared, dead_letter_policy=ConsumerDeadLetterPolicy(2),
        receiver_queue_size=2, negative_ack_redelivery_delay_ms=0,
    )  # fmt: skip
    consumer.receive(make.batch([b"a", b"b"]), 5, redelivery_count=2)
    assert data(consumer.take()) == [b"a", b"b"]
    make.sent(consumer.core)
    consumer.core.opener.whole = whole
    consumer.receive(make.batch([b"a", b"b"]), 5, redelivery_count=3)
    assert len(consumer.queue) == 0
    (event,) = consumer.core.take_events()
    assert isinstance(event, DeadLettered)
    assert data(list(event.messages)) == [b"a", b"b"]
    assert make.sent(consumer.core) == [], "no more is asked for while they are on their way"
    consumer.core.dead_letters_settled(event, published, consumer.now)
    assert [c.flow.messagePermits for c in make.sent(consumer.core)] == [2]
    (command,) = consumer.advance(0.2)
    assert command.type == (B.ACK if published else B.REDELIVER_UNACKNOWLEDGED_MESSAGES)


# --- seek ---
def test_seek_to_a_message(make, consumer):
    consumer.receive(make.single(b"a"), 0)
    consumer.core.acknowledge_messages(consumer.take(), consumer.now)
    consumer.receive(make.single(b"b"), 1)
    seek = consumer.core.begin_seek(MessageId(-1, 7, 0), 99)
    assert seek.seek.message_id.entryId == 0
    assert kinds(make.sent(consumer.core)) == ["ACK"], "what was acknowledged before the seek goes first"
    consumer.receive(make.single(b"c"), 2)
    assert data(consumer.take()) == [b"b"]
    consumer.core.disconnected(consumer.now)
    consumer.core.seek_done()
    consumer.attach()
    consumer.receive(make.single(b"a"), 0)
    consumer.receive(make.single(b"b"), 1)
    assert data(consumer.take()) == [b"b"], "the message after the one that was sought"
    (ack,) = consumer.advance(1.0)
    assert [m.entryId for m in ack.ack.message_id] == [0], "the sought one does not stay unacknowledged"


def test_the_position_of_a_seek_counts_once_on_a_durable_subscription(make, consumer):
    consumer.core.begin_seek(MessageId(-1, 7, 5), 99)
    consumer.core.disconnected(consumer.now)
    consumer.core.seek_done()
    consumer.attach()
    consumer.reconnect()
    consumer.receive(make.single(b"moved back by another consumer"), 5)
    assert len(consumer.queue) == 1


def test_seek_without_a_disconnect(subscribed, make):
    consumer = subscribed(start_message_id_inclusive=True)
    consumer.receive(make.single(b"b"), 1)
    consumer.core.begin_seek(MessageId(-1, 7, 0), 99)
    consumer.core.seek_done()
    assert consumer.core.state is ConsumerState.READY
    consumer.receive(make.single(b"a"), 0)
    assert data(consumer.take()) == [b"a"]


def test_seek_inside_a_batch_sends_the_remaining_positions(make, consumer):
    seek = consumer.core.begin_seek(MessageId(-1, 7, 3, 1, batch_size=4), 99)
    assert list(seek.seek.message_id.ack_set) == [0b1100]
    consumer.core.seek_done()
    consumer.receive(make.batch([b"a", b"b", b"c", b"d"]), 3)
    assert data(consumer.take()) == [b"c", b"d"]


def test_seek_by_time(subscribed, make):
    consumer = reader(subscribed)
    seek = consumer.core.begin_seek(1234, 99)
    assert seek.seek.message_publish_time == 1234
    consumer.core.disconnected(consumer.now)
    consumer.core.seek_done()
    assert start_of(consumer.attach()) == ((1 << 64) - 1, (1 << 64) - 1)
    consumer.receive(make.single(b"a"), 0)
    assert data(consumer.take()) == [b"a"]


def test_a_failed_seek_loses_nothing(make, consumer):
    consumer.core.begin_seek(MessageId(-1, 7, 0), 99)
    consumer.receive(make.single(b"a"), 4)
    assert len(consumer.queue) == 0
    consumer.core.seek_failed(consumer.now, make.now_ms)
    assert data(consumer.take()) == [b"a"]


def test_seek_forgets_what_was_acknowledged(subscribed, make):
    consumer = subscribed(ack_receipt_enabled=True)
    consumer.receive(make.batch([b"a", b"b"]), 0)
    first, _ = consumer.take()
    consumer.core.acknowledge_messages([first], consumer.now)
    consumer.core.acknowledge_through([first], consumer.now)
    consumer.core.await_receipt("token", consumer.now)
    consumer.core.begin_seek(MessageId.earliest, 99)
    consumer.core.seek_done()
    assert consumer.core.take_events() == [AcksSettled(["token"])]
    consumer.receive(make.batch([b"a", b"b"]), 0)
    assert data(consumer.take()) == [b"a", b"b"]


def test_seek_needs_a_subscription(subscribed):
    consumer = subscribed(attach=False)
    with pytest.raises(ConsumerNotInitialized):
        consumer.core.begin_seek(MessageId.earliest, 1)


@pytest.mark.parametrize("whole", [False, True])
def test_what_only_the_codec_refuses_stays_unacknowledged(subscribed, make, whole):
    consumer = subscribed(receiver_queue_size=1)
    consumer.core.opener.whole = whole
    metadata = make.metadata(compression=1, uncompressed_size=100).SerializeToString()
    consumer.receive(build_entry(metadata, b"\xff\xff"), 3)
    if whole:
        assert not consumer.core.explode(consumer.queue.entries.popleft())
    (flow,) = make.sent(consumer.core)
    assert flow.flow.messagePermits == 1
    (event,) = consumer.core.take_events()
    assert isinstance(event, EntryRefused)
    assert not event.acknowledged
    assert "LZ4 payload" in str(event.error)


def test_an_unreadable_whole_entry_is_no_dead_letter(subscribed, make):
    consumer = subscribed(
        consumer_type=ConsumerType.Shared,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        receiver_queue_size=1,
    )
    consumer.core.opener.whole = True
    consumer.receive(damaged(make.single(b"abc")), 3, redelivery_count=9)
    assert len(consumer.queue) == 0
    ack, flow = make.sent(consumer.core)
    assert ack.ack.validation_error == pb.CommandAck.ChecksumMismatch
    assert flow.flow.messagePermits == 1
    assert [type(event) for event in consumer.core.take_events()] == [EntryRefused]


# --- the end ---
def test_close_sends_what_is_pending(make, consumer):
    consumer.receive_numbers(2)
    consumer.core.acknowledge_messages([consumer.queue.take()], consumer.now)
    assert consumer.core.begin_close()
    assert kinds(make.sent(consumer.core)) == ["ACK"]
    consumer.core.closed()
    assert consumer.core.state is ConsumerState.CLOSED
    assert len(consumer.queue) == 0


def test_a_reader_whose_seek_fails_with_the_connection_resumes_where_it_was(subscribed, make):
    consumer = reader(subscribed)
    consumer.receive_numbers(5)
    consumer.take()
    consumer.core.begin_seek(MessageId(-1, 7, 100), 99)
    consumer.core.disconnected(consumer.now)
    consumer.core.seek_failed(consumer.now, make.now_ms)
    assert start_of(consumer.attach()) == (7, 4)
    consumer.receive(make.single(b"4"), 4)
    consumer.receive(make.single(b"5"), 5)
    assert data(consumer.take()) == [b"5"]


def test_a_queue_of_nothing_asks_for_no_more_when_a_part_of_a_batch_came(subscribed, make):
    consumer = subscribed(consumer_type=ConsumerType.Shared, receiver_queue_size=0)
    consumer.core.want_one()
    consumer.receive(make.batch([b"a", b"b", b"c"]), 0)
    consumer.core.acknowledge_messages(consumer.take()[:2], consumer.now)
    consumer.core.want_one()
    make.sent(consumer.core)
    consumer.receive(make.batch([b"a", b"b", b"c"]), 0, redelivery_count=1)
    assert len(consumer.queue) == 1
    assert "FLOW" not in kinds(make.sent(consumer.core)), "nobody waits for another"
    consumer.take()
    consumer.core.want_one()
    (flow,) = make.sent(consumer.core)
    assert flow.flow.messagePermits == 3, "what the batch cost too much, and one"


@pytest.mark.parametrize("asks", ["before it breaks", "and was answered", "while it is broken"])
def test_a_queue_of_nothing_asks_again_after_a_reconnect(subscribed, make, asks):
    """Also for a message that came and was not taken before the break: its receiver still waits."""
    consumer = subscribed(consumer_type=ConsumerType.Shared, receiver_queue_size=0)
    if asks != "while it is broken":
        consumer.core.want_one()
    make.sent(consumer.core)
    if asks == "and was answered":
        consumer.receive(make.single(b"0"), 0)
    consumer.core.disconnected(consumer.now)
    if asks == "while it is broken":
        consumer.core.want_one()
    flows = [command for command in consumer.attach() if command.HasField("flow")]
    assert [flow.flow.messagePermits for flow in flows] == [1]


def test_redelivery_takes_what_waits_of_the_entry_out_and_its_permits_back(subscribed, make):
    consumer = subscribed(
        consumer_type=ConsumerType.Shared, receiver_queue_size=6, negative_ack_redelivery_delay_ms=1000
    )
    consumer.receive(make.batch([b"a", b"b", b"c"]), 1)
    consumer.receive(make.batch([b"d", b"e", b"f"]), 2)
    make.sent(consumer.core)
    first = consumer.queue.take()
    assert first is not None
    consumer.core.negative_acknowledge([first], consumer.now)
    assert kinds(consumer.advance(2.0)) == ["REDELIVER_UNACKNOWLEDGED_MESSAGES", "FLOW"]
    assert data(consumer.take()) == [b"d", b"e", b"f"]
    flow = consumer.core.flow
    assert flow.outstanding + flow._earned == 6, "all are granted or about to be"


def test_a_batch_of_before_a_seek_is_not_done_by_its_second_half(subscribed, make):
    consumer = subscribed(batch_index_ack_enabled=False)
    consumer.receive(make.batch([b"a", b"b", b"c", b"d"]), 0)
    before = consumer.take()
    consumer.core.acknowledge_messages(before[:2], consumer.now)
    consumer.core.begin_seek(MessageId.earliest, 99)
    consumer.core.seek_done()
    make.sent(consumer.core)
    consumer.core.acknowledge_messages(before[2:], consumer.now)
    assert "ACK" not in kinds(consumer.advance(1.0)), "the broker would keep the first half back, too"


def test_the_last_of_several_cumulative_acknowledgements_counts(make, consumer):
    consumer.receive(make.single(b"0"), 0)
    consumer.receive(make.batch([b"1", b"2", b"3"]), 1)
    zero, one, two, _ = consumer.take()
    consumer.core.acknowledge_through([one, two, zero], consumer.now)
    (ack,) = consumer.advance(1.0)
    assert ack.ack.ack_type == pb.CommandAck.Cumulative
    assert [(each.entryId, list(each.ack_set)) for each in ack.ack.message_id] == [(1, [0b100])]
    assert consumer.core.counted.acknowledged == 3


def test_a_subscription_that_was_moved_back_delivers_what_was_acknowledged_up_to_a_place(make, consumer):
    consumer.receive_numbers(3)
    consumer.core.acknowledge_through([consumer.take()[-1]], consumer.now)
    assert "ACK" in kinds(consumer.advance(1.0))
    consumer.reconnect()
    consumer.receive_numbers(3)
    assert data(consumer.take()) == [b"0", b"1", b"2"]
    assert "ACK" not in kinds(consumer.advance(1.0)), "nobody has acknowledged them"


@pytest.mark.parametrize(
    "settings", [{}, {"consumer_type": ConsumerType.Shared}], ids=["exclusive", "shared"]
)
def test_a_partly_acknowledged_batch_is_redelivered_whole_after_a_reconnect(subscribed, make, settings):
    # Whether an administrator has moved the subscription back meanwhile cannot be seen from here.
    consumer = subscribed(**settings, batch_index_ack_enabled=False)
    batch = make.batch([b"a", b"b", b"c", b"d"])
    consumer.receive(batch, 0)
    before = consumer.take()
    consumer.core.acknowledge_messages(before[:2], consumer.now)
    consumer.advance(1.0)
    consumer.reconnect()
    consumer.receive(batch, 0)
    again = consumer.take()
    assert data(again) == [b"a", b"b", b"c", b"d"]
    consumer.core.acknowledge_messages(before[2:], consumer.now)
    assert "ACK" not in kinds(consumer.advance(1.0)), "the half from before must not complete what came anew"
    consumer.core.acknowledge_messages(again[:2], consumer.now)
    assert "ACK" in kinds(consumer.advance(1.0))


@pytest.mark.parametrize("sent", [False, True])
def test_only_partial_acknowledgements_that_were_not_sent_count_after_a_reconnect(subscribed, make, sent):
    consumer = subscribed(consumer_type=ConsumerType.Shared, batch_index_ack_enabled=True)
    batch = make.batch([b"a", b"b", b"c", b"d"])
    consumer.receive(batch, 0)
    consumer.core.acknowledge_messages(consumer.take()[:2], consumer.now)
    assert not sent or "ACK" in kinds(consumer.advance(1.0))
    acks = [list(each.ack.message_id[0].ack_set) for each in consumer.reconnect() if each.type == B.ACK]
    assert acks == ([] if sent else [[0b1100]])
    consumer.receive(batch, 0)  # moved back, if it was sent: the broker has forgotten the half
    assert data(consumer.take()) == ([b"a", b"b", b"c", b"d"] if sent else [b"c", b"d"])


def test_an_inactive_consumer_forgets_partial_acknowledgements(subscribed, make):
    consumer = subscribed(consumer_type=ConsumerType.Failover, batch_index_ack_enabled=False)
    batch = make.batch([b"a", b"b"])
    consumer.receive(batch, 0)
    consumer.core.acknowledge_messages(consumer.take()[:1], consumer.now)
    for active in (False, True):
        consumer.change_active(active)
    consumer.receive(batch, 0)
    assert data(consumer.take()) == [b"a", b"b"]


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared])
def test_a_refusal_in_a_drain_takes_nothing_from_others(subscribed, make, kind):
    """To have everything delivered again would empty the queue, and what is in work would not count."""
    consumer = subscribed(consumer_type=kind, negative_ack_redelivery_delay_ms=100)
    consumer.receive_numbers(4)
    first = consumer.queue.take()
    second = consumer.queue.take()
    consumer.core.begin_drain()
    consumer.core.negative_acknowledge([first], consumer.now)
    make.sent(consumer.core)
    redelivered = kinds(consumer.advance(1.0)).count("REDELIVER_UNACKNOWLEDGED_MESSAGES")
    assert redelivered == (1 if kind is ConsumerType.Shared else 0)
    assert consumer.core.next_deadline() > consumer.now, "nothing is due again and again"
    assert list(consumer.core.unsettled.in_hand) == [(7, 1), (7, 2), (7, 3)]
    assert [message.data() for message in (second, *consumer.take())] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("state", [ConsumerState.CLOSED, ConsumerState.FAILED])
def test_an_ended_consumer_stays_so(state):
    later = {next_state(state, each) for each in ConsumerInput if each.name not in ("ATTACH", "SEEK")}
    assert later <= {state, ConsumerState.CLOSED}
