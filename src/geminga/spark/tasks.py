"""Properties of the query that a task belongs to, as Spark passes them to the task."""

import hashlib

_QUERY_ID = "sql.streaming.queryId"
"""Local property with the id of the task's streaming query."""
_ZONE = "spark.sql.session.timeZone"


def query_of_task(stands_for_it: str) -> str:
    """Return the id of the task's streaming query, the same in all its runs; outside of Spark an id made from
    ``stands_for_it``."""
    known = _property(_QUERY_ID)
    return str(known) if known else hashlib.sha256(stands_for_it.encode()).hexdigest()[:32]


def session_zone() -> str:
    """Return the session's time zone in a task; empty, for the machine's own, if the session sets none."""
    return str(_property(_ZONE) or "")


def _property(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
