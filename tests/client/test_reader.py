"""Readers of both shells against the embedded broker."""

import datetime as dt
import re
import threading
from typing import Any

import pytest
from published import publish
from readers import available
from waiting import moment_between

import geminga.asyncio
from geminga import MessageId
from geminga.client.admin import admin
from geminga.errors import AlreadyClosed, ConnectError, InvalidConfiguration


def read_all(reader: Any) -> list[bytes]:
    return [message.data() for message in available(reader)]


def subscriptions(broker: Any, topic: str) -> list[str]:
    return list(admin(broker.admin_url, "GET", topic.replace("://", "/") + "/subscriptions"))


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("position", [0, 7, 19])
def test_from_a_message(pulsar_client, pulsar_topic, batched, inclusive, position):
    values = publish(pulsar_client, pulsar_topic, 20, batched=batched)
    with pulsar_client.create_reader(pulsar_topic, MessageId.earliest) as reader:
        ids = [reader.read_next(30_000).message_id() for _ in values]
    start = MessageId.deserialize(ids[position].serialize())
    reader = pulsar_client.create_reader(pulsar_topic, start, start_message_id_inclusive=inclusive)
    assert read_all(reader) == values[position if inclusive else position + 1 :]
    reader.seek(ids[3])
    assert reader.read_next(30_000).data() == (b"3" if inclusive else b"4")
    reader.seek(MessageId.latest)
    assert read_all(reader) == (values[-1:] if inclusive else [])
    reader.close()


def test_an_empty_topic(pulsar_client, pulsar_topic):
    for start in (MessageId.earliest, MessageId.latest):
        for inclusive in (False, True):
            reader = pulsar_client.create_reader(pulsar_topic, start, start_message_id_inclusive=inclusive)
            assert not reader.has_message_available()
            assert reader.get_last_message_id().entry_id == -1
            reader.close()


def test_nothing_stays_on_the_broker(pulsar_broker, pulsar_client, pulsar_topic):
    publish(pulsar_client, pulsar_topic, 5)
    reader = pulsar_client.create_reader(
        pulsar_topic, MessageId.earliest, reader_name="me", subscription_role_prefix="role"
    )
    (name,) = subscriptions(pulsar_broker, pulsar_topic)
    assert name.startswith("role-reader-")
    reader.read_next(30_000)
    reader.close()
    assert subscriptions(pulsar_broker, pulsar_topic) == []
    with pytest.raises(AlreadyClosed):
        reader.read_next()
    assert list(reader) == []


@pytest.mark.parametrize("published_before", [0, 3])
def test_a_reader_of_the_end_gets_what_an_outage_brings(
    pulsar_broker, pulsar_client, pulsar_topic, published_before
):
    if published_before:
        publish(pulsar_client, pulsar_topic, published_before)
    with pulsar_broker.client() as other:
        producer = other.create_producer(pulsar_topic)
        reader = pulsar_client.create_reader(pulsar_topic, MessageId.latest)
        for connection in pulsar_client.context.pool.connections:
            pulsar_client.runtime.loop.call_soon_threadsafe(connection.abort, ConnectError("cut by the test"))
        producer.send(b"during the outage")
        assert reader.read_next(30_000).data() == b"during the outage"


def test_partitioned_topics(pulsar_broker, pulsar_client, pulsar_topic, caplog):
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 3)
    with pulsar_client.create_producer(pulsar_topic) as producer:
        for number in range(30):
            producer.send(b"%d" % number, partition_key=str(number))
    reader = pulsar_client.create_reader(pulsar_topic, MessageId.earliest)
    assert sorted(read_all(reader), key=int) == [b"%d" % number for number in range(30)]
    with caplog.at_level("WARNING", "geminga"):
        pulsar_client.create_reader(pulsar_topic, MessageId(0, 3, 4))
    assert "in every partition, by ledger and entry" in caplog.text


def test_listener(pulsar_client, pulsar_topic):
    publish(pulsar_client, pulsar_topic, 3)
    seen: list[bytes] = []
    done = threading.Event()

    def listen(reader: Any, message: Any) -> None:
        seen.append(message.data())
        if len(seen) == 3:
            done.set()

    reader = pulsar_client.create_reader(pulsar_topic, MessageId.earliest, reader_listener=listen)
    assert done.wait(60)
    with pytest.raises(InvalidConfiguration, match="reader_listener"):
        reader.read_next(10)
    reader.close()
    assert seen == [b"0", b"1", b"2"]


# --- from a time, several topics, tables ---
def moments(client: Any, topic: str, count: int = 6) -> list[int]:
    """Publish ``count`` messages a few milliseconds apart; return their publish times."""
    with client.create_producer(topic) as producer:
        for number in range(count):
            producer.send(b"%d" % number)
            moment_between()
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [reader.read_next(30_000).publish_timestamp() for _ in range(count)]


