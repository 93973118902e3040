"""Map of ack holes and overview of all subscriptions, computed from Apache Pulsar's stats and internalStats.

Levels and sentences are those of `geminga.diagnosis`. Apache Pulsar counts backlogs in entries, so numbers of
messages are unknown (-1). The JSON has the form of Geminga's ``/admin/v2/geminga``.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from geminga.broker.admin.hole_map import ENTRIES_MAX, histogram
from geminga.broker.admin.subscription_overview import base_of, matches, runs
from geminga.broker.delivery.ranges import RangeSet
from geminga.diagnosis.conclude import Trouble, diagnose
from geminga.diagnosis.pulsar import facts_from_stats, ids_of

Json = dict[str, Any]


# --- the map of holes -------------------------------------------------------------------------------


class Places:
    """Ledgers as one sequence of entries; converts entry ids to offsets and back."""

    def __init__(self, inside: Mapping[str, Any]) -> None:
        """``inside``: the topic's internalStats."""
        self.ledgers: list[tuple[int, int, int]] = []
        last_ledger, _, last_entry = str(inside.get("lastConfirmedEntry", "-1:-1")).partition(":")
        base = 0
        for each in inside.get("ledgers", []):
            entries = each["entries"]
            if each["ledgerId"] == int(last_ledger):
                entries = int(last_entry) + 1  # the open ledger reports 0 entries
            self.ledgers.append((each["ledgerId"], base, entries))
            base += entries
        self.end = base
        self._bases = [first for _, first, _ in self.ledgers]

    def offset(self, ledger_id: int, entry_id: int) -> int:
        """Return the offset of an id, or of the next entry if the id does not exist."""
        for known, base, entries in self.ledgers:
            if ledger_id < known:
                return base
            if ledger_id == known:
                return base + min(max(entry_id, 0), entries)
        return self.end

    def position(self, offset: int) -> tuple[int, int]:
        """Return the id of an offset; -1:-1 on a topic without ledgers."""
        if not self.ledgers:
            return (-1, -1)
        index = max(0, bisect_right(self._bases, offset) - 1)
        ledger_id, base, _ = self.ledgers[index]
        return ledger_id, offset - base


def hole_map(inside: Mapping[str, Any], name: str, start: int | None, stop: int | None, cells: int) -> Json:
    """Return the map of ack holes from a topic's internalStats. Raises `KeyError` for an unknown cursor."""
    cursor = inside["cursors"][name]
    places = Places(inside)
    mark = _offset_behind(places, cursor["markDeletePosition"])
    read = places.offset(*ids_of(cursor["readPosition"]))
    holes = RangeSet()
    for first, last in _ranges(str(cursor.get("individuallyDeletedMessages", ""))):
        holes.add_range(max(mark, _offset_behind(places, first)), _offset_behind(places, last))
    low = min(max(0, start or 0), places.end)
    high = max(low, min(places.end, places.end if stop is None else stop))
    shown = [each for each in places.ledgers if each[1] + each[2] > low and each[1] < high]
    found: Json = {
        "first": 0, "end": places.end, "from": low, "to": high, "mark": mark, "read": max(mark, read),
        "holes": holes.range_count(), "partlyAcknowledgedBatches": 0, "acknowledgedBehindMark": len(holes),
        "ledgers": [{"ledgerId": a, "first": b, "entries": c, "bytes": -1} for a, b, c in shown[:200]],
        "ledgerCount": len(places.ledgers), "damaged": [],
    }  # fmt: skip
    if high - low <= ENTRIES_MAX:
        found["entries"] = [_entry(places, holes, mark, read, offset) for offset in range(low, high)]
        return found
    width, acknowledged = histogram(holes, mark, low, high, cells)
    return found | {"width": width, "acknowledged": acknowledged, "partly": [0] * len(acknowledged)}


def _entry(places: Places, holes: RangeSet, mark: int, read: int, offset: int) -> Json:
    ledger_id, entry_id = places.position(offset)
    is_acknowledged = offset < mark or offset in holes
    entry: Json = {"offset": offset, "id": f"{ledger_id}:{entry_id}", "messages": -1, "bytes": -1}
    entry["state"] = "acknowledged" if is_acknowledged else "open"
    return entry if is_acknowledged or offset >= read else entry | {"sent": True}


def _offset_behind(places: Places, position: str) -> int:
    ledger_id, entry_id = ids_of(position)
    return places.offset(ledger_id, entry_id + 1)


def _ranges(text: str) -> list[tuple[str, str]]:
    """Parse ``[(3:5..3:7],(3:9..3:12]]``: each range excludes its first id and includes its last."""
    return re.findall(r"\((-?\d+:-?\d+)\.\.(-?\d+:-?\d+)\]", text)


# --- all subscriptions ------------------------------------------------------------------------------

_ORDERS: Final = {
    "trouble": ("trouble", "entries"), "backlog": ("entries",), "unacked": ("unacked",),
    "consumers": ("consumers",), "in": ("rateIn",), "out": ("rateOut",), "name": (),
}  # fmt: skip
"""Fields that sort subscriptions, the largest first, by the name of the order; the default is the first."""
_TOPIC_ORDERS: Final = {
    "name": (), "trouble": ("trouble",), "in": ("rateIn",), "out": ("rateOut",), "stored": ("stored",),
    "subscriptions": ("subscriptions",),
}  # fmt: skip


