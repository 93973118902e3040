"""Policies, beside pulsar-client's: what they show, and what they refuse."""

from typing import Any

import pytest

import geminga


def shown(p: Any) -> list[object]:
    batch = p.ConsumerBatchReceivePolicy(10, -1, 200).policy()
    dead = p.ConsumerDeadLetterPolicy(3, "persistent://public/default/dead", "keep")
    bare = p.ConsumerDeadLetterPolicy(3)
    keys = p.ConsumerKeySharedPolicy(p.KeySharedMode.Sticky, True, [(5, 9), (0, 3)])
    plain = p.KeySharedPolicy()
    built = p.DeadLetterPolicyBuilder().maxRedeliverCount(7).deadLetterTopic("d").initialSubscriptionName("s")
    return [
        batch.getMaxNumMessages(), batch.getMaxNumBytes(), batch.getTimeoutMs(),
        p.BatchReceivePolicy(1, 2, 3).getTimeoutMs(),
        dead.max_redeliver_count, dead.dead_letter_topic, dead.initial_subscription_name,
        dead.policy().getMaxRedeliverCount(), dead.policy().getDeadLetterTopic(),
        dead.policy().getInitialSubscriptionName(),
        bare.dead_letter_topic, bare.initial_subscription_name,
        int(keys.key_shared_mode), keys.allow_out_of_order_delivery, keys.sticky_ranges,
        keys.policy().get_sticky_ranges(), keys.policy().is_allow_out_of_order_delivery(),
        int(keys.policy().get_key_shared_mode()),
        int(plain.get_key_shared_mode()), plain.is_allow_out_of_order_delivery(), plain.get_sticky_ranges(),
        plain.set_key_shared_mode(p.KeySharedMode.Sticky).set_sticky_ranges([(1, 2)]).get_sticky_ranges(),
        built.build().getMaxRedeliverCount(), built.build().getDeadLetterTopic(),
        built.build().getInitialSubscriptionName(),
        p.DeadLetterPolicyBuilder().build().getMaxRedeliverCount(),
    ]  # fmt: skip


def test_policies_have_the_attributes_of_pulsar_client():
    assert shown(geminga) == shown(pytest.importorskip("pulsar"))


REFUSED = [
    lambda p: p.ConsumerDeadLetterPolicy(0),
    lambda p: p.ConsumerDeadLetterPolicy(None),
    lambda p: p.ConsumerBatchReceivePolicy(-1, -1, -1),
    lambda p: p.ConsumerBatchReceivePolicy(0, 0, 0),
    lambda p: p.ConsumerKeySharedPolicy(p.KeySharedMode.Sticky),
    lambda p: p.ConsumerKeySharedPolicy(p.KeySharedMode.Sticky, sticky_ranges=[]),
    lambda p: p.ConsumerKeySharedPolicy(p.KeySharedMode.Sticky, sticky_ranges=[(0, 65536)]),
    lambda p: p.ConsumerKeySharedPolicy(p.KeySharedMode.Sticky, sticky_ranges=[(0, 100), (50, 150)]),
    lambda p: p.KeySharedPolicy().set_sticky_ranges([(-1, 5)]),
]


@pytest.mark.parametrize("library", ["geminga", "pulsar"])
@pytest.mark.parametrize("make", REFUSED)
def test_policies_refuse_the_arguments_that_pulsar_client_refuses(library, make):
    with pytest.raises(ValueError):
        make(pytest.importorskip(library))


@pytest.mark.parametrize(
    ("library", "name"),
    [("geminga", "max_redeliver_count"), ("geminga", "dead_letter_topic"), ("pulsar", "max_redeliver_count")],
)
def test_a_policy_cannot_be_changed_past_its_checks(library, name):
    policy = pytest.importorskip(library).ConsumerDeadLetterPolicy(3)
    with pytest.raises(AttributeError):
        setattr(policy, name, 0)
    assert policy.max_redeliver_count == 3


def test_a_dead_letter_topic_is_a_topic_name():
    with pytest.raises(geminga.InvalidTopicName, match="a/b"):
        geminga.ConsumerDeadLetterPolicy(3, "a/b")
    with pytest.raises(geminga.InvalidTopicName, match="c/d"):
        geminga.ConsumerDeadLetterPolicy(3, retry_letter_topic="c/d")
    assert geminga.ConsumerDeadLetterPolicy(3, retry_letter_topic="r").retry_letter_topic == "r"
