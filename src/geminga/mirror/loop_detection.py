"""What other mirrors brought from the target into the source: it stays there, and says where in the target it
lies.

A mirror that reads the target is known by its subscription there. Anybody who may subscribe can make one that
looks the same, with a pair that nobody has. So what was there before is read through once for all of them,
for the pairs that it has marks of: only of these it is worth a search.
"""

from __future__ import annotations

from geminga.errors import NotConnected
from geminga.ids import TopicName
from geminga.mirror.cluster_pair import ClusterPair
from geminga.mirror.history import TargetHistory
from geminga.mirror.position_map import PositionMap
from geminga.mirror.positions import NOWHERE, Position

_DIRECT_MAX = 1_000
"""Pairs of which is remembered whether their mirrors write into the source."""


class LoopDetection:
    """Of one topic or partition, by the pair of the mirror that brought them."""

    def __init__(self, ends: ClusterPair, topic: str) -> None:
        self._ends = ends
        self._topic = topic
        self._namespace = TopicName.parse(topic).namespace_name
        self._places: dict[bytes, PositionMap] = {}
        self._from = NOWHERE
        self._direct: dict[bytes, bool] = {}
        """Pairs whose mirrors write into the source, instead of into a third cluster."""
        self._looked_from = NOWHERE
        """From there on to where this session begins the source was read through for pairs ..."""
        self._seen: set[bytes] = set()
        """... and has marks of these."""

    def begin(self, position: Position) -> None:
        """What comes from a place of the source on is told by `add`; what lies before is in no map."""
        self._places.clear()
        self._seen.clear()
        self._from = self._looked_from = position

    def add(self, pair: bytes, source: Position, target: Position) -> None:
        """The next entry of a pair."""
        self.places(pair).add(source, target)

    def places(self, pair: bytes) -> PositionMap:
        """Where entries that came from the target by the mirror of ``pair`` lie there."""
        found = self._places.get(pair)
        if found is None:
            found = PositionMap(self._from)
            if len(self._places) >= _DIRECT_MAX:
                self._places = {each: places for each, places in self._places.items() if len(places)}
            self._places[pair] = found
        return found

    async def history(self, pair: bytes) -> TargetHistory:
        """Questions about what the mirror of ``pair`` brought from the target into the source."""
        ends = self._ends
        is_direct = await self.is_direct(pair)
        keys = ends.target_keys.known(self._namespace) or await ends.target_keys.learn(self._namespace)
        stats = await ends.source_admin.topics.internal_stats(self._topic)
        return TargetHistory(ends.source, self._topic, pair, stats, keys, is_direct=is_direct)

    async def is_direct(self, pair: bytes) -> bool:
        """Whether the mirror of ``pair`` writes into the source: it keeps the pair there."""
        found = self._direct.get(pair)
        if found is None:
            if len(self._direct) >= _DIRECT_MAX:
                self._direct.clear()
            properties = await self._ends.source_admin.topics.properties(self._topic)
            found = self._direct[pair] = pair.hex() in properties.values()
        return found

    async def may_have(self, pair: bytes, behind: Position) -> bool:
        """Whether there may be anything of a pair behind a place of the source, before what the maps have.
        Raises `NotConnected` when a new session has begun meanwhile."""
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
