"""The engine: wake-ups, timers, blocking, forks, and tokens of every kind."""

import asyncio
import os
import threading
import time

import pytest

import geminga
from geminga import errors
from geminga.client.publisher import FullToken, Waiter, deliver, fail_token
from geminga.errors import Result
from geminga.ids import MessageId
from geminga.producer.chunking import ChunkedMessage, ChunkPart
from geminga.producer.operation import SendOperation
from geminga.wire.frames import encode_send_receipt
from geminga.wire.proto import pulsar_wire_pb2 as pb


class Partition:
    index = 4


def settled(tokens, *, error=None, place=(7, 8), is_batch=True, chunk=None):
    operation = SendOperation(
        None, tokens, sequence_id=0, highest_sequence_id=len(tokens) - 1, size=0, permits=0, opened_at=0.0,
        deadline=0.0, is_batch=is_batch, chunk=chunk,
    )  # fmt: skip
    operation.partition = Partition
    operation.error = error
    operation.ledger_id, operation.entry_id = place
    return operation


# --- tokens -----------------------------------------------------------------------------------------


def test_a_batchs_callbacks_get_their_ids_in_order():
    got = []
    deliver([settled([lambda r, m: got.append((r, m)), None, lambda r, m: got.append((r, m))])])
    assert got == [(Result.Ok, MessageId(4, 7, 8, 0)), (Result.Ok, MessageId(4, 7, 8, 2))]
    assert [m.batch_size for _, m in got] == [3, 3]


def test_a_plain_messages_id_has_no_batch_index():
    got = []
    deliver([settled([lambda r, m: got.append(m)], is_batch=False)])
    assert got == [MessageId(4, 7, 8, -1)]


def test_a_duplicates_id_is_the_earliest():
    got = []
    deliver([settled([lambda r, m: got.append(m)] * 2, place=(-1, -1))])
    assert got == [MessageId.earliest] * 2


def test_a_message_in_chunks_knows_its_first_one():
    whole = ChunkedMessage(2, 10)
    whole.first_ledger_id, whole.first_entry_id = 7, 5
    got = []
    deliver([settled([], is_batch=False, chunk=ChunkPart(whole, 0))])
    deliver([settled([lambda r, m: got.append(m)], is_batch=False, chunk=ChunkPart(whole, 1))])
    assert got[0].first_chunk == MessageId(4, 7, 5)


def test_errors_reach_every_kind_of_token():
    async def scene():
        got = []
        error = errors.Timeout("late")
        waiter, future = Waiter(), asyncio.get_running_loop().create_future()
        full = FullToken(lambda message_id, reason: got.append(reason))
        callback = lambda r, m: got.append((r, m))  # noqa: E731
        deliver([settled([waiter, future, full, callback, None], error=error)])
        waiter.wait()
        assert waiter.error is error
        with pytest.raises(errors.Timeout):
            await future
        assert got == [error, (Result.Timeout, MessageId.earliest)]

    asyncio.run(scene())


def test_receipts_reach_every_kind_of_token():
    async def scene():
        got = []
        waiter, future = Waiter(), asyncio.get_running_loop().create_future()
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        deliver([settled([waiter, future, FullToken(lambda m, e: got.append((m, e))), cancelled])])
        waiter.wait()
        assert waiter.message_id == MessageId(4, 7, 8, 0)
        assert await future == MessageId(4, 7, 8, 1)
        assert got == [(MessageId(4, 7, 8, 2), None)]

    asyncio.run(scene())


def test_a_callback_that_raises_harms_nobody(caplog):
    got = []

    def broken(result, message_id):
        raise ValueError("mine")

    deliver([settled([broken, lambda r, m: got.append(r)])])
    fail_token(broken, errors.Timeout("x"))
    assert got == [Result.Ok]
    assert caplog.text.count("a send callback raised") == 2


# --- against a scripted broker ----------------------------------------------------------------------


@pytest.fixture
def client(broker):
    made = geminga.Client(broker.url, operation_timeout_seconds=5)
    yield made
    made.close()


class Held:
    """Receipts that are withheld until they are let go."""

    def __init__(self, broker):
        self._held = []
        self._broker = broker
        self._answer = broker.on_send
        broker.answers[pb.BaseCommand.SEND] = lambda peer, frame: self._held.append((peer, frame))

    def count(self):
        return sum(frame.send.num_messages for _, frame in self._held)

    def release(self):
        async def go():
            held, self._held[:] = list(self._held), []
            for peer, frame in held:
                self._answer(peer, frame)

        self._broker.run(go(), 5)

    def stop(self):
        self._broker.answers[pb.BaseCommand.SEND] = self._answer
        self.release()


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.002)


