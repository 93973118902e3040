"""The commands that a consumer sends, built from settings and ids (framing.md sections 6 to 9)."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple

from geminga.consumer.message import EntryKey
from geminga.consumer.settings import ConsumerSettings, ConsumerType
from geminga.ids import MessageId, to_unsigned
from geminga.transactions import TransactionId
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.varint import varint, varints

_SIZES = Struct(">II")
_ACK = pb.BaseCommand.ACK

ACK_INDIVIDUAL = pb.CommandAck.Individual
ACK_CUMULATIVE = pb.CommandAck.Cumulative


class ConsumerIdentity(NamedTuple):
    """Names and number of a consumer on one topic; ``partition`` -1: the topic has no partitions."""

    topic: str
    subscription: str
    consumer_id: int
    consumer_name: str
    partition: int = -1


def subscribe(
    settings: ConsumerSettings,
    consumer: ConsumerIdentity,
    request_id: int,
    *,
    start_message_id: MessageId | None,
    epoch: int | None,
) -> pb.BaseCommand:
    """Return SUBSCRIBE. ``start_message_id`` is only sent for a subscription that is not durable."""
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    body = command.subscribe
    body.topic = consumer.topic
    body.subscription = consumer.subscription
    body.subType = settings.consumer_type.value  # type: ignore[assignment]
    body.consumer_id = consumer.consumer_id
    body.request_id = request_id
    body.consumer_name = consumer.consumer_name
    body.priority_level = settings.priority_level
    body.durable = settings.durable
    if not settings.durable and start_message_id is not None:
        write_position(body.start_message_id, start_message_id)
    _add_pairs(body.metadata, settings.properties)
    body.read_compacted = settings.is_read_compacted
    _add_schema(body, settings.schema)
    body.initialPosition = settings.initial_position.value  # type: ignore[assignment]
    body.replicate_subscription_state = settings.replicate_subscription_state_enabled
    body.force_topic_creation = settings.force_topic_creation
    if settings.consumer_type is ConsumerType.KeyShared:
        _add_key_shared(body.keySharedMeta, settings)
    _add_pairs(body.subscription_properties, settings.subscription_properties)
    if epoch is not None:
        body.consumer_epoch = epoch
    return command


def ask_for_durable(consumer: ConsumerIdentity, request_id: int) -> pb.BaseCommand:
    """Return a SUBSCRIBE that fails with NotAllowedError if a durable subscription of that name exists.

    Otherwise it creates a non-durable one that ends with its consumer. The protocol has no other query for
    that: SUBSCRIBE creates missing subscriptions.
    """
    body = pb.CommandSubscribe(
        topic=consumer.topic,
        subscription=consumer.subscription,
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=consumer.consumer_id,
        request_id=request_id,
        consumer_name=consumer.consumer_name,
        durable=False,
        force_topic_creation=False,
    )
    return pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=body)


def _add_pairs(target: Any, pairs: Mapping[str, str]) -> None:
    for key, value in pairs.items():
        target.add(key=key, value=value)


def _add_schema(body: Any, schema: Any) -> None:
    """A schema object that takes part in the broker's check has ``wire_schema()``; bytes do not."""
    wire_schema = getattr(schema, "wire_schema", None)
    described = wire_schema() if callable(wire_schema) else None
    if described is not None:
        body.schema.CopyFrom(described)


def _add_key_shared(meta: Any, settings: ConsumerSettings) -> None:
    policy = settings.key_shared_policy
    if policy is None:
        meta.keySharedMode = pb.AUTO_SPLIT
        return
    meta.keySharedMode = policy.key_shared_mode.value
    for low, high in policy.sticky_ranges:
        meta.hashRanges.add(start=low, end=high)
    meta.allowOutOfOrderDelivery = policy.allow_out_of_order_delivery


def write_position(target: Any, message_id: MessageId) -> None:
    """Write the entry of an id, or of its first chunk for a chunked message: the position of a cursor."""
    place = message_id.first_chunk or message_id
    target.ledgerId = to_unsigned(place.ledger_id)
    target.entryId = to_unsigned(place.entry_id)


