"""Overview of all topics, with and without subscriptions, partitions as one."""

from typing import Any

from geminga.broker.admin.topic_overview import TopicOverview
from geminga.diagnosis.conclude import Trouble
from geminga.ids import MessageId, TopicName
from tests.broker.admin.test_subscription_overview import PREFIX, complete_page, names
from tests.support.disk_stores import succeeded


def page(harness: Any, **asked: Any) -> dict[str, Any]:
    return complete_page(harness, TopicOverview(harness.broker), sort="name", **asked)


def test_topics_without_subscriptions_are_listed(harness):
    for name in ("lonely", "shared"):
        harness.actions.create(TopicName.parse(PREFIX + name), succeeded)
    harness.actions.cursors.create(TopicName.parse(PREFIX + "shared"), "s", MessageId.earliest, succeeded)
    harness.poll()
    found = page(harness)
    assert names(found) == ["lonely", "shared"]
    assert [row["subscriptions"] for row in found["rows"]] == [0, 1]
    harness.restart()
    assert names(page(harness, search="LONE")) == ["lonely"]
    assert names(page(harness, search="shared s")) == ["shared"]
    assert names(page(harness, search="another")) == []


def test_a_partitioned_topic_is_one_row(harness):
    topic = TopicName.parse(PREFIX + "parts")
    harness.actions.create_partitioned(topic, 3, succeeded)
    harness.poll()
    peers = []
    for index in range(3):
        peer = harness.producer(f"{PREFIX}parts-partition-{index}", producer_name="p")
        peer.publish(2)
        peer.subscribe(f"{PREFIX}parts-partition-{index}", "s", consumer_name="c")
        peers.append(peer)
    (row,) = page(harness)["rows"]
    assert (row["topic"], row["partitions"]) == (str(topic), 3)
    assert (row["producers"], row["subscriptions"]) == (1, 1)
    assert row["stored"] > 0
    harness.restart()
    (row,) = page(harness)["rows"]
    assert (row["partitions"], row["subscriptions"]) == (3, 1)
    assert row["stored"] > 0


def test_the_worst_subscription_is_named(harness):
    peer = harness.producer(PREFIX + "t")
    for name in ("calm", "stuck"):
        harness.actions.cursors.create(TopicName.parse(PREFIX + "t"), name, MessageId.earliest, succeeded)
    peer.publish(5)
    harness.actions.cursors.skip_all(TopicName.parse(PREFIX + "t"), "calm", succeeded)
    harness.poll()
    (row,) = complete_page(harness, TopicOverview(harness.broker))["rows"]
    assert row["worst"] == "stuck"
    assert row["trouble"] == Trouble.GROWING
    assert "no consumer is connected" in row["sentence"]
