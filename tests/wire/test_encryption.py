"""Encryption, judged by what the Java client encrypted, and by every byte flipped."""

import builtins
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geminga.errors import CryptoError, InvalidConfiguration
from geminga.wire import encryption
from geminga.wire.encryption import (
    EncryptionKeyInfo,
    PayloadDecryptor,
    PayloadEncryptor,
    load_private_key,
    load_public_key,
    unwrap_data_key,
    wrap_data_key,
)
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

pytest.importorskip("cryptography")

VECTORS = Path(__file__).parent.parent / "vectors"
KEYS = VECTORS / "keys"
FILES = {
    "k1": ("k1_public.pem", "k1_private_pkcs1.pem"),
    "ec_p256": ("ec_p256_public.pem", "ec_p256_private.pem"),
    "ec_p521": ("ec_p521_public.pem", "ec_p521_private.pem"),
}
NAMES = sorted(FILES)


def public(name: str, metadata: Any = None) -> bytes:
    return (KEYS / FILES[name][0]).read_bytes()


def private(name: str, metadata: Any = None) -> bytes:
    return (KEYS / FILES[name][1]).read_bytes()


def encryptor(*names: str, **options: Any) -> PayloadEncryptor:
    made = PayloadEncryptor(names, options.pop("read", public), options.pop("random", os.urandom), **options)
    made.renew()
    return made


def metadata_of(fields: bytes) -> pb.MessageMetadata:
    plain = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0).SerializeToString()
    return pb.MessageMetadata.FromString(plain + fields)


# --- entries that other clients encrypted ---
def test_recorded_frames_of_java_decrypt(recorded):
    found = []
    for frame in recorded:
        if frame.case != "java.encrypted" or frame.entry is None:
            continue
        entry = parse_entry(frame.entry)
        assert [key.key for key in entry.metadata.encryption_keys] == ["k1"]
        plain = PayloadDecryptor(private)(entry.metadata, entry.payload)
        found.append((entry.metadata.num_messages_in_batch, plain))
    assert [count for count, _ in found] == [1, 3, 1, 3]
    from geminga.wire.compression import decompress

    assert found[0][1] == found[2][1] == b"secret"
    batch = decompress(1, found[1][1], 111, limit=1000)
    assert all(f"msg-{i}".encode() in batch for i in range(3))


def java_vectors() -> list[dict[str, str]]:
    return [json.loads(line) for line in (VECTORS / "encryption.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("number", range(len(java_vectors())))
def test_elliptic_curve_keys_as_java_uses_them(number):
    vector = java_vectors()[number]
    metadata = pb.MessageMetadata.FromString(bytes.fromhex(vector["metadata"]))
    payload = bytes.fromhex(vector["payload"])
    for key in metadata.encryption_keys:
        alone = pb.MessageMetadata()
        alone.CopyFrom(metadata)
        del alone.encryption_keys[:]
        alone.encryption_keys.append(key)
        assert PayloadDecryptor(private)(alone, payload).decode() == vector["plain"]


# --- round trips ---
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100_000])
def test_round_trip(name, size):
    payload = os.urandom(size)
    sealed = encryptor(name).seal(payload)
    assert len(sealed.payload) == size + encryption.TAG_SIZE
    assert PayloadDecryptor(private)(metadata_of(sealed.metadata), memoryview(sealed.payload)) == payload


def test_views_of_signed_bytes_as_arrow_has_them_are_encrypted_and_decrypted():
    sealed = encryptor("k1").seal(memoryview(b"payload").cast("b"))
    view = memoryview(sealed.payload).cast("b")
    assert PayloadDecryptor(private)(metadata_of(sealed.metadata), view) == b"payload"


def test_any_of_several_keys_opens():
    def some(wanted: str) -> Callable[..., bytes]:
        def read(name: str, metadata: Any) -> bytes:
            if name != wanted:
                raise KeyError(name)
            return private(name)

        return read

    sealed = encryptor(*NAMES).seal(b"for all of them")
    metadata = metadata_of(sealed.metadata)
    assert [key.key for key in metadata.encryption_keys] == NAMES
    for name in NAMES:
        assert PayloadDecryptor(some(name))(metadata, sealed.payload) == b"for all of them"
    with pytest.raises(CryptoError, match=r"'ec_p256' was not given: KeyError.*'k1' was not given"):
        PayloadDecryptor(some("other"))(metadata, sealed.payload)


