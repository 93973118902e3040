"""Publish to a topic of a broker under test, receive, and count what a subscription has left."""

from typing import Any

from geminga import MessageId
from geminga.client.admin import admin


def publish(
    client: Any, topic: str, count: int, *, batched: bool = True, start: int = 0, **options: Any
) -> list[bytes]:
    """Publish and return consecutive numbers; a batch ends when it is full or all are sent."""
    values = [b"%d" % number for number in range(start, start + count)]
    if batched:
        options = {"batching_max_publish_delay_ms": 60_000, **options}
    with client.create_producer(topic, batching_enabled=batched, **options) as producer:
        for value in values:
            producer.send_async(value, None)
        producer.flush()
    return values


def read(client: Any, topic: str, count: int) -> list[Any]:
    """Return the first messages of a topic."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [reader.read_next(30_000) for _ in range(count)]


def receive(consumer: Any, count: int, timeout_millis: int = 30_000) -> list[Any]:
    return [consumer.receive(timeout_millis) for _ in range(count)]


def data(messages: list[Any]) -> list[bytes]:
    return [message.data() for message in messages]


def backlog(broker: Any, topic: str, subscription: str = "s") -> int:
    """Return the number of messages that a subscription has not acknowledged, as the broker counts them."""
    path = topic.replace("://", "/")
    return int(admin(broker.admin_url, "GET", f"{path}/stats")["subscriptions"][subscription]["msgBacklog"])
