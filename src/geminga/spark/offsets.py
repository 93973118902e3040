"""Offsets: how far a query has read each partition, as JSON that any later run understands.

An offset is the place of the last message that was read: ``"ledger:entry"`` (the whole entry), or
``"ledger:entry:index"`` (up to that position of a batch). ``"-1:-1"`` lies before the first message,
``"7:-1"`` before the first entry of ledger 7. A range between two offsets excludes its start and includes
its end, so that the end of one micro-batch is the start of the next. Offsets of a source::

    {"persistent://public/default/flights": {"0": "5:1041", "1": "6:988"}}

A topic without partitions has the partition ``"-1"``. In a checkpoint the key ``"query"`` holds what else a
restart needs: the query's ``"subscription"``; for the first micro-batch, its ``"start"``; as long as a
partition is read from its first message on, the place before the one that was its ``"first"``; and where more
was there than the micro-batch takes, how far that went in ``"waiting"``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from geminga.errors import InvalidConfiguration
from geminga.ids import MessageId, TopicName

WHOLE_ENTRY = (1 << 31) - 1
"""The batch index of an offset behind every message of its entry."""

_UNKNOWN_END = (1 << 63) - 1


class Offset(NamedTuple):
    """A place in one partition; offsets order like the messages they follow."""

    ledger: int
    entry: int
    batch_index: int = WHOLE_ENTRY

    def __str__(self) -> str:
        text = f"{self.ledger}:{self.entry}"
        return text if self.batch_index == WHOLE_ENTRY else f"{text}:{self.batch_index}"

    @staticmethod
    def parse(text: str) -> Offset:
        """Raises `InvalidConfiguration` naming the text and the form."""
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
        """Everything up to and with ``message_id`` is read."""
        index = message_id.batch_index if message_id.batch_index >= 0 else WHOLE_ENTRY
        return Offset(message_id.ledger_id, message_id.entry_id, index)

    @staticmethod
    def after_entry(ledger: int, entry: int) -> Offset:
        return Offset(ledger, entry)

    @property
    def inclusive_start(self) -> Offset:
        """The offset from which the message at this place is the next to be read."""
        if self in (EARLIEST, LATEST):
            return self
        if 0 < self.batch_index < WHOLE_ENTRY:
            return Offset(self.ledger, self.entry, self.batch_index - 1)
        return Offset(self.ledger, self.entry - 1)

    @property
    def next_place(self) -> MessageId:
        """Where a reader opens for what follows: at the entry behind this offset, or at its own entry when
        messages of that are left."""
        if self.ledger < 0:
            return MessageId.earliest
        return MessageId(-1, self.ledger, self.entry + (self.batch_index == WHOLE_ENTRY))


EARLIEST = Offset(-1, -1)
LATEST = Offset(_UNKNOWN_END, _UNKNOWN_END)


def entries_between(start: Offset, end: Offset) -> int | None:
    """Entries after ``start`` up to ``end``; None when they lie in different ledgers."""
    if start.ledger != end.ledger or start.ledger < 0:
        return None
    return end.entry - start.entry + (start.batch_index != WHOLE_ENTRY)


def is_another_topic(place: Offset, newest: Offset) -> bool:
    """Whether ``place`` was read in another topic than the one whose newest message is at ``newest``: what a
    topic has never ends before what was read of it. One that is empty (`EARLIEST`) may be the same."""
    return place.entry >= 0 <= newest.entry and newest[:2] < place[:2]


Partition = tuple[str, int]
"""(topic without partition suffix, partition index or -1)"""

OTHERS: Partition = ("*", -1)
"""In the offsets of an option, every partition that they do not name: no topic's full name is this."""

Offsets = dict[Partition, Offset]


def partition_topic(partition: Partition) -> str:
    """The full name of the partition's own topic."""
    topic, index = partition
    return topic if index < 0 else str(TopicName.parse(topic).partition_name(index))


def to_json(offsets: Mapping[Partition, Offset]) -> dict[str, dict[str, str]]:
    """The JSON form, in a fixed order: Spark compares offsets by their text."""
    found: dict[str, dict[str, str]] = {}
    for (topic, index), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(index)] = str(offset)
    return found


def from_json(value: Mapping[str, Any] | str) -> Offsets:
    """Offsets of a checkpoint or of an option. Raises `InvalidConfiguration` naming what is wrong.

    For a topic, besides a map of its partitions, one offset, or one message id as a list of bytes (the
    form that the Scala connector takes), stands for the topic without partitions or for the partition
    that its name says. ``"*"`` instead of a topic's name is `OTHERS`.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
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
        raise InvalidConfiguration(f"offsets of {name}: {place!r} is no text of the form 'ledger:entry'")
    return Offset.parse(place)


def _named_end(message_id: MessageId) -> Offset:
    if message_id == MessageId.earliest:
        return EARLIEST
    if message_id == MessageId.latest:
        return LATEST
    return Offset.through(message_id)


_QUERY = "query"  # names of topics in a checkpoint are full, so that none is called so


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What Spark keeps of a query's progress: one end of a micro-batch."""

    offsets: Offsets
    subscription: str | None = None
    """The query's own subscription."""
    start: Offsets | None = None
    """Where the micro-batch that ends here begins: of the first one, which Spark has no other note of."""
    first: Offsets = field(default_factory=dict)
    """Of partitions that the micro-batch reads from `EARLIEST` on, or leaves there: the place before the
    message that was the first one when the query first saw any. Where that is gone, it was not read."""
    waiting: Offsets = field(default_factory=dict)
    """Of partitions that have more than the micro-batch takes, where the query has a subscription: behind the
    newest message. Until that is read, the subscription stands before it."""

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
