"""Commands of consumers: SUBSCRIBE, FLOW, ACK and the others (framing.md sections 6 to 9)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain

from geminga.broker.commands import transactions
from geminga.broker.commands.handles import PendingHandle
from geminga.broker.commands.permissions import check_consumer
from geminga.broker.commands.producing import (
    NAME_MAX,
    OPENING_AGAIN_SECONDS,
    OPENING_SECONDS_MAX,
    find_or_create,
    open_handle,
    pairs,
)
from geminga.broker.commands.session import Session
from geminga.broker.delivery.consumer import EXCLUSIVE, FAILOVER, Consumer, Subscription, type_name
from geminga.broker.delivery.subscription import COMPACTION
from geminga.broker.runtime.cooperative import Job
from geminga.broker.runtime.refusal import ProtocolViolation, Refused, check_stored, storage_refusal
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import SubscriptionRequest, Topic
from geminga.broker.topics.topic_registry import SUBSCRIPTION_NAME_MAX, check_length, parse_topic
from geminga.diagnosis.commands import iso_time
from geminga.errors import StoreBusy, StoreError
from geminga.ids import to_signed, to_unsigned
from geminga.wire.proto import pulsar_wire_pb2 as pb

ACKED_AT_ONCE_MAX = 2_000
"""Maximum ids of one ACK that are acknowledged in one step."""
LAST_AGAIN_SECONDS = 1.0
LAST_REQUESTS_MAX = 1_000
"""Maximum pending GET_LAST_MESSAGE_ID requests of one consumer."""


# --- SUBSCRIBE ---
def on_subscribe(session: Session, command: pb.BaseCommand) -> None:
    """Create a consumer."""
    body = command.subscribe
    if body.consumer_id in session.consumers:
        session.answer("success", request_id=body.request_id)
    elif body.consumer_id in session.consumers.attempts:
        refused = Refused(pb.ServiceNotReady, "Consumer is already being created")
        session.refuse(body.request_id, refused)
    else:
        create = partial(_subscribe, session, body)
        open_handle(session, session.consumers, body.consumer_id, body, create, _in_the_way)


def _in_the_way(topic: Topic, body: pb.CommandSubscribe) -> Iterable[Consumer]:
    """Return the consumers that may have caused the refusal of another one."""
    if topic.policies.max_consumers_per_topic:
        return chain.from_iterable(each.consumers for each in topic.subscriptions.values())
    subscription = topic.subscriptions.get(body.subscription)
    return () if subscription is None else subscription.consumers


def _subscribe(session: Session, body: pb.CommandSubscribe, attempt: PendingHandle[Consumer]) -> None:
    services = session.services
    check_consumer(session, body)
    name = parse_topic(body.topic)
    if not body.subscription.strip():
        raise Refused(pb.ProducerBusy, "Empty subscription name")
    if body.subscription == COMPACTION:
        raise Refused(pb.NotAllowedError, f"Subscription {COMPACTION} is compaction's own")
    check_length("subscription's name", body.subscription, SUBSCRIPTION_NAME_MAX)
    check_length("consumer's name", body.consumer_name, NAME_MAX)
    if body.read_compacted and body.subType not in (EXCLUSIVE, FAILOVER):
        raise Refused(pb.NotAllowedError, "readCompacted only allowed on failover or exclusive subscriptions")
    metadata = pairs(body.metadata, "consumer")
    if body.read_compacted and not name.persistent:
        raise Refused(pb.NotAllowedError, "readCompacted only valid on persistent topics")
    topic = find_or_create(session, name, may_create=body.force_topic_creation)
    _check_limits(topic, body)
    if body.HasField("schema") and body.schema.type != pb.Schema.AutoConsume:
        services.schemas.add_for_consumer(topic.name, topic.policies, body.schema)
    subscription = _find_or_create(session, topic, body)
    consumer = Consumer(
        session,
        subscription,
        consumer_id=body.consumer_id,
        name=body.consumer_name,
        type=body.subType,
        priority=body.priority_level,
        epoch=body.consumer_epoch if body.HasField("consumer_epoch") else -1,
        key_shared=body.keySharedMeta if body.HasField("keySharedMeta") else None,
        metadata=metadata,
        read_compacted=body.read_compacted,
        now=services.scheduler.now,
        connected_since_ms=services.scheduler.now_ms,
    )
    subscription.add(consumer)
    attempt.entered = consumer
    request_id = body.request_id
    handles = session.consumers

    def durable(error: StoreError | None) -> None:
        if not handles.is_current(consumer.consumer_id, attempt):
            subscription.remove(consumer)
            return
        with session.answering_refusals(request_id):
            try:
                check_stored(error)
                check_consumer(session, body)
                if consumer not in subscription.consumers:
                    raise Refused(pb.ServiceNotReady, "The subscription was closed meanwhile: try again")
            except Refused:
                handles.abandon(consumer.consumer_id)
                subscription.remove(consumer)
                raise
            handles.opened(consumer.consumer_id, consumer)
            session.answer("success", request_id=request_id, withholds_entries=_withholds(topic))
            subscription.started(consumer)

    subscription.when_durable(durable)


def _withholds(topic: Topic) -> bool | None:
    """Return whether transactions keep entries from delivery; None, the field's default, if not."""
    part = topic.transactions if isinstance(topic, PersistentTopic) else None
    return True if part is not None and part.withholds else None


