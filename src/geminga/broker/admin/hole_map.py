"""Map of ack holes: the parts of a topic that a subscription has acknowledged, at any scale.

A range of entries is cut into cells, each with its numbers of acknowledged and of partly acknowledged
entries. The cost depends on the number of cells and, in bits, on the entries between them, so ten million
holes are as cheap to draw as ten. A range with no more entries than cells lists entries and messages.

Positions are offsets: entries counted from the topic's first, over all ledgers.
"""

from typing import Any, Final

from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.key_shared import KeySharedDispatcher
from geminga.broker.delivery.ranges import RangeSet
from geminga.broker.delivery.shared import SharedDispatcher
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.topics.persistent import PersistentTopic

Json = dict[str, Any]
CELLS_MAX: Final = 1024
ENTRIES_MAX: Final = 400
"""Longest range that is listed entry by entry."""
BATCHES_COUNTED_MAX: Final = 10_000
RUNS_MAX: Final = 64
"""Runs of open messages that are listed for a batch."""
LEDGERS_SHOWN_MAX: Final = 200
DAMAGE_SHOWN_MAX: Final = 100


def hole_map(
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    start: int | None,
    stop: int | None,
    cells: int,
) -> Json:
    """Map the range ``start <= offset < stop`` (default: the whole topic) to at most ``cells`` cells."""
    ledger, cursor = topic.ledger, subscription.cursor
    first, end = ledger.start, ledger.confirmed
    low = min(max(first, first if start is None else start), end)
    high = max(low, min(end, end if stop is None else stop))
    dispatcher = subscription.dispatcher
    read = dispatcher.read_offset if dispatcher is not None else cursor.mark
    found: Json = {
        "topic": topic.text,
        "subscription": subscription.name,
        "first": first,
        "end": end,
        "from": low,
        "to": high,
        "mark": max(first, cursor.mark),
        "read": min(max(read, cursor.mark), end),
        "holes": cursor.hole_count(),
        "partlyAcknowledgedBatches": len(cursor.batches),
        "acknowledgedBehindMark": len(cursor.holes),
        "ledgers": _ledgers(topic, low, high),
        "ledgerCount": len(ledger.segments),
        "damaged": [
            [max(low, a), min(high, b)] for a, b in ledger.damaged if b > low and a < high
        ][:DAMAGE_SHOWN_MAX],
    }  # fmt: skip
    if high - low <= ENTRIES_MAX:
        holders = _holders(subscription, low, high)
        found["entries"] = [
            _entry(topic, subscription, offset, holders.get(offset)) for offset in range(low, high)
        ]
        return found
    width, acknowledged = histogram(cursor.holes, cursor.mark, low, high, cells)
    partly = _partly(subscription, low, high, width, len(acknowledged))
    return found | {"width": width, "acknowledged": acknowledged, "partly": partly}


def histogram(holes: RangeSet, mark: int, low: int, high: int, cells: int) -> tuple[int, list[int]]:
    """Return the width of at most ``cells`` cells of a range, and the acknowledged entries of each."""
    width = -(-(high - low) // max(1, min(cells, CELLS_MAX)))
    acknowledged = holes.histogram(low, high, width)
    for cell, start in enumerate(range(low, high, width)):
        # Everything below the mark is acknowledged, and not among the holes.
        acknowledged[cell] += min(max(0, mark - start), width, high - start)
    return width, acknowledged


def _partly(subscription: PersistentSubscription, low: int, high: int, width: int, cells: int) -> list[int]:
    """Estimate the partly acknowledged batches of each cell; very many are sampled."""
    counts = [0] * cells
    batches = subscription.cursor.batches
    if len(batches) <= high - low:
        every = 1 + len(batches) // BATCHES_COUNTED_MAX
        offsets = list(batches)[::every]
    else:
        every = 1 + (high - low) // BATCHES_COUNTED_MAX
        offsets = [at for at in range(low, high, every) if at in batches]
    for offset in offsets:
        if low <= offset < high:
            counts[(offset - low) // width] += every
    return [min(count, width) for count in counts]


def _ledgers(topic: PersistentTopic, low: int, high: int) -> list[Json]:
    """Return the ledgers of a range; of too many an even selection."""
    ledger = topic.ledger
    begin = max(0, ledger.index_of(low))
    stop = ledger.index_of(max(low, high - 1)) + 1
    step = max(1, -(-(stop - begin) // LEDGERS_SHOWN_MAX))
    return [
        {"ledgerId": each.ledger_id, "first": each.base, "entries": each.entries, "bytes": each.size_bytes}
        for each in ledger.segments[begin:stop:step]
    ]


def _holders(subscription: PersistentSubscription, low: int, high: int) -> dict[int, Consumer]:
    """Return the consumers that hold the entries of a short range."""
    found: dict[int, Consumer] = {}
    for consumer in subscription.consumers:
        pending = consumer.pending
        if len(pending) <= high - low:
            held = [offset for offset in pending if low <= offset < high]
        else:
            held = [offset for offset in range(low, high) if offset in pending]
        for offset in held:
            found.setdefault(offset, consumer)
    return found


def _entry(
    topic: PersistentTopic, subscription: PersistentSubscription, offset: int, holder: Consumer | None
) -> Json:
    """Return one entry: ``state``, and the runs of its open messages."""
    ledger, cursor = topic.ledger, subscription.cursor
    dispatcher = subscription.dispatcher
    segment = ledger.segment_of(offset)
    if segment is None or not segment.base <= offset < segment.end:
        return {"offset": offset, "id": "", "state": "missing"}
    entry: Json = {"offset": offset, "id": f"{segment.ledger_id}:{offset - segment.base}"}
    entry["messages"], entry["bytes"] = ledger.counts.of(offset)
    if any(a <= offset < b for a, b in ledger.damaged):
        entry["state"] = "damaged"
    elif cursor.is_acknowledged(offset):
        entry["state"] = "acknowledged"
    else:
        entry["state"] = "open"
        if offset in cursor.batches:
            entry["state"] = "partly"
            entry["open"] = [list(each) for each in cursor.open_ranges(offset)[:RUNS_MAX]]
        if isinstance(dispatcher, SharedDispatcher):
            if dispatcher.is_delayed(offset):
                entry["delayed"] = True
            if isinstance(dispatcher, KeySharedDispatcher) and offset in dispatcher.ahead:
                entry["ahead"] = True
            elif dispatcher.is_again(offset):
                entry["again"] = True
            times = dispatcher.redelivery_count(offset)
            if times:
                entry["redeliveries"] = times
        if holder is not None:
            entry["consumer"] = holder.name
        elif dispatcher is not None and offset < dispatcher.read_offset and "ahead" not in entry:
            entry["sent"] = True
    return entry
