"""Commands of transactions: those of their coordinator, and SEND and ACK with the id of one (framing.md
section 12)."""

from __future__ import annotations

from functools import partial
from typing import Any

from geminga.broker.commands.session import Session
from geminga.broker.delivery.consumer import EXCLUSIVE, FAILOVER, Consumer
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.runtime.cooperative import Job
from geminga.broker.runtime.refusal import Refused, storage_refusal
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.producer import Producer
from geminga.broker.topics.topic_registry import SUBSCRIPTION_NAME_MAX, check_length, parse_topic
from geminga.broker.topics.transactions import ANNOUNCED_MAX, COORDINATOR, TransactionRecord
from geminga.errors import StoreError
from geminga.transactions import TransactionId
from geminga.wire.frames import SendFrame
from geminga.wire.proto import pulsar_wire_pb2 as pb

ANSWERED_SECONDS = 5.0
"""An end that is answered in less is known to the client; after a longer wait, the client may have given the
answer up and asks again for the state."""


def _owner(session: Session) -> str:
    """Return the role of a connection's client; empty without authentication."""
    return "" if session.identity is None else session.identity.principal.role


def _id(body: Any) -> TransactionId:
    return TransactionId(body.txnid_most_bits, body.txnid_least_bits)


def _id_fields(body: Any) -> dict[str, Any]:
    return {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}


def _answer(session: Session, field: str, request_id: int, refused: Refused | None, **values: Any) -> None:
    if refused is not None and refused.code == pb.NotAllowedError and field != "ackResponse":
        session.refuse(request_id, refused)  # as Apache Pulsar's without a coordinator
        return
    if refused is not None:
        values |= {"error": refused.code, "message": refused.reason}
    session.answer(field, request_id=request_id, **values)


def _check_coordinator(session: Session, number: int) -> None:
    if not session.services.settings.transactions:
        raise Refused(pb.NotAllowedError, "Transactions are not enabled.")
    if number != COORDINATOR:
        raise Refused(
            pb.TransactionCoordinatorNotFound, f"This broker has coordinator {COORDINATOR}, not {number}"
        )


# --- the coordinator ---
def on_connect(session: Session, command: pb.BaseCommand) -> None:
    """Answer that this broker has the coordinator."""
    body, refused = command.tcClientConnectRequest, None
    try:
        _check_coordinator(session, body.tc_id)
    except Refused as refusal:
        refused = refusal
    _answer(session, "tcClientConnectResponse", body.request_id, refused)


def on_begin(session: Session, command: pb.BaseCommand) -> None:
    """Begin a transaction. Clients send milliseconds in ``txn_ttl_seconds``."""
    body = command.newTxn
    request_id = body.request_id

    def begun(transaction: TransactionRecord, refused: Refused | None) -> None:
        answer(refused, txnid_most_bits=transaction.id.most_bits, txnid_least_bits=transaction.id.least_bits)

    answer = partial(_answer, session, "newTxnResponse", request_id)
    try:
        _check_coordinator(session, body.tc_id)
        session.services.coordinator.begin(_owner(session), body.txn_ttl_seconds, begun)
    except Refused as refused:
        answer(refused)


def on_add(session: Session, command: pb.BaseCommand) -> None:
    """Accept a part of an open transaction: partitions to publish to, or subscriptions to acknowledge in. It
    becomes a part by its first message or acknowledgement. The first `ANNOUNCED_MAX` of a command are shown
    to administrators before."""
    adds_partitions = command.type == pb.BaseCommand.ADD_PARTITION_TO_TXN
    field = "addPartitionToTxn" if adds_partitions else "addSubscriptionToTxn"
    body, refused = getattr(command, field), None
    try:
        transaction = session.services.coordinator.open(_id(body), _owner(session))
        if adds_partitions:
            named = [(topic, "") for topic in body.partitions[:ANNOUNCED_MAX]]
        else:
            named = [(each.topic, each.subscription) for each in body.subscription[:ANNOUNCED_MAX]]
        for topic, subscription in named:
            parse_topic(topic)
            check_length("subscription's name", subscription, SUBSCRIPTION_NAME_MAX)
            transaction.announce(topic, subscription)
    except Refused as refusal:
        refused = refusal
    _answer(session, f"{field}Response", body.request_id, refused, **_id_fields(body))


