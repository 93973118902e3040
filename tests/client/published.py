"""Messages for a topic of a broker under test, and what a subscription has left."""

from __future__ import annotations

from typing import Any

from geminga.client.admin import admin


def publish(client: Any, topic: str, count: int, *, batched: bool = True) -> list[bytes]:
    """The numbers from 0 on, as what was published."""
    values = [b"%d" % number for number in range(count)]
    with client.create_producer(topic, batching_enabled=batched) as producer:
        for value in values:
            producer.send_async(value, None)
        producer.flush()
    return values


def backlog(broker: Any, topic: str, subscription: str = "s") -> int:
    """As the broker counts it."""
    path = topic.replace("://", "/")
    return int(admin(broker.admin_url, "GET", f"{path}/stats")["subscriptions"][subscription]["msgBacklog"])
