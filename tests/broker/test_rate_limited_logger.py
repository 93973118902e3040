"""Faults of peers are logged, at a limited rate."""

from typing import Any

from geminga.broker.runtime.rate_limited_logger import LINES_MAX, PERIOD_SECONDS
from tests.broker.conftest import said


def refuse(harness: Any, count: int) -> None:
    for _ in range(count):
        peer = harness.peer(connect=False)
        peer.send_bytes(b"\xff" * 8)
        assert peer.is_closed


def test_the_number_of_suppressed_lines_is_logged(harness, caplog):
    refuse(harness, LINES_MAX + 1000)
    assert len(said(caplog)) == LINES_MAX
    harness.advance(PERIOD_SECONDS + 1)
    assert "1000 more log lines of this kind were suppressed" in caplog.text
    refuse(harness, 1)
    assert len(said(caplog)) == LINES_MAX + 2
