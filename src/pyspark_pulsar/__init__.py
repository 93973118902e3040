"""Data source ``pulsar`` for Spark's automatic registration.

Spark looks for Python data sources in packages whose names begin with ``pyspark_``, and registers the class
``DefaultSource`` of each, once a session: in plain PySpark, ``spark-sql``, Spark Connect servers and
``spark-pipelines`` alike. An error here would fail every such search, for any format, so a missing package is
a warning and the format is left out.
"""

try:
    from geminga.spark.datasource import PulsarDataSource as DefaultSource
except ImportError as error:
    import warnings

    warnings.warn(
        f"format('pulsar') is not available: {error}. It needs pip install 'geminga[spark]' for the Python "
        "that Spark runs (PYSPARK_PYTHON, or the first python3 of the PATH)",
        stacklevel=1,
    )

__all__ = ("DefaultSource",)
