"""Tables of Spark's catalog: ``CREATE TABLE messages (value BINARY) USING pulsar``.

Spark does not pass a table's options to queries of a Python data source. So a table has columns only, and
each query names its options: ``SELECT ... FROM messages WITH ('service.url' = '...', topic = 'flights')``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from geminga.errors import InvalidConfiguration
from geminga.spark import cluster as clusters
from geminga.spark.options import read_options
from geminga.spark.schema import source_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_OPTION = "option."
"""Prefix under which Spark's catalog stores the ``OPTIONS`` of ``CREATE TABLE``."""


def read_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns for the options, or the default ones of a table that is being created.

    Raises `InvalidConfiguration` for options that do not fit, and for a table with options.
    """
    if "provider" in {name.lower() for name in options}:
        refused = sorted(name[len(_OPTION) :] for name in options if name.lower().startswith(_OPTION))
        if refused:
            raise InvalidConfiguration(
                f"a table of Spark's catalog can have no options ({', '.join(refused)}): Spark does not "
                "pass them to queries. Use CREATE TEMPORARY VIEW ... USING pulsar OPTIONS (...); or create "
                "the table without OPTIONS and name them at each use, as in SELECT ... FROM t WITH "
                "('service.url' = '...', topic = '...') and INSERT INTO t WITH (...)"
            )
        return source_schema(None)
    found = read_options(options)
    if found.value_schema == "BYTES":
        return source_schema(found.columns)
    from geminga.spark.payloads.registry import payload_columns

    return payload_columns(found, clusters.connect(found.connection))
