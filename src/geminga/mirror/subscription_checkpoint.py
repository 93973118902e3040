"""What the target was told of a subscription: kept in a process, and noted where the next one finds it.

The note lies in the properties of the mirror's own subscription in the source, beside the pair. It says how
the source's subscription stood, and how the target's did afterwards. It is written after the target was
told: one that is older than what was told, because the mirror was killed in between, does not fit how the
target's subscription stands. Then that one counts as used by somebody, and nothing is taken back there.
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
"""Holes, and batches that are acknowledged in part, of which a note tells, those at the front: of fewer where
it would get long."""
_DONE_MAX = 200
"""Messages of a batch that a note tells of; a batch of which more are acknowledged is told again."""
NOTE_BYTES_MAX = 4 * 1024
NOTES_BYTES_MAX = 64 * 1024
"""Of a partition's notes: brokers keep properties where nothing large belongs."""


@dataclass(slots=True)
class SubscriptionCheckpoint:
    """What the target was told of one subscription."""

    state: CursorState | None = None
    through: Position = NOWHERE
    echoed: dict[bytes, Position] = field(default_factory=dict)
    """Up to where in the source the target was told of what came from it, by pair."""
    waits: bool = False
    """There is more of that to tell."""
    has_more: bool = False
    """So much came that it is told in several steps."""
    note: str = ""
    in_use: bool = False
    marked: Position | None = field(default=None)
    """The last mark-delete position in the target."""
    stood: tuple[str, str] | None = None
    """How the target's subscription stood when it was told last; None: it has more than it was told."""
    seen: Position = NOWHERE
    """The mark of the target's subscription when it was looked at last."""
    restored: bool = False
    """Of an earlier process, and not looked at yet."""

    def forget(self) -> None:
        """All is to be told anew."""
        self.state, self.through, self.marked, self.stood = None, NOWHERE, None, None
        self.seen, self.restored = NOWHERE, False
        self.echoed, self.waits, self.has_more = {}, False, False

    def noted(self) -> str | None:
        """As text; None where there is nothing to note."""
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
    """The inverse of `SubscriptionCheckpoint.noted`; None for what is none."""
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
    """The properties that note what was told, as many as there is room for."""
    found: dict[str, str] = {}
    room = NOTES_BYTES_MAX
    for name, one in sorted(applied.items()):
        text = one.noted()
        if text is None:
            continue
        room -= len(name.encode()) + len(text)
        if room < 0:
            logger.info(
                "%s has too many subscriptions to note how each was told: those from %s on are not moved "
                "back in the target for what is moved back while no mirror runs", topic, name,
            )  # fmt: skip
            break
        found[NOTE_PREFIX + name] = text
    return found
