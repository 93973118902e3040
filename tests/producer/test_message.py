from datetime import timedelta

import pytest

from geminga.errors import InvalidMessage
from geminga.producer.message import OutgoingMessage, RoutedMessage, build_message, payload_of


def test_all_fields_arrive():
    message = build_message(
        b"v", {"a": "b"}, "key", "order", 7, ["c1", "c2"], False, 1_700_000_000_000, 1_800_000_000_000
    )
    assert message.payload == b"v"
    assert message.properties == (("a", "b"),)
    assert message.partition_key == "key"
    assert message.ordering_key == b"order"
    assert message.sequence_id == 7
    assert message.replicate_to == ("c1", "c2")
    assert message.event_time == 1_700_000_000_000
    assert message.deliver_at_time == 1_800_000_000_000
    assert not message.null_value


def test_empty_means_absent_as_in_pulsar_client():
    message = build_message(b"", {}, "", "", None, [], False, None)
    assert message.partition_key is None
    assert message.ordering_key is None
    assert message.replicate_to == ()
    assert message.sequence_id == -1


def test_none_is_a_null_value():
    message = build_message(None)
    assert message.null_value
    assert message.payload == b""


def test_deliver_after_counts_from_now():
    assert build_message(b"", deliver_after=timedelta(seconds=2), now_ms=1000).deliver_at_time == 3000


def test_deliver_after_in_the_past_delivers_at_once():
    assert build_message(b"", deliver_after=timedelta(seconds=-2), now_ms=5000).deliver_at_time == 3000
    assert build_message(b"", deliver_after=timedelta(days=-1), now_ms=5000).deliver_at_time == 0


def test_properties_of_bytes_are_decoded():
    given = {b"k": b"v", "l": bytearray(b"w"), "m": "x"}
    assert build_message(b"", given).properties == (("k", "v"), ("l", "w"), ("m", "x"))


def test_disabled_replication_names_the_local_cluster():
    assert build_message(b"", disable_replication=True).replicate_to == ("__local__",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("properties", ["a"]), ("properties", {"a": 1}), ("properties", {1: "a"}),
        ("partition_key", b"bytes"), ("ordering_key", 5), ("sequence_id", -1), ("sequence_id", 1 << 63),
        ("sequence_id", True), ("replication_clusters", "c1"), ("replication_clusters", [1]),
        ("disable_replication", 1), ("event_timestamp", -5), ("event_timestamp", 1.5), ("deliver_at", -1),
        ("deliver_after", 5),
    ],
)  # fmt: skip
def test_a_refusal_names_field_value_and_range(field, value):
    with pytest.raises(InvalidMessage) as caught:
        build_message(b"", **{field: value})
    assert str(caught.value).startswith(field)
    assert "allowed" in str(caught.value)


@pytest.mark.parametrize("content", [bytearray(b"x"), memoryview(b"x"), b"x"])
def test_bytes_like_content_is_copied_to_bytes(content):
    assert payload_of(content) == b"x"
    assert type(payload_of(content)) is bytes


@pytest.mark.parametrize("content", ["text", 5, [1]])
def test_other_content_is_refused(content):
    with pytest.raises(TypeError, match="encode the value first"):
        build_message(content)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("properties", {"a": "\ud800"}),
        ("properties", {"\ud800": "a"}),
        ("partition_key", "\ud800"),
        ("ordering_key", "\ud800"),
        ("replication_clusters", ["\ud800"]),
    ],
)
def test_a_text_that_has_no_utf8_form_is_refused_by_name(field, value):
    with pytest.raises(InvalidMessage, match=rf"{field}.*lone surrogates"):
        build_message(b"x", **{field: value})
    assert build_message(b"x", {"é": "ü"}, "ä", "ö").partition_key == "ä"


def test_a_replaced_message_keeps_the_rest():
    message = OutgoingMessage(b"a", partition_key="k", sequence_id=4)
    changed = message.replace(payload=b"b")
    assert (changed.payload, changed.partition_key, changed.sequence_id) == (b"b", "k", 4)


def test_a_router_sees_pulsar_clients_methods():
    view = RoutedMessage(build_message(b"v", {"a": "b"}, "k", "o", event_timestamp=5))
    assert view.data() == b"v"
    assert view.properties() == {"a": "b"}
    assert view.partition_key() == "k"
    assert view.ordering_key() == "o"
    assert view.event_timestamp() == 5
    assert not view.has_null_value()