def on_end(session: Session, command: pb.BaseCommand) -> None:
    """Commit or abort a transaction; the answer follows when that is durable. A client that has the answer
    and asks again gets `TransactionNotFound`, as from Apache Pulsar."""
    body = command.endTxn
    request_id, values = body.request_id, _id_fields(body)
    transaction_id, asked = _id(body), session.scheduler.now

    def answer(refused: Refused | None) -> None:
        if refused is None and session.scheduler.now - asked < ANSWERED_SECONDS:
            session.answered_end = transaction_id
        _answer(session, "endTxnResponse", request_id, refused, **values)

    try:
        if session.answered_end == transaction_id:
            raise Refused(pb.TransactionNotFound, f"Transaction {transaction_id} is not found: it has ended")
        session.services.coordinator.end(
            _id(body), _owner(session), commit=body.txn_action == pb.COMMIT, answer=answer
        )
    except Refused as refused:
        answer(refused)


def on_internal(session: Session, command: pb.BaseCommand) -> None:
    """Refuse what only brokers of a cluster send each other."""
    field = "endTxnOnPartition" if command.HasField("endTxnOnPartition") else "endTxnOnSubscription"
    refused = Refused(pb.NotAllowedError, "Only its coordinator ends a transaction")
    session.refuse(getattr(command, field).request_id, refused)


# --- messages and acknowledgements ---
def publish(session: Session, producer: Producer, frame: SendFrame, counted: int | None) -> None:
    """Store an entry of a transaction."""
    highest = frame.highest_sequence_id or frame.sequence_id
    try:
        transaction = session.services.coordinator.open(_id(frame), _owner(session))
        producer.topic.publish_in(transaction, producer, frame, counted)
    except Refused as refused:
        # Clients fail the message for this code, and reconnect for others.
        producer.error(highest, pb.NotAllowedError, refused.reason)
    except StoreError as error:
        producer.send_retriable_error(highest, pb.PersistenceError, str(error))


def acknowledge(session: Session, body: pb.CommandAck, *, at_once: int) -> Job:
    """Acknowledge the ids of an ACK in a transaction, in slices of ``at_once``: all of a slice or none, and
    none that follow a refusal. Answer when that is durable."""
    has_request, request_id = body.HasField("request_id"), body.request_id
    values = _id_fields(body) | {"consumer_id": body.consumer_id}

    def answer(refused: Refused | None) -> None:
        if has_request:
            _answer(session, "ackResponse", request_id, refused, **values)

    coordinator = session.services.coordinator
    try:
        for start in range(0, len(body.message_id) or 1, at_once):
            if start:
                yield None
            consumer = session.consumers.get(body.consumer_id)
            if consumer is None:
                return
            transaction = coordinator.open(_id(body), _owner(session))
            _acknowledge(consumer, transaction, body, start, start + at_once)
        coordinator.when_durable(transaction, answer)
    except Refused as refused:
        answer(refused)
    except StoreError as error:
        answer(storage_refusal(error))


def _acknowledge(
    consumer: Consumer, transaction: TransactionRecord, body: pb.CommandAck, start: int, stop: int
) -> None:
    subscription = consumer.subscription
    topic = subscription.topic if isinstance(subscription, PersistentSubscription) else None
    if not (isinstance(subscription, PersistentSubscription) and isinstance(topic, PersistentTopic)):
        raise Refused(pb.NotAllowedError, "A topic that is not persistent has no transactions")
    part = topic.in_transactions()
    if body.ack_type == pb.CommandAck.Individual:
        part.acknowledge(subscription, transaction, body.message_id[start:stop])
    elif subscription.type in (EXCLUSIVE, FAILOVER):
        part.acknowledge_cumulative(subscription, transaction, body.message_id[0])
    else:
        raise Refused(pb.NotAllowedError, "A shared subscription has no cumulative acknowledgements")
    consumer.acknowledged(subscription.scheduler.now_ms)
    subscription.last_acked_ms = subscription.scheduler.now_ms
