"""Rewriting of entries for the target: payload and metadata stay byte for byte, two fields are added.

``replicated_from`` names the source cluster, as in Pulsar's geo-replication. The second field is Geminga's
mark (`geminga.mirror.replication_stamp`): the pair of topics and the entry's position in the source. From the
marks a mirror reads its progress in the target, the mapping of positions, and which entries a mirror in the
opposite direction must not copy back. Protobuf readers skip unknown fields, as Pulsar's brokers and clients
do.

Two things are changed: a schema version that has another number in the target, and the transaction of a
message (it was delivered, hence it is committed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from geminga.errors import CorruptPayload
from geminga.mirror.positions import NOWHERE, Position
from geminga.mirror.replication_stamp import PAIR_BYTES, ReplicationStamp, StampOrigin, mark_field, marks_in
from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.metadata import Entry, checksum_matches, metadata_size, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text
from geminga.wire.varint import varint

_REPLICATED_FROM_TAG = b"\x2a"
_MAGIC = b"\x0e\x01"
PAIRS_MAX = 1_000
"""Most pairs remembered as unrelated to the target; beyond, they are queried again."""


class SchemaUnknownError(Exception):
    """The entry's schema version has not been looked up in the target yet."""

    def __init__(self, version: bytes) -> None:
        super().__init__(version)
        self.version = version


