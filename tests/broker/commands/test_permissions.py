"""Command × role × tenant: who may send what, over every command of the table, and what a refusal tells."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.commands.permissions import NoPermissionNeeded
from geminga.broker.commands.probing import PROBE_SECONDS
from geminga.broker.commands.table import COMMANDS, TABLE
from geminga.broker.rules.tokens import make_token
from geminga.broker.runtime.cooperative import CooperativeScheduler
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import KEY, SECRET, Command

ROLES = ("super", "admin", "producer", "consumer", "one-topic", "other-admin", "nobody")
MINE, OTHERS = "persistent://mine/ns/t", "persistent://others/ns/t"


def token(role: str, **options: Any) -> str:
    return make_token(role, KEY, "HS256", **options)


@pytest.fixture
def guarded(make_harness):
    harness = make_harness(token_secret_key=SECRET, super_user_roles=("super",))
    namespaces = harness.broker.namespaces
    namespaces.tenants.create("mine", {"adminRoles": ["admin"], "allowedClusters": ["standalone"]})
    namespaces.tenants.create("others", {"adminRoles": ["other-admin"], "allowedClusters": ["standalone"]})
    for tenant in ("mine", "others"):
        namespaces.create_namespace(tenant, "ns")
    given = {
        "namespace_auth": {"producer": ["produce"], "consumer": ["consume"]},
        "destination_auth": {MINE: {"one-topic": ["produce", "consume"]}},
    }
    namespaces.set_policy("mine", "ns", "auth_policies", given)
    return harness


# Roles that may send each command for MINE; for OTHERS only its administrator and super users may.
LOOK = {"super", "admin", "producer", "consumer", "one-topic"}
ALLOWED = {
    "PARTITIONED_METADATA": LOOK,
    "LOOKUP": LOOK,
    "GET_SCHEMA": LOOK,
    "PRODUCER": {"super", "admin", "producer", "one-topic"},
    "GET_OR_CREATE_SCHEMA": {"super", "admin", "producer", "one-topic"},
    "SUBSCRIBE": {"super", "admin", "consumer", "one-topic"},
    "GET_TOPICS_OF_NAMESPACE": {"super", "admin", "consumer"},
    "WATCH_TOPIC_LIST": {"super", "admin", "consumer"},
}
FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "PARTITIONED_METADATA": ("partitionMetadata", {"metadata_auto_creation_enabled": True}),
    "LOOKUP": ("lookupTopic", {}),
    "GET_SCHEMA": ("getSchema", {}),
    "PRODUCER": ("producer", {"producer_id": 1}),
    "GET_OR_CREATE_SCHEMA": ("getOrCreateSchema", {"schema": {"name": "s", "schema_data": b"", "type": 1}}),
    "SUBSCRIBE": ("subscribe", {"subscription": "s", "consumer_id": 1, "subType": 1}),
    "GET_TOPICS_OF_NAMESPACE": ("getTopicsOfNamespace", {}),
    "WATCH_TOPIC_LIST": ("watchTopicList", {"watcher_id": 1, "topics_pattern": ".*"}),
}


def ask(peer: Any, name: str, topic: str) -> str:
    """Sends the command; the kind of refusal, or nothing."""
    return refusal(peer.request(FIELDS[name][0], **fields_of(name, topic)).command)


def fields_of(name: str, topic: str) -> dict[str, Any]:
    if name in ("GET_TOPICS_OF_NAMESPACE", "WATCH_TOPIC_LIST"):
        return {"namespace": topic.split("://")[1].rpartition("/")[0], **FIELDS[name][1]}
    return {"topic": topic, **FIELDS[name][1]}


def refusal(command: Any) -> str:
    """The name of the error in any answer; empty for a good one."""
    name = next(field.name for field in Command.DESCRIPTOR.fields if field.number == command.type)
    body = getattr(command, name)
    for key in ("error", "error_code"):
        if key in body.DESCRIPTOR.fields_by_name and (command.type == Command.ERROR or body.HasField(key)):
            return str(pb.ServerError.Name(getattr(body, key)))
    return ""


def test_every_command_is_guarded_as_its_spec_says():
    assert set(TABLE.handlers) == set(COMMANDS) - {Command.SEND}
    free = {kind for kind, spec in COMMANDS.items() if isinstance(spec.needs, NoPermissionNeeded)}
    assert {Command.Type.Name(kind) for kind in set(COMMANDS) - free} == set(ALLOWED) == set(FIELDS)
    for kind, handler in TABLE.handlers.items():
        assert (kind in free) == (COMMANDS[kind].handler is handler)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ALLOWED)
def test_each_command_is_allowed_only_to_its_roles_and_tenants(guarded, name, role):
    may_in_others = {"super", "other-admin"}
    for topic, allowed in ((MINE, ALLOWED[name]), (OTHERS, may_in_others)):
        found = ask(guarded.peer(token=token(role)), name, topic)
        assert (found == "AuthorizationError") == (role not in allowed), (topic, found)


@pytest.mark.parametrize("name", ALLOWED)
def test_a_refusal_does_not_reveal_existing_topics(guarded, name):
    """The same answer whether tenant, namespace and topic exist or not."""
    told = set()
    guarded.peer(token=token("super")).producer(MINE)
    for topic in (MINE, MINE + "x", "persistent://mine/no/t", "persistent://no/no/t"):
        peer = guarded.peer(token=token("nobody"))
        peer.command(FIELDS[name][0], request_id=7, **fields_of(name, topic))
        [frame] = peer.frames
        told.add(frame.command.SerializeToString())
        assert not peer.is_closed
    assert len(told) == 1
    assert not guarded.broker.topics.is_stored(TopicName.parse(MINE + "x"))


def test_permissions_of_a_topic_hold_for_its_partitions(guarded):
    peer = guarded.peer(token=token("one-topic"))
    ask(guarded.peer(token=token("super")), "PARTITIONED_METADATA", MINE)
    assert ask(peer, "LOOKUP", MINE + "-partition-3") == ""
    assert ask(peer, "LOOKUP", MINE + "2") == "AuthorizationError"


def test_subscriptions_granted_to_others_are_refused(guarded):
    namespaces = guarded.broker.namespaces
    given = dict(namespaces.permissions("mine", "ns"))
    given["subscription_auth_roles"] = {"theirs": ["producer"]}
    namespaces.set_policy("mine", "ns", "auth_policies", given)
    peer = guarded.peer(token=token("consumer"))
    refused = {"topic": MINE, "subType": 1}
    assert refusal(peer.request("subscribe", subscription="theirs", consumer_id=1, **refused).command)
    assert not refusal(peer.request("subscribe", subscription="free", consumer_id=2, **refused).command)
    namespaces.set_policy("mine", "ns", "subscription_auth_mode", "Prefix")
    assert not peer.session.consumers, "the prefix mode closes what it forbids"
    peer.frames.clear()
    assert refusal(peer.request("subscribe", subscription="free", consumer_id=3, **refused).command)
    assert not refusal(peer.request("subscribe", subscription="consumer-1", consumer_id=4, **refused).command)
    # A producer may not make a subscription by the way.
    producer = guarded.peer(token=token("producer"))
    frame = producer.request("producer", topic=MINE, producer_id=1, initial_subscription_name="free")
    assert refusal(frame.command) == "AuthorizationError"


def test_producers_and_consumers_are_closed_when_their_permission_is_revoked(guarded):
    namespaces = guarded.broker.namespaces
    producer, consumer = guarded.peer(token=token("producer")), guarded.peer(token=token("consumer"))
    admin = guarded.peer(token=token("admin"))
    producer.producer(MINE)
    admin.producer(MINE)
    consumer.subscribe(MINE)
    consumer.request("watchTopicList", namespace="mine/ns", topics_pattern=".*", watcher_id=1)
    namespaces.set_policy("mine", "ns", "message_ttl_in_seconds", 5)
    assert not producer.frames
    namespaces.set_policy("mine", "ns", "auth_policies", {"namespace_auth": {}})
    assert [frame.type for frame in producer.frames] == [Command.CLOSE_PRODUCER]
    assert [frame.type for frame in consumer.frames] == [Command.CLOSE_CONSUMER]
    assert not consumer.session.watchers
    assert not admin.frames
    assert admin.session.producers
    namespaces.tenants.update("mine", {"adminRoles": [], "allowedClusters": ["standalone"]})
    assert [frame.type for frame in admin.frames] == [Command.CLOSE_PRODUCER]


HANDLES = {
    "producer": {"producer_id": 1, "producer_name": "p"},
    "subscribe": {"consumer_id": 1, "subscription": "s", "subType": 0},
}


def revoke(guarded: Any) -> None:
    guarded.broker.namespaces.set_policy("mine", "ns", "auth_policies", {"namespace_auth": {}})


def check_refused(guarded: Any, peer: Any) -> None:
    [frame] = peer.frames
    assert refusal(frame.command) == "AuthorizationError"
    assert not peer.session.handle_count
    topic = guarded.broker.topics.in_memory(TopicName.parse(MINE))
    assert not topic.access.producers
    assert not topic.consumers_connected


@pytest.mark.parametrize("body", HANDLES)
def test_an_attempt_that_waits_for_a_silent_peer_is_refused_after_a_revocation(guarded, body):
    holder = guarded.peer(token=token("one-topic"))
    holder.answers_pings = False
    assert not refusal(holder.request(body, topic=MINE, **HANDLES[body]).command)
    peer = guarded.peer(token=token("one-topic"))
    peer.command(body, request_id=2, topic=MINE, **HANDLES[body])
    assert not peer.frames
    revoke(guarded)
    guarded.advance(PROBE_SECONDS)
    check_refused(guarded, peer)


@pytest.mark.parametrize("body", HANDLES)
def test_an_attempt_that_waits_for_the_disk_is_refused_after_a_revocation(guarded, body):
    guarded.auto_poll = False
    peer = guarded.peer(token=token("one-topic"))
    schema = {"name": "s", "type": pb.Schema.String, "schema_data": b""}
    peer.command(body, request_id=2, topic=MINE, **(HANDLES[body] | {"schema": schema}))
    assert not peer.frames
    revoke(guarded)
    guarded.poll()
    check_refused(guarded, peer)


@pytest.mark.parametrize("name", ["PARTITIONED_METADATA", "GET_SCHEMA", "GET_OR_CREATE_SCHEMA"])
def test_a_request_that_waits_for_the_disk_is_refused_after_a_revocation(guarded, name, monkeypatch):
    guarded.peer(token=token("one-topic")).producer(MINE)
    guarded.restart()
    reads: list[Callable[[None], None]] = []
    monkeypatch.setattr(guarded.store, "bring", lambda _, then: bool(reads.append(then)))
    peer = guarded.peer(token=token("one-topic"))
    peer.command(FIELDS[name][0], request_id=2, **fields_of(name, MINE))
    assert not peer.frames
    revoke(guarded)
    while reads:
        reads.pop(0)(None)
    [frame] = peer.frames
    assert refusal(frame.command) == "AuthorizationError"
    assert not guarded.broker.schemas.versions(TopicName.parse(MINE))


@pytest.mark.parametrize("name", ["WATCH_TOPIC_LIST", "GET_TOPICS_OF_NAMESPACE"])
def test_a_list_that_is_being_read_is_refused_after_a_revocation(guarded, name, monkeypatch):
    admin = guarded.peer(token=token("admin"))
    for number in range(3):
        admin.producer(f"{MINE}{number}", producer_id=number)
    peer = guarded.peer(token=token("consumer"))
    monkeypatch.setattr(CooperativeScheduler, "should_yield", True)
    peer.command(FIELDS[name][0], request_id=2, **fields_of(name, MINE))
    assert not peer.frames
    revoke(guarded)
    while guarded.broker.slices.waiting:
        guarded.broker.slices.turn()
    [frame] = peer.frames
    assert refusal(frame.command) == "AuthorizationError"
    assert not peer.session.watchers
    assert not len(guarded.broker.watched)


def test_permissions_survive_a_restart(guarded):
    guarded.restart()
    assert ask(guarded.peer(token=token("producer")), "PRODUCER", MINE) == ""
    assert ask(guarded.peer(token=token("consumer")), "PRODUCER", MINE) == "AuthorizationError"


def test_without_authorization_every_authenticated_role_may_do_everything(make_harness):
    harness = make_harness(token_secret_key=SECRET, authorization=False)
    assert ask(harness.peer(token=token("nobody")), "PRODUCER", "t") == ""
