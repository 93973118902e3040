"""Runs of unbatched messages: a core that gets them against a core that gets each frame."""

import random
from copy import deepcopy
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from geminga.consumer.settings import ConsumerDeadLetterPolicy, ConsumerType
from geminga.errors import CryptoError
from geminga.ids import MessageId
from geminga.wire.client_frames import ClientFrameDecoder
from geminga.wire.compression import compress
from geminga.wire.frames import FrameDecoder, encode_message
from geminga.wire.message_runs import MessageRun
from geminga.wire.metadata import build_entry

CONSUMERS: list[dict[str, Any]] = [
    {},
    {"consumer_type": ConsumerType.Shared, "receiver_queue_size": 10},
    {"consumer_type": ConsumerType.Shared, "dead_letter_policy": ConsumerDeadLetterPolicy(1)},
    {"receiver_queue_size": 0},
    {"ack_receipt_enabled": True},
    {"unacked_messages_timeout_ms": 10_000, "consumer_type": ConsumerType.Shared},
    {"durable": False, "start_message_id": MessageId(-1, 7, 4)},
    {"durable": False, "start_message_id": MessageId.earliest, "stop_at_message_id": MessageId(-1, 7, 30)},
]


def stream(make: SimpleNamespace, rng: random.Random, epoch: int) -> bytes:
    """Frames as a broker may send them in one write, mostly of plain messages."""
    pieces = []
    entry_id = rng.randrange(40)
    redelivery_count = rng.choice([0, 0, 1, 2])
    for _ in range(rng.randrange(1, 30)):
        entry_id += rng.choice([1, 1, 1, 2, -3]) if entry_id > 3 else 1
        payload = rng.randbytes(rng.choice([rng.randrange(60), 5000]))
        entry = make.single(payload, sequence_id=entry_id)
        kind = rng.random()
        if kind < 0.1:
            entry = make.single(payload, partition_key="key", event_time=5)
        elif kind < 0.13:
            entry = make.batch([payload, b"b"])
        elif kind < 0.15:
            entry = entry[:-1] + b"??"
        elif kind < 0.17:
            entry = make.single(payload, marker_type=20)
        head = encode_message(
            1, 7, entry_id, -1, len(entry), redelivery_count=redelivery_count, consumer_epoch=epoch
        )
        pieces.append(head + entry)
    return b"".join(pieces)


def described(message: Any) -> tuple[Any, ...]:
    return (
        message.message_id(), message.data(), message.redelivery_count(), message.partition_key(),
        message.sequence_id(), message.publish_timestamp(), message.event_timestamp(), message.properties(),
        message.size_bytes(), message.has_null_value(), message.encryption_context(), message.producer_name(),
    )  # fmt: skip


def state_of(consumer: Any) -> tuple[Any, ...]:
    core = consumer.core
    flow = core.flow
    return (
        flow.outstanding, flow.received_messages, flow.received_bytes, flow.arrived_last, flow.is_bounded,
        list(core.unsettled.in_hand), core.acks.pending_count, len(core.queue),
        core.queue.held_by_origin().get(core.origin), core.counted.withdrawn_messages,
        core.counted.withdrawn_bytes,
    )  # fmt: skip


@pytest.mark.rotating(3 * len(CONSUMERS))
@pytest.mark.parametrize("settings", CONSUMERS, ids=[",".join(each) or "defaults" for each in CONSUMERS])
@pytest.mark.parametrize("seed", range(10))
def test_runs_have_the_effect_of_their_frames(settings, seed, make, subscribed):
    rng = random.Random(seed)
    consumers = subscribed(**settings), subscribed(**settings)
    taken: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(40):
        step = rng.random()
        chosen = rng.random()
        data = stream(make, rng, rng.choice([-1, consumers[0].core.epoch]))
        effects = []
        for index, consumer in enumerate(consumers):
            core, queue = consumer.core, consumer.queue
            if step < 0.5:
                decoder = (ClientFrameDecoder, FrameDecoder)[index]()
                for frame in decoder.feed(data):
                    core.receive(frame, consumer.now, make.now_ms)
            elif step < 0.75:
                messages = consumer.take(int(chosen * 20))
                core.taken(messages, consumer.now)
                taken[index].extend(messages)
            elif step < 0.85:
                core.acknowledge_messages(taken[index][::2], consumer.now)
            elif step < 0.88 and taken[index]:
                core.negative_acknowledge(taken[index][-5:], consumer.now)
            elif step < 0.9:
                messages = [message for message in (queue.take(), queue.take()) if message is not None]
                queue.put_back(messages)
            elif step < 0.92 and taken[index] and not core.settings.individual_only:
                core.acknowledge_through([taken[index][-1]], consumer.now)
            elif step < 0.94:
                core.redeliver_unacknowledged()
            elif step < 0.96:
                consumer.reconnect()
            else:
                consumer.advance(chosen * 30)
            events = [type(event).__name__ for event in core.take_events()]
            effects.append((make.sent(core), events, state_of(consumer), list(map(described, taken[index]))))
        assert effects[0] == effects[1]
        for each in taken:
            del each[:-30]