def _find_or_create(session: Session, topic: Topic, body: pb.CommandSubscribe) -> Subscription:
    """Return the subscription; a new durable one is audited."""
    is_new = body.subscription not in topic.subscriptions
    subscription = topic.subscribe(_request(topic, body))
    if is_new and subscription.durable:
        path = f"{topic.text}/{subscription.name}"
        session.services.audit.command(session.log_fields, "subscribe", path)
    return subscription


def _request(topic: Topic, body: pb.CommandSubscribe) -> SubscriptionRequest:
    start = body.start_message_id
    is_new = body.subscription not in topic.subscriptions
    return SubscriptionRequest(
        name=body.subscription,
        durable=body.durable,
        earliest=body.initialPosition == pb.CommandSubscribe.Earliest,
        start=(to_signed(start.ledgerId), to_signed(start.entryId))
        if body.HasField("start_message_id")
        else None,
        rollback_seconds=body.start_message_rollback_duration_sec,
        properties=pairs(body.subscription_properties, "subscription") if is_new else {},
        replicated=body.replicate_subscription_state,
    )


def _check_limits(topic: Topic, body: pb.CommandSubscribe) -> None:
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


# --- the flow of messages ---
def on_flow(session: Session, command: pb.BaseCommand) -> None:
    """Add permits to a consumer."""
    body = command.flow
    permits = body.messagePermits
    if permits == 0 or permits > 0x7FFFFFFF:
        raise ProtocolViolation(f"FLOW with {permits} permits")
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        consumer.subscription.flow(consumer, permits)


def on_ack(session: Session, command: pb.BaseCommand) -> Job | None:
    """Acknowledge ids; an ACK with a request id is answered when it is durable."""
    body, ids = command.ack, command.ack.message_id
    is_cumulative = body.ack_type == pb.CommandAck.Cumulative
    if is_cumulative and len(ids) != 1:
        raise ProtocolViolation(f"a cumulative ACK with {len(ids)} ids")
    if body.txnid_most_bits or body.txnid_least_bits:
        return transactions.acknowledge(session, body, at_once=ACKED_AT_ONCE_MAX)
    if is_cumulative or len(ids) != 1 or ids[0].ack_set:
        return _acknowledge(session, body, is_cumulative=is_cumulative)
    # One entry, the most frequent form, needs no job.
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        consumer.subscription.acknowledge_one(consumer, ids[0].ledgerId, ids[0].entryId)
        if body.HasField("request_id"):
            _answer_ack(session, consumer, body.request_id, None)
    return None


