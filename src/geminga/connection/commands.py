"""Commands of a connection and its lookups, as BaseCommand messages.

Producer and consumer commands are built by those packages.
"""

from __future__ import annotations

from geminga._version import __version__
from geminga.connection.authentication import Credentials
from geminga.wire.proto import pulsar_wire_pb2 as pb

CLIENT_VERSION = f"Geminga-v{__version__}"


def connect(credentials: Credentials, protocol_version: int, proxy_to_broker: str | None) -> pb.BaseCommand:
    """Return the first command of every connection; ``proxy_to_broker`` is ``host:port`` behind a proxy."""
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    body = command.connect
    body.client_version = CLIENT_VERSION
    body.protocol_version = protocol_version
    body.auth_method_name = credentials.method
    body.auth_data = credentials.data
    if proxy_to_broker is not None:
        body.proxy_to_broker_url = proxy_to_broker
    body.feature_flags.supports_auth_refresh = True
    body.feature_flags.supports_broker_entry_metadata = True
    body.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    return command


def auth_response(credentials: Credentials, protocol_version: int) -> pb.BaseCommand:
    """Return the answer to AUTH_CHALLENGE."""
    command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
    body = command.authResponse
    body.client_version = CLIENT_VERSION
    body.protocol_version = protocol_version
    body.response.auth_method_name = credentials.method
    body.response.auth_data = credentials.data
    return command


def _empty(type_: pb.BaseCommand.Type, field: str) -> pb.BaseCommand:
    command = pb.BaseCommand(type=type_)
    getattr(command, field).SetInParent()
    return command


PING = _empty(pb.BaseCommand.PING, "ping")
PONG = _empty(pb.BaseCommand.PONG, "pong")


def lookup(topic: str, request_id: int, *, authoritative: bool, listener_name: str | None) -> pb.BaseCommand:
    """Return the request for the broker that serves ``topic``."""
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
    body = command.lookupTopic
    body.topic = topic
    body.request_id = request_id
    body.authoritative = authoritative
    if listener_name:
        body.advertised_listener_name = listener_name
    return command


def partitioned_metadata(topic: str, request_id: int, *, auto_creation: bool = True) -> pb.BaseCommand:
    """Return the request for the number of partitions of ``topic``. ``auto_creation=False`` does not create
    it."""
    command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
    body = command.partitionMetadata
    body.topic = topic
    body.request_id = request_id
    if not auto_creation:
        body.metadata_auto_creation_enabled = False
    return command


def get_schema(topic: str, request_id: int, version: bytes | None = None) -> pb.BaseCommand:
    """Return the request for the topic's schema: a version (8 bytes, as messages carry it), or the newest."""
    command = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA)
    body = command.getSchema
    body.topic = topic
    body.request_id = request_id
    if version is not None:
        body.schema_version = version
    return command


def get_or_create_schema(topic: str, request_id: int, schema: pb.Schema) -> pb.BaseCommand:
    """Return the request for the version of a schema, which is registered if it is new and compatible."""
    command = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA)
    body = command.getOrCreateSchema
    body.topic = topic
    body.request_id = request_id
    body.schema.CopyFrom(schema)
    return command


def topics_of_namespace(
    namespace: str, request_id: int, mode: int, pattern: str | None = None, topics_hash: str | None = None
) -> pb.BaseCommand:
    """Return the request for the topics of ``namespace`` (``tenant/namespace``)."""
    command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
    body = command.getTopicsOfNamespace
    body.namespace = namespace
    body.request_id = request_id
    body.mode = mode  # type: ignore[assignment]
    if pattern is not None:
        body.topics_pattern = pattern
    if topics_hash is not None:
        body.topics_hash = topics_hash
    return command
