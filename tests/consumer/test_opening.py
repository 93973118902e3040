"""From frames to entries: what can be read, and how the rest is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
from recorded import recorded_frames

from geminga.consumer.message import ConsumerOrigin, Message, indexes_of
from geminga.consumer.opening import EntryOpener, open_whole
from geminga.consumer.settings import ConsumerCryptoFailureAction, ConsumerSettings
from geminga.consumer.unbatching import (
    BATCH_DESERIALIZE_ERROR,
    CHECKSUM_MISMATCH,
    DECOMPRESSION_ERROR,
    DECRYPTION_ERROR,
    UNCOMPRESSED_SIZE_CORRUPTION,
    InvalidEntry,
)
from geminga.errors import CryptoError
from geminga.wire.metadata import build_entry


def opener_of(*, whole: bool = False, **settings: Any) -> EntryOpener:
    opener = EntryOpener(ConsumerSettings(**settings), ConsumerOrigin("t", -1))
    opener.whole = whole
    return opener


def values(opened: Any) -> list[bytes]:
    assert opened.entry is not None
    return [Message(opened.entry, index).data() for index in indexes_of(opened.entry)]


def test_recorded_chunks_become_one_message():
    for name in ("java.chunked", "py.chunked_NONE"):
        opener = opener_of()
        results = [opener.open(r.frame, 0.0, 0) for r in recorded_frames("MESSAGE") if r.case == name]
        assert [opened.entry is None for opened in results[:-1]] == [True] * (len(results) - 1)
        last = results[-1].entry
        assert last.chunk_ids is not None
        assert len(last.chunk_ids) == len(results)
        assert len(values(results[-1])[0]) >= 1000


def test_a_wrong_checksum(make):
    entry = bytearray(make.batch([b"a", b"b", b"c"]))
    entry[-1] ^= 1
    for whole in (False, True):
        opener = opener_of()
        opened = opener.open(make.frame(bytes(entry)), 0.0, 0)
        assert opened.invalid.validation_error == CHECKSUM_MISMATCH
        assert opened.permits == 3, "the broker charged for the batch, as its metadata says"
        assert opened.entry is None
        if whole:
            opener.whole = True
            passed = opener.open(make.frame(bytes(entry)), 0.0, 0).entry
            assert passed is not None, "whoever decodes it checks it"
            with pytest.raises(InvalidEntry) as caught:
                open_whole(passed, 1 << 20)
            assert caught.value.validation_error == CHECKSUM_MISMATCH


@pytest.mark.parametrize(
    "raw", [b"", b"\x0e\x01", b"\x0e\x01\x00\x00\x00\x00\xff\xff\xff\xff", b"\x00\x00\x00\x02\xff\xff"]
)
@pytest.mark.parametrize("whole", [False, True])
def test_garbage_is_invalid_and_costs_one_permit(make, raw, whole):
    opened = opener_of(whole=whole).open(make.frame(raw), 0.0, 0)
    assert opened.invalid is not None
    assert opened.permits == 1


def test_batches_with_a_wrong_count_are_invalid(make):
    body = make.body([b"a", b"b"])
    for count in (3, 1, 0):
        metadata = make.metadata(num_messages_in_batch=count).SerializeToString()
        opened = opener_of().open(make.frame(build_entry(metadata, body)), 0.0, 0)
        assert opened.invalid.validation_error == BATCH_DESERIALIZE_ERROR
    metadata = make.metadata(num_messages_in_batch=1 << 30).SerializeToString()
    opened = opener_of().open(make.frame(build_entry(metadata, body)), 0.0, 0)
    assert opened.permits == 1


def test_wrong_uncompressed_size_is_rejected(make):
    metadata = make.metadata(compression=1, uncompressed_size=100).SerializeToString()
    opened = opener_of().open(make.frame(build_entry(metadata, b"\xff\xff")), 0.0, 0)
    assert opened.invalid.validation_error == DECOMPRESSION_ERROR
    metadata = make.metadata(compression=1, uncompressed_size=1 << 31).SerializeToString()
    opened = opener_of(message_bytes_max=1000).open(make.frame(build_entry(metadata, b"\xff\xff")), 0.0, 0)
    assert opened.invalid.validation_error == UNCOMPRESSED_SIZE_CORRUPTION


def test_markers_are_acknowledged_unseen(make):
    for whole in (False, True):
        opened = opener_of(whole=whole).open(make.frame(make.single(b"", marker_type=20), 4), 0.0, 0)
        assert (opened.entry, opened.acknowledge, opened.permits) == (None, ((7, 4),), 1)


def encrypted(make: SimpleNamespace, payload: bytes, **fields: Any) -> bytes:
    metadata = make.metadata(**fields)
    metadata.encryption_keys.add(key="k", value=b"v")
    metadata.encryption_param = b"0" * 12
    return build_entry(metadata.SerializeToString(), payload)


def unscramble(metadata: Any, payload: Any) -> bytes:
    if bytes(payload)[:1] == b"!":
        raise CryptoError("no key for this message")
    return bytes(byte ^ 0x55 for byte in payload)


def scramble(data: bytes) -> bytes:
    return bytes(byte ^ 0x55 for byte in data)


def test_decryption_comes_before_everything_else(make):
    opener = opener_of(decryptor=unscramble)
    entry = encrypted(make, scramble(make.body([b"a", b"b"])), num_messages_in_batch=2)
    assert values(opener.open(make.frame(entry), 0.0, 0)) == [b"a", b"b"]


def test_undecryptable_messages(make):
    entry = encrypted(make, b"!secret", num_messages_in_batch=2)
    action = ConsumerCryptoFailureAction
    opened = opener_of().open(make.frame(entry), 0.0, 0)
    assert (opened.entry, opened.invalid) == (None, None)
    assert "crypto_key_reader" in str(opened.undecryptable)
    opened = opener_of(decryptor=unscramble, crypto_failure_action=action.DISCARD).open(
        make.frame(entry), 0.0, 0
    )
    assert opened.invalid.validation_error == DECRYPTION_ERROR
    opened = opener_of(decryptor=unscramble, crypto_failure_action=action.CONSUME).open(
        make.frame(entry), 0.0, 0
    )
    assert values(opened) == [b"!secret"]
    assert opened.entry is not None
    assert Message(opened.entry, indexes_of(opened.entry)[0]).encryption_context() is not None
    assert opened.permits == 2


def test_whole_entries_stay_closed(make):
    raw = make.batch([b"a", b"b"], 3)
    entry = opener_of(whole=True).open(make.frame(raw), 0.0, 0).entry
    assert bytes(entry.raw or b"") == raw
    assert (entry.body, entry.metadata, entry.count, entry.batched) == (None, None, 2, True)
    assert not open_whole(entry, 1 << 20)
    assert [Message(entry, index).data() for index in indexes_of(entry)] == [b"a", b"b"]


def test_whole_entries_are_rebuilt_after_decryption_and_chunks(make):
    opener = opener_of(whole=True, decryptor=unscramble)
    entry = opener.open(make.frame(encrypted(make, scramble(b"plain"))), 0.0, 0).entry
    assert entry is not None
    open_whole(entry, 1 << 20)
    assert Message(entry, indexes_of(entry)[0]).data() == b"plain"
    for index in range(2):
        fields = {"uuid": "u", "chunk_id": index, "num_chunks_from_msg": 2, "total_chunk_msg_size": 4}
        opened = opener.open(make.frame(make.single(b"ab", **fields), index), 0.0, 0)
    assert opened.entry.chunk_ids == [(7, 0), (7, 1)]
    open_whole(opened.entry, 1 << 20)
    assert Message(opened.entry, indexes_of(opened.entry)[0]).data() == b"abab"
