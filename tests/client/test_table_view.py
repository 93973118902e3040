"""Table views: what listeners hear, in which order, and on how many threads at once."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from waiting import eventually, moment_between, never

import geminga.asyncio
from geminga import schema
from geminga.client.admin import admin
from geminga.client.receive import table_view
from geminga.client.receive.reader import create_reader
from geminga.producer.interceptors import ProducerInterceptor


class Listener:
    """Listener that records its calls and whether two of them overlap. ``hold`` stops the first call."""

    def __init__(self, hold: Callable[[], None] = lambda: None) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.overlaps = 0
        self._hold = hold
        self._inside = threading.Lock()

    def __call__(self, key: str, value: Any) -> None:
        if not self._inside.acquire(blocking=False):
            self.overlaps += 1
            self._inside.acquire()
        try:
            if not self.heard:
                self._hold()
            self.heard.append((key, value))
            time.sleep(0.0005)
        finally:
            self._inside.release()


def test_a_change_waits_until_the_content_is_delivered(pulsar_client, pulsar_topic):
    """Both keys change while the listener hears of the first: it hears the old values before the new."""
    with pulsar_client.create_producer(pulsar_topic) as producer:
        for key in ("a", "b"):
            producer.send(b"old", partition_key=key)
        with pulsar_client.create_table_view(pulsar_topic) as view:

            def change_both() -> None:
                for key in ("a", "b"):
                    producer.send(b"new", partition_key=key)
                eventually(lambda: view.get("b") == b"new")
                never(lambda: listener.overlaps, 0.1)

            listener = Listener(change_both)
            view.for_each_and_listen(listener)
            eventually(lambda: len(listener.heard) == 4)
            assert listener.heard == [("a", b"old"), ("b", b"old"), ("a", b"new"), ("b", b"new")]
            assert listener.overlaps == 0


def test_a_listener_of_several_partitions_is_called_once_at_a_time(
    pulsar_broker, pulsar_client, pulsar_topic
):
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 4)
    keys = [f"key-{number}" for number in range(40)]
    with (
        pulsar_client.create_producer(pulsar_topic, max_pending_messages=0) as producer,
        pulsar_client.create_table_view(pulsar_topic) as view,
    ):
        listener = Listener()
        view.for_each_and_listen(listener)
        for number in range(5):
            for key in keys:
                producer.send_async(b"%d" % number, None, partition_key=key)
        producer.flush()
        eventually(lambda: len(listener.heard) == 200)
        assert listener.overlaps == 0
        for key in keys:
            assert [value for k, value in listener.heard if k == key] == [b"%d" % n for n in range(5)]


@pytest.mark.parametrize(
    ("kind", "value", "removed"),
    [(schema.BytesSchema(), b"x", b""), (schema.StringSchema(), "x", ""), (schema.FloatSchema(), 1.0, None)],
)
def test_a_removed_key_is_reported(pulsar_client, pulsar_topic, kind, value, removed):
    heard: queue.Queue[tuple[str, Any]] = queue.Queue()
    with (
        pulsar_client.create_producer(pulsar_topic, schema=kind) as producer,
        pulsar_client.create_table_view(pulsar_topic, schema=kind) as view,
    ):
        view.for_each_and_listen(lambda key, value: heard.put((key, value)))
        producer.send(value, partition_key="k")
        producer.send(None, partition_key="k")
        assert [heard.get(timeout=60), heard.get(timeout=60)] == [("k", value), ("k", removed)]
        assert view.get("k") is None
        assert len(view) == 0


def test_a_listener_that_raises_at_first_is_not_called_again(pulsar_client, pulsar_topic):
    heard: queue.Queue[tuple[str, Any]] = queue.Queue()
    calls: list[str] = []

    def fails(key: str, value: Any) -> None:
        calls.append(key)
        raise RuntimeError("no")

    with pulsar_client.create_producer(pulsar_topic) as producer:
        producer.send(b"1", partition_key="a")
        with pulsar_client.create_table_view(pulsar_topic) as view:
            with pytest.raises(RuntimeError):
                view.for_each_and_listen(fails)
            view.for_each_and_listen(lambda key, value: heard.put((key, value)))
            producer.send(b"2", partition_key="a")
            assert [heard.get(timeout=60), heard.get(timeout=60)] == [("a", b"1"), ("a", b"2")]
    assert calls == ["a"]


def test_a_slow_listener_holds_the_reading_up_and_loses_nothing(pulsar_client, pulsar_topic, monkeypatch):
    monkeypatch.setattr("geminga.client.receive.table_view.CHANGES_MAX", 3)
    go = threading.Event()
    heard: list[bytes] = []

    def slow(key: str, value: bytes) -> None:
        go.wait(60)
        heard.append(value)

    with (
        pulsar_client.create_producer(pulsar_topic) as producer,
        pulsar_client.create_table_view(pulsar_topic) as view,
    ):
        view.for_each_and_listen(slow)
        for number in range(20):
            producer.send(b"%d" % number, partition_key="k")
        never(lambda: int(view.get("k")) >= 10, 0.1)
        go.set()
        eventually(lambda: len(heard) == 20)
        assert heard == [b"%d" % number for number in range(20)]
        assert view.get("k") == b"19"


# --- for asyncio ---
async def test_an_asyncio_view(pulsar_broker, pulsar_client, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(pulsar_topic, schema=schema.StringSchema())
        for key, value in (("a", "1"), ("b", "2"), ("a", "3")):
            await producer.send(value, partition_key=key)
        async with await client.create_table_view(pulsar_topic, schema=schema.StringSchema()) as view:
            assert (len(view), "a" in view, sorted(view)) == (2, True, ["a", "b"])
            assert (view.get("a"), view.get("b"), view.get("c")) == ("3", "2", None)
            assert str(view) == f"TableView(topic={pulsar_topic})"
            seen: dict[str, Any] = {}
            await view.for_each(lambda key, value: seen.update({key: value}))
            assert seen == {"a": "3", "b": "2"}
            heard: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

            async def listen(key: str, value: Any) -> None:
                await heard.put((key, value))

            await view.for_each_and_listen(listen)
            assert {heard.get_nowait(), heard.get_nowait()} == {("a", "3"), ("b", "2")}
            await producer.send("4", partition_key="c")
            await producer.send(None, partition_key="a")
            assert await asyncio.wait_for(heard.get(), 60) == ("c", "4")
            assert await asyncio.wait_for(heard.get(), 60) == ("a", "")
            assert "a" not in view


async def test_an_asyncio_listener_that_raises_is_not_called_again(pulsar_broker, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(pulsar_topic)
        await producer.send(b"1", partition_key="a")
        view = await client.create_table_view(pulsar_topic)
        told = []

        def fail(key: str, value: Any) -> None:
            told.append(value)
            raise RuntimeError("a bad listener")

        with pytest.raises(RuntimeError, match="a bad listener"):
            await view.for_each_and_listen(fail)
        heard: asyncio.Queue[Any] = asyncio.Queue()
        await view.for_each_and_listen(lambda key, value: heard.put_nowait(value))
        await producer.send(b"2", partition_key="a")
        assert [await asyncio.wait_for(heard.get(), 60) for _ in range(2)] == [b"1", b"2"]
        assert told == [b"1"]
        await view.close()


@pytest.mark.parametrize("is_open", [False, True])
def test_a_schema_version_that_cannot_be_fetched_is_fetched_again(
    pulsar_client, pulsar_topic, monkeypatch, is_open
):
    pytest.importorskip("fastavro")

    class Item(schema.Record):
        x = schema.Integer(required=True)

    ask, left = pulsar_client.context.schema, [geminga.AuthorizationError("not now")] * 2

    async def refuse_at_first(topic: str, version: bytes | None = None) -> Any:
        if version is not None and left:
            raise left.pop()
        return await ask(topic, version)

    monkeypatch.setattr(pulsar_client.context, "schema", refuse_at_first)
    producer = pulsar_client.create_producer(pulsar_topic, schema=schema.AvroSchema(Item))
    if not is_open:
        producer.send(Item(x=1), partition_key="a")
        for _ in range(2):
            with pytest.raises(geminga.AuthorizationError, match="not now"):
                pulsar_client.create_table_view(pulsar_topic, schema=schema.AvroSchema(Item))
    with pulsar_client.create_table_view(pulsar_topic, schema=schema.AvroSchema(Item)) as view:
        if is_open:
            listener = Listener()
            view.for_each_and_listen(listener)
            producer.send(Item(x=1), partition_key="a")
            eventually(lambda: len(listener.heard) == 1)
        assert view.get("a").x == 1


class BreakVersion(ProducerInterceptor):
    """Sends messages with a schema version that no schema has: versions are 8 bytes."""

    def before_send(self, producer, message):
        return message.replace(schema_version=b"xyz")


@pytest.mark.parametrize("is_open", [False, True])
def test_a_message_with_a_broken_schema_version_stops_no_view(pulsar_client, pulsar_topic, is_open):
    pytest.importorskip("fastavro")

    class Item(schema.Record):
        x = schema.Integer(required=True)

    codec = schema.AvroSchema(Item)
    good = pulsar_client.create_producer(pulsar_topic, schema=codec)
    broken = pulsar_client.create_producer(pulsar_topic, schema=codec, interceptors=[BreakVersion()])

    def send() -> None:
        broken.send(Item(x=1), partition_key="broken")
        good.send(Item(x=2), partition_key="good")

    if not is_open:
        send()
    with pulsar_client.create_table_view(pulsar_topic, schema=codec) as view:
        if is_open:
            send()
        eventually(lambda: "good" in list(view))
        assert view.get("good").x == 2
        with pytest.raises(geminga.IncompatibleSchema, match="Bad schema version"):
            view.get("broken")


async def test_an_asyncio_view_reads_by_the_writers_schema(pulsar_broker, pulsar_topic):
    """Decoding on the loop cannot ask the broker: versions are there before values are."""
    pytest.importorskip("fastavro")

    class Old(schema.Record):
        x = schema.Integer(required=True)

    class New(schema.Record):
        x = schema.Integer(required=True)
        y = schema.String(default="none", required_default=True, required=True)

    New.__name__ = Old.__name__ = "Reading"

    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        for kind, key in ((Old, "old"), (New, "new")):
            producer = await client.create_producer(pulsar_topic, schema=schema.AvroSchema(kind))
            await producer.send(kind(x=1), partition_key=key)
        view = await client.create_table_view(pulsar_topic, schema=schema.AvroSchema(New))
        assert [view.get("old").y, view.get("new").y] == ["none", "none"]


def test_partitions_that_are_added_are_followed(pulsar_broker, pulsar_client, pulsar_topic):
    path = pulsar_topic.replace("://", "/") + "/partitions"
    admin(pulsar_broker.admin_url, "PUT", path, 1)
    with pulsar_client.create_table_view(pulsar_topic) as view:
        listener = Listener()
        view.for_each_and_listen(listener)
        admin(pulsar_broker.admin_url, "POST", path, 3)
        pulsar_client.runtime.call(view._view._reader.consumer.group.refresh())
        for partition in range(3):
            with pulsar_client.create_producer(f"{pulsar_topic}-partition-{partition}") as producer:
                producer.send(b"value", partition_key=f"k{partition}")
        eventually(lambda: len(view) == 3)
        eventually(lambda: sorted(listener.heard) == [(f"k{each}", b"value") for each in range(3)])


def test_a_partition_that_fails_is_read_again_and_the_others_are_followed_meanwhile(
    pulsar_broker, pulsar_client, pulsar_topic, monkeypatch
):
    readers = []

    async def create(*arguments: Any) -> Any:
        readers.append(await create_reader(*arguments))
        return readers[-1]

    monkeypatch.setattr(table_view, "create_reader", create)
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 2)
    producers = [pulsar_client.create_producer(f"{pulsar_topic}-partition-{each}") for each in range(2)]
    with pulsar_client.create_table_view(pulsar_topic) as view:
        group = readers[0].consumer.group
        failing = group.handles[f"{pulsar_topic}-partition-0"]
        pulsar_client.runtime.call(failing.close())
        pulsar_client.runtime.post(group.failed, failing, geminga.AuthorizationError("not any more"))
        for producer, key in zip(producers, ("unread", "read"), strict=True):
            producer.send(b"value", partition_key=key)
        eventually(lambda: list(view) == ["read"])
        pulsar_client.runtime.call(group.refresh())
        eventually(lambda: sorted(view) == ["read", "unread"])


def test_the_last_published_value_of_a_key_in_several_partitions_counts(
    pulsar_broker, pulsar_client, pulsar_topic
):
    """A key moves to another partition when some are added; what it was before stays where it was."""
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 3)
    producers = [
        pulsar_client.create_producer(f"{pulsar_topic}-partition-{partition}") for partition in range(3)
    ]
    for value, order in ((b"old", (2, 1, 0)), (b"new", (0, 1, 2))):
        for partition in order:
            key = f"k{partition}"
            producers[partition if value == b"new" else (partition + 1) % 3].send(value, partition_key=key)
        moment_between()
    producers[2].send(b"old", partition_key="removed")
    moment_between()
    producers[0].send(None, partition_key="removed")
    with pulsar_client.create_table_view(pulsar_topic) as view:
        assert {key: view.get(key) for key in view} == {f"k{each}": b"new" for each in range(3)}


def test_a_topic_that_stores_nothing_has_no_view(pulsar_client):
    with pytest.raises(geminga.OperationNotSupported, match="persistent topic"):
        pulsar_client.create_table_view("non-persistent://public/default/t")
