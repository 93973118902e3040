"""Transactions in the broker: what is delivered, what is acknowledged, and what a crash leaves of both."""

from typing import Any

import pytest
from doubles import calls_of

from geminga.broker.commands import consuming
from geminga.broker.rules.tokens import make_token
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics import topic_transactions, transactions
from geminga.broker.topics.topic_transactions import aborted_key
from geminga.broker.topics.transactions import Transactions
from geminga.errors import StoreFull
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import KEY, NAME, SECRET, TOPIC, Command

OTHER = "persistent://public/default/other"


class Client:
    """A client with a producer of each topic, and transactions."""

    def __init__(self, harness: Any, make_entry: Any) -> None:
        self.harness, self.make_entry = harness, make_entry
        self.peer = harness.peer()
        for number, topic in enumerate((TOPIC, OTHER), 1):
            self.peer.producer(topic, number)
        self.sequence_id = 0

    def begin(self, timeout_ms: int = 60_000) -> tuple[int, int]:
        return self.peer.begin_transaction(timeout_ms)

    def send(self, payload: bytes, txn: Any = None, producer_id: int = 1, **fields: Any) -> None:
        entry = self.make_entry(payload, sequence_id=self.sequence_id, **fields)
        self.peer.send(self.sequence_id, entry, producer_id=producer_id, transaction=txn)
        self.sequence_id += 1

    def delivered(self, count: int, kind: str = "Shared") -> tuple[Any, list[tuple[int, int]]]:
        """Publish numbered messages; return a new consumer that received them, and their ids."""
        for number in range(count):
            self.send(b"%d" % number)
        consumer = self.harness.consumer(TOPIC, kind=kind)
        return consumer, consumer.ids()

    def end(self, txn: tuple[int, int], *, commit: bool = True) -> Any:
        return self.peer.end_transaction(txn, commit=commit)

    def commit(self, txn: tuple[int, int]) -> None:
        assert not self.end(txn).HasField("error")

    def abort(self, txn: tuple[int, int]) -> None:
        assert not self.end(txn, commit=False).HasField("error")


@pytest.fixture
def client(harness, make_entry):
    return Client(harness, make_entry)


@pytest.fixture
def reopen(harness, make_entry):
    """Return a function that crashes or restarts the broker and returns a new client."""

    def again(how: str) -> Client:
        getattr(harness, how)()
        return Client(harness, make_entry)

    return again


def ack(peer: Any, txn: tuple[int, int], *ids: tuple[int, int], **fields: Any) -> int | None:
    """Acknowledge in a transaction, and return the error."""
    peer.ack(*ids, txn=txn, request_id=7, **fields)
    peer.harness.run_slices()
    peer.harness.poll()
    answer = peer.take(Command.ACK_RESPONSE)[0].command.ackResponse
    assert (answer.txnid_most_bits, answer.txnid_least_bits) == txn
    return answer.error if answer.HasField("error") else None


def read(harness: Any, topic: str = TOPIC, name: str = "witness") -> list[bytes]:
    """Return what a new reader gets."""
    peer = harness.consumer(topic, name, durable=False, start_message_id={"ledgerId": 0, "entryId": 0})
    found = peer.payloads()
    peer.disconnect()
    return found


def backlog(harness: Any, name: str = "s") -> tuple[int, int]:
    subscription = harness.subscription(name)
    return subscription.backlog, subscription.backlog_tally()[0]


def compact(harness: Any) -> None:
    harness.actions.compact(NAME)
    for _ in range(50):
        harness.run_slices()
        harness.advance(0.1)


def test_messages_appear_with_the_commit_and_hold_back_what_follows(harness, client):
    consumer = harness.consumer(TOPIC)
    other = harness.consumer(OTHER)
    client.send(b"before")
    txn = client.begin()
    client.send(b"1", txn)
    client.send(b"2", txn, producer_id=2)
    client.send(b"behind")
    assert consumer.payloads() == [b"before"]
    assert other.payloads() == []
    assert backlog(harness) == (1, 1)
    client.commit(txn)
    assert consumer.payloads() == [b"1", b"behind"]
    assert other.payloads() == [b"2"]
    assert harness.store.keys.get("transaction/" + f"{txn[1]:020}") is None