def test_metadata_of_a_key_travels_to_its_reader():
    seen = []

    def read_private(name: str, metadata: Any) -> EncryptionKeyInfo:
        seen.append((name, dict(metadata)))
        return EncryptionKeyInfo(private(name))

    source = encryptor("k1", read=lambda name, _: EncryptionKeyInfo(public(name), {"version": "7", "ü": ""}))
    first, second = source.seal(b"1"), source.seal(b"2")
    assert first is not None
    assert second is not None
    decryptor = PayloadDecryptor(read_private)
    assert decryptor(metadata_of(first.metadata), first.payload) == b"1"
    assert decryptor(metadata_of(second.metadata), second.payload) == b"2"
    assert seen == [("k1", {"version": "7", "ü": ""})]  # asked once for each data key


# --- damage ---
@pytest.mark.parametrize("name", NAMES)
def test_every_flipped_bit_of_payload_tag_vector_and_data_key_fails(name):
    sealed = encryptor(name).seal(b"do not touch")
    good = metadata_of(sealed.metadata)
    warm = PayloadDecryptor(private)
    assert warm(good, sealed.payload) == b"do not touch"
    for index in range(len(sealed.payload)):
        for bit in range(8):
            payload = bytearray(sealed.payload)
            payload[index] ^= 1 << bit
            with pytest.raises(CryptoError):
                warm(good, payload)
    for index in range(encryption.IV_SIZE):
        changed = metadata_of(sealed.metadata)
        vector = bytearray(good.encryption_param)
        vector[index] ^= 1
        changed.encryption_param = bytes(vector)
        with pytest.raises(CryptoError, match="changed"):
            warm(changed, sealed.payload)
    wrapped = good.encryption_keys[0].value
    for index in range(len(wrapped)):
        changed = metadata_of(sealed.metadata)
        value = bytearray(wrapped)
        value[index] ^= 1
        changed.encryption_keys[0].value = bytes(value)
        with pytest.raises(CryptoError):
            warm(changed, sealed.payload)


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_fails(name):
    sealed = encryptor(name).seal(b"whole")
    metadata = metadata_of(sealed.metadata)
    for size in range(len(sealed.payload)):
        with pytest.raises(CryptoError):
            PayloadDecryptor(private)(metadata, sealed.payload[:size])
    wrapped = metadata.encryption_keys[0].value
    for size in range(0, len(wrapped), 7):
        metadata.encryption_keys[0].value = wrapped[:size]
        with pytest.raises(CryptoError):
            PayloadDecryptor(private)(metadata, sealed.payload)


def test_odd_metadata():
    sealed = encryptor("k1").seal(b"x")
    assert sealed is not None
    for vector in (b"", b"short", bytes(16)):
        metadata = metadata_of(sealed.metadata)
        metadata.encryption_param = vector
        with pytest.raises(CryptoError, match=f"{len(vector)} bytes, not 12"):
            PayloadDecryptor(private)(metadata, sealed.payload)
    metadata = metadata_of(sealed.metadata)
    del metadata.encryption_keys[:]
    with pytest.raises(CryptoError, match="names no key"):
        PayloadDecryptor(private)(metadata, sealed.payload)
    for index in range(encryption.WRAPPED_KEYS_MAX + 1):
        metadata.encryption_keys.add(key=str(index), value=b"x")
    with pytest.raises(CryptoError, match="names 65 keys"):
        PayloadDecryptor(private)(metadata, sealed.payload)


def test_a_data_key_of_the_wrong_length_is_refused():
    wrapped = wrap_data_key(load_public_key(public("k1")), b"too short", os.urandom)
    with pytest.raises(CryptoError, match="9 bytes"):
        unwrap_data_key(load_private_key(private("k1")), wrapped)


# --- vectors and data keys ---
def vector_of(fields: bytes) -> bytes:
    return metadata_of(fields).encryption_param


def test_vectors_never_repeat_under_a_data_key_even_with_a_stuck_generator():
    source = encryptor("k1", random=lambda count: b"\xff" * count)
    sealed = [source.seal(b"same") for _ in range(2000)]
    assert all(item is not None for item in sealed)
    assert len({vector_of(item.metadata) for item in sealed if item is not None}) == 2000
    assert len({item.payload for item in sealed if item is not None}) == 2000


def test_renewal_makes_another_data_key_and_reads_the_public_keys_again():
    reads = []

    def read(name: str, metadata: Any) -> bytes:
        reads.append(name)
        return public(name)

    source = encryptor("k1", read=read)
    first = source.seal(b"a")
    source.renew()
    second = source.seal(b"b")
    assert reads == ["k1", "k1"]
    assert first is not None
    assert second is not None
    keys = [metadata_of(item.metadata).encryption_keys[0].value for item in (first, second)]
    assert keys[0] != keys[1]
    decryptor = PayloadDecryptor(private)
    for plain, item in ((b"a", first), (b"b", second), (b"a", first)):
        assert decryptor(metadata_of(item.metadata), item.payload) == plain


