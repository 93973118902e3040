import pytest
from recorded import recorded_frames

from geminga.consumer.dead_letters import (
    dead_letter_topic,
    is_dead,
    origin_properties,
    plan_dead_letter,
    plan_retry,
    retry_topic,
)
from geminga.consumer.settings import ConsumerDeadLetterPolicy
from geminga.ids import MessageId

TOPIC = "persistent://public/default/orders-partition-3"


class Received:
    def __init__(self, properties: dict[str, str] | None = None, batch_index: int = -1) -> None:
        self._properties = properties or {}
        self._batch_index = batch_index

    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    def message_id(self) -> MessageId:
        return MessageId(3, 12, 5, self._batch_index)

    def topic_name(self) -> str:
        return TOPIC


def test_default_and_custom_names_of_retry_and_dead_letter_topics():
    assert dead_letter_topic(TOPIC, "s", None) == "persistent://public/default/orders-s-DLQ"
    assert retry_topic(TOPIC, "s", None) == "persistent://public/default/orders-s-RETRY"
    # A function's subscription is called after its tenant and namespace.
    assert dead_letter_topic(TOPIC, "a/b/c", None) == "persistent://public/default/orders-a-b-c-DLQ"
    assert retry_topic(TOPIC, "a/b/c", None) == "persistent://public/default/orders-a-b-c-RETRY"
    policy = ConsumerDeadLetterPolicy(3, "graves", retry_letter_topic="again")
    assert dead_letter_topic(TOPIC, "s", policy) == "persistent://public/default/graves"
    assert retry_topic(TOPIC, "s", policy) == "persistent://public/default/again"


@pytest.mark.parametrize(("count", "dead"), [(0, False), (3, False), (4, True)])
def test_delivered_at_the_maximum_and_dead_above(count, dead):
    assert is_dead(count, ConsumerDeadLetterPolicy(3)) is dead
    assert not is_dead(count, None)


def test_properties_are_those_of_the_java_client():
    properties = origin_properties(Received({"mine": "1"}), "s")
    assert properties == {
        "mine": "1",
        "REAL_TOPIC": TOPIC,
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": "12:5:3",
        "ORIGIN_MESSAGE_IDY_TIME": "12:5:3",
    }
    assert origin_properties(Received(batch_index=7), "s")["ORIGIN_MESSAGE_ID"] == "12:5:3:7"
    recorded = set()
    for each in recorded_frames():
        if each.case == "java.dlq_retry":
            recorded |= {pair["key"] for pair in each.decoded.get("metadata", {}).get("properties", [])}
    ours = set(plan_retry(Received(), TOPIC, "s", None, 10).properties)
    assert recorded - {"o"} <= ours | set(properties), "o is the application's own"


def test_the_first_origin_is_kept():
    again = origin_properties(Received({"REAL_TOPIC": "elsewhere", "ORIGIN_MESSAGE_ID": "1:1:1"}), "s")
    assert again["REAL_TOPIC"] == "elsewhere"
    assert again["ORIGIN_MESSAGE_ID"] == "1:1:1"


def test_retries_are_counted_and_end_in_the_dead_letter_topic():
    policy = ConsumerDeadLetterPolicy(2)
    properties: dict[str, str] = {}
    topics = []
    for _ in range(3):
        plan = plan_retry(Received(properties), TOPIC, "s", policy, 500, {"extra": "x"})
        properties = dict(plan.properties)
        topics.append(plan.topic.rsplit("-", 1)[1])
    assert topics == ["RETRY", "RETRY", "DLQ"]
    assert properties["RECONSUMETIMES"] == "3"
    assert properties["extra"] == "x"
    assert plan.dead
    assert plan.delay_ms == 0


def test_a_foreign_retry_count_does_no_harm():
    plan = plan_retry(Received({"RECONSUMETIMES": "many"}), TOPIC, "s", None, 500)
    assert plan.properties["RECONSUMETIMES"] == "1"
    assert (plan.delay_ms, plan.properties["DELAY_TIME"]) == (500, "500")


def test_dead_letter_plan():
    plan = plan_dead_letter(Received(), TOPIC, "s", None)
    assert plan.dead
    assert plan.topic.endswith("orders-s-DLQ")
