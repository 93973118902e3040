from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import pytest

from geminga.client.handover import AskedByTask, AskedByThread, Handed, Handover, Promised
from geminga.errors import ProducerQueueIsFull


class Loop:
    """A handover, and how often the loop was told."""

    def __init__(self, *, room: int = 10, size_max: int = 100, tell_at: int = 1, rich: int = 1) -> None:
        self.told = 0
        self.handover = Handover(self._tell)
        self.handover.open(room, size_max, tell_at, rich)

    def _tell(self) -> None:
        self.told += 1


def handed(payload: bytes = b"x") -> Handed:
    return Handed(payload, None, None, None, False)


def test_plain_messages_lie_in_order_and_the_loop_is_told_once() -> None:
    loop = Loop()
    for number in range(3):
        assert loop.handover.offer(b"%d" % number, number)
    assert loop.told == 1
    assert loop.handover.lying() == 3
    assert loop.handover.take() == ([b"0", b"1", b"2"], [0, 1, 2])


def test_the_loop_is_told_when_enough_lies_there() -> None:
    loop = Loop(tell_at=3, rich=2)
    loop.handover.offer(b"", None)
    loop.handover.offer(b"", None)
    assert loop.told == 0
    loop.handover.put(handed(), None, tell_at=loop.handover.tell_rich_at)
    assert loop.told == 1


def test_whoever_waits_tells_in_any_case() -> None:
    """A send that was interrupted between saying that it tells, and telling, cannot while this one waits."""
    loop = Loop(tell_at=100)
    loop.handover.offer_urgent(b"", None)
    loop.handover.put_and_tell(handed())
    assert loop.told == 2
    assert loop.handover.begin()
    assert not loop.handover.begin()


def test_without_room_and_for_large_payloads_the_loop_is_to_be_asked() -> None:
    loop = Loop(room=2, size_max=5)
    assert not loop.handover.offer(b"123456", None)
    assert not loop.handover.has_room(6)
    assert loop.handover.offer(b"12345", None)
    assert loop.handover.offer_urgent(b"", None)
    assert not loop.handover.has_room(0)
    assert not loop.handover.offer(b"", None)
    assert not loop.handover.offer_urgent(b"", None)


def test_what_was_taken_counts_until_the_loop_has_counted_it() -> None:
    loop = Loop(room=3)
    loop.handover.offer(b"", None)
    loop.handover.offer(b"", None)
    loop.handover.take()
    assert loop.handover.offer(b"", None)
    assert not loop.handover.offer(b"", None)
    loop.handover.open(3, 100, 1, 1)
    assert loop.handover.offer(b"", None)


def test_who_comes_while_the_loop_looks_is_seen_at_the_end() -> None:
    loop = Loop(tell_at=5)
    for _ in range(5):
        loop.handover.offer(b"", None)
    assert loop.told == 1
    loop.handover.begin()
    loop.handover.take()
    loop.handover.offer(b"", None)  # the batch of before is open: nobody needs to be told
    assert loop.told == 1
    assert loop.handover.open(10, 100, 1, 1)  # but there is none any more
    assert not Loop(tell_at=5).handover.open(10, 100, 5, 5)


def test_an_exception_while_telling_does_not_leave_the_loop_untold() -> None:
    calls: list[int] = []

    def tell() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    handover = Handover(tell)
    handover.open(10, 100, 1, 1)
    with pytest.raises(KeyboardInterrupt):
        handover.offer(b"x", None)
    assert (len(calls), handover.lying()) == (2, 1)


def test_many_threads_hand_over_and_nothing_is_lost_or_out_of_order() -> None:
    loop = Loop(room=1 << 40)
    each, threads = 5000, 4
    taken: list[Any] = []

    def send(name: int) -> None:
        for number in range(each):
            assert loop.handover.offer(b"", (name, number))

    running = [threading.Thread(target=send, args=(name,)) for name in range(threads)]
    for thread in running:
        thread.start()
    while len(taken) < each * threads:
        taken += loop.handover.take()[1]
        loop.handover.open(1 << 40, 100, 1, 1)
    for name in range(threads):
        assert [number for who, number in taken if who == name] == list(range(each))


def test_a_thread_waits_for_its_answer() -> None:
    asked = AskedByThread(b"", None, None, None, urgent=False, waits=True)
    threading.Timer(0.01, asked.settle, (ProducerQueueIsFull("full"),)).start()
    with pytest.raises(ProducerQueueIsFull, match="full"):
        asked.wait()
    taken = AskedByThread(b"", None, None, None, urgent=False, waits=True)
    taken.settle(None)
    taken.wait()


def test_a_task_that_is_cancelled_has_left() -> None:
    async def main() -> None:
        asked = AskedByTask(b"", None, None, None, urgent=False, waits=True)
        task = asyncio.create_task(asked.wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asked.gone
        asked.settle(None)

    asyncio.run(main())


def test_a_promise_that_is_broken_tells_the_token() -> None:
    told: list[Any] = []
    error = ProducerQueueIsFull("closed meanwhile")
    promised = Promised(Handed(b"", "token", None, None, False), lambda token, e: told.append((token, e)))
    promised.settle(error)
    Promised(handed(), lambda token, e: told.append("kept")).settle(None)
    assert told == [("token", error)]


def test_a_mark_that_comes_while_the_loop_looks_is_not_wiped() -> None:
    """Without the interpreter lock a thread may set it between any two of the loop's instructions."""

    class Marked(Handover):
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

    handover = Marked(lambda: None)
    handover.marks.append(True)
    assert not handover.begin()
    assert handover.begin()
    assert not handover.begin()
