"""Commands of consumers: SUBSCRIBE, FLOW, ACK and the others (framing.md sections 6 to 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.broker.admin.stats import consumer_stats_answer
from geminga.broker.commands import answers
from geminga.broker.commands.producing import NAME_MAX, SUBSCRIPTION_NAME_MAX, check_length, pairs
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.cursor import bits_from_words
from geminga.broker.delivery.subscription import EXCLUSIVE, FAILOVER, Subscription, type_name
from geminga.broker.refusal import Busy, Refused, Violation, storage_refusal
from geminga.broker.topics.loaded import AnyTopic, parse_topic
from geminga.broker.topics.nonpersistent import NonPersistentSubscription, NonPersistentTopic
from geminga.broker.topics.persistent import Topic
from geminga.errors import StoreError
from geminga.ids import to_signed
from geminga.wire.proto import pulsar_wire_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.commands.session import Session

AnySubscription = Subscription | NonPersistentSubscription


# --- SUBSCRIBE ---
def on_subscribe(session: Session, command: pb.BaseCommand) -> None:
    """Create a consumer."""
    body = command.subscribe
    if session.consumers.get(body.consumer_id) is not None:
        session.output.write(answers.success(body.request_id))
        return
    if body.consumer_id in session.consumers:
        session.refuse(body.request_id, Refused(pb.ServiceNotReady, "Consumer is already being created"))
        return
    _try_subscribe(session, body, probing=True)


def _try_subscribe(session: Session, body: pb.CommandSubscribe, *, probing: bool) -> None:
    """Subscribe, or refuse. Before an exclusive place counts as taken, its holder must show that it lives."""
    try:
        _subscribe(session, body)
    except Refused as refused:
        session.consumers.pop(body.consumer_id, None)
        if not (probing and isinstance(refused, Busy) and refused.holder is not session):
            session.refuse(body.request_id, refused)
            return
        session.consumers[body.consumer_id] = None

        def decided() -> None:
            if session.consumers.get(body.consumer_id, session) is None:
                _try_subscribe(session, body, probing=False)

        refused.holder.probe(decided)


def _subscribe(session: Session, body: pb.CommandSubscribe) -> None:
    broker = session.broker
    if session.handle_count >= broker.settings.handles_per_connection_max:
        raise Refused(pb.NotAllowedError, "Too many producers and consumers on this connection")
    name = parse_topic(body.topic)
    if not body.subscription.strip():
        raise Refused(pb.ProducerBusy, "Empty subscription name")
    check_length("subscription's name", body.subscription, SUBSCRIPTION_NAME_MAX)
    check_length("consumer's name", body.consumer_name, NAME_MAX)
    if body.read_compacted and body.subType not in (EXCLUSIVE, FAILOVER):
        raise Refused(pb.NotAllowedError, "readCompacted only allowed on failover or exclusive subscriptions")
    metadata = pairs(body.metadata, "consumer")
    topic = broker.topics.find_or_create(name, may_create=body.force_topic_creation)
    _check_limits(topic, body)
    if body.HasField("schema") and body.schema.type != pb.Schema.AutoConsume:
        broker.schemas.add_for_consumer(topic, body.schema)
    session.consumers[body.consumer_id] = None
    subscription, created = _subscription(topic, body, session)
    consumer = Consumer(
        session,
        subscription,  # type: ignore[arg-type]
        consumer_id=body.consumer_id,
        name=body.consumer_name,
        type=body.subType,
        priority=body.priority_level,
        epoch=body.consumer_epoch if body.HasField("consumer_epoch") else -1,
        key_shared=body.keySharedMeta if body.HasField("keySharedMeta") else None,
        metadata=metadata,
        now_ms=broker.now_ms,
    )
    if body.start_message_rollback_duration_sec and isinstance(subscription, Subscription) and created:
        _roll_back(subscription, body.start_message_rollback_duration_sec)
    subscription.add(consumer)
    request_id = body.request_id

    def durable(error: StoreError | None) -> None:
        if session.consumers.get(consumer.consumer_id, consumer) is not None:
            subscription.remove(consumer)
        elif error is not None:
            del session.consumers[consumer.consumer_id]
            subscription.remove(consumer)
            session.refuse(request_id, storage_refusal(error))
        else:
            session.consumers[consumer.consumer_id] = consumer
            session.output.write(answers.success(request_id))
            subscription.started(consumer)

    if isinstance(subscription, Subscription):
        subscription.writer.when_durable(durable)
    else:
        durable(None)


def _check_limits(topic: AnyTopic, body: pb.CommandSubscribe) -> None:
    policies = topic.policies
    allowed = policies.subscription_types_enabled
    if allowed and type_name(body.subType) not in allowed:
        raise Refused(
            pb.NotAllowedError, f"Topic[{topic.text}] doesn't support {type_name(body.subType)} sub type!"
        )
    existing = topic.subscriptions.get(body.subscription)
    limit = policies.max_consumers_per_topic
    if limit and topic.consumers_connected >= limit:
        raise Refused(pb.ConsumerBusy, f"Topic reached max consumers limit: {limit}")
    limit = policies.max_consumers_per_subscription
    if limit and existing is not None and len(existing.consumers) >= limit:
        raise Refused(pb.ConsumerBusy, f"Subscription reached max consumers limit: {limit}")
    limit = policies.max_subscriptions_per_topic
    if limit and existing is None and len(topic.subscriptions) >= limit:
        raise Refused(pb.NotAllowedError, f"Exceed the maximum number of subscriptions of the topic: {limit}")


def _subscription(
    topic: AnyTopic, body: pb.CommandSubscribe, session: Session
) -> tuple[AnySubscription, bool]:
    """The subscription and whether it is new; raises `Refused`."""
    if isinstance(topic, NonPersistentTopic):
        return topic.subscribe(body.subscription), False
    existing = topic.subscriptions.get(body.subscription)
    if existing is not None:
        if existing.durable != body.durable:
            kind = "durable" if existing.durable else "non-durable"
            raise Refused(pb.NotAllowedError, f"Subscription {existing.name} is {kind}")
        # A reader's subscription without consumers is there because of a seek, which has set its place.
        return existing, False
    if not body.durable:
        return topic.reader(body.subscription, _start_offset(topic, body)), True
    if not topic.policies.auto_create_subscriptions:
        raise Refused(pb.SubscriptionNotFound, f"Subscription {body.subscription} does not exist")
    earliest = body.initialPosition == pb.CommandSubscribe.Earliest
    try:
        created = topic.subscription(
            body.subscription,
            offset=topic.ledger.start if earliest else topic.ledger.end,
            properties=pairs(body.subscription_properties, "subscription"),
            replicated=body.replicate_subscription_state,
            done=lambda error: None,
        )
    except StoreError as error:
        raise storage_refusal(error) from error
    return created, True


def _start_offset(topic: Topic, body: pb.CommandSubscribe) -> int:
    """Where a reader begins: the entry of its start id is delivered, the client drops what it knows."""
    ledger = topic.ledger
    if not body.HasField("start_message_id"):
        return ledger.start if body.initialPosition == pb.CommandSubscribe.Earliest else ledger.end
    start = body.start_message_id
    return ledger.offset_from(to_signed(start.ledgerId), to_signed(start.entryId))


def _roll_back(subscription: Subscription, seconds: int) -> None:
    """``start_message_rollback_duration_sec``: begin that long ago instead."""
    topic = subscription.topic
    offset = topic.offset_by_time(topic.broker.now_ms - seconds * 1000)
    subscription.cursor.reset(offset)
    subscription.writer.write_snapshot(None)


# --- the flow of messages ---
def on_flow(session: Session, command: pb.BaseCommand) -> None:
    """More permits for a consumer."""
    body = command.flow
    permits = body.messagePermits
    if permits == 0 or permits > 0x7FFFFFFF:
        raise Violation(f"FLOW with {permits} permits")
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        consumer.subscription.flow(consumer, permits)


def on_ack(session: Session, command: pb.BaseCommand) -> None:
    """Acknowledge; an ACK with a request id is answered when it is durable."""
    body = command.ack
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        return
    subscription = consumer.subscription
    refusal: tuple[int, str] | None = None
    if body.txnid_most_bits or body.txnid_least_bits:
        refusal = (pb.NotAllowedError, "Transactions are not enabled.")
    elif body.ack_type == pb.CommandAck.Cumulative:
        if len(body.message_id) != 1:
            raise Violation(f"a cumulative ACK with {len(body.message_id)} ids")
        subscription.acknowledge_cumulative(consumer, body.message_id[0])
    else:
        subscription.acknowledge(consumer, body.message_id)
    if not body.HasField("request_id"):
        return
    consumer_id, request_id = body.consumer_id, body.request_id

    def durable(error: StoreError | None) -> None:
        failure = refusal if error is None else (pb.PersistenceError, str(error))
        session.output.write(answers.ack_response(consumer_id, request_id, failure))

    if isinstance(subscription, Subscription):
        subscription.writer.when_durable(durable)
    else:
        durable(None)


def on_redeliver(session: Session, command: pb.BaseCommand) -> None:
    """Deliver again what the consumer names, or everything that it has not acknowledged."""
    body = command.redeliverUnacknowledgedMessages
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
        consumer.subscription.redeliver(consumer, body.message_ids, epoch)


# --- the subscription as a whole ---
def on_unsubscribe(session: Session, command: pb.BaseCommand) -> None:
    """Delete the consumer's subscription."""
    body = command.unsubscribe
    request_id = body.request_id
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        session.refuse(request_id, Refused(pb.MetadataError, "Consumer not found"))
        return
    subscription = consumer.subscription
    if len(subscription.consumers) > 1 and not body.force:
        session.refuse(
            request_id, Refused(pb.MetadataError, "Unconnected or shared consumer attempting to unsubscribe")
        )
        return

    def deleted(error: StoreError | None) -> None:
        if error is not None:
            session.refuse(request_id, storage_refusal(error))
        else:
            session.output.write(answers.success(request_id))

    # The one that asks is not told that its consumer is closed: it knows.
    del session.consumers[body.consumer_id]
    subscription.remove(consumer)
    if isinstance(subscription, Subscription):
        subscription.topic.delete_subscription(subscription, deleted)
    else:
        subscription.disconnect_all()
        deleted(None)


