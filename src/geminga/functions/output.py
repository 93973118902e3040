"""`Output`: a result of a function, with a topic, a key or other options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Output:
    """A result with a topic, a key or other options of ``send``. A function returns or yields it."""

    value: Any
    """Value to publish; None publishes a null value."""
    topic: str | None = None
    """Topic, instead of the function's output."""
    key: str | None = None
    """Partition key as in ``send``; None: the input's key if ``forward_keys`` is on."""
    properties: Mapping[str, str] | None = None
    """Properties as in ``send``."""
    ordering_key: str | None = None
    """Ordering key as in ``send``."""
    event_timestamp: int | None = None
    """Event time in milliseconds since 1970."""
    deliver_after_ms: int | None = None
    """Delay of the delivery in milliseconds."""
