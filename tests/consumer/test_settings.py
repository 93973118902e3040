import pytest

from geminga.consumer.settings import (
    ConsumerKeySharedPolicy,
    ConsumerSettings,
    ConsumerType,
    KeySharedMode,
    ReaderSettings,
    RedeliveryBackoff,
)
from geminga.errors import InvalidConfiguration
from geminga.ids import MessageId

REFUSED = {
    "receiver_queue_size": [-1, True], "receiver_queue_bytes_max": [0], "priority_level": [-1],
    "max_total_receiver_queue_size_across_partitions": [0], "ack_grouping_time_ms": [-1],
    "ack_grouping_max": [0], "unacked_messages_timeout_ms": [999], "negative_ack_redelivery_delay_ms": [-1],
    "max_pending_chunked_message": [0], "pattern_auto_discovery_period": [0], "consumer_type": ["Shared"],
    "initial_position": [0], "consumer_name": [5], "batch_index_ack_enabled": [1], "message_bytes_max": [0],
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [(name, value) for name in REFUSED for value in REFUSED[name]])
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
    with pytest.raises(InvalidConfiguration, match="sticky_ranges"):
        ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(5, 1)])
    with pytest.raises(InvalidConfiguration, match="receiver_queue_size"):
        ReaderSettings(receiver_queue_size=0)


def test_redelivery_backoff():
    backoff = RedeliveryBackoff(first_seconds=1, max_seconds=10, multiplier=2)
    assert [backoff.delay_seconds(count) for count in (0, 1, 2, 3, 4, 10_000)] == [1, 2, 4, 8, 10, 10]
    with pytest.raises(InvalidConfiguration, match="multiplier"):
        RedeliveryBackoff(multiplier=0.5)
