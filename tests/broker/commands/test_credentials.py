"""Authentication: accepted clients, errors for others, and tokens that expire on an open connection."""

import base64
import logging
from typing import Any

import pytest

from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.credentials import make_authentication
from geminga.broker.settings import BrokerSettings
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import KEY, SECRET, TOPIC, Command, said

START = 1_800_000_000


def token(role: str = "joe", seconds: int | None = None, key: bytes = KEY) -> str:
    return make_token(role, key, "HS256", expires_at=None if seconds is None else START + seconds)


@pytest.fixture
def asking(make_harness):
    return make_harness(token_secret_key=SECRET, super_user_roles=("joe",))


CANARY = token("canary", key=b"k" * 32)


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"auth_method_name": "none"},
        {"auth_method_name": "token"},
        {"auth_method_name": "token", "auth_data": CANARY.encode()},
        {"auth_method_name": "token", "auth_data": token(seconds=0).encode()},
        {"auth_method_name": "token", "auth_data": b"\0" * 50_000},
        {"auth_method_name": "basic", "auth_data": b"joe:canary"},
        {"auth_method_name": "tls"},
        {"auth_method_name": "x" * 10_000, "auth_data": CANARY.encode()},
        {"auth_method": 2, "auth_data": CANARY.encode()},
    ],
)
def test_invalid_credentials_are_refused(asking, shown, caplog):
    caplog.set_level(logging.DEBUG)
    peer = asking.peer(connect=False)
    peer.command("connect", client_version="c", protocol_version=21, **shown)
    [frame] = peer.frames
    error = frame.command.error
    assert (error.request_id, error.error) == ((1 << 64) - 1, pb.AuthenticationError)
    has_expired = shown.get("auth_data") == token(seconds=0).encode()
    assert error.message == "Failed to authenticate" + ": the token has expired" * has_expired
    assert peer.is_closed
    assert "canary" not in caplog.text
    assert CANARY not in caplog.text
    assert "Failed to authenticate: " in caplog.text
    peer.send_bytes(b"\0\0\0\1")
    assert len(peer.frames) == 1


def test_an_original_principal_must_equal_the_role(asking):
    for original, closed in (("joe", False), ("other", True)):
        peer = asking.peer(connect=False)
        shown = {"auth_method_name": "token", "auth_data": token().encode()}
        peer.command("connect", client_version="c", original_principal=original, **shown)
        assert peer.is_closed == closed


def test_clients_without_credentials_get_the_anonymous_role(make_harness):
    harness = make_harness(token_secret_key=SECRET, anonymous_role="guest")
    assert harness.peer().session.identity.principal.role == "guest"
    assert harness.peer(token=token()).session.identity.principal.role == "joe"
    wrong = harness.peer(connect=False)
    wrong.command("connect", client_version="c", auth_method_name="token", auth_data=b"x")
    assert wrong.is_closed, "wrong credentials are not none"


def test_fresh_credentials_are_asked_for_when_the_token_expires(asking):
    peer = asking.peer(token=token(seconds=90))
    peer.producer(TOPIC)
    asking.advance(89)
    assert not peer.frames
    asking.advance(1.1)
    [frame] = peer.frames
    challenge = frame.command.authChallenge.challenge
    assert frame.type == Command.AUTH_CHALLENGE
    assert (challenge.auth_method_name, challenge.auth_data) == ("token", b"PulsarAuthRefresh")
    peer.frames.clear()
    peer.send(0)  # the connection keeps working meanwhile
    assert len(peer.receipts()) == 1
    respond(peer, token(seconds=1000))
    asking.advance(900)
    assert not peer.is_closed
    assert not peer.frames
    asking.advance(12)
    assert [each.type for each in peer.frames] == [Command.AUTH_CHALLENGE]
    asking.advance(60)
    assert peer.is_closed, "no fresh ones came in time"


def respond(peer: Any, text: str) -> None:
    response = {"auth_method_name": "token", "auth_data": text.encode()}
    peer.command("authResponse", client_version="c", response=response)


@pytest.mark.parametrize("wrong", [token("other"), token(seconds=0), "nonsense", ""])
def test_fresh_credentials_must_prove_the_same_role(asking, wrong):
    peer = asking.peer(token=token(seconds=10))
    asking.advance(11)
    peer.frames.clear()
    respond(peer, wrong)
    assert [frame.command.error.error for frame in peer.frames] == [pb.AuthenticationError]
    assert peer.is_closed


