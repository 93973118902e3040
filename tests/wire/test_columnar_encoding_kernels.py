"""The compiled key hashes, judged by the vectors of the official clients."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kernels_without_numba import MODULES

from geminga.wire import columnar_encoding_kernels
from geminga.wire.columnar_encoding import encode_table

VECTORS = Path(__file__).parent.parent / "vectors" / "hash_vectors.tsv"
COLUMNS = {0: "java_string_hash", 1: "murmur3_32", 2: "cpp_boost_hash"}


def vectors() -> list[dict[str, str]]:
    with VECTORS.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


LOOPS = pytest.mark.parametrize(
    "loops", [columnar_encoding_kernels, MODULES["columnar_encoding_kernels"]], ids=["numba", "no numba"]
)


@LOOPS
@pytest.mark.parametrize("scheme", COLUMNS, ids=COLUMNS.values())
def test_hashes_of_the_official_clients(scheme, loops):
    rows = vectors()
    keys = [bytes.fromhex(row["utf8_hex"]) for row in rows]
    assert [json.loads(row["key_json"]).encode("utf-8", "surrogatepass") for row in rows] == keys
    offsets = np.cumsum([0, *(len(key) for key in keys)]).astype(np.int32)
    offsets.flags.writeable = False
    found = np.empty(len(keys), np.int64)
    loops.hash_keys(np.frombuffer(b"".join(keys), np.uint8), offsets, scheme, found)
    assert found.tolist() == [int(row[COLUMNS[scheme]]) for row in rows]


def test_partitions_of_the_java_client():
    rows = vectors()
    table = pa.table(
        {"value": [row["utf8_hex"] for row in rows], "key": [json.loads(row["key_json"]) for row in rows]}
    )
    for hashing, column in (("JavaStringHash", "java_mod10"), ("Murmur3_32Hash", "murmur_mod10")):
        placed = {
            int(index): batch.partition
            for batch in encode_table(table, partitions=10, hashing=hashing)
            for index in batch.rows
        }
        assert [placed[index] for index in range(len(rows))] == [int(row[column]) for row in rows]


@LOOPS
def test_rows_are_grouped_in_their_order(loops):
    groups = np.array([2, 0, 2, 1, 0, 2], np.int64)
    order, bounds = np.empty(6, np.int64), np.empty(5, np.int64)
    loops.group_rows(groups, 4, order, bounds)
    assert order.tolist() == [1, 4, 3, 0, 2, 5]
    assert bounds.tolist() == [0, 2, 3, 6, 6]
