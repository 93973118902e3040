"""Topics that a pattern matches, and the parts of a topic."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.client.topic_set import SubscribedPart, TopicPattern, TopicSet
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


class Core:
    """Answers like a `ClientContext`."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.topics: list[str] = []

    async def partitions(self, topic: str, *, opening: bool) -> int:
        return self.counts.get(topic, 0)

    async def topics_of_namespace(self, namespace: str, mode: int) -> Any:
        return SimpleNamespace(topics=self.topics)


def full(name: str) -> str:
    return f"persistent://public/default/{name}"


async def parts(topics: TopicSet) -> list[SubscribedPart]:
    return await topics.current()


def run(coroutine: Any) -> Any:
    import asyncio

    return asyncio.run(coroutine)


def test_topics_and_their_partitions():
    context = Core()
    context.counts[full("b")] = 2
    topics = TopicSet(context, ["a", "b", "a", "c-partition-4"])
    assert run(parts(topics)) == [
        SubscribedPart(full("a"), -1),
        SubscribedPart(full("b-partition-0"), 0),
        SubscribedPart(full("b-partition-1"), 1),
        SubscribedPart(full("c-partition-4"), 4),
    ]
    assert topics.can_grow
    context.counts[full("b")] = 0
    assert len(run(parts(topics))) == 4, "partitions never become fewer"
    plain = TopicSet(context, "a")
    run(parts(plain))
    assert not plain.can_grow
    assert plain.text == full("a")


def test_topics_of_a_pattern():
    context = Core()
    context.topics = [full(name) for name in ("x2", "x1-partition-0", "__change_events", "y")]
    topics = TopicSet(context, re.compile(r"[x_].*"))
    assert run(parts(topics)) == [SubscribedPart(full("x1-partition-0"), 0), SubscribedPart(full("x2"), -1)]
    assert topics.can_grow
