"""Planning of a query: start and end, the size of micro-batches, and tasks for ranges.

Everything here runs on the driver and holds no state that a restart would miss. Cluster queries cover all
partitions at once (`geminga.spark.cluster.watch`), and are retried while a broker restarts.
"""

import time
from collections.abc import Callable

from geminga.spark.cluster.clients import Cluster
from geminga.spark.offsets import Offsets
from geminga.spark.options import ReadOptions
from geminga.spark.retry_policy import RetryPolicy
from geminga.spark.source.bounds import QueryBounds
from geminga.spark.source.cursor import QueryCursor
from geminga.spark.source.micro_batches import MicroBatches
from geminga.spark.source.queries import PartitionQueries
from geminga.spark.source.task_planning import TaskPlanner


class Planner:
    """Plans one query."""

    def __init__(
        self,
        cluster: Cluster,
        options: ReadOptions,
        *,
        is_batch: bool = False,
        retry_policy: RetryPolicy | None = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.options = options
        self.retry_policy = retry_policy or options.connection.retry_policy
        watch = cluster.watch(
            name=options.subscription_prefix, from_first=is_batch, compacted=options.read_compacted
        )
        self.queries = PartitionQueries(cluster, options, self.retry_policy, watch)
        self.bounds = QueryBounds(self.queries, wall_clock)
        self.cursor: QueryCursor | None = None
        """The query's own subscription, if it has one."""
        self.micro_batches = MicroBatches(self.queries, is_batch=is_batch, clock=clock)
        self.tasks = TaskPlanner(self.queries, self.micro_batches, lambda: self.cursor, is_batch=is_batch)
        self.partitions, self.latest = self.queries.partitions, self.queries.latest
        self.starting, self.ending = self.bounds.starting, self.bounds.ending
        self.limited, self.lag = self.micro_batches.limited, self.micro_batches.lag
        self.ranges = self.tasks.ranges

    def close(self) -> None:
        self.queries.watch.close()
        if self.cursor is not None:
            self.cursor.close()

    def reach(self) -> None:
        """Connect as the query starts; see `Cluster.reach`."""
        self.cluster.reach((*self.options.topics, str(self.options.topics_pattern))[0])

    def subscribe(self, name: str) -> QueryCursor:
        """Have the durable subscription ``name`` follow this query from now on."""
        if self.cursor is None:
            is_own = name != self.options.subscription
            self.cursor = QueryCursor(name, self.cluster.cursors(name), self.queries, is_own=is_own)
        return self.cursor

    def with_cursor(self, what: str, use: Callable[[QueryCursor], Offsets]) -> Offsets:
        """Return ``use(cursor)`` of the query's subscription, retried while a broker restarts."""
        cursor = self.cursor
        assert cursor is not None
        return self.retry_policy.call(f"{what} the subscription {cursor.name}", lambda: use(cursor))
