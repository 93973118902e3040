"""The broker reports new topics of a pattern long before the next periodic search."""

import re
import time
import uuid

from geminga import InitialPosition
from geminga.client.topic_set import TopicPattern
from geminga.client.topic_watcher import TopicWatcher


def test_new_topics_are_found_at_once(pulsar_client):
    prefix = f"w{uuid.uuid4().hex[:6]}"
    consumer = pulsar_client.subscribe(
        re.compile(f"{prefix}.*"), "s", initial_position=InitialPosition.Earliest
    )  # looks by itself once a minute
    with pulsar_client.create_producer(f"{prefix}-new") as producer:
        producer.send(b"hello")
    start = time.monotonic()
    assert consumer.receive(30_000).data() == b"hello"
    assert time.monotonic() - start < 30
    consumer.close()


def test_a_long_pattern_is_not_watched(pulsar_client):
    async def main() -> tuple[bool, bool]:
        active = []
        for local in ("x" * 10, "x" * 60):
            pattern = TopicPattern("public/default", re.compile(local))
            watcher = TopicWatcher(pulsar_client.context, pattern, lambda: None)
            await watcher.ensure()
            await watcher.ensure()
            active.append(watcher.active)
            watcher.close()
            assert not watcher.active
        return active[0], active[1]

    assert pulsar_client.runtime.call(main()) == (True, False)
