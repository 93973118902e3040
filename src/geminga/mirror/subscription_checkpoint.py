"""Checkpoint of a mirrored subscription: the state last sent to the target, kept in memory and noted for the
next process.

The note is a property of the mirror's subscription in the source. It holds the state of the source's
subscription and the resulting state of the target's, and is written after the target was updated. If the
mirror is killed in between, the note does not match the target's subscription; that subscription then counts
as used by consumers and is not reset.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.errors import ProtocolError
from geminga.mirror.cursor_state import CursorState, PartialBatch, parse_ranges
from geminga.mirror.positions import NOWHERE, Position, parse_position

logger = logging.getLogger("geminga.mirror")

NOTE_PREFIX = "told."
_HOLES_MAX = (64, 8, 0)
"""Most holes and partially acknowledged batches in a note, from the front; fewer if it gets too long."""
_DONE_MAX = 200
"""Most acknowledged messages of a batch in a note; a batch with more is sent again."""
NOTE_BYTES_MAX = 4 * 1024
NOTES_BYTES_MAX = 64 * 1024
"""Limit of a partition's notes: brokers' properties are meant for small values."""


@dataclass(slots=True)
class SubscriptionCheckpoint:
    """State of a subscription that was last sent to the target."""

    state: CursorState | None = None
    through: Position = NOWHERE
    echoed: dict[bytes, Position] = field(default_factory=dict)
    """Source position up to which acknowledgements of entries from the target were sent, by pair."""
    waits: bool = False
    """True if more of these are to be sent."""
    has_more: bool = False
    """True if a large update is sent in several steps."""
    note: str = ""
    in_use: bool = False
    marked: Position | None = field(default=None)
    """Last mark-delete position sent to the target."""
    stood: tuple[str, str] | None = None
    """State of the target's subscription after the last update; None: it has acknowledged more."""
    seen: Position = NOWHERE
    """Mark-delete position of the target's subscription at the last query."""
    restored: bool = False
    """True if an earlier process noted this and the target was not queried yet."""

    def forget(self) -> None:
        """Reset, so that everything is sent again."""
        self.state, self.through, self.marked, self.stood = None, NOWHERE, None, None
        self.seen, self.restored = NOWHERE, False
        self.echoed, self.waits, self.has_more = {}, False, False

    def noted(self) -> str | None:
        """Return the checkpoint as text; None if there is nothing to note."""
        if self.state is None:
            return None
        text = ""
        for holes_max in _HOLES_MAX:
            text = self._noted(self.state, holes_max)
            if len(text) <= NOTE_BYTES_MAX:
                break
        return text

    def _noted(self, state: CursorState, holes_max: int) -> str:
        found: dict[str, Any] = {"source": str(state.marked), "through": str(self.through)}
        if holes := state.holes[:holes_max]:
            found["holes"] = ",".join(f"({low}..{high}]" for low, high in holes)
        if partly := [one for one in state.partly[:holes_max] if len(one[1].done) <= _DONE_MAX]:
            found["partly"] = [[str(place), batch.messages, *batch.done] for place, batch in partly]
        if self.echoed:
            found["echoed"] = {pair.hex(): str(place) for pair, place in self.echoed.items()}
        if self.marked is not None:
            found["marked"] = str(self.marked)
        if self.stood is not None:
            found["stood"] = list(self.stood)
        found["seen"] = str(self.seen)
        return json.dumps(found, separators=(",", ":"))


def restored(text: str) -> SubscriptionCheckpoint | None:
    """Parse the text of `SubscriptionCheckpoint.noted`; None if it is invalid."""
    try:
        found = json.loads(text)
        stood = found.get("stood")
        partly = found.get("partly", ())
        if any(type(number) is not int for _, *numbers in partly for number in numbers):
            return None
        return SubscriptionCheckpoint(
            state=CursorState(
                parse_position(found["source"]),
                tuple(parse_ranges(found.get("holes", ""))),
                tuple(
                    (parse_position(place), PartialBatch(messages, tuple(done)))
                    for place, messages, *done in partly
                ),
            ),
            through=parse_position(found["through"]),
            echoed={
                bytes.fromhex(pair): parse_position(place) for pair, place in found.get("echoed", {}).items()
            },
            marked=parse_position(found["marked"]) if "marked" in found else None,
            stood=(str(stood[0]), str(stood[1])) if stood else None,
            seen=parse_position(found["seen"]),
            restored=True,
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ProtocolError):
        return None


def notes_of(topic: str, applied: Mapping[str, SubscriptionCheckpoint]) -> dict[str, str]:
    """Return the properties that note the checkpoints, as many as fit."""
    found: dict[str, str] = {}
    room = NOTES_BYTES_MAX
    for name, one in sorted(applied.items()):
        text = one.noted()
        if text is None:
            continue
        room -= len(name.encode()) + len(text)
        if room < 0:
            logger.info(
                "%s has too many subscriptions to note the state of each: subscriptions from %s on are not "
                "reset in the target if they are reset in the source while no mirror runs", topic, name,
            )  # fmt: skip
            break
        found[NOTE_PREFIX + name] = text
    return found
