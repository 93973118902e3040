"""Dead letters and retries end to end."""

from typing import Any

import pytest
from published import backlog, publish
from waiting import eventually

import geminga
from geminga import ConsumerType, InitialPosition
from geminga.errors import InvalidConfiguration


@pytest.fixture
def subscribe(pulsar_client, pulsar_topic):
    opened = []

    def make(subscription: str = "s", topic: Any = pulsar_topic, **options: Any) -> Any:
        options = {"initial_position": InitialPosition.Earliest, **options}
        opened.append(pulsar_client.subscribe(topic, subscription, **options))
        return opened[-1]

    yield make
    for consumer in opened:
        consumer.close()


def test_dead_letters(pulsar_broker, pulsar_client, pulsar_topic, subscribe):
    consumer = subscribe(
        consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=geminga.ConsumerDeadLetterPolicy(2, initial_subscription_name="kept"),
    )  # fmt: skip
    with pulsar_client.create_producer(pulsar_topic) as producer:
        producer.send(b"poison", properties={"a": "b"}, partition_key="k")
    for count in range(3):
        message = consumer.receive(30_000)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    graves = subscribe("kept", topic=f"{pulsar_topic}-s-DLQ")
    buried = graves.receive(30_000)
    assert (buried.data(), buried.partition_key()) == (b"poison", "k")
    assert buried.properties()["REAL_TOPIC"] == pulsar_topic
    assert buried.properties()["a"] == "b"
    eventually(lambda: backlog(pulsar_broker, pulsar_topic) == 0)


def test_reconsume_later(pulsar_client, pulsar_topic, subscribe):
    consumer = subscribe(
        consumer_type=ConsumerType.Shared, retry_enabled=True,
        dead_letter_policy=geminga.ConsumerDeadLetterPolicy(1),
    )  # fmt: skip
    graves = subscribe("graves", topic=f"{pulsar_topic}-s-DLQ")
    publish(pulsar_client, pulsar_topic, 1)
    first = consumer.receive(30_000)
    consumer.reconsume_later(first, 100, {"why": "busy"})
    again = consumer.receive(30_000)
    assert again.topic_name() == f"{pulsar_topic}-s-RETRY"
    assert again.properties()["RECONSUMETIMES"] == "1"
    assert again.properties()["why"] == "busy"
    consumer.reconsume_later(again, 100)
    assert graves.receive(30_000).properties()["RECONSUMETIMES"] == "2"
    plain = subscribe("plain")
    with pytest.raises(InvalidConfiguration, match="retry_enabled"):
        plain.reconsume_later(first, 100)
