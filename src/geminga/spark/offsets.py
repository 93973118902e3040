"""Offsets: positions up to which a query has read each partition, as JSON for any later run.

An offset is the position of the last message read: ``"ledger:entry"`` (the whole entry), or
``"ledger:entry:index"`` (up to that index of a batch). ``"-1:-1"`` is before the first message, ``"7:-1"``
before the first entry of ledger 7. A range between two offsets excludes its start and includes its end, so
that the end of one micro-batch is the start of the next. Offsets of a source::

    {"persistent://public/default/flights": {"0": "5:1041", "1": "6:988"}}

A topic without partitions has the partition ``"-1"``. In a checkpoint the key ``"query"`` holds the rest of a
restart's state: the query's ``"subscription"``; for the first micro-batch, its ``"start"``; in ``"first"``,
while a partition is read from its first message on, the offset before that message; and in ``"waiting"`` the
end of the backlog that the micro-batch did not take.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from geminga.errors import InvalidConfiguration
from geminga.ids import MessageId, TopicName

WHOLE_ENTRY = (1 << 31) - 1
"""The batch index of an offset after every message of its entry."""

_UNKNOWN_END = (1 << 63) - 1


class Offset(NamedTuple):
    """Position in one partition; offsets order like the messages they follow."""

    ledger: int
    entry: int
    batch_index: int = WHOLE_ENTRY

    def __str__(self) -> str:
        text = f"{self.ledger}:{self.entry}"
        return text if self.batch_index == WHOLE_ENTRY else f"{text}:{self.batch_index}"

    @staticmethod
    def parse(text: str) -> Offset:
        """Raises `InvalidConfiguration` naming the text and the allowed form."""
        parts = str(text).split(":")
        try:
            if len(parts) not in (2, 3):
                raise ValueError
            numbers = [int(part) for part in parts]
            if min(numbers) < -1:
                raise ValueError
        except ValueError:
            raise InvalidConfiguration(
                f"offset {text!r} is not of the form 'ledger:entry' or 'ledger:entry:batch index'"
            ) from None
        index = numbers[2] if len(numbers) == 3 and numbers[2] >= 0 else WHOLE_ENTRY
        return Offset(numbers[0], numbers[1], index)

    @staticmethod
    def through(message_id: MessageId) -> Offset:
        """Return the offset after ``message_id``."""
        index = message_id.batch_index if message_id.batch_index >= 0 else WHOLE_ENTRY
        return Offset(message_id.ledger_id, message_id.entry_id, index)

    @staticmethod
    def after_entry(ledger: int, entry: int) -> Offset:
        return Offset(ledger, entry)

    @property
    def inclusive_start(self) -> Offset:
        """Return the offset after which the message at this position is the next."""
        if self in (EARLIEST, LATEST):
            return self
        if 0 < self.batch_index < WHOLE_ENTRY:
            return Offset(self.ledger, self.entry, self.batch_index - 1)
        return Offset(self.ledger, self.entry - 1)

    @property
    def next_place(self) -> MessageId:
        """Return the start of a reader for the next messages: the entry after this offset, or its own entry
        if some of its messages are unread."""
        if self.ledger < 0:
            return MessageId.earliest
        return MessageId(-1, self.ledger, self.entry + (self.batch_index == WHOLE_ENTRY))


EARLIEST = Offset(-1, -1)
LATEST = Offset(_UNKNOWN_END, _UNKNOWN_END)


def entries_between(start: Offset, end: Offset) -> int | None:
    """Return the number of entries after ``start`` up to ``end``; None when they are in different ledgers."""
    if start.ledger != end.ledger or start.ledger < 0:
        return None
    return end.entry - start.entry + (start.batch_index != WHOLE_ENTRY)


def is_another_topic(place: Offset, newest: Offset) -> bool:
    """Return whether the topic was recreated since ``place`` was read: its newest message, at ``newest``, is
    before ``place``, which is impossible in one topic. An empty topic (`EARLIEST`) may be the old one."""
    return place.entry >= 0 <= newest.entry and newest[:2] < place[:2]


Partition = tuple[str, int]
"""(topic without partition suffix, partition index or -1)"""

OTHERS: Partition = ("*", -1)
"""Stands for all partitions that an option's offsets do not name; no topic has this full name."""

Offsets = dict[Partition, Offset]