def test_messages_of_an_aborted_transaction_are_never_delivered(harness, client, reopen):
    consumer = harness.consumer(TOPIC)
    txn = client.begin()
    client.send(b"never", txn)
    client.send(b"seen")
    client.abort(txn)
    assert consumer.payloads() == [b"seen"]
    assert backlog(harness) == (1, 1)
    assert read(harness) == [b"seen"]
    for how in ("restart", "crash"):
        reopen(how)
        assert read(harness) == [b"seen"]
        assert backlog(harness) == (1, 1)


def test_interleaved_transactions_end_in_any_order(harness, client):
    consumer = harness.consumer(TOPIC)
    first, second, third = client.begin(), client.begin(), client.begin()
    for payload, txn in ((b"a", first), (b"b", second), (b"c", third), (b"d", first), (b"e", None)):
        client.send(payload, txn)
    client.abort(second)
    assert consumer.payloads() == []
    client.commit(third)
    assert consumer.payloads() == []
    client.commit(first)
    assert consumer.payloads() == [b"a", b"c", b"d", b"e"]
    assert backlog(harness) == (4, 4)


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared", "Exclusive", "Failover"])
def test_acknowledgements_are_pending_until_the_end(harness, client, kind):
    consumer, ids = client.delivered(3, kind)
    txn = client.begin()
    assert ack(consumer, txn, ids[0], ids[2]) is None
    assert backlog(harness) == (3, 3)
    consumer.command("redeliverUnacknowledgedMessages", consumer_id=1)
    assert consumer.payloads() == [b"1"]
    client.abort(txn)
    again = consumer.payloads()
    assert again == ([b"0", b"2"] if "hared" in kind else [b"0", b"1", b"2"])
    txn = client.begin()
    assert ack(consumer, txn, ids[0], ids[2]) is None
    client.commit(txn)
    assert backlog(harness) == (1, 1)
    consumer.disconnect()
    assert harness.consumer(TOPIC, kind=kind).payloads() == [b"1"]


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_what_a_consumer_that_left_had_acknowledged_goes_to_others_after_an_abort(harness, client, kind):
    consumer, ids = client.delivered(3, kind)
    txn = client.begin()
    assert ack(consumer, txn, ids[0], ids[1]) is None
    consumer.disconnect()
    other = harness.consumer(TOPIC, kind=kind)
    assert other.payloads() == [b"2"]
    client.abort(txn)
    assert other.payloads() == [b"0", b"1"]


def test_a_cumulative_acknowledgement_waits_for_the_commit(harness, client):
    consumer, ids = client.delivered(4, "Exclusive")
    txn = client.begin()
    assert ack(consumer, txn, ids[2], cumulative=True) is None
    consumer.command("redeliverUnacknowledgedMessages", consumer_id=1)
    assert consumer.payloads() == [b"3"]
    client.abort(txn)
    assert len(consumer.payloads()) == 4
    txn = client.begin()
    assert ack(consumer, txn, ids[1], cumulative=True) is None
    client.commit(txn)
    consumer.disconnect()
    assert harness.consumer(TOPIC).payloads() == [b"2", b"3"]


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_an_abort_returns_what_was_acknowledged_cumulatively_before_a_change_of_type(harness, client, kind):
    consumer, ids = client.delivered(3, "Exclusive")
    txn = client.begin()
    assert ack(consumer, txn, ids[1], cumulative=True) is None
    consumer.disconnect()
    consumer = harness.consumer(TOPIC, kind=kind)
    assert consumer.payloads() == [b"2"]
    client.abort(txn)
    assert sorted(consumer.payloads()) == [b"0", b"1"]


