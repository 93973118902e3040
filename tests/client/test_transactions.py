"""Transactions of the client, with a scripted broker that is their coordinator too, in virtual time."""

import asyncio
import gc
import inspect
import logging
import random
import socket
from functools import partial

import pytest
from scripted_broker import Peer, ScriptedBroker, Type, command
from test_consumer_handle import entry
from virtual import Clock, Network, VirtualLoop, pass_time
from waiting import eventually, loop_turns

import geminga
import geminga.asyncio
from geminga import errors
from geminga.client.io.runtime import LoopThread
from geminga.client.transactions import AsyncTransaction
from geminga.consumer.message import EntryAcks
from geminga.producer.interceptors import ProducerInterceptor
from geminga.producer.message import OutgoingMessage
from geminga.transactions import COORDINATORS_TOPIC, Part, TransactionState
from geminga.wire.batch import decode_batch
from geminga.wire.frames import encode_message
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"
REQUESTS = {
    Type.TC_CLIENT_CONNECT_REQUEST: ("tcClientConnectRequest", "tcClientConnectResponse"),
    Type.NEW_TXN: ("newTxn", "newTxnResponse"),
    Type.ADD_PARTITION_TO_TXN: ("addPartitionToTxn", "addPartitionToTxnResponse"),
    Type.ADD_SUBSCRIPTION_TO_TXN: ("addSubscriptionToTxn", "addSubscriptionToTxnResponse"),
    Type.END_TXN: ("endTxn", "endTxnResponse"),
}


class Coordinator(ScriptedBroker):
    """Broker with two coordinators. ``seen`` are the commands of transactions in their order, ``sends`` and
    ``acks`` those with a transaction; answers in ``withheld`` are kept in ``kept`` until `release`."""

    def __init__(self):
        super().__init__()
        self.partitions[COORDINATORS_TOPIC] = 2
        self.seen, self.sends, self.acks, self.kept = [], [], [], []
        self.withheld, self.failing = set(), {}
        """Types of requests without an answer, and those to refuse, with their error codes."""
        self.cutting = []
        """Types of requests at which the connection is cut, each once."""
        self.transactions = 0
        for type_, (body, answer) in REQUESTS.items():
            self.answers[type_] = partial(self.on_request, type_, body, answer)
        self.answers[Type.SEND] = self.on_send
        self.answers[Type.ACK] = self.on_ack

    def reply(self, type_, peer, answer):
        self.seen.append(Type.Type.Name(type_))
        if type_ in self.cutting:
            self.cutting.remove(type_)
            peer.drop()
        elif type_ in self.withheld:
            self.kept.append(answer)
        else:
            answer()

    def release(self):
        self.withheld.clear()
        kept, self.kept = self.kept, []
        for answer in kept:
            answer()

    def on_request(self, type_, body, answer, peer, frame):
        asked = getattr(frame.command, body)
        fields = {"request_id": asked.request_id}
        if type_ == Type.NEW_TXN:
            self.transactions += 1
            fields |= {"txnid_most_bits": asked.tc_id, "txnid_least_bits": self.transactions}
            self.limit_ms = asked.txn_ttl_seconds
        if type_ == Type.END_TXN:
            self.action = pb.TxnAction.Name(asked.txn_action)
        if type_ in self.failing:
            fields |= {"error": self.failing[type_], "message": "said so"}
        made = command(type_ + 1, answer, **fields)
        self.reply(type_, peer, lambda: peer.send(made))

    def on_send(self, peer, frame):
        self.sends.append(frame)
        self.reply(Type.SEND, peer, lambda: super(Coordinator, self).on_send(peer, frame))

    def on_ack(self, peer, frame):
        ack = frame.command.ack
        if not ack.HasField("txnid_least_bits"):
            return
        self.acks.append(ack)
        fields = {"consumer_id": ack.consumer_id, "request_id": ack.request_id}
        if Type.ACK in self.failing:
            fields |= {"error": self.failing[Type.ACK], "message": "said so"}
        made = command(Type.ACK_RESPONSE, "ackResponse", **fields)
        self.reply(Type.ACK, peer, lambda: peer.send(made))

    @property
    def ends(self):
        return self.seen.count("END_TXN")


MADE = {"broker", "client", "producer", "consumer", "message", "txn"}