def test_a_full_queue_refuses_by_callback_or_by_exception(broker, client):
    held = Held(broker)
    producer = client.create_producer("t", max_pending_messages=3)
    got = []
    for _ in range(4):
        producer.send_async(b"x", lambda r, m: got.append(r))
    assert got == [Result.ProducerQueueIsFull]
    with pytest.raises(errors.ProducerQueueIsFull, match="max_pending_messages=3"):
        producer.send_async(b"x", None)
    with pytest.raises(errors.ProducerQueueIsFull):
        producer.send(b"x")
    until(lambda: held.count() == 3)
    held.stop()
    producer.flush()
    assert got == [Result.ProducerQueueIsFull] + [Result.Ok] * 3
    producer.send(b"x")


def test_a_full_queue_blocks_every_thread_and_lets_all_go_on(broker, client):
    held = Held(broker)
    producer = client.create_producer("t", max_pending_messages=4, block_if_queue_full=True)
    got, each = [], 25

    def work():
        for _ in range(each):
            producer.send_async(b"x", lambda r, m: got.append(r))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: held.count() == 4)
    time.sleep(0.05)
    assert held.count() == 4  # nobody got past the limit
    held.stop()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    producer.flush()
    assert got == [Result.Ok] * (4 * each)


def test_used_up_memory_refuses_or_blocks_over_all_producers_of_a_client(broker):
    with geminga.Client(broker.url, memory_limit_bytes=1000) as client:
        held = Held(broker)
        first = client.create_producer("a")
        second = client.create_producer("b", block_if_queue_full=True)
        refusing = client.create_producer("c")
        first.send_async(b"x" * 900, None)
        with pytest.raises(errors.MemoryBufferIsFull, match="memory_limit=1000"):
            refusing.send(b"x" * 200)
        with pytest.raises(errors.MessageTooBig, match="memory_limit=1000"):
            second.send(b"x" * 1001)
        done = threading.Event()

        def work():
            second.send(b"x" * 200)
            done.set()

        threading.Thread(target=work, daemon=True).start()
        until(lambda: held.count() == 1)
        assert not done.wait(0.05)
        held.stop()
        assert done.wait(5)


def test_a_callback_may_send_and_must_not_wait(broker, client):
    producer = client.create_producer("t", max_pending_messages=1, block_if_queue_full=True)
    got, done = [], threading.Event()

    def chain(result, message_id):
        got.append(result)
        if len(got) == 3:
            done.set()
            return
        try:
            producer.send(b"x")
        except errors.OperationNotSupported:
            got.append("refused")
        producer.send_async(b"next", chain)

    producer.send_async(b"first", chain)
    assert done.wait(5)
    assert got == [Result.Ok, "refused", Result.Ok]


def test_concurrent_synchronous_senders_share_batches(broker, client):
    counts = []
    answer = broker.on_send

    def slow(peer, frame):
        counts.append(frame.send.num_messages)
        asyncio.get_running_loop().call_later(0.01, answer, peer, frame)

    broker.answers[pb.BaseCommand.SEND] = slow
    producer = client.create_producer("t", batching_max_publish_delay_ms=60_000)
    start = threading.Barrier(20)

    def work():
        start.wait()
        for _ in range(5):
            producer.send(b"x")

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert sum(counts) == 100
    assert len(counts) < 60


def test_a_synchronous_send_does_not_wait_for_the_delay(broker, client):
    producer = client.create_producer("t", batching_max_publish_delay_ms=60_000)
    started = time.monotonic()
    for _ in range(10):
        producer.send(b"x")
    assert time.monotonic() - started < 5


def test_the_delay_closes_what_nobody_waits_for(broker, client):
    producer = client.create_producer("t", batching_max_publish_delay_ms=30)
    done = threading.Event()
    started = time.monotonic()
    producer.send_async(b"x", lambda r, m: done.set())
    assert done.wait(5)
    assert 0.025 < time.monotonic() - started < 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_at_once(broker, client):
    producer = client.create_producer("t", batching_max_publish_delay_ms=60_000)
    producer.send_async(b"x", None)  # leaves an open batch that would take more
    child = os.fork()
    if child == 0:
        code = 1
        try:
            producer.send_async(b"y", None)
        except errors.ForkedProcessError:
            try:
                producer.send(b"z")
            except errors.ForkedProcessError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.flush()


