"""Boundary between a table of the lake and its source topic: the last messages that the table holds.

It is determined once and kept in a file, because table and topic keep growing: every run must decide in the
same way whether a row comes from the table or the topic.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from geminga.errors import InvalidConfiguration, StoreDamaged
from geminga.filesystems import resolve, write_whole
from geminga.ids import TopicName
from geminga.spark.cluster.clients import connect, discover
from geminga.spark.offsets import (
    EARLIEST,
    WHOLE_ENTRY,
    Offset,
    Offsets,
    Partition,
    from_json,
    partition_topic,
    to_json,
)
from geminga.spark.options import read_options
from geminga.spark.pipelines.connection import connection

COLUMNS = ("__topic", "__ledgerId", "__entryId", "__batchIndex")
"""Columns with each row's position in the topic, which is the partition's own."""


@dataclass(frozen=True, slots=True)
class TableBoundary:
    """The last message of each partition that the table has; `EARLIEST` where it has none."""

    offsets: Offsets

    @property
    def starting_offsets(self) -> str:
        """Return ``startingOffsets``: the boundary message itself, or the first of the partition."""
        return json.dumps(to_json(self.offsets))

    @property
    def places(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Return (topic, (ledger, entry, batch index)) of each partition with rows in the table."""
        return [
            (partition_topic(partition), (place.ledger, place.entry, place.batch_index))
            for partition, place in sorted(self.offsets.items())
            if place != EARLIEST
        ]


def pinned_seam(file: str, *, table: str, service_url: str, topic: str) -> TableBoundary:
    """Return the boundary kept in ``file`` (a path or ``file:`` URI); determine and store it if there is
    none.

    Raises `InvalidConfiguration` when ``file`` was made for another table or topic, or the table lacks the
    columns with its rows' positions; `StoreDamaged` when the file can't be read.
    """
    path = Path(resolve(file)[1])
    name = str(TopicName.parse(topic))
    if path.exists():
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            seam = TableBoundary(from_json(kept["offsets"]))
            made_for = (kept["table"], kept["topic"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(f"{path} is not a boundary file: {error}") from None
        if made_for != (table, name):
            raise InvalidConfiguration(
                f"{path} is the boundary of the table {made_for[0]} and the topic {made_for[1]}; for others, "
                "make a new project"
            )
        return seam
    places = last_places(table, name)
    if not places:
        raise InvalidConfiguration(f"{table} has no row of {name}: was it made of this topic?")
    seam = TableBoundary({**_partitions(service_url, topic), **places})
    content = {"table": table, "topic": name, "offsets": to_json(seam.offsets)}
    write_whole(*resolve(path.as_posix()), json.dumps(content, indent=2).encode())
    return seam


def _partitions(service_url: str, topic: str) -> dict[Partition, Offset]:
    """Return all partitions of the topic: those not in the table are read from their first message."""
    options = read_options({**connection(service_url), "topic": topic})
    found = discover(connect(options.connection), options.topics, None, missing_is_empty=False)
    return dict.fromkeys(found, EARLIEST)


def last_places(table: str, topic: str) -> dict[Partition, Offset]:
    """Return the last message that a table has of each of the topic's partitions."""
    from geminga.spark.pipelines import lake

    rows = lake.table_dataset(table)
    missing = [name for name in COLUMNS if name not in rows.schema.names]
    if missing:
        raise InvalidConfiguration(
            f"{table} has no column {missing[0]!r}, so the topic positions of its rows are unknown; a "
            f"table of the template ingest has {', '.join(COLUMNS)}"
        )
    found: dict[Partition, Offset] = {}
    for batch in rows.to_batches(columns=list(COLUMNS)):
        for name, place in _last_of(batch).items():
            parsed = TopicName.parse(name)
            partition = (str(parsed.base), parsed.partition)
            if partition[0] == topic:
                found[partition] = max(place, found.get(partition, EARLIEST))
    return found


def _last_of(batch: pa.RecordBatch) -> dict[str, Offset]:
    if not len(batch):
        return {}
    topics = batch[COLUMNS[0]].dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False)
    ledger, entry, index = (batch[name].to_numpy(zero_copy_only=False) for name in COLUMNS[1:])
    order = np.lexsort((index, entry, ledger, codes))
    ends = np.flatnonzero(np.append(np.diff(codes[order]) != 0, True))
    return {
        topics.dictionary[int(codes[at])].as_py(): Offset(
            int(ledger[at]), int(entry[at]), int(index[at]) if index[at] >= 0 else WHOLE_ENTRY
        )
        for at in order[ends]
    }