def on_seek(session: Session, command: pb.BaseCommand) -> None:
    """Move the subscription: consumers are closed first, SUCCESS says that the new place is durable."""
    body = command.seek
    request_id = body.request_id
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        session.refuse(request_id, Refused(pb.MetadataError, "Consumer not found"))
        return
    subscription = consumer.subscription
    if not isinstance(subscription, Subscription):
        session.refuse(
            request_id, Refused(pb.MetadataError, "A non-persistent topic has no place to seek to")
        )
        return
    topic = subscription.topic
    batch: tuple[int, int] | None = None
    try:
        if body.HasField("message_id"):
            target = body.message_id
            ledger_id, entry_id = to_signed(target.ledgerId), to_signed(target.entryId)
            offset = topic.ledger.offset_from(ledger_id, entry_id)
            open_bits = bits_from_words(target.ack_set)
            if (
                open_bits
                and session.broker.settings.batch_index_ack
                and topic.ledger.offset(ledger_id, entry_id) == offset
            ):
                batch = (offset, open_bits)
        else:
            offset = topic.offset_by_time(body.message_publish_time)
    except StoreError as error:
        session.refuse(request_id, storage_refusal(error))
        return

    def moved(error: StoreError | None) -> None:
        if error is not None:
            session.refuse(request_id, storage_refusal(error))
        else:
            session.output.write(answers.success(request_id))

    subscription.reset(offset, moved, batch)


