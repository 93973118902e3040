"""Readers of tests."""

from collections.abc import Iterator
from typing import Any


def available(reader: Any, timeout_millis: int = 60_000) -> Iterator[Any]:
    """Yield the messages of a topic up to its end."""
    while reader.has_message_available():
        yield reader.read_next(timeout_millis)
