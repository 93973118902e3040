"""Detection of batches with messages of several keys: a Key_Shared consumer gets such a batch whole."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from geminga.consumer.message import Message, ReceivedEntry

BATCHES_LOOKED_AT_MAX = 100
"""Maximum batches whose keys a Key_Shared consumer compares, until it finds several keys in one."""
KEYS_LOOKED_AT_MAX = 10
"""Maximum messages of a batch whose keys are compared."""


class KeyWatch:
    """Detects, once, that the messages of a batch have several keys, whose order is then not kept."""

    def __init__(self, *, is_wanted: bool) -> None:
        self.looks_left = BATCHES_LOOKED_AT_MAX if is_wanted else 0

    def look(self, entry: ReceivedEntry, indexes: Sequence[int]) -> str | None:
        """Return the name of the batch's producer, the first time that one has several keys; else None."""
        self.looks_left -= 1
        found = producer_that_mixes_keys(entry, indexes)
        if found is not None:
            self.looks_left = 0
        return found


def producer_that_mixes_keys(entry: ReceivedEntry, indexes: Sequence[int]) -> str | None:
    """Return the name of the batch's producer if its messages have several keys; else None."""
    messages = [Message(entry, index) for index in indexes[:KEYS_LOOKED_AT_MAX]]
    try:
        # Key_Shared dispatches by this key.
        keys = {message.ordering_key() or message.partition_key() for message in messages}
        return messages[0].producer_name() if len(keys) > 1 else None
    except DecodeError:
        return None  # reading the message reports the error