def partition_topic(partition: Partition) -> str:
    """Return the full name of the partition's own topic."""
    topic, index = partition
    return topic if index < 0 else str(TopicName.parse(topic).partition_name(index))


def to_json(offsets: Mapping[Partition, Offset]) -> dict[str, dict[str, str]]:
    """Return the JSON form, in a fixed order: Spark compares offsets by their text."""
    found: dict[str, dict[str, str]] = {}
    for (topic, index), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(index)] = str(offset)
    return found


def from_json(value: Mapping[str, Any] | str) -> Offsets:
    """Parse the offsets of a checkpoint or of an option. Raises `InvalidConfiguration` naming the fault.

    Instead of a map of its partitions, a topic may have one offset, or one message id as a list of bytes (the
    form of the Scala connector), for the topic without partitions or for the partition that its name
    contains. ``"*"`` instead of a topic's name is `OTHERS`.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidConfiguration(f"offsets {value!r} are no JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidConfiguration(f"offsets {value!r} are not a map from topic to partitions")
    offsets: Offsets = {}
    for name, partitions in value.items():
        if name == OTHERS[0]:
            offsets[OTHERS] = _place_of_others(partitions)
            continue
        topic = TopicName.parse(name)
        if not isinstance(partitions, Mapping):
            partitions = {topic.partition: partitions}
            topic = topic.base
        for index, place in partitions.items():
            try:
                number = int(index)
            except ValueError:
                raise InvalidConfiguration(f"offsets of {name}: partition {index!r} is no number") from None
            offsets[str(topic), number] = _place(name, place)
    return offsets


def _place_of_others(place: Any) -> Offset:
    if place not in ("earliest", "latest"):
        raise InvalidConfiguration(
            f"offsets of '*', the partitions that are not named: {place!r}; allowed: 'earliest', 'latest'"
        )
    return EARLIEST if place == "earliest" else LATEST


def _place(name: str, place: Any) -> Offset:
    if isinstance(place, list):
        try:
            return _named_end(MessageId.deserialize(bytes(byte & 0xFF for byte in place)))
        except (TypeError, ValueError) as error:
            raise InvalidConfiguration(f"offsets of {name}: {error}") from None
    if place == "earliest":
        return EARLIEST
    if place == "latest":
        return LATEST
    if not isinstance(place, str):
        raise InvalidConfiguration(
            f"offsets of {name}: {place!r} is not allowed; allowed: 'earliest', 'latest' or an id like '5:12'"
        )
    return Offset.parse(place)


def _named_end(message_id: MessageId) -> Offset:
    if message_id == MessageId.earliest:
        return EARLIEST
    if message_id == MessageId.latest:
        return LATEST
    return Offset.through(message_id)


_QUERY = "query"  # topic names in a checkpoint are full, so none equals this key


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State of a query that Spark stores for one end of a micro-batch."""

    offsets: Offsets
    subscription: str | None = None
    """The query's own subscription."""
    start: Offsets | None = None
    """Start of the first micro-batch, which Spark does not store otherwise; None for later ones."""
    first: Offsets = field(default_factory=dict)
    """For partitions read from `EARLIEST`: the offset before the first message that the query saw. If that
    message is gone before it was read, messages were lost."""
    waiting: Offsets = field(default_factory=dict)
    """For partitions with more messages than the micro-batch takes, if the query has a subscription: the
    offset after the newest message. Until it is read, the subscription's cursor is before it."""

    def to_json(self) -> dict[str, Any]:
        query: dict[str, Any] = {}
        if self.subscription is not None:
            query["subscription"] = self.subscription
        if self.start is not None:
            query["start"] = to_json(self.start)
        if self.first:
            query["first"] = to_json(self.first)
        if self.waiting:
            query["waiting"] = to_json(self.waiting)
        return {**to_json(self.offsets), **({_QUERY: query} if query else {})}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Checkpoint:
        query = value.get(_QUERY, {})
        start = query.get("start")
        return Checkpoint(
            offsets=from_json({name: places for name, places in value.items() if name != _QUERY}),
            subscription=query.get("subscription"),
            start=None if start is None else from_json(start),
            first=from_json(query.get("first", {})),
            waiting=from_json(query.get("waiting", {})),
        )


def behind_message(message_id: MessageId) -> Offset:
    """Return the offset after a message, `EARLIEST` for none."""
    if message_id.entry_id < 0:
        return EARLIEST
    return Offset.after_entry(message_id.ledger_id, message_id.entry_id)
