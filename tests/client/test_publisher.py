"""The engine against a scripted broker: wake-ups, timers, blocking, forks, lost connections, closing."""

import asyncio
import random
import signal
import threading
import time

import pyarrow as pa
import pytest
from doubles import raising
from insides import publisher_of, wait_queue_of
from waiting import Blocked, eventually, join_threads, loop_turns, never, never_async, start_thread

import geminga
import geminga.asyncio
from geminga import errors
from geminga.errors import Result
from geminga.wire.frames import encode_send_receipt
from geminga.wire.hashing import PARTITION_HASHES
from geminga.wire.proto import pulsar_wire_pb2 as pb


@pytest.fixture
def client(broker):
    with geminga.Client(broker.url, operation_timeout_seconds=5) as made:
        yield made


class Held:
    """Receipts that are withheld until they are let go."""

    def __init__(self, broker):
        self._held = []
        self._broker = broker
        self._answer = broker.on_send
        broker.answers[pb.BaseCommand.SEND] = lambda peer, frame: self._held.append((peer, frame))

    def count(self):
        return sum(frame.num_messages for _, frame in self._held)

    def release(self):
        self._broker.call(self._release, lambda frame: True)

    def release_of(self, producer_id):
        self._broker.call(self._release, lambda frame: frame.producer_id == producer_id)

    def _release(self, is_chosen):
        chosen = [pair for pair in self._held if is_chosen(pair[1])]
        self._held[:] = [pair for pair in self._held if pair not in chosen]
        for peer, frame in chosen:
            self._answer(peer, frame)

    def producer_ids(self):
        return [frame.producer_id for _, frame in self._held]

    def stop(self):
        self._broker.answers[pb.BaseCommand.SEND] = self._answer
        self.release()


@pytest.fixture
def held(broker):
    return Held(broker)


def test_a_full_queue_refuses_by_callback_or_by_exception(client, held):
    producer = client.create_producer("t", max_pending_messages=3)
    got = []
    for _ in range(4):
        producer.send_async(b"x", lambda r, m: got.append(r))
    assert got == [Result.ProducerQueueIsFull]
    with pytest.raises(errors.ProducerQueueIsFull, match="max_pending_messages=3"):
        producer.send_async(b"x", None)
    with pytest.raises(errors.ProducerQueueIsFull):
        producer.send(b"x")
    eventually(lambda: held.count() == 3)
    held.stop()
    producer.flush()
    assert got == [Result.ProducerQueueIsFull] + [Result.Ok] * 3
    producer.send(b"x")


def test_a_full_queue_blocks_every_thread_and_lets_all_go_on(client, held):
    producer = client.create_producer("t", max_pending_messages=4, block_if_queue_full=True)
    got, each = [], 25

    def work():
        for _ in range(each):
            producer.send_async(b"x", lambda r, m: got.append(r))

    threads = [start_thread(work) for _ in range(4)]
    eventually(lambda: held.count() == 4)
    never(lambda: held.count() != 4, 0.05)  # no message exceeds the limit
    held.stop()
    join_threads(*threads)
    producer.flush()
    assert got == [Result.Ok] * (4 * each)


def test_sends_to_a_stuck_partition_do_not_block_those_to_another(broker, client):
    broker.partitions["persistent://public/default/two"] = 2
    held = Held(broker)
    producer = client.create_producer(
        "two", max_pending_messages=1, block_if_queue_full=True, batching_enabled=False
    )
    hash_of = PARTITION_HASHES["BoostHash"]
    stuck, moving = (next(k for k in "abcdefgh" if hash_of(k) % 2 == index) for index in (0, 1))
    producer.send_async(b"", None, partition_key=stuck)
    eventually(lambda: held.count() == 1)
    producer.send_async(b"", None, partition_key=moving)
    eventually(lambda: held.count() == 2)
    _, moving_id = held.producer_ids()

    behind = [start_thread(producer.send_async, b"", None, partition_key=stuck) for _ in range(3)]
    wait_queue = wait_queue_of(producer)
    eventually(lambda: len(wait_queue) == 3)
    free = [start_thread(producer.send_async, b"", None, partition_key=moving) for _ in range(2)]
    eventually(lambda: len(wait_queue) == 5)
    for left in (1, 0):
        held.release_of(moving_id)
        eventually(lambda left=left: sum(thread.is_alive() for thread in free) == left)
        eventually(lambda: held.producer_ids().count(moving_id) == 1)
    assert all(thread.is_alive() for thread in behind)
    held.stop()
    join_threads(*behind)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs POSIX signals")
