"""MessageId against the bytes of the Java and Python clients, TopicName against Pulsar's rules."""

import itertools
import pickle

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from geminga.errors import InvalidTopicName
from geminga.ids import MessageId, TopicName, to_signed, to_unsigned
from geminga.wire.proto import pulsar_wire_pb2 as pb

SIGNED = st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(-1, (1 << 31) - 1)


def exact(message_id: MessageId) -> tuple[object, ...]:
    first = message_id.first_chunk
    return (
        message_id.ledger_id, message_id.entry_id, message_id.partition, message_id.batch_index,
        message_id.batch_size, None if first is None else exact(first),
    )  # fmt: skip


# id; the bytes of Python 3.13 (None where it has none); the bytes of Java 4.0.4
CHUNKED = MessageId(-1, 9, 3, first_chunk=MessageId(-1, 9, 1))
KNOWN = [
    (MessageId.earliest, "08ffffffffffffffffff0110ffffffffffffffffff01", "3000"),
    (MessageId.latest, "08ffffffffffffffff7f10ffffffffffffffff7f", "3000"),
    (MessageId(-1, 1, 2), "08011002", "3000"),
    (MessageId(3, 123456789, 42), "08959aef3a102a1803", "3000"),
    (MessageId(2, 5, 6, 7), "0805100618022007", "3000"),
    (MessageId(2, 5, 6, 7, batch_size=10), "0805100618022007300a", ""),
]


@pytest.mark.parametrize(("message_id", "python", "java_adds"), KNOWN)
def test_bytes_of_official_clients(message_id, python, java_adds):
    assert message_id.serialize().hex() == python
    assert exact(MessageId.deserialize(bytes.fromhex(python))) == exact(message_id)
    assert exact(MessageId.deserialize(bytes.fromhex(python + java_adds))) == exact(message_id)


def test_bytes_of_a_chunked_message():
    found = MessageId.deserialize(bytes.fromhex("0809100330003a06080910013000"))
    assert exact(found) == exact(CHUNKED)
    assert exact(MessageId.deserialize(CHUNKED.serialize())) == exact(CHUNKED)


@given(SMALL, SIGNED, SIGNED, SMALL, st.integers(0, (1 << 31) - 1))
def test_any_id_round_trips(partition, ledger, entry, index, size):
    message_id = MessageId(partition, ledger, entry, index, batch_size=size, topic="t")
    data = pb.MessageIdData.FromString(message_id.serialize())
    assert to_signed(data.ledgerId) == ledger
    assert to_signed(data.entryId) == entry
    for again in (
        MessageId.deserialize(message_id.serialize()),
        MessageId.from_wire(data),
        pickle.loads(pickle.dumps(message_id)),
    ):
        assert exact(again) == exact(message_id)
    assert pickle.loads(pickle.dumps(message_id)).topic == "t"


def test_the_partition_of_a_receipt_is_given_by_the_client():
    data = pb.MessageIdData(ledgerId=1, entryId=2)
    assert MessageId.from_wire(data, partition=5, topic="t").partition == 5
    assert MessageId.from_wire(data).partition == -1


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x01", b"\xff", b"\x08", b"garbage", b"\x08\x01\x10\x01\x3a\x00"]
)
def test_bytes_that_are_no_id(data):
    with pytest.raises(ValueError, match="not the bytes of a message id"):
        MessageId.deserialize(data)


def test_order():
    ordered = [
        MessageId.earliest, MessageId(-1, 1, 0), MessageId(0, 1, 0), MessageId(0, 1, 0, 0),
        MessageId(1, 1, 0, 0), MessageId(0, 1, 0, 1), MessageId(0, 1, 1), MessageId(0, 2, 0),
        MessageId.latest,
    ]  # fmt: skip
    for (i, left), (j, right) in itertools.product(enumerate(ordered), repeat=2):
        assert (left < right, left <= right, left == right, left > right, left >= right) == (
            i < j, i <= j, i == j, i > j, i >= j,
        )  # fmt: skip
    with pytest.raises(TypeError):
        MessageId.earliest < 5  # noqa: B015
    assert MessageId.earliest != 5


