"""History of a simulated run: what clients asked for and what they were answered, with virtual times.

Nothing here, and nothing in `tests.simulation.checker`, imports Geminga: a history is judged without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Position = tuple[int, int, int, int]
"""Partition, ledger, entry, index in the batch."""


class Event(NamedTuple):
    """One event. ``kind``:

    * ``send``, ``receipt``, ``not sent``: a producer ``who`` publishes ``content``, with ``key``; the receipt
      has its ``position``.
    * ``received``, ``refusing``, ``acknowledging``, ``acknowledged``: ``who`` is a subscription. Only
      ``acknowledged`` means that the broker has confirmed it.
    * ``seeking``, ``sought``: a subscription goes back to the first message.
    * ``fault``: a connection, the disk or the broker's process fails.
    * ``connection ended``: one end of a connection, by a fault or not.
    * ``asked``, ``confirmed``, ``refused``: an administrator calls ``content``.
    * ``backlog``: the subscription ``who`` has ``content`` messages in its backlog.
    """

    at: float
    kind: str
    who: str
    content: str = ""
    position: Position | None = None
    detail: str = ""

    def __str__(self) -> str:
        position = "" if self.position is None else " {}/{}:{}:{}".format(*self.position)
        return f"{self.at:.6f} {self.kind} {self.who} {self.content}{position} {self.detail}".rstrip()


class History:
    """Events in the order in which they happened."""

    def __init__(self, now: Callable[[], float], whole: History | None = None, name: str = "") -> None:
        """``whole``: the history of all workloads, to which this one's ``name`` is a part."""
        self._now, self._whole, self._name = now, whole, name
        self.events: list[Event] = []

    def add(
        self, kind: str, who: str, content: str = "", position: Position | None = None, detail: Any = ""
    ) -> None:
        event = Event(self._now(), kind, who, content, position, str(detail))
        self.events.append(event)
        if self._whole is not None:
            self._whole.events.append(event._replace(who=f"{self._name}/{who}"))

    def of(self, *kinds: str, who: str | None = None) -> Iterator[Event]:
        """Yield the events of some kinds, all or those of one producer or subscription."""
        return (event for event in self.events if event.kind in kinds and who in (None, event.who))

    def text(self) -> str:
        """Return the whole history, a line for each event."""
        return "".join(f"{event}\n" for event in self.events)