def test_a_signal_that_ends_a_wait_delays_no_other_sender(client, held):
    producer = client.create_producer("t", max_pending_messages=1, block_if_queue_full=True)
    producer.send_async(b"first", None)

    class Enough(Exception):
        pass

    behind = threading.Thread(target=producer.send_async, args=(b"behind", None))

    def queue_up_and_interrupt():
        eventually(lambda: len(wait_queue_of(producer)) == 1)
        behind.start()
        eventually(lambda: len(wait_queue_of(producer)) == 2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raising(Enough))
    start_thread(queue_up_and_interrupt)
    try:
        with pytest.raises(Enough):
            producer.send(b"given up")
    finally:
        signal.signal(signal.SIGUSR1, before)
    held.stop()
    join_threads(behind)


def test_closing_ends_every_wait_for_permits(client, held):
    producer = client.create_producer("t", max_pending_messages=1, block_if_queue_full=True)
    producer.send_async(b"x", None)
    blocked = [Blocked(lambda: producer.send(b"x")) for _ in range(4)]
    eventually(lambda: len(wait_queue_of(producer)) == 4)
    closing = start_thread(producer.close)
    assert {type(each.ended()) for each in blocked} == {errors.AlreadyClosed}
    assert closing.is_alive(), "it still waits for the message that is under way"
    held.stop()
    closing.join(60)


@pytest.mark.parametrize("memory", [0, 300])
@pytest.mark.parametrize("steps_over", [True, False])
def test_many_threads_wait_and_none_is_forgotten(broker, steps_over, memory):
    """Receipts stall at random; permits of a partition, over partitions, and bytes of a client run out."""
    numbers, stalled = random.Random(5), {}

    def stall(peer, frame):
        queue = stalled.setdefault((peer, frame.producer_id), [])
        queue.append(frame)
        if len(queue) == 1:
            asyncio.get_running_loop().call_later(numbers.choice([0, 0, 0.01]), answer, peer, queue)

    def answer(peer, queue):
        for frame in queue:
            broker.on_send(peer, frame)
        queue.clear()

    broker.answers[pb.BaseCommand.SEND] = stall
    names = ("four", "other")
    for name in names:
        broker.partitions[f"persistent://public/default/{name}"] = 4
    got = []
    with geminga.Client(broker.url, memory_limit_bytes=memory) as client:
        producers = [
            client.create_producer(
                name, max_pending_messages=5, max_pending_messages_across_partitions=12,
                block_if_queue_full=True, batching_enabled=True, batching_max_messages=3,
                step_over_blocked_partitions=steps_over,
            )
            for name in names
        ]  # fmt: skip

        def work(seed):
            choose = random.Random(seed)
            for _ in range(150):
                key = choose.choice([None, *"abcdefg"])
                choose.choice(producers).send_async(
                    bytes(choose.randrange(60)), lambda r, m: got.append(r), partition_key=key
                )

        threads = [start_thread(work, seed) for seed in range(8)]
        join_threads(*threads)
        for producer in producers:
            producer.flush()
            assert not len(wait_queue_of(producer))
    assert got == [Result.Ok] * (8 * 150)


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
        sent = []
        start_thread(lambda: sent.append(second.send(b"x" * 200)))
        eventually(lambda: held.count() == 1)
        never(lambda: sent, 0.05)
        held.stop()
        eventually(lambda: sent)


def sizes_sent(held):
    """Payload sizes of the entries that came, to the nearest hundred: batched and keyed ones too."""
    return [round(len(frame.entry), -2) for _, frame in held._held]


async def test_a_small_message_does_not_pass_a_large_one_that_waits_for_bytes(broker, held):
    async with geminga.asyncio.Client(broker.url, memory_limit_bytes=10_000) as client:
        producer = await client.create_producer("t", block_if_queue_full=True, batching_enabled=False)
        first = asyncio.ensure_future(producer.send(b"x" * 6000))
        await asyncio.to_thread(eventually, lambda: held.count() == 1)
        rest = [asyncio.ensure_future(producer.send(b"x" * size)) for size in (7000, 1000, 500)]
        await never_async(lambda: held.count() != 1, 0.05)
        with pytest.raises(errors.MemoryBufferIsFull):  # nor may one that cannot wait
            producer.send_async(b"x" * 500)
        held.release()
        await asyncio.to_thread(eventually, lambda: held.count() == 3)
        assert sizes_sent(held) == [7000, 1000, 500]
        held.stop()
        await asyncio.gather(first, *rest)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("batching", [False, True])
