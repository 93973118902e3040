"""Delayed delivery: never early, and not lost by a restart."""

from itertools import pairwise

import pytest
from doubles import calls_of

from geminga.broker.delivery import delivery_times
from geminga.broker.delivery.delivery_times import summary_prefix
from geminga.broker.delivery.dispatcher import ENTRIES_PER_CALL_MAX
from geminga.ledger.backup.backup import backup, restore
from geminga.ledger.inspection import inspect
from geminga.ledger.store import FileStore
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, SUBSCRIBE, TOPIC

COUNT = 40


@pytest.fixture(params=["Shared", "Key_Shared"])
def kind(request):
    return request.param


def test_delayed_messages_are_never_early_and_survive_a_restart(harness, producer, make_entry):
    peer = harness.consumer(TOPIC, kind="Shared")
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 5000))
    producer.send(1, make_entry(b"later", deliver_at_time=harness.now_ms + 9000))
    producer.send(2, make_entry(b"now"))
    assert peer.payloads() == [b"now"]
    harness.advance(4.999)
    assert peer.payloads() == []
    harness.advance(0.001)
    assert peer.payloads() == [b"late"]
    peer.ack((0, 0), (0, 2))
    harness.restart()
    peer = harness.consumer(TOPIC, kind="Shared")
    assert peer.payloads() == []
    harness.advance(4)
    assert peer.payloads() == [b"later"]


@pytest.mark.parametrize("size", [1, 300])
def test_a_backlog_with_a_delayed_message_is_delivered_without_it(harness, producer, make_entry, size):
    producer.publish(5)
    producer.send(5, make_entry(b"late", deliver_at_time=harness.now_ms + 5000, partition_key="k" * size))
    producer.publish(5, first=6)
    peer = harness.consumer(TOPIC, kind="Shared")
    assert peer.entry_ids() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    harness.advance(5)
    assert peer.entry_ids() == [5]


def test_the_wall_clock_decides_about_delays_not_the_timer(harness, producer, make_entry):
    peer = harness.consumer(TOPIC, kind="Shared")
    due_ms = harness.now_ms + 1000
    producer.send(0, make_entry(b"late", deliver_at_time=due_ms))
    harness.broker.tick(harness.now + 2, due_ms - 1)
    assert peer.payloads() == []
    for _ in range(2):
        harness.broker.tick(harness.now + 2.1, due_ms)
    assert peer.payloads() == [b"late"]


def test_a_message_is_not_late_when_the_wall_clock_is_set_forward(harness, producer, make_entry):
    peer = harness.consumer(TOPIC, kind="Shared")
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 3_600_000))
    harness.advance(30)
    assert peer.payloads() == []
    harness.start_ms += 3_600_000
    harness.advance(delivery_times.LOOK_SECONDS)
    assert peer.payloads() == [b"late"]


def test_entries_due_at_one_moment_are_delivered_in_slices(harness, producer, make_entry, monkeypatch):
    monkeypatch.setattr(delivery_times, "DUE_AT_ONCE_MAX", 10)
    peer = harness.consumer(TOPIC, kind="Shared")
    due_ms = harness.now_ms + 1000
    producer.send_all(make_entry(b"%d" % sequence_id, deliver_at_time=due_ms) for sequence_id in range(35))
    got = []
    for count in (0, 20, 0, 15):
        harness.broker.tick(harness.now + 1, due_ms)
        found = peer.entry_ids()
        assert len(found) == count
        got += found
    assert got == list(range(35))


def test_messages_of_one_time_are_delivered_in_their_order(harness, producer, make_entry, monkeypatch, kind):
    monkeypatch.setattr(delivery_times, "RUN_ENTRIES", 20)
    monkeypatch.setattr(delivery_times, "SLICE_ENTRIES", 5)
    monkeypatch.setattr(delivery_times, "DUE_AT_ONCE_MAX", 12)
    monkeypatch.setattr(delivery_times, "READ_COST", 1)
    peer = harness.consumer(TOPIC, kind=kind)
    due_ms = harness.now_ms + 60_000
    producer.send_all(make_entry(b"%d" % n, deliver_at_time=due_ms, partition_key="k") for n in range(115))
    harness.advance(61)
    assert peer.entry_ids() == list(range(115))


