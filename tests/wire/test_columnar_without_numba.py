"""The loops give the same results with and without numba, also for damaged entries."""

from typing import Any

import pyarrow as pa
from entries import in_batch
from hypothesis import given
from hypothesis import strategies as st
from interpreter import run_python
from kernels_without_numba import without_numba

from geminga.errors import CorruptPayload
from geminga.wire.batch import encode_plain_batch
from geminga.wire.columnar import EXTRA_COLUMNS, MESSAGE_COLUMNS, decode_entries
from geminga.wire.metadata import RawEntry, build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

COLUMNS = (*MESSAGE_COLUMNS, *EXTRA_COLUMNS)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": st.sampled_from(["", "key", "a2V5", "k" * 130]),
        "partition_key_b64": st.just(True),
        "ordering_key": st.binary(max_size=3),
        "properties": st.dictionaries(st.sampled_from("abc"), st.text(max_size=3), max_size=2),
        "event_time": st.integers(1, 1 << 41),
        "null_value": st.just(True),
        "compacted_out": st.just(True),
    },
)
NUMBERS = st.sampled_from([0, 1, 100, 126, 16_380, 1 << 21, 1 << 40, (1 << 63) - 20])


@st.composite
def bodies(draw: Any) -> tuple[bytes, int]:
    """A batch and its count: mostly of plain messages, often of one size."""
    kind = draw(st.sampled_from(["even", "plain", "any"]))
    count = draw(st.integers(1, 12))
    first = draw(NUMBERS)
    if kind == "even":
        return encode_plain_batch([b"x" * draw(st.integers(0, 200))] * count, first), count
    if kind == "plain":
        return encode_plain_batch([draw(st.binary(max_size=200)) for _ in range(count)], first), count
    parts = []
    for number in range(count):
        payload = draw(st.binary(max_size=40))
        sequence_id = draw(st.none() | st.just(first + number))
        parts.append(in_batch(payload, sequence_id=sequence_id, **draw(FIELDS)))
    return b"".join(parts), count


@st.composite
def entries(draw: Any) -> RawEntry:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=draw(NUMBERS), publish_time=12)
    words: tuple[int, ...] = ()
    if draw(st.integers(0, 4)):
        body, metadata.num_messages_in_batch = draw(bodies())
        if draw(st.booleans()):
            words = tuple(draw(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=2)))
    else:
        body = draw(st.binary(max_size=30))
        metadata.partition_key = draw(st.sampled_from(["", "key"]))
    raw = bytearray(build_entry(metadata.SerializeToString(), body))
    for place, value in draw(
        st.lists(st.tuples(st.integers(6, len(raw) - 1), st.integers(0, 255)), max_size=2)
    ):
        raw[place] = value
    return RawEntry("t", draw(st.integers(-1, 3)), 5, draw(st.integers(0, 300)), bytes(raw), 1, words)


def decoded(given_entries: list[RawEntry]) -> pa.RecordBatch | str:
    try:
        return decode_entries(given_entries, COLUMNS, verify=False)
    except CorruptPayload as error:
        return str(error)
    except Exception as error:
        return type(error).__name__


@given(st.lists(entries(), min_size=1, max_size=3))
def test_decoding_gives_the_same_messages_and_errors(found):
    compiled = decoded(found)
    with without_numba():
        plain = decoded(found)
    if isinstance(compiled, pa.RecordBatch):
        assert isinstance(plain, pa.RecordBatch), plain
        assert plain.to_pylist() == compiled.to_pylist()
    else:
        assert plain == compiled


PROGRAM = """
import sys
sys.modules["numba"] = None
import pyarrow as pa
import geminga
table = pa.table({"value": pa.array([b"a", None, b"c"]), "key": ["k", "", None]})
with geminga.Client(sys.argv[1]) as client:
    consumer = client.subscribe("t", "s", initial_position=geminga.InitialPosition.Earliest)
    client.create_producer("t").send_table(table)
    received = consumer.receive_table(10, timeout_millis=60_000)
    assert received.column("value").to_pylist() == table.column("value").to_pylist(), received
    assert received.column("key").to_pylist() == table.column("key").to_pylist(), received
"""


def test_tables_are_sent_and_received_without_numba(pulsar_broker):
    run_python(PROGRAM, pulsar_broker.service_url, options=("-W", "error::RuntimeWarning"))
