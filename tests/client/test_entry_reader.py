"""Raw entries from fixed positions."""

import threading

import pytest
from published import publish
from waiting import never

from geminga import MessageId
from geminga.client.admin import admin
from geminga.client.api.entry_reader import EntryReader, open_entries
from geminga.errors import AlreadyClosed, InvalidConfiguration, OperationNotSupported, TopicNotFound
from geminga.wire.batch import decode_batch
from geminga.wire.columnar import ChunkCarry, decode_entries
from geminga.wire.metadata import RawEntry, parse_entry


def values(entries: list[RawEntry]) -> list[bytes]:
    found = []
    for raw in entries:
        entry = parse_entry(raw.entry)
        if entry.metadata.HasField("num_messages_in_batch"):
            messages = [m.payload for m in decode_batch(entry.payload, entry.metadata.num_messages_in_batch)]
            if raw.ack_set:
                messages = [m for i, m in enumerate(messages) if raw.ack_set[i >> 6] >> (i & 63) & 1]
            found += messages
        else:
            found.append(bytes(entry.payload))
    return found


def read_all(reader: EntryReader, count: int) -> list[RawEntry]:
    entries: list[RawEntry] = []
    while len(values(entries)) < count:
        found = reader.read(timeout=60)
        assert found
        entries += found
    return entries


@pytest.mark.parametrize("batched", [True, False])
def test_from_the_beginning(pulsar_client, pulsar_topic, batched):
    publish(pulsar_client, pulsar_topic, 100, batched=batched, batching_max_messages=10)
    with EntryReader.open(pulsar_client, pulsar_topic, MessageId.earliest) as reader:
        entries = read_all(reader, 100)
        assert values(entries) == [b"%d" % n for n in range(100)]
        assert {entry.topic for entry in entries} == {pulsar_topic}
        assert [entry.entry_id for entry in entries] == list(range(len(entries)))
        last = reader.last_message_id()
        assert (last.ledger_id, last.entry_id) == (entries[-1].ledger_id, entries[-1].entry_id)
        assert not reader.has_message_available()
        assert reader.read(timeout=0.05) == []


@pytest.mark.parametrize("queue_size", [1, 7, 1000])
def test_a_bounded_queue(pulsar_client, pulsar_topic, queue_size):
    publish(pulsar_client, pulsar_topic, 200, batching_max_messages=10)
    with EntryReader.open(pulsar_client, pulsar_topic, MessageId.earliest, queue_size=queue_size) as reader:
        never(lambda: len(reader._inner.queue) > max(queue_size // 10 + 1, 2), 0.1)
        assert len(values(read_all(reader, 200))) == 200


def test_positions(pulsar_client, pulsar_topic):
    publish(pulsar_client, pulsar_topic, 10, batched=False)
    publish(pulsar_client, pulsar_topic, 10)
    with EntryReader.open(pulsar_client, pulsar_topic, MessageId.earliest) as reader:
        entries = read_all(reader, 20)
    place = MessageId(-1, entries[4].ledger_id, entries[4].entry_id)
    for inclusive, expected in ((True, [b"4"]), (False, [b"5"])):
        with EntryReader.open(pulsar_client, pulsar_topic, place, inclusive=inclusive) as reader:
            assert values(read_all(reader, 10))[:1] == expected
            reader.seek(MessageId.earliest)
            assert values(read_all(reader, 10))[:1] == [b"0"]
    batch = entries[-1]
    inside = MessageId(-1, batch.ledger_id, batch.entry_id, 3)
    with EntryReader.open(pulsar_client, pulsar_topic, inside) as reader:
        assert values(read_all(reader, 1))[-7:] == [b"%d" % n for n in range(3, 10)]


def test_closing_ends_a_waiting_read(pulsar_client, pulsar_topic):
    publish(pulsar_client, pulsar_topic, 1, batched=False)
    reader = EntryReader.open(pulsar_client, pulsar_topic, MessageId.latest)
    threading.Timer(0.1, reader.close).start()
    with pytest.raises(AlreadyClosed):
        reader.read()


def test_chunks_are_put_together_by_the_decoder(pulsar_client, pulsar_topic):
    with pulsar_client.create_producer(
        pulsar_topic, chunking_enabled=True, batching_enabled=False, chunk_max_message_size=10_000
    ) as producer:
        producer.send(b"x" * 35_000)
        producer.send(b"y")
    chunks = ChunkCarry()
    found: list[bytes] = []
    with EntryReader.open(pulsar_client, pulsar_topic, MessageId.earliest) as reader:
        while len(found) < 2:
            entries = reader.read(1, timeout=60)
            found += decode_entries(entries, ["value"], chunks=chunks).column("value").to_pylist()
    assert found == [b"x" * 35_000, b"y"]


def test_refusals(pulsar_broker, pulsar_client, pulsar_topic):
    with pytest.raises(TopicNotFound):
        EntryReader.open(pulsar_client, "public/no-such-namespace/t", MessageId.earliest)
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 2)
    with pytest.raises(OperationNotSupported, match="2 partitions"):
        EntryReader.open(pulsar_client, pulsar_topic, MessageId.earliest)
    with EntryReader.open(pulsar_client, f"{pulsar_topic}-partition-1", MessageId.earliest) as reader:
        assert reader.read(timeout=0.05) == []
        with pytest.raises(InvalidConfiguration, match="max_entries"):
            reader.read(0)


def test_a_consumer_on_the_loop_may_prefetch_nothing(pulsar_client, pulsar_topic):
    """Spark's watch of a partition asks for its newest message alone."""
    publish(pulsar_client, pulsar_topic, 3, batched=False)
    consumer = pulsar_client.runtime.call(
        open_entries(pulsar_client.context, pulsar_topic, MessageId.earliest, queue_size=0)
    )
    assert pulsar_client.runtime.call(consumer.get_last_message_id()).entry_id() >= 0
    assert not consumer.queue
    pulsar_client.runtime.call(consumer.close())
    with pytest.raises(InvalidConfiguration, match="queue_size=0"):
        EntryReader.open(pulsar_client, pulsar_topic, MessageId.earliest, queue_size=0)
