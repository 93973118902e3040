"""A producer on the topic that the tests of delivery use."""

import pytest


@pytest.fixture
def producer(harness):
    peer = harness.producer("persistent://public/default/t")
    return peer
