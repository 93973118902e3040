"""Compaction and trimming of a function's state topic, as for a changelog topic of Kafka Streams.

The topic is compacted by size, and compacted messages are trimmed; compaction's subscription retains the
others. Policies that were set for the topic are not changed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from geminga.admin import Retention
from geminga.asyncio import Admin
from geminga.errors import PulsarException
from geminga.ids import MessageId, TopicName

logger = logging.getLogger("geminga.functions")

KEEPER = "geminga-function-state"
"""Durable subscription that retains messages until they are compacted."""
COMPACTION = "__compaction"
COMPACTION_BYTES = 16 * 1024 * 1024
"""Compaction threshold in bytes that is set on a state topic without one."""
TRIM_SECONDS = 60.0


async def keep_bounded(open_admin: Callable[[], Awaitable[Admin]], names: Iterable[str]) -> None:
    """Set the policies of a state topic and move `KEEPER` forward, until cancelled. ``names``: the topic, or
    its partitions. A failure is logged once until the reason changes."""
    names, is_set, failure = list(names), False, ""
    admin: Admin | None = None
    while True:
        try:
            if admin is None:
                admin = await open_admin()
            if not is_set:
                await _set_policies(admin, str(TopicName.parse(names[0]).base))
                is_set = True
            for name in names:
                await _move_on(admin, name)
            failure = ""
        except (PulsarException, OSError) as error:
            if str(error) != failure:
                logger.warning("the state topic %s is not trimmed, and grows: %s", names[0], error)
            failure = str(error)
        await asyncio.sleep(TRIM_SECONDS)


async def _set_policies(admin: Admin, topic: str) -> None:
    policies = admin.topic_policies
    if await policies.retention.get(topic) is None:
        await policies.retention.set(topic, Retention(minutes=0, megabytes=0))
    threshold = policies.compaction_threshold
    if await threshold.get(topic) is None and not await threshold.get(topic, applied=True):
        await threshold.set(topic, COMPACTION_BYTES)


async def _move_on(admin: Admin, name: str) -> None:
    """Move `KEEPER` to the position that compaction has reached."""
    cursors = (await admin.topics.internal_stats(name)).cursors
    if COMPACTION not in cursors or KEEPER not in cursors:
        return
    compacted, kept = (_position(cursors[each].mark_delete_position) for each in (COMPACTION, KEEPER))
    if compacted > kept:
        place = MessageId(-1, *compacted)
        await admin.subscriptions.reset_to_id(name, KEEPER, place, exclusive=True)


def _position(text: str) -> tuple[int, int]:
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)
