"""Pairs: a topic of the source and one of the target that know of each other.

A pair is a random number that both sides keep: the source in the properties of the mirror's own subscription,
the target in the properties of the topic. It goes where the topic goes: a target that was deleted and made
anew, or a source that is another one under the same name, is not taken for the one that was mirrored before.
The number is also part of the producer's name and of every mirrored entry.

The subscription keeps in the source what has not been mirrored yet, and stands at what surely has.
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
"""The fingerprint of the key that signs the pair's marks."""
RECEIPT_PROPERTY = "geminga-mirror-receipt"
"""What the target gave a receipt for last (`geminga.mirror.subscription_properties`)."""


class MirrorRefused(PulsarException):
    """Going on might lose messages or copy them twice, or cannot be right: somebody has to decide."""


class Pair(NamedTuple):
    """``fresh``: nothing was ever mirrored between the two. ``bound``: they did not know each other before.
    ``signer``: the fingerprint of the key that its marks are signed with. ``noted``: what the mirror's
    subscription says besides, of the two."""

    id: bytes
    fresh: bool
    signer: str
    bound: bool = True
    noted: Mapping[str, str] = MappingProxyType({})

    def properties(self) -> dict[str, str]:
        """Of the mirror's subscription in the source."""
        return {PAIR_PROPERTY: self.id.hex(), SIGNER_PROPERTY: self.signer}

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
    signers: Sequence[str],
    target_is_empty_of: Callable[[bytes], Awaitable[bool]],
) -> Pair:
    """The pair of one topic or partition, which has the same name on both sides; made if there is none.

    ``signers``: the fingerprints of the keys that there are, first that of the one which is signed with.
    ``target_is_empty_of`` tells whether the target has nothing of a pair. Raises `MirrorRefused` where the
    two do not belong together and ``on_mismatch`` does not say what then.
    """
    name, signer = subscription_of(mirror), signers[0]
    in_target = _id((await target.topics.properties(topic)).get(name))
    noted = await noted_in_source(source, topic, mirror)
    # One without a pair was not made by a mirror: a new partition gets the subscriptions of the others.
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
                # Nor does anybody know whether the entry of that receipt is the mirror's.
                noted = {key: text for key, text in noted.items() if key != RECEIPT_PROPERTY}
            found = Pair(in_source, False, signer, bound=False, noted=noted)
            if noted.get(SIGNER_PROPERTY) != signer:
                await source.subscriptions.set_properties(topic, name, {**noted, **found.properties()})
            return found
    if (in_source is None and in_target is None) or on_mismatch == "restart":
        return await make_pair(source, target, topic, mirror, signer)
    if in_source is None and in_target is not None:
        if on_mismatch == "continue" or await target_is_empty_of(in_target):
            # Either somebody says so, or the mirror was killed before it began.
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
            # What is noted of the subscriptions there was said of another target.
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
    """A new one, whatever there was: everything that the source has is to be mirrored. Raises
    `MirrorRefused` where both are the same."""
    name = subscription_of(mirror)
    made = Pair(secrets.token_bytes(PAIR_BYTES), True, signer)
    await target.topics.update_properties(topic, {name: made.id.hex()})
    if (await source.topics.properties(topic)).get(name) == made.id.hex():
        await target.topics.remove_property(topic, name)
        raise MirrorRefused(f"{topic}: source and target are the same cluster, by two addresses")
    await _subscribe(source, topic, name, made)
    return made


async def noted_in_source(source: Admin, topic: str, mirror: str) -> Mapping[str, str]:
    """What the mirror's subscription says; nothing where there is none."""
    try:
        return await source.subscriptions.properties(topic, subscription_of(mirror))
    except AdminNotFound:
        return {}


async def _subscribe(source: Admin, topic: str, name: str, pair: Pair) -> None:
    """The mirror's subscription, at the first message that there is. It is never without: what it keeps must
    not go meanwhile."""
    properties = pair.properties()
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
