"""The partition's conversation with its broker: creation, receipts, errors, time-outs, closing."""

import pytest
from producing import success

from geminga import errors
from geminga.producer.message import OutgoingMessage
from geminga.producer.partition import SendErrorVerdict
from geminga.producer.routing import BlockedReason
from geminga.producer.settings import ProducerAccessMode
from geminga.producer.states import ProducerState
from geminga.wire.batch import decode_batch
from geminga.wire.frames import FrameDecoder


# --- creation ---
def test_the_first_command_and_the_one_after_a_reconnect(bench):
    b = bench(properties={"a": "b"}, initial_subscription_name="s")
    b.partition.start()
    command = b.partition.create_command(7).producer
    assert (command.topic, command.producer_id, command.request_id) == ("persistent://a/b/c", 3, 7)
    assert not command.HasField("producer_name")
    assert (command.epoch, command.user_provided_producer_name) == (0, False)
    assert [(p.key, p.value) for p in command.metadata] == [("a", "b")]
    assert command.initial_subscription_name == "s"
    b.connect(producer_name="made")
    b.partition.disconnected(None)
    command = b.partition.create_command(8).producer
    assert (command.producer_name, command.user_provided_producer_name, command.epoch) == ("made", False, 1)


@pytest.mark.parametrize("mode", list(ProducerAccessMode))
def test_the_topic_epoch_is_echoed_for_exclusive_modes_only(bench, mode):
    b = bench(access_mode=mode)
    command = b.partition.create_command(1).producer
    assert command.producer_access_mode == mode
    assert not command.HasField("topic_epoch")
    b.connect(topic_epoch=5)
    b.partition.disconnected(None)
    command = b.partition.create_command(2).producer
    assert command.HasField("topic_epoch") == (mode is not ProducerAccessMode.Shared)


@pytest.mark.parametrize("mode", list(ProducerAccessMode)[1:])
def test_a_grant_without_a_topic_epoch_is_refused_for_exclusive_modes(bench, mode):
    """Brokers that do not know the mode grant a producer that shares the topic."""
    b = bench(access_mode=mode)
    with pytest.raises(errors.UnsupportedVersionError, match=f"access_mode={mode.name}"):
        b.partition.check_granted(success(), "")
    b.partition.check_granted(success(topic_epoch=0), "")
    bench().partition.check_granted(success(), "Pulsar Server2.7.0")


def test_fencing_is_refused_on_a_broker_that_does_not_know_it(bench):
    """Apache Pulsar 2.10 sends the epoch of a topic to producers that share it, too."""
    for mode, refused in (("ExclusiveWithFencing", ["2.10.5", "2.8.0"]), ("Exclusive", [])):
        b = bench(access_mode=getattr(ProducerAccessMode, mode))
        for version in ("2.8.0", "2.10.5", "2.11.0", "3.0.7", "4.0.4", "10.1"):
            granted = success(topic_epoch=3)
            if version in refused:
                with pytest.raises(errors.UnsupportedVersionError):
                    b.partition.check_granted(granted, f"Pulsar Server{version}")
            else:
                b.partition.check_granted(granted, f"Pulsar Server{version}")


def test_ids_go_on_behind_the_brokers_last_one_also_for_early_messages(bench):
    b = bench(batching_max_messages=2, producer_name="p")
    b.partition.start()
    for _ in range(3):
        b.add(b"early")
    b.connect(last_sequence_id=41)
    b.add(b"later")
    first, second = b.flushed()
    assert [s.sequence_id for s in decode_batch(first.body, 2)] == [42, 43]
    assert [s.sequence_id for s in decode_batch(second.body, 2)] == [44, 45]
    assert b.partition.last_sequence_id == 41
    b.receipt(42, 43)
    assert b.partition.last_sequence_id == 43


def test_an_initial_id_overrules_the_brokers(bench):
    b = bench(initial_sequence_id=99).connect(last_sequence_id=41)
    assert b.partition.last_sequence_id == 99
    b.add(b"x")
    (sent,) = b.flushed()
    assert sent.command.sequence_id == 100


