"""Patterns of topics."""

import pytest

from geminga.errors import InvalidTopicName
from geminga.ids import TopicName
from geminga.mirror.patterns import MirrorPattern


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("orders", "orders", True), ("orders", "orders-2", False), ("orders", "orders-partition-3", True),
        ("orders-.*", "public/default/orders-eu", True), ("persistent://a/b/.*", "a/b/c", True),
        ("a/.*/x", "a/b/x", True), ("a/.*/x", "aa/b/x", False), (".*/.*/.*", "a/b/c", True),
        (".*", "public/default/__change_events", False),
    ],
)  # fmt: skip
def test_matching(pattern, topic, matches):
    assert MirrorPattern.parse(pattern).matches(TopicName.parse(topic)) is matches


@pytest.mark.parametrize("pattern", ["non-persistent://a/b/c", "a/b", "(", "", "a//b", "a/b/c/d"])
def test_invalid_patterns_are_refused(pattern):
    with pytest.raises(InvalidTopicName, match="topics="):
        MirrorPattern.parse(pattern)