def test_equality_looks_at_the_place_alone():
    left = MessageId(0, 1, 2, 3, batch_size=5, topic="a")
    right = MessageId(0, 1, 2, 3, first_chunk=MessageId.earliest, topic="b")
    assert left == right
    assert len({left, right}) == 1


def test_text():
    message_id = MessageId(2, 5, 6, 7)
    assert str(message_id) == "(5,6,2,7)"
    assert repr(message_id) == "(5,6,2,7)"


@given(SIGNED)
def test_signs(value):
    assert 0 <= to_unsigned(value) < 1 << 64
    assert to_signed(to_unsigned(value)) == value


@pytest.mark.parametrize(
    ("text", "full", "partition"),
    [
        ("flights", "persistent://public/default/flights", -1),
        ("t/n/flights", "persistent://t/n/flights", -1),
        ("persistent://t/n/flights", "persistent://t/n/flights", -1),
        ("non-persistent://t/n/flights", "non-persistent://t/n/flights", -1),
        ("flights-partition-0", "persistent://public/default/flights-partition-0", 0),
        ("flights-partition-12", "persistent://public/default/flights-partition-12", 12),
        ("flights-partition-012", "persistent://public/default/flights-partition-012", -1),
        ("flights-partition--1", "persistent://public/default/flights-partition--1", -1),
        ("flights-partition-", "persistent://public/default/flights-partition-", -1),
        ("flights-partition-1-partition-2", "persistent://public/default/flights-partition-1-partition-2", 2),
        ("Ünïcode %/?#".replace("/", ""), "persistent://public/default/Ünïcode %?#", -1),
        ("a-=:.b/c-=:.d/e", "persistent://a-=:.b/c-=:.d/e", -1),
    ],
)
def test_names_that_are_accepted(text, full, partition):
    name = TopicName.parse(text)
    assert str(name) == full
    assert name.partition == partition
    assert TopicName.parse(full) == name
    assert name.persistent is full.startswith("persistent://")


@pytest.mark.parametrize(("text", "words"), cases("topic_names_refused"))
def test_names_that_are_refused(text, words):
    with pytest.raises(InvalidTopicName, match=words):
        TopicName.parse(text)


def test_partitions_and_their_topic():
    base = TopicName.parse("t/n/flights")
    partition = base.partition_name(3)
    assert str(partition) == "persistent://t/n/flights-partition-3"
    assert partition.partition == 3
    assert partition == TopicName.parse(str(partition))
    assert partition.base == base
    assert base.base is base
    assert partition.namespace_name == "t/n"


def test_local_names_are_encoded_for_paths():
    assert TopicName.parse("a b%é..").encoded_local == "a%20b%25%C3%A9.."
    assert TopicName.parse("plain").encoded_local == "plain"


def test_topic_name_with_an_argument_sets_the_topic_of_an_id():
    message_id = MessageId.deserialize(MessageId(1, 2, 3, 4).serialize())
    assert message_id.topic_name() == ""
    assert message_id.topic_name("persistent://public/default/t") == "persistent://public/default/t"
    assert message_id.topic == "persistent://public/default/t"


def test_wrapping_gives_the_same_id():
    message_id = MessageId(1, 2, 3, 4)
    assert MessageId.wrap(message_id) is message_id
    with pytest.raises(TypeError, match="msg_id must be a MessageId, not str"):
        MessageId.wrap("(2,3,1,4)")


def test_numbers_may_be_called_as_in_pulsar_client():
    place = MessageId(1, 2, 3, 4)
    assert (place.partition(), place.ledger_id(), place.entry_id(), place.batch_index()) == (1, 2, 3, 4)
    assert (place.partition, place.ledger_id, place.entry_id, place.batch_index) == (1, 2, 3, 4)
    assert type(place.ledger_id()) is int
    assert pb.MessageIdData(ledgerId=place.ledger_id, entryId=place.entry_id).ledgerId == 2
