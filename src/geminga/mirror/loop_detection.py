"""Detection of entries that other mirrors copied from the target to the source: they are not copied back, and
hold their target positions.

A mirror that reads the target is identified by its subscription there. Any client that may subscribe can
forge such a subscription with an unused pair. So older entries are read once for all pairs, and a search is
made only for pairs whose marks occur.
"""

from __future__ import annotations

from geminga.errors import NotConnected
from geminga.ids import TopicName
from geminga.mirror.cluster_pair import ClusterPair
from geminga.mirror.history import TargetHistory
from geminga.mirror.position_map import PositionMap
from geminga.mirror.positions import NOWHERE, Position

_DIRECT_MAX = 1_000
"""Most pairs for which is remembered whether their mirrors write to the source."""


class LoopDetection:
    """Entries of a topic or partition that came from the target, by the pair of their mirror."""

    def __init__(self, ends: ClusterPair, topic: str) -> None:
        self._ends = ends
        self._topic = topic
        self._namespace = TopicName.parse(topic).namespace_name
        self._places: dict[bytes, PositionMap] = {}
        self._from = NOWHERE
        self._direct: dict[bytes, bool] = {}
        """Pairs whose mirrors write to the source, instead of to a third cluster."""
        self._looked_from = NOWHERE
        """The source was read from this position to the start of this session ..."""
        self._seen: set[bytes] = set()
        """... and has marks of these pairs."""

    def begin(self, position: Position) -> None:
        """Begin a session at a source position: `add` reports later entries, no map has earlier ones."""
        self._places.clear()
        self._seen.clear()
        self._from = self._looked_from = position

    def add(self, pair: bytes, source: Position, target: Position) -> None:
        """Add the next entry of a pair."""
        self.places(pair).add(source, target)

    def places(self, pair: bytes) -> PositionMap:
        """Return the map of target positions of entries that the mirror of ``pair`` copied from there."""
        found = self._places.get(pair)
        if found is None:
            found = PositionMap(self._from)
            if len(self._places) >= _DIRECT_MAX:
                self._places = {each: places for each, places in self._places.items() if len(places)}
            self._places[pair] = found
        return found

    async def history(self, pair: bytes) -> TargetHistory:
        """Return the search in the source for entries that the mirror of ``pair`` copied from the target."""
        ends = self._ends
        is_direct = await self.is_direct(pair)
        keys = ends.target_keys.known(self._namespace) or await ends.target_keys.learn(self._namespace)
        stats = await ends.source_admin.topics.internal_stats(self._topic)
        return TargetHistory(ends.source, self._topic, pair, stats, keys, is_direct=is_direct)

    async def is_direct(self, pair: bytes) -> bool:
        """Return whether the mirror of ``pair`` writes to the source: the source then stores the pair."""
        found = self._direct.get(pair)
        if found is None:
            if len(self._direct) >= _DIRECT_MAX:
                self._direct.clear()
            properties = await self._ends.source_admin.topics.properties(self._topic)
            found = self._direct[pair] = pair.hex() in properties.values()
        return found

    async def may_have(self, pair: bytes, behind: Position) -> bool:
        """Return whether entries of a pair may exist after a source position and before the maps. Raises
        `NotConnected` if a new session has begun meanwhile."""
        if await self.is_direct(pair):
            return True
        if behind < self._looked_from:
            history = await self.history(pair)
            shape, before, begins = history.shape, self._looked_from, self._from
            seen = await history.pairs(shape.offset_behind(behind), shape.offset(before))
            if self._from != begins or self._looked_from != before:
                raise NotConnected(f"{self._topic} was opened anew meanwhile")
            self._seen |= seen
            self._looked_from = behind
        return pair in self._seen
