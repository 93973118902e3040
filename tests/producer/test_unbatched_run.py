"""Runs of messages that go one by one: together as long as nothing happens to one of them alone."""

import pytest
from producing import connect, producer_of, settings_of

from geminga import errors
from geminga.producer.message import OutgoingMessage, RichMessage, simple_message
from geminga.producer.operation import RUN_BYTES_MAX, RUN_MESSAGES_MAX, RUN_PAYLOAD_BYTES_MAX
from geminga.producer.partition import SendErrorVerdict
from geminga.producer.settings import CompressionType
from geminga.wire.client_frames import ReceiptRun
from geminga.wire.frames import ReceiptFrame

NOT_ALLOWED, PERSISTENCE = 22, 2


@pytest.fixture(autouse=True, params=["plain", "keyed", "rich"])
def kind(request):
    """Every test with messages of which some have keys, or keys and other fields, too."""
    global KIND
    KIND = request.param


KIND = "plain"


def run_of(bench, payloads, **settings):
    """A connected partition with one run of these messages, whose tokens are their payloads."""
    b = bench(batching_enabled=False, memory=10_000, shared=50, **settings).connect()
    add(b, payloads)
    return b


def key_of(payload):
    return payload[:1].decode() * (len(payload) % 5)


def message_of(payload):
    """None, or a message with a key, or with a key and properties, or with all that a run may have."""
    if KIND == "plain" or not key_of(payload):
        return None
    properties = (("first", key_of(payload)), ("next", "value")) if len(payload) % 2 else ()
    if KIND == "keyed" or len(payload) == 2:
        return simple_message(payload, key_of(payload), properties)
    return RichMessage(
        payload, partition_key=key_of(payload), properties=properties, event_time=len(payload),
        ordering_key=payload[:3], replicate_to=("east",), deliver_at_time=7,
    )  # fmt: skip


def add(b, payloads):
    messages = None if KIND == "plain" else list(map(message_of, payloads))
    assert b.partition.add_many(list(payloads), list(payloads), messages, 0, b.now) == len(payloads)


def check_fields(sent):
    for each in sent:
        got, message = each.metadata, message_of(each.payload) or OutgoingMessage(b"")
        assert got.partition_key == (message.partition_key or "")
        assert got.HasField("partition_key") == bool(got.partition_key)
        assert tuple((pair.key, pair.value) for pair in got.properties) == message.properties
        assert (got.ordering_key or None, tuple(got.replicate_to)) == (
            message.ordering_key,
            message.replicate_to,
        )
        assert (got.event_time, got.deliver_at_time) == (message.event_time, message.deliver_at_time)


def receipts(b, sequence_id, count, entry_id=0, highest=-1):
    first = ReceiptFrame(3, sequence_id, highest, 7, entry_id)
    b.partition.receipts(ReceiptRun(first, count), b.now)


def told(b):
    """Maps each token to its position, or to the error."""
    found = {}
    for settled in b.settled():
        if settled.error is not None:
            found.update((token, settled.error) for token in settled.open_tokens)
        else:
            found.update((token, settled.entry_id + index) for index, token in enumerate(settled.tokens))
    return found


PAYLOADS = [b"a", b"bb", b"", b"dddd", b"e"]


def test_a_run_is_written_as_its_messages_and_settled_in_parts(bench):
    b = run_of(bench, PAYLOADS)
    sent = b.written()
    check_fields(sent)
    assert [each.payload for each in sent] == PAYLOADS
    assert [each.command.sequence_id for each in sent] == [0, 1, 2, 3, 4]
    assert not any(each.is_batch for each in sent)
    assert b.permits_used == (5, 5, 8)
    receipts(b, 0, 2, entry_id=10)
    assert told(b) == {b"a": 10, b"bb": 11}
    assert b.permits_used == (3, 3, 5)
    b.receipt(2, entry_id=12)
    receipts(b, 3, 2, entry_id=13)
    assert told(b) == {b"": 12, b"dddd": 13, b"e": 14}
    assert b.permits_used == (0, 0, 0)
    assert (len(b.partition.pending), b.partition.pending.messages, b.partition.last_sequence_id) == (0, 0, 4)
    statistics = b.partition.statistics()
    assert (statistics.sent_messages, statistics.sent_batches, statistics.acknowledged_messages) == (5, 5, 5)


def test_receipts_may_name_several_runs_and_what_stands_behind_them(bench):
    b = run_of(bench, PAYLOADS)
    add(b, [b"f", b"g"])
    b.add(b"alone")
    assert len(b.written()) == 8
    receipts(b, 0, 8)
    assert told(b) == {token: n for n, token in enumerate([*PAYLOADS, b"f", b"g", b"alone"])}
    assert b.permits_used == (0, 0, 0)


def test_late_receipts_are_counted_and_wrong_ones_end_the_connection(bench):
    b = run_of(bench, PAYLOADS)
    b.written()
    receipts(b, 0, 2)
    receipts(b, 0, 2)
    assert b.partition.counters.late_receipts == 2
    assert len(told(b)) == 2
    with pytest.raises(errors.ProtocolError, match="while 2 has none yet"):
        receipts(b, 3, 1)
    with pytest.raises(errors.ProtocolError, match="were sent"):
        b.receipt(2, highest=4)
    receipts(b, 2, 3)
    assert len(told(b)) == 3


