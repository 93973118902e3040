"""Pages of everything that a subscription has acknowledged, for mirroring it to another broker.

Internal statistics show only the first holes; a mirror needs all of them. Consecutive pages are no snapshot:
an acknowledgement made between two pages may be missing.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Any, Final

from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.topics.persistent import PersistentTopic

Json = dict[str, Any]
RANGES_MAX: Final = 10_000


def cursor_page(
    topic: PersistentTopic, subscription: PersistentSubscription, after: int | None, limit: int
) -> Json:
    """Return at most ``limit`` ranges, and as many batches, behind ``after``, the previous page's ``next``.

    The fields are those of internal statistics, and ``next``: None on the last page.
    """
    ledger, cursor = topic.ledger, subscription.cursor
    mark = ledger.position_before(cursor.mark)
    begin = 0 if after is None else after
    ranges = list(islice(cursor.holes.ranges(begin=begin), limit))
    batches = heapq.nsmallest(limit, (offset for offset in cursor.batches if offset >= begin))
    stops = []
    if len(ranges) == limit:
        stops.append(ranges[-1][1])
    if len(batches) == limit:
        stops.append(batches[-1] + 1)
    stop = min(stops) if stops else None
    shown = []
    for low, high in ranges:
        high = high if stop is None else min(high, stop)
        if low < high:
            before, last = ledger.position_before(low), ledger.position(high - 1)
            shown.append(f"({before[0]}:{before[1]}..{last[0]}:{last[1]}]")
    partly = {}
    for offset in batches:
        if stop is None or offset < stop:
            ledger_id, entry_id = ledger.position(offset)
            messages = ledger.counts.of(offset)[0]
            partly[f"{ledger_id}:{entry_id}"] = {"messages": messages, "open": cursor.open_ranges(offset)}
    return {
        "markDeletePosition": f"{mark[0]}:{mark[1]}",
        "individuallyDeletedMessages": f"[{','.join(shown)}]",
        "partlyAcknowledgedBatches": partly,
        "next": stop,
    }
