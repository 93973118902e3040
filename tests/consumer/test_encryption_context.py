"""Against a frame that an official client encrypted."""

from recorded import recorded_frames

from geminga.consumer.encryption_context import EncryptionContext
from geminga.consumer.message import ConsumerOrigin, Message, ReceivedEntry
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb


def encrypted_metadata():
    for recorded in recorded_frames():
        if recorded.entry is not None:
            metadata = parse_entry(recorded.entry, verify=False).metadata
            if metadata.encryption_keys:
                yield metadata


def test_recorded_metadata():
    found = list(encrypted_metadata())
    assert found
    for metadata in found:
        context = EncryptionContext(metadata)
        (key,) = context.keys()
        assert key.key
        assert len(key.value) >= 64
        assert len(context.param()) == 12
        assert context.is_decryption_failed()
        assert "value_len=" in repr(context)
        assert (context.batch_size() > 0) == metadata.HasField("num_messages_in_batch")
        assert (context.uncompressed_message_size() > 0) == (metadata.compression != pb.NONE)


def test_a_message_has_one_only_when_it_is_encrypted():
    plain = ReceivedEntry(ConsumerOrigin("t", -1), 1, 2, pb.MessageMetadata(), batched=False, body=b"x")
    assert Message(plain, -1).encryption_context() is None
    metadata = next(encrypted_metadata())
    kept = ReceivedEntry(ConsumerOrigin("t", -1), 1, 2, metadata, batched=False, raw=b"raw", body=b"x")
    assert Message(kept, -1).encryption_context().is_decryption_failed()
    opened = ReceivedEntry(ConsumerOrigin("t", -1), 1, 2, metadata, batched=False, body=b"x")
    assert not Message(opened, -1).encryption_context().is_decryption_failed()
