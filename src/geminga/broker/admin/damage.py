"""``/admin/v2/geminga/damage``: lists the damaged resources of the store and settles their losses.

Deleting a resource from the list accepts its loss: damaged entries count as acknowledged by every
subscription, policies that lost a part are in force as they are, a ledger without an owner is deleted. To
delete or to set the resource itself, use its own REST path.
"""

from typing import Any, Final

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import Resource
from geminga.broker.admin.routes import SUPER_USER, route
from geminga.broker.core import Broker
from geminga.broker.runtime.cooperative import Job
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics.persistent import PersistentTopic
from geminga.errors import InvalidTopicName, StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done, EntryStore
from geminga.ledger.damage import Damage, DamageLoss

SETTLED_AT_ONCE: Final = 500
"""Entries that are acknowledged before other requests are served."""


class DamageResource(Resource):
    """Resource of the damaged records of the store."""

    @route("GET", "/admin/v2/geminga/damage", needs=SUPER_USER)
    async def list(self) -> object:
        """Damage in the store that is not settled yet."""
        store = self.server.broker.store
        return [described(store, damage) for damage in store.damage.found]

    @route("DELETE", "/admin/v2/geminga/damage/{name}", needs=SUPER_USER)
    async def settle(self, name: str) -> None:
        """Accept a loss: subscriptions continue behind it, and it is no longer listed."""
        await self.durable(lambda done: settle(self.server.broker, name, done))


def described(store: EntryStore, damage: Damage) -> dict[str, Any]:
    """Return damage as JSON."""
    found: dict[str, Any] = {
        "name": damage.name,
        "thing": damage.thing,
        "lost": str(damage.lost),
        "what": damage.what,
        "file": damage.file,
        "offset": damage.offset,
    }
    if damage.key is not None:
        found["key"] = damage.key
    if damage.ledger_id is not None:
        found["ledgerId"] = damage.ledger_id
        found["topic"] = store.owner_of(damage.ledger_id)
    if damage.first_entry_id is not None:
        found["firstEntryId"], found["lastEntryId"] = damage.first_entry_id, damage.last_entry_id
    return found


def settle(broker: Broker, name: str, done: Done) -> None:
    """Accept the losses of the resource ``name``; `AdminRefusal` 404 if it is not listed."""
    things = [damage for damage in broker.store.damage.found if damage.name == name]
    if not things:
        raise AdminRefusal(404, f"no damaged thing is called {name}")
    broker.slices.start(_settle(broker, name, things, done), name, done)


def _settle(broker: Broker, name: str, things: list[Damage], done: Done) -> Job:
    """Return a job, because a damaged file may have held a million entries."""
    try:
        for damage in things:
            if damage.lost == DamageLoss.ENTRIES:
                yield from _acknowledge(broker, damage)
        broker.store.damage.settle(name, done)
        for damage in things:
            if damage.key is not None:
                broker.namespaces.accept(damage.key)
                broker.dynamic.accept(damage.key)
    except StoreError as error:
        done(error)
    except Refused as refused:
        done(StoreError(refused.reason))


def _acknowledge(broker: Broker, damage: Damage) -> Job:
    """Acknowledge damaged entries on every subscription of the topic, for good."""
    ledger_id, first, last = damage.ledger_id, damage.first_entry_id, damage.last_entry_id
    owner = broker.store.owner_of(ledger_id) if ledger_id is not None else None
    if owner is None or ledger_id is None or first is None or last is None:
        return
    try:
        name = TopicName.parse(owner)
    except InvalidTopicName:
        return
    for start in range(first, last + 1, SETTLED_AT_ONCE):
        topic = broker.topics.find(name)
        if not isinstance(topic, PersistentTopic):
            return
        segment = topic.ledger.segment(ledger_id)
        if segment is None:
            return
        stop = min(start + SETTLED_AT_ONCE, last + 1, segment.entries)
        for subscription in list(topic.subscriptions.values()):
            subscription.give_up(segment.base + start, segment.base + stop)
        if broker.slices.should_yield:
            yield None
