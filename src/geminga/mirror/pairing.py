"""Pairs: a topic of the source and one of the target that know of each other.

A pair is a random number that both sides keep: the source in the properties of the mirror's own subscription,
the target in the properties of the topic. It goes where the topic goes: a target that was deleted and made
anew, or a source that is another one under the same name, is not taken for the one that was mirrored before.
The number is also part of the producer's name and of every mirrored entry.

The subscription keeps in the source what has not been mirrored yet, and stands at what surely has.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from geminga.admin import TopicStats
from geminga.asyncio import Admin
from geminga.errors import AdminConflict, AdminNotFound, PulsarException
from geminga.ids import MessageId
from geminga.mirror.marks import PAIR_BYTES

PREFIX = "geminga-mirror."
PAIR_PROPERTY = "geminga-mirror-pair"


class MirrorRefused(PulsarException):
    """Going on might lose messages or copy them twice, or cannot be right: somebody has to decide."""


class Pair(NamedTuple):
    """``fresh``: nothing was ever mirrored between the two."""

    id: bytes
    fresh: bool

    def producer_name(self, mirror: str) -> str:
        return f"{PREFIX}{mirror}.{self.id.hex()}"


def subscription_of(mirror: str) -> str:
    """The mirror's own subscription in the source, and the name of its note in the target's properties."""
    return PREFIX + mirror


async def find_pair(
    source: Admin,
    target: Admin,
    topic: str,
    mirror: str,
    on_mismatch: str,
    target_is_empty_of: Callable[[bytes], Awaitable[bool]],
) -> Pair:
    """The pair of one topic or partition, which has the same name on both sides; made if there is none.

    ``target_is_empty_of`` tells whether the target has nothing of a pair. Raises `MirrorRefused` where the
    two do not belong together and ``on_mismatch`` does not say what then.
    """
    name = subscription_of(mirror)
    in_target = _id((await target.topics.properties(topic)).get(name))
    # One without a pair was not made by a mirror: a new partition gets the subscriptions of the others.
    in_source = await _pair_in_source(source, topic, name)
    if in_source is not None and in_source == in_target:
        return Pair(in_source, False)
    if (in_source is None and in_target is None) or on_mismatch == "restart":
        pair = secrets.token_bytes(PAIR_BYTES)
        await target.topics.update_properties(topic, {name: pair.hex()})
        if (await source.topics.properties(topic)).get(name) == pair.hex():
            await target.topics.remove_property(topic, name)
            raise MirrorRefused(f"{topic}: source and target are the same cluster, by two addresses")
        await _subscribe(source, topic, name, pair)
        return Pair(pair, True)
    if in_source is None and in_target is not None:
        if on_mismatch == "continue" or await target_is_empty_of(in_target):
            # Either somebody says so, or the mirror was killed before it began.
            await _subscribe(source, topic, name, in_target)
            return Pair(in_target, False)
        raise MirrorRefused(
            f"{topic}: the target has been mirrored to by {mirror!r}, and the source has no subscription "
            f"{name} that says so: it was deleted, or this is another source. --on-mismatch continue goes on "
            "behind the newest message that is in the target, restart copies everything again, another "
            "--name as well"
        )
    if in_source is not None and in_target is None:
        if on_mismatch == "continue":
            # What is noted of the subscriptions there was said of another target.
            await source.subscriptions.set_properties(topic, name, {PAIR_PROPERTY: in_source.hex()})
            await target.topics.update_properties(topic, {name: in_source.hex()})
            return Pair(in_source, False)
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


async def _pair_in_source(source: Admin, topic: str, name: str) -> bytes | None:
    try:
        return pair_of(await source.subscriptions.properties(topic, name))
    except AdminNotFound:
        return None


async def _subscribe(source: Admin, topic: str, name: str, pair: bytes) -> None:
    """The mirror's subscription, at the first message that there is. It is never without: what it keeps must
    not go meanwhile."""
    properties = {PAIR_PROPERTY: pair.hex()}
    try:
        await source.subscriptions.create(topic, name, position=MessageId.earliest, properties=properties)
    except AdminConflict:
        await source.subscriptions.reset_to_id(topic, name, MessageId.earliest)
        await source.subscriptions.set_properties(topic, name, properties)


def pair_of(properties: Mapping[str, str]) -> bytes | None:
    """The pair of a mirror's subscription; None for anybody else's."""
    return _id(properties.get(PAIR_PROPERTY))


def readers_of(stats: TopicStats) -> dict[bytes, str]:
    """The mirrors that read a topic: their subscriptions by their pairs."""
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
