"""Encrypted operations: encrypted once, resent byte for byte, encrypted again when split."""

import os
from pathlib import Path

import pytest

from geminga.errors import MessageTooBig
from geminga.producer.message import OutgoingMessage
from geminga.producer.operation import SendOperation, name_field, schema_version_field
from geminga.wire.batch import decode_batch
from geminga.wire.encryption import PayloadDecryptor, PayloadEncryptor
from geminga.wire.frames import FrameDecoder
from geminga.wire.metadata import parse_entry

pytest.importorskip("cryptography")

KEYS = Path(__file__).parent.parent / "vectors" / "keys"
NAME = name_field("p")


def encryptor(**options):
    read = (KEYS / "k1_public.pem").read_bytes
    return PayloadEncryptor(["k1"], lambda name, metadata: read(), os.urandom, **options)


def decrypt(entry):
    read = (KEYS / "k1_private_pkcs1.pem").read_bytes
    return PayloadDecryptor(lambda name, metadata: read())(entry.metadata, entry.payload)


def operation(count=3, **changes):
    values = {
        "sequence_id": 5, "highest_sequence_id": 4 + count, "size": 0, "permits": 0, "opened_at": 0.0,
        "deadline": 0.0, "is_batch": count > 1,
    }  # fmt: skip
    values.update(changes)
    return SendOperation([b"secret"] * count, [None] * count, count, **values)


def entry_of(head, body):
    (frame,) = FrameDecoder().feed(bytes(head) + bytes(body))
    return parse_entry(frame.entry)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("rich", [False, True])
def test_sealed_once_and_repeated_byte_for_byte(count, rich):
    source = encryptor()
    source.renew()
    calls = []

    def seal(payload):
        calls.append(bytes(payload))
        return source.seal(payload)

    messages = {0: OutgoingMessage(b"secret", partition_key="k")} if rich else None
    sealed = operation(count, seal=seal, messages=messages)
    sealed.encode_body()
    first = sealed.frame(0, NAME, 7, 1 << 20, schema_version_field(b"12345678"))
    source.renew()
    assert sealed.frame(0, NAME, 8, 1 << 20) == first
    assert len(calls) == 1
    assert sealed.checksum_is_intact()
    entry = entry_of(*first)
    assert (entry.metadata.schema_version, entry.metadata.partition_key) == (b"12345678", "k" if rich else "")
    plain = decrypt(entry)
    if count == 1:
        assert plain == b"secret"
    else:
        assert [bytes(single.payload) for single in decode_batch(plain, count)] == [b"secret"] * count


def test_a_message_may_name_another_schema_version_than_its_producer():
    source = encryptor()
    source.renew()
    messages = {0: OutgoingMessage(b"secret", schema_version=b"own")}
    entry = entry_of(
        *operation(1, messages=messages).frame(0, NAME, 7, 1 << 20, schema_version_field(b"its"))
    )
    assert entry.metadata.schema_version == b"own"
    assert schema_version_field(b"") == b""


def test_the_sealed_size_counts():
    source = encryptor()
    source.renew()
    plain_head, plain_body = operation(1).frame(0, NAME, 7, 1 << 20)
    size = len(plain_body) + 16 + source.metadata_size
    head, body = operation(1, seal=source.seal).frame(0, NAME, 7, 1 << 20)
    assert len(head) + len(body) == len(plain_head) + size
    with pytest.raises(MessageTooBig):
        operation(1, seal=source.seal).frame(0, NAME, 7, size)
