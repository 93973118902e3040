"""Choice between several clusters: the decisions of ``AutoClusterFailover``, without I/O.

The first cluster is the primary. While it is used, ``failover_threshold`` failed probes in a row switch to
the first of the others that answers. While another is used, ``switch_back_threshold`` successful probes of
the primary in a row switch back, and a failing secondary is left in the same way as the primary.
"""

from __future__ import annotations

from collections.abc import Sequence

PRIMARY = 0


class ClusterChoice:
    """``clusters``: their number, including the primary. `current` is the index of the one in use."""

    def __init__(self, clusters: int, *, failover_threshold: int, switch_back_threshold: int) -> None:
        self.current = PRIMARY
        self._clusters = clusters
        self._failover_threshold = failover_threshold
        self._switch_back_threshold = switch_back_threshold
        self._failures = 0
        self._returns = 0

    def wanted(self) -> Sequence[int]:
        """Return the clusters to probe now."""
        return (PRIMARY,) if self.current == PRIMARY else (PRIMARY, self.current)

    def probed(self, reachable: Sequence[bool]) -> Sequence[int]:
        """Note the outcomes for `wanted`; return the clusters to move to, best first: use the first reachable
        one. Empty: stay."""
        self._failures = 0 if reachable[-1] else self._failures + 1
        if self.current != PRIMARY:
            self._returns = self._returns + 1 if reachable[0] else 0
            if self._returns >= self._switch_back_threshold:
                return (PRIMARY,)
        if self._failures < self._failover_threshold:
            return ()
        return [index for index in range(self._clusters) if index != self.current]

    def moved(self, index: int) -> None:
        """Use cluster ``index`` from now on."""
        self.current = index
        self._failures = self._returns = 0
