"""Batches that hold messages of several keys: a Key_Shared consumer gets them whole."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from geminga.consumer.message import Message, ReceivedEntry

BATCHES_LOOKED_AT_MAX = 100
"""Batches whose keys a Key_Shared consumer compares, until it has seen several keys in one."""
KEYS_LOOKED_AT_MAX = 10
"""Messages of a batch whose keys are compared."""


class KeyWatch:
    """Tells once when the messages of a batch have several keys: their order is not kept."""

    def __init__(self, *, is_wanted: bool) -> None:
        self.looks_left = BATCHES_LOOKED_AT_MAX if is_wanted else 0

    def look(self, entry: ReceivedEntry, indexes: Sequence[int]) -> str | None:
        """Who made the batch, the first time that it has several keys; None otherwise."""
        self.looks_left -= 1
        found = producer_that_mixes_keys(entry, indexes)
        if found is not None:
            self.looks_left = 0
        return found


def producer_that_mixes_keys(entry: ReceivedEntry, indexes: Sequence[int]) -> str | None:
    """Who made the batch, when its messages have several keys; None otherwise."""
    messages = [Message(entry, index) for index in indexes[:KEYS_LOOKED_AT_MAX]]
    try:
        # What Key_Shared goes by.
        keys = {message.ordering_key() or message.partition_key() for message in messages}
        return messages[0].producer_name() if len(keys) > 1 else None
    except DecodeError:
        return None  # whoever reads the message is told