def test_new_messages_of_a_key_follow_the_due_ones(harness, producer, make_entry):
    peers = [harness.consumer(TOPIC, kind="Key_Shared", permits=1) for _ in range(2)]
    due_ms = harness.now_ms + 60_000
    for number in range(400):
        delay = {"deliver_at_time": due_ms} if number < 200 else {}
        if number == 200:
            harness.advance(61)
        producer.send(number, make_entry(partition_key=str(number % 7), **delay))
    for peer in peers:
        peer.command("flow", consumer_id=1, messagePermits=1000)
    harness.advance(1)
    found = [peer.entry_ids() for peer in peers]
    assert sorted(found[0] + found[1]) == list(range(400))
    for key in range(7):
        offsets = [offset for each in found for offset in each if offset % 7 == key]
        assert offsets == list(range(key, 400, 7))


def test_each_subscription_takes_due_messages_in_its_own_timer(harness, producer, make_entry, monkeypatch):
    # One timer delivered to 100 subscriptions in a second, in which the broker did nothing else.
    count, due_ms = 30, harness.now_ms + 1000
    monkeypatch.setattr(delivery_times, "DUE_AT_ONCE_MAX", count)
    peers = [harness.consumer(TOPIC, f"s{number}", kind="Shared") for number in range(10)]
    producer.send_all(make_entry(deliver_at_time=due_ms) for _ in range(count))
    harness.broker.tick(harness.now + 1, due_ms)
    dispatchers = [harness.subscription(f"s{number}").dispatcher for number in range(10)]
    assert {(each.delayed_size, each.replay_size) for each in dispatchers} == {(count - 3, 3)}
    assert not any(peer.entry_ids() for peer in peers)
    harness.advance(2)
    assert all(peer.entry_ids() == list(range(count)) for peer in peers)


def test_a_refused_consumer_leaves_no_dispatcher_behind(harness, monkeypatch):
    harness.consumer(TOPIC, "other", kind="Shared")
    attached, detached = [], []
    monkeypatch.setattr(delivery_times.DeliveryTimes, "attach", lambda _, each: attached.append(each))
    monkeypatch.setattr(delivery_times.DeliveryTimes, "detach", lambda _, each: detached.append(each))
    for _ in range(3):
        fields = SUBSCRIBE | {"subType": 3, "keySharedMeta": {"keySharedMode": pb.STICKY}}
        answer = harness.peer().request("subscribe", **fields)
        assert answer.command.error.error == pb.ConsumerAssignError
    assert (len(attached), detached) == (3, attached)


def test_exclusive_consumers_do_not_wait_for_delays(harness, producer, make_entry):
    peer = harness.consumer(TOPIC)
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 5000))
    assert peer.payloads() == [b"late"]


@pytest.mark.parametrize("how", ["skip", "ttl"])
def test_expired_or_skipped_delayed_messages_are_not_delivered(make_harness, make_entry, kind, how):
    # With Key_Shared this raised in the timer, which then dropped the timers of other topics too.
    harness = make_harness(message_ttl_seconds=20 if how == "ttl" else 0)
    peer, producer = harness.peer(), harness.peer()
    producer.producer(TOPIC)
    producer.producer("other", producer_id=2)
    peer.subscribe(TOPIC, kind=kind)
    for number in range(4):
        entry = make_entry(
            b"%d" % number, deliver_at_time=harness.now_ms + 40_000, partition_key=str(number),
            publish_time=harness.now_ms,
        )  # fmt: skip
        producer.send(number, entry)
    other = harness.consumer("other", kind=kind)
    producer.send(0, make_entry(b"other", deliver_at_time=harness.now_ms + 40_000), producer_id=2)
    if how == "skip":
        harness.actions.cursors.skip(NAME, "s", 3, lambda error: None)
        assert peer.session.consumers[1].subscription.dispatcher.delayed_size == 1
    else:
        harness.advance(31)
        assert peer.session.consumers[1].subscription.backlog == 0
    harness.advance(60)
    assert peer.payloads() == ([b"3"] if how == "skip" else [])
    if how == "skip":
        assert other.payloads() == [b"other"]
    assert not any(harness.broker.scheduler.failures.values())