def test_the_brokers_last_id_counts_at_the_first_creation_only(bench):
    b = bench().connect()
    b.add(b"x")
    b.flushed()
    b.partition.disconnected(None)
    b.connect(last_sequence_id=500)
    b.add(b"y")
    assert [s.command.sequence_id for s in b.flushed()] == [0, 1]


def test_messages_wait_for_exclusive_access(bench):
    b = bench(access_mode=ProducerAccessMode.WaitForExclusive)
    b.partition.start()
    b.partition.must_wait()
    assert b.partition.state is ProducerState.WAITING_FOR_EXCLUSIVE
    b.add(b"x")
    assert b.flushed() == []
    b.connect(topic_epoch=1)
    assert len(b.written()) == 1


@pytest.mark.parametrize(
    ("error", "before", "after"),
    [
        (errors.TopicNotFound("x"), True, True), (errors.TopicTerminated("x"), True, True),
        (errors.ProducerFenced("x"), True, True), (errors.ProducerBusy("x"), True, False),
        (errors.AuthorizationError("x"), True, False), (errors.IncompatibleSchema("x"), True, False),
        (errors.ProducerBlockedQuotaExceededException("x"), True, False),
        (errors.ProducerBlockedQuotaExceededError("x"), False, False),
        (errors.ServiceUnitNotReady("x"), False, False), (errors.ConnectError("x"), False, False),
        (errors.Timeout("x"), False, False),
    ],
)  # fmt: skip
def test_which_refusals_are_final_before_and_after_the_first_creation(bench, error, before, after):
    b = bench()
    assert b.partition.is_terminal(error) is before
    b.connect()
    assert b.partition.is_terminal(error) is after


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (errors.ProducerFenced("x"), ProducerState.FENCED),
        (errors.TopicTerminated("x"), ProducerState.TERMINATED),
    ],
)
def test_fenced_and_terminated_fail_what_is_pending_and_what_comes(bench, error, state):
    b = bench(batching_max_messages=1).connect()
    b.add(b"sent")
    b.written()
    b.partition.disconnected(None)
    b.add(b"waiting")
    b.partition.refused(error, 0.0)
    assert b.partition.state is state
    assert [(o.tokens, o.error) for o in b.settled()] == [([b"sent"], error), ([b"waiting"], error)]
    with pytest.raises(type(error)):
        b.add(b"x")
    assert b.permits_used == (0, 0, 0)
    b.partition.fail(error, 0.0)  # the driver gives up afterwards: nothing changes
    assert b.partition.state is state
    b.partition.close(0.0)
    assert b.partition.state is ProducerState.CLOSED


def test_the_hold_policy_keeps_messages_the_exception_policy_fails_them(bench):
    b = bench(batching_max_messages=1).connect()
    b.partition.disconnected(None)
    b.add(b"x")
    b.partition.refused(errors.ProducerBlockedQuotaExceededError("hold"), 0.0)
    assert b.settled() == []
    refusal = errors.ProducerBlockedQuotaExceededException("fail")
    b.partition.refused(refusal, 0.0)
    assert [o.error for o in b.settled()] == [refusal]
    assert b.partition.state is ProducerState.RECONNECTING
    b.connect()
    b.add(b"y")
    assert len(b.written()) == 1


# --- reconnects ---
def test_everything_unreceipted_is_written_again_in_order_with_the_same_bytes(bench):
    b = bench(batching_max_messages=2).connect()
    for number in range(6):
        b.add(b"%d" % number)
    first = b.written()
    b.receipt(0, 1)
    b.partition.disconnected(errors.ConnectError("gone"))
    assert b.partition.state is ProducerState.RECONNECTING
    b.add(b"6")
    b.add(b"7")
    assert b.written() == []
    b.receipt(2, 3)  # from the old connection: not counted
    b.connect()
    again = b.written()
    assert [s.command.sequence_id for s in again] == [2, 4, 6]
    assert [s.payload for s in again[:2]] == [s.payload for s in first[1:]]
    assert b.partition.counters.resent_operations == 2
    assert b.partition.counters.reconnects == 1
    for frame in again:
        b.receipt(frame.command.sequence_id)
    assert [t for o in b.settled() for t in o.tokens] == [b"%d" % n for n in range(8)]


