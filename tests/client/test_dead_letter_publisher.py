"""Retries end to end."""

import pytest
from published import publish

import geminga
from geminga import ConsumerType
from geminga.errors import InvalidConfiguration


def test_reconsume_later(pulsar_client, pulsar_topic):
    policy = geminga.ConsumerDeadLetterPolicy(1)
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", ConsumerType.Shared, retry_enabled=True, dead_letter_policy=policy
    )
    graves = pulsar_client.subscribe(f"{pulsar_topic}-s-DLQ", "graves")
    publish(pulsar_client, pulsar_topic, 1)
    first = consumer.receive(30_000)
    consumer.reconsume_later(first, 100, {"why": "busy"})
    again = consumer.receive(30_000)
    assert again.topic_name() == f"{pulsar_topic}-s-RETRY"
    assert again.properties()["RECONSUMETIMES"] == "1"
    assert again.properties()["why"] == "busy"
    consumer.reconsume_later(again, 100)
    assert graves.receive(30_000).properties()["RECONSUMETIMES"] == "2"
    plain = pulsar_client.subscribe(pulsar_topic, "plain")
    with pytest.raises(InvalidConfiguration, match="retry_enabled"):
        plain.reconsume_later(first, 100)