def test_a_lost_connection_is_replaced_and_everything_sent_again(broker, client):
    held = Held(broker)
    producer = client.create_producer("t", batching_max_messages=2)
    got = []
    for number in range(6):
        producer.send_async(b"%d" % number, lambda r, m: got.append(r))
    until(lambda: held.count() == 6)

    async def drop():
        for peer in broker.peers:
            peer.drop()

    broker.answers[pb.BaseCommand.SEND] = broker.on_send
    broker.run(drop(), 5)
    producer.flush()
    assert got == [Result.Ok] * 6
    statistics = producer.statistics()
    assert statistics.reconnects == 1
    assert statistics.resent_operations == 3


def test_receipts_that_do_not_fit_close_the_connection_and_nothing_is_lost(broker, client):
    lied = []

    def lie(peer, frame):
        send = frame.send
        if not lied:
            lied.append(True)
            peer.transport.write(encode_send_receipt(send.producer_id, send.sequence_id + 5, None, 1, 1))
        else:
            broker.on_send(peer, frame)

    broker.answers[pb.BaseCommand.SEND] = lie
    producer = client.create_producer("t")
    assert producer.send(b"x").entry_id > 0
    assert producer.statistics().reconnects == 1


def test_a_terminated_topic_ends_the_producer(broker, client):
    def terminated(peer, frame):
        error = pb.BaseCommand(type=pb.BaseCommand.SEND_ERROR)
        error.send_error.producer_id = frame.send.producer_id
        error.send_error.sequence_id = frame.send.sequence_id
        error.send_error.error = 15
        error.send_error.message = "terminated"
        peer.send(error)

    broker.answers[pb.BaseCommand.SEND] = terminated
    producer = client.create_producer("t")
    with pytest.raises(errors.TopicTerminated):
        producer.send(b"x")
    with pytest.raises(errors.TopicTerminated):
        producer.send(b"y")
    producer.close()


def test_a_send_timeout_comes_from_the_timer(broker, client):
    Held(broker)
    producer = client.create_producer("t", send_timeout_millis=80)
    with pytest.raises(errors.Timeout, match="send_timeout"):
        producer.send(b"x")
    assert producer.statistics().timeouts == 1


def test_close_gives_what_is_pending_its_chance(broker, client):
    held = Held(broker)
    producer = client.create_producer("t", batching_max_publish_delay_ms=60_000)
    got = []
    producer.send_async(b"x", lambda r, m: got.append(r))
    closer = threading.Thread(target=producer.close)
    closer.start()
    until(lambda: held.count() == 1)
    with pytest.raises(errors.AlreadyClosed):
        producer.send(b"y")
    held.stop()
    closer.join(5)
    assert not closer.is_alive()
    assert got == [Result.Ok]
    assert broker.count(pb.BaseCommand.CLOSE_PRODUCER) == 1
    producer.close()


def test_close_without_a_connection_fails_what_is_pending(broker, client):
    Held(broker)
    producer = client.create_producer("t")
    got = []
    producer.send_async(b"x", lambda r, m: got.append(r))
    broker.run(broker.stop(), 5)
    until(lambda: not producer.is_connected())
    producer.close()
    assert got == [Result.AlreadyClosed]


def test_flush_raises_what_the_last_message_failed_with(broker, client):
    Held(broker)
    producer = client.create_producer("t", send_timeout_millis=60)
    producer.send_async(b"x", lambda r, m: None)
    with pytest.raises(errors.Timeout):
        producer.flush()
    producer.flush()


def test_a_refused_creation_leaves_nothing_behind(broker, client):
    broker.partitions["persistent://public/default/p"] = 3

    def busy(peer, frame):
        body = frame.command.producer
        if body.topic.endswith("1"):
            broker.refuse(peer, body.request_id, 16, "taken")
        else:
            broker.on_producer(peer, frame)

    broker.answers[pb.BaseCommand.PRODUCER] = busy
    with pytest.raises(errors.ProducerBusy, match="taken"):
        client.create_producer("p")
    until(lambda: broker.count(pb.BaseCommand.CLOSE_PRODUCER) == 2)