def test_skipped_replayed_messages_are_not_delivered(harness, producer, make_entry):
    first, second = harness.peer(), harness.peer()
    first.subscribe(TOPIC, kind="Key_Shared", permits=20)
    producer.send_all(make_entry(b"%d" % number, partition_key=str(number % 7)) for number in range(20))
    second.subscribe(TOPIC, kind="Key_Shared", permits=0)
    first.command("redeliverUnacknowledgedMessages", consumer_id=1)
    subscription = first.session.consumers[1].subscription
    harness.actions.cursors.skip(NAME, "s", 15, lambda error: None)
    assert subscription.dispatcher.replay_size == 5
    first.frames.clear()
    second.command("flow", consumer_id=1, messagePermits=100)
    first.command("flow", consumer_id=1, messagePermits=100)
    assert sorted(int(each) for each in first.payloads() + second.payloads()) == [15, 16, 17, 18, 19]
    assert set(subscription.dispatcher._slots) == {15, 16, 17, 18, 19}


def test_a_delayed_backlog_is_read_in_slices(harness, producer, make_entry, kind):
    count = 3 * ENTRIES_PER_CALL_MAX + 10
    for number in range(count):
        producer.send(number, make_entry(deliver_at_time=harness.now_ms + 5000, partition_key=str(number)))
    peer = harness.consumer(TOPIC, kind=kind, permits=0)
    harness.auto_poll = False
    peer.command("flow", consumer_id=1, messagePermits=1000)
    dispatcher = peer.session.consumers[1].subscription.dispatcher
    sizes = [dispatcher.delayed_size]
    while dispatcher.delayed_size < count:
        harness.broker.tick(harness.now, harness.now_ms)
        sizes.append(dispatcher.delayed_size)
    assert len(sizes) == 4
    assert max(after - before for before, after in pairwise([0, *sizes])) <= ENTRIES_PER_CALL_MAX + 20


@pytest.fixture
def small_runs(monkeypatch):
    monkeypatch.setattr(delivery_times, "RUN_ENTRIES", 8)
    monkeypatch.setattr(delivery_times, "SLICE_ENTRIES", 2)


def send_delayed(harness, producer, make_entry, count=COUNT, seconds=100):
    """Publish messages that are due one second after the other, the last one first; return the first time."""
    first_ms = harness.now_ms + seconds * 1000
    for number in range(count):
        at_ms = first_ms + (count - number) * 1000
        producer.send(number, make_entry(b"%d" % number, deliver_at_time=at_ms, partition_key=str(number)))
    return first_ms


@pytest.fixture
def peer(harness, producer, make_entry, small_runs, kind):
    """A consumer for which COUNT messages are delayed."""
    consumer = harness.consumer(TOPIC, kind=kind)
    send_delayed(harness, producer, make_entry)
    return consumer


def expected(count=COUNT, but=()):
    return [b"%d" % number for number in reversed(range(count)) if number not in but]


def keys_of(harness):
    return list(harness.store.keys.names("delays/"))


@pytest.mark.parametrize("how", ["restart", "crash", "leaves", "unload"])
def test_known_delayed_messages_are_not_read_again(
    harness, producer, make_entry, peer, monkeypatch, kind, how
):
    producer.send(COUNT, make_entry(b"now"))
    assert peer.payloads() == [b"now"]
    if how in ("leaves", "unload"):
        peer.disconnect()
    if how == "unload":
        harness.actions.unload(NAME)
    elif how != "leaves":
        getattr(harness, how)()
    harness.topic()
    fetched, read = (calls_of(monkeypatch, harness.store, name) for name in ("fetch", "read"))
    peer = harness.consumer(TOPIC, kind=kind)
    assert peer.payloads() == [b"now"]
    assert len(fetched) + len(read) <= 4
    dispatcher = harness.subscription().dispatcher
    assert dispatcher.delayed_size == COUNT
    harness.advance(100.999)
    assert peer.payloads() == []
    got = []
    for _ in range(COUNT):
        harness.advance(0.001)
        got += peer.payloads()
        harness.advance(0.998)
        assert peer.payloads() == []
        harness.advance(0.001)
    assert got == expected()
    assert (dispatcher.delayed_size, keys_of(harness)) == (0, [])