def virtual(test):
    """Run an asyncio test with a `Coordinator` and a client in virtual time; it may also take a ``producer``,
    a ``consumer`` with the ``message`` that it received, and an open ``txn``."""
    names = inspect.signature(test).parameters

    async def made(broker, client):
        if "producer" in names:
            yield "producer", await client.create_producer(TOPIC)
        if "message" in names:
            consumer, (message,) = await received(broker, client, entry(b"in"))
            yield "message", message
            if "consumer" in names:
                yield "consumer", consumer
        if "txn" in names:
            yield "txn", await client.new_transaction()

    def run(**given):
        numbers = random.Random(1)
        network = Network(numbers)
        loop = VirtualLoop(numbers, Clock(), network, 0.2)

        async def main():
            broker = Coordinator()
            listener = socket.create_server(("127.0.0.1", 0))
            broker.port = listener.getsockname()[1]
            broker.server = await loop.create_server(lambda: Peer(broker), sock=listener)
            client = geminga.asyncio.Client(
                broker.url, operation_timeout_seconds=5, initial_backoff_interval_ms=10
            )
            try:
                found = {name: each async for name, each in made(broker, client)}
                await test(broker, client, **found, **given)
            finally:
                await client.close()
                await broker.stop()

        loop.play(1, main())

    others = [each for name, each in names.items() if name not in MADE]
    run.__name__, run.__signature__ = test.__name__, inspect.Signature(others)
    return run


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await pass_time(0.01)


async def received(broker, client, *entries, **options):
    """Subscribe and return the consumer with the messages of these entries."""
    consumer = await client.subscribe(TOPIC, "s", **options)
    await until(lambda: broker.count(Type.FLOW))
    for number, raw in enumerate(entries):
        broker.peers[-1].message(number, raw)
    count = sum(entry_count(raw) for raw in entries)
    return consumer, [await consumer.receive() for _ in range(count)]


def entry_count(raw):
    return parse_entry(raw).metadata.num_messages_in_batch


def metadata_of(send):
    return parse_entry(send.entry).metadata


@virtual
async def test_requests_are_sent_in_the_order_of_the_protocol(broker, client, producer, consumer, message):
    async with await client.new_transaction(timeout=90) as txn:
        assert txn.state is TransactionState.OPEN
        await producer.send(b"one", txn=txn)
        await producer.send(b"two", {"a": "b"}, "key", txn=txn)
        await consumer.acknowledge(message, txn=txn)
    assert broker.seen == [
        "TC_CLIENT_CONNECT_REQUEST", "NEW_TXN", "ADD_PARTITION_TO_TXN", "SEND", "SEND",
        "ADD_SUBSCRIPTION_TO_TXN", "ACK", "END_TXN",
    ]  # fmt: skip
    assert (broker.limit_ms, broker.action, txn.state) == (90_000, "COMMIT", TransactionState.COMMITTED)
    for send in broker.sends:
        assert (send.txnid_most_bits, send.txnid_least_bits) == txn.id
        metadata = metadata_of(send)
        assert (metadata.txnid_most_bits, metadata.txnid_least_bits) == txn.id
    (ack,) = broker.acks
    assert (ack.txnid_most_bits, ack.txnid_least_bits) == txn.id


@virtual
async def test_sends_wait_until_the_coordinator_knows_the_partition_and_the_end_waits_for_receipts(
    broker, client, producer, txn
):
    broker.withheld = {Type.ADD_PARTITION_TO_TXN, Type.SEND}
    producer.send_async(b"x", None, txn=txn)
    committing = asyncio.ensure_future(txn.commit())
    await until(lambda: broker.kept)
    await pass_time(1)
    assert not broker.sends
    broker.withheld = {Type.SEND}
    broker.kept.pop()()
    await until(lambda: broker.sends)
    await pass_time(1)
    assert (broker.ends, txn.state) == (0, TransactionState.COMMITTING)
    with pytest.raises(errors.InvalidTxnStatusError, match="it is COMMITTING"):
        await producer.send(b"late", txn=txn)
    broker.release()
    await committing
    assert (broker.ends, txn.state) == (1, TransactionState.COMMITTED)


@virtual
async def test_messages_behind_a_held_one_keep_their_order(broker, client):
    producer = await client.create_producer(TOPIC, batching_enabled=False)
    txn = await client.new_transaction()
    broker.withheld = {Type.ADD_PARTITION_TO_TXN}
    producer.send_async(b"first", None, txn=txn)
    producer.send_async(b"second", None)
    await pass_time(1)
    assert not broker.sends
    broker.release()
    await producer.flush()
    assert [send.sequence_id for send in broker.sends] == [0, 1]
    assert [metadata_of(send).HasField("txnid_least_bits") for send in broker.sends] == [True, False]
    await txn.commit()


