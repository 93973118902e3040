"""Workloads of the simulation, by name."""

from typing import Final

from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.delivery import Counts, DeadLetters, Delayed, Refusals
from tests.simulation.workloads.everyday import Everyday
from tests.simulation.workloads.positions import Reading, Retention, Seeking
from tests.simulation.workloads.publishing import Access, Restarts
from tests.simulation.workloads.tables import Compaction
from tests.simulation.workloads.topics import Growth, Passing, Patterns
from tests.simulation.workloads.transactions import Transactions

WORKLOADS: Final[dict[str, type[Workload]]] = {
    each.name: each
    for each in (
        Everyday, Restarts, Access, Compaction, Delayed, DeadLetters, Refusals, Counts, Reading, Seeking,
        Retention, Growth, Patterns, Passing, Transactions,
    )
}  # fmt: skip
