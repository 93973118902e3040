"""Pairs: a topic of the source and the topic of the target to which it is mirrored.

A pair is a random number that both sides store: the source in the properties of the mirror's subscription,
the target in the topic's properties. It is deleted with the topic: a recreated target, or another source of
the same name, is thereby recognised. The number is also part of the producer's name and of every mirrored
entry.

The subscription retains in the source the entries that are not mirrored yet; its position is confirmed.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from geminga.admin import TopicStats
from geminga.asyncio import Admin
from geminga.errors import AdminConflict, AdminNotFound, PulsarException
from geminga.ids import MessageId
from geminga.mirror.replication_stamp import PAIR_BYTES

PREFIX = "geminga-mirror."
PAIR_PROPERTY = "geminga-mirror-pair"


class MirrorRefused(PulsarException):
    """Continuing might lose or duplicate messages, or is impossible: the user has to decide."""


class Pair(NamedTuple):
    """A pair of topics. ``fresh``: nothing was mirrored between them yet. ``bound``: they were unpaired
    before."""

    id: bytes
    fresh: bool
    bound: bool = True

    def properties(self) -> dict[str, str]:
        """Return the properties of the mirror's subscription in the source."""
        return {PAIR_PROPERTY: self.id.hex()}

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
    target_is_empty_of: Callable[[bytes], Awaitable[bool]],
) -> Pair:
    """Return the pair of a topic or partition, which has the same name on both sides; create it if there is
    none.

    ``target_is_empty_of`` returns whether the target has no entry of a pair. Raises `MirrorRefused` if source
    and target do not belong together and ``on_mismatch`` gives no decision.
    """
    name = subscription_of(mirror)
    in_target = _id((await target.topics.properties(topic)).get(name))
    # A topic without a pair was not created by a mirror: a new partition inherits subscriptions.
    noted = await _noted_in_source(source, topic, name)
    in_source = pair_of(noted)
    if in_source is not None and in_source == in_target:
        found = Pair(in_source, False, bound=False)
        if noted != found.properties():
            # Earlier versions noted more there.
            await source.subscriptions.set_properties(topic, name, found.properties())
        return found
    if (in_source is None and in_target is None) or on_mismatch == "restart":
        return await _make_pair(source, target, topic, name)
    if in_source is None and in_target is not None:
        if on_mismatch == "continue" or await target_is_empty_of(in_target):
            # Either ``on_mismatch`` decides, or the mirror was killed before it began.
            found = Pair(in_target, False)
            await _subscribe(source, topic, name, found)
            return found
        raise MirrorRefused(
            f"{topic}: the target has been mirrored to by {mirror!r}, and the source has no subscription "
            f"{name} of that mirror: it was deleted, or this is another source. --on-mismatch continue "
            "resumes after the newest message that is in the target, restart copies everything again, "
            "another --name as well"
        )
    if in_source is not None and in_target is None:
        if on_mismatch == "continue":
            found = Pair(in_source, False)
            await source.subscriptions.set_properties(topic, name, found.properties())
            await target.topics.update_properties(topic, {name: in_source.hex()})
            return found
        raise MirrorRefused(
            f"{topic}: the source's subscription {name} records how far it was mirrored, and the target has "
            "no sign of that mirror: it was deleted, or this is another target. --on-mismatch continue "
            "resumes where the subscription stands, restart copies all that the source still has, another "
            "--name as well"
        )
    raise MirrorRefused(
        f"{topic}: source and target were both mirrored by {mirror!r}, but not with each other. Choose "
        "another --name; --on-mismatch restart copies all that the source still has"
    )


async def _make_pair(source: Admin, target: Admin, topic: str, name: str) -> Pair:
    """Create a pair, replacing an older one: the whole source is to be mirrored. Raises `MirrorRefused` if
    source and target are the same topic."""
    made = Pair(secrets.token_bytes(PAIR_BYTES), True)
    await target.topics.update_properties(topic, {name: made.id.hex()})
    if (await source.topics.properties(topic)).get(name) == made.id.hex():
        await target.topics.remove_property(topic, name)
        raise MirrorRefused(f"{topic}: source and target are the same cluster, by two addresses")
    await _subscribe(source, topic, name, made)
    return made


async def _noted_in_source(source: Admin, topic: str, name: str) -> Mapping[str, str]:
    """Return the properties of the mirror's subscription; empty without a subscription."""
    try:
        return await source.subscriptions.properties(topic, name)
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


def readers_of(stats: TopicStats) -> set[bytes]:
    """Return the pairs of the mirrors that read a topic, from their subscriptions."""
    found = (
        pair_of(subscription.subscription_properties)
        for name, subscription in stats.subscriptions.items()
        if name.startswith(PREFIX)
    )
    return {pair for pair in found if pair is not None}


def _id(text: str | None) -> bytes | None:
    try:
        found = bytes.fromhex(text or "")
    except ValueError:
        return None
    return found if len(found) == PAIR_BYTES else None
