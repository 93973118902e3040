"""Answers of the broker as frames. framing.md section 14 lists the fields that official clients need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from geminga.broker.listeners import ListenerAddresses
from geminga.broker.settings import BrokerSettings
from geminga.ids import to_unsigned
from geminga.wire.frames import PROTOCOL_VERSION, encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

UNSOLICITED = (1 << 64) - 1
"""Request id of commands that the broker sends unsolicited."""

PING = encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
PONG = encode_command(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))


def success(request_id: int) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.SUCCESS)
    command.success.request_id = request_id
    return encode_command(command)


def error(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.ERROR)
    command.error.request_id = request_id
    command.error.error = code  # type: ignore[assignment]
    command.error.message = message
    return encode_command(command)


def connected(
    protocol_version: int, settings: BrokerSettings, server_version: str, instance_id: str
) -> bytes:
    """Return CONNECTED. ``instance_id`` and the addresses of the web port are Geminga's own fields: see
    `geminga.client.web_address`."""
    web = settings.own_addresses()
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECTED)
    body = command.connected
    body.server_version = server_version
    body.protocol_version = protocol_version
    body.max_message_size = settings.max_message_size
    body.feature_flags.supports_topic_watchers = True
    body.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    body.instance_id = instance_id
    body.http_url = web.http or ""
    body.https_url = web.https or ""
    return encode_command(command)


def auth_challenge(method: str) -> bytes:
    """Return a request for fresh credentials (framing.md section 2)."""
    command = pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE)
    body = command.authChallenge
    body.protocol_version = PROTOCOL_VERSION
    body.challenge.auth_method_name = method
    body.challenge.auth_data = b"PulsarAuthRefresh"
    return encode_command(command)


def partitions(request_id: int, count: int) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    body = command.partitionMetadataResponse
    body.partitions = count
    body.request_id = request_id
    body.response = pb.CommandPartitionedTopicMetadataResponse.Success
    return encode_command(command)


def partitions_failed(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    body = command.partitionMetadataResponse
    body.request_id = request_id
    body.response = pb.CommandPartitionedTopicMetadataResponse.Failed
    body.error = code  # type: ignore[assignment]
    body.message = message
    return encode_command(command)


def lookup(request_id: int, addresses: ListenerAddresses, *, through_service_url: bool) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE)
    body = command.lookupTopicResponse
    if addresses.pulsar is not None:
        body.brokerServiceUrl = addresses.pulsar
    if addresses.pulsar_tls is not None:
        body.brokerServiceUrlTls = addresses.pulsar_tls
    body.response = pb.CommandLookupTopicResponse.Connect
    body.request_id = request_id
    body.authoritative = True
    body.proxy_through_service_url = through_service_url
    return encode_command(command)


def lookup_failed(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE)
    body = command.lookupTopicResponse
    body.response = pb.CommandLookupTopicResponse.Failed
    body.request_id = request_id
    body.error = code  # type: ignore[assignment]
    body.message = message
    return encode_command(command)


def producer_success(
    request_id: int,
    name: str,
    *,
    last_sequence_id: int,
    schema_version: bytes,
    topic_epoch: int | None,
    ready: bool,
) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
    body = command.producer_success
    body.request_id = request_id
    body.producer_name = name
    body.last_sequence_id = last_sequence_id
    body.schema_version = schema_version
    body.producer_ready = ready
    if topic_epoch is not None:
        body.topic_epoch = topic_epoch
    return encode_command(command)


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.SEND_ERROR)
    body = command.send_error
    body.producer_id = producer_id
    body.sequence_id = sequence_id
    body.error = code  # type: ignore[assignment]
    body.message = message
    return encode_command(command)


def close_producer(producer_id: int) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = UNSOLICITED
    return encode_command(command)


def close_consumer(consumer_id: int) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = UNSOLICITED
    return encode_command(command)


def ack_response(consumer_id: int, request_id: int, failure: tuple[int, str] | None = None) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.ACK_RESPONSE)
    body = command.ackResponse
    body.consumer_id = consumer_id
    body.request_id = request_id
    if failure is not None:
        body.error = failure[0]  # type: ignore[assignment]
        body.message = failure[1]
    return encode_command(command)


def active_consumer_change(consumer_id: int, active: bool) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.ACTIVE_CONSUMER_CHANGE)
    command.active_consumer_change.consumer_id = consumer_id
    command.active_consumer_change.is_active = active
    return encode_command(command)


def reached_end_of_topic(consumer_id: int) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.REACHED_END_OF_TOPIC)
    command.reachedEndOfTopic.consumer_id = consumer_id
    return encode_command(command)


def last_message_id(
    request_id: int,
    last: tuple[int, int],
    partition: int,
    batch_index: int,
    mark_delete: tuple[int, int],
) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    body = command.getLastMessageIdResponse
    body.request_id = request_id
    body.last_message_id.ledgerId = to_unsigned(last[0])
    body.last_message_id.entryId = to_unsigned(last[1])
    body.last_message_id.partition = partition
    body.last_message_id.batch_index = batch_index
    body.consumer_mark_delete_position.ledgerId = to_unsigned(mark_delete[0])
    body.consumer_mark_delete_position.entryId = to_unsigned(mark_delete[1])
    return encode_command(command)


def topics_of_namespace(
    request_id: int, topics: Iterable[str], *, filtered: bool, topics_hash: str, changed: bool
) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    body = command.getTopicsOfNamespaceResponse
    body.request_id = request_id
    body.topics.extend(topics)
    body.filtered = filtered
    body.topics_hash = topics_hash
    body.changed = changed
    return encode_command(command)


def watch_success(request_id: int, watcher_id: int, topics: Iterable[str], topics_hash: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
    body = command.watchTopicListSuccess
    body.request_id = request_id
    body.watcher_id = watcher_id
    body.topic.extend(topics)
    body.topics_hash = topics_hash
    return encode_command(command)


def watch_update(watcher_id: int, new: Iterable[str], deleted: Iterable[str], topics_hash: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_UPDATE)
    body = command.watchTopicUpdate
    body.watcher_id = watcher_id
    body.new_topics.extend(new)
    body.deleted_topics.extend(deleted)
    body.topics_hash = topics_hash
    return encode_command(command)


def schema_found(request_id: int, schema: pb.Schema, version: bytes) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA_RESPONSE)
    body = command.getSchemaResponse
    body.request_id = request_id
    body.schema.CopyFrom(schema)
    body.schema_version = version
    return encode_command(command)


def schema_failed(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA_RESPONSE)
    body = command.getSchemaResponse
    body.request_id = request_id
    body.error_code = code  # type: ignore[assignment]
    body.error_message = message
    return encode_command(command)


def schema_created(request_id: int, version: bytes) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    command.getOrCreateSchemaResponse.request_id = request_id
    command.getOrCreateSchemaResponse.schema_version = version
    return encode_command(command)


def schema_refused(request_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    body = command.getOrCreateSchemaResponse
    body.request_id = request_id
    body.error_code = code  # type: ignore[assignment]
    body.error_message = message
    return encode_command(command)


def consumer_stats(request_id: int, fields: Mapping[str, object]) -> bytes:
    """Return CONSUMER_STATS_RESPONSE with ``fields``."""
    command = pb.BaseCommand(type=pb.BaseCommand.CONSUMER_STATS_RESPONSE)
    command.consumerStatsResponse.request_id = request_id
    for name, value in fields.items():
        setattr(command.consumerStatsResponse, name, value)
    return encode_command(command)
