"""Loading of the compiled loops before they are needed: ``python -m geminga.wire.compiled``.

numba compiles `geminga.wire.columnar_kernels` and `columnar_encoding_kernels` at first use, once per machine
and version, which takes some seconds. Run this module when a container's image is built.
"""

import numpy as np
import pyarrow as pa

from geminga.wire.columnar import EXTRA_COLUMNS, MESSAGE_COLUMNS, decode_entries
from geminga.wire.columnar_encoding import encode_table
from geminga.wire.metadata import RawEntry, build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb


def load() -> None:
    """Use each loop once: it is loaded from numba's cache, or compiled into it."""
    offsets = np.array([0, 4], np.int32)
    # `pa.array` imports pandas.
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(b"aw==")])
    pairs = pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(np.array([0, 1], np.int32))]), text, text
    )
    (batch,) = encode_table(
        pa.Table.from_arrays([text.cast(pa.binary()), text, pairs], names=["value", "key", "properties"])
    )
    body = pb.SingleMessageMetadata(payload_size=1, partition_key="aw==", partition_key_b64_encoded=True)
    flagged = len(body.SerializeToString()).to_bytes(4, "big") + body.SerializeToString() + b"v"
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=1)
    entries = [build_entry(metadata.SerializeToString(), each) for each in (bytes(batch.body), flagged)]
    columns = (*MESSAGE_COLUMNS, *EXTRA_COLUMNS)
    decode_entries([RawEntry("t", -1, 0, number, entry) for number, entry in enumerate(entries)], columns)


if __name__ == "__main__":
    load()