@pytest.mark.parametrize(("every", "ahead"), [(2, 100), (20, 1)])
def test_ready_messages_are_read_ahead_with_delayed_ones_unless_most_are_delayed(
    harness, producer, make_entry, small_runs, kind, every, ahead
):
    harness.consumer(TOPIC, kind=kind)
    late = {"deliver_at_time": harness.now_ms + 100_000}
    for number in range(400):
        producer.send(number, make_entry(partition_key=str(number), **(late if number % every else {})))
    harness.crash()
    harness.topic()
    read, fetch = [], harness.store.fetch

    def fetch_from_disk(*arguments, ahead, **options):
        if ahead is None:
            return None
        read.append(ahead.entries_max)
        return fetch(*arguments, ahead=ahead, **options)

    harness.store.fetch = fetch_from_disk
    peer = harness.consumer(TOPIC, "behind", kind=kind)
    assert peer.entry_ids() == list(range(0, 400, every))
    assert read[0] == ahead


def test_known_delayed_messages_do_not_count_as_unread(harness, producer, make_entry, small_runs, kind):
    harness.consumer(TOPIC, kind=kind)
    producer.send(0, make_entry(b"now"))
    send_delayed(harness, producer, make_entry)
    harness.crash()
    peer = harness.consumer(TOPIC, kind=kind, permits=0)
    dispatcher = harness.subscription().dispatcher
    assert (dispatcher.read_offset, dispatcher.known_ahead) == (0, COUNT)
    peer.command("flow", consumer_id=1, messagePermits=1000)
    assert peer.payloads() == [b"now"]
    assert (dispatcher.read_offset, dispatcher.known_ahead) == (COUNT + 1, 0)


def test_acknowledged_before_its_time_a_message_is_not_delivered(harness, peer, kind):
    peer.ack((0, 3), (0, 0), (0, COUNT - 1))
    assert harness.subscription().dispatcher.delayed_size == COUNT - 3
    harness.crash()
    peer = harness.consumer(TOPIC, kind=kind)
    peer.ack((0, 20))
    assert harness.subscription().dispatcher.delayed_size == COUNT - 4
    harness.advance(200)
    assert peer.payloads() == expected(but=(3, 0, COUNT - 1, 20))


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_message_acknowledged_in_an_aborted_transaction_is_delivered(harness, peer, kind, commit, crashes):
    if crashes:
        harness.crash()
        peer = harness.consumer(TOPIC, kind=kind)
    txn = peer.begin_transaction()
    peer.ack((0, 5), txn=txn)
    harness.advance(200)
    assert peer.payloads() == expected(but=(5,))
    harness.peer().end_transaction(txn, commit=commit)
    harness.advance(1)
    assert peer.payloads() == ([] if commit else [b"5"])


def test_a_message_that_an_aborted_transaction_opens_at_its_time_is_delivered_once(harness, peer, kind):
    txn = peer.begin_transaction()
    peer.ack((0, 0), txn=txn)
    peer.disconnect()
    peer = harness.consumer(TOPIC, kind=kind)
    # The timer looks at the clock that was set after the end of the transaction.
    harness.start_ms += 1_000_000
    harness.peer().end_transaction(txn, commit=False)
    assert peer.payloads() == [b"0"]
    harness.advance(60)
    assert sorted(peer.payloads()) == sorted(expected(but=(0,)))


