"""The WebSocket API of both brokers: the same conversations, the same answers."""

import uuid

import pytest

from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.broker.settings import BrokerSettings
from geminga.websocket import attach
from tests.programs import websocket as program

pytestmark = pytest.mark.interop


def test_conversations_are_the_same_on_both_brokers(apache_pulsar):
    topic = f"websocket-{uuid.uuid4().hex[:8]}"
    with EmbeddedBroker(BrokerSettings(memory=True, port=0, web_port=0), site=attach) as broker:
        ours = program.run(broker.admin_url, topic)
    assert ours == program.run(apache_pulsar.admin_url, topic)
