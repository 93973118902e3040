"""Permissions of commands, checked before their handlers run on a broker with authorization.

Commands that name a topic or a namespace are decided here. Those that act on a producer, a consumer or a
watcher name it by the id that its connection gave it when it was permitted, so they need no check; when
a permission is revoked, `disconnect_forbidden` closes open handles, and a command that waits is checked again
when its wait ends. Refusals do not reveal whether the topic exists.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple

from geminga.broker.commands.session import Handler, Session
from geminga.broker.rules.authorization import CONSUME, PRODUCE, Authorization
from geminga.broker.runtime.cooperative import CooperativeScheduler, Job
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics.topic_registry import parse_topic
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb


class NoPermissionNeeded(Enum):
    """Reason why a command needs no permission."""

    HANDSHAKE = "part of the connection itself"
    HANDLE = "acts on what was permitted when it was opened on this connection"
    TRANSACTION = "the client's own; what it sends and acknowledges in it is permitted with the handles"
    REFUSED = "refused to everybody"


PermissionCheck = Callable[[Session, Any], None]
"""Raises `Refused` if a request needs a permission that the connection's role does not have; on a broker
without authorization it has all."""


def _check(action: str, allows: Callable[[Authorization, str, Any], bool]) -> PermissionCheck:
    def check(session: Session, request: Any) -> None:
        authorization, identity = session.services.authorization, session.identity
        if authorization is None or identity is None:
            return
        if not allows(authorization, identity.principal.role, request):
            raise Refused(pb.AuthorizationError, f"Client is not authorized to {action}")

    return check


def _topic_check(
    action: str, allows: Callable[[Authorization, str, TopicName, Any], bool]
) -> PermissionCheck:
    """Return the check of requests about a topic. An invalid name is refused by the handler."""

    def of_topic(authorization: Authorization, role: str, request: Any) -> bool:
        try:
            topic = parse_topic(request.topic)
        except Refused:
            return True
        return allows(authorization, role, topic, request)

    return _check(action, of_topic)


def _look_check(action: str) -> PermissionCheck:
    return _topic_check(action, lambda rules, role, topic, _: rules.may_look(role, topic))


def _may_list(authorization: Authorization, role: str, request: Any) -> bool:
    tenant, _, name = request.namespace.partition("/")
    return authorization.may_in_namespace(role, CONSUME, tenant, name)


def _may_use_initial_subscription(
    authorization: Authorization, role: str, topic: TopicName, request: Any
) -> bool:
    name = request.initial_subscription_name
    return not name or authorization.may_subscribe(role, topic, name)


_check_produce = _topic_check("Produce", lambda rules, role, topic, _: rules.may(role, PRODUCE, topic))
_check_initial_subscription = _topic_check("create the initial subscription", _may_use_initial_subscription)


def check_producer(session: Session, request: pb.CommandProducer) -> None:
    """Raise `Refused` for a producer that the role may not have."""
    _check_produce(session, request)
    _check_initial_subscription(session, request)


check_consumer = _topic_check(
    "subscribe", lambda rules, role, topic, request: rules.may_subscribe(role, topic, request.subscription)
)
check_partitions = _look_check("Get Partition Metadata")
check_lookup = _look_check("Lookup")
check_schema = _look_check("Get Schema")
check_registration = _topic_check(
    "Create Schema", lambda rules, role, topic, _: rules.may(role, PRODUCE, topic)
)
check_list = _check("list topics", _may_list)


class Permission(NamedTuple):
    """Permission that a command needs."""

    command: str
    """Field of the command in `BaseCommand`."""
    check: PermissionCheck
    answer: str = "error"
    """Field of the answer that reports a refusal."""


def guarded(needs: Permission, handler: Handler) -> Handler:
    """Return a handler that runs only if the role has the permission; else the refusal is the answer."""

    def handle(session: Session, command: pb.BaseCommand) -> Job | None:
        request = getattr(command, needs.command)
        try:
            needs.check(session, request)
        except Refused as refused:
            path = getattr(request, "topic", "") or getattr(request, "namespace", "")
            session.services.audit.command(session.log_fields, needs.command, path, refused.code)
            session.refuse(request.request_id, refused, needs.answer)
            return None
        return handler(session, command)

    return handle


# --- when keys, passwords or permissions change ---
def prove_again(sessions: Iterable[Session], slices: CooperativeScheduler) -> Job:
    """Return a job that requires credentials once more from clients that showed some."""
    for session in sessions:
        if session.identity is not None:
            session.identity.prove_again()
        if slices.should_yield:
            yield None


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
