"""Commands of a connection and its lookups, as BaseCommand messages.

Producer and consumer commands are built by those packages.
"""

from geminga._version import __version__
from geminga.connection.authentication import Credentials
from geminga.transactions import Part, TransactionId
from geminga.wire.proto import pulsar_wire_pb2 as pb

CLIENT_VERSION = f"Geminga-v{__version__}"


def connect(credentials: Credentials, protocol_version: int, proxy_to_broker: str | None) -> pb.BaseCommand:
    """Return the first command of every connection; ``proxy_to_broker`` is ``host:port`` behind a proxy."""
    body = pb.CommandConnect(
        client_version=CLIENT_VERSION,
        protocol_version=protocol_version,
        auth_method_name=credentials.method,
        auth_data=credentials.data,
        proxy_to_broker_url=proxy_to_broker,
    )
    body.feature_flags.supports_auth_refresh = True
    body.feature_flags.supports_broker_entry_metadata = True
    body.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    return pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=body)


def auth_response(credentials: Credentials, protocol_version: int) -> pb.BaseCommand:
    """Return the answer to AUTH_CHALLENGE."""
    body = pb.CommandAuthResponse(client_version=CLIENT_VERSION, protocol_version=protocol_version)
    body.response.auth_method_name = credentials.method
    body.response.auth_data = credentials.data
    return pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE, authResponse=body)


PING = pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())
PONG = pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong())


def lookup(topic: str, request_id: int, *, authoritative: bool, listener_name: str | None) -> pb.BaseCommand:
    """Return the request for the broker that serves ``topic``."""
    body = pb.CommandLookupTopic(
        topic=topic,
        request_id=request_id,
        authoritative=authoritative,
        advertised_listener_name=listener_name or None,
    )
    return pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=body)


def partitioned_metadata(topic: str, request_id: int, *, auto_creation: bool = True) -> pb.BaseCommand:
    """Return the request for the number of partitions of ``topic``. ``auto_creation=False`` does not create
    it."""
    body = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
    if not auto_creation:
        body.metadata_auto_creation_enabled = False
    return pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA, partitionMetadata=body)


def get_schema(topic: str, request_id: int, version: bytes | None = None) -> pb.BaseCommand:
    """Return the request for the topic's schema: a version (8 bytes, as messages carry it), or the newest."""
    body = pb.CommandGetSchema(topic=topic, request_id=request_id, schema_version=version)
    return pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA, getSchema=body)


def get_or_create_schema(topic: str, request_id: int, schema: pb.Schema) -> pb.BaseCommand:
    """Return the request for the version of a schema, which is registered if it is new and compatible."""
    body = pb.CommandGetOrCreateSchema(topic=topic, request_id=request_id, schema=schema)
    return pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA, getOrCreateSchema=body)


def topics_of_namespace(namespace: str, request_id: int, mode: int) -> pb.BaseCommand:
    """Return the request for the topics of ``namespace`` (``tenant/namespace``)."""
    body = pb.CommandGetTopicsOfNamespace(namespace=namespace, request_id=request_id)
    body.mode = mode  # type: ignore[assignment]
    return pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=body)


def connect_to_coordinator(number: int, request_id: int) -> pb.BaseCommand:
    """Return the request that precedes all others to a transaction coordinator on a connection."""
    body = pb.CommandTcClientConnectRequest(request_id=request_id, tc_id=number)
    return pb.BaseCommand(type=pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST, tcClientConnectRequest=body)


def new_transaction(coordinator: int, limit_ms: int, request_id: int) -> pb.BaseCommand:
    """Return the request for a transaction that is aborted after ``limit_ms``."""
    # The field's name is older than its unit: brokers take milliseconds (framing.md section 12).
    body = pb.CommandNewTxn(request_id=request_id, txn_ttl_seconds=limit_ms, tc_id=coordinator)
    return pb.BaseCommand(type=pb.BaseCommand.NEW_TXN, newTxn=body)


def add_to_transaction(transaction: TransactionId, part: Part, request_id: int) -> pb.BaseCommand:
    """Return the request to add a partition or a subscription to a transaction."""
    most, least = transaction
    if part.subscription is None:
        partition = pb.CommandAddPartitionToTxn(
            request_id=request_id, txnid_most_bits=most, txnid_least_bits=least, partitions=[part.topic]
        )
        return pb.BaseCommand(type=pb.BaseCommand.ADD_PARTITION_TO_TXN, addPartitionToTxn=partition)
    subscription = pb.CommandAddSubscriptionToTxn(
        request_id=request_id, txnid_most_bits=most, txnid_least_bits=least
    )
    subscription.subscription.add(topic=part.topic, subscription=part.subscription)
    return pb.BaseCommand(type=pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN, addSubscriptionToTxn=subscription)


def end_transaction(transaction: TransactionId, *, commit: bool, request_id: int) -> pb.BaseCommand:
    """Return the request that commits or aborts a transaction."""
    body = pb.CommandEndTxn(
        request_id=request_id, txnid_most_bits=transaction.most_bits, txnid_least_bits=transaction.least_bits,
        txn_action=pb.COMMIT if commit else pb.ABORT,
    )  # fmt: skip
    return pb.BaseCommand(type=pb.BaseCommand.END_TXN, endTxn=body)