def test_subscriptions_share_times_and_get_their_messages(harness, producer, make_entry, small_runs, kind):
    first = harness.consumer(TOPIC, "a", kind=kind)
    send_delayed(harness, producer, make_entry)
    second = harness.consumer(TOPIC, "b", kind=kind)
    keys = keys_of(harness)
    assert harness.subscription("b").dispatcher.delayed_size == COUNT
    harness.advance(120)
    assert first.payloads() == second.payloads() == expected()[:20]
    harness.crash()
    first = harness.consumer(TOPIC, "a", kind=kind)
    second = harness.consumer(TOPIC, "b", kind=kind)
    assert sorted(first.payloads()) == sorted(second.payloads()) == sorted(expected()[:20])
    harness.advance(100)
    assert first.payloads() == second.payloads() == expected()[20:]
    assert (len(keys), keys_of(harness)) == (10, [])


def test_after_a_seek_delayed_messages_are_delivered_at_their_times(harness, peer, kind):
    peer.ack(*((0, number) for number in range(COUNT)))
    peer.request("seek", consumer_id=1, message_id={"ledgerId": 0, "entryId": 10})
    peer = harness.consumer(TOPIC, kind=kind)
    assert (peer.payloads(), harness.subscription().dispatcher.delayed_size) == ([], COUNT - 10)
    harness.advance(200)
    assert peer.payloads() == expected(but=range(10))


@pytest.mark.parametrize("damage", ["lost", "garbage", "others", "all"])
@pytest.mark.parametrize("part", "st")
@pytest.mark.parametrize("attached", [False, True])
def test_lost_times_are_read_from_the_entries(harness, peer, kind, damage, part, attached):
    harness.crash()
    if attached:
        peer = harness.consumer(TOPIC, kind=kind)
    keys = [key for key in keys_of(harness) if f"\0{part}" in key]
    for key in keys if damage == "all" else keys[1:2]:
        if damage == "garbage":
            harness.store.keys.put(key, b"\x08\xff\xff")
        elif damage == "others":
            harness.store.keys.put(key, harness.store.keys.get(keys[0]).base)
        else:
            harness.store.keys.delete(key)
    if not attached:
        harness.crash()
        peer = harness.consumer(TOPIC, kind=kind)
    harness.advance(100.999)
    assert peer.payloads() == []
    harness.advance(100)
    assert peer.payloads() == expected()
    assert set(keys_of(harness)) <= {key.replace("\0s", "\0t") for key in keys}


def test_messages_that_became_due_while_the_broker_was_down_are_delivered_at_once(
    harness, producer, make_entry, small_runs, kind
):
    peer = harness.consumer(TOPIC, kind=kind, permits=0)
    send_delayed(harness, producer, make_entry)
    peer.command("flow", consumer_id=1, messagePermits=1)
    harness.crash()
    harness.now += 121
    peer = harness.consumer(TOPIC, kind=kind, permits=COUNT)
    harness.poll()
    assert sorted(peer.payloads()) == sorted(expected()[:21])
    harness.advance(100)
    assert peer.payloads() == expected()[21:]


def test_due_messages_wait_for_permits(harness, producer, make_entry, monkeypatch, kind):
    monkeypatch.setattr("geminga.broker.delivery.shared.DUE_QUEUED_MAX", 5)
    peer = harness.consumer(TOPIC, kind=kind, permits=1)
    send_delayed(harness, producer, make_entry)
    harness.advance(200)
    assert len(peer.payloads()) == 1
    dispatcher = harness.subscription().dispatcher
    assert (dispatcher.replay_size, dispatcher.delayed_size) == (COUNT - 1, 0)
    peer.command("flow", consumer_id=1, messagePermits=COUNT)
    assert len(peer.payloads()) == COUNT - 1


def test_with_delays_switched_off_known_delayed_messages_are_delivered_at_once(harness, peer, kind):
    assert peer.payloads() == []
    harness.restart(delayed_delivery=False)
    assert len(harness.consumer(TOPIC, kind=kind).payloads()) == COUNT