def _acknowledge(session: Session, body: pb.CommandAck, *, is_cumulative: bool) -> Job:
    refusal: tuple[int, str] | None = None
    ids = body.message_id
    for start in range(0, len(ids) or 1, ACKED_AT_ONCE_MAX):
        if start:
            yield None
        consumer = session.consumers.get(body.consumer_id)
        if consumer is None:
            return
        try:
            if is_cumulative:
                consumer.subscription.acknowledge_cumulative(consumer, ids[0])
            else:
                consumer.subscription.acknowledge(consumer, ids[start : start + ACKED_AT_ONCE_MAX])
        except Refused as refused:
            refusal = (refused.code, refused.reason)
    if body.HasField("request_id"):
        assert consumer is not None
        _answer_ack(session, consumer, body.request_id, refusal)


def _answer_ack(
    session: Session, consumer: Consumer, request_id: int, refusal: tuple[int, str] | None
) -> None:
    """Answer when the acknowledgements are durable."""
    consumer_id = consumer.consumer_id

    def durable(error: StoreError | None) -> None:
        code, text = (refusal or (None, None)) if error is None else (pb.PersistenceError, str(error))
        session.answer(
            "ackResponse", consumer_id=consumer_id, request_id=request_id, error=code, message=text
        )

    consumer.subscription.when_durable(durable)


def on_redeliver(session: Session, command: pb.BaseCommand) -> None:
    """Redeliver the named ids, or everything that the consumer has not acknowledged."""
    body = command.redeliverUnacknowledgedMessages
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
        consumer.subscription.redeliver(consumer, body.message_ids, epoch)


# --- the subscription as a whole ---
def on_unsubscribe(session: Session, command: pb.BaseCommand) -> None:
    """Delete the consumer's subscription."""
    body = command.unsubscribe
    with session.answering_refusals(body.request_id):
        consumer = _consumer(session, body.consumer_id)
        subscription, gone = consumer.subscription, session.services.gone
        others = (each for each in subscription.consumers if each is not consumer and each.peer not in gone)
        if not body.force and any(others):
            raise Refused(pb.MetadataError, "Unconnected or shared consumer attempting to unsubscribe")
        # The requesting client is not notified that its consumer is closed.
        session.drop_consumer(body.consumer_id, consumer)
        subscription.remove(consumer)
        subscription.delete(partial(_changed, session, body.request_id, "unsubscribe", subscription))


def _consumer(session: Session, consumer_id: int) -> Consumer:
    """Return an open consumer. Raises `Refused`."""
    consumer = session.consumers.get(consumer_id)
    if consumer is None:
        raise Refused(pb.MetadataError, "Consumer not found")
    return consumer


def _changed(
    session: Session, request_id: int, what: str, subscription: Subscription, error: StoreError | None
) -> None:
    """Answer when a subscription was deleted or moved durably; that of a durable one is audited."""
    with session.answering_refusals(request_id):
        check_stored(error)
        if subscription.durable or what == "unsubscribe":
            path = f"{subscription.topic_text}/{subscription.name}"
            session.services.audit.command(session.log_fields, what, path)
        session.answer("success", request_id=request_id)


def on_seek(session: Session, command: pb.BaseCommand) -> None:
    """Move the subscription: consumers are closed first, SUCCESS follows when the new position is durable."""
    consumer = session.consumers.get(command.seek.consumer_id)
    _seek(session, command.seek, consumer, session.scheduler.now + OPENING_SECONDS_MAX)


def _seek(session: Session, body: pb.CommandSeek, consumer: Consumer | None, deadline: float) -> None:
    """Move the subscription of ``consumer``, if it is still open: it may have been closed meanwhile, also
    because its role lost the permission. A search for a time is retried until ``deadline``."""
    with session.answering_refusals(body.request_id):
        if consumer is None or session.consumers.get(body.consumer_id) is not consumer:
            raise Refused(pb.MetadataError, "Consumer not found")
        subscription = consumer.subscription
        try:
            subscription.seek(body, partial(_changed, session, body.request_id, "seek", subscription))
        except StoreBusy:
            if session.scheduler.now >= deadline:
                raise
            # The search by time takes several reads among old entries; the entries read are cached.
            again = partial(_seek, session, body, consumer, deadline)
            session.scheduler.after(OPENING_AGAIN_SECONDS, again, session)


