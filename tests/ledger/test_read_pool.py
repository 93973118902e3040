"""Reads on other threads: no caller waits long for the disk, and all limits hold."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from doubles import raising
from waiting import eventually

from geminga.errors import StoreBusy
from geminga.ledger.reading import pool as read_pool
from geminga.ledger.reading.pool import LATE_ANSWERS_MAX, ReadPool

TIMEOUT = 20.0


@dataclass
class Text:
    text: str

    @property
    def size_bytes(self) -> int:
        return len(self.text)


class Owner:
    """Owner that submits jobs, with a disk that answers on command."""

    def __init__(self, *, wait_seconds: float = TIMEOUT, undelivered_bytes_max: int = 1000) -> None:
        self.finished: deque[Callable[[], None]] = deque()
        self.woken = threading.Semaphore(0)
        self.answers = threading.Event()
        self.begun = threading.Semaphore(0)
        self.got: list[str] = []
        self.pool: ReadPool[Text] = ReadPool(
            self.finished,
            self.woken.release,
            threads=2,
            wait_seconds=wait_seconds,
            waiting_max=5,
            undelivered_bytes_max=undelivered_bytes_max,
        )
        self.pool.start()

    def job(self, text: str, *, stalls: bool = False) -> Callable[[], Text]:
        def run() -> Text:
            self.begun.release()
            if stalls:
                assert self.answers.wait(TIMEOUT)
            return Text(text)

        return run

    def submit(self, text: str, *, stalls: bool = False) -> None:
        self.pool.submit(text, self.job(text, stalls=stalls), lambda answer: self.got.append(answer.text))

    def poll(self, count: int) -> None:
        """Deliver this many finished jobs."""
        for _ in range(count):
            assert self.woken.acquire(timeout=TIMEOUT)
            self.finished.popleft()()


@pytest.fixture
def owner():
    found = Owner()
    yield found
    found.answers.set()
    found.pool.stop(Text("stopped"))


def test_results_of_jobs_arrive_on_the_owners_thread(owner):
    for text in ("a", "b", "c"):
        owner.submit(text)
    assert owner.got == []
    owner.poll(3)
    assert sorted(owner.got) == ["a", "b", "c"]
    assert not owner.pool.busy


def test_equal_reads_run_once(owner):
    for _ in range(3):
        owner.submit("a", stalls=True)
    owner.answers.set()
    owner.poll(1)
    assert owner.got == ["a"] * 3
    assert owner.begun.acquire(timeout=TIMEOUT)
    assert not owner.begun.acquire(blocking=False)


def test_jobs_beyond_the_limit_are_refused(owner):
    for number in range(5):
        owner.submit(str(number), stalls=True)
    with pytest.raises(StoreBusy, match="5 reads"):
        owner.submit("one too many")
    owner.answers.set()
    owner.poll(5)
    owner.submit("now")
    owner.poll(1)
    assert owner.got[-1] == "now"


def test_reads_pause_while_their_results_are_not_taken():
    owner = Owner(undelivered_bytes_max=1)
    owner.submit("first")
    assert owner.woken.acquire(timeout=TIMEOUT)
    assert owner.begun.acquire(timeout=TIMEOUT)
    owner.submit("second")
    assert owner.pool.ask("question", owner.job("question")).text == "question", "a question is not held up"
    assert owner.begun.acquire(timeout=TIMEOUT)
    assert not owner.begun.acquire(blocking=False), "the second was begun"
    owner.finished.popleft()()
    owner.poll(1)
    assert owner.got == ["first", "second"]
    owner.pool.stop(Text(""))


def test_a_query_waits_at_most_its_limit_and_its_answer_is_kept():
    owner = Owner(wait_seconds=0.01)
    with pytest.raises(StoreBusy, match=r"within 0\.01 s"):
        owner.pool.ask("a", owner.job("a", stalls=True))
    assert owner.pool.stalled
    for key in ("a", "b", "c"):
        with pytest.raises(StoreBusy):
            owner.pool.ask(key, owner.job("never begun"))
    assert owner.begun.acquire(timeout=TIMEOUT)
    assert not owner.begun.acquire(blocking=False), "a stalled disk is asked again and again"
    owner.answers.set()
    while owner.pool.stalled:
        pass
    assert owner.pool.ask("a", owner.job("asked anew")).text == "a"
    assert owner.pool.ask("a", owner.job("again")).text == "again", "an answer is given once"
    owner.pool.stop(Text(""))


def test_late_answers_are_bounded(owner):
    for number in range(LATE_ANSWERS_MAX + 9):
        owner.pool._late[number] = Text("x")
    assert owner.pool.ask("a", owner.job("a")).text == "a"
    assert len(owner.pool._late) == LATE_ANSWERS_MAX


def test_pending_jobs_are_refused_at_the_end(owner):
    owner.submit("a", stalls=True)
    assert owner.begun.acquire(timeout=TIMEOUT)
    owner.answers.set()
    owner.pool.stop(Text("stopped"))
    assert owner.got == ["stopped"]
    while owner.finished:
        owner.finished.popleft()()
    assert owner.got == ["stopped"], "reported twice"


def test_stop_does_not_wait_for_a_thread_stuck_in_the_disk(monkeypatch):
    monkeypatch.setattr(read_pool, "STOP_SECONDS_MAX", 0.1)
    owner = Owner()
    for text in ("a", "b", "c"):
        owner.submit(text, stalls=True)
    for _ in range(2):
        assert owner.begun.acquire(timeout=TIMEOUT)
    assert not owner.pool.stop(Text("stopped"))
    assert owner.got == ["stopped"] * 3
    owner.answers.set()
    for _ in range(2):
        assert owner.woken.acquire(timeout=TIMEOUT)
        owner.finished.popleft()()
    assert owner.got == ["stopped"] * 3, "nobody is told twice"


def test_other_callbacks_get_the_answer_after_one_raises(owner):
    owner.submit("a", stalls=True)
    owner.submit("b", stalls=True)
    owner.pool.submit("c", owner.job("c"), raising(RuntimeError("injected")))
    owner.submit("c")
    owner.answers.set()
    owner.poll(3)
    assert sorted(owner.got) == ["a", "b", "c"]


def test_an_answer_is_freed_after_its_delivery():
    owner = Owner()
    answer: list[Text] = [Text("much")]
    gone = weakref.ref(answer[0])
    owner.pool.submit("key", answer.pop, lambda _: None)
    owner.poll(1)
    eventually(lambda: gone() is None)
    owner.pool.stop(Text("stopped"))
