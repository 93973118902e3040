"""Pairs: a topic of the source and the topic of the target to which it is mirrored.

A pair is a random number that both sides store: the source in the properties of the mirror's subscription,
the target in the topic's properties. It is deleted with the topic: a recreated target, or another source of
the same name, is thereby recognised. The number is also part of the producer's name and of every mirrored
entry.

The subscription retains in the source the entries that are not mirrored yet; its position is confirmed.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from geminga.admin import TopicStats
from geminga.asyncio import Admin
from geminga.errors import AdminConflict, AdminNotFound, PulsarException
from geminga.ids import MessageId
from geminga.mirror.replication_stamp import PAIR_BYTES

PREFIX = "geminga-mirror."
PAIR_PROPERTY = "geminga-mirror-pair"
SIGNER_PROPERTY = "geminga-mirror-signed-with"
"""Property with the fingerprint of the key that signs the pair's marks."""
RECEIPT_PROPERTY = "geminga-mirror-receipt"
"""Property with the last receipt of the target (`geminga.mirror.subscription_properties`)."""


class MirrorRefused(PulsarException):
    """Continuing might lose or duplicate messages, or is impossible: the user has to decide."""


class Pair(NamedTuple):
    """A pair of topics. ``fresh``: nothing was mirrored between them yet. ``bound``: they were unpaired
    before. ``signer``: fingerprint of the key that signs the marks. ``noted``: other properties of the
    mirror's subscription."""

    id: bytes
    fresh: bool
    signer: str
    bound: bool = True
    noted: Mapping[str, str] = MappingProxyType({})

    def properties(self) -> dict[str, str]:
        """Return the properties of the mirror's subscription in the source."""
        return {PAIR_PROPERTY: self.id.hex(), SIGNER_PROPERTY: self.signer}

    def producer_name(self, mirror: str) -> str:
        return f"{PREFIX}{mirror}.{self.id.hex()}"


def subscription_of(mirror: str) -> str:
    """Return the name of the mirror's subscription in the source and of its property in the target."""
    return PREFIX + mirror


async def find_pair(
    source: Admin,
    target: Admin,
    topic: str,
    mirror: str,
    on_mismatch: str,
    signers: Sequence[str],
    target_is_empty_of: Callable[[bytes], Awaitable[bool]],
) -> Pair:
    """Return the pair of a topic or partition, which has the same name on both sides; create it if there is
    none.

    ``signers``: fingerprints of the known keys, first the one to sign with. ``target_is_empty_of`` returns
    whether the target has no entry of a pair. Raises `MirrorRefused` if source and target do not belong
    together and ``on_mismatch`` gives no decision.
    """
    name, signer = subscription_of(mirror), signers[0]
    in_target = _id((await target.topics.properties(topic)).get(name))
    noted = await noted_in_source(source, topic, mirror)
    # A topic without a pair was not created by a mirror: a new partition inherits subscriptions.
    in_source = pair_of(noted)
    if in_source is not None and in_source == in_target:
        is_legible = noted.get(SIGNER_PROPERTY, signer) in signers or await target_is_empty_of(in_source)
        if not is_legible and on_mismatch == "stop":
            raise MirrorRefused(
                f"{topic}: the key is gone from the properties of the source's namespace with which the "
                "mirror has signed what is in the target, so nobody can tell how far that is. Put it back; "
                f"or --on-mismatch continue goes on where the source's subscription {name} stands (what was "
                "under way when the mirror was killed comes twice), restart copies all that the source "
                "still has"
            )
        if is_legible or on_mismatch == "continue":
            if not is_legible:
                # It is also unknown whether the entry of that receipt is the mirror's.
                noted = {key: text for key, text in noted.items() if key != RECEIPT_PROPERTY}
            found = Pair(in_source, False, signer, bound=False, noted=noted)
            if noted.get(SIGNER_PROPERTY) != signer:
                await source.subscriptions.set_properties(topic, name, {**noted, **found.properties()})
            return found
    if (in_source is None and in_target is None) or on_mismatch == "restart":
        return await make_pair(source, target, topic, mirror, signer)
    if in_source is None and in_target is not None:
        if on_mismatch == "continue" or await target_is_empty_of(in_target):
            # Either ``on_mismatch`` decides, or the mirror was killed before it began.
            found = Pair(in_target, False, signer)
            await _subscribe(source, topic, name, found)
            return found
        raise MirrorRefused(
            f"{topic}: the target has been mirrored to by {mirror!r}, and the source has no subscription "
            f"{name} that says so: it was deleted, or this is another source. --on-mismatch continue goes on "
            "behind the newest message that is in the target, restart copies everything again, another "
            "--name as well"
        )
    if in_source is not None and in_target is None:
        if on_mismatch == "continue":
            # Notes on the subscriptions belong to another target.
            found = Pair(in_source, False, signer)
            await source.subscriptions.set_properties(topic, name, found.properties())
            await target.topics.update_properties(topic, {name: in_source.hex()})
            return found
        raise MirrorRefused(
            f"{topic}: the source's subscription {name} says how far it was mirrored, and the target knows "
            "nothing of that: it was deleted, or this is another target. --on-mismatch continue goes on "
            "where the subscription stands, restart copies all that the source still has, another --name as "
            "well"
        )
    raise MirrorRefused(
        f"{topic}: source and target were both mirrored by {mirror!r}, but not with each other. Choose "
        "another --name; --on-mismatch restart copies all that the source still has"
    )


async def make_pair(source: Admin, target: Admin, topic: str, mirror: str, signer: str) -> Pair:
    """Create a pair, replacing an older one: the whole source is to be mirrored. Raises `MirrorRefused` if
    source and target are the same topic."""
    name = subscription_of(mirror)
    made = Pair(secrets.token_bytes(PAIR_BYTES), True, signer)
    await target.topics.update_properties(topic, {name: made.id.hex()})
    if (await source.topics.properties(topic)).get(name) == made.id.hex():
        await target.topics.remove_property(topic, name)
        raise MirrorRefused(f"{topic}: source and target are the same cluster, by two addresses")
    await _subscribe(source, topic, name, made)
    return made


async def noted_in_source(source: Admin, topic: str, mirror: str) -> Mapping[str, str]:
    """Return the properties of the mirror's subscription; empty without a subscription."""
    try:
        return await source.subscriptions.properties(topic, subscription_of(mirror))
    except AdminNotFound:
        return {}


async def _subscribe(source: Admin, topic: str, name: str, pair: Pair) -> None:
    """Create the mirror's subscription at the oldest message, with the properties, so that messages are
    retained from the start."""
    properties = pair.properties()
    try:
        await source.subscriptions.create(topic, name, position=MessageId.earliest, properties=properties)
    except AdminConflict:
        await source.subscriptions.reset_to_id(topic, name, MessageId.earliest)
        await source.subscriptions.set_properties(topic, name, properties)


def pair_of(properties: Mapping[str, str]) -> bytes | None:
    """Return the pair of a mirror's subscription; None for other subscriptions."""
    return _id(properties.get(PAIR_PROPERTY))


def readers_of(stats: TopicStats) -> dict[bytes, str]:
    """Return the mirrors that read a topic: their subscriptions, by pair."""
    found = {}
    for name, subscription in stats.subscriptions.items():
        pair = pair_of(subscription.subscription_properties)
        if pair is not None and name.startswith(PREFIX):
            found[pair] = name
    return found


def _id(text: str | None) -> bytes | None:
    try:
        found = bytes.fromhex(text or "")
    except ValueError:
        return None
    return found if len(found) == PAIR_BYTES else None
