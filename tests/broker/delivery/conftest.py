"""A producer on the topic that the tests of delivery use."""

import pytest


@pytest.fixture
def producer(harness):
    return harness.producer("persistent://public/default/t")
