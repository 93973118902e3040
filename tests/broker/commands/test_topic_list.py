"""Topic list hashes and patterns (vectors of algorithms.md section 13)."""

import time

import pytest
from cases import cases

from geminga.broker.commands.topic_list import PATTERN_LENGTH_MAX, TopicsPattern, is_hidden, topics_hash
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics.topic_registry import TOPIC_NAME_MAX

P = "persistent://public/default/"


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ([], "00000000"),
        ([P + "a"], "e4a876e3"),
        ([P + "b", P + "a"], "c7559e98"),
        (["c", "a", "b"], "ce8814bc"),
    ],
)
def test_hashes_of_topic_lists_are_as_expected(topics, expected):
    assert topics_hash(topics) == expected


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        (P + "a.*", P + "abc", True),
        ("public/default/a.*", P + "abc", True),
        (P + "a.*", "non-persistent://public/default/abc", True),
        (P + "a", P + "abc", False),
        (P + "b.*", P + "abc", False),
        (P + "abc", P + "abc-partition-12", True),
        (P + "abc", P + "abc-partition-01", False),
    ],
)
def test_patterns_match_the_whole_name_without_its_domain(pattern, topic, matches):
    assert TopicsPattern(pattern).matches(topic) == matches


@pytest.mark.parametrize("pattern", ["x" * (PATTERN_LENGTH_MAX + 1), "a("])
def test_bad_patterns_are_refused(pattern):
    with pytest.raises(Refused):
        TopicsPattern(pattern)


@pytest.mark.parametrize(("pattern", "cheap"), cases("topic_patterns"))
def test_patterns_that_could_keep_the_broker_busy_are_refused(pattern, cheap):
    if cheap:
        TopicsPattern(pattern)
    else:
        with pytest.raises(Refused, match="too long to match"):
            TopicsPattern(pattern)


def test_the_worst_pattern_on_the_worst_name_is_quick():
    pattern = TopicsPattern(".*a.*b")
    begin = time.thread_time()
    assert not pattern.matches("a" * TOPIC_NAME_MAX)
    assert time.thread_time() - begin < 0.5


def test_system_topics_are_hidden():
    assert is_hidden(P + "__change_events")
    assert not is_hidden(P + "_ours")
