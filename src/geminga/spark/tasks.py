"""What a task knows of the query that it works for."""

from __future__ import annotations

import hashlib

_QUERY_ID = "sql.streaming.queryId"
"""Where Spark tells a task its streaming query."""


def query_of_task(stands_for_it: str) -> str:
    """The id of the task's streaming query, the same for all its runs; outside of Spark one made from what
    stands for the query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    known = context.getLocalProperty(_QUERY_ID) if context is not None else None
    return str(known) if known else hashlib.sha256(stands_for_it.encode()).hexdigest()[:32]