def test_accepted_messages_that_lack_memory_keep_their_order(broker, batching, keyed, held):
    """Two threads saw the same number, and the large message of one of them has to wait."""
    with geminga.Client(broker.url, memory_limit_bytes=10_000) as client:
        producer = client.create_producer("t", batching_enabled=batching, batching_max_publish_delay_ms=1)
        producer.send_async(b"x" * 6000, None)
        eventually(lambda: held.count() == 1)
        publisher, got = publisher_of(producer), []

        async def race():
            submit_queue = publisher.submit_queue
            submit_queue.room, submit_queue.size_max = 100, 1 << 20
            for size in (7000, 500, 400):
                if keyed:
                    assert publisher.offer_simple(b"x" * size, lambda r, m: got.append(r), "key", None)
                else:
                    assert submit_queue.offer(b"x" * size, lambda r, m: got.append(r))

        client.runtime.call(race())
        never(lambda: held.count() != 1, 0.05)
        rows = start_thread(producer.send_table, pa.table({"value": [b"x" * 800]}))  # queues behind them
        eventually(lambda: wait_queue_of(producer).standing == 4)
        held.release()
        sent = [7900, 800] if batching else [7000, 500, 400, 800]
        eventually(lambda: len(held._held) == len(sent))
        assert sizes_sent(held) == [pytest.approx(size, abs=200) for size in sent]
        held.stop()
        producer.flush()
        join_threads(rows)
        assert got == [Result.Ok] * 3


async def test_thousands_of_waiting_sends_are_served_in_order(broker):
    async with geminga.asyncio.Client(broker.url) as client:
        producer = await client.create_producer("t", block_if_queue_full=True, max_pending_messages=100)
        tasks = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(4_000)]
        for task in tasks[1000:2000]:
            await loop_turns() if task is tasks[1000] else None
            task.cancel()
        ids = await asyncio.gather(*tasks, return_exceptions=True)
        ids = [each for each in ids if not isinstance(each, asyncio.CancelledError)]
        assert len(ids) >= 3_000
        assert ids == sorted(ids)


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
    assert done.wait(60)
    assert got == [Result.Ok, "refused", Result.Ok]


def test_concurrent_synchronous_senders_share_batches(broker, client):
    counts = []

    def counted(peer, frame):
        counts.append(frame.num_messages)
        broker.on_send(peer, frame)

    broker.answers[pb.BaseCommand.SEND] = counted
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    all_wait = threading.Event()
    client.runtime.post(all_wait.wait)
    threads = [start_thread(producer.send, b"x") for _ in range(20)]
    eventually(lambda: publisher_of(producer).submit_queue.depth() == 20)
    all_wait.set()
    join_threads(*threads)
    assert counts == [20]


def test_the_receipt_of_a_waiting_thread_has_the_message_behind_it_written(client, held):
    producer = client.create_producer("t", batching_enabled=True, send_timeout_millis=0)
    (partition,) = producer.publisher.state.partitions
    partition.stops_at_failure = True
    stored = []
    for count in (1, 2):
        start_thread(lambda: stored.append(producer.send(b"x")))
        eventually(lambda count=count: len(partition.pending) == count)
    eventually(held.count)
    never(lambda: held.count() != 1, 0.05)
    held.stop()
    eventually(lambda: len(stored) == 2)


def test_a_synchronous_send_does_not_wait_for_the_delay(broker, client):
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    started = time.monotonic()
    for _ in range(10):
        producer.send(b"x")
    assert time.monotonic() - started < 30


def test_a_synchronous_send_that_waited_for_bytes_does_not_wait_for_the_delay(broker, held):
    with geminga.Client(broker.url, memory_limit_bytes=1000) as client:
        other = client.create_producer("other")
        producer = client.create_producer(
            "t", block_if_queue_full=True, batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        other.send_async(b"x" * 900, None)
        eventually(lambda: held.count() == 1)
        thread = start_thread(producer.send, b"x" * 200, {"a": "b"})
        eventually(lambda: len(wait_queue_of(producer)) == 1)
        held.stop()
        join_threads(thread)


def test_the_delay_closes_batches_without_a_waiting_sender(broker, client):
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=30)
    done = threading.Event()
    started = time.monotonic()
    producer.send_async(b"x", lambda r, m: done.set())
    assert done.wait(60)
    assert 0.025 < time.monotonic() - started < 30


