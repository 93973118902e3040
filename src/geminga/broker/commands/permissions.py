"""Permission that a command needs, checked before its handler runs on a broker with authorization.

Commands that name a topic or a namespace are decided here. Those that act on a producer, a consumer or a
watcher name it by the id that its connection gave it when it was permitted, so they need no check; when
a permission is revoked, `disconnect_forbidden` closes open handles, and a command that waits is checked again
when its wait ends. Refusals do not reveal whether the topic exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from geminga.broker.commands.session import Handler, Session
from geminga.broker.cooperative import CooperativeScheduler, Job
from geminga.broker.refusal import Refused
from geminga.broker.rules.authorization import CONSUME, PRODUCE, Authorization
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb


class NoPermissionNeeded(Enum):
    """Reason why a command needs no permission."""

    HANDSHAKE = "part of the connection itself"
    HANDLE = "acts on what was permitted when it was opened on this connection"
    REFUSED = "refused to everybody"


Guard = Callable[[Session, pb.BaseCommand], bool]
"""Returns whether the command may run; if not, the guard has answered it."""


def guard(
    body: str,
    refusal: Callable[[Session, Any], Refused | None],
    answer: str = "error",
) -> Guard:
    """Return the guard of a command: ``body`` is the name of its field in `BaseCommand`, ``refusal`` decides
    (`geminga.broker.commands.permitted`), and ``answer`` is the field of the
    answer that reports it."""

    def check(session: Session, command: pb.BaseCommand) -> bool:
        request = getattr(command, body)
        refused = refusal(session, request)
        if refused is not None:
            path = getattr(request, "topic", "") or getattr(request, "namespace", "")
            session.services.audit.command(session.log_fields, body, path, refused.code)
            session.refuse(request.request_id, refused, answer)
        return refused is None

    return check


def guarded(check: Guard, handler: Handler) -> Handler:
    """Return a handler that runs only if ``check`` allows the command."""

    def handle(session: Session, command: pb.BaseCommand) -> Job | None:
        return handler(session, command) if check(session, command) else None

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
