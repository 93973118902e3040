"""``geminga console`` in front of an Apache Pulsar."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from waiting import eventually
from web_requests import ask

import geminga
from geminga import ConsumerType
from geminga.ids import TopicName

pytestmark = pytest.mark.interop
WAIT_SECONDS = 90


class Console:
    """The command in front of a broker."""

    def __init__(self, admin_url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "geminga.cli.main", "console", "--admin-url", admin_url, "--port", "0"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self._process.stdout.readline()
        assert line.startswith(f"console of {admin_url}: http://127.0.0.1:"), line
        self.url = line.rpartition(" ")[2].strip().rstrip("/")

    def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        found = ask(self.url + path, method)
        return found.status, found.document

    def get(self, path: str) -> Any:
        status, found = self.ask(path)
        assert status == 200, found
        return found

    def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """An Apache Pulsar's stats of all topics are as old as the interval in which it makes them."""
        found: Any = None

        def is_so() -> bool:
            nonlocal found
            found = self.get(path)
            return holds(found)

        eventually(is_so, WAIT_SECONDS, lambda: found)
        return found

    def close(self) -> int:
        self._process.terminate()
        code = self._process.wait(WAIT_SECONDS)
        self._process.stdout.close()
        return code


@pytest.fixture(scope="module")
def console(apache_pulsar):
    running = Console(apache_pulsar.admin_url)
    yield running
    assert running.close() == 0


def test_the_console_shows_a_stuck_subscription_of_apache_pulsar(apache_pulsar, console, topic):
    name = topic("console")
    path = "/".join(quote(part, safe="") for part in ("persistent", *_parts(name)))
    with geminga.Client(apache_pulsar.service_url) as client:
        consumer = client.subscribe(
            name, "workers", consumer_type=ConsumerType.Shared, receiver_queue_size=10,
            consumer_name="worker-3", unacked_messages_timeout_ms=0,
        )  # fmt: skip
        producer = client.create_producer(name, batching_enabled=False)
        for number in range(40):
            producer.send(b'{"job": %d}' % number, partition_key=f"k{number}")
        received = [consumer.receive(WAIT_SECONDS * 1000) for _ in range(6)]
        for at in (1, 2, 4):
            consumer.acknowledge(received[at])
        base = f"/admin/v2/{path}/subscription/workers"

        console.until(f"{base}/explain", lambda each: each[0]["facts"]["entriesInBacklog"] == 37)
        board = console.until(
            f"/admin/v2/geminga/subscriptions?search={quote(name, safe='')}",
            lambda each: [row["consumers"] for row in each["rows"]] == [1],
        )
        row = board["rows"][0]
        assert (row["topic"], row["subscription"], row["type"]) == (name, "workers", "Shared")

        holes = console.until(f"{base}/holes", lambda each: each["acknowledgedBehindMark"] == 3)
        states = [each["state"] for each in holes["entries"]]
        assert len(states) == 40
        assert [at for at, state in enumerate(states) if state == "acknowledged"] == [1, 2, 4]

        tail = console.get(f"/admin/v2/{path}/tail?count=3")
        assert [each["key"] for each in tail["messages"]] == ["k37", "k38", "k39"]
        assert console.get(f"/admin/v2/{path}/tail?from={tail['next']}")["messages"] == []
        opened = console.get(f"{base}/open?count=2")
        assert [each["key"] for each in opened] == ["k0", "k3"]

        assert "5 of 37 entries" in console.get(f"{base}/preview/skip?count=5")["text"]
        assert console.ask(f"{base}/preview/redeliver")[0] == 501
        assert console.ask(f"{base}/skip_all", "POST")[0] in (200, 204)
        console.until(f"{base}/explain", lambda each: each[0]["trouble"] == 0)
        consumer.close()
        producer.close()


def test_the_console_shows_the_version_of_apache_pulsar(console):
    assert console.get("/admin/v2/geminga/overview")["version"].startswith("Apache Pulsar 4.")
    assert console.get("/admin/v2/geminga/happenings") == []


def test_a_message_is_published_by_the_schema_of_its_topic(apache_pulsar, console, topic):
    name = topic("console-publish")
    definition = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    schema = geminga.schema.AvroSchema(None, definition)
    with geminga.Client(apache_pulsar.service_url) as client:
        consumer = client.subscribe(name, "s", schema=schema)

        def publish(payload: str) -> int:
            body = {"topic": name, "payload": payload, "key": "k"}
            return ask(f"{console.url}/console/api/publish", "POST", body).status

        assert (publish('{"id": 7}'), publish('{"id": "x"}')) == (200, 412)
        message = consumer.receive(WAIT_SECONDS * 1000)
        assert (message.value(), message.partition_key()) == ({"id": 7}, "k")


def _parts(name: str) -> tuple[str, str, str]:
    parsed = TopicName.parse(name)
    return parsed.tenant, parsed.namespace, parsed.local