@virtual
async def test_messages_of_different_transactions_share_no_batch(broker, client):
    producer = await client.create_producer(TOPIC, batching_max_publish_delay_ms=100)
    first, second = await client.new_transaction(), await client.new_transaction()
    for txn in (first, first, second, None, None, second, None):
        producer.send_async(b"x", None, txn=txn)
    await first.commit()
    await second.commit()
    await producer.flush()
    assert [(send.txnid_least_bits, send.num_messages) for send in broker.sends] == [
        (first.id.least_bits, 2), (second.id.least_bits, 1), (0, 2), (second.id.least_bits, 1), (0, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "unbatched"])
@virtual
async def test_bytes_with_and_without_a_key_keep_their_order_in_a_transaction(broker, client, batching):
    producer = await client.create_producer(TOPIC, batching_enabled=batching)
    txn, called = await client.new_transaction(), []
    for number in range(60):
        key = "k" if number % 3 == 2 else None
        producer.send_async(
            b"%d" % number, lambda result, _, number=number: called.append(number), partition_key=key, txn=txn
        )
    await txn.commit()
    assert called == list(range(60))
    entries = [parse_entry(send.entry) for send in broker.sends]
    if batching:
        counts = [each.metadata.num_messages_in_batch for each in entries]
        batches = [decode_batch(each.payload, n) for each, n in zip(entries, counts, strict=True)]
        payloads = [message.payload for batch in batches for message in batch]
    else:
        payloads = [each.payload for each in entries]
    assert payloads == [b"%d" % number for number in range(60)]
    assert {send.txnid_least_bits for send in broker.sends} == {txn.id.least_bits}


@virtual
async def test_messages_of_one_key_and_different_transactions_share_no_batch(broker, client):
    producer = await client.create_producer(TOPIC, batching_type=geminga.BatchingType.KeyBased)
    first, second = await client.new_transaction(), await client.new_transaction()
    for txn in (first, second, None):
        for key in "abab":
            producer.send_async(b"x", None, partition_key=key, txn=txn)
    await asyncio.gather(first.commit(), second.commit(), producer.flush())
    numbers = [(send.txnid_least_bits, send.num_messages) for send in broker.sends]
    assert sorted(numbers) == [(0, 2)] * 2 + [(first.id.least_bits, 2)] * 2 + [(second.id.least_bits, 2)] * 2


