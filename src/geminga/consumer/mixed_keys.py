"""Detection of batches with messages of several keys: a Key_Shared consumer gets such a batch whole."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from geminga.consumer.message import Message, ReceivedEntry

BATCHES_LOOKED_AT_MAX = 100
"""Maximum batches whose keys a Key_Shared consumer compares, until it finds several keys in one."""
KEYS_LOOKED_AT_MAX = 10
"""Maximum messages of a batch whose keys are compared."""


def producer_that_mixes_keys(entry: ReceivedEntry, indexes: Sequence[int]) -> str | None:
    """Return the name of the batch's producer if its messages have several keys; else None."""
    messages = [Message(entry, index) for index in indexes[:KEYS_LOOKED_AT_MAX]]
    try:
        # Key_Shared dispatches by this key.
        keys = {message.ordering_key() or message.partition_key() for message in messages}
        return messages[0].producer_name() if len(keys) > 1 else None
    except DecodeError:
        return None  # reading the message reports the error