def test_from_a_time(pulsar_client, pulsar_topic):
    published = moments(pulsar_client, pulsar_topic)
    moment = dt.datetime.fromtimestamp(published[3] / 1000, dt.UTC)
    for start in (published[3], moment, moment.astimezone(dt.timezone(dt.timedelta(hours=5)))):
        with pulsar_client.create_reader(pulsar_topic, start_time=start) as reader:
            assert reader.has_message_available()
            assert read_all(reader) == [b"3", b"4", b"5"]
    with pulsar_client.create_reader(pulsar_topic, start_time=dt.timedelta(hours=1)) as reader:
        assert len(read_all(reader)) == 6
    with pulsar_client.create_reader(pulsar_topic, start_time=published[-1] + 60_000) as reader:
        assert not reader.has_message_available()


def test_a_connection_lost_before_the_first_message_keeps_the_time(pulsar_client, pulsar_topic):
    published = moments(pulsar_client, pulsar_topic)
    for read in (
        lambda reader: [reader.read_next(30_000).data() for _ in range(3)],
        lambda reader: next(reader.tables())["value"].to_pylist(),
    ):
        reader = pulsar_client.create_reader(pulsar_topic, start_time=published[3])
        pulsar_client.runtime.call(drop_connections(pulsar_client.context))
        assert read(reader) == [b"3", b"4", b"5"]
        reader.close()


async def drop_connections(context: Any) -> None:
    for connection in context.pool.connections:
        connection.abort(ConnectError("lost in a test"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"start_time": dt.datetime(2024, 1, 1)}, "time zone"),
        ({"start_time": "yesterday"}, "whole number"),
        ({"start_time": -1}, ">= 0"),
        ({"start_time": 5, "start_message_id": MessageId.earliest}, "only one of them"),
        ({}, "start_message_id"),
    ],
)
def test_starts_that_are_refused(pulsar_client, given, said):
    with pytest.raises(InvalidConfiguration, match=said):
        pulsar_client.create_reader("t", **given)


def test_several_topics_are_read_as_one(pulsar_client, pulsar_topic):
    topics = [f"{pulsar_topic}-{name}" for name in "abc"]
    for topic in topics:
        publish(pulsar_client, topic, 3)
    for asked in (topics, re.compile(f"{pulsar_topic}-[abc]")):
        with pulsar_client.create_reader(asked, MessageId.earliest) as reader:
            read = []
            for message in available(reader):
                read.append((message.topic_name(), message.data()))
            assert sorted(read) == sorted((topic, b"%d" % n) for topic in topics for n in range(3))
    with pytest.raises(InvalidConfiguration, match="several topics"):
        pulsar_client.create_reader(topics, MessageId(-1, 3, 4))
    with pulsar_client.create_reader(topics, start_time=dt.timedelta(hours=1)) as reader:
        assert len(read_all(reader)) == 9


def test_tables(pulsar_client, pulsar_topic):
    values = publish(pulsar_client, pulsar_topic, 900)
    with pulsar_client.create_reader(pulsar_topic, MessageId.earliest, receiver_queue_size=500) as reader:
        assert reader.read_next(30_000).data() == b"0"
        tables = list(reader.tables(300, ["value"]))
        assert [b"0", *(v for table in tables for v in table["value"].to_pylist())] == values
        assert tables[0].column_names == ["value"]
        assert not reader.has_message_available()
        assert list(reader.tables()) == []
        following = reader.tables(follow=True)
        publish(pulsar_client, pulsar_topic, 2, start=9000)
        assert next(following)["value"].to_pylist()[0] == b"9000"


def test_record_batches(pulsar_client, pulsar_topic, pulsar_admin):
    import pyarrow.compute as pc

    values = [b"%d" % number for number in range(1000)]
    with pulsar_client.create_producer(pulsar_topic, batching_enabled=True) as producer:
        for number, value in enumerate(values):
            producer.send_async(value, None, partition_key=f"k{number % 3}")
        producer.flush()
    with pulsar_client.create_reader(pulsar_topic, geminga.MessageId.earliest) as reader:
        stream = reader.record_batches(300)
        names = stream.schema.names
        table = stream.read_all()
        assert table.column_names == names
        assert table["value"].to_pylist() == values
        counts = table.group_by("key").aggregate([("value", "count")])
        assert sorted(counts["value_count"].to_pylist()) == [333, 333, 334]
        assert pc.all(pc.is_valid(table["publish_time"])).as_py()
        assert reader.record_batches().read_all().num_rows == 0  # it is at the end
    assert pulsar_admin.subscriptions.list(pulsar_topic) == []


def test_record_batches_become_a_frame_of_pandas(pulsar_client, pulsar_topic):
    pytest.importorskip("pandas")
    pulsar_client.create_producer(pulsar_topic).send(b"a", partition_key="k")
    with pulsar_client.create_reader(pulsar_topic, geminga.MessageId.earliest) as reader:
        frame = reader.record_batches(columns=["key", "value"]).read_pandas()
        assert list(frame.columns) == ["key", "value"]
        assert len(frame) == 1