def test_parts_of_a_batch_belong_to_different_transactions(harness, client, make_entry):
    entry = make_entry(b"batch", num_messages_in_batch=5)
    client.peer.send(0, entry, messages=5)
    consumer = harness.consumer(TOPIC, kind="Shared")
    (place,) = consumer.ids()

    def acked(txn: tuple[int, int], *indexes: int) -> int | None:
        left = [31 & ~sum(1 << each for each in indexes)] if len(indexes) < 5 else []
        return ack(consumer, txn, place, ack_set=left, batch_size=5)

    kept, lost = client.begin(), client.begin()
    assert acked(kept, 0, 1) is None
    assert acked(lost, 1) == pb.TransactionConflict
    assert acked(lost, 2) is None
    assert acked(lost, 0, 3) == pb.TransactionConflict
    consumer.command("redeliverUnacknowledgedMessages", consumer_id=1)
    assert not consumer.messages()  # clients take what is left out of a batch for acknowledged
    client.commit(kept)
    assert not consumer.messages()
    client.abort(lost)
    assert [list(each.ack_set) for each in consumer.messages()] == [[0b11100]]
    assert backlog(harness) == (1, 3)
    late = client.begin()
    assert acked(late, 1, 2) == acked(late, *range(5)) == pb.TransactionConflict  # 0 and 1 are acknowledged
    assert acked(late, 2, 3, 4) is None
    client.commit(late)
    assert backlog(harness) == (0, 0)