def test_a_client_that_cannot_refresh_is_closed(asking):
    peer = asking.peer(token=token(seconds=10), refreshes=False)
    asking.advance(9)
    assert not peer.is_closed
    asking.advance(2)
    assert peer.is_closed
    assert not peer.frames


def test_a_closed_connection_leaves_no_timer(asking):
    peer = asking.peer(token=token(seconds=10))
    peer.disconnect()
    asking.advance(100)
    assert not peer.frames


def test_a_clock_that_was_set_forward_is_noticed(asking):
    peer = asking.peer(token=token(seconds=1_000_000))
    asking.start_ms += 1_000_000_000
    asking.advance(61)
    assert [frame.type for frame in peer.frames] == [Command.AUTH_CHALLENGE]


def test_clients_prove_their_role_again_when_keys_change(make_harness):
    harness = make_harness(token_secret_key=SECRET, anonymous_role="guest", authorization=False)
    peers = [harness.peer(token=token()) for _ in range(3)]
    unable, guest = harness.peer(token=token(), refreshes=False), harness.peer()
    next_key = bytes(range(32, 64))
    settings = {"memory": True, "token_secret_key": "data:;base64," + base64.b64encode(next_key).decode()}
    authentication = make_authentication(BrokerSettings(**settings, anonymous_role="guest"))
    assert harness.broker.replace_authentication(authentication)
    harness.advance(0)
    assert unable.is_closed
    assert not guest.is_closed
    assert [peer.pop().type for peer in peers] == [Command.AUTH_CHALLENGE] * 3
    respond(peers[0], token(key=next_key))
    respond(peers[1], token())
    assert (peers[0].is_closed, peers[1].is_closed, peers[2].is_closed) == (False, True, False)
    harness.advance(61)
    assert (peers[0].is_closed, peers[2].is_closed) == (False, True)
    assert not harness.broker.replace_authentication(authentication), "nothing has changed since"


def test_changes_and_refusals_of_the_binary_protocol_are_audited(make_harness, caplog):
    caplog.set_level(logging.INFO, "geminga.audit")
    harness = make_harness(token_secret_key=SECRET, super_user_roles=("joe",))
    joe, eve, mallory = (harness.peer(token=token(role)) for role in ("joe", "eve", "joe"))
    joe.producer(TOPIC)
    joe.producer(TOPIC, 2)
    joe.subscribe(TOPIC, "s")
    joe.subscribe(TOPIC, "reader", 2, durable=False)
    schema = {"name": "s", "type": pb.Schema.String, "schema_data": b""}
    joe.request("getOrCreateSchema", topic=TOPIC, schema=schema)
    joe.request("seek", consumer_id=1, message_publish_time=1)
    mallory.subscribe(TOPIC, "s")
    mallory.request("unsubscribe", consumer_id=1)
    eve.request("producer", topic=TOPIC, producer_id=1)
    wrong = harness.peer(connect=False)
    wrong.command("connect", client_version="c", auth_method_name="token", auth_data=b"x")
    by = "from /10.0.0.1:4242"
    assert said(caplog, "geminga.audit") == [
        f"ok create {TOPIC} by joe {by}",
        f"ok subscribe {TOPIC}/s by joe {by}",
        f"ok getOrCreateSchema {TOPIC} by joe {by}",
        f"ok seek {TOPIC}/s by joe {by}",
        f"ok unsubscribe {TOPIC}/s by joe {by}",
        f"AuthorizationError producer {TOPIC} by eve {by}",
        f"AuthenticationError connect - by - {by}",
    ]
    assert harness.broker.audit.failures["binary"] == 1


def test_a_partitioned_topic_that_a_question_for_its_partitions_makes_is_audited(make_harness, caplog):
    caplog.set_level(logging.INFO, "geminga.audit")
    harness = make_harness(auto_create_topic_kind="partitioned", auto_create_partitions=3)
    peer = harness.peer()
    for _ in range(2):
        answer = peer.request("partitionMetadata", topic=TOPIC, metadata_auto_creation_enabled=True)
        assert answer.command.partitionMetadataResponse.partitions == 3
    assert said(caplog, "geminga.audit") == [f"ok create {TOPIC} by - from /10.0.0.1:4242"]
