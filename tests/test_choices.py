"""Enumerations print their names and are numbers, as ``pulsar-client``'s."""

import pickle

import pytest

import geminga
from geminga._util.choices import Choice

CHOICES = [
    "BatchingType", "CompressionType", "ConsumerCryptoFailureAction", "ConsumerType", "InitialPosition",
    "KeySharedMode", "LoggerLevel", "PartitionsRoutingMode", "ProducerAccessMode", "RegexSubscriptionMode",
    "Result",
]  # fmt: skip


def seen(kind: type) -> list[tuple[object, ...]]:
    """Return the public attributes of each member of an enumeration, Geminga's or pulsar-client's."""
    members = kind.__members__
    return [
        (
            name, member.name, member.value, int(member), str(member), repr(member), f"{member}",
            hash(member) == hash(member.value), kind(member.value) == member,
        )
        for name, member in members.items()
    ]  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_as_pulsar_clients(name):
    pulsar = pytest.importorskip("pulsar")
    ours = getattr(geminga, name)
    assert issubclass(ours, Choice)
    assert seen(ours) == seen(getattr(pulsar, name))


@pytest.mark.parametrize("name", CHOICES)
def test_they_pickle(name):
    for member in getattr(geminga, name):
        assert pickle.loads(pickle.dumps(member)) is member
