"""Positions of a subscription, as reported by admin REST of source and target."""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from geminga.admin import InternalStats, topic_path
from geminga.asyncio import Admin
from geminga.mirror.pairing import PREFIX
from geminga.mirror.positions import NOWHERE, Position, parse_position

logger = logging.getLogger("geminga.mirror")

_RANGE = re.compile(r"[(\[](-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)[\])]")
_BROKERS_OWN = ("__compaction", "pulsar.dedup", "pulsar.repl.", PREFIX)
HOLES_MAX = 1_000_000
"""Maximum ack holes of a subscription that are mirrored, from its front."""
_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class PartialBatch:
    """A batch of ``messages`` messages, of which those at the indexes ``done`` are acknowledged."""

    messages: int
    done: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CursorState:
    """State of a subscription in the source. ``holes``: acknowledged ranges; each excludes its first position
    and includes its second."""

    marked: Position
    holes: tuple[tuple[Position, Position], ...] = ()
    partly: tuple[tuple[Position, PartialBatch], ...] = ()
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def highest(self) -> Position:
        ends = [self.marked, *(high for _, high in self.holes), *(place for place, _ in self.partly)]
        return max(ends)


async def source_cursors(admin: Admin, topic: str) -> dict[str, CursorState]:
    """Return the durable subscriptions of a topic or partition, without those of brokers and mirrors."""
    stats = await admin.topics.stats(topic)
    names = [
        name
        for name, subscription in stats.subscriptions.items()
        if subscription.durable and not name.startswith(_BROKERS_OWN)
    ]
    if not names:
        return {}
    inside = await admin.topics.internal_stats(topic)
    found = {}
    for name in names:
        cursor = inside.cursors.get(name)
        if cursor is None:
            continue
        properties = tuple(sorted(stats.subscriptions[name].subscription_properties.items()))
        if _is_whole(cursor.raw):
            found[name] = CursorState(
                parse_position(cursor.mark_delete_position),
                tuple(parse_ranges(cursor.individually_deleted_messages)),
                tuple(_partly(cursor.raw.get("partlyAcknowledgedBatches") or {})),
                properties,
            )
        else:
            found[name] = await _in_pages(admin, topic, name, properties)
    return found


def parse_ranges(text: str) -> list[tuple[Position, Position]]:
    """Parse ``[(3:0..3:5],(3:7..3:8]]``, the ranges of internal statistics."""
    found = []
    for match in _RANGE.finditer(text):
        low_ledger, low_entry, high_ledger, high_entry = map(int, match.groups())
        low, high = Position(low_ledger, low_entry), Position(high_ledger, high_entry)
        if match[0][0] == "[":
            low = Position(low.ledger, low.entry - 1)
        if match[0][-1] == ")":
            high = Position(high.ledger, high.entry - 1)
        found.append((low, high))
    return found


def _is_whole(raw: Any) -> bool:
    """Return whether all holes are listed: Geminga's statistics list the first ones, Apache Pulsar's all."""
    if "partlyAcknowledgedBatchCount" not in raw:
        return True
    shown = len(parse_ranges(raw.get("individuallyDeletedMessages", "")))
    return shown >= int(raw.get("totalNonContiguousDeletedMessagesRange", 0)) and len(
        raw.get("partlyAcknowledgedBatches") or {}
    ) >= int(raw["partlyAcknowledgedBatchCount"])


def _partly(raw: Any) -> Iterable[tuple[Position, PartialBatch]]:
    for place, batch in raw.items():
        messages = int(batch.get("messages", 0))
        left = {index for first, last in batch["open"] for index in range(first, last + 1)}
        if messages > 0:
            done = tuple(index for index in range(messages) if index not in left)
            yield parse_position(place), PartialBatch(messages, done)


async def _in_pages(
    admin: Admin, topic: str, name: str, properties: tuple[tuple[str, str], ...]
) -> CursorState:
    path = f"{topic_path(topic)}/subscription/{quote(name, safe='')}/cursor"
    holes: list[tuple[Position, Position]] = []
    partly: list[tuple[Position, PartialBatch]] = []
    marked: Position | None = None
    after: int | None = None
    while True:
        page = await admin.call("GET", path, query={"after": after, "limit": _PAGE})
        if marked is None:
            marked = parse_position(page["markDeletePosition"])
        holes += parse_ranges(page["individuallyDeletedMessages"])
        partly += _partly(page["partlyAcknowledgedBatches"])
        after = page["next"]
        if len(holes) + len(partly) >= HOLES_MAX and after is not None:
            logger.warning(
                "%s of %s has more than %d holes: messages acknowledged after these are redelivered in the "
                "target", name, topic, HOLES_MAX,
            )  # fmt: skip
            after = None
        if after is None:
            return CursorState(marked, tuple(holes), tuple(partly), properties)


def mark_of(inside: InternalStats, name: str) -> Position:
    cursor = inside.cursors.get(name)
    return NOWHERE if cursor is None else parse_position(cursor.mark_delete_position)
