import random

import pytest

from geminga.errors import BrokerPersistenceError, MessageTooBig, NotAllowedError, UnsupportedVersionError
from geminga.producer.chunking import ChunkedMessage, ChunkPart, chunk_count
from geminga.producer.message import OutgoingMessage
from geminga.producer.partition import SendErrorVerdict
from geminga.producer.settings import CompressionType
from geminga.wire.compression import decompress
from geminga.wire.proto import pulsar_wire_pb2 as pb

CHUNKED = {"batching_enabled": False, "chunking_enabled": True, "chunk_max_message_size": 500}


def test_the_fields_of_a_chunk_are_what_protobuf_reads():
    whole = ChunkedMessage(3, 2600)
    whole.uuid = b"ck-0"
    head = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0).SerializeToString()
    metadata = pb.MessageMetadata.FromString(head + ChunkPart(whole, 2).metadata())
    assert (metadata.uuid, metadata.chunk_id) == ("ck-0", 2)
    assert (metadata.num_chunks_from_msg, metadata.total_chunk_msg_size) == (3, 2600)


@pytest.mark.parametrize(("size", "chunks"), [(0, 1), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_how_many_chunks(size, chunks):
    assert chunk_count(size, 10) == chunks


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_chunks_share_everything_but_their_number(bench, compression):
    b = bench(**CHUNKED, compression_type=compression, producer_name="ck").connect()
    payload = bytes(range(256)) * 20
    if compression:
        payload = random.Random(1).randbytes(5000)  # so that compressed bytes need chunks too
    b.add(payload, OutgoingMessage(payload, partition_key="k", properties=(("a", "b"),)))
    sent = b.written()
    total = len(payload) if not compression else sent[0].metadata.total_chunk_msg_size
    assert len(sent) == sent[0].metadata.num_chunks_from_msg > 5
    assert {s.metadata.uuid for s in sent} == {"ck-0"}
    assert [s.metadata.chunk_id for s in sent] == list(range(len(sent)))
    assert {s.command.sequence_id for s in sent} == {0}
    assert all(s.command.is_chunk for s in sent)
    assert {s.metadata.total_chunk_msg_size for s in sent} == {total}
    assert all(s.metadata.partition_key == "k" and s.metadata.properties for s in sent)
    assert all(s.entry_size <= 500 + 10 for s in sent)
    body = b"".join(s.payload for s in sent)
    assert len(body) == total
    size = sent[0].metadata.uncompressed_size or len(body)
    assert decompress(int(compression), body, size, limit=1 << 20) == payload


def test_each_chunk_takes_a_permit_and_the_last_receipt_settles_the_message(bench):
    b = bench(**CHUNKED).connect()
    b.add(b"x" * 1500, token="token")
    chunks = len(b.written())
    assert b.permits_used[0] == chunks
    for entry in range(chunks):
        assert [t for o in b.settled() for t in o.tokens] == []
        b.receipt(0, entry_id=entry)
    tokens = [(t, o) for o in b.settled() for t in o.tokens]
    ((token, last),) = tokens
    assert token == "token"
    assert (last.ledger_id, last.entry_id) == (1, chunks - 1)
    assert last.chunk.message.first_entry_id == 0
    assert b.permits_used == (0, 0, 0)
    assert b.partition.counters.acknowledged_messages == 1


def test_a_receipt_that_comes_twice_does_not_settle_the_next_chunk(bench):
    b = bench(**CHUNKED).connect()
    b.add(b"x" * 1500, token="token")
    chunks = len(b.written())
    for entry in range(chunks - 1):
        b.receipt(0, entry_id=entry)
        b.receipt(0, entry_id=entry)
    assert [t for o in b.settled() for t in o.tokens] == []
    b.receipt(0, entry_id=chunks - 1)
    assert [(t, o.entry_id) for o in b.settled() for t in o.tokens] == [("token", chunks - 1)]


def test_when_one_chunk_fails_the_message_fails_once_and_the_next_is_sent(bench):
    b = bench(**CHUNKED).connect()
    b.add(b"x" * 1500, token="first")
    b.add(b"y", token="second")
    chunks = len(b.written()) - 1
    b.receipt(0)
    assert b.partition.send_error(NotAllowedError.code, 0, "too many", 0.0) is SendErrorVerdict.NOTHING
    assert [(t, type(o.error)) for o in b.settled() for t in o.tokens] == [("first", NotAllowedError)]
    for _ in range(chunks - 1):
        b.receipt(0)  # receipts of chunks in flight no longer matter
    b.receipt(1)
    assert [t for o in b.settled() for t in o.tokens] == ["second"]
    assert b.permits_used == (0, 0, 0)


def test_after_a_reconnect_the_missing_chunks_follow_with_the_same_uuid(bench):
    b = bench(**CHUNKED, producer_name="me").connect()
    b.add(b"x" * 1500)
    before = b.written()
    b.receipt(0)
    b.partition.disconnected(None)
    b.connect()
    after = b.written()
    assert [s.metadata.chunk_id for s in after] == [s.metadata.chunk_id for s in before[1:]]
    assert {s.metadata.uuid for s in after} == {"me-0"}
    assert {s.metadata.publish_time for s in after} == {before[0].metadata.publish_time}


def test_chunks_dropped_as_duplicates_of_each_other_fail_the_message(bench):
    """Apache Pulsar 2.10 and 2.11 with deduplication: the message is incomplete in the topic."""
    b = bench(**CHUNKED).connect()
    b.add(b"x" * 1500, token="lost")
    b.add(b"y", token="next")
    chunks = len(b.written()) - 1
    for _ in range(chunks - 1):  # they are answered at once, before the first is stored
        b.receipt(0, ledger_id=-1, entry_id=-1)
    b.receipt(0, entry_id=0)
    b.receipt(1, entry_id=1)
    (lost, error), (following, no_error) = [(t, o.error) for o in b.settled() for t in o.tokens]
    assert (lost, following, no_error) == ("lost", "next", None)
    assert isinstance(error, UnsupportedVersionError)
    assert "deduplication" in str(error)
    assert b.permits_used == (0, 0, 0)
    assert b.partition.counters.failed_messages == 1


def test_a_new_chunk_that_may_be_a_duplicate_fails_the_message(bench):
    """Apache Pulsar 2.10 and 2.11 while the first chunk is not stored yet; all is sent again otherwise, and
    every chunk is then a duplicate."""
    b = bench(**CHUNKED).connect()
    b.add(b"x" * 1500, token="lost")
    b.add(b"y", token="next")
    b.written()
    unknown = "Cannot determine whether the message is a duplicate at this time"
    assert b.partition.send_error(BrokerPersistenceError.code, 0, unknown, 0.0) is SendErrorVerdict.DETACH
    assert [(t, type(o.error)) for o in b.settled() for t in o.tokens] == [("lost", UnsupportedVersionError)]
    b.partition.disconnected(None)
    b.connect()
    assert [s.payload for s in b.written()] == [b"y"]
    assert b.partition.send_error(BrokerPersistenceError.code, 1, unknown, 0.0) is SendErrorVerdict.DETACH
    assert b.settled() == []


@pytest.mark.parametrize("dropped", ["all", "last"])
def test_a_chunked_message_that_the_broker_has_already_is_a_duplicate(bench, dropped):
    """Apache Pulsar 4.0 stores the chunks of a duplicate but the last one."""
    b = bench(**CHUNKED, initial_sequence_id=5).connect(last_sequence_id=7)
    b.add(b"x" * 1500, token="again")
    written = b.written()
    for number in range(len(written)):
        is_dropped = dropped == "all" or number == len(written) - 1
        b.receipt(6, **({"ledger_id": -1, "entry_id": -1} if is_dropped else {"entry_id": number}))
    ((token, operation),) = [(t, o) for o in b.settled() for t in o.tokens]
    assert (token, operation.error, operation.duplicate) == ("again", None, True)


def test_chunks_that_were_stored_before_a_reconnect_are_no_error(bench):
    """Their receipts were lost with the connection; the chunks are sent again, and are duplicates."""
    b = bench(**CHUNKED).connect()
    b.add(b"x" * 1500, token="kept")
    b.written()
    b.receipt(0)
    b.partition.disconnected(None)
    b.connect()
    for _ in b.written():
        b.receipt(0, ledger_id=-1, entry_id=-1)
    assert [(t, o.error) for o in b.settled() for t in o.tokens] == [("kept", None)]


def test_the_uuid_uses_the_final_name_and_id(bench):
    b = bench(**CHUNKED)
    b.add(b"x" * 1500)  # before the broker has named the producer
    b.connect(last_sequence_id=41, producer_name="n" * 130)
    assert {s.metadata.uuid for s in b.written()} == {"n" * 130 + "-42"}


def test_more_chunks_than_permits_are_refused_for_good(bench):
    b = bench(**CHUNKED, max_pending_messages=2).connect()
    with pytest.raises(MessageTooBig, match="chunks"):
        b.add(b"x" * 5000)
    assert b.permits_used == (0, 0, 0)


def test_properties_that_leave_no_room_are_refused(bench):
    b = bench(**CHUNKED).connect()
    with pytest.raises(MessageTooBig, match="no room"):
        b.add(b"x" * 1500, OutgoingMessage(b"x" * 1500, properties=(("k", "v" * 600),)))


def test_a_topic_that_is_not_stored_takes_no_chunks(bench):
    b = bench(**CHUNKED, topic="non-persistent://a/b/c", max_message_size=1000).connect()
    with pytest.raises(MessageTooBig, match="max_message_size=1000"):
        b.add(b"x" * 1500)
