"""Answers of the broker as frames. framing.md section 14 lists the fields that official clients need."""

from collections.abc import Mapping
from typing import Any, Final

from geminga.broker.runtime.refusal import Refused
from geminga.broker.settings import BrokerSettings
from geminga.wire.frames import encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

UNSOLICITED: Final = (1 << 64) - 1
"""Request id of commands that the broker sends unsolicited."""


def frame(field: str, **values: Any) -> bytes:
    """Return the frame of the command with this field of `BaseCommand`, whose number is the command's type.

    Values of None are left out.
    """
    kind = pb.BaseCommand.DESCRIPTOR.fields_by_name[field].number
    fields: dict[str, Any] = {"type": kind, field: values}
    return encode_command(pb.BaseCommand(**fields))


PING = frame("ping")
PONG = frame("pong")
_FAILED: Final[Mapping[str, Mapping[str, int]]] = {
    "lookupTopicResponse": {"response": pb.CommandLookupTopicResponse.Failed},
    "partitionMetadataResponse": {"response": pb.CommandPartitionedTopicMetadataResponse.Failed},
}
"""Further fields of answers that report an error."""


def refusal(field: str, request_id: int, refused: Refused) -> bytes:
    """Return an answer that reports an error: ``error``, or the answer to a certain command."""
    code, text = ("error_code", "error_message") if "Schema" in field else ("error", "message")
    errors = {code: refused.code, text: refused.reason}
    return frame(field, request_id=request_id, **errors, **_FAILED.get(field, {}))


def connected(
    protocol_version: int, settings: BrokerSettings, server_version: str, instance_id: str
) -> bytes:
    """Return CONNECTED. ``instance_id`` and the addresses of the web port are Geminga's own fields: see
    `geminga.client.handles.web_address`."""
    web = settings.own_addresses()
    return frame(
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
