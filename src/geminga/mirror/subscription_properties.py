"""What a mirror notes in the properties of its own subscription in the source: the pair, what the target gave
a receipt for last, and what the target was told of subscriptions.

The subscription moves only as far as what is noted has come: so as long as the target has the entry of that
receipt, it has all that the subscription has left behind. A target that was brought back from a backup, or
has lost what it had said to be stored, has not got it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from geminga.asyncio import Admin
from geminga.errors import ProtocolError
from geminga.mirror.pairing import RECEIPT_PROPERTY, Pair, subscription_of
from geminga.mirror.positions import NOWHERE, Position, parse_position
from geminga.mirror.subscription_checkpoint import NOTE_PREFIX


class MirrorReceipt(NamedTuple):
    """One of the mirror's entries: where it comes from, and where the target said that it lies."""

    source: Position
    target: Position


NO_RECEIPT = MirrorReceipt(NOWHERE, NOWHERE)


class MirrorProperties:
    """Those of one topic or partition. All writing goes through here, for the source takes them only as a
    whole."""

    def __init__(self, admin: Admin, topic: str, mirror: str) -> None:
        self.receipt = NO_RECEIPT
        """As it is noted."""
        self.size = 0
        """Characters that each writing writes."""
        self._admin = admin
        self._topic = topic
        self._name = subscription_of(mirror)
        self._pair: Pair | None = None
        self._told: Mapping[str, str] = {}
        self._wanted = NO_RECEIPT
        self._writing: asyncio.Task[None] | None = None

    def begin(self, pair: Pair) -> None:
        """Take over what was found with the pair."""
        self._pair = pair
        self._told = {name: text for name, text in pair.noted.items() if name.startswith(NOTE_PREFIX)}
        self.receipt = self._wanted = _receipt(pair.noted.get(RECEIPT_PROPERTY, ""))

    async def tell(self, told: Mapping[str, str]) -> None:
        """Note what the target was told. Raises what admin REST reports."""
        self._told = told
        await self._write()

    async def receive(self, receipt: MirrorReceipt) -> None:
        """Note a receipt, unless it is. Raises as `tell`."""
        self._wanted = receipt
        if receipt != self.receipt:
            await self._write()

    async def forget(self, receipt: MirrorReceipt) -> None:
        """Nothing holds any more but this receipt. Raises as `tell`."""
        self._wanted, self._told = receipt, {}
        await self._write()

    async def settled(self) -> None:
        """Wait for what is being written: that outlives whoever asked for it, and must not come behind what
        another writes, or reads."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        # One call after the other, also when whoever waits for one is cancelled: what is written last counts.
        await self.settled()
        self._writing = asyncio.ensure_future(self._put())
        self._writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._writing)

    async def _put(self) -> None:
        assert self._pair is not None
        receipt = self._wanted
        properties = {**self._pair.properties(), **self._told}
        if receipt != NO_RECEIPT:
            properties[RECEIPT_PROPERTY] = f"{receipt.source} {receipt.target}"
        self.size = sum(map(len, properties.values()))
        await self._admin.subscriptions.set_properties(self._topic, self._name, properties)
        self.receipt = receipt


def _receipt(text: str) -> MirrorReceipt:
    source, _, target = text.partition(" ")
    try:
        return MirrorReceipt(parse_position(source), parse_position(target))
    except ProtocolError:
        return NO_RECEIPT
