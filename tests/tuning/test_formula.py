"""The formula: the document's rules, units, limits, and sentences for bad input."""

import pytest

from geminga.errors import InvalidConfiguration
from geminga.tuning.formula import formula, messages_in_delay
from geminga.tuning.traffic import TrafficProfile


def profile(**fields: object) -> TrafficProfile:
    values = {"rate_messages_per_second": 20_000, "message_bytes": 200, "partitions": 60, **fields}
    return TrafficProfile(**values)


def test_every_line_of_the_formula_holds_for_the_published_case():
    found = formula(profile())
    chosen = found.settings.producer
    assert chosen.max_pending_messages == 1600  # twice the 800 messages that 40 ms bring
    assert chosen.max_pending_messages_across_partitions == 1600 * 60
    assert chosen.batching_max_messages == 800
    assert found.settings.memory_limit_bytes == 64 << 20  # 1,600 x 60 x 200 = 19.2 MB, raised to 64 MiB
    assert chosen.batching_max_allowed_size_in_bytes == (64 << 20) // 60 // 2
    assert chosen.batching_max_publish_delay_seconds == 0.04
    assert chosen.batching_partition_switch_frequency == 1
    assert chosen.block_if_queue_full


def test_the_memory_limit_is_in_bytes_and_within_its_range():
    large = formula(profile(message_bytes=10_000, partitions=200)).settings
    assert large.memory_limit_bytes == 256 << 20
    assert large.producer.batching_max_allowed_size_in_bytes == (256 << 20) // 200 // 2
    few = formula(profile(message_bytes=10_000, partitions=4)).settings
    assert few.producer.batching_max_allowed_size_in_bytes == 1 << 20


@pytest.mark.parametrize(("rate", "permits"), [(100, 1000), (20_000, 1600), (1_000_000, 2000)])
def test_permits_grow_with_the_rate_within_the_documents_range(rate, permits):
    assert formula(profile(rate_messages_per_second=rate)).settings.producer.max_pending_messages == permits


def test_the_delay_is_never_longer_than_a_batch_takes_to_fill():
    found = formula(profile(rate_messages_per_second=1_000_000)).settings.producer
    assert found.batching_max_publish_delay_seconds == 0.001
    found = formula(profile(rate_messages_per_second=100_000)).settings.producer
    assert found.batching_max_publish_delay_seconds == pytest.approx(1000 / 100_000)


def test_keys_spread_a_delay_over_all_partitions():
    assert messages_in_delay(profile(), 0.04) == pytest.approx(800)
    assert messages_in_delay(profile(keys=1000), 0.04) == pytest.approx(800 / 60)


def test_every_field_has_a_rule_and_a_reason():
    found = formula(profile())
    for choice in found.choices:
        assert choice.rule
        assert choice.why
        value = getattr(found.settings.producer, choice.field, None)
        if choice.field == "memory_limit_bytes":
            value = found.settings.memory_limit_bytes
        assert getattr(value, "name", value) == choice.value


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("partitions", 0, "a whole number >= 1"),
        ("rate_messages_per_second", 0, "a number of messages a second >= 0.001"),
        ("rate_messages_per_second", float("nan"), "a number of messages a second >= 0.001"),
        ("message_bytes", 0, "a number of bytes >= 1"),
        ("latency_budget_seconds", 0.001, "a number of seconds >= 0.002"),
        ("producers", True, "a whole number >= 1"),
    ],
)
def test_bad_input_names_field_value_and_range(field, value, allowed):
    with pytest.raises(InvalidConfiguration, match=f"{field}=.*{allowed}"):
        profile(**{field: value})


def test_the_brokers_known_time_is_subtracted_from_the_delay():
    found = formula(profile(), reserve_seconds=0.02).settings.producer
    assert found.batching_max_publish_delay_seconds == 0.03
    assert (
        formula(profile(), reserve_seconds=0.2).settings.producer.batching_max_publish_delay_seconds == 0.001
    )
