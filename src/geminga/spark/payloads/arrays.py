"""Arrow arrays from NumPy arrays, without a Python object for each value."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.wire.columnar import bitmap, number_array

Mask = NDArray[np.bool_]
Int64s = NDArray[np.int64]


def validity(absent: Mask | None) -> tuple[pa.Buffer | None, int]:
    """Return the validity buffer and the number of nulls."""
    nulls = 0 if absent is None else int(absent.sum())
    return (bitmap(~absent) if absent is not None and nulls else None), nulls


def booleans(values: Mask, absent: Mask | None = None) -> pa.Array:
    valid, nulls = validity(absent)
    return pa.Array.from_buffers(pa.bool_(), len(values), [valid, bitmap(values)], nulls)


def binary_parts(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return starts, ends and bytes of a binary or string array; a null is empty."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        nothing = np.zeros(len(array), np.int64)
        return nothing, nothing, np.zeros(1, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return bounds[:-1], bounds[1:], content


def nulls_of(array: pa.Array) -> Mask:
    """Return the mask of null values."""
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    found: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return found


def gathered(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """Return slices of ``data`` as a binary array; null where the size is < 0.

    Raises `OverflowError` for more than 2 GiB.
    """
    from geminga.wire import columnar_kernels

    gather: Any = columnar_kernels.gather

    total = int(np.maximum(sizes, 0).sum())
    if total > (1 << 31) - 1:
        raise OverflowError(f"{total} bytes in one column of a record batch")
    out = np.empty(total, np.uint8)
    offsets = np.empty(len(starts) + 1, np.int32)
    gather(data, starts, sizes, offsets, out)
    valid, nulls = validity(sizes < 0)
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers, nulls)


def scattered(values: NDArray[Any], absent: Mask | None, fill: Any = 0) -> NDArray[Any]:
    """Return an array with ``values`` where not absent, and ``fill`` elsewhere."""
    if absent is None:
        return values
    found = np.full((len(absent), *values.shape[1:]), fill, values.dtype)
    found[~absent] = values
    return found


def indices(present: Mask) -> pa.Array:
    """Return indices that spread a dense array over the present slots; null elsewhere."""
    return number_array(np.cumsum(present) - 1, pa.int64(), ~present)