def run_of(entries: list[bytes], first: int = 0) -> MessageRun:
    pieces = [encode_message(1, 7, first + n, -1, len(each)) + each for n, each in enumerate(entries)]
    (found,) = ClientFrameDecoder().feed(b"".join(pieces))
    assert isinstance(found, MessageRun)
    return found


def test_a_seek_drops_a_queued_run_and_delivers_what_was_put_aside_if_it_fails(make, subscribed):
    consumer = subscribed()

    def run(first: int) -> MessageRun:
        return run_of([make.single(b"%d" % n, sequence_id=n) for n in range(first, first + 3)], first)

    consumer.core.receive(run(0), consumer.now, make.now_ms)
    consumer.core.begin_seek(MessageId.earliest, 9)
    consumer.core.receive(run(3), consumer.now, make.now_ms)
    consumer.core.seek_failed(consumer.now, make.now_ms)
    assert [message.data() for message in consumer.take()] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    consumer.core.receive(run(6), consumer.now, make.now_ms)
    consumer.core.begin_seek(MessageId.earliest, 10)
    consumer.core.seek_done()
    assert consumer.take() == []
    consumer.reconnect()
    consumer.core.receive(run(0), consumer.now, make.now_ms)
    assert [message.data() for message in consumer.take()] == [b"0", b"1", b"2"]


def test_compressed_and_encrypted_messages_of_a_run_are_opened_together(make, subscribed):
    consumer = subscribed(decryptor=lambda metadata, payload: payload[::-1])
    metadata = make.metadata(compression=1, uncompressed_size=5)
    metadata.encryption_keys.add(key="k", value=b"v")
    entry = build_entry(metadata.SerializeToString(), compress(1, b"value")[::-1])
    consumer.core.receive(run_of([entry] * 3), consumer.now, make.now_ms)
    assert len(consumer.queue.lots) == 1
    assert [message.data() for message in consumer.take()] == [b"value"] * 3


@pytest.mark.parametrize("refused", [b"?", b"1"])
def test_messages_with_the_same_data_key_are_decrypted_together(refused, make, subscribed):
    runs = []

    def decrypt(metadata: Any, payload: bytes) -> bytes:
        if payload.startswith(refused):
            raise CryptoError("refused")
        return payload[::-1]

    def decrypt_run(metadata: Any, vectors: list[bytes], payloads: list[bytes]) -> list[bytes]:
        runs.append(vectors)
        return [decrypt(metadata, payload) for payload in payloads]

    consumer = subscribed(decryptor=Mock(side_effect=decrypt, decrypt_run=decrypt_run))
    entries, vectors = [], [b"%012d" % number for number in range(3)]
    for number, vector in enumerate(vectors):
        metadata = make.metadata(sequence_id=number, encryption_param=vector)
        metadata.encryption_keys.add(key="k", value=b"v")
        entries.append(build_entry(metadata.SerializeToString(), b"%d." % number))
    consumer.core.receive(run_of(entries), consumer.now, make.now_ms)
    messages = consumer.take()
    assert runs == [vectors]
    assert [message.data() for message in messages] == [b".0", b".1", b".2"][:: 2 if refused == b"1" else 1]
    context = messages[-1].encryption_context()
    assert (context.param(), context.is_decryption_failed()) == (vectors[2], False)


def test_a_message_of_a_run_can_be_deep_copied(make, subscribed):
    consumer = subscribed(receiver_queue_size=2)
    entries = [make.single(b"%d" % number, partition_key="k") for number in range(2)]
    consumer.core.receive(run_of(entries), consumer.now, make.now_ms)
    for message in consumer.take():
        assert described(deepcopy(message)) == described(message)


def test_a_taken_message_does_not_keep_its_run(make, subscribed):
    consumer = subscribed()
    entries = [make.single(b"%d" % number) for number in range(100)]
    consumer.core.receive(run_of(entries), consumer.now, make.now_ms)
    assert consumer.take()[50].data() == b"50"
    assert not consumer.queue.lots
