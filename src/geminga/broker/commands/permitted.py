"""Permissions of a connection's role: checked when a command arrives, and again when its wait ends.

A command may wait for its topic, for the disk or for another peer, and meanwhile a permission may be revoked.
"""

from __future__ import annotations

from geminga.broker.commands.session import Session
from geminga.broker.refusal import Refused
from geminga.broker.rules.authorization import CONSUME, PRODUCE, Authorization
from geminga.broker.topics.topic_registry import parse_topic
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb


def topic_of(text: str) -> TopicName | None:
    """Parse a topic's name; None for an invalid name, which the handler refuses."""
    try:
        return parse_topic(text)
    except Refused:
        return None


def asks(session: Session) -> tuple[Authorization, str] | None:
    """Return the authorization rules and the connection's role; None on a broker without authorization."""
    authorization, identity = session.services.authorization, session.identity
    return None if authorization is None or identity is None else (authorization, identity.principal.role)


def producer_refusal(session: Session, body: pb.CommandProducer) -> Refused | None:
    """Return the refusal of a producer that the role may not have, else None."""
    asked, topic = asks(session), topic_of(body.topic)
    if asked is None or topic is None:
        return None
    authorization, role = asked
    first = body.initial_subscription_name
    if not authorization.may(role, PRODUCE, topic):
        return _refusal("Client is not authorized to Produce")
    if first and not authorization.may_subscribe(role, topic, first):
        return _refusal("Client is not authorized to create the initial subscription")
    return None


def consumer_refusal(session: Session, body: pb.CommandSubscribe) -> Refused | None:
    """Return the refusal of a consumer that the role may not have, else None."""
    asked, topic = asks(session), topic_of(body.topic)
    if asked is None or topic is None or asked[0].may_subscribe(asked[1], topic, body.subscription):
        return None
    return _refusal("Client is not authorized to subscribe")


def look_refusal(session: Session, topic: str, action: str) -> Refused | None:
    """Return the refusal of a question about a topic that the role may not see, else None."""
    asked, name = asks(session), topic_of(topic)
    if asked is None or name is None or asked[0].may_look(asked[1], name):
        return None
    return _refusal(f"Client is not authorized to {action}")


def schema_refusal(session: Session, topic: str) -> Refused | None:
    """Return the refusal of a schema that the role may not register, else None."""
    asked, name = asks(session), topic_of(topic)
    if asked is None or name is None or asked[0].may(asked[1], PRODUCE, name):
        return None
    return _refusal("Client is not authorized to Create Schema")


def list_refusal(session: Session, namespace: str) -> Refused | None:
    """Return the refusal of a list of ``tenant/namespace`` that the role may not see, else None."""
    asked = asks(session)
    tenant, _, name = namespace.partition("/")
    if asked is None or asked[0].may_in_namespace(asked[1], CONSUME, tenant, name):
        return None
    return _refusal("Client is not authorized to list topics")


def _refusal(reason: str) -> Refused:
    return Refused(pb.AuthorizationError, reason)