def test_deleted_and_trimmed_messages_leave_no_delivery_times(make_harness, make_entry, small_runs):
    harness = make_harness(ledger_entries_max=10, retention_minutes=0, retention_megabytes=0)
    producer, peer = harness.producer(TOPIC), harness.consumer(TOPIC, kind="Shared")
    send_delayed(harness, producer, make_entry, seconds=100_000)
    keys = len(keys_of(harness))
    harness.actions.cursors.skip(NAME, "s", 30, lambda error: None)
    harness.advance(40)
    assert harness.topic().ledger.start == 30
    assert 0 < len(keys_of(harness)) <= keys // 2
    assert harness.subscription().dispatcher.delayed_size == 10
    harness.crash()
    peer = harness.consumer(TOPIC, kind="Shared")
    assert harness.subscription().dispatcher.delayed_size == 10
    peer.disconnect()
    harness.actions.delete(NAME, True, lambda error: None)
    harness.poll()
    assert keys_of(harness) == []


def test_a_reader_does_not_wait_for_delayed_messages_that_were_trimmed(make_harness, make_entry, small_runs):
    harness = make_harness(ledger_entries_max=10, retention_minutes=0, retention_megabytes=0)
    producer = harness.producer(TOPIC)
    harness.consumer(TOPIC, kind="Shared")
    reader = harness.consumer(TOPIC, "reader", kind="Shared", durable=False)
    send_delayed(harness, producer, make_entry, seconds=100_000)
    dispatcher = harness.subscription("reader").dispatcher
    assert dispatcher.delayed_size == COUNT
    harness.actions.cursors.skip(NAME, "s", 30, lambda error: None)
    harness.advance(40)
    assert dispatcher.delayed_size == 10
    harness.advance(200_000)
    assert reader.payloads() == expected()[:10]
    assert dispatcher.delayed_size == 0


def test_times_of_a_deleted_topic_are_not_those_of_its_successor(harness, producer, make_entry, small_runs):
    # A broker without this index deletes a topic and leaves the keys.
    peer = harness.consumer(TOPIC, kind="Shared")
    send_delayed(harness, producer, make_entry)
    left = [(key, harness.store.keys.get(key).base) for key in keys_of(harness)]
    for each in (peer, producer):
        each.disconnect()
    harness.actions.delete(NAME, True, lambda error: None)
    harness.poll()
    for key, value in left:
        harness.store.keys.put(key, value)
    producer = harness.producer(TOPIC)
    peer = harness.consumer(TOPIC, kind="Shared", permits=0)
    producer.publish(COUNT)
    harness.crash()
    peer = harness.consumer(TOPIC, kind="Shared")
    assert len(peer.payloads()) == COUNT
    assert keys_of(harness) == []


def test_topics_without_delayed_messages_have_no_delivery_times(harness, producer, make_entry):
    peer = harness.consumer(TOPIC, kind="Shared")
    producer.publish(COUNT)
    peer.ack(*((0, number) for number in range(COUNT - 1)))
    harness.restart()
    assert len(harness.consumer(TOPIC, kind="Shared").payloads()) == 1
    assert keys_of(harness) == []


def test_few_delayed_messages_are_not_stored(harness, producer, make_entry):
    harness.consumer(TOPIC, kind="Shared")
    send_delayed(harness, producer, make_entry)
    harness.restart()
    assert not list(harness.store.keys.names(summary_prefix(TOPIC)))


def test_a_restored_backup_has_the_delivery_times(make_harness, make_entry, small_runs, tmp_path):
    with FileStore.open(tmp_path / "store", threads=False) as store:
        harness = make_harness(store)
        harness.consumer(TOPIC, kind="Shared")
        send_delayed(harness, harness.producer(TOPIC), make_entry)
        keys = keys_of(harness)
        assert len(keys) == 10
        backup(tmp_path / "store", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    assert inspect(tmp_path / "restored").is_well
    with FileStore.open(tmp_path / "restored", threads=False) as store:
        harness = make_harness(store)
        peer = harness.consumer(TOPIC, kind="Shared")
        dispatcher = harness.subscription().dispatcher
        assert (keys_of(harness), dispatcher.delayed_size) == (keys, COUNT)
        harness.advance(200)
        assert peer.payloads() == expected()
