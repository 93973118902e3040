"""Judge of histories: what Pulsar promises about publishing, delivery and acknowledgements.

It shares no code with the product. Each function raises `AssertionError` naming the first event that breaks a
promise. ``stored``: the messages of a topic as a reader found them in the end, in the order of reading.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from tests.simulation.history import Event, History, Position

Stored = Sequence[tuple[Position, str, str]]
"""Position, content and key of each message."""
IN_QUEUES_SECONDS = 5.0
"""Longest time that a message waits in a client's queue for its application."""
WITHOUT_QUEUE_SECONDS = 0.005
"""The same where there is no queue: what was sent before a confirmation arrives before it."""


def check(
    history: History,
    stored: Stored,
    subscriptions: dict[str, str],
    *,
    deduplicated: bool,
    keeps_all: bool,
    order_of: Callable[[str], str],
    large: Collection[str] = (),
) -> None:
    """Check everything. ``subscriptions``: names and types. ``keeps_all``: whether the topic retains messages
    that are acknowledged; otherwise ``stored`` may lack some. ``order_of(key)``: a producer's messages in a
    partition are in order among those of the same order. ``large``: messages that may be in chunks."""
    check_stored(
        history, stored, deduplicated=deduplicated, keeps_all=keeps_all, order_of=order_of, large=large
    )
    for name, kind in subscriptions.items():
        check_subscription(history, name, kind)


def check_stored(
    history: History,
    stored: Stored,
    *,
    deduplicated: bool,
    keeps_all: bool,
    order_of: Callable[[str], str],
    large: Collection[str] = (),
) -> None:
    """Check that receipts are true, and that copies and the order of messages are those allowed."""
    sends = {event.content: event for event in history.of("send")}
    receipts = {event.content: event for event in history.of("receipt")}
    faults = [event.at for event in history.of("fault", "connection ended")]

    def was_resent(content: str) -> bool:
        until = receipts[content].at if content in receipts else float("inf")
        return any(sends[content].at <= fault <= until for fault in faults)

    by_partition: dict[int, list[tuple[Position, str]]] = defaultdict(list)
    copies: dict[str, list[Position]] = defaultdict(list)
    for position, content, key in stored:
        assert content in sends, f"{content} at {position} was never sent"
        assert key == sends[content].detail, f"{content} has the key {key!r}, sent with {sends[content]}"
        by_partition[position[0]].append((position, content))
        copies[content].append(position)
    for content, receipt in receipts.items():
        found = copies.get(content, [])
        assert found or not keeps_all, f"lost: {receipt}"
        # Without the first chunk, whose receipt came before the fault, the others are sent again: the receipt
        # is that of another last chunk than the one that completes the message.
        is_repeated = content in large and was_resent(content)
        if found and receipt.position is not None and not is_repeated:
            assert receipt.position in found, f"{receipt}, but it is stored at {found}"
    for content, positions in copies.items():
        assert len({position[0] for position in positions}) == 1, f"{content} in two partitions: {positions}"
        if len(positions) > 1:
            assert not deduplicated, f"{content} is stored twice: {positions}"
            assert was_resent(content), f"{content} is stored twice without a fault: {positions}"
    for messages in by_partition.values():
        places = [position for position, _ in messages]
        assert places == sorted(set(places)), f"a reader went back: {places}"
        _check_order(messages, sends, receipts, order_of)


def _check_order(
    messages: Sequence[tuple[Position, str]],
    sends: dict[str, Event],
    receipts: dict[str, Event],
    order_of: Callable[[str], str],
) -> None:
    """Check that a partition is in the order of sending: each producer's, and in real time."""
    first: dict[str, Position] = {}
    newest: dict[tuple[str, str], int] = {}
    for position, content in messages:
        if content in first:
            continue
        first[content] = position
        producer, _, number = content.partition("-")
        order = producer, order_of(sends[content].detail)
        assert int(number) > newest.get(order, -1), f"{content} at {position} is behind {newest[order]}"
        newest[order] = int(number)
    earliest = float("inf")
    for content in reversed(first):
        assert earliest >= sends[content].at, f"{sends[content]} is before a message receipted at {earliest}"
        receipt = receipts.get(content)
        if receipt is not None:
            earliest = min(earliest, receipt.at)


def check_subscription(
    history: History, name: str, kind: str, *, in_queues: float = IN_QUEUES_SECONDS
) -> None:
    """Check that messages are in order, and none is redelivered after its acknowledgement was confirmed.

    ``in_queues``: the longest time for which a message waits in a client's queue. A seek makes all messages
    new; until it has ended, nothing is checked.
    """
    sends = {event.content: event for event in history.of("send")}
    asked: set[Position] = set()
    confirmed: dict[Position, float] = {}
    seen: set[Position] = set()
    newest: dict[tuple[int, str], Position] = {}
    refused: set[tuple[int, ...]] = set()
    is_seeking = False
    kinds = "received", "refusing", "acknowledging", "acknowledged", "seeking", "sought"
    for event in history.of(*kinds, who=name):
        if event.kind in ("seeking", "sought"):
            is_seeking = event.kind == "seeking"
            asked, confirmed, seen, newest = set(), {}, set(), {}
            continue
        position = event.position
        assert position is not None
        if event.kind == "refusing":
            refused.add(position[:3])  # also delays the other messages of a batch, and those of its key
        elif event.kind == "acknowledging":
            asked.add(position)
        elif event.kind == "acknowledged":
            if position in asked and not is_seeking:
                confirmed.setdefault(position, event.at)
        else:
            assert event.content in sends, f"never sent: {event}"
            late = confirmed.get(position, float("inf")) + in_queues
            assert event.at <= late, f"acknowledged at {confirmed.get(position)} and again: {event}"
            key = sends[event.content].detail if kind == "KeyShared" else ""
            if (
                position in seen
                or position[:3] in refused
                or is_seeking
                or kind == "Shared"
                or (kind == "KeyShared" and not key)
            ):
                continue
            seen.add(position)
            order = position[0], key
            assert position > newest.get(order, (-1,)), f"behind {newest.get(order)}: {event}"
            newest[order] = position


def missing(history: History, contents: Iterable[str], name: str) -> list[str]:
    """Return those of ``contents`` that the subscription has not acknowledged since the last seek.

    An acknowledgement without a confirmation counts: where it was lost, the backlog stays.
    """
    acknowledged: set[str] = set()
    for event in history.of("acknowledging", "seeking", who=name):
        if event.kind == "seeking":
            acknowledged.clear()
        else:
            acknowledged.add(event.content)
    return sorted(set(contents) - acknowledged)
