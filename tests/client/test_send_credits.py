from typing import Any

import pytest
from producing import connect, producer_of, settings_of

from geminga.client.publish.send_credits import PLAIN_SIZE_MIN, SendCredits
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.pending_limits import UNLIMITED
from geminga.producer.settings import CompressionType
from geminga.wire.frames import MAX_MESSAGE_SIZE


def made(partitions: int = 0, memory: int = 0, **options: Any) -> tuple[PartitionedProducer, SendCredits]:
    settings = settings_of(**options)
    state = producer_of(partitions, settings, memory=memory)
    connect(*state.partitions)
    return state, SendCredits(state, settings)


def add(state: PartitionedProducer, count: int, size: int = 1) -> None:
    for _ in range(count):
        state.add(b"x" * size, None, None, 0.0)


ACROSS = "max_pending_messages_across_partitions"


@pytest.mark.parametrize(
    ("partitions", "options", "before", "count", "after"),
    [
        pytest.param(0, {}, 10, 1, 9, id="permits of one partition"),
        pytest.param(0, {}, 10, 10, 0, id="no permit left"),
        pytest.param(3, {ACROSS: 100}, 30, 12, 18, id="sum over partitions that can be skipped"),
        pytest.param(4, {ACROSS: 8}, 8, 3, 5, id="limit over all partitions"),
        pytest.param(3, {"step_over_blocked_partitions": False}, 10, 4, 6, id="fullest partition"),
    ],
)
def test_credits_are_the_messages_that_find_a_permit(partitions, options, before, count, after):
    state, room = made(partitions, max_pending_messages=10, **options)
    assert room.numbers(1, 0, 0)[0] == before
    add(state, count)
    assert room.numbers(1, 0, 0)[0] == after


def test_waiting_messages_take_credits():
    assert made(max_pending_messages=10)[1].numbers(1, 2, 0)[0] == 8


def test_a_closed_producer_has_no_send_credits():
    state, room = made()
    state.partitions[0].close(0.0)
    state.partitions[0].closed(0.0)
    assert room.numbers(1, 0, 0)[0] == 0


def test_bytes_are_shared_by_the_producers_of_a_client():
    _, room = made(memory=100 * PLAIN_SIZE_MIN)
    assert room.numbers(1, 0, 0)[:2] == (100, PLAIN_SIZE_MIN)
    assert room.numbers(4, 0, 0)[:2] == (25, PLAIN_SIZE_MIN)
    assert room.numbers(1, 0, 2 * PLAIN_SIZE_MIN)[:2] == (50, 2 * PLAIN_SIZE_MIN)


@pytest.mark.parametrize(
    ("options", "size_max"),
    [
        ({}, MAX_MESSAGE_SIZE),
        ({"compression_type": CompressionType.LZ4}, UNLIMITED),
        ({"batching_enabled": False, "chunking_enabled": True}, MAX_MESSAGE_SIZE // 2),
        ({"batching_enabled": False, "chunking_enabled": True, "chunk_max_message_size": 1000}, 500),
    ],
)
def test_the_size_limit_of_credits_follows_the_settings(options, size_max):
    assert made(**options)[1].numbers(1, 0, 0)[1] == size_max


def test_the_loop_is_woken_when_the_open_batch_is_full():
    state, room = made(batching_max_messages=10)
    assert room.numbers(1, 0, 0)[2:] == (1, 1)
    add(state, 3)
    assert room.numbers(1, 0, 0)[2:] == (7, 7)
    state, room = made(batching_max_messages=1000, batching_max_allowed_size_in_bytes=1000)
    add(state, 2, size=100)
    assert room.numbers(1, 0, 0)[2] == 8
    state, room = made(batching_enabled=False)
    add(state, 3)
    assert room.numbers(1, 0, 0)[2:] == (1, 1)
