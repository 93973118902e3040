"""Permission that each command needs: a complete table, checked before the handler runs.

Commands that name a topic or a namespace are decided here. Those that act on a producer, a consumer or a
watcher name it by the id that its connection gave it when it was permitted, so they need no check; when
a permission is revoked, `disconnect_forbidden` closes open handles, and a command that waits is checked again
when its wait ends. Refusals do not reveal whether the topic exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from geminga.broker.commands import answers
from geminga.broker.commands.permitted import (
    consumer_refusal,
    list_refusal,
    look_refusal,
    producer_refusal,
    schema_refusal,
)
from geminga.broker.commands.session import CommandTable, Handler, Session
from geminga.broker.commands.table import HANDLERS, TABLE, TRANSACTION_BODIES
from geminga.broker.cooperative import CooperativeScheduler, Job
from geminga.broker.refusal import Refused
from geminga.broker.rules.authorization import CONSUME, PRODUCE, Authorization
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

Command = pb.BaseCommand


class NoPermissionNeeded(Enum):
    """Reason why a command needs no permission."""

    HANDSHAKE = "part of the connection itself"
    HANDLE = "acts on what was permitted when it was opened on this connection"
    REFUSED = "refused to everybody"


Guard = Callable[[Session, pb.BaseCommand], bool]
"""Returns whether the command may run; if not, the guard has answered it."""
TopicRule = Callable[[Authorization, str, TopicName], bool]


def _partitioned_metadata(session: Session, command: pb.BaseCommand) -> bool:
    body = command.partitionMetadata
    refused = look_refusal(session, body.topic, "Get Partition Metadata")
    if refused is not None:
        session.output.write(answers.partitions_failed(body.request_id, refused.code, refused.reason))
    return refused is None


def _lookup(session: Session, command: pb.BaseCommand) -> bool:
    body = command.lookupTopic
    refused = look_refusal(session, body.topic, "Lookup")
    if refused is not None:
        session.output.write(answers.lookup_failed(body.request_id, refused.code, refused.reason))
    return refused is None


def _get_schema(session: Session, command: pb.BaseCommand) -> bool:
    body = command.getSchema
    refused = look_refusal(session, body.topic, "Get Schema")
    if refused is not None:
        session.output.write(answers.schema_failed(body.request_id, refused.code, refused.reason))
    return refused is None


def _put_schema(session: Session, command: pb.BaseCommand) -> bool:
    body = command.getOrCreateSchema
    refused = schema_refusal(session, body.topic)
    if refused is not None:
        session.output.write(answers.schema_refused(body.request_id, refused.code, refused.reason))
    return refused is None


def _produce(session: Session, command: pb.BaseCommand) -> bool:
    body = command.producer
    return _allowed(session, body.request_id, producer_refusal(session, body))


def _subscribe(session: Session, command: pb.BaseCommand) -> bool:
    body = command.subscribe
    return _allowed(session, body.request_id, consumer_refusal(session, body))


def _topics_of_namespace(session: Session, command: pb.BaseCommand) -> bool:
    body = command.getTopicsOfNamespace
    return _allowed(session, body.request_id, list_refusal(session, body.namespace))


def _watch(session: Session, command: pb.BaseCommand) -> bool:
    body = command.watchTopicList
    return _allowed(session, body.request_id, list_refusal(session, body.namespace))


def _allowed(session: Session, request_id: int, refused: Refused | None) -> bool:
    if refused is not None:
        session.refuse(request_id, refused)
    return refused is None


PERMISSIONS: Final[Mapping[int, Guard | NoPermissionNeeded]] = {
    Command.CONNECT: NoPermissionNeeded.HANDSHAKE,
    Command.AUTH_RESPONSE: NoPermissionNeeded.HANDSHAKE,
    Command.PING: NoPermissionNeeded.HANDSHAKE,
    Command.PONG: NoPermissionNeeded.HANDSHAKE,
    Command.PARTITIONED_METADATA: _partitioned_metadata,
    Command.LOOKUP: _lookup,
    Command.GET_TOPICS_OF_NAMESPACE: _topics_of_namespace,
    Command.WATCH_TOPIC_LIST: _watch,
    Command.WATCH_TOPIC_LIST_CLOSE: NoPermissionNeeded.HANDLE,
    Command.PRODUCER: _produce,
    Command.SEND: NoPermissionNeeded.HANDLE,
    Command.CLOSE_PRODUCER: NoPermissionNeeded.HANDLE,
    Command.SUBSCRIBE: _subscribe,
    Command.FLOW: NoPermissionNeeded.HANDLE,
    Command.ACK: NoPermissionNeeded.HANDLE,
    Command.REDELIVER_UNACKNOWLEDGED_MESSAGES: NoPermissionNeeded.HANDLE,
    Command.UNSUBSCRIBE: NoPermissionNeeded.HANDLE,
    Command.SEEK: NoPermissionNeeded.HANDLE,
    Command.GET_LAST_MESSAGE_ID: NoPermissionNeeded.HANDLE,
    Command.CONSUMER_STATS: NoPermissionNeeded.HANDLE,
    Command.CLOSE_CONSUMER: NoPermissionNeeded.HANDLE,
    Command.GET_SCHEMA: _get_schema,
    Command.GET_OR_CREATE_SCHEMA: _put_schema,
    **dict.fromkeys(TRANSACTION_BODIES, NoPermissionNeeded.REFUSED),
}
"""Permission of every command of clients. A missing one is rejected on brokers with authorization."""


def _guarded(guard: Guard, handler: Handler) -> Handler:
    def handle(session: Session, command: pb.BaseCommand) -> Job | None:
        return handler(session, command) if guard(session, command) else None

    return handle


def _guarded_handlers() -> dict[int, Handler]:
    found = {}
    for kind, handler in HANDLERS.items():
        rule = PERMISSIONS.get(kind)
        if isinstance(rule, NoPermissionNeeded):
            found[kind] = handler
        elif rule is not None:
            found[kind] = _guarded(rule, handler)
    return found


GUARDED_TABLE: Final = CommandTable(
    on_send=TABLE.on_send,
    on_send_run=TABLE.on_send_run,
    on_single_ack=TABLE.on_single_ack,
    handlers=_guarded_handlers(),
)
"""`TABLE` for brokers with authentication."""


# --- when a permission is taken away ---
def disconnect_forbidden(
    sessions: Iterable[Session], authorization: Authorization, tenant: str, slices: CooperativeScheduler
) -> Job:
    """Return a job that closes the producers and consumers in a tenant whose role lost its permission."""
    for session in sessions:
        identity = session.identity
        if identity is None:
            continue
        role = identity.principal.role
        if not authorization.administers(role, tenant):
            yield from _close_forbidden(session, authorization, role, tenant, slices)
        if slices.should_yield:
            yield None


def _close_forbidden(
    session: Session, authorization: Authorization, role: str, tenant: str, slices: CooperativeScheduler
) -> Job:
    for producer in session.producers.all():
        name = TopicName.parse(producer.topic.text)
        if name.tenant == tenant and not authorization.may(role, PRODUCE, name):
            producer.disconnect()
        if slices.should_yield:
            yield None
    for consumer in session.consumers.all():
        subscription = consumer.subscription
        name = TopicName.parse(subscription.topic_text)
        if name.tenant == tenant and not authorization.may_subscribe(role, name, subscription.name):
            consumer.disconnect()
        if slices.should_yield:
            yield None
    for watcher_id, watcher in list(session.watchers.items()):
        watched, _, namespace = watcher.namespace.partition("/")
        if watched == tenant and not authorization.may_in_namespace(role, CONSUME, tenant, namespace):
            session.watchers.pop(watcher_id).close()
