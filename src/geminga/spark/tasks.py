"""What a task knows of the query that it works for."""

from __future__ import annotations

import hashlib

_QUERY_ID = "sql.streaming.queryId"
"""Where Spark tells a task its streaming query."""
_ZONE = "spark.sql.session.timeZone"


def query_of_task(stands_for_it: str) -> str:
    """The id of the task's streaming query, the same for all its runs; outside of Spark one made from what
    stands for the query."""
    known = _property(_QUERY_ID)
    return str(known) if known else hashlib.sha256(stands_for_it.encode()).hexdigest()[:32]


def session_zone() -> str:
    """The session's time zone in a task; empty, for the machine's own, where the session names none."""
    return str(_property(_ZONE) or "")


def _property(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
