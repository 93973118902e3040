"""Tables of Spark's catalog: ``CREATE TABLE flights USING pulsar OPTIONS (...)``.

Spark shows a table's options to a Python data source once, when the table is created without columns, and
again to nobody: the readers and writers of later queries are given the table's schema alone. So the
schema carries them, in the metadata of its first column, which the catalog keeps and INSERT hands on.
Secrets do not travel there: metadata goes on into every frame and file that is made from the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from geminga.errors import InvalidConfiguration
from geminga.spark import cluster as clusters
from geminga.spark.options import (
    READ,
    SECRETS,
    WRITE,
    ReadOptions,
    for_use,
    read_options,
    table_options,
    write_options,
)
from geminga.spark.schema import source_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

METADATA_KEY = "geminga.pulsar.options"


def read_schema(options: Mapping[str, str]) -> StructType:
    """The columns that the options ask for; with the options in it when it is a table that is created.

    Raises `InvalidConfiguration` for options that do not fit, and for a table that holds a secret.
    """
    kept = table_options(options)
    if kept is None:
        return _columns(read_options(options))
    secret = sorted(SECRETS & {name.lower() for name in kept})
    if secret:
        raise InvalidConfiguration(
            f"option {secret[0]!r} is a secret, and a table of Spark's catalog keeps its options in the "
            "open: use CREATE TEMPORARY VIEW ... USING pulsar"
        )
    write_options(for_use(kept, WRITE))
    schema = _columns(read_options(for_use(kept, READ)))
    schema.fields[0].metadata = {METADATA_KEY: json.dumps(kept)}
    return schema


def _columns(options: ReadOptions) -> StructType:
    if options.value_schema == "BYTES":
        return source_schema(options.columns)
    from geminga.spark.payloads.registry import payload_columns

    return payload_columns(options, clusters.connect(options.connection))


def options_for(use: str, options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a query; those of its table where it is one's, with the query's own winning."""
    for field in schema.fields:
        kept = (field.metadata or {}).get(METADATA_KEY)
        if kept is not None:
            given = {name.lower(): value for name, value in for_use(json.loads(kept), use).items()}
            return {**given, **{name.lower(): value for name, value in options.items()}}
    return dict(options)
