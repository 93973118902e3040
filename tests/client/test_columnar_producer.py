"""Tables and ready-made batches: what is sent is what is read, whole tables fail as a whole."""

import asyncio

import pytest
from published import read
from waiting import eventually, eventually_async, loop_turns, never_async, start_thread

import geminga
import geminga.asyncio
from geminga import errors
from geminga.client.admin import admin
from geminga.client.api.entry_reader import EntryReader
from geminga.client.publish import columnar_producer
from geminga.client.publish.columnar_producer import ReadyBatch
from geminga.schema import BytesSchema, KeyValue, KeyValueEncodingType, KeyValueSchema
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

pa = pytest.importorskip("pyarrow")


def table(rows, **columns):
    return pa.table({"value": pa.array([b"%d" % n for n in range(rows)], pa.binary()), **columns})


@pytest.mark.parametrize("compression", list(geminga.CompressionType))
def test_every_row_arrives_with_its_columns(pulsar_client, pulsar_topic, compression):
    rows = 2500
    sent = table(
        rows,
        key=pa.array([None if n % 3 else f"k{n % 7}" for n in range(rows)]),
        properties=pa.array([[("n", str(n))] for n in range(rows)], pa.map_(pa.string(), pa.string())),
        event_time=pa.array([1_700_000_000_000 + n for n in range(rows)], pa.timestamp("ms", "UTC")),
    )
    producer = pulsar_client.create_producer(pulsar_topic, compression_type=compression)
    result = producer.send_table(sent)
    assert (result.rows, result.duplicates) == (rows, 0)
    assert result.batches >= 3
    first, last = result.ranges[-1]
    assert first < last
    got = {}
    for message in read(pulsar_client, pulsar_topic, rows):
        number = int(message.data())
        got[number] = (message.partition_key(), message.properties(), message.event_timestamp())
    assert len(got) == rows
    for number in range(rows):
        key = "" if number % 3 else f"k{number % 7}"
        assert got[number] == (key, {"n": str(number)}, 1_700_000_000_000 + number)


def test_a_key_of_bytes_has_the_same_outer_metadata_in_a_table_as_in_a_message(pulsar_client, pulsar_topic):
    """Key_Shared subscriptions choose the consumer by it."""
    pair = KeyValueSchema(BytesSchema(), BytesSchema(), KeyValueEncodingType.SEPARATED)
    pulsar_client.create_producer(pulsar_topic, schema=pair).send(KeyValue(b"\xff\x00", b"v"))
    producer = pulsar_client.create_producer(pulsar_topic)
    producer.send_table(table(1, key=pa.array([b"\xff\x00"], pa.binary())))
    with EntryReader.open(pulsar_client, pulsar_topic, geminga.MessageId.earliest) as reader:
        outer = [parse_entry(raw.entry).metadata for raw in reader.read(2, 30)]
    assert [(m.partition_key, m.partition_key_b64_encoded) for m in outer] == [("/wA=", True)] * 2


def test_tables_and_rows_keep_their_order(pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(pulsar_topic)
    producer.send_async(b"before", None)
    producer.send_table(table(3))
    producer.send_async(b"after", None)
    producer.flush()
    assert [m.data() for m in read(pulsar_client, pulsar_topic, 5)] == [b"before", b"0", b"1", b"2", b"after"]


def test_a_producer_that_tunes_itself_makes_large_batches_of_a_table(pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(pulsar_topic, batching_enabled=True, latency_budget_ms=50)
    assert producer.send_table(table(5000)).batches == 1
    assert [m.data() for m in read(pulsar_client, pulsar_topic, 5000)] == [b"%d" % i for i in range(5000)]


def test_an_empty_table_sends_no_batch(pulsar_client, pulsar_topic):
    result = pulsar_client.create_producer(pulsar_topic).send_table(table(0))
    assert (result.rows, result.batches, result.ranges) == (0, 0, {})


def test_record_batches_and_text_values(pulsar_client, pulsar_topic):
    batch = pa.record_batch({"value": pa.array(["é", "b"])})
    assert pulsar_client.create_producer(pulsar_topic).send_table(batch).rows == 2
    assert [m.data() for m in read(pulsar_client, pulsar_topic, 2)] == ["é".encode(), b"b"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"other": [1]}, "no column 'value'"),
        ({"value": [b"x"], "key": [1.5]}, None),
        ({"value": [b"x"], "event_time": [-5]}, "before 1970"),
    ],
)
def test_columns_that_cannot_be_sent_are_named(pulsar_client, pulsar_topic, bad, message):
    producer = pulsar_client.create_producer(pulsar_topic)
    if message is None:
        producer.send_table(pa.table(bad))  # numbers are sent as their text
    else:
        with pytest.raises(errors.InvalidMessage, match=message):
            producer.send_table(pa.table(bad))
    producer.send(b"goes on")


