"""Chunk assembly: gaps, repetitions, interleaving, expiry, limits (algorithms.md section 12)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.consumer.chunks import ChunkAssembler, ChunkVerdict
from geminga.wire.proto import pulsar_wire_pb2 as pb

NOW_MS = 1_700_000_000_000


def assembler(**options: Any) -> ChunkAssembler:
    defaults = {"pending_max": 10, "acknowledge_oldest": False, "expiry_seconds": 60.0, "bytes_max": 1 << 20}
    return ChunkAssembler(**{**defaults, **options})


def chunk(
    uuid: str, index: int, count: int = 3, total: int = 6, publish_time: int = NOW_MS
) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=publish_time, uuid=uuid, chunk_id=index,
        num_chunks_from_msg=count, total_chunk_msg_size=total,
    )  # fmt: skip


def add(
    chunks: ChunkAssembler, metadata: pb.MessageMetadata, entry_id: int, now: float = 0.0
) -> ChunkVerdict:
    return chunks.add(metadata, b"ab", (1, entry_id), now, NOW_MS)


@pytest.fixture
def chunks():
    return assembler()


@pytest.mark.parametrize(
    ("arrivals", "acknowledged", "dropped", "delivered"),
    [
        pytest.param("0@0 2@2", [], [0, 2], [], id="a gap leaves the message to redelivery"),
        pytest.param("0@2 0@0 2@4", [], [0, 2, 4], [], id="so it does with an earlier attempt"),
        pytest.param("0@2 1@1", [], [], [], id="an earlier attempt's chunk may come again"),
        pytest.param("0@2 1@1 1@3 2@4", [1], [], [2, 3, 4], id="attempts are not mixed"),
        pytest.param("0@0 1@1 1@1", [], [], [], id="an entry may come twice"),
        pytest.param("0@0 1@1 1@1 2@2", [], [], [0, 1, 2], id="an entry that came twice counts once"),
        pytest.param("0@0 1@1 1@5", [5], [], [], id="a repeated chunk is acknowledged"),
        pytest.param("0@0 1@1 1@5 2@6", [], [], [0, 1, 6], id="behind a repeated chunk"),
        pytest.param("0@0 1@1 0@7", [0, 1], [], [], id="a new first chunk replaces the others"),
        pytest.param("0@0 1@1 0@7 1@8 2@9", [], [], [7, 8, 9], id="behind a new first chunk"),
        pytest.param("0@0 1@1 0@0", [], [], [], id="a redelivered first chunk restarts the message"),
        pytest.param("0@0 1@1 0@0 1@1 2@2", [], [], [0, 1, 2], id="behind a redelivered first chunk"),
    ],
)
def test_the_last_of_several_chunks(arrivals, acknowledged, dropped, delivered, chunks):
    """``2@5`` is chunk 2 in entry 5."""
    for arrival in arrivals.split():
        index, entry_id = arrival.split("@")
        verdict = add(chunks, chunk("a", int(index)), int(entry_id))
    assert [entry_id for _, entry_id in verdict.acknowledge] == acknowledged
    assert sorted(entry_id for _, entry_id in verdict.dropped) == dropped
    assert verdict.payload == (b"ababab" if delivered else None)
    if delivered:
        assert [entry_id for _, entry_id in verdict.chunk_ids] == delivered


def test_a_redelivered_attempt_is_delivered_while_a_later_one_is_incomplete(chunks):
    """The producer has the receipt of the first attempt, so the later one is never continued."""
    for index in range(3):
        verdict = add(chunks, chunk("a", index), index)
    assert verdict.payload == b"ababab"
    add(chunks, chunk("a", 0), 3)
    for _ in range(2):
        for index in range(3):
            verdict = add(chunks, chunk("a", index), index)
        assert (verdict.payload, verdict.chunk_ids) == (b"ababab", [(1, 0), (1, 1), (1, 2)])
        assert verdict.acknowledge == verdict.dropped == []
    expired = chunks.expire(60.0)
    assert (expired.acknowledge, expired.dropped) == ([(1, 3)], [])


def test_a_later_attempt_takes_back_no_chunk_of_a_delivered_one(chunks):
    add(chunks, chunk("a", 0), 3)
    for index in (0, 1, 2, 0):
        add(chunks, chunk("a", index), index)
    add(chunks, chunk("a", 1), 4)
    verdict = add(chunks, chunk("a", 2), 5)
    assert (verdict.payload, verdict.acknowledge) == (None, [(1, 3), (1, 4), (1, 5)])
    assert verdict.dropped == [(1, 0)]
    add(chunks, chunk("a", 1), 1)
    assert add(chunks, chunk("a", 2), 2).payload == b"ababab"


def test_chunks_of_an_earlier_attempt_stay_if_the_later_one_is_never_complete(chunks):
    add(chunks, chunk("a", 0), 2)
    add(chunks, chunk("a", 0), 0)
    expired = chunks.expire(60.0)
    assert (expired.acknowledge, expired.dropped) == ([(1, 2)], [(1, 0)])
    add(chunks, chunk("a", 0), 0)
    add(chunks, chunk("a", 1), 1)
    assert add(chunks, chunk("a", 2), 3).payload == b"ababab"


@pytest.mark.parametrize("acknowledge", [False, True])
def test_the_limit_drops_chunks_of_an_earlier_attempt_too(acknowledge):
    chunks = assembler(pending_max=1, acknowledge_oldest=acknowledge)
    add(chunks, chunk("a", 0), 2)
    add(chunks, chunk("a", 0), 0)
    verdict = add(chunks, chunk("b", 0), 3)
    assert (verdict.acknowledge, (1, 0) in verdict.dropped) == ([(1, 2)] if acknowledge else [], True)


@pytest.mark.parametrize("total", [3, 7])
def test_a_wrong_size_drops_chunks_of_an_earlier_attempt_too(total, chunks):
    add(chunks, chunk("a", 0, total=total), 2)
    add(chunks, chunk("a", 0, total=total), 0)
    verdicts = [add(chunks, chunk("a", index, total=total), 2 + index) for index in (1, 2)]
    assert [(1, 0) in verdict.dropped for verdict in verdicts].count(True) == 1
    assert len(chunks) == 0


def test_a_gap_in_an_expired_message_is_acknowledged_away(chunks):
    old = NOW_MS - 61_000
    add(chunks, chunk("a", 0, publish_time=old), 0)
    assert add(chunks, chunk("a", 2, publish_time=old), 2).acknowledge == [(1, 0), (1, 2)]


def test_a_chunk_without_its_first_is_acknowledged_once_expired(chunks):
    assert add(chunks, chunk("a", 1), 1).acknowledge == []
    assert add(chunks, chunk("a", 1, publish_time=NOW_MS - 61_000), 1).acknowledge == [(1, 1)]


def test_a_chunk_that_was_on_its_way_when_all_were_forgotten_waits_for_the_first():
    """A consumer that asks for redelivery forgets the first chunk, and then the second one arrives."""
    chunks, old = assembler(), NOW_MS - 61_000
    add(chunks, chunk("a", 0, publish_time=old), 0)
    chunks.clear()
    verdict = add(chunks, chunk("a", 1, publish_time=old), 1)
    assert (verdict.acknowledge, verdict.dropped) == ([], [(1, 1)])
    for index in range(3):
        verdict = add(chunks, chunk("a", index, publish_time=old), index)
    assert verdict.payload == b"ababab"
    assert add(chunks, chunk("a", 2, publish_time=old), 2).acknowledge == [(1, 2)]


def test_few_forgotten_messages_are_remembered(monkeypatch):
    monkeypatch.setattr("geminga.consumer.chunks.FORGOTTEN_MAX", 2)
    chunks, old = assembler(), NOW_MS - 61_000
    for uuid in "abc":
        add(chunks, chunk(uuid, 0, publish_time=old), 0)
    chunks.clear()
    kept = [not add(chunks, chunk(uuid, 1, publish_time=old), 1).acknowledge for uuid in "abc"]
    assert kept == [False, True, True]


@pytest.mark.parametrize("acknowledge", [False, True])
def test_the_oldest_incomplete_message_is_dropped_at_the_limit(acknowledge):
    chunks = assembler(pending_max=2, acknowledge_oldest=acknowledge)
    add(chunks, chunk("a", 0), 0)
    add(chunks, chunk("b", 0), 1)
    verdict = add(chunks, chunk("c", 0), 2)
    assert (verdict.acknowledge, verdict.dropped) == (([(1, 0)], []) if acknowledge else ([], [(1, 0)]))
    assert len(chunks) == 2
    assert add(chunks, chunk("a", 1), 3).payload is None


def test_never_finished_messages_expire(chunks):
    add(chunks, chunk("a", 0), 0, now=10.0)
    add(chunks, chunk("b", 0), 1, now=20.0)
    assert chunks.next_deadline() == 70.0
    assert chunks.expire(69.9) is None
    expired = chunks.expire(70.0)
    assert (expired.acknowledge, expired.dropped) == ([(1, 0)], [])
    assert chunks.next_deadline() == 80.0
    assert chunks.size_bytes == 2


def test_no_expiry():
    chunks = assembler(expiry_seconds=0.0)
    add(chunks, chunk("a", 0), 0)
    assert chunks.next_deadline() == float("inf")


def test_larger_than_announced_or_accepted():
    for options, total in (({}, 3), ({"bytes_max": 3}, 6)):
        chunks = assembler(**options)
        add(chunks, chunk("a", 0, total=total), 0)
        add(chunks, chunk("a", 1, total=total), 1)
        assert len(chunks) == 0
        assert add(chunks, chunk("a", 2, total=total), 2).payload is None


def test_smaller_than_announced(chunks):
    for index in range(3):
        verdict = add(chunks, chunk("a", index, total=7), index)
    assert verdict.payload is None
    assert len(chunks) == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.integers(0, 30)), max_size=60))
def test_only_complete_messages_come_out(arrivals):
    chunks = assembler(pending_max=3)
    for uuid, index, entry_id in arrivals:
        metadata = chunk(uuid, index, count=4, total=8)
        verdict = chunks.add(metadata, f"{uuid}{index}".encode(), (1, entry_id), 0.0, NOW_MS)
        if verdict.payload is not None:
            assert verdict.payload.decode() == "".join(f"{uuid}{i}" for i in range(4))
            assert len(verdict.chunk_ids) == 4
        assert len(chunks) <= 3
        assert not set(verdict.acknowledge) & set(verdict.chunk_ids)