def test_messages_of_a_run_are_decrypted_if_none_was_changed():
    source, decryptor = encryptor("k1"), PayloadDecryptor(private)
    sealed = [source.seal(payload) for payload in (b"a", b"bc", b"")]
    (one, two, three), metadata = [each.payload for each in sealed], metadata_of(sealed[0].metadata)
    vectors = [vector_of(each.metadata) for each in sealed]
    assert decryptor.decrypt_run(metadata, vectors, [one, two, three]) == [b"a", b"bc", b""]
    with pytest.raises(CryptoError, match="payload, tag or vector were changed"):
        decryptor.decrypt_run(metadata, vectors, [one, two[::-1], three])
    with pytest.raises(CryptoError, match="encryption_param has 3 bytes, not 12"):
        decryptor.decrypt_run(metadata, [vectors[0], b"abc", vectors[2]], [one, two, three])


def test_a_failed_renewal_keeps_the_data_key():
    broken: list[bool] = []

    def read(name: str, metadata: Any) -> bytes:
        if broken:
            raise OSError("gone")
        return public(name)

    source = encryptor("k1", read=read)
    broken.append(True)
    with pytest.raises(CryptoError, match="'k1' was not given: OSError: gone"):
        source.renew()
    sealed = source.seal(b"still encrypted")
    assert PayloadDecryptor(private)(metadata_of(sealed.metadata), sealed.payload) == b"still encrypted"


def test_nothing_is_sent_plain_unless_asked_for():
    careful = PayloadEncryptor(["k1"], public, os.urandom)
    with pytest.raises(CryptoError, match="nothing is sent"):
        careful.seal(b"secret")
    careless = PayloadEncryptor(["k1"], public, os.urandom, plain_on_failure=True)
    assert careless.seal(b"secret") is None
    careless.renew()
    assert careless.seal(b"secret") is not None


def test_data_keys_are_remembered_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(encryption, "DATA_KEYS_KEPT", 3)
    reads = []

    def read(name: str, metadata: Any) -> bytes:
        reads.append(name)
        return private(name)

    source = encryptor("ec_p256")
    decryptor = PayloadDecryptor(read)
    messages = []
    for _ in range(5):
        source.renew()
        messages.append(source.seal(b"x"))
    for message in (*messages, *messages):
        assert decryptor(metadata_of(message.metadata), message.payload) == b"x"
    assert len(reads) == 10
    for message in messages[2:]:
        assert decryptor(metadata_of(message.metadata), message.payload) == b"x"
    assert len(reads) == 10, "the last three are remembered"


# --- refusals ---
def test_unreadable_and_unsupported_keys_are_refused():
    with pytest.raises(CryptoError, match="public key cannot be read"):
        load_public_key(b"no PEM")
    with pytest.raises(CryptoError, match="private key cannot be read") as caught:
        load_private_key(b"-----BEGIN RSA PRIVATE KEY-----\nCANARY\n-----END RSA PRIVATE KEY-----\n")
    assert "CANARY" not in str(caught.value)
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(CryptoError, match="RSA and EC keys can encrypt"):
        wrap_data_key(load_public_key(pem), bytes(32), os.urandom)
    with pytest.raises(CryptoError, match="RSA and EC keys can decrypt"):
        unwrap_data_key(key, bytes(100))


def test_wrong_arguments():
    for names in ([], "k1", [""], ["a", "a"]):
        with pytest.raises(InvalidConfiguration, match="encryption_keys"):
            PayloadEncryptor(names, public, os.urandom)
    for answer in (None, "text"):
        with pytest.raises(CryptoError, match="expected bytes"):
            encryptor("k1", read=lambda name, metadata, answer=answer: answer)


def test_secrets_are_not_shown():
    info = EncryptionKeyInfo(private("k1"))
    source = encryptor("k1")
    for shown in (repr(info), repr(source), repr(PayloadDecryptor(private))):
        assert "PRIVATE" not in shown
        assert "\\x" not in shown


def test_without_the_package(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "cryptography":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr("importlib.import_module", lambda name: absent(name))
    for make in (lambda: PayloadEncryptor(["k1"], public, os.urandom), lambda: PayloadDecryptor(private)):
        with pytest.raises(CryptoError, match=r"pip install 'geminga\[encryption\]'"):
            make()
