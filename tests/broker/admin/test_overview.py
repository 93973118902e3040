"""Requests of the console to admin REST, as any client may send them."""

import zlib
from typing import Any

import pytest
import web_requests

import geminga
from geminga.broker.admin import overview
from geminga.broker.admin.tailing import MessageFilter
from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.errors import StoreBusy
from geminga.ids import TopicName
from tests.broker.conftest import KEY, SECRET, TOPIC

PATH = "persistent/public/default/t"


@pytest.fixture(scope="module")
def broker():
    with embedded() as running, running.client() as client:
        consumer = client.subscribe(TOPIC, "s", consumer_type=geminga.ConsumerType.Shared, consumer_name="c")
        producer = client.create_producer(TOPIC)
        for number in range(5):
            producer.send(b"message %d" % number, partition_key=f"k{number}")
        consumer.receive(60_000)
        yield running


def ask(broker: EmbeddedBroker, path: str, method: str = "GET", token: str = "") -> tuple[int, Any]:
    credentials = {"Authorization": f"Bearer {token}"} if token else {}
    found = web_requests.ask(f"{broker.admin_url}/admin/v2/{path}", method, **credentials)
    return found.status, found.document


def get(broker: EmbeddedBroker, path: str) -> Any:
    status, found = ask(broker, path)
    assert status == 200, found
    return found


def test_the_board_shows_each_subscription_with_its_backlog(broker):
    while not (found := get(broker, "geminga/subscriptions?search=public&limit=5"))["complete"]:
        pass
    (row,) = found["rows"]
    assert (row["topic"], row["subscription"], row["messages"], row["unacked"]) == (TOPIC, "s", 5, 5)
    assert found["totals"]["subscriptions"] == 1


@pytest.mark.parametrize(
    ("query", "wanted"),
    [("sort=luck", "sort='luck' is not allowed; allowed: trouble"), ("limit=0", "limit=0 is not allowed"),
     ("offset=x", "offset='x' is not a whole number"), ("reverse=perhaps", "reverse='perhaps'")],
)  # fmt: skip
def test_a_bad_query_is_answered_with_the_reason(broker, query, wanted):
    status, found = ask(broker, f"geminga/subscriptions?{query}")
    assert status in (400, 412)
    assert wanted in found["reason"]


def test_the_overview_shows_connections_and_the_store(broker):
    found = get(broker, "geminga/overview")
    assert found["connections"] == len(found["peers"]) == 1
    peer = found["peers"][0]
    assert (peer["producers"], peer["consumers"], peer["read"]) == (1, 1, True)
    assert found["store"]["appended_entries"] >= 5
    assert found["topicsLoaded"] == 1
    events = {each["kind"]: each for each in get(broker, "geminga/happenings")}
    assert events.keys() == {"changed", "connected"}
    assert (events["connected"]["count"], events["connected"]["unit"]) == (1, "connection")


def test_the_holes_and_open_messages_of_a_subscription_are_shown(broker):
    found = get(broker, f"{PATH}/subscription/s/holes?cells=4")
    assert [each["state"] for each in found["entries"]] == ["open"] * 5
    assert found["entries"][0]["consumer"] == "c"
    (first, second) = get(broker, f"{PATH}/subscription/s/open?count=2")
    assert (first["key"], second["key"]) == ("k0", "k1")
    assert get(broker, f"{PATH}/subscription/s/preview/skip?count=2")["messages"] == 2
    assert ask(broker, f"{PATH}/subscription/s/preview/skip")[0] == 412
    assert ask(broker, f"{PATH}/subscription/s/preview/reset?message=5")[0] == 412
    assert ask(broker, f"{PATH}/subscription/s/preview/destroy")[0] == 404
    assert ask(broker, f"{PATH}/subscription/none/holes")[0] == 404
    assert ask(broker, f"{PATH}/subscription/s/redeliver?consumer=x", "POST")[0] == 404
    assert ask(broker, f"{PATH}/subscription/s/redeliver", "POST") == (200, {"messages": 5})


def test_the_newest_messages_are_shown_and_filtered_by_key(broker):
    found = get(broker, f"{PATH}/tail?count=2")
    assert [each["key"] for each in found["messages"]] == ["k3", "k4"]
    assert get(broker, f"{PATH}/tail?from={found['next']}")["messages"] == []
    assert [each["key"] for each in get(broker, f"{PATH}/tail?key=k1")["messages"]] == ["k1"]
    assert ask(broker, f"{PATH}/tail?from=here")[0] == 412
    assert ask(broker, "persistent/public/default/none/tail")[0] == 404


