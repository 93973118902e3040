import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from geminga.errors import InvalidConfiguration, InvalidTopicName
from geminga.ids import MessageId
from geminga.spark.offsets import EARLIEST, LATEST, WHOLE_ENTRY, Offset, from_json, partition_topic, to_json

TOPIC = "persistent://public/default/t"
PLACES = st.builds(Offset, st.integers(-1, 9), st.integers(-1, 9), st.integers(0, 9) | st.just(WHOLE_ENTRY))


@given(PLACES)
def test_offsets_are_parsed_from_their_text(place):
    assert Offset.parse(str(place)) == place


@given(st.dictionaries(st.tuples(st.sampled_from([TOPIC, TOPIC + "2"]), st.integers(-1, 3)), PLACES))
def test_offsets_are_decoded_from_their_json(offsets):
    assert from_json(to_json(offsets)) == offsets
    assert list(to_json(offsets)) == sorted(to_json(offsets))


def test_handwritten_offsets_are_parsed():
    assert from_json('{"t": {"0": "5:12", "1": "6:0:3"}}') == {
        (TOPIC, 0): Offset(5, 12),
        (TOPIC, 1): Offset(6, 0, 3),
    }
    assert from_json({"t": "5:12:-1"}) == {(TOPIC, -1): Offset(5, 12)}
    assert from_json({"t-partition-2": "earliest", "u": "latest"}) == {
        (TOPIC, 2): EARLIEST,
        ("persistent://public/default/u", -1): LATEST,
    }
    java_bytes = [byte - 256 if byte > 127 else byte for byte in MessageId(-1, 5, 300, 2).serialize()]
    assert from_json({"t": java_bytes}) == {(TOPIC, -1): Offset(5, 300, 2)}
    assert from_json({"t": list(MessageId.earliest.serialize())}) == {(TOPIC, -1): EARLIEST}
    assert from_json({"t": list(MessageId.latest.serialize())}) == {(TOPIC, -1): LATEST}


@pytest.mark.parametrize(("value", "message"), cases("spark_offsets_refused"))
def test_invalid_offsets_are_refused(value, message):
    with pytest.raises(InvalidConfiguration, match=message):
        from_json(value)
    with pytest.raises(InvalidTopicName):
        from_json({"a/b": "1:2"})


def test_offsets_are_ordered_and_have_inclusive_starts():
    places = [
        EARLIEST, Offset(3, -1), Offset(3, 0, 0), Offset(3, 0, 4), Offset(3, 0), Offset(3, 1, 0), LATEST,
    ]  # fmt: skip
    assert places == sorted(places)
    assert Offset(3, 4).inclusive_start == Offset(3, 3)
    assert Offset(3, 4, 0).inclusive_start == Offset(3, 3)
    assert Offset(3, 4, 5).inclusive_start == Offset(3, 4, 4)
    assert Offset(3, 0).inclusive_start == Offset(3, -1)
    assert EARLIEST.inclusive_start == EARLIEST
    assert EARLIEST.next_place == MessageId.earliest
    assert Offset(3, -1).next_place == MessageId(-1, 3, 0)
    assert Offset(3, 4, 5).next_place == MessageId(-1, 3, 4)
    assert Offset(3, 4).next_place == MessageId(-1, 3, 5)
    assert Offset.through(MessageId(0, 3, 4, 5)) == Offset(3, 4, 5)
    assert Offset.through(MessageId(0, 3, 4)) == Offset(3, 4)


def test_partitions_have_their_topic_names():
    assert partition_topic((TOPIC, -1)) == TOPIC
    assert partition_topic((TOPIC, 3)) == TOPIC + "-partition-3"