def _topics(broker_stats: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    """Yield the name and stats of each topic in ``broker-stats/topics``."""
    for bundles in broker_stats.values():
        for domains in bundles.values():
            for found in domains.values():
                yield from found.items()


def rows_of(broker_stats: Mapping[str, Any], now_ms: int) -> Iterator[Json]:
    """Yield a row for each subscription in ``broker-stats/topics``; partitions have separate rows."""
    for topic, stats in _topics(broker_stats):
        for name, own in stats.get("subscriptions", {}).items():
            yield _row(topic, name, stats, own, now_ms)


def _row(topic: str, name: str, stats: Json, own: Json, now_ms: int) -> Json:
    facts = facts_from_stats(topic, name, stats, {}, now_ms)
    found = diagnose(facts)
    consumers = own.get("consumers") or [{}]
    return {
        "topic": topic, "subscription": name, "partitions": 0, "worst": topic,
        "awake": True, "type": facts.type, "durable": own.get("isDurable", True),
        "consumers": facts.consumer_count, "messages": -1, "bytes": facts.bytes, "entries": facts.backlog,
        "oldestSeconds": facts.oldest_seconds, "unacked": facts.held, "delayed": facts.delayed,
        "holes": facts.holes, "rateIn": facts.rate_in, "rateOut": own.get("msgRateOut", 0.0),
        "trouble": found.level, "kind": found.kind, "sentence": found.sentence,
        "runs": runs(name, consumers[0].get("metadata")),
    }  # fmt: skip


def grouped(rows: Iterator[Json]) -> list[Json]:
    """Merge the rows of a topic's partitions: sums, and the sentence of the worst partition."""
    found: dict[tuple[str, str], Json] = {}
    for row in rows:
        base = base_of(row["topic"])
        known = found.get((base, row["subscription"]))
        if known is None:
            found[base, row["subscription"]] = row | {"topic": base, "partitions": int(base != row["topic"])}
            continue
        if (row["trouble"], row["entries"]) > (known["trouble"], known["entries"]):
            known |= {name: row[name] for name in ("worst", "kind", "sentence", "trouble")}
        known["partitions"] += 1
        for name in ("consumers", "entries", "unacked", "delayed", "holes", "rateIn", "rateOut"):
            known[name] += row[name]
        known["oldestSeconds"] = max(known["oldestSeconds"], row["oldestSeconds"])
    return list(found.values())


def topic_rows(broker_stats: Mapping[str, Any], rows: list[Json]) -> list[Json]:
    """Return a row for each topic, partitions merged; ``rows`` are those of the subscriptions."""
    found: dict[str, Json] = {}
    for topic, stats in _topics(broker_stats):
        base = base_of(topic)
        row = found.setdefault(
            base,
            {"topic": base, "partitions": 0, "awake": True, "rateIn": 0.0, "rateOut": 0.0, "producers": 0,
             "stored": 0, "subscriptions": 0, "schema": "", "compacted": False, "trouble": 0, "worst": "",
             "sentence": ""},
        )  # fmt: skip
        row["partitions"] += base != topic
        row["producers"] = max(row["producers"], len(stats.get("publishers", ())))
        for name, field in ("rateIn", "msgRateIn"), ("rateOut", "msgRateOut"), ("stored", "storageSize"):
            row[name] += stats.get(field, 0)
    for each in rows:
        row = found[each["topic"]]
        row["subscriptions"] += 1
        if each["trouble"] > row["trouble"] or not row["worst"]:
            row |= {"trouble": each["trouble"], "worst": each["subscription"], "sentence": each["sentence"]}
    return list(found.values())


def board(rows: list[Json], query: Mapping[str, str], now_ms: int) -> Json:
    """Return a page of the subscription overview. Raises `ValueError` for bad numbers and unknown orders."""
    found, matching = _page(rows, query, now_ms, _ORDERS)
    found["totals"] |= {
        "topics": len({row["worst"] for row in rows}),
        "entriesInBacklog": sum(row["entries"] for row in matching),
        "msgRateIn": sum({row["topic"]: row["rateIn"] for row in matching}.values()),
    }
    return found


def topics(rows: list[Json], query: Mapping[str, str], now_ms: int) -> Json:
    """Return a page of the overview of topics. Raises `ValueError` as `board` does."""
    return _page(rows, query, now_ms, _TOPIC_ORDERS)[0]


def _page(
    rows: list[Json], query: Mapping[str, str], now_ms: int, orders: Mapping[str, tuple[str, ...]]
) -> tuple[Json, list[Json]]:
    """Return a page, and all rows that match the search."""
    words = query.get("search", "").lower().split()
    level = query.get("level", "")
    matching = [
        row for row in rows
        if matches(words, row["topic"], row.get("subscription", ""), row.get("runs", ""))
    ]  # fmt: skip
    levels = Counter(row["trouble"] for row in matching)
    chosen = [row for row in matching if not level or row["trouble"] == int(level)]
    order = query.get("sort") or next(iter(orders))
    if order not in orders:
        raise ValueError(f"sort={order!r} is not allowed; allowed: {', '.join(orders)}")

    def key(row: Json) -> tuple[Any, ...]:
        return *(-row[field] for field in orders[order]), row["topic"], row.get("subscription", "")

    chosen.sort(key=key, reverse=query.get("reverse", "").lower() == "true")
    offset, limit = int(query.get("offset") or 0), min(200, int(query.get("limit") or 50))
    found = {
        "rows": chosen[offset : offset + limit],
        "offset": offset,
        "matching": len(chosen),
        "totals": {
            "subscriptions": len(matching), "leftOut": 0, "topics": len(matching),
            "levels": [levels[each] for each in Trouble],
            "msgRateIn": sum(row["rateIn"] for row in matching),
            "msgRateOut": sum(row["rateOut"] for row in matching),
        },
        "complete": True,
        "surveyedAt": now_ms,
        "surveySeconds": 0.0,
        "now": now_ms,
    }  # fmt: skip
    return found, matching
