"""Positions in a topic that are found by reading entries."""

from typing import Any

import pytest

from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.entries.position_lookup import (
    last_batch_index,
    last_position,
    offset_by_time,
    publish_time,
)
from tests.broker.conftest import TOPIC


def filled(harness: Any, make_entry: Any, times: list[int]) -> ManagedLedger:
    harness.producer(TOPIC).send_all(make_entry(publish_time=time) for time in times)
    return harness.topic().ledger


@pytest.mark.parametrize(
    ("time", "offset"), [(0, 0), (10, 0), (11, 1), (20, 1), (25, 3), (30, 3), (31, 4), (10**15, 4)]
)
def test_positions_are_found_by_time(harness, make_entry, time, offset):
    assert offset_by_time(filled(harness, make_entry, [10, 20, 20, 30]), time, 99) == offset


def test_an_empty_topic_has_no_last_position(harness, make_entry):
    ledger = filled(harness, make_entry, [])
    assert last_position(ledger) == (-1, -1)
    assert last_batch_index(ledger) == -1
    assert publish_time(ledger, 0, 99) == 99
    assert offset_by_time(ledger, 5, 99) == 0


def test_entries_that_cannot_be_read_have_no_time(harness):
    harness.producer(TOPIC).send(0, b"\x00\x00\x00\x02\xff\xff")
    ledger = harness.topic().ledger
    assert publish_time(ledger, 0, 99) == 0
    assert last_batch_index(ledger) == -1
