"""Position at which a mirror of a partition resumes: searched in the source and in the target."""

import asyncio
import time

from geminga.admin import InternalStats
from geminga.entries import EntryPublisher, parse_entry
from geminga.errors import AdminError
from geminga.ids import TopicName
from geminga.mirror.cluster_pair import ClusterPair
from geminga.mirror.entries import is_same
from geminga.mirror.history import LedgerLayout, StampedEntry, StampHistory
from geminga.mirror.pairing import MirrorRefused, Pair, subscription_of
from geminga.mirror.positions import NOWHERE, Position, parse_position, position_of

_DEDUPLICATION_SECONDS = 30.0
_CLAIM_SECONDS = 10.0
"""Longest wait for an entry to become readable that the target's deduplication knows already."""


class ResumeSearch:
    """Compares source and target of a partition before entries are copied."""

    def __init__(self, ends: ClusterPair, topic: str, layout: LedgerLayout) -> None:
        self._ends = ends
        self.topic = topic
        self._layout = layout

    async def want_deduplication(self) -> None:
        """Enable deduplication in the target: without it, the fate of entries in flight after an error is
        unknown. Raises `MirrorRefused`."""
        admin, deadline, asked = self._ends.target_admin, time.monotonic() + _DEDUPLICATION_SECONDS, False
        while True:
            stats = await admin.topics.stats(self.topic)
            if stats.deduplication_status == "Enabled":
                return
            if not asked:
                asked = True
                try:
                    await admin.topic_policies.deduplication.set(str(TopicName.parse(self.topic).base), True)
                except AdminError as error:
                    if error.retriable:
                        raise
                    raise MirrorRefused(
                        f"{self.topic}: the target does not deduplicate, and the mirror may not enable it "
                        f"({error}). Run geminga namespaces set-deduplication NAMESPACE on"
                    ) from error
            if time.monotonic() >= deadline:
                raise MirrorRefused(
                    f"{self.topic}: deduplication was enabled in the target and is not active after "
                    f"{_DEDUPLICATION_SECONDS:g} s ({stats.deduplication_status or 'unknown'}); run "
                    "geminga namespaces set-deduplication NAMESPACE on"
                )
            await asyncio.sleep(0.02)

    async def _target_history(self, pair: bytes) -> StampHistory:
        """Return an object that searches the target's stored entries for those of the pair."""
        stats = await self._ends.target_admin.topics.internal_stats(self.topic)
        return StampHistory(self._ends.target, self.topic, (pair,), stats)

    async def target_has_nothing_of(self, pair: bytes) -> bool:
        return await (await self._target_history(pair)).newest() is None

    async def find(
        self, publisher: EntryPublisher, pair: Pair, done: Position | None
    ) -> tuple[Position, Position]:
        """Return the source position at which to resume, and that of the newest entry in the target as far as
        it is known. The publisher is open, so that no other mirror adds entries of the pair. ``done`` is the
        source position up to which an earlier session has copied; None in the first."""
        stats = await self._ends.source_admin.topics.internal_stats(self.topic)
        cursor = stats.cursors.get(subscription_of(self._ends.mirror))
        marked = NOWHERE if cursor is None else parse_position(cursor.mark_delete_position)
        last = parse_position(stats.last_confirmed_entry)
        self._layout.learn(stats, (marked if done is None else min(marked, done)).ledger)
        claimed = position_of(publisher.last_sequence_id)
        newest = None
        if not pair.fresh and max(last, claimed) > marked:
            # Deduplication forgets ids, over time and when a broker dies. Stored entries are reliable.
            newest = await self._newest(publisher, pair, marked, claimed)
        mirrored = NOWHERE if newest is None else newest.stamp
        known = max(claimed, mirrored)
        if known != NOWHERE and not await self._source_has(known, newest, stats):
            raise MirrorRefused(
                f"{self.topic}: the target has the message that was at {known} in the source, and the source "
                f"(its end is {last}) does not have it: it was restored from a backup, or lost messages. Its "
                "positions are those of other messages now; choose another --name, which copies all that it "
                "has"
            )
        return max(marked, known), mirrored

    async def _newest(
        self, publisher: EntryPublisher, pair: Pair, marked: Position, claimed: Position
    ) -> StampedEntry | None:
        """Return the newest entry in the target. If its deduplication has ``claimed`` a later one, that is in
        flight from an earlier connection, or was deleted there: wait for a short time until it is readable.
        """
        deadline = time.monotonic() + _CLAIM_SECONDS
        while True:
            newest = await (await self._target_history(pair.id)).newest()
            known = marked if newest is None else max(marked, newest.stamp)
            if known >= claimed or time.monotonic() >= deadline:
                return newest
            if publisher.ended.done():
                publisher.ended.result()
            await asyncio.sleep(0.1)

    async def _source_has(self, place: Position, newest: StampedEntry | None, stats: InternalStats) -> bool:
        """Return whether the source has an entry, with the messages of ``newest`` if that is its copy; True
        if the entry is older than all that the source has."""
        history = StampHistory(self._ends.source, self.topic, (), stats)
        if not (is_there := history.shape.has(place)):
            return is_there is None
        if newest is None or newest.stamp != place or (entry := await history.entry(place)) is None:
            return True
        return is_same(entry, parse_entry(newest.raw.entry, verify=False))
