"""A producer on the topic that the tests of delivery use."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def producer(harness: Any) -> Any:
    peer = harness.peer()
    peer.producer("persistent://public/default/t")
    return peer
