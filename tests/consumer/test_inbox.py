from collections import deque
from typing import Any

import pytest

from geminga.consumer.inbox import AcknowledgedId, Inbox, TakenByApplication
from geminga.consumer.message import ConsumerOrigin, Message, ReceivedEntry
from geminga.errors import AlreadyClosed
from geminga.ids import MessageId


class Told:
    """An inbox, and how often it told the loop."""

    def __init__(self, full_at: int = 3) -> None:
        self.armed = 0
        self.hurried = 0
        self.inbox = Inbox(full_at, self.arm, self.hurry)

    def arm(self) -> None:
        self.armed += 1

    def hurry(self) -> None:
        self.hurried += 1


def message() -> Message:
    return Message(ReceivedEntry(ConsumerOrigin("t", -1), 1, 2, None), -1)


def test_items_are_taken_in_order_and_arm_the_loop_once():
    told = Told()
    one = message()
    items: list[Any] = [TakenByApplication(one), one]
    for item in items:
        told.inbox.add(item)
    assert (told.armed, told.hurried) == (1, 0)
    assert told.inbox.take() == items
    told.inbox.add(one)
    assert told.armed == 2


def test_a_full_inbox_is_emptied_at_once():
    told = Told(full_at=3)
    for _ in range(5):
        told.inbox.add(message())
    assert (told.armed, told.hurried) == (1, 1)
    assert len(told.inbox.take()) == 5
    told.inbox.add_urgent(message())
    told.inbox.add_urgent(message())
    assert (told.armed, told.hurried) == (2, 2)


def test_an_item_added_while_the_inbox_is_emptied_arms_the_loop_again():
    told = Told()

    class Busy(deque[Any]):
        """Queue of an inbox to which another thread adds an item whenever one is taken."""

        def popleft(self) -> Any:
            told.inbox.add(message())
            return super().popleft()

    told.inbox.add(message())
    told.inbox._items = Busy(told.inbox._items)
    assert len(told.inbox.take()) == 1
    assert (told.armed, len(told.inbox)) == (2, 1)


def test_after_the_end_nothing_is_taken():
    told = Told()
    told.inbox.ended = lambda: AlreadyClosed("it is over")
    with pytest.raises(AlreadyClosed, match="it is over"):
        told.inbox.add(AcknowledgedId(MessageId.earliest))
    assert told.inbox.take() == []


def test_an_end_during_add_raises_the_error():
    told = Told()

    def end() -> None:
        told.inbox.ended = lambda: AlreadyClosed("it is over")

    told.arm = end
    inbox = Inbox(3, end, told.hurry)
    told.inbox = inbox
    with pytest.raises(AlreadyClosed):
        inbox.add(message())


def test_add_calls_arm_again_if_it_raised():
    """Raise between two steps of `add`, like a signal handler."""
    calls: list[int] = []

    def arm() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    inbox = Inbox(3, arm, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        inbox.add(message())
    assert len(calls) == 2
    assert len(inbox.take()) == 1
