"""Fixtures of the wire tests: recorded frames, and arbitrary protobuf messages."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from recorded import VECTORS, recorded_frames

# For `kernels_without_numba`: tests are imported file by file, without packages.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def vectors():
    return VECTORS


@pytest.fixture(scope="session")
def recorded():
    return recorded_frames()


_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
}


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    """Small numbers, numbers of any varint length, and the ends of the range."""
    edges = [
        n for n in (-1, 0, 1, 127, 128, 16383, 16384, (1 << 28) - 1, 1 << 28, low, high) if low <= n <= high
    ]
    return st.one_of(st.integers(max(low, 0), min(high, 300)), st.sampled_from(edges), st.integers(low, high))


def _values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.type in _INTEGERS:
        return _integers(*_INTEGERS[field.type])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return st.floats(allow_nan=False)
    if field.type == FieldDescriptor.TYPE_STRING:
        return st.text(max_size=6) | st.text("ab", min_size=120, max_size=140)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=6) | st.binary(min_size=120, max_size=140)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return _message(GetMessageClass(field.message_type), depth - 1)


@st.composite
def _message(draw: st.DrawFn, kind: type[Message], depth: int = 3) -> Message:
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        nested = field.message_type is not None
        if field.is_repeated:
            values = draw(st.lists(_values(field, depth), max_size=3 if depth > 0 else 0))
            target = getattr(message, field.name)
            if nested:
                for value in values:
                    target.add().CopyFrom(value)
            else:
                target.extend(values)
        elif field.is_required or ((depth > 0 or not nested) and draw(st.integers(0, 3)) == 0):
            value = draw(_values(field, depth))
            if nested:
                getattr(message, field.name).CopyFrom(value)
            else:
                setattr(message, field.name, value)
    return message


@pytest.fixture(scope="session")
def messages_of():
    """``messages_of(pb.X)``: a strategy of X with arbitrary values in an arbitrary set of its fields."""
    return _message


@pytest.fixture(scope="module", params=["numba", "no numba"])
def loops(request):
    """Run a test with compiled loops, and with the same loops where numba is not installed."""
    from kernels_without_numba import without_numba

    with nullcontext() if request.param == "numba" else without_numba():
        yield
