"""Differences between the releases of PySpark 4, for the other modules.

PySpark 4.0 has neither filters nor streaming writers that take Arrow batches; 4.0 and 4.1 give a streaming
reader neither a start nor a limit for the next micro-batch. The names here exist in each release; those that
a release lacks are stand-ins, which Spark never calls.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyspark

from geminga.errors import OperationNotSupported
from geminga.extras import MissingExtra

try:
    from pyspark.sql import datasource
except ImportError:
    raise MissingExtra(
        f"format('pulsar') needs PySpark 4.0 or newer; this is PySpark {pyspark.__version__}"
    ) from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        DataSourceStreamWriter,
        Filter,
        WriterCommitMessage,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import DataType, StructType


try:
    _streaming: Any = importlib.import_module("pyspark.sql.streaming.datasource")
except ImportError:
    _streaming = None

PLANS_BY_START = _streaming is not None
"""Whether Spark gives a streaming reader the start and the limit of a micro-batch (4.2)."""
STREAMS_ARROW = hasattr(datasource, "DataSourceStreamArrowWriter")
"""Whether streaming writers take Arrow batches (4.1)."""

if not TYPE_CHECKING:

    class _StandIn:
        """Base of classes that the installed release lacks."""

        def __init__(self, *_: object) -> None:
            pass

    def _named(module: Any, name: str, base: type = _StandIn) -> type:
        return getattr(module, name, None) or type(name, (base,), {})

    Filter = _named(datasource, "Filter")
    DataSourceStreamArrowWriter = _named(
        datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
    )
    ReadAllAvailable = _named(_streaming, "ReadAllAvailable")
    ReadLimit = _named(_streaming, "ReadLimit")
    ReadMaxBytes = _named(_streaming, "ReadMaxBytes")
    ReadMaxFiles = _named(_streaming, "ReadMaxFiles")
    ReadMaxRows = _named(_streaming, "ReadMaxRows")
    SupportsTriggerAvailableNow = _named(_streaming, "SupportsTriggerAvailableNow")


def _utc(function: Any) -> dict[str, Any]:
    # Times are UTC by default before PySpark 4.2, which has no such argument.
    return {"timezone": "UTC"} if "timezone" in inspect.signature(function).parameters else {}


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type that Spark expects in a record batch."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, **_utc(to_arrow_type))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the record batches that Spark expects."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, **_utc(to_arrow_schema))


def need_planning_by_start(what: str, otherwise: str = "") -> None:
    """Raise `OperationNotSupported` below PySpark 4.2. ``otherwise``: what helps there."""
    if not PLANS_BY_START:
        raise OperationNotSupported(
            f"{what} needs PySpark 4.2 or newer; this is PySpark {pyspark.__version__}{otherwise}"
        )


ROWS_AT_ONCE = 10_000
"""Rows that are converted to one Arrow batch where Spark gives rows."""


class RowsToArrowWriter(datasource.DataSourceStreamWriter):
    """Streaming writer for PySpark 4.0, which gives rows: converts them for a writer of Arrow batches."""

    def __init__(self, writer: Any, schema: StructType) -> None:
        self.writer = writer
        self.schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        written: WriterCommitMessage = self.writer.write(self._batches(iterator))
        return written

    def _batches(self, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        from itertools import islice

        from pyspark.sql.conversion import LocalDataToArrowConversion

        while block := list(islice(rows, ROWS_AT_ONCE)):
            table = LocalDataToArrowConversion.convert(block, self.schema, use_large_var_types=False)
            yield from table.combine_chunks().to_batches()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.writer.abort(messages, batchId)


def stream_writer(writer: DataSourceStreamWriter, schema: StructType) -> DataSourceStreamWriter:
    """Return a writer of Arrow batches as the installed release calls it."""
    return writer if STREAMS_ARROW else RowsToArrowWriter(writer, schema)


__all__ = (
    "PLANS_BY_START", "DataSourceStreamArrowWriter", "Filter", "ReadAllAvailable", "ReadLimit",
    "ReadMaxBytes", "ReadMaxFiles", "ReadMaxRows", "SupportsTriggerAvailableNow", "arrow_schema",
    "arrow_type", "need_planning_by_start", "stream_writer",
)  # fmt: skip