def on_last_message_id(session: Session, command: pb.BaseCommand) -> None:
    """Answer with the newest durable entry and the subscription's mark-delete position."""
    body = command.getLastMessageId
    with session.answering_refusals(body.request_id):
        consumer = _consumer(session, body.consumer_id)
        waiting = session.last_message_requests.setdefault(consumer, [])
        if len(waiting) >= LAST_REQUESTS_MAX:
            reason = f"{LAST_REQUESTS_MAX} questions for the last message id wait for the disk already"
            raise Refused(pb.TooManyRequests, reason)
        waiting.append(body.request_id)
        if len(waiting) == 1:  # any number of requests causes one read
            _find_last(session, consumer, session.scheduler.now + OPENING_SECONDS_MAX)


def _find_last(
    session: Session, consumer: Consumer, deadline: float, error: StoreError | None = None
) -> None:
    """Answer a consumer's requests for its last message id, which may have to be read first.

    A busy disk is awaited: if the request were refused, ``pulsar-client`` would report that no message is
    available, and its application would stop reading in the middle.
    """
    if session.consumers.get(consumer.consumer_id) is not consumer:
        session.last_message_requests.pop(consumer, None)
        return
    subscription, scheduler = consumer.subscription, session.scheduler
    again = partial(_find_last, session, consumer, deadline)
    last, refused = None, None
    try:
        if error is not None:
            raise error
        last = subscription.last_message(session.later(again), compacted=consumer.read_compacted)
        if last is None:
            return
    except Refused as problem:
        refused = problem
    except StoreError as problem:
        if isinstance(problem, StoreBusy) and scheduler.now < deadline:
            scheduler.after(LAST_AGAIN_SECONDS, again, session)
            return
        refused = storage_refusal(problem)
    for request_id in session.last_message_requests.pop(consumer, ()):
        if last is not None:
            session.answer(
                "getLastMessageIdResponse",
                request_id=request_id,
                last_message_id=_id(last.position, subscription.partition, last.batch_index),
                consumer_mark_delete_position=_id(last.mark_delete_position),
            )
        elif refused is not None:
            session.refuse(request_id, refused)


def _id(
    position: tuple[int, int], partition: int | None = None, batch_index: int | None = None
) -> pb.MessageIdData:
    ledger_id, entry_id = map(to_unsigned, position)
    return pb.MessageIdData(
        ledgerId=ledger_id, entryId=entry_id, partition=partition, batch_index=batch_index
    )


def on_consumer_stats(session: Session, command: pb.BaseCommand) -> None:
    """Answer with statistics; an unknown consumer is an error in the answer, not of the connection."""
    body = command.consumerStats
    consumer = session.consumers.get(body.consumer_id)
    fields: dict[str, object]
    if consumer is None:
        fields = {"error_code": pb.ConsumerNotFound, "error_message": "Consumer not found"}
    else:
        rates = consumer.rates_now(session.scheduler.now)
        fields = {
            "msgRateOut": rates[0],
            "msgThroughputOut": rates[1],
            "msgRateRedeliver": rates[2],
            "messageAckRate": rates[3],
            "consumerName": consumer.name,
            "availablePermits": max(0, consumer.permits),
            "unackedMessages": consumer.unacked_messages,
            "blockedConsumerOnUnackedMsgs": consumer.blocked,
            "address": session.address,
            "connectedSince": iso_time(consumer.connected_since_ms),
            "type": consumer.type_name,
            "msgRateExpired": 0.0,
            "msgBacklog": consumer.subscription.backlog,
            "gemingaAckHoles": consumer.subscription.ack_holes(session.scheduler.now),
        }
    session.answer("consumerStatsResponse", request_id=body.request_id, **fields)


def on_close_consumer(session: Session, command: pb.BaseCommand) -> None:
    """Close a consumer; SUCCESS even if it is unknown."""
    body = command.close_consumer
    consumer = session.consumers.take(body.consumer_id)
    if consumer is not None:
        consumer.subscription.remove(consumer)
    session.answer("success", request_id=body.request_id)
