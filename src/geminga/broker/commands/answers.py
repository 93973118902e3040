"""Answers of the broker as frames. framing.md section 14 lists the fields that official clients need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from geminga.broker.listeners import ListenerAddresses
from geminga.broker.settings import BrokerSettings
from geminga.ids import to_unsigned
from geminga.wire.frames import PROTOCOL_VERSION, encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

UNSOLICITED = (1 << 64) - 1
"""Request id of commands that the broker sends unsolicited."""


def _frame(field: str, **values: Any) -> bytes:
    """Return the frame of the command with this field of `BaseCommand`, whose number is the command's type.

    Values of None are left out.
    """
    kind = pb.BaseCommand.DESCRIPTOR.fields_by_name[field].number
    fields: dict[str, Any] = {"type": kind, field: values}
    return encode_command(pb.BaseCommand(**fields))


PING = _frame("ping")
PONG = _frame("pong")
_LOOKUP = pb.CommandLookupTopicResponse
_PARTITIONS = pb.CommandPartitionedTopicMetadataResponse


def success(request_id: int) -> bytes:
    return _frame("success", request_id=request_id)


def error(request_id: int, code: int, message: str) -> bytes:
    return _frame("error", request_id=request_id, error=code, message=message)


def connected(
    protocol_version: int, settings: BrokerSettings, server_version: str, instance_id: str
) -> bytes:
    """Return CONNECTED. ``instance_id`` and the addresses of the web port are Geminga's own fields: see
    `geminga.client.web_address`."""
    web = settings.own_addresses()
    return _frame(
        "connected",
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=settings.max_message_size,
        instance_id=instance_id,
        feature_flags=pb.FeatureFlags(
            supports_topic_watchers=True, supports_get_partitioned_metadata_without_auto_creation=True
        ),
        http_url=web.http or "",
        https_url=web.https or "",
    )


def auth_challenge(method: str) -> bytes:
    """Return a request for fresh credentials (framing.md section 2)."""
    challenge = pb.AuthData(auth_method_name=method, auth_data=b"PulsarAuthRefresh")
    return _frame("authChallenge", protocol_version=PROTOCOL_VERSION, challenge=challenge)


def partitions(request_id: int, count: int) -> bytes:
    return _frame(
        "partitionMetadataResponse", partitions=count, request_id=request_id, response=_PARTITIONS.Success
    )


def partitions_failed(request_id: int, code: int, message: str) -> bytes:
    return _frame(
        "partitionMetadataResponse",
        request_id=request_id,
        response=_PARTITIONS.Failed,
        error=code,
        message=message,
    )


def lookup(request_id: int, addresses: ListenerAddresses, *, through_service_url: bool) -> bytes:
    return _frame(
        "lookupTopicResponse",
        brokerServiceUrl=addresses.pulsar,
        brokerServiceUrlTls=addresses.pulsar_tls,
        response=_LOOKUP.Connect,
        request_id=request_id,
        authoritative=True,
        proxy_through_service_url=through_service_url,
    )


def lookup_failed(request_id: int, code: int, message: str) -> bytes:
    return _frame(
        "lookupTopicResponse", request_id=request_id, response=_LOOKUP.Failed, error=code, message=message
    )


def producer_success(
    request_id: int,
    name: str,
    *,
    last_sequence_id: int,
    schema_version: bytes,
    topic_epoch: int | None,
    ready: bool,
) -> bytes:
    return _frame(
        "producer_success",
        request_id=request_id,
        producer_name=name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=ready,
    )


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    return _frame("send_error", producer_id=producer_id, sequence_id=sequence_id, error=code, message=message)


def close_producer(producer_id: int) -> bytes:
    return _frame("close_producer", producer_id=producer_id, request_id=UNSOLICITED)


def close_consumer(consumer_id: int) -> bytes:
    return _frame("close_consumer", consumer_id=consumer_id, request_id=UNSOLICITED)


def ack_response(consumer_id: int, request_id: int, failure: tuple[int, str] | None = None) -> bytes:
    code, message = failure or (None, None)
    return _frame("ackResponse", consumer_id=consumer_id, request_id=request_id, error=code, message=message)


def active_consumer_change(consumer_id: int, active: bool) -> bytes:
    return _frame("active_consumer_change", consumer_id=consumer_id, is_active=active)


def reached_end_of_topic(consumer_id: int) -> bytes:
    return _frame("reachedEndOfTopic", consumer_id=consumer_id)


def last_message_id(
    request_id: int, last: tuple[int, int], partition: int, batch_index: int, mark_delete: tuple[int, int]
) -> bytes:
    ledger_id, entry_id, mark_ledger, mark_entry = map(to_unsigned, (*last, *mark_delete))
    return _frame(
        "getLastMessageIdResponse",
        request_id=request_id,
        last_message_id=pb.MessageIdData(
            ledgerId=ledger_id, entryId=entry_id, partition=partition, batch_index=batch_index
        ),
        consumer_mark_delete_position=pb.MessageIdData(ledgerId=mark_ledger, entryId=mark_entry),
    )


def topics_of_namespace(
    request_id: int, topics: Iterable[str], *, filtered: bool, topics_hash: str, changed: bool
) -> bytes:
    return _frame(
        "getTopicsOfNamespaceResponse",
        request_id=request_id,
        topics=topics,
        filtered=filtered,
        topics_hash=topics_hash,
        changed=changed,
    )


def watch_success(request_id: int, watcher_id: int, topics: Iterable[str], topics_hash: str) -> bytes:
    return _frame(
        "watchTopicListSuccess",
        request_id=request_id,
        watcher_id=watcher_id,
        topic=topics,
        topics_hash=topics_hash,
    )


def watch_update(watcher_id: int, new: Iterable[str], deleted: Iterable[str], topics_hash: str) -> bytes:
    return _frame(
        "watchTopicUpdate",
        watcher_id=watcher_id,
        new_topics=new,
        deleted_topics=deleted,
        topics_hash=topics_hash,
    )


def schema_found(request_id: int, schema: pb.Schema, version: bytes) -> bytes:
    return _frame("getSchemaResponse", request_id=request_id, schema=schema, schema_version=version)


def schema_failed(request_id: int, code: int, message: str) -> bytes:
    return _frame("getSchemaResponse", request_id=request_id, error_code=code, error_message=message)


def schema_created(request_id: int, version: bytes) -> bytes:
    return _frame("getOrCreateSchemaResponse", request_id=request_id, schema_version=version)


def schema_refused(request_id: int, code: int, message: str) -> bytes:
    return _frame("getOrCreateSchemaResponse", request_id=request_id, error_code=code, error_message=message)


def consumer_stats(request_id: int, fields: Mapping[str, object]) -> bytes:
    """Return CONSUMER_STATS_RESPONSE with ``fields``."""
    return _frame("consumerStatsResponse", request_id=request_id, **fields)