def seek(
    consumer_id: int, request_id: int, target: MessageId | int, ack_set: Sequence[int]
) -> pb.BaseCommand:
    """Return SEEK to a message, or to a publish time in milliseconds since 1970."""
    command = pb.BaseCommand(type=pb.BaseCommand.SEEK)
    body = command.seek
    body.consumer_id = consumer_id
    body.request_id = request_id
    if isinstance(target, MessageId):
        write_position(body.message_id, target)
        body.message_id.ack_set.extend(ack_set)
    else:
        body.message_publish_time = target
    return command


def close_consumer(consumer_id: int, request_id: int) -> pb.BaseCommand:
    body = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=body)


def unsubscribe(consumer_id: int, request_id: int, *, force: bool = False) -> pb.BaseCommand:
    body = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)
    if force:
        body.force = True
    return pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE, unsubscribe=body)


def get_last_message_id(consumer_id: int, request_id: int) -> pb.BaseCommand:
    body = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId=body)


def consumer_stats(consumer_id: int, request_id: int) -> pb.BaseCommand:
    body = pb.CommandConsumerStats(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=pb.BaseCommand.CONSUMER_STATS, consumerStats=body)


def redeliver(consumer_id: int, keys: Iterable[EntryKey], epoch: int | None) -> pb.BaseCommand:
    """Return REDELIVER_UNACKNOWLEDGED_MESSAGES of these entries; of all entries if ``keys`` is empty."""
    command = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    body = command.redeliverUnacknowledgedMessages
    body.consumer_id = consumer_id
    for ledger_id, entry_id in keys:
        body.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
    if epoch is not None:
        body.consumer_epoch = epoch
    return command


def encode_ack(
    consumer_id: int,
    ack_type: int,
    keys: Iterable[EntryKey],
    ack_sets: Mapping[EntryKey, Sequence[int]] = MappingProxyType({}),
    *,
    request_id: int | None = None,
    validation_error: int | None = None,
    transaction: TransactionId | None = None,
    batch_sizes: Mapping[EntryKey, int] = MappingProxyType({}),
) -> bytes:
    """Return an ACK frame, encoded by hand for speed: unbatched messages have one acknowledgement each.

    ``ack_sets``: the open messages of those entries that are not acknowledged whole. ``batch_sizes``: the
    number of messages of batches, which the broker needs in a ``transaction``. An entry id of -1 (before the
    first entry) is sent as 2^64-1.
    """
    parts = [b"\x08", varint(consumer_id), b"\x10", varint(ack_type)]
    for ledger_id, same in groupby(keys, itemgetter(0)):
        entry_ids = [entry_id for _, entry_id in same]
        first, count = entry_ids[0], len(entry_ids)
        if ack_sets or batch_sizes:
            whole = ((ledger_id, entry_id) for entry_id in entry_ids)
            places = [_place(key[1], ack_sets.get(key, ()), batch_sizes.get(key, 0)) for key in whole]
        elif first >= 0 and entry_ids == list(range(first, first + count)):
            places = varints(first, count)
        else:
            places = list(map(varint, entry_ids))
        place_head = b"\x08" + varint(ledger_id) + b"\x10"
        for size, alike in groupby(places, len):
            head = b"\x1a" + varint(len(place_head) + size) + place_head
            parts += (head, head.join(alike))
    if validation_error is not None:
        parts += (b"\x20", varint(validation_error))
    if transaction is not None:
        parts += (b"\x30", varint(transaction.least_bits), b"\x38", varint(transaction.most_bits))
    if request_id is not None:
        parts += (b"\x40", varint(request_id))
    body = b"".join(parts)
    command = b"\x08" + varint(_ACK) + varint(_ACK << 3 | 2) + varint(len(body)) + body
    return _SIZES.pack(len(command) + 4, len(command)) + command


def _place(entry_id: int, ack_set: Sequence[int], batch_size: int) -> bytes:
    """Return the entry id, the ack set and the batch size of a message id."""
    place = varint(entry_id) + b"".join([b"\x28" + varint(word) for word in ack_set])
    return place + b"\x30" + varint(batch_size) if batch_size else place
