"""Which of several clusters a client uses: the decisions of ``AutoClusterFailover``, without I/O.

The first cluster is the primary. While it is used, ``failover_threshold`` failed probes in a row lead to
the first of the others that answers. While another is used, ``switch_back_threshold`` good probes of the
primary in a row lead back to it, and a failing replacement is left as the primary was.
"""

from __future__ import annotations

from collections.abc import Sequence

PRIMARY = 0


class ClusterChoice:
    """``clusters``: how many there are, the primary included. `current` is the index of the one in use."""

    def __init__(self, clusters: int, *, failover_threshold: int, switch_back_threshold: int) -> None:
        self.current = PRIMARY
        self._clusters = clusters
        self._failover_threshold = failover_threshold
        self._switch_back_threshold = switch_back_threshold
        self._failures = 0
        self._returns = 0

    def wanted(self) -> Sequence[int]:
        """The clusters to probe now."""
        return (PRIMARY,) if self.current == PRIMARY else (PRIMARY, self.current)

    def probed(self, reachable: Sequence[bool]) -> Sequence[int]:
        """Take the outcomes for `wanted`; the clusters to move to, the best first: the first of them that can
        be reached now. Empty: stay."""
        self._failures = 0 if reachable[-1] else self._failures + 1
        if self.current != PRIMARY:
            self._returns = self._returns + 1 if reachable[0] else 0
            if self._returns >= self._switch_back_threshold:
                return (PRIMARY,)
        if self._failures < self._failover_threshold:
            return ()
        return [index for index in range(self._clusters) if index != self.current]

    def moved(self, index: int) -> None:
        """The client uses cluster ``index`` from now on."""
        self.current = index
        self._failures = self._returns = 0
