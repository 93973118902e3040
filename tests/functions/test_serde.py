"""Serdes, beside pulsar-client's."""

import pytest

from geminga.functions import serde

VALUES = [0, -5, 1.5, 2 + 3j, "text", "7", "", "grüß", b"raw", b"\xff\xfe", float("inf")]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_identity_serde_equals_that_of_pulsar_client(value):
    ours, theirs = serde.IdentitySerDe(), pytest.importorskip("pulsar").IdentitySerDe()
    payload = ours.serialize(value)
    assert payload == theirs.serialize(value)
    back = ours.deserialize(payload)
    assert (type(back), back) == (type(theirs.deserialize(payload)), theirs.deserialize(payload))


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, True], ids=repr)
def test_identity_serde_refuses_other_types(value):
    with pytest.raises(TypeError, match=type(value).__name__):
        serde.IdentitySerDe().serialize(value)


def test_pickle_serde_decodes_what_it_encodes():
    value = {"a": [1, 2.5, None], "b": {"c"}}
    assert serde.PickleSerDe().deserialize(serde.PickleSerDe().serialize(value)) == value
