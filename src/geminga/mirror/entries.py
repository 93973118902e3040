"""What becomes of an entry on its way: its payload and its metadata stay byte for byte, two fields are added.

``replicated_from`` names the cluster that it comes from, as Pulsar's geo-replication does it. The second
field is Geminga's own, a mark (`geminga.mirror.marks`), and carries the pair of topics that the mirror serves
and the entry's position in the source: what is in the target says by itself how far it reaches, which of its
positions stands for which of the source's, and what a mirror in the other direction must leave where it is.
Protobuf lets readers step over fields that they do not know, and Pulsar's brokers and clients do.

What a mirror cannot take over is changed: a schema version that has another number in the target, and the
transaction of a message (it was delivered, so it is committed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from geminga.errors import CorruptPayload
from geminga.mirror.marks import PAIR_BYTES, Mark, Origin, mark_field, marks_in
from geminga.mirror.positions import NOWHERE, Position
from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.metadata import checksum_matches, metadata_size, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text
from geminga.wire.varint import varint

_REPLICATED_FROM_TAG = b"\x2a"
_MAGIC = b"\x0e\x01"
PAIRS_MAX = 1_000
"""Pairs that are remembered; then they are asked for anew."""


class SchemaUnknownError(Exception):
    """The entry has a schema version that has not been looked up in the target yet."""

    def __init__(self, version: bytes) -> None:
        super().__init__(version)
        self.version = version


class PairUnknownError(Exception):
    """The entry came through another mirror, and whether that one reads the target has not been asked yet."""

    def __init__(self, pair: bytes) -> None:
        super().__init__(pair)
        self.pair = pair


class Forwarded(NamedTuple):
    """An entry for the target: ``head`` and ``payload`` follow each other."""

    head: bytes
    payload: Buffer
    messages: int
    """As the SEND command counts them."""

    @property
    def size(self) -> int:
        return len(self.head) + len(self.payload)


class EntryRewriter:
    """Makes the target's entries of one topic. ``key``: to sign marks with. ``schema_versions``: the target's
    version of each of the source's; None leaves the version out.

    ``target_keys``: that mirrors sign with which read the target. ``after``: a place of the target behind
    which the next entry will lie.
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
        self._reads_target: dict[bytes, bool] = {}
        self._signs: set[bytes] = set()
        """Pairs of which marks were signed with one of the target's keys."""
        self._asked: set[bytes] = set()
        # Two clusters may have one name; then the marks of mirrors have to do.
        self._target_name = target_name if target_name != source_name else None
        name = source_name.encode()
        self._replicated_from = _REPLICATED_FROM_TAG + varint(len(name)) + name

    def learn(self, pair: bytes, reads_target: bool) -> None:
        """Whether the mirror of ``pair`` reads the target: what it brought is not brought back."""
        if len(self._reads_target) >= PAIRS_MAX:
            self._reads_target.clear()
        self._reads_target[pair] = reads_target
        self._asked.add(pair)

    def rewrite(
        self, entry: Buffer, position: Position, *, believes_marks: bool = True
    ) -> Forwarded | Mark | None:
        """The target's entry; or the mark that says where in the target one lies that came from there and
        stays here, None where that is not known or it is a marker of a broker's.

        Raises `CorruptPayload` for a damaged entry (it must not get a checksum that fits), and
        `SchemaUnknownError` and `PairUnknownError` where somebody has to be asked first.
        """
        if checksum_matches(entry) is False:
            raise CorruptPayload(f"the entry at {position} is damaged: its checksum does not match")
        parsed = parse_entry(entry, verify=False)
        metadata, payload = parsed.metadata, parsed.payload
        if metadata.HasField("marker_type"):
            return None
        changed = False
        if metadata.HasField("replicated_from"):
            echo = self._echo(entry, payload) if believes_marks else None
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
        kept = kept + self._replicated_from + mark_field(Origin(self._pair, position, self.after), self._key)
        sized = len(kept).to_bytes(4, "big") + kept
        checksum = crc32c(payload, crc32c(sized))
        messages = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
        return Forwarded(_MAGIC + checksum.to_bytes(4, "big") + sized, payload, max(1, messages))

    def _echo(self, entry: Buffer, payload: Buffer) -> Mark | None:
        for mark in marks_in(_metadata_of(entry, payload)):
            pair = mark.origin.pair
            reads_target = self._reads_target.get(pair)
            if mark.is_signed_with(self.target_keys):
                if reads_target is None:
                    raise PairUnknownError(pair)
                self._signs.add(pair)
                if reads_target:
                    self._asked.clear()
                    return mark
            elif reads_target is not False and pair not in self._signs and pair not in self._asked:
                # Perhaps it was signed with a key that is newer than what is known.
                raise PairUnknownError(pair)
        self._asked.clear()
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
) -> Origin | None:
    """What the mirror of ``pair`` wrote into an entry; None for anybody else's, unless ``keys`` is None.
    ``is_direct``: only if no other mirror brought it on.

    Raises `CorruptPayload` for an entry that ends before its metadata.
    """
    found = None
    for mark in marks_in(_metadata_of(entry, parse_entry(entry, verify=False).payload)):
        is_own = mark.origin.pair == pair and (mark.is_last or not is_direct)
        if is_own and (keys is None or mark.is_signed_with(keys)):
            found = mark.origin
    return found


def _metadata_of(entry: Buffer, payload: Buffer) -> bytes:
    end = len(entry) - len(payload)
    return bytes(memoryview(entry)[end - metadata_size(entry) : end])