def test_the_last_message_of_a_very_large_batch_is_acknowledged(harness, client, make_entry, reopen):
    count = 20_000  # as a decimal number its bits have more digits than Python converts
    entry = make_entry(b"many", sequence_id=0, num_messages_in_batch=count)
    client.peer.send(0, entry, messages=count)
    consumer = harness.consumer(TOPIC, kind="Shared")
    txn = client.begin()
    assert ack(consumer, txn, *consumer.ids(), ack_set=[-1] * (count // 64) + [0]) is None
    client = reopen("crash")
    client.commit(txn)
    assert harness.subscription().cursor.batches[0].bit_count() == count - 32


def test_a_message_is_acknowledged_once(harness, client):
    consumer, (place,) = client.delivered(1)
    first, second = client.begin(), client.begin()
    assert ack(consumer, first, place) is None
    assert ack(consumer, first, place) is None  # sent again
    assert ack(consumer, second, place) == pb.TransactionConflict
    client.commit(first)
    assert ack(consumer, second, place) == pb.TransactionConflict


def test_many_acknowledgements_of_a_command_are_taken_in_slices(harness, client, reopen, monkeypatch):
    monkeypatch.setattr(consuming, "ACKED_AT_ONCE_MAX", 3)
    consumer, ids = client.delivered(10)
    first, second = client.begin(), client.begin()
    calls = calls_of(monkeypatch, Transactions, "has_acks")
    assert ack(consumer, first, *ids[4:6]) is None
    assert ack(consumer, second, *ids) == pb.TransactionConflict
    assert ack(consumer, first, *ids[3:]) is None
    assert [len(each[-1]) for each in calls] == [2, 3, 3, 3, 1]
    client.abort(second)
    client.commit(first)
    client = reopen("crash")
    assert backlog(harness) == (3, 3)


def test_wrong_states_have_pulsars_codes(harness, client):
    txn = client.begin()
    client.commit(txn)
    assert client.end(txn).error == pb.TransactionNotFound  # the client has the answer
    assert client.end((0, 9999)).error == pb.TransactionNotFound
    connected = client.peer
    client.peer = harness.peer()  # it may have lost the answer with its connection
    assert not client.end(txn).HasField("error")
    client.peer = harness.peer()
    assert client.end(txn, commit=False).error == pb.InvalidTxnStatus
    client.peer = connected
    request = client.peer.request
    body = {"txnid_most_bits": 0, "txnid_least_bits": txn[1]}
    added = request("addPartitionToTxn", partitions=[TOPIC], **body).command.addPartitionToTxnResponse
    assert added.error == pb.InvalidTxnStatus
    client.send(b"late", txn)
    assert client.peer.pop().command.send_error.error == pb.NotAllowedError
    connected = request("tcClientConnectRequest", tc_id=3).command.tcClientConnectResponse
    assert connected.error == pb.TransactionCoordinatorNotFound


def test_announced_parts_are_kept_for_administrators(harness, client, monkeypatch):
    monkeypatch.setattr(transactions, "ANNOUNCED_MAX", 3)
    txn = client.begin()
    body = {"txnid_most_bits": 0, "txnid_least_bits": txn[1]}
    request = client.peer.request
    for partitions in (["t", TOPIC], ["t"]):
        request("addPartitionToTxn", partitions=partitions, **body)
    for name in ("s", "beyond the limit"):
        request("addSubscriptionToTxn", subscription=[pb.Subscription(topic="t", subscription=name)], **body)
    [record] = harness.broker.coordinator.records.by_id.values()
    assert list(record.announced) == [("t", ""), (TOPIC, ""), ("t", "s")]
    wrong = request("addPartitionToTxn", partitions=["a/b"], **body).command.addPartitionToTxnResponse
    assert wrong.error == pb.InvalidTopicName
    long = [pb.Subscription(topic="t", subscription="s" * 5000)]
    wrong = request("addSubscriptionToTxn", subscription=long, **body).command.error
    assert wrong.error == pb.NotAllowedError
    many = ["t"] * 1000 + ["a/b"]  # names beyond the limit are not read: a command may have a million
    assert not request("addPartitionToTxn", partitions=many, **body).command.HasField("error")
    assert not request("addPartitionToTxn", partitions=many, **body).command.addPartitionToTxnResponse.error


def test_a_transaction_is_aborted_at_its_time(harness, client):
    consumer = harness.consumer(TOPIC)
    txn = client.begin(2000)
    client.send(b"never", txn)
    client.send(b"seen")
    harness.advance(1.9)
    assert consumer.payloads() == []
    harness.advance(0.2)
    assert consumer.payloads() == [b"seen"]
    assert client.end(txn).error == pb.InvalidTxnStatus


def test_a_clock_that_was_set_back_lengthens_no_transaction(harness, client, reopen):
    txn = client.begin(2000)
    client.send(b"never", txn)
    client.send(b"seen")
    harness.start_ms -= 400 * 86_400_000
    reopen("crash")
    consumer = harness.consumer(TOPIC)
    harness.advance(2.1)
    assert consumer.payloads() == [b"seen"]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_an_open_transaction_survives_a_restart(harness, client, reopen, how):
    consumer, ids = client.delivered(1)
    kept, late = client.begin(), client.begin(5000)
    client.send(b"1", kept)
    client.send(b"never", late)
    assert ack(consumer, kept, *ids) is None
    client = reopen(how)
    consumer = harness.consumer(TOPIC, kind="Shared")
    assert consumer.payloads() == []
    client.send(b"2", kept)
    client.send(b"3")
    client.commit(kept)
    assert consumer.payloads() == [b"1"]
    harness.advance(5)
    assert consumer.payloads() == [b"2", b"3"]
    assert backlog(harness) == (3, 3)
    assert client.begin() > late


def test_aborted_messages_are_written_as_a_whole_at_times(harness, client, reopen, monkeypatch):
    monkeypatch.setattr(topic_transactions, "DELTAS_MAX", 3)
    for _ in range(7):
        aborted_then_seen(client)
    assert len(harness.store.keys.get(aborted_key(TOPIC)).deltas) == 1
    reopen("crash")
    assert read(harness) == [b"seen"] * 7


def test_aborted_messages_are_trimmed_with_their_ledgers(harness, client):
    harness.consumer(TOPIC)
    txn = client.begin()
    client.send(b"never", txn)
    client.abort(txn)
    assert harness.store.keys.get(aborted_key(TOPIC)) is not None
    topic = harness.topic()
    topic.ledger.close_current(harness.now_ms)
    topic.delete_ledgers(1)
    assert harness.store.keys.get(aborted_key(TOPIC)) is None


def test_the_last_message_id_is_that_of_a_committed_message(harness, client):
    client.send(b"0")
    consumer = harness.consumer(TOPIC)
    aborted = client.begin()
    client.send(b"1", aborted)
    client.abort(aborted)
    opened = client.begin()
    client.send(b"2", opened)
    assert consumer.last_message_id().entryId == 0


def test_no_transaction_begins_where_they_are_off(make_harness, make_entry):
    peer = make_harness(transactions=False).peer()
    for name, fields in (("newTxn", {"txn_ttl_seconds": 1000}), ("tcClientConnectRequest", {"tc_id": 0})):
        assert peer.request(name, **fields).command.error.error == pb.NotAllowedError


# --- other features beside transactions ---
def aborted_then_seen(client: Client, count: int = 1) -> None:
    """Publish messages of an aborted transaction, then a message."""
    txn = client.begin()
    for _ in range(count):
        client.send(b"never", txn)
    client.abort(txn)
    client.send(b"seen")


def test_new_and_moved_subscriptions_count_no_aborted_messages(harness, client):
    client.send(b"first")
    aborted_then_seen(client, 3)
    consumer = harness.consumer(TOPIC)
    assert backlog(harness) == (2, 2)
    assert consumer.payloads() == [b"first", b"seen"]
    subscription = harness.subscription()
    subscription.skip_to(5)
    assert backlog(harness) == (0, 0)
    subscription.reset(0, lambda error: None)
    assert backlog(harness) == (2, 2)


def test_compaction_keeps_committed_messages_only(harness, client):
    for payload in (b"old", b"kept"):
        client.send(payload, partition_key="k")
    aborted, opened = client.begin(), client.begin()
    client.send(b"aborted", aborted, partition_key="k")
    client.abort(aborted)
    client.send(b"open", opened, partition_key="k")
    compact(harness)
    peer = harness.consumer(TOPIC, "reader", durable=False, read_compacted=True)
    assert peer.payloads() == [b"kept"]
    client.commit(opened)
    assert peer.payloads() == [b"open"]


def test_an_aborted_beginning_hides_no_compacted_message(harness, client):
    client.send(b"kept", partition_key="k")
    compact(harness)
    topic = harness.topic()
    topic.ledger.close_current(harness.now_ms)
    topic.delete_ledgers(1)
    aborted_then_seen(client)
    peer = harness.consumer(TOPIC, "reader", read_compacted=True)
    assert peer.payloads() == [b"kept", b"seen"]


def test_the_time_to_live_ends_at_an_open_transaction(harness, client):
    harness.broker.namespaces.set_policy("public", "default", "message_ttl_in_seconds", 10)
    consumer = harness.consumer(TOPIC, permits=0)
    txn = client.begin(300_000)
    client.send(b"1", txn)
    client.send(b"2")
    harness.advance(60)
    client.commit(txn)
    assert backlog(harness) == (2, 2)
    harness.advance(60)
    assert backlog(harness) == (0, 0)
    assert consumer.payloads() == []


def test_sequence_ids_of_transactions_are_known_after_a_restart(make_harness, make_entry):
    harness = make_harness(deduplication=True)
    client = Client(harness, make_entry)
    opened, aborted = client.begin(), client.begin()
    client.send(b"0", opened)
    client.send(b"1", aborted)
    client.abort(aborted)
    client.send(b"2")
    harness.crash()
    assert harness.topic().dedup.last_sequence_id("p") == 2


def test_a_deleted_topic_leaves_nothing_of_its_transactions(harness, client):
    consumer, ids = client.delivered(1)
    txn = client.begin()
    client.send(b"1", txn)
    client.send(b"2", txn, producer_id=2)
    assert ack(consumer, txn, *ids) is None
    aborted_then_seen(client)
    harness.actions.delete(NAME, True, lambda error: None)
    harness.producer(TOPIC).send(0)
    consumer = harness.consumer(TOPIC, kind="Shared")
    client.commit(txn)
    assert consumer.payloads() == [b"m0"]
    assert read(harness, OTHER) == [b"2"]
    assert harness.store.keys.get(aborted_key(TOPIC)) is None


def test_a_deleted_subscription_takes_its_acknowledgements_along(harness, client):
    consumer, ids = client.delivered(1)
    txn = client.begin()
    assert ack(consumer, txn, *ids) is None
    consumer.request("unsubscribe", consumer_id=1)
    again = harness.consumer(TOPIC, kind="Shared")
    client.commit(txn)
    assert again.payloads() == [b"0"]
    assert backlog(harness) == (1, 1)


def test_truncating_leaves_messages_of_open_transactions(harness, client):
    client.send(b"0")
    txn = client.begin()
    client.send(b"1", txn)
    harness.topic().truncate(lambda error: None)
    harness.poll()
    client.commit(txn)
    assert b"1" in read(harness)


def test_a_large_transaction_is_rewritten_as_ranges(harness, client, reopen, monkeypatch):
    monkeypatch.setattr(transactions, "OPERATIONS_REWRITTEN", 10)
    consumer, places = client.delivered(4)
    txn = client.begin()
    for place in places:
        assert ack(consumer, txn, place) is None
    for number in range(25):
        client.send(b"%d" % number, txn)
    value = harness.store.keys.get(f"transaction/{txn[1]:020}")
    assert len(value.deltas) < 10
    assert len(value.base) < 600
    client = reopen("crash")
    client.commit(txn)
    assert len(read(harness)) == 29
    assert backlog(harness) == (25, 25)


def test_a_message_that_was_not_stored_is_not_in_its_transaction(harness, client, reopen):
    """Its id is that of the next message, which must not be aborted with the transaction."""
    txn = client.begin()
    client.send(b"never", txn)
    harness.store.disk.refuse_entries(StoreFull("full"))
    client.send(b"refused", txn)
    harness.store.disk.refuse_entries(None)
    client.peer.resume_reading()
    harness.producer(TOPIC).send(0)
    client = reopen("crash")
    client.abort(txn)
    assert read(harness) == [b"m0"]


def test_a_producer_that_is_being_closed_refuses_no_message(harness, client):
    """The client sends it again when it has reconnected: an error would be final."""
    txn = client.begin()
    harness.auto_poll = False
    client.send(b"pending", txn)
    harness.store.disk.refuse_entries(StoreFull("full"))
    client.send(b"held", txn)
    client.send(b"held", txn)
    harness.poll()
    assert [frame.type for frame in client.peer.frames] == [Command.SEND_RECEIPT, Command.CLOSE_PRODUCER]


def test_a_transaction_beyond_the_limit_waits_for_the_end_of_another(make_harness, make_entry):
    client = Client(make_harness(active_transactions_max=2), make_entry)
    first, _ = client.begin(), client.begin()
    answer = client.peer.request("newTxn", txn_ttl_seconds=1000).command.newTxnResponse
    assert answer.error == pb.ServiceNotReady
    client.abort(first)
    client.begin()


def test_the_end_reaches_topics_that_cannot_be_loaded_later(harness, client, reopen, monkeypatch):
    txn = client.begin()
    client.send(b"1", txn)
    client.send(b"2", txn, producer_id=2)
    client = reopen("restart")
    find = harness.broker.topics.find
    harness.actions.unload(NAME)

    def broken(name: Any) -> Any:
        if name == NAME:
            raise Refused(pb.PersistenceError, "damaged")
        return find(name)

    monkeypatch.setattr(harness.broker.topics, "find", broken)
    client.commit(txn)
    assert read(harness, OTHER) == [b"2"]
    monkeypatch.undo()
    harness.advance(6)
    harness.run_slices()
    assert read(harness) == [b"1"]
    assert not harness.broker.coordinator.records.by_id


def test_a_transaction_is_its_owners(make_harness):
    harness = make_harness(token_secret_key=SECRET, super_user_roles=("root",))
    mine, other = (harness.peer(token=make_token(role, KEY, "HS256")) for role in ("root", "else"))
    txn = mine.begin_transaction()
    assert other.end_transaction(txn).error == pb.TransactionNotFound
    assert not mine.end_transaction(txn).HasField("error")
