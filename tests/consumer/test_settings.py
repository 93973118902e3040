import pytest

from geminga.consumer.settings import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerSettings,
    ConsumerType,
    KeySharedMode,
    ReaderSettings,
    RedeliveryBackoff,
)
from geminga.errors import InvalidConfiguration, InvalidTopicName
from geminga.ids import MessageId


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("receiver_queue_size", -1),
        ("receiver_queue_size", True),
        ("receiver_queue_bytes_max", 0),
        ("max_total_receiver_queue_size_across_partitions", 0),
        ("priority_level", -1),
        ("ack_grouping_time_ms", -1),
        ("ack_grouping_max", 0),
        ("unacked_messages_timeout_ms", 999),
        ("negative_ack_redelivery_delay_ms", -1),
        ("max_pending_chunked_message", 0),
        ("pattern_auto_discovery_period", 0),
        ("consumer_type", "Shared"),
        ("initial_position", 0),
        ("consumer_name", 5),
        ("batch_index_ack_enabled", 1),
        ("message_bytes_max", 0),
    ],
)
def test_refusals_name_field_and_value(field, value):
    with pytest.raises(InvalidConfiguration, match=field) as caught:
        ConsumerSettings(**{field: value})
    assert repr(value) in str(caught.value)


def test_combinations_that_make_no_sense():
    with pytest.raises(InvalidConfiguration, match="is_read_compacted"):
        ConsumerSettings(is_read_compacted=True, consumer_type=ConsumerType.Shared)
    with pytest.raises(InvalidConfiguration, match="start_message_id"):
        ConsumerSettings(start_message_id=MessageId.earliest)
    with pytest.raises(InvalidConfiguration, match="retry_enabled"):
        ConsumerSettings(retry_enabled=True)
    with pytest.raises(InvalidConfiguration, match="properties"):
        ConsumerSettings(properties={"a": 1})


def test_key_shared_policy():
    policy = ConsumerKeySharedPolicy(KeySharedMode.Sticky, True, [(40000, 65535), (0, 20000)])
    assert policy.sticky_ranges == [(40000, 65535), (0, 20000)]
    assert policy.allow_out_of_order_delivery
    for ranges in ([], [(5, 1)], [(0, 10), (10, 20)], [(0, 65536)]):
        with pytest.raises(InvalidConfiguration, match="sticky_ranges"):
            ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=ranges)


def test_policies():
    with pytest.raises(InvalidConfiguration, match="max_redeliver_count"):
        ConsumerDeadLetterPolicy(0)
    with pytest.raises(InvalidTopicName):
        ConsumerDeadLetterPolicy(3, "a/b")
    with pytest.raises(InvalidConfiguration, match="one limit"):
        ConsumerBatchReceivePolicy(-1, -1, -1)
    with pytest.raises(InvalidConfiguration, match="receiver_queue_size"):
        ReaderSettings(receiver_queue_size=0)


def test_redelivery_backoff():
    backoff = RedeliveryBackoff(first_seconds=1, max_seconds=10, multiplier=2)
    assert [backoff.delay_seconds(count) for count in (0, 1, 2, 3, 4, 10_000)] == [1, 2, 4, 8, 10, 10]
    with pytest.raises(InvalidConfiguration, match="multiplier"):
        RedeliveryBackoff(multiplier=0.5)
