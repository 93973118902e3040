"""Stored record of a topic: one JSON object under ``topic/<name>``."""

from __future__ import annotations

import json
import logging
from typing import Any

from geminga.errors import StoreDamaged
from geminga.ledger.api import StoredValue

log = logging.getLogger("geminga.broker")

Json = dict[str, Any]


class TopicRecord:
    """A topic's own properties. Times are milliseconds since 1970 by the broker's clock; 0 is not set.

    ``epoch`` counts exclusive owners, None before the first (`access`). ``due_ms`` is the topic's time in the
    expiry index (`expiry_index`). ``unused_ms`` and ``unused_subscriptions`` are the times of the last use,
    ``written_ms`` that of the last write to its last ledger (``written_ledger``) (`deadlines`).
    """

    __slots__ = (
        "created_ms", "due_ms", "epoch", "properties", "terminated", "unused_ms", "unused_subscriptions",
        "written_ledger", "written_ms",
    )  # fmt: skip

    def __init__(self, created_ms: int = 0, properties: dict[str, str] | None = None) -> None:
        self.created_ms = created_ms
        self.due_ms = 0
        self.epoch: int | None = None
        self.properties = properties
        self.terminated = False
        self.unused_ms = 0
        self.unused_subscriptions: dict[str, int] | None = None
        self.written_ledger = -1
        self.written_ms = 0

    @staticmethod
    def decode(value: StoredValue, what: str) -> TopicRecord:
        """Parse a record; fields lost to damage are as in a new topic. Raises `StoreDamaged`."""
        found = decode_json(value, what)
        record = TopicRecord(found.get("created_ms", 0), found.get("properties"))
        record.due_ms = found.get("due_ms", 0)
        record.epoch = found.get("epoch")
        record.terminated = bool(found.get("terminated"))
        record.unused_ms = found.get("unused_ms", 0)
        record.unused_subscriptions = found.get("unused_subscriptions")
        if "written" in found:
            record.written_ledger, record.written_ms = found["written"]
        return record

    def encode(self) -> bytes:
        kept: Json = {"created_ms": self.created_ms}
        for name in self.__slots__[1:-2]:
            value = getattr(self, name)
            if value or (name == "epoch" and value is not None):
                kept[name] = value
        if self.written_ms:
            kept["written"] = self.written_ledger, self.written_ms
        return encode_json(kept)


def encode_json(record: Json) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def decode_json(value: StoredValue, what: str) -> Json:
    """Parse the JSON object of a record, empty if damage took it; raises `StoreDamaged`."""
    data = value.base
    if value.lost is not None:
        left = "an older one is used" if data else "nothing is left of it"
        log.error("%s was lost to damage in the store: %s", what, left)
        if not data:
            return {}
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StoreDamaged(f"{what} is no JSON object: {data[:80]!r}")
    return found