@virtual
async def test_many_messages_belong_to_a_transaction(broker, client, producer):
    outcomes = []
    async with await client.new_transaction() as txn:
        await producer.send_many([b"a"] * 3, txn=txn)
        await producer.send_many([b"b"] * 2, outcomes.append, keys=["k", "l"], txn=txn)
        await producer.send_many([b"c"] * 2, [lambda *outcome: outcomes.append(outcome), None], txn=txn)
    assert sum(send.num_messages for send in broker.sends) == 7
    assert {send.txnid_least_bits for send in broker.sends} == {txn.id.least_bits}
    assert {metadata_of(send).txnid_least_bits for send in broker.sends} == {txn.id.least_bits}
    assert len(outcomes) == 2
    assert broker.seen.count("ADD_PARTITION_TO_TXN") == 1


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("partitions", [0, 3])
@virtual
async def test_many_messages_of_two_transactions_keep_their_order_on_each_partition(
    broker, client, partitions, batched
):
    broker.partitions[TOPIC] = partitions
    producer = await client.create_producer(TOPIC, batching_enabled=batched)
    first, second = await client.new_transaction(), await client.new_transaction()
    for number in range(60):
        txn = (first, second, None)[number // 5 % 3]
        key = "k" if number % 2 else None
        producer.send_async(b"%d" % number, None, {"a": "b"} if key else None, key, txn=txn)
    await asyncio.gather(first.commit(), second.commit(), producer.flush())
    found = {}
    for send in broker.sends:
        stored = parse_entry(send.entry)
        metadata, payload = stored.metadata, stored.payload
        rows = [bytes(payload)]
        if metadata.HasField("num_messages_in_batch"):
            rows = [bytes(row.payload) for row in decode_batch(bytes(payload), send.num_messages)]
        found.setdefault(send.producer_id, []).extend((int(row), metadata.txnid_least_bits) for row in rows)
    for rows in found.values():
        assert rows == sorted(rows)
    ids = [first.id.least_bits, second.id.least_bits, 0]
    every = sorted(row for rows in found.values() for row in rows)
    assert every == [(number, ids[number // 5 % 3]) for number in range(60)]


@virtual
async def test_a_new_message_of_an_interceptor_belongs_to_the_transaction(broker, client):
    class Replacing(ProducerInterceptor):
        def before_send(self, producer, message):
            return OutgoingMessage(message.payload + b"!")

    producer = await client.create_producer(TOPIC, interceptors=[Replacing()])
    async with await client.new_transaction() as txn:
        await producer.send(b"x", txn=txn)
        await producer.send_many([b"y"] * 2, txn=txn)
    assert [metadata_of(send).txnid_least_bits for send in broker.sends] == [txn.id.least_bits] * 2


@virtual
async def test_a_chunked_message_belongs_to_a_transaction_in_all_its_chunks(broker, client):
    producer = await client.create_producer(
        TOPIC, batching_enabled=False, chunking_enabled=True, chunk_max_message_size=1000
    )
    async with await client.new_transaction() as txn:
        await producer.send(b"x" * 2500, txn=txn)
    assert len(broker.sends) > 2
    assert {metadata_of(send).txnid_least_bits for send in broker.sends} == {txn.id.least_bits}


@virtual
async def test_an_exception_in_the_block_aborts_the_transaction(broker, client, producer, txn):

    async def block():
        async with txn:
            await producer.send(b"x", txn=txn)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    assert (broker.action, txn.state) == ("ABORT", TransactionState.ABORTED)
    with pytest.raises(errors.InvalidTxnStatusError, match="takes no more"):
        producer.send_async(b"x", None, txn=txn)
    with pytest.raises(errors.InvalidTxnStatusError, match="cannot be committed"):
        await txn.commit()


@virtual
async def test_a_block_that_ended_its_transaction_does_not_end_it_again(broker, client):
    for end in ("commit", "abort"):
        async with await client.new_transaction() as txn:
            await getattr(txn, end)()
    assert broker.ends == 2


@virtual
async def test_a_failed_abort_does_not_hide_the_exception_of_the_block(broker, client, caplog):
    broker.failing[Type.END_TXN] = pb.TransactionNotFound
    with caplog.at_level(logging.WARNING, "geminga"), pytest.raises(ZeroDivisionError):
        async with await client.new_transaction() as txn:
            raise ZeroDivisionError
    assert txn.state is TransactionState.ERROR
    assert "no abort after an exception, but at the time limit" in caplog.text


UNKNOWN = [
    (pb.TransactionNotFound, errors.TransactionNotFound),
    (pb.InvalidTxnStatus, errors.InvalidTxnStatusError),
]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *UNKNOWN,
        (pb.TransactionConflict, errors.TransactionConflict),
        (pb.TransactionCoordinatorNotFound, errors.TransactionCoordinatorNotFoundError),
        (pb.AuthorizationError, errors.AuthorizationError),
    ],
)
@pytest.mark.parametrize("where", [Type.NEW_TXN, Type.TC_CLIENT_CONNECT_REQUEST])
@virtual
async def test_a_refusal_to_begin_is_raised(broker, client, code, kind, where):
    broker.failing[where] = code
    with pytest.raises(kind, match="said so"):
        await client.new_transaction()
    del broker.failing[where]
    assert (await client.new_transaction()).state is TransactionState.OPEN


@pytest.mark.parametrize(("code", "kind"), UNKNOWN)
@virtual
async def test_a_coordinator_that_does_not_know_the_transaction_fails_its_operations(
    broker, client, producer, consumer, message, code, kind
):
    broker.failing = {Type.ADD_PARTITION_TO_TXN: code, Type.ADD_SUBSCRIPTION_TO_TXN: code}
    txn = await client.new_transaction()
    with pytest.raises(kind):
        await producer.send(b"x", txn=txn)
    with pytest.raises(errors.TransactionHasOperationFailed) as raised:
        await txn.commit()
    assert isinstance(raised.value.__cause__, kind)
    assert (broker.sends, broker.action) == ([], "ABORT")
    txn = await client.new_transaction()
    await consumer.acknowledge(message, txn=txn)
    with pytest.raises(errors.TransactionHasOperationFailed):
        await txn.commit()
    assert not broker.acks
    await producer.send(b"outside")  # the producer is as before


@virtual
async def test_a_conflicting_acknowledgement_aborts_at_the_commit(broker, client, consumer, message):
    broker.failing[Type.ACK] = pb.TransactionConflict
    txn = await client.new_transaction()
    await consumer.acknowledge(message, txn=txn)
    with pytest.raises(errors.TransactionHasOperationFailed, match="said so") as raised:
        await txn.commit()
    assert isinstance(raised.value.__cause__, errors.TransactionConflict)
    assert (broker.action, txn.state) == ("ABORT", TransactionState.ABORTED)


@pytest.mark.parametrize(("code", "kind"), UNKNOWN)
@pytest.mark.parametrize("end", ["commit", "abort"])
@virtual
async def test_an_end_that_the_coordinator_refuses_leaves_the_transaction_in_error(
    broker, client, txn, code, kind, end
):
    broker.failing[Type.END_TXN] = code
    with pytest.raises(kind):
        await getattr(txn, end)()
    assert txn.state is TransactionState.ERROR


@pytest.mark.parametrize("step", [*REQUESTS, Type.SEND])
@virtual
async def test_a_transaction_is_committed_over_a_connection_cut_at_any_step(broker, client, producer, step):
    broker.cutting = [step]
    async with await client.new_transaction() as txn:
        await producer.send(b"x", txn=txn)
        if step == Type.ADD_SUBSCRIPTION_TO_TXN:
            joined = []
            txn.core.begin(Part(TOPIC, "s"), 0, joined.append)
            await until(lambda: joined == [None])
    assert not broker.cutting
    assert txn.state is TransactionState.COMMITTED
    assert broker.seen[-1] == "END_TXN"


@virtual
async def test_an_acknowledgement_without_a_receipt_before_a_cut_aborts_the_transaction(
    broker, client, consumer, message
):
    broker.cutting = [Type.ACK]
    txn = await client.new_transaction()
    await consumer.acknowledge(message, txn=txn)
    with pytest.raises(errors.TransactionHasOperationFailed) as raised:
        await txn.commit()
    assert isinstance(raised.value.__cause__, errors.NotConnected)
    assert broker.action == "ABORT"


@virtual
async def test_a_commit_whose_answer_was_lost_may_have_happened(broker, client, txn):
    broker.cutting = [Type.END_TXN]
    broker.failing[Type.END_TXN] = pb.TransactionNotFound
    with pytest.raises(errors.TransactionNotFound, match="may have committed it"):
        await txn.commit()
    assert txn.state is TransactionState.ERROR


@virtual
async def test_an_abort_whose_answer_was_lost_has_happened(broker, client, txn):
    broker.cutting = [Type.END_TXN]
    broker.failing[Type.END_TXN] = pb.TransactionNotFound
    await txn.abort()
    assert txn.state is TransactionState.ABORTED


async def ends_without_an_answer(broker, end, match=None):
    broker.withheld = {Type.END_TXN}
    with pytest.raises(errors.Timeout, match=match):
        await end()


@virtual
async def test_a_commit_without_an_answer_times_out_and_can_be_repeated(broker, client, txn):
    await ends_without_an_answer(broker, txn.commit, "committing transaction")
    assert txn.state is TransactionState.COMMITTING
    broker.withheld = set()
    await txn.commit()
    assert txn.state is TransactionState.COMMITTED


@virtual
async def test_a_repeated_commit_that_finds_no_transaction_may_have_happened_before(broker, client, txn):
    await ends_without_an_answer(broker, txn.commit)
    broker.withheld = set()
    broker.failing[Type.END_TXN] = pb.TransactionNotFound
    with pytest.raises(errors.TransactionNotFound, match="may have committed it"):
        await txn.commit()


@pytest.mark.parametrize("withheld", [Type.SEND, Type.END_TXN])
@virtual
async def test_only_one_of_two_commits_at_once_ends_the_transaction(broker, client, producer, txn, withheld):
    broker.withheld = {withheld}
    producer.send_async(b"x", None, txn=txn)
    both = [asyncio.ensure_future(txn.commit()) for _ in range(2)]
    await until(lambda: broker.kept)
    await pass_time(1)
    broker.release()
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert first is None
    assert isinstance(second, errors.InvalidTxnStatusError)
    assert "it is COMMITTED" in str(second)
    assert (broker.ends, broker.action, txn.state) == (1, "COMMIT", TransactionState.COMMITTED)


@virtual
async def test_a_message_after_the_seal_fails_and_does_not_change_the_end(broker, client):
    producer = await client.create_producer(TOPIC, max_pending_messages=1, block_if_queue_full=True)
    txn = await client.new_transaction()
    waiting = [asyncio.ensure_future(producer.send(b"x", txn=txn)) for _ in range(4)]
    await loop_turns()
    await ends_without_an_answer(broker, txn.commit)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(outcome, errors.InvalidTxnStatusError) for outcome in outcomes)
    broker.withheld = set()
    await txn.commit()
    assert (broker.action, txn.state) == ("COMMIT", TransactionState.COMMITTED)


@virtual
async def test_a_commit_without_an_answer_has_nothing_delivered_again(broker, client, consumer, message, txn):
    await consumer.acknowledge(message, txn=txn)
    await ends_without_an_answer(broker, txn.commit)
    with pytest.raises(errors.InvalidTxnStatusError):
        await txn.abort()
    broker.withheld = set()
    await txn.commit()
    await pass_time(1)
    assert broker.count(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES) == 0


@virtual
async def test_a_repeated_abort_has_messages_delivered_again_and_one_after_the_end_does_not(
    broker, client, consumer, message, txn
):
    await consumer.acknowledge(message, txn=txn)
    await ends_without_an_answer(broker, txn.abort)
    await pass_time(1)
    before = broker.count(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    broker.withheld = set()
    await txn.abort()
    with pytest.raises(errors.InvalidTxnStatusError):
        await txn.abort()
    await pass_time(1)
    assert broker.count(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES) == before + 1


@virtual
async def test_an_exception_after_the_time_limit_has_messages_delivered_again(
    broker, client, consumer, message
):

    async def block():
        async with await client.new_transaction(timeout=10) as txn:
            await consumer.acknowledge(message, txn=txn)
            await pass_time(11)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    await pass_time(1)
    assert (broker.ends, broker.count(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES)) == (0, 1)


@virtual
async def test_a_consumer_closed_before_the_commit_aborts_it(broker, client, consumer, message, txn):
    await consumer.acknowledge(message, txn=txn)
    await consumer.close()
    with pytest.raises(errors.TransactionHasOperationFailed, match=r"consumer of .*/t is CLOS"):
        await txn.commit()
    assert (broker.acks, broker.action) == ([], "ABORT")


@virtual
async def test_a_coordinator_that_has_moved_is_looked_up_again(broker, client, txn):
    lookups = broker.count(Type.LOOKUP)
    broker.failing[Type.END_TXN] = pb.TransactionCoordinatorNotFound
    committing = asyncio.ensure_future(txn.commit())
    await until(lambda: broker.ends)
    broker.failing.clear()
    await committing
    assert broker.count(Type.LOOKUP) > lookups
    assert broker.seen.count("TC_CLIENT_CONNECT_REQUEST") > 1


@virtual
async def test_after_its_time_limit_a_transaction_refuses_everything_without_a_request(
    broker, client, producer, consumer, message
):
    txn = await client.new_transaction(timeout=10)
    await producer.send(b"x", txn=txn)
    await pass_time(10)
    assert txn.state is TransactionState.TIME_OUT
    with pytest.raises(errors.InvalidTxnStatusError, match="time limit has passed"):
        await producer.send(b"y", txn=txn)
    with pytest.raises(errors.InvalidTxnStatusError, match="time limit has passed"):
        await consumer.acknowledge(message, txn=txn)
    with pytest.raises(errors.InvalidTxnStatusError, match="cannot be committed"):
        await txn.commit()
    with pytest.raises(errors.InvalidTxnStatusError, match="cannot be committed"):
        async with txn:
            pass
    assert broker.ends == 0


@virtual
async def test_a_commit_whose_receipts_do_not_arrive_in_time_aborts(broker, client, producer):
    txn = await client.new_transaction(timeout=10)
    broker.withheld = {Type.SEND}
    producer.send_async(b"x", None, txn=txn)
    with pytest.raises(errors.TransactionHasOperationFailed, match="1 receipts did not arrive"):
        await txn.commit()
    assert broker.action == "ABORT"


@virtual
async def test_a_refused_message_aborts_at_the_commit(broker, client):
    producer = await client.create_producer(TOPIC, max_pending_messages=1)
    txn = await client.new_transaction()
    outcomes = []
    for _ in range(3):
        producer.send_async(b"x", lambda result, _: outcomes.append(result), txn=txn)
    with pytest.raises(errors.TransactionHasOperationFailed) as raised:
        await txn.commit()
    assert isinstance(raised.value.__cause__, errors.ProducerQueueIsFull)
    assert sorted(outcomes) == [geminga.Result.Ok, *[geminga.Result.ProducerQueueIsFull] * 2]


@virtual
async def test_without_coordinators_the_error_names_the_setting(broker, client):
    broker.partitions[COORDINATORS_TOPIC] = 0
    with pytest.raises(errors.OperationNotSupported, match="transactionCoordinatorEnabled=true"):
        await client.new_transaction()
    broker.partitions[COORDINATORS_TOPIC] = 2  # switched off later: the topic stays
    broker.failing[Type.TC_CLIENT_CONNECT_REQUEST] = pb.NotAllowedError
    with pytest.raises(errors.OperationNotSupported, match="transactionCoordinatorEnabled=true"):
        await client.new_transaction()


@virtual
async def test_wrong_arguments_are_refused_with_their_names(broker, client):
    for timeout in (0, -1, "60", None):
        with pytest.raises(errors.InvalidConfiguration, match="timeout"):
            await client.new_transaction(timeout)
    producer = await client.create_producer(TOPIC)
    with pytest.raises(errors.InvalidConfiguration, match="txn"):
        await producer.send(b"x", txn="txn")
    other = geminga.asyncio.Client(broker.url)
    with pytest.raises(errors.UsageError, match="another client"):
        await producer.send(b"x", txn=await other.new_transaction())
    await other.close()


@virtual
async def test_each_message_of_a_batch_is_acknowledged_once_and_by_its_index(broker, client):
    consumer, messages = await received(broker, client, entry(b"a", b"b", b"c"), entry(b"d"))
    txn = await client.new_transaction()
    await consumer.acknowledge(messages[0], txn=txn)
    await until(lambda: len(broker.acks) == 1)
    await consumer.acknowledge([messages[0], messages[1].message_id(), messages[3]], txn=txn)
    await until(lambda: len(broker.acks) == 2)
    await consumer.acknowledge(messages[0], txn=txn)
    await consumer.acknowledge(messages[2], txn=txn)
    await txn.commit()
    ids = [[(i.entryId, list(i.ack_set), i.batch_size) for i in ack.message_id] for ack in broker.acks]
    assert ids == [[(0, [0b110], 3)], [(0, [0b101], 3), (1, [], 0)], [(0, [0b011], 3)]]


@virtual
async def test_the_id_of_a_whole_entry_acknowledges_the_rest_of_its_batch(broker, client):
    consumer, messages = await received(broker, client, entry(b"a", b"b", b"c"))
    async with await client.new_transaction() as txn:
        await consumer.acknowledge(messages[1], txn=txn)
        await until(lambda: broker.acks)
        given = messages[0].message_id()
        whole = geminga.MessageId(given.partition, given.ledger_id, given.entry_id)
        await consumer.acknowledge(whole, txn=txn)
        await consumer.acknowledge(messages[2], txn=txn)
    ids = [[(i.entryId, list(i.ack_set), i.batch_size) for i in ack.message_id] for ack in broker.acks]
    assert ids == [[(0, [0b101], 3)], [(0, [0b010], 3)]]


@virtual
async def test_acknowledgements_of_one_moment_share_a_command(broker, client):
    consumer, messages = await received(broker, client, *[entry(b"%d" % n) for n in range(50)])
    async with await client.new_transaction() as txn:
        for message in messages:
            await consumer.acknowledge(message, txn=txn)
    assert [len(ack.message_id) for ack in broker.acks] == [50]


@virtual
async def test_a_cumulative_acknowledgement_in_a_transaction_ends_inside_a_batch(broker, client):
    consumer, messages = await received(broker, client, entry(b"a"), entry(b"b", b"c", b"d"))
    async with await client.new_transaction() as txn:
        await consumer.acknowledge_cumulative(messages[2], txn=txn)
    (ack,) = broker.acks
    assert ack.ack_type == pb.CommandAck.Cumulative
    assert [(i.entryId, list(i.ack_set), i.batch_size) for i in ack.message_id] == [(1, [0b100], 3)]


@pytest.mark.parametrize("kind", [geminga.ConsumerType.Exclusive, geminga.ConsumerType.Shared])
@virtual
async def test_an_abort_has_an_only_consumer_receive_everything_again(broker, client, kind):
    consumer, messages = await received(broker, client, entry(b"a", b"b"), entry(b"c"), consumer_type=kind)
    txn = await client.new_transaction()
    await consumer.acknowledge(messages[0], txn=txn)
    await txn.abort()
    await pass_time(1)
    alone = kind is geminga.ConsumerType.Exclusive
    assert broker.count(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES) == alone
    # The broker delivers the batch again: all of it, although a message was acknowledged in the transaction.
    epoch = {"consumer_epoch": 1} if alone else {}
    again = entry(b"a", b"b")
    broker.peers[-1].transport.write(redelivered(again, **epoch))
    assert [(await consumer.receive()).data() for _ in range(2)] == [b"a", b"b"]


def redelivered(raw, **fields):
    return encode_message(0, 1, 0, -1, len(raw), redelivery_count=1, **fields) + raw


@pytest.mark.parametrize("end", ["abort", "abort after a redelivery", "time limit"])
@virtual
async def test_a_batch_acknowledged_in_part_is_whole_after_a_transaction_without_a_commit(
    broker, client, end
):
    shared = {"consumer_type": geminga.ConsumerType.Shared}
    consumer, messages = await received(broker, client, entry(b"a", b"b"), **shared)
    txn = await client.new_transaction(timeout=5)
    await consumer.acknowledge(messages[0], txn=txn)
    await until(lambda: broker.acks)
    if end == "abort after a redelivery":
        # While the acknowledgement is pending, the broker delivers the rest of the batch.
        broker.peers[-1].transport.write(redelivered(entry(b"a", b"b"), ack_set=[0b10]))
        assert (await consumer.receive()).data() == b"b"
    await (pass_time(6) if end == "time limit" else txn.abort())
    broker.peers[-1].transport.write(redelivered(entry(b"a", b"b")))
    assert [(await consumer.receive()).data() for _ in range(2)] == [b"a", b"b"]


@virtual
async def test_a_transaction_that_is_never_ended_leaves_nothing_in_its_producer_and_consumer(
    broker, client, producer, consumer, message
):

    def kept():
        gc.collect()
        return sum(isinstance(each, (AsyncTransaction, EntryAcks)) for each in gc.get_objects())

    before = kept()
    for _ in range(20):
        txn = await client.new_transaction(timeout=1)
        await producer.send(b"x", txn=txn)
        await consumer.acknowledge(message, txn=txn)
        await pass_time(1)
    assert kept() - before <= 1  # the last one


@virtual
async def test_a_drain_does_not_wait_for_messages_acknowledged_in_a_transaction(broker, client):
    consumer, messages = await received(broker, client, entry(b"a", b"b"), entry(b"c"))
    async with await client.new_transaction() as txn:
        for message in messages:
            await consumer.acknowledge(message, txn=txn)
            await pass_time(0.1)
    assert await consumer.drain() == 0


def test_threads_commit_and_abort_with_a_block():
    pyarrow = pytest.importorskip("pyarrow")
    runtime = LoopThread("scripted-broker")
    broker = Coordinator()
    runtime.call(broker.start(), 10)
    try:
        with geminga.Client(broker.url, operation_timeout_seconds=10) as client:
            producer = client.create_producer(TOPIC)
            consumer = client.subscribe(TOPIC, "s")
            eventually(lambda: broker.count(Type.FLOW))

            async def deliver():
                broker.peers[-1].message(0, entry(b"in"))

            runtime.call(deliver(), 10)
            message = consumer.receive()
            got = []
            with client.new_transaction() as txn:
                producer.send(b"a", txn=txn)
                producer.send_async(b"b", lambda result, _: got.append(result), txn=txn)
                producer.send_many([b"c", b"d"], txn=txn)
                producer.send_table(pyarrow.table({"value": [b"f"] * 4}), txn=txn)
                consumer.acknowledge(message, txn=txn)
                assert (txn.id, txn.state) == (txn.transaction.id, geminga.TransactionState.OPEN)
            assert (broker.action, got) == ("COMMIT", [geminga.Result.Ok])
            assert (sum(send.num_messages for send in broker.sends), len(broker.acks)) == (8, 1)
            assert {metadata_of(send).txnid_least_bits for send in broker.sends} == {txn.id.least_bits}
            with pytest.raises(geminga.MessageTooBig), client.new_transaction() as txn:
                producer.send(b"e" * 6_000_000, txn=txn)
            assert (broker.action, txn.state) == ("ABORT", geminga.TransactionState.ABORTED)
            txn = client.new_transaction()
            with pytest.raises(geminga.MessageTooBig):
                producer.send_table(pyarrow.table({"value": [b"x", b"y" * 6_000_000]}), txn=txn)
            with pytest.raises(geminga.TransactionHasOperationFailed):  # a part of the table was sent
                txn.commit()
            txn = client.new_transaction(timeout=10)
            consumer.acknowledge_cumulative(message, txn=txn)
            txn.commit()
            assert len(broker.acks) == 2
    finally:
        runtime.call(broker.stop(), 10)
        runtime.close()


def test_the_error_about_a_broker_without_transactions_names_its_setting():
    is_off = pytest.raises(errors.OperationNotSupported, match="its setting transactions is off")
    with geminga.embedded(transactions=False) as broker, broker.client() as client, is_off:
        client.new_transaction()


def test_a_time_limit_that_the_broker_refuses_is_named_before_the_setting():
    names = pytest.raises(errors.OperationNotSupported, match=r"^the broker refused .*: 1 to 604800000")
    with geminga.embedded() as broker, broker.client() as client, names:
        client.new_transaction(timeout=8 * 24 * 3600)


def test_a_view_with_a_schema_keeps_it_in_a_transaction():
    with geminga.embedded() as broker, broker.client() as client:
        consumer = client.subscribe(TOPIC, "s", schema=geminga.schema.StringSchema())
        producer = client.create_producer(TOPIC)
        with client.new_transaction() as txn:
            for _ in range(2):
                producer.send_async(b"bytes", None, txn=txn)
            view = producer.with_schema(geminga.schema.StringSchema())
            view.send_async("text", None, txn=txn)
            with pytest.raises(TypeError):
                view.send_async(b"bytes", None, txn=txn)
        assert [consumer.receive(5000).value() for _ in range(3)] == ["bytes", "bytes", "text"]