def test_each_role_sees_its_own_topics():
    with embedded(token_secret_key=SECRET, super_user_roles=("super",)) as running:
        tokens = {role: make_token(role, KEY, "HS256") for role in ("super", "mine", "stranger")}

        def do(method: str, path: str, body: Any) -> None:
            credentials = {"Authorization": f"Bearer {tokens['super']}"}
            web_requests.ask(f"{running.admin_url}/admin/v2/{path}", method, body, **credentials)

        for tenant in ("mine", "theirs"):
            do("PUT", f"tenants/{tenant}", {"adminRoles": [tenant], "allowedClusters": ["standalone"]})
            do("PUT", f"namespaces/{tenant}/ns", {})
            do("PUT", f"persistent/{tenant}/ns/t", {})
            do("PUT", f"persistent/{tenant}/ns/t/subscription/s", None)

        def seen(role: str) -> list[str]:
            while True:
                status, found = ask(running, "geminga/subscriptions", token=tokens[role])
                assert status == 200
                assert (found["totals"] is not None) == (role == "super")
                if found["complete"]:
                    return [row["topic"] for row in found["rows"]]

        assert seen("super") == ["persistent://mine/ns/t", "persistent://theirs/ns/t"]
        assert seen("mine") == ["persistent://mine/ns/t"]
        assert seen("stranger") == []
        assert ask(running, "geminga/subscriptions")[0] == 401
        assert ask(running, "geminga/overview", token=tokens["mine"])[0] == 403
        parts = ("holes", "open", "preview/skip-all")
        for path in ("tail", *(f"subscription/s/{part}" for part in parts)):
            assert ask(running, f"persistent/mine/ns/t/{path}", token=tokens["mine"])[0] == 200, path
            assert ask(running, f"persistent/mine/ns/t/{path}", token=tokens["stranger"])[0] == 403, path


def test_a_list_of_open_messages_ends_early_when_they_are_large(harness, make_entry, monkeypatch):
    """The rest is there with the next look: an answer takes no longer than others can wait."""
    harness.peer().subscribe(TOPIC)
    producer = harness.producer(TOPIC)
    raw = bytes(8 * 1024 * 1024)
    small = zlib.compress(raw)
    producer.send_all(make_entry(small, compression=1 + 1, uncompressed_size=len(raw)) for number in range(5))
    found = harness.actions.cursors.found(TopicName.parse(TOPIC), "s")
    monkeypatch.setattr(overview, "ANSWER_SECONDS_MAX", 0.0)
    assert [each["size"] for each in overview._open_messages(*found, 5, MessageFilter())] == [len(raw)]
    monkeypatch.setattr(overview, "ANSWER_SECONDS_MAX", 60.0)
    assert len(overview._open_messages(*found, 5, MessageFilter())) == 5


def test_entries_slow_to_read_are_waited_for(broker, monkeypatch):
    """A backlog that lies on the disk alone is what one looks at before it is skipped."""
    asked: list[Any] = []

    def slow(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) % 3:
            raise StoreBusy("the disk is slow")
        return []

    monkeypatch.setattr(overview, "preview", slow)
    monkeypatch.setattr(overview, "_open_messages", slow)
    assert get(broker, f"{PATH}/subscription/s/preview/skip-all") == []
    assert get(broker, f"{PATH}/subscription/s/open") == []
    assert len(asked) == 6


def test_an_entry_with_very_many_properties_is_not_peeked_at(broker):
    """Half a million properties would block the loop for a second and make a header of 6 MB."""
    with broker.client() as client:
        client.subscribe("many", "s").close()
        producer = client.create_producer("many")
        producer.send(b"x", properties={f"{number:x}": "" for number in range(100_000)})
        producer.send(b"y", properties={f"{number:x}": "" for number in range(100)})
    path = "persistent/public/default/many"
    status, found = ask(broker, f"{path}/subscription/s/position/1")
    assert (status, "bytes of metadata" in found["reason"]) == (413, True)
    (many, few) = get(broker, f"{path}/subscription/s/open?count=2")
    assert "too many to look at" in many["problem"]
    assert len(few["properties"]) == 50