def on_last_message_id(session: Session, command: pb.BaseCommand) -> None:
    """The newest durable entry, and how far the subscription is."""
    body = command.getLastMessageId
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        session.refuse(body.request_id, Refused(pb.MetadataError, "Consumer not found"))
        return
    subscription = consumer.subscription
    topic = subscription.topic
    if not isinstance(topic, Topic):
        session.refuse(
            body.request_id,
            Refused(pb.MetadataError, "getLastMessageId is not supported on a non-persistent topic"),
        )
        return
    try:
        batch_index = topic.last_batch_index()
    except StoreError as error:
        session.refuse(body.request_id, storage_refusal(error))
        return
    session.output.write(
        answers.last_message_id(
            body.request_id,
            topic.last_position,
            topic.name.partition,
            batch_index,
            topic.ledger.position_before(subscription.cursor.mark),
        )
    )


def on_consumer_stats(session: Session, command: pb.BaseCommand) -> None:
    """CONSUMER_STATS; an unknown consumer is an error in the answer, not of the connection."""
    body = command.consumerStats
    session.output.write(consumer_stats_answer(body.request_id, session.consumers.get(body.consumer_id)))


def on_close_consumer(session: Session, command: pb.BaseCommand) -> None:
    """Close a consumer; SUCCESS even when it is unknown."""
    body = command.close_consumer
    consumer = session.consumers.pop(body.consumer_id, None)
    if consumer is not None:
        consumer.subscription.remove(consumer)
    session.output.write(answers.success(body.request_id))