def test_a_lost_connection_is_replaced_and_everything_sent_again(broker, client, held):
    producer = client.create_producer(
        "t", batching_enabled=True, batching_max_messages=2, batching_max_publish_delay_ms=60_000
    )
    got = []
    for number in range(6):
        producer.send_async(b"%d" % number, lambda r, m: got.append(r))
    eventually(lambda: held.count() == 6)
    broker.answers[pb.BaseCommand.SEND] = broker.on_send
    for peer in broker.peers:
        broker.call(peer.drop)
    producer.flush()
    assert got == [Result.Ok] * 6
    statistics = producer.statistics()
    assert statistics.reconnects == 1
    assert statistics.resent_operations == 3


def test_receipts_that_do_not_fit_close_the_connection_and_nothing_is_lost(broker, client):
    lied = []

    def lie(peer, frame):
        if not lied:
            lied.append(True)
            peer.transport.write(encode_send_receipt(frame.producer_id, frame.sequence_id + 5, None, 1, 1))
        else:
            broker.on_send(peer, frame)

    broker.answers[pb.BaseCommand.SEND] = lie
    producer = client.create_producer("t")
    assert producer.send(b"x").entry_id > 0
    assert producer.statistics().reconnects == 1


def test_a_send_timeout_comes_from_the_timer(broker, client):
    Held(broker)
    producer = client.create_producer("t", send_timeout_millis=80)
    with pytest.raises(errors.Timeout, match="send_timeout"):
        producer.send(b"x")
    assert producer.statistics().timeouts == 1


def test_a_receipt_that_arrived_while_the_loop_was_busy_counts_before_the_send_timeout(client, held):
    producer = client.create_producer("t", send_timeout_millis=300)
    got = []
    producer.send_async(b"x", lambda r, m: got.append(r))
    eventually(lambda: held.count() == 1)
    publisher = publisher_of(producer)
    loop = publisher.context.loop

    def keep_busy():
        held.stop()
        never(lambda: got, 0.4)

    def queue_both():
        loop.call_soon(keep_busy)
        publisher.schedule()

    loop.call_soon_threadsafe(queue_both)
    producer.flush()
    assert got == [Result.Ok]


def test_close_without_a_connection_fails_what_is_pending(broker, client):
    Held(broker)
    producer = client.create_producer("t")
    got = []
    producer.send_async(b"x", lambda r, m: got.append(r))
    broker.run(broker.stop(), 5)
    eventually(lambda: not producer.is_connected())
    producer.close()
    assert got == [Result.AlreadyClosed]


def test_flush_raises_what_the_last_message_failed_with(broker, client):
    Held(broker)
    producer = client.create_producer("t", send_timeout_millis=600)
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
    eventually(lambda: broker.count(pb.BaseCommand.CLOSE_PRODUCER) == 2)


def overtaken_and_closing(client, held, names):
    """Have a producer close with plain messages that were handed over though there is no permit, as several
    threads do that look at the same number at once. Return the outcomes and the closing thread."""
    producer = client.create_producer("t", max_pending_messages=1, block_if_queue_full=True)
    got = []
    producer.send_async(b"0", lambda r, m: got.append((b"0", r)))
    eventually(lambda: held.count() == 1)
    pairs = [half for name in names for half in (name, lambda r, m, name=name: got.append((name, r)))]
    publisher_of(producer).submit_queue.pairs += pairs
    closing = start_thread(producer.close)
    eventually(lambda: wait_queue_of(producer).accepted())
    return got, closing


def test_close_waits_for_accepted_messages_without_a_permit(client, held):
    got, closing = overtaken_and_closing(client, held, [b"1", b"2"])
    held.stop()
    join_threads(closing)
    assert got == [(b"%d" % number, Result.Ok) for number in range(3)]


def test_close_without_a_connection_does_not_wait_for_messages_without_a_permit(broker, held):
    client = geminga.Client(broker.url, operation_timeout_seconds=600)
    got, closing = overtaken_and_closing(client, held, [b"1"])
    broker.run(broker.stop(), 60)
    join_threads(closing)
    assert sorted(got) == [(b"0", Result.AlreadyClosed), (b"1", Result.AlreadyClosed)]
    client.close()
