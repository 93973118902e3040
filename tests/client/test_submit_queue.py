import asyncio
from typing import Any, ClassVar

import pytest
from producing import connect, producer_of

from geminga.client.publish.permit_wait_queue import PermitWaitQueue
from geminga.client.publish.submit_queue import (
    QueuedOperation,
    QueuedSend,
    QueuedWork,
    SubmitQueue,
    TransactionRows,
    WaitingSend,
)
from geminga.client.publish.submitting import SubmitWorker
from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull
from geminga.producer.message import simple_message
from geminga.producer.settings import ProducerSettings
from geminga.transactions import TransactionCore, TransactionId


class Loop:
    """A submit queue, and how often the loop was woken."""

    def __init__(self, *, room: int = 10, size_max: int = 100, wake_at: int = 1, rich: int = 1) -> None:
        self.told = 0
        self.submit_queue = SubmitQueue(self._tell)
        self.submit_queue.open(room, size_max, wake_at, rich)

    def _tell(self) -> None:
        self.told += 1


def handed(payload: bytes = b"x") -> QueuedSend:
    return QueuedSend(payload, None, None)


def test_plain_messages_are_queued_in_order_and_the_loop_is_woken_once():
    loop = Loop()
    for number in range(3):
        assert loop.submit_queue.offer(b"%d" % number, number)
    assert loop.told == 1
    assert loop.submit_queue.depth() == 3
    assert loop.submit_queue.take() == ([b"0", b"1", b"2"], [0, 1, 2])


def test_the_loop_is_woken_when_enough_is_queued():
    loop = Loop(wake_at=3, rich=2)
    loop.submit_queue.offer(b"", None)
    loop.submit_queue.offer(b"", None)
    assert loop.told == 0
    loop.submit_queue.put(handed(), None, wake_at=loop.submit_queue.wake_rich_at)
    assert loop.told == 1


def test_a_waiting_sender_always_wakes_the_loop():
    """A send that was interrupted between saying that it tells, and telling, cannot while this one waits."""
    loop = Loop(wake_at=100)
    loop.submit_queue.offer_urgent(b"", None)
    loop.submit_queue.put_and_wake(handed())
    assert loop.told == 2
    assert loop.submit_queue.begin()
    assert not loop.submit_queue.begin()


def test_a_full_queue_and_large_payloads_are_refused_by_offer():
    loop = Loop(room=2, size_max=5)
    assert not loop.submit_queue.offer(b"123456", None)
    assert not loop.submit_queue.has_room(6)
    assert loop.submit_queue.offer(b"12345", None)
    assert loop.submit_queue.offer_urgent(b"", None)
    assert not loop.submit_queue.has_room(0)
    assert not loop.submit_queue.offer(b"", None)
    assert not loop.submit_queue.offer_urgent(b"", None)


def test_taken_messages_use_room_until_the_loop_reopens_the_queue():
    loop = Loop(room=3)
    loop.submit_queue.offer(b"", None)
    loop.submit_queue.offer(b"", None)
    loop.submit_queue.take()
    assert loop.submit_queue.offer(b"", None)
    assert not loop.submit_queue.offer(b"", None)
    loop.submit_queue.open(3, 100, 1, 1)
    assert loop.submit_queue.offer(b"", None)


def test_submissions_during_an_iteration_are_seen_at_its_end():
    loop = Loop(wake_at=5)
    for _ in range(5):
        loop.submit_queue.offer(b"", None)
    assert loop.told == 1
    loop.submit_queue.begin()
    loop.submit_queue.take()
    loop.submit_queue.offer(b"", None)  # the earlier batch is open: the loop needs no wake-up
    assert loop.told == 1
    assert loop.submit_queue.open(10, 100, 1, 1)  # but its batch is closed
    assert not Loop(wake_at=5).submit_queue.open(10, 100, 5, 5)


def test_offer_wakes_the_loop_again_if_the_first_wake_raised():
    calls: list[int] = []

    def tell() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    submit_queue = SubmitQueue(tell)
    submit_queue.open(10, 100, 1, 1)
    with pytest.raises(KeyboardInterrupt):
        submit_queue.offer(b"x", None)
    assert (len(calls), submit_queue.depth()) == (2, 1)


