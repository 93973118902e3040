"""Commands against what the official clients sent, and the hand-written ACK against protobuf."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded_frames

from geminga.consumer import commands
from geminga.consumer.commands import ConsumerIdentity
from geminga.consumer.settings import (
    ConsumerKeySharedPolicy,
    ConsumerSettings,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
)
from geminga.ids import MessageId, to_unsigned
from geminga.wire.frames import encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

ME = ConsumerIdentity("t", "s", 1, "c")


def recorded(kind: str, case: str = "") -> list[pb.BaseCommand]:
    found = [each for each in recorded_frames(kind) if case in each.case and "raw" not in each.client]
    assert found
    return [each.frame.command for each in found]


_TYPES = {
    0: ConsumerType.Exclusive,
    1: ConsumerType.Shared,
    2: ConsumerType.Failover,
    3: ConsumerType.KeyShared,
}


def settings_of(body: Any) -> ConsumerSettings:
    policy = None
    if body.HasField("keySharedMeta"):
        policy = ConsumerKeySharedPolicy(
            KeySharedMode(body.keySharedMeta.keySharedMode),
            body.keySharedMeta.allowOutOfOrderDelivery,
            [(r.start, r.end) for r in body.keySharedMeta.hashRanges] or None,
        )
    return ConsumerSettings(
        consumer_type=_TYPES[body.subType],
        priority_level=body.priority_level,
        durable=body.durable,
        properties={pair.key: pair.value for pair in body.metadata},
        subscription_properties={pair.key: pair.value for pair in body.subscription_properties},
        initial_position=InitialPosition(body.initialPosition),
        is_read_compacted=body.read_compacted,
        replicate_subscription_state_enabled=body.replicate_subscription_state,
        force_topic_creation=body.force_topic_creation,
        key_shared_policy=policy,
    )


def test_subscribe_says_what_the_official_clients_said():
    seen = 0
    for command in recorded("SUBSCRIBE"):
        body = command.subscribe
        if body.HasField("schema"):
            continue
        start = None
        if body.HasField("start_message_id"):
            start = MessageId.from_wire(body.start_message_id)
        ours = commands.subscribe(
            settings_of(body),
            ConsumerIdentity(body.topic, body.subscription, body.consumer_id, body.consumer_name),
            body.request_id, start_message_id=start,
            epoch=body.consumer_epoch if body.HasField("consumer_epoch") else None,
        ).subscribe  # fmt: skip
        body.ClearField("start_message_rollback_duration_sec")  # readers with a start time seek instead
        # Compare by meaning: a field at its default may be written or left out.
        for field in pb.CommandSubscribe.DESCRIPTOR.fields:
            if field.name in ("keySharedMeta", "start_message_id"):
                continue
            assert getattr(ours, field.name) == getattr(body, field.name), field.name
        if body.HasField("keySharedMeta"):
            assert ours.keySharedMeta.hashRanges == body.keySharedMeta.hashRanges
            assert ours.keySharedMeta.keySharedMode == body.keySharedMeta.keySharedMode
        assert ours.HasField("start_message_id") == body.HasField("start_message_id")
        assert ours.start_message_id.ledgerId == body.start_message_id.ledgerId
        assert ours.start_message_id.entryId == body.start_message_id.entryId
        seen += 1
    assert seen > 20


def test_start_position_is_only_for_subscriptions_that_are_not_durable():
    for durable in (True, False):
        command = commands.subscribe(
            ConsumerSettings(durable=durable), ME, 2,
            start_message_id=MessageId.earliest, epoch=None,
        )  # fmt: skip
        assert command.subscribe.HasField("start_message_id") is not durable


def test_schemas_describe_themselves():
    class Described:
        def wire_schema(self) -> pb.Schema:
            return pb.Schema(name="n", schema_data=b"{}", type=pb.Schema.Json)

    for schema, present in ((None, False), (object(), False), (Described(), True)):
        body = commands.subscribe(
            ConsumerSettings(schema=schema), ME, 2, start_message_id=None, epoch=None,
        ).subscribe  # fmt: skip
        assert body.HasField("schema") is present


def test_acks_are_byte_for_byte_those_of_the_official_clients():
    compared = 0
    for command in recorded("ACK"):
        body = command.ack
        if body.HasField("txnid_least_bits"):
            continue
        ack_sets = {(m.ledgerId, m.entryId): list(m.ack_set) for m in body.message_id if m.ack_set}
        ours = commands.encode_ack(
            body.consumer_id,
            body.ack_type,
            [(m.ledgerId, m.entryId) for m in body.message_id],
            ack_sets,
            request_id=body.request_id if body.HasField("request_id") else None,
        )
        assert ours == encode_command(command)
        compared += 1
    assert compared > 20


@given(
    st.integers(0, 1 << 40),
    st.sampled_from([commands.ACK_INDIVIDUAL, commands.ACK_CUMULATIVE]),
    st.dictionaries(
        st.tuples(st.sampled_from([0, 7, 1 << 62]), st.sampled_from([-1, 126, 127, 128, 129, 1 << 40])),
        st.just([]) | st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3),
        max_size=9,
    ),
    st.none() | st.integers(0, (1 << 63) - 1),
    st.none() | st.integers(0, 4),
)
def test_acks_against_protobuf(consumer_id, ack_type, ids, request_id, validation_error):
    expected = pb.BaseCommand(type=pb.BaseCommand.ACK)
    expected.ack.consumer_id = consumer_id
    expected.ack.ack_type = ack_type
    for (ledger_id, entry_id), words in ids.items():
        expected.ack.message_id.add(
            ledgerId=to_unsigned(ledger_id), entryId=to_unsigned(entry_id), ack_set=words
        )
    if request_id is not None:
        expected.ack.request_id = request_id
    if validation_error is not None:
        expected.ack.validation_error = validation_error
    ack_sets = {key: words for key, words in ids.items() if words}
    ours = commands.encode_ack(
        consumer_id, ack_type, ids, ack_sets, request_id=request_id, validation_error=validation_error
    )
    assert ours == encode_command(expected)


def test_redeliver_and_seek_as_recorded():
    for command in recorded("REDELIVER_UNACKNOWLEDGED_MESSAGES"):
        body = command.redeliverUnacknowledgedMessages
        ours = commands.redeliver(
            body.consumer_id,
            [(m.ledgerId, m.entryId) for m in body.message_ids],
            body.consumer_epoch if body.HasField("consumer_epoch") else None,
        )
        assert ours == command
    for command in recorded("SEEK", "py."):
        body = command.seek
        target = (
            MessageId.from_wire(body.message_id) if body.HasField("message_id") else body.message_publish_time
        )
        assert commands.seek(body.consumer_id, body.request_id, target, ()) == command


def test_close_unsubscribe_and_last_id_as_recorded():
    for command in recorded("CLOSE_CONSUMER", "py."):
        body = command.close_consumer
        if body.request_id < 1 << 62:
            assert commands.close_consumer(body.consumer_id, body.request_id) == command
    for command in recorded("GET_LAST_MESSAGE_ID"):
        body = command.getLastMessageId
        assert commands.get_last_message_id(body.consumer_id, body.request_id) == command
    for command in recorded("UNSUBSCRIBE"):
        body = command.unsubscribe
        ours = commands.unsubscribe(body.consumer_id, body.request_id, force=body.force).unsubscribe
        assert (ours.consumer_id, ours.request_id, ours.force) == (
            body.consumer_id, body.request_id, body.force,
        )  # fmt: skip


@pytest.mark.parametrize("position", [MessageId.earliest, MessageId.latest, MessageId(3, 5, 6, 7)])
def test_positions_are_written_as_unsigned_numbers(position):
    target = pb.MessageIdData()
    commands.write_position(target, position)
    assert (target.ledgerId, target.entryId) == (
        to_unsigned(position.ledger_id), to_unsigned(position.entry_id),
    )  # fmt: skip
    assert not target.HasField("batch_index")


def test_a_chunked_message_is_at_its_first_chunk():
    target = pb.MessageIdData()
    commands.write_position(target, MessageId(-1, 9, 3, first_chunk=MessageId(-1, 9, 1)))
    assert target.entryId == 1
