from typing import Any

from geminga.client.permit_wait_queue import PermitWaitQueue
from geminga.client.submit_queue import QueuedOperation, QueuedSend, WaitingSend
from geminga.errors import AlreadyClosed, MemoryBufferIsFull, ProducerQueueIsFull


class Question(WaitingSend):
    def __init__(self, name: str, place: str | None = None, *, waits: bool = True, size: int = 0) -> None:
        super().__init__(b"x" * size, name, None, place, urgent=False, waits=waits, wake=self.answer)
        self.answered = False

    def answer(self) -> None:
        assert not self.answered
        self.answered = True


class Line:
    """A wait queue for partitions with the given permits, and a byte limit for all."""

    def __init__(self, **permits: int) -> None:
        self.permits: dict[Any, int] = {None: 0, **permits}
        self.bytes = 1000
        self.taken: list[str] = []
        self.error: Exception | None = None
        self.failed: list[tuple[Any, Exception]] = []
        self.line = PermitWaitQueue(
            self.add, lambda asked: asked.partition, lambda token, error: self.failed.append((token, error))
        )

    def add(self, asked: WaitingSend) -> None:
        if self.error is not None:
            raise self.error
        if len(asked.payload) > self.bytes:
            raise MemoryBufferIsFull("bytes")
        if not self.permits[asked.partition]:
            raise ProducerQueueIsFull("permits")
        self.permits[asked.partition] -= 1
        self.bytes -= len(asked.payload)
        self.taken.append(asked.token)

    def ask(self, *questions: Question) -> None:
        for question in questions:
            self.line.answer(question)


def test_a_send_with_a_permit_is_accepted():
    line, question = Line(a=1), Question("1", "a")
    line.ask(question)
    assert question.answered
    assert question.error is None
    assert line.taken == ["1"]


def test_a_send_that_does_not_wait_is_refused():
    line, question = Line(a=0), Question("1", "a", waits=False)
    line.ask(question)
    assert isinstance(question.error, ProducerQueueIsFull)
    assert len(line.line) == 0


def test_waiting_sends_are_accepted_in_order_and_do_not_block_others():
    line = Line(a=0, b=0)
    line.ask(*(Question(name, name[0]) for name in ("a1", "a2", "b1", "a3", "b2")))
    assert len(line.line) == 5
    line.permits.update(a=1, b=2)
    line.line.serve()
    assert line.taken == ["a1", "b1", "b2"]
    line.permits.update(a=5)
    line.line.serve()
    assert line.taken[3:] == ["a2", "a3"]
    assert len(line.line) == 0


def test_a_new_send_queues_behind_those_for_the_same_partition():
    line = Line(a=0, b=1)
    line.ask(Question("a1", "a"))
    line.permits["a"] = 1
    line.ask(Question("a2", "a"), Question("b1", "b"))
    assert line.taken == ["b1"]
    line.line.serve()
    assert line.taken == ["b1", "a1"]


def test_a_sender_that_left_is_skipped():
    line, gone = Line(a=0), Question("gone", "a")
    line.ask(gone, Question("there", "a"))
    gone.gone = True
    assert len(line.line) == 1
    line.permits["a"] = 1
    line.line.serve()
    assert line.taken == ["there"]
    line.ask(gone)
    assert line.taken == ["there"]


def test_a_send_that_lacks_bytes_blocks_all_later_sends():
    line = Line(a=5, b=5)
    line.bytes = 10
    line.ask(Question("large", "a", size=20), Question("small", "a", size=5))
    line.line.serve()
    assert line.line.wants_bytes
    assert line.taken == []
    line.bytes = 25
    line.line.serve()
    assert line.taken == ["large", "small"]
    assert not line.line.wants_bytes


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


def test_an_accepted_message_without_a_permit_waits_and_fails_at_the_end():
    line = Line(a=1)
    for name in ("first", "second"):
        line.line.answer(QueuedSend(b"x", name, None, "a"))
    assert line.taken == ["first"]
    assert line.line.accepted() == ["a"]
    line.error = AlreadyClosed("closed")
    line.line.serve()
    assert line.failed == [("second", line.error)]
    assert not line.line.accepted()


def test_the_end_of_the_producer_fails_all_waiting_sends():
    line = Line(a=0, b=0)
    questions = [Question("1", "a"), Question("2", "a"), Question("3", "b")]
    line.ask(*questions)
    line.error = AlreadyClosed("closed")
    line.line.serve()
    assert [question.error for question in questions] == [line.error] * 3
