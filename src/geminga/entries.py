"""Entries as brokers store them: for programs that copy or inspect them, such as `geminga.mirror`.

Asynchronous and low-level: all calls run on the loop of a `geminga.asyncio.Client`, whose ``context`` they
take. `EntryConsumer` reads entries with a durable subscription, `open_entries` and `next_entry` read a range
without one, `EntryPublisher` sends ready-made entries; the other names parse and build them.
"""

from geminga.client.api.entry_consumer import EntryConsumer
from geminga.client.api.entry_publisher import EntryPublisher
from geminga.client.api.entry_reader import next_entry, open_entries
from geminga.client.handles.context import ClientContext
from geminga.connection import commands
from geminga.consumer.message import ReceivedEntry
from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.metadata import ORIGIN_FIELD, Entry, RawEntry, checksum_matches, metadata_size, parse_entry
from geminga.wire.proto.pulsar_wire_pb2 import MessageMetadata, Schema
from geminga.wire.strict import text
from geminga.wire.varint import read_varint, varint

__all__ = [
    "ORIGIN_FIELD", "Buffer", "ClientContext", "Entry", "EntryConsumer", "EntryPublisher", "MessageMetadata",
    "RawEntry", "ReceivedEntry", "Schema", "checksum_matches", "crc32c", "metadata_size", "next_entry",
    "open_entries", "parse_entry", "read_varint", "register_schema", "text", "varint",
]  # fmt: skip


async def register_schema(context: ClientContext, topic: str, schema: Schema) -> bytes:
    """Register a schema of a topic, unless it has it; return its version. Raises `IncompatibleSchema`."""
    answer = await context.request_on_topic(
        topic, lambda request_id: commands.get_or_create_schema(topic, request_id, schema)
    )
    return bytes(answer.getOrCreateSchemaResponse.schema_version)
