from typing import Any

from geminga.client.permit_wait_queue import PermitWaitQueue
from geminga.client.submit_queue import QueuedOperation, WaitingSend
from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull


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
            self.add,
            lambda asked: asked.partition,
            lambda asked, error: self.failed.append((asked.token, error)),
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
