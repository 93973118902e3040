"""Properties of the mirror's subscription in the source: the pair, the target's last receipt, and the
checkpoints of subscriptions.

The subscription moves only up to the noted receipt: if the target has the entry of that receipt, it has all
entries that the subscription has passed. A target that was restored from a backup, or lost stored entries,
does not have it.
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
    """Source and target position of a mirrored entry, from its receipt."""

    source: Position
    target: Position


NO_RECEIPT = MirrorReceipt(NOWHERE, NOWHERE)


class MirrorProperties:
    """Properties of one topic or partition. The source accepts only updates of the whole set."""

    def __init__(self, admin: Admin, topic: str, mirror: str) -> None:
        self.receipt = NO_RECEIPT
        """The noted receipt."""
        self.size = 0
        """Size of an update in characters."""
        self._admin = admin
        self._topic = topic
        self._name = subscription_of(mirror)
        self._pair: Pair | None = None
        self._told: Mapping[str, str] = {}
        self._wanted = NO_RECEIPT
        self._writing: asyncio.Task[None] | None = None

    def begin(self, pair: Pair) -> None:
        """Take over the properties found with the pair."""
        self._pair = pair
        self._told = {name: text for name, text in pair.noted.items() if name.startswith(NOTE_PREFIX)}
        self.receipt = self._wanted = _receipt(pair.noted.get(RECEIPT_PROPERTY, ""))

    async def tell(self, told: Mapping[str, str]) -> None:
        """Note the checkpoints. Raises errors of admin REST."""
        self._told = told
        await self._write()

    async def receive(self, receipt: MirrorReceipt) -> None:
        """Note a receipt, unless it is noted already. Raises as `tell`."""
        self._wanted = receipt
        if receipt != self.receipt:
            await self._write()

    async def forget(self, receipt: MirrorReceipt) -> None:
        """Remove everything but this receipt. Raises as `tell`."""
        self._wanted, self._told = receipt, {}
        await self._write()

    async def settled(self) -> None:
        """Wait for the current update, which also continues if its caller is cancelled."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        # One update after the other, even if a waiting caller is cancelled: the last update wins.
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