def waiting_send() -> WaitingSend:
    return WaitingSend(b"", None, None, None, urgent=False, waits=True, wake=lambda: None)


def test_a_refusal_is_raised_after_the_wait_and_an_acceptance_is_not():
    refused, accepted = waiting_send(), waiting_send()
    with pytest.raises(ProducerQueueIsFull, match="full"), refused.waiting():
        refused.settle(ProducerQueueIsFull("full"))
    with accepted.waiting():
        accepted.settle(None)
    assert not refused.gone
    assert not accepted.gone


def test_an_interrupted_wait_marks_the_message_as_gone():
    send = waiting_send()
    with pytest.raises(asyncio.CancelledError), send.waiting():
        raise asyncio.CancelledError
    assert send.gone


def test_a_mark_set_while_the_loop_checks_is_kept():
    """Without the interpreter lock a thread may set it between any two of the loop's instructions."""

    class Marked(SubmitQueue):
        mark = False
        marks: ClassVar[list[bool]] = []

        @property
        def urgent(self) -> bool:
            before = self.mark
            if self.marks:
                self.mark = self.marks.pop()  # another thread's, right after the look
            return before

        @urgent.setter
        def urgent(self, mark: bool) -> None:
            self.mark = mark

    submit_queue = Marked(lambda: None)
    submit_queue.marks.append(True)
    assert not submit_queue.begin()
    assert submit_queue.begin()
    assert not submit_queue.begin()


def test_an_operation_that_waits_for_bytes_does_so_until_it_has_them():
    refusal: list[Exception] = [MemoryBufferIsFull("bytes")]
    may_wait, outcome = [True], []

    def add() -> None:
        if refusal:
            raise refusal[0]

    line = PermitWaitQueue(lambda queued: queued.add(), lambda _: None, lambda *_: None)
    line.answer(QueuedOperation(add, lambda _: may_wait[0], outcome.append))
    may_wait[0] = False  # the table's other operations have their receipts meanwhile
    line.serve()
    assert line.wants_bytes
    refusal.clear()
    line.serve()
    assert outcome == [None]
    assert not line


class Bench:
    """A worker with its queue, on a topic without partitions that is connected."""

    def __init__(self, **settings: Any) -> None:
        self.state = producer_of(0, ProducerSettings(**settings))
        (self.partition,) = self.state.partitions
        connect(self.partition)
        self.queue = SubmitQueue(lambda: None)
        self.worker = SubmitWorker(self.state, self.queue)

    def take(self, *pairs: Any) -> None:
        self.queue.pairs += pairs
        self.worker.take_in()

    @property
    def pending(self) -> list[Any]:
        return [token for operation in self.partition.pending for token in operation.tokens]


def test_a_message_with_a_key_does_not_overtake_a_waiting_one_without_a_key():
    bench = Bench(max_pending_messages=1)
    bench.take(b"x", "first", b"x", "second")
    bench.partition.take_output(0.0, 0)
    bench.partition.receipt(0, 0, 1, 0, 0.0)  # releases the permit, for "second"
    bench.take(simple_message(b"x", "key"), "third")
    bench.worker.wait_queue.serve()
    assert bench.pending == ["second"]


def test_messages_of_a_transaction_among_others_are_not_compared_with_all_behind_them(monkeypatch):
    bench, compared = Bench(max_pending_messages=0), []
    monkeypatch.setattr(TransactionRows, "__eq__", lambda mark, _: bool(compared.append(mark)))
    mark = TransactionRows(TransactionCore(TransactionId(0, 1), 1.0, lambda: 0.0, lambda _: None), 1)
    for number in range(200):
        bench.queue.pairs += (mark, None, b"x", 3 * number, mark, None, b"x", 3 * number + 1)
        bench.queue.pairs += (b"x", 3 * number + 2)
    bench.worker.take_in()
    bench.partition.close_batch()
    assert bench.pending == list(range(600))
    assert len(compared) <= 600


def test_a_message_sent_by_a_callback_follows_those_submitted_before():
    bench = Bench(max_pending_messages=2)

    def callback() -> None:
        bench.worker.take_in()
        bench.worker.take_now(QueuedSend(b"x", "third", None))

    bench.take(QueuedWork(callback, callback), None, b"x", "first", b"x", "second")
    assert bench.pending[:2] == ["first", "second"]