@pytest.mark.parametrize("done", [0, 1, 4])
def test_after_a_reconnect_only_what_has_no_receipt_goes_again(bench, done):
    b = run_of(bench, PAYLOADS)
    first = b.written()
    if done:
        receipts(b, 0, done)
    b.partition.disconnected(None)
    b.connect()
    again = b.written()
    assert [each.payload for each in again] == PAYLOADS[done:]
    check_fields(again)
    assert [each.metadata for each in again] == [each.metadata for each in first[done:]]
    assert b.partition.counters.resent_operations == 5 - done
    receipts(b, done, 5 - done)
    assert b.permits_used == (0, 0, 0)


@pytest.mark.parametrize("refused", range(5))
def test_a_refused_message_of_a_run_fails_alone(bench, refused):
    b = run_of(bench, PAYLOADS)
    b.written()
    done = min(refused, 1)
    if done:
        receipts(b, 0, 1)
    assert b.partition.send_error(NOT_ALLOWED, refused, "no", b.now) is SendErrorVerdict.NOTHING
    outcome = told(b)
    assert isinstance(outcome.pop(PAYLOADS[refused]), errors.NotAllowedError)
    for sequence_id in range(done, 5):
        if sequence_id != refused:
            b.receipt(sequence_id, entry_id=sequence_id)
    outcome.update(told(b))
    assert sorted(outcome) == sorted(set(PAYLOADS) - {PAYLOADS[refused]})
    assert b.permits_used == (0, 0, 0)


def test_a_broker_that_takes_less_after_a_reconnect(bench):
    b = run_of(bench, [b"x" * 10, b"y" * 900, b"z" * 10])
    b.partition.disconnected(None)
    b.max_message_size = 300
    b.connect()
    sent = b.written()
    check_fields(sent)
    assert [each.payload for each in sent] == [b"x" * 10, b"z" * 10]
    (failed,) = told(b).items()
    assert failed[0] == b"y" * 900
    assert isinstance(failed[1], errors.MessageTooBig)
    b.receipt(0)
    b.receipt(2)
    assert b.permits_used == (0, 0, 0)


def test_ids_move_behind_those_that_the_broker_knows(bench):
    b = bench(batching_enabled=False)
    b.partition.start()
    add(b, PAYLOADS)
    b.connect(last_sequence_id=100)
    assert [each.command.sequence_id for each in b.written()] == [101, 102, 103, 104, 105]
    b.add(b"next")
    assert [each.command.sequence_id for each in b.written()] == [106]


def test_a_time_out_fails_what_has_no_receipt(bench):
    b = run_of(bench, PAYLOADS, send_timeout_seconds=1.0)
    b.written()
    receipts(b, 0, 3)
    told(b)
    b.partition.tick(1.0)
    assert {token: type(error) for token, error in told(b).items()} == {
        b"dddd": errors.Timeout,
        b"e": errors.Timeout,
    }
    assert b.permits_used == (0, 0, 0)


def test_the_watcher_of_a_run_is_settled_with_the_last_receipt(bench):
    b = run_of(bench, PAYLOADS)
    b.written()
    b.partition.pending.tail.watchers = ["watcher"]
    receipts(b, 0, 4)
    assert [settled.watchers for settled in b.settled()] == [None]
    receipts(b, 4, 1)
    assert [settled.watchers for settled in b.settled()] == [["watcher"]]


def all_of(producer, payloads):
    """Add them until one is for `add`; return their number."""
    index = 0
    while added := producer.add_many(payloads, payloads, None, index, 0.0):
        index += added
    return index


def test_a_run_is_bounded():
    producer = producer_of(0, settings_of(batching_enabled=False, max_pending_messages=0))
    (partition,) = producer.partitions
    connect(partition)
    payloads = [b"x"] * (RUN_MESSAGES_MAX + 3) + [b"y" * RUN_PAYLOAD_BYTES_MAX] * 40
    assert all_of(producer, payloads) == len(payloads)
    runs = list(partition.pending)
    assert runs[0].count == RUN_MESSAGES_MAX
    assert all(run.size <= RUN_BYTES_MAX for run in runs)
    assert [payload for run in runs for payload in run.payloads] == payloads
    large = [b"z", b"z" * (RUN_PAYLOAD_BYTES_MAX + 1), b"z"]
    assert all_of(producer, large) == 1
    assert all_of(producer, large[1:]) == 0
    assert all_of(producer, large[2:]) == 1


def test_messages_beyond_the_permits_are_not_accepted():
    producer = producer_of(3, settings_of(batching_enabled=False, max_pending_messages=4))
    connect(*producer.partitions)
    payloads = [b"%d" % n for n in range(20)]
    assert all_of(producer, payloads) == 12
    taken = [run.payloads for partition in producer.partitions for run in partition.pending]
    assert [len(each) for each in taken] == [4, 4, 4]
    assert sorted(p for each in taken for p in each) == sorted(payloads[:12])
    assert all(each == sorted(each, key=int) for each in taken)


@pytest.mark.parametrize(
    "settings",
    [
        {"batching_enabled": True},
        {"batching_enabled": False, "chunking_enabled": True},
        {"batching_enabled": False, "compression_type": CompressionType.ZSTD},
    ],
)
def test_settings_that_change_messages_prevent_runs(settings):
    assert not producer_of(0, settings_of(**settings)).sends_runs
