import pytest

from geminga.errors import InvalidConfiguration
from geminga.producer.settings import PartitionsRoutingMode, ProducerSettings

REFUSED = {
    "producer_name": ["", 5], "properties": [{"a": 1}, ["a"]], "initial_sequence_id": [-2, 1 << 63, "1"],
    "access_mode": [0.5], "send_timeout_seconds": [-1, float("nan")], "max_pending_messages": [-1, True],
    "max_pending_messages_across_partitions": [-5], "block_if_queue_full": [1], "compression_type": [9],
    "compression_level": [-1, "", False, 3],  # LZ4, SNAPPY and none have no levels
    "batching_enabled": ["yes"], "batching_max_messages": [0, 1_000_001],
    "batching_max_allowed_size_in_bytes": [0], "batching_max_publish_delay_seconds": [-0.1],
    "batching_partition_switch_frequency": [0], "chunk_max_message_size": [10], "message_routing_mode": [7],
    "hashing_scheme": ["md5"], "lazy_start_partitioned_producers": [None], "partitions_refresh_seconds": [-1],
    "blocked_after_seconds": [float("inf")], "step_over_blocked_partitions": [1], "schema": ["Bytes"],
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [(name, value) for name in REFUSED for value in REFUSED[name]])
def test_a_refusal_names_field_and_value(field, value):
    with pytest.raises(InvalidConfiguration) as caught:
        ProducerSettings(**{field: value})
    assert field in str(caught.value)
    assert "allowed" in str(caught.value)


def test_batching_and_chunking_exclude_each_other():
    with pytest.raises(InvalidConfiguration, match="chunking_enabled"):
        ProducerSettings(chunking_enabled=True, batching_enabled=True)
    assert ProducerSettings(chunking_enabled=True).chunking_enabled


def test_a_custom_router_needs_its_mode_and_the_mode_its_router():
    with pytest.raises(InvalidConfiguration, match="message_router"):
        ProducerSettings(message_routing_mode=PartitionsRoutingMode.CustomPartition)
    with pytest.raises(InvalidConfiguration, match="message_routing_mode"):
        ProducerSettings(message_router=lambda message, count: 0)