def test_output_comes_in_portions_and_stops_at_what_another_thread_encodes(bench):
    b = bench(batching_max_messages=2, max_pending_messages=0).connect()
    for _ in range(8):
        b.add(b"x" * 60_000)
    _head, *rest = list(b.partition.pending)
    rest[1].claimed = True
    assert [s.command.sequence_id for s in b.written()] == [0, 2]
    assert b.partition not in b.ready_set.writable
    rest[1].claimed = False
    b.partition.has_output()
    assert [s.command.sequence_id for s in b.written()] == [4, 6]
    for _ in range(40):
        b.add(b"x" * 60_000)
    sizes = []
    while b.partition in b.ready_set.writable:
        sizes.append(len(b.written()))
    assert len(sizes) > 2
    assert sum(sizes) == 20


# --- errors of sends ---
def in_flight(bench, count=3, **settings):
    b = bench(batching_enabled=False, **settings).connect()
    for number in range(count):
        b.add(b"%d" % number)
    b.written()
    return b


def test_not_allowed_fails_that_message_alone(bench):
    b = in_flight(bench)
    assert b.partition.send_error(22, 1, "too big for this topic", 0.0) is SendErrorVerdict.NOTHING
    (failed,) = b.settled()
    assert (failed.tokens, type(failed.error)) == ([b"1"], errors.NotAllowedError)
    assert "too big for this topic" in str(failed.error)
    b.receipt(0)
    b.receipt(2)
    assert [o.tokens for o in b.settled()] == [[b"0"], [b"2"]]
    assert b.partition.send_error(22, 99, "unknown", 0.0) is SendErrorVerdict.NOTHING


def test_a_checksum_error_sends_intact_messages_again_and_fails_damaged_ones(bench):
    b = in_flight(bench)
    assert b.partition.send_error(9, 0, "checksum", 0.0) is SendErrorVerdict.DETACH
    assert b.settled() == []
    head = b.partition.pending.head
    head.body = b"damaged"
    assert b.partition.send_error(9, 0, "checksum", 0.0) is SendErrorVerdict.NOTHING
    (failed,) = b.settled()
    assert isinstance(failed.error, errors.ChecksumError)
    assert b.partition.counters.checksum_errors == 2


@pytest.mark.parametrize(("code", "state"), [(15, ProducerState.TERMINATED), (25, ProducerState.FENCED)])
def test_terminated_and_fenced_end_the_producer(bench, code, state):
    b = in_flight(bench)
    assert b.partition.send_error(code, 0, "over", 0.0) is SendErrorVerdict.ENDED
    assert b.partition.state is state
    assert len(b.settled()) == 3
    assert b.partition.send_error(code, 0, "again", 0.0) is SendErrorVerdict.NOTHING


# --- a producer that stops at a failure ---
def stopping(bench, *sizes):
    b = bench(batching_max_messages=1, send_timeout_seconds=5).connect()
    b.partition.stops_at_failure = True
    for size in sizes:
        b.add(b"x" * size)
    return b


def test_nothing_is_written_behind_an_entry_larger_than_all_before_until_its_receipt(bench):
    b = stopping(bench, 10, 5, 10, 30, 20)
    assert [sent.command.sequence_id for sent in b.written()] == [0]
    assert b.partition not in b.ready_set.writable
    b.receipt(0)
    assert b.partition in b.ready_set.writable
    assert [sent.command.sequence_id for sent in b.written()] == [1, 2, 3]
    b.receipt(1)
    b.receipt(2)
    assert b.written() == []
    b.partition.disconnected(None)
    b.connect()
    assert [sent.command.sequence_id for sent in b.written()] == [3]
    b.receipt(3)
    assert [sent.command.sequence_id for sent in b.written()] == [4]


def test_the_size_of_an_entry_includes_its_metadata(bench):
    b = stopping(bench)
    b.add(b"x" * 10)
    b.add(b"x" * 5, OutgoingMessage(b"x" * 5, ordering_key=b"k" * 20))
    b.add(b"x")
    for number in range(3):
        assert [sent.command.sequence_id for sent in b.written()] == [number]
        b.receipt(number)