@pytest.mark.parametrize("thing", [None, 5, b"x", [{"value": b"x"}], {"value": [b"x"]}])
def test_a_value_that_is_not_a_table_raises_type_error(pulsar_client, pulsar_topic, thing):
    producer = pulsar_client.create_producer(pulsar_topic)
    with pytest.raises(TypeError, match=f"table must be a pyarrow.Table .* not {type(thing).__name__}"):
        producer.send_table(thing)


def test_tables_can_be_sent_without_waiting(pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(pulsar_topic)
    futures = [producer.submit_table(table(100)) for _ in range(20)]
    assert sum(f.result(60).rows for f in futures) == 2000
    assert len(read(pulsar_client, pulsar_topic, 2000)) == 2000


def test_keyed_rows_go_where_keyed_messages_go(pulsar_broker, pulsar_client, pulsar_topic):
    admin(pulsar_broker.admin_url, "PUT", f"{pulsar_topic.replace('://', '/')}/partitions", 5)
    for scheme in geminga.HashingScheme:
        producer = pulsar_client.create_producer(pulsar_topic, hashing_scheme=scheme)
        for number in range(12):
            key = f"key-{number}"
            row = producer.send(b"row", partition_key=key)
            result = producer.send_table(pa.table({"value": [b"column"], "key": [key]}))
            assert set(result.ranges) == {row.partition}
    spread = producer.send_table(table(20_000))
    assert set(spread.ranges) == set(range(5))
    assert sum(1 for _ in spread.ranges) == 5


def test_a_table_has_no_custom_route(pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(pulsar_topic, message_router=lambda message, count: 0)
    with pytest.raises(errors.OperationNotSupported, match="message_router"):
        producer.send_table(table(1))


async def test_asyncio_tables_keep_the_order_of_their_calls(pulsar_broker, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(pulsar_topic)
        sizes = [20_000, 1, 3000, 2, 500, 10, 1, 7000] * 3
        tables = [pa.table({"value": [b"%d" % number] * size}) for number, size in enumerate(sizes)]
        calls = [asyncio.ensure_future(producer.send_table(each)) for each in tables]
        await loop_turns()
        calls[9].cancel()  # it has not had its turn
        await asyncio.gather(*calls, return_exceptions=True)
        assert [call for call in calls if call.cancelled()] == [calls[9]]
        reader = await client.create_reader(pulsar_topic, geminga.MessageId.earliest)
        expected = [number for number, size in enumerate(sizes) for _ in range(size) if number != 9]
        assert [int((await reader.read_next()).data()) for _ in expected] == expected


async def test_the_rows_of_a_cancelled_table_are_sent_before_those_of_the_next_table(broker, monkeypatch):
    monkeypatch.setattr(columnar_producer, "IN_FLIGHT_BYTES_MAX", 10_000)
    monkeypatch.setattr(columnar_producer, "PIECE_BYTES", 4000)
    held, sent = [], []

    def hold(peer, frame):
        sent.append(frame.entry[-1:])
        held.append((peer, frame))

    broker.answers[pb.BaseCommand.SEND] = hold
    async with geminga.asyncio.Client(broker.url) as client:
        producer = await client.create_producer("t")
        first = asyncio.ensure_future(producer.send_table(pa.table({"value": [b"a" * 1000] * 100})))
        await eventually_async(lambda: bool(held))
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.ensure_future(producer.send_table(pa.table({"value": [b"b" * 1000] * 100})))
        await never_async(lambda: b"b" in sent, 0.1)

        async def release():
            batch, held[:] = list(held), []
            for peer, frame in batch:
                broker.on_send(peer, frame)

        while not second.done():
            await asyncio.to_thread(broker.run, release(), 60)
        assert (await second).rows == 100
    assert sent == sorted(sent)


# --- ready-made batches ---
def ready(encoded, first):
    made = []
    for batch in encoded:
        made.append(ReadyBatch.of(batch, sequence_id=first, compression=1))
        first += batch.count
    return made


def test_repeated_batches_are_duplicates_where_the_broker_deduplicates(
    pulsar_broker, pulsar_client, pulsar_topic
):
    from geminga.wire.columnar_encoding import encode_table

    with geminga.embedded(deduplication=True) as broker, geminga.Client(broker.service_url) as client:
        batches = ready(encode_table(table(25), max_messages=10), 1000)
        first = client.create_producer(pulsar_topic, producer_name="sink-0")
        result = first.publish_encoded(batches)
        assert (result.rows, result.batches, result.duplicates) == (25, 3, 0)
        assert first.last_sequence_id() == 1024
        first.close()
        again = client.create_producer(pulsar_topic, producer_name="sink-0")
        assert again.last_sequence_id() == 1024
        result = again.publish_encoded(batches)
        assert (result.rows, result.duplicates, result.ranges) == (25, 25, {})
        again.send(b"row")
        assert again.last_sequence_id() == 1025
        assert len(read(client, pulsar_topic, 26)) == 26


@pytest.mark.parametrize(
    "fields",
    [
        {"sequence_id": -1},
        {"sequence_id": 5, "highest_sequence_id": 4},
        {"highest_sequence_id": 1 << 63},
        {"count": 0},
    ],
)
def test_impossible_batches_are_refused(fields):
    values = {
        "partition": 0, "body": b"", "count": 1, "sequence_id": 0, "highest_sequence_id": 0,
        "uncompressed_size": 0,
    }  # fmt: skip
    with pytest.raises(errors.InvalidMessage, match="allowed"):
        ReadyBatch(**{**values, **fields})


def test_a_partition_that_does_not_exist_is_refused(pulsar_client, pulsar_topic):
    batch = ReadyBatch(
        partition=3, body=b"", count=1, sequence_id=0, highest_sequence_id=0, uncompressed_size=0
    )
    with pytest.raises(errors.InvalidMessage, match="partition=3"):
        pulsar_client.create_producer(pulsar_topic).publish_encoded([batch])


# --- limits and failures, against a scripted broker ---
def test_bytes_in_flight_are_bounded(broker, monkeypatch):
    monkeypatch.setattr(columnar_producer, "IN_FLIGHT_BYTES_MAX", 10_000)
    monkeypatch.setattr(columnar_producer, "PIECE_BYTES", 4000)
    held, most = [], []
    broker.answers[pb.BaseCommand.SEND] = lambda peer, frame: held.append((peer, frame))

    def release():
        batch, held[:] = list(held), []
        for peer, frame in batch:
            broker.on_send(peer, frame)

    with geminga.Client(broker.url) as client:
        producer = client.create_producer("t")
        sent = []
        start_thread(lambda: sent.append(producer.send_table(pa.table({"value": [b"x" * 1000] * 100}))))

        def is_sent():
            most.append(sum(len(frame.entry) for _, frame in held))
            broker.call(release)
            return sent

        eventually(is_sent)
        assert 0 < max(most) < 13_000


def test_the_first_error_ends_the_table(broker):
    broker.answers[pb.BaseCommand.SEND] = lambda peer, send: broker.refuse_send(peer, send, 22, "not here")
    with geminga.Client(broker.url) as client:
        producer = client.create_producer("t")
        with pytest.raises(errors.NotAllowedError, match="not here"):
            producer.send_table(pa.table({"value": [b"x"] * 10}))
        broker.answers[pb.BaseCommand.SEND] = broker.on_send
        assert producer.send_table(pa.table({"value": [b"x"] * 10})).rows == 10


def test_a_row_larger_than_the_broker_takes_fails_the_table_and_only_it(pulsar_client, pulsar_topic):
    producer = pulsar_client.create_producer(pulsar_topic)
    with pytest.raises(errors.MessageTooBig, match="max_message_size"):
        producer.send_table(pa.table({"value": [b"ok", bytes(6 * 1024 * 1024)]}))
    producer.send_table(pa.table({"value": [b"ok"]}))


@pytest.mark.parametrize("size", [1, 1000])
def test_rows_whose_batch_exceeds_the_broker_s_maximum_are_sent_in_smaller_batches(
    pulsar_client, pulsar_topic, size
):
    """A batch is filled by its payloads alone; its metadata come on top of them."""
    producer = pulsar_client.create_producer(
        pulsar_topic,
        batching_enabled=True,
        batching_max_messages=1_000_000,
        batching_max_allowed_size_in_bytes=5 * 1024 * 1024,
    )
    rows = 5 * 1024 * 1024 // (size + 6) + 1000
    values = [b"%*d" % (size, number % 10) for number in range(rows)]
    assert producer.send_table(pa.table({"value": values})).batches > 1
    reader = pulsar_client.create_reader(pulsar_topic, geminga.MessageId.earliest)
    found = [value for batch in reader.record_batches() for value in batch.column("value").to_pylist()]
    assert found == values


@pytest.mark.parametrize("blocks", [False, True])
def test_a_table_larger_than_the_memory_limit_is_sent_in_smaller_batches_and_a_larger_row_is_refused(
    broker, blocks
):
    with geminga.Client(broker.url, memory_limit_bytes=10_000) as client:
        producer = client.create_producer("t", block_if_queue_full=blocks)
        assert producer.send_table(pa.table({"value": [b"x" * 1000] * 20})).batches > 2
        with pytest.raises(errors.MessageTooBig, match="memory_limit=10000"):
            producer.send_table(pa.table({"value": [b"x" * 10_001]}))
        producer.send(b"x")


def test_closing_fails_tables_in_flight(broker):
    broker.answers[pb.BaseCommand.SEND] = lambda peer, frame: None
    with geminga.Client(broker.url, operation_timeout_seconds=1) as client:
        producer = client.create_producer("t")
        future = producer.submit_table(pa.table({"value": [b"x"] * 10}))
        producer.close()
        with pytest.raises(errors.AlreadyClosed):
            future.result(60)
        with pytest.raises(errors.AlreadyClosed):
            producer.send_table(pa.table({"value": [b"x"]}))
