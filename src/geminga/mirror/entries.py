"""What becomes of an entry on its way: its payload and its metadata stay byte for byte, two fields are added.

``replicated_from`` names the cluster that it comes from, as Pulsar's geo-replication does it. The second
field is Geminga's own and carries the pair of topics that the mirror serves and the entry's position in the
source: what is in the target says by itself how far it reaches, which of its positions stands for which of
the source's, and what a mirror in the other direction must leave where it is. Protobuf lets readers step over
fields that they do not know, and Pulsar's brokers and clients do.

What a mirror cannot take over is changed: a schema version that has another number in the target, and the
transaction of a message (it was delivered, so it is committed).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from geminga.errors import CorruptPayload
from geminga.mirror.positions import Position
from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.metadata import ORIGIN_FIELD, checksum_matches, metadata_size, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text
from geminga.wire.varint import read_varint, varint

_ORIGIN_TAG = varint(ORIGIN_FIELD << 3 | 2)
_REPLICATED_FROM_TAG = b"\x2a"
_MAGIC = b"\x0e\x01"
PAIR_BYTES: Final = 8
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Sizes of the wire types of one size."""


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


class Origin(NamedTuple):
    """Where a mirrored entry comes from; ``pair``: see `geminga.mirror.pairing`."""

    pair: bytes
    position: Position


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
    """Makes the target's entries of one topic. ``schema_versions``: the target's version of each of the
    source's; None leaves the version out. ``reads_target``: of each pair that was asked about, whether its
    mirror reads the target: what it brought is not brought back."""

    def __init__(
        self,
        *,
        pair: bytes,
        source_name: str,
        target_name: str,
        schema_versions: dict[bytes, bytes | None] | None = None,
        reads_target: dict[bytes, bool] | None = None,
    ) -> None:
        if len(pair) != PAIR_BYTES:
            raise ValueError(f"a pair has {PAIR_BYTES} bytes, not {len(pair)}")
        self.schema_versions: dict[bytes, bytes | None] = {} if schema_versions is None else schema_versions
        self.reads_target: dict[bytes, bool] = {} if reads_target is None else reads_target
        self._pair = pair
        # Two clusters may have one name; then the marks of mirrors have to do.
        self._target_name = target_name if target_name != source_name else None
        name = source_name.encode()
        self._replicated_from = _REPLICATED_FROM_TAG + varint(len(name)) + name

    def rewrite(self, entry: Buffer, position: Position) -> Forwarded | Origin | None:
        """The target's entry; or where in the target one lies that came from there and stays here, None
        where that is not known or it is a marker of a broker's.

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
            echo = self._echo(entry, payload)
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
        kept = kept + self._replicated_from + origin_field(Origin(self._pair, position))
        sized = len(kept).to_bytes(4, "big") + kept
        checksum = crc32c(payload, crc32c(sized))
        messages = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
        return Forwarded(_MAGIC + checksum.to_bytes(4, "big") + sized, payload, max(1, messages))

    def _echo(self, entry: Buffer, payload: Buffer) -> Origin | None:
        for origin in origins_in(_metadata_of(entry, payload)):
            try:
                if self.reads_target[origin.pair]:
                    return origin
            except KeyError:
                raise PairUnknownError(origin.pair) from None
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


def origin_field(origin: Origin) -> bytes:
    """The field as it travels."""
    body = origin.pair + varint(origin.position.ledger) + varint(origin.position.entry)
    return _ORIGIN_TAG + varint(len(body)) + body


def origins_in(metadata: bytes) -> list[Origin]:
    """All origins in a MessageMetadata as it travels: of each mirror that it came through."""
    found = []
    position, end = 0, len(metadata)
    try:
        while position < end:
            tag, position = read_varint(metadata, position)
            kind = tag & 7
            if kind == _VARINT:
                _, position = read_varint(metadata, position)
            elif kind == _BYTES:
                size, start = read_varint(metadata, position)
                position = start + size
                if tag >> 3 == ORIGIN_FIELD and size > PAIR_BYTES:
                    body = metadata[start:position]
                    ledger, middle = read_varint(body, PAIR_BYTES)
                    place = Position(ledger, read_varint(body, middle)[0])
                    found.append(Origin(body[:PAIR_BYTES], place))
            elif kind in _FIXED:
                position += _FIXED[kind]
            else:
                break
    except (IndexError, ValueError):
        pass  # nobody's field of that number
    return found


def origin_of(entry: Buffer, pair: bytes) -> Position | None:
    """The source position that the mirror of ``pair`` wrote into an entry; None for anybody else's.

    Raises `CorruptPayload` for an entry that ends before its metadata.
    """
    found = None
    for origin in origins_in(_metadata_of(entry, parse_entry(entry, verify=False).payload)):
        if origin.pair == pair:
            found = origin.position
    return found


def _metadata_of(entry: Buffer, payload: Buffer) -> bytes:
    end = len(entry) - len(payload)
    return bytes(memoryview(entry)[end - metadata_size(entry) : end])
