"""Decryption of entries before they are decoded into columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from geminga.errors import CryptoError
from geminga.spark.counting import UNDECRYPTABLE, SkipCounters
from geminga.spark.options import ReadOptions
from geminga.wire.metadata import RawEntry

logger = logging.getLogger("geminga.spark")

Opener = Callable[[Sequence["RawEntry"]], "list[RawEntry]"]


def opener(options: ReadOptions, skip_counters: SkipCounters) -> Opener:
    """Return the function that decrypts a range's entries. By the options, entries that can't be decrypted
    fail or are left out. Raises `CryptoError` naming the entry, and if ``cryptography`` is missing."""
    key = options.crypto_private_key_path
    discards = options.crypto_failure_action == "DISCARD"
    if key is None and not discards:
        return list  # decoding rejects encrypted entries

    from geminga.client.crypto import CryptoKeyReader, decryptor
    from geminga.consumer.opening import plain_metadata
    from geminga.wire.columnar import encrypted_entries
    from geminga.wire.metadata import build_entry, parse_entry

    decrypt = None if key is None else decryptor(CryptoKeyReader("", key))

    def opened(entry: RawEntry) -> RawEntry:
        parsed = parse_entry(entry.entry)
        if decrypt is None:
            raise CryptoError("the entry is encrypted, and the option crypto.privateKeyPath is not set")
        payload = decrypt(parsed.metadata, parsed.payload)
        metadata = plain_metadata(parsed.metadata)
        if parsed.metadata.num_chunks_from_msg > 1:  # each chunk is encrypted by itself
            metadata.num_chunks_from_msg = parsed.metadata.num_chunks_from_msg
            metadata.total_chunk_msg_size = parsed.metadata.total_chunk_msg_size
            metadata.chunk_id = parsed.metadata.chunk_id
        return entry._replace(entry=build_entry(metadata.SerializeToString(), payload))

    def open_all(entries: Sequence[RawEntry]) -> list[RawEntry]:
        found: list[RawEntry | None] = list(entries)
        for number in encrypted_entries(entries):
            entry = entries[number]
            place = f"{entry.topic}:{entry.ledger_id}:{entry.entry_id}"
            try:
                found[number] = opened(entry)
            except CryptoError as error:
                if not discards:
                    raise CryptoError(f"{place}: {error}") from None
                skip_counters.add(UNDECRYPTABLE)
                logger.warning("leaving out %s: %s", place, error)
                found[number] = None
        return [entry for entry in found if entry is not None]

    return open_all
