"""Rewriting of entries for the target: payload and metadata stay byte for byte, two fields are added.

``replicated_from`` names the cluster where the entry was published, as in Apache Pulsar's geo-replication: an
entry that has it is not copied again, so that messages never loop. The second field is the replication stamp
(`geminga.mirror.replication_stamp`). Protobuf readers skip unknown fields, as Pulsar's brokers and clients
do.

Two things are changed: a schema version that has another number in the target, and the transaction of a
message (it was delivered, hence it is committed).
"""

from typing import NamedTuple

from geminga.entries import (
    Buffer,
    Entry,
    MessageMetadata,
    checksum_matches,
    crc32c,
    metadata_size,
    parse_entry,
    text,
    varint,
)
from geminga.errors import CorruptPayload
from geminga.mirror.positions import Position
from geminga.mirror.replication_stamp import PAIR_BYTES, ReplicationStamp, stamps_in

_REPLICATED_FROM_TAG = b"\x2a"
_MAGIC = b"\x0e\x01"


class SchemaUnknownError(Exception):
    """The entry's schema version has not been looked up in the target yet."""

    def __init__(self, version: bytes) -> None:
        super().__init__(version)
        self.version = version


class TargetEntry(NamedTuple):
    """An entry for the target: ``head``, followed by ``payload``. ``stamps``: those of the source's entry."""

    head: bytes
    payload: Buffer
    messages: int
    """Number of messages, for the SEND command."""
    stamps: list[ReplicationStamp]
    deliver_at: int
    """Delivery time in milliseconds since 1970; 0 for none."""

    @property
    def size(self) -> int:
        return len(self.head) + len(self.payload)


class EntryRewriter:
    """Rewrites entries of one topic for the target. ``schema_versions``: the target's version for each of the
    source's; None omits the version. ``target_name``: None to copy only entries that were published in the
    source; a name to copy those of other clusters too, but for the target's own (``forward``)."""

    def __init__(
        self,
        *,
        pair: bytes,
        source_name: str,
        target_name: str | None = None,
        schema_versions: dict[bytes, bytes | None] | None = None,
    ) -> None:
        if len(pair) != PAIR_BYTES:
            raise ValueError(f"a pair has {PAIR_BYTES} bytes, not {len(pair)}")
        self.schema_versions: dict[bytes, bytes | None] = {} if schema_versions is None else schema_versions
        self._pair = pair
        self._target_name = target_name
        name = source_name.encode()
        self._replicated_from = _REPLICATED_FROM_TAG + varint(len(name)) + name

    def rewrite(self, entry: Buffer, position: Position) -> TargetEntry | list[ReplicationStamp]:
        """Return the target's entry. For an entry that is not copied because it came from another cluster,
        return its last stamp instead, if it has one; an empty list also for a broker's marker.

        Raises `CorruptPayload` for a damaged entry (its checksum must not be recomputed), and
        `SchemaUnknownError` if the version must be looked up first.
        """
        if checksum_matches(entry) is False:
            raise CorruptPayload(f"the entry at {position} is damaged: its checksum does not match")
        parsed = parse_entry(entry, verify=False)
        metadata, payload = parsed.metadata, parsed.payload
        if metadata.HasField("marker_type"):
            return []
        added, stamps = self._replicated_from, list[ReplicationStamp]()
        if metadata.HasField("replicated_from"):
            stamps = stamps_in(metadata)
            if self._target_name in (None, text(metadata.replicated_from)):
                return stamps[-1:]
            added = b""  # the first cluster's name stays
        changed = False
        if metadata.HasField("txnid_least_bits") or metadata.HasField("txnid_most_bits"):
            metadata.ClearField("txnid_least_bits")
            metadata.ClearField("txnid_most_bits")
            changed = True
        if metadata.HasField("schema_version"):
            changed |= self._map_version(metadata)
        if changed:
            kept = metadata.SerializePartialToString()
        else:
            end = len(entry) - len(payload)
            kept = bytes(memoryview(entry)[end - metadata_size(entry) : end])
        kept += added + ReplicationStamp(self._pair, position).field()
        sized = len(kept).to_bytes(4, "big") + kept
        checksum = crc32c(payload, crc32c(sized))
        head, messages = _MAGIC + checksum.to_bytes(4, "big") + sized, max(1, metadata.num_messages_in_batch)
        return TargetEntry(head, payload, messages, stamps, metadata.deliver_at_time)

    def _map_version(self, metadata: MessageMetadata) -> bool:
        version = bytes(metadata.schema_version)
        try:
            mapped = self.schema_versions[version]
        except KeyError:
            raise SchemaUnknownError(version) from None
        if mapped == version:
            return False
        if mapped is None:
            metadata.ClearField("schema_version")
        else:
            metadata.schema_version = mapped
        return True


def stamp_of(entry: Buffer) -> ReplicationStamp | None:
    """Return the last stamp of an entry; None without one, and for an entry that ends before its metadata."""
    try:
        return next(reversed(stamps_in(parse_entry(entry, verify=False).metadata)), None)
    except CorruptPayload:
        return None


def is_same(one: Entry, other: Entry) -> bool:
    """Return whether two entries hold the same messages, ignoring fields that mirrors change."""
    if one.payload != other.payload:
        return False
    first, second = one.metadata, other.metadata
    return (first.producer_name, first.sequence_id, first.publish_time) == (
        second.producer_name, second.sequence_id, second.publish_time,
    )  # fmt: skip