def test_nothing_is_written_behind_an_entry_delayed_longer_than_all_before_until_its_receipt(bench):
    """A broker may limit the delay of deliveries, and refuses entries beyond the limit."""
    b = stopping(bench, 50)
    now_ms = 1_700_000_000_000
    for delay_ms in (500, 300, 500, 800, -now_ms):
        b.add(b"x", OutgoingMessage(b"x", deliver_at_time=now_ms + delay_ms))
    for numbers in ([0], [1], [2, 3, 4], [5]):
        assert [sent.command.sequence_id for sent in b.written()] == numbers
        assert b.written() == []
        for number in numbers:
            b.receipt(number)


def test_entries_of_one_delay_are_written_together_once_they_have_waited_for_a_receipt(bench):
    b = stopping(bench, 50)
    b.written()
    b.receipt(0)
    start_ms = 1_700_000_000_000

    def written(ms):
        decoder = FrameDecoder(1 << 20)
        output = b"".join(map(bytes, b.partition.take_output(0.0, start_ms + ms)))
        return [frame.sequence_id for frame in decoder.feed(output)]

    for ms in range(8):
        b.add(b"x", OutgoingMessage(b"x", deliver_at_time=start_ms + 60_000 + ms))
    assert written(0) == [1]
    assert written(4) == []
    b.receipt(1)
    assert written(5) == [2]
    b.receipt(2)
    assert written(10) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("cause", ["refused", "timeout", "quota", "too big"])
def test_a_failure_ends_a_producer_that_stops_at_one(bench, cause):
    b = stopping(bench, 1, 1, 1)
    if cause == "refused":
        b.written()
        assert b.partition.send_error(22, 0, "too large", 0.0) is SendErrorVerdict.NOTHING
    elif cause == "timeout":
        b.partition.tick(5.0)
    elif cause == "quota":
        b.partition.disconnected(None)
        b.partition.refused(errors.ProducerBlockedQuotaExceededException("full"), 0.0)
    else:
        b.partition.disconnected(None)
        b.max_message_size = 5
        assert b.connect().written() == []
    failed = b.settled()
    assert len(failed) == 3
    assert b.partition.state is ProducerState.CLOSED
    with pytest.raises(type(failed[0].error)):
        b.add(b"later")
    b.receipt(0)
    assert b.written() == b.settled() == []


# --- time ---
def test_the_send_timeout_of_the_head_fails_everything(bench):
    b = bench(send_timeout_seconds=5, batching_max_messages=2).connect()
    b.add(b"0")
    b.add(b"1")
    b.written()
    b.now = 4.0
    b.add(b"2")
    assert b.partition.next_deadline() == pytest.approx(4.01)
    b.partition.tick(4.02)
    assert b.partition.next_deadline() == 5.0
    b.partition.tick(4.99)
    assert b.settled() == []
    b.partition.tick(5.0)
    outcomes = [(o.tokens, type(o.error)) for o in b.settled()]
    assert outcomes == [([b"0", b"1"], errors.Timeout), ([b"2"], errors.Timeout)]
    assert b.permits_used == (0, 0, 0)
    assert b.partition.next_deadline() == float("inf")


def test_the_timeout_names_the_last_error(bench):
    b = bench(send_timeout_seconds=1, batching_max_messages=1).connect()
    b.partition.disconnected(errors.ConnectError("the cable is out"))
    b.add(b"x")
    b.partition.tick(1.0)
    (failed,) = b.settled()
    assert "send_timeout=1 s" in str(failed.error)
    assert "reconnecting" in str(failed.error)
    assert "the cable is out" in str(failed.error)


# --- blocked and closed ---
def test_why_a_partition_is_blocked(bench):
    b = bench(max_pending_messages=2, blocked_after_seconds=1.0)
    assert b.partition.blocked(0.0) is None  # choosing it starts it
    b.partition.start()
    assert b.partition.blocked(0.0) is BlockedReason.CONNECTION
    b.connect()
    assert b.partition.blocked(0.0) is None
    b.add(b"x")
    assert b.partition.blocked(0.0) is None
    b.flushed()
    assert b.partition.blocked(1.0) is None
    assert b.partition.blocked(1.1) is BlockedReason.AGE
    b.add(b"x")
    assert b.partition.blocked(0.0) is BlockedReason.PERMITS
    b.partition.disconnected(None)
    assert b.partition.blocked(0.0) is BlockedReason.CONNECTION
