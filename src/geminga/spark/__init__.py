"""Pulsar as a Spark data source: ``spark.read.format("pulsar")``, ``readStream``, ``write``, ``writeStream``.

::

    spark = geminga.spark.session()            # or geminga.spark.register(your_session)
    rows = spark.read.format("pulsar").option("service.url", "pulsar://localhost:6650").load("my-topic")

`geminga.spark.options.OPTIONS` lists the options, `geminga.spark.schema.COLUMNS` the columns. PySpark is
loaded by the first use of a name of this module; type checkers read the names in ``__init__.pyi``.
"""

from typing import Any

_PLACES = {
    "Snapshot": "geminga.spark.source.snapshots",
    "PulsarDataSource": "geminga.spark.datasource",
    "observed": "geminga.spark.observing",
    "query_lag": "geminga.spark.observing",
    "serve_metrics": "geminga.spark.observing",
    "register": "geminga.spark.sessions",
    "run_query": "geminga.spark.sessions",
    "session": "geminga.spark.sessions",
    "snapshot": "geminga.spark.source.snapshots",
}

__all__ = (*_PLACES,)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from geminga.extras import need

    need(f"geminga.spark.{name}", "pyspark", "pyarrow", "numpy")
    import_module("geminga.spark.releases")  # raises below PySpark 4.0
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