class PairsUnknownError(Exception):
    """The entry came through other mirrors, and was written after the last query for the pairs and keys of
    mirrors that read the target."""

    def __init__(self, pairs: frozenset[bytes]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class TargetEntry(NamedTuple):
    """An entry for the target: ``head``, followed by ``payload``."""

    head: bytes
    payload: Buffer
    messages: int
    """Number of messages, for the SEND command."""

    @property
    def size(self) -> int:
        return len(self.head) + len(self.payload)


class EntryRewriter:
    """Rewrites entries of one topic for the target. ``key``: signs the marks. ``schema_versions``: the
    target's version for each of the source's; None omits the version.

    ``target_keys``: keys of the mirrors that read the target. ``after``: a target position before the next
    entry.
    """

    def __init__(
        self,
        *,
        pair: bytes,
        source_name: str,
        target_name: str,
        key: bytes,
        target_keys: Sequence[bytes] = (),
        schema_versions: dict[bytes, bytes | None] | None = None,
    ) -> None:
        if len(pair) != PAIR_BYTES:
            raise ValueError(f"a pair has {PAIR_BYTES} bytes, not {len(pair)}")
        self.schema_versions: dict[bytes, bytes | None] = {} if schema_versions is None else schema_versions
        self.target_keys = target_keys
        self.after = NOWHERE
        self._pair = pair
        self._key = key
        self._readers: frozenset[bytes] = frozenset()
        self._others: set[bytes] = set()
        self._through = NOWHERE
        # If both clusters have the same name, only the marks identify origins.
        self._target_name = target_name if target_name != source_name else None
        name = source_name.encode()
        self._replicated_from = _REPLICATED_FROM_TAG + varint(len(name)) + name

    def learn(self, readers: frozenset[bytes], others: frozenset[bytes], through: Position) -> None:
        """Set the pairs of mirrors that read the target, whose entries are not copied back, and ``others``
        that were queried. ``through``: the source's newest entry at the time of this query."""
        if len(self._others) >= PAIRS_MAX:
            self._others.clear()
        self._others -= readers
        self._others |= others - readers
        self._readers, self._through = readers, max(through, self._through)

    def rewrite(
        self, entry: Buffer, position: Position, *, copies: int = 0
    ) -> TargetEntry | ReplicationStamp | None:
        """Return the target's entry. For an entry that came from the target, return its mark instead, or None
        if its target position is unknown; also None for a broker's marker. ``copies``: number of candidate
        marks that belong to other entries.

        Raises `CorruptPayload` for a damaged entry (its checksum must not be recomputed), and
        `SchemaUnknownError` and `PairsUnknownError` if a query is needed first.
        """
        if checksum_matches(entry) is False:
            raise CorruptPayload(f"the entry at {position} is damaged: its checksum does not match")
        parsed = parse_entry(entry, verify=False)
        metadata, payload = parsed.metadata, parsed.payload
        if metadata.HasField("marker_type"):
            return None
        changed = False
        if metadata.HasField("replicated_from"):
            marks = marks_in(_metadata_of(entry, payload))
            if any(one.origin.pair == self._pair and one.is_signed_with((self._key,)) for one in marks):
                return None  # it went from here to the target before, and was brought back
            echo = self._echo(marks, position, copies)
            if echo is not None or text(metadata.replicated_from) == self._target_name:
                return echo
            metadata.ClearField("replicated_from")
            changed = True
        if metadata.HasField("txnid_least_bits") or metadata.HasField("txnid_most_bits"):
            metadata.ClearField("txnid_least_bits")
            metadata.ClearField("txnid_most_bits")
            changed = True
        if metadata.HasField("schema_version"):
            changed |= self._map_version(metadata)
        kept = metadata.SerializePartialToString() if changed else _metadata_of(entry, payload)
        kept = (
            kept
            + self._replicated_from
            + mark_field(StampOrigin(self._pair, position, self.after), self._key)
        )
        sized = len(kept).to_bytes(4, "big") + kept
        checksum = crc32c(payload, crc32c(sized))
        messages = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
        return TargetEntry(_MAGIC + checksum.to_bytes(4, "big") + sized, payload, max(1, messages))

    def _echo(
        self, marks: Sequence[ReplicationStamp], position: Position, copies: int
    ) -> ReplicationStamp | None:
        """Return the last mark of a mirror that reads the target, skipping the last ``copies``."""
        unknown: set[bytes] = set()
        for mark in reversed(marks):
            pair = mark.origin.pair
            is_signed = mark.is_signed_with(self.target_keys)
            if is_signed and pair in self._readers:
                if not copies:
                    return mark
                copies -= 1
            elif position > self._through and (is_signed or pair not in self._others):
                # The mark may be signed with a newer key, or its mirror may read the target only since the
                # query.
                unknown.add(pair)
        if unknown:
            raise PairsUnknownError(frozenset(unknown))
        return None

    def _map_version(self, metadata: pb.MessageMetadata) -> bool:
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


def mark_of(
    entry: Buffer, pair: bytes, keys: Sequence[bytes] | None, *, is_direct: bool = True
) -> StampOrigin | None:
    """Return the mark that the mirror of ``pair`` wrote into an entry, else None; if ``keys`` is None,
    without checking the signature. ``is_direct``: only if no other mirror copied it further.

    Raises `CorruptPayload` for an entry that ends before its metadata.
    """
    found = None
    for mark in marks_in(_metadata_of(entry, parse_entry(entry, verify=False).payload)):
        is_own = mark.origin.pair == pair and (mark.is_last or not is_direct)
        if is_own and (keys is None or mark.is_signed_with(keys)):
            found = mark.origin
    return found


def is_same(one: Entry, other: Entry) -> bool:
    """Return whether two entries hold the same messages, ignoring fields that mirrors change."""
    if one.payload != other.payload:
        return False
    first, second = one.metadata, other.metadata
    return (first.producer_name, first.sequence_id, first.publish_time) == (
        second.producer_name, second.sequence_id, second.publish_time,
    )  # fmt: skip


def pairs_of(entry: Buffer, keys: Sequence[bytes]) -> set[bytes]:
    """Return the pairs of all mirrors that an entry came through, signed with ``keys``. Raises as
    `mark_of`."""
    marks = marks_in(_metadata_of(entry, parse_entry(entry, verify=False).payload))
    return {mark.origin.pair for mark in marks if mark.is_signed_with(keys)}


def _metadata_of(entry: Buffer, payload: Buffer) -> bytes:
    end = len(entry) - len(payload)
    return bytes(memoryview(entry)[end - metadata_size(entry) : end])
