"""Topics that a pattern matches, and how new ones are found."""

import re
import time
import uuid

import pytest

from geminga import InitialPosition
from geminga.client.receive.topic_set import TopicPattern
from geminga.client.receive.topic_watcher import TopicWatcher
from geminga.errors import InvalidTopicName
from geminga.ids import TopicName


@pytest.mark.parametrize(
    ("pattern", "namespace", "matching", "not_matching"),
    [
        ("persistent://public/default/a.*", "public/default", "a1", "b1"),
        ("public/default/a[0-9]", "public/default", "a1", "a12"),
        ("a.*", "public/default", "abc", "ba"),
        ("acme/web/.*", "acme/web", "anything", ""),
    ],
)
def test_pattern_texts(pattern, namespace, matching, not_matching):
    parsed = TopicPattern.parse(re.compile(pattern))
    assert parsed.namespace == namespace
    assert parsed.matches(TopicName.parse(f"{namespace}/{matching}"))
    assert parsed.matches(TopicName.parse(f"{namespace}/{matching}-partition-3"))
    if not_matching:
        assert not parsed.matches(TopicName.parse(f"{namespace}/{not_matching}"))


@pytest.mark.parametrize("pattern", ["public/default", "pub.*lic/(x|y)/a", "public/*/a"])
def test_patterns_need_one_namespace(pattern):
    with pytest.raises(InvalidTopicName):
        TopicPattern.parse(re.compile(pattern))


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
