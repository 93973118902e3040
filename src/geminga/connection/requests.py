"""Answers to requests: their fields and errors.

An answer is any command with a ``request_id`` that is not addressed to a producer or consumer. `ANSWERS`
names the fields of their ids and errors (framing.md sections 4 to 12).
"""

from typing import Final, NamedTuple

from geminga.errors import ServerReportedError, TopicNotFound, from_server
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand

PRODUCER_SUCCESS: Final = int(Type.PRODUCER_SUCCESS)


class AnswerShape(NamedTuple):
    """The fields of an answer: its sub-message in BaseCommand, and its error code and text, if any."""

    name: str
    error_field: str | None = None
    message_field: str | None = None


ANSWERS: dict[int, AnswerShape] = {
    Type.SUCCESS: AnswerShape("success"),
    Type.ERROR: AnswerShape("error", "error", "message"),
    Type.PRODUCER_SUCCESS: AnswerShape("producer_success"),
    Type.PARTITIONED_METADATA_RESPONSE: AnswerShape("partitionMetadataResponse", "error", "message"),
    Type.LOOKUP_RESPONSE: AnswerShape("lookupTopicResponse", "error", "message"),
    Type.CONSUMER_STATS_RESPONSE: AnswerShape("consumerStatsResponse", "error_code", "error_message"),
    Type.GET_LAST_MESSAGE_ID_RESPONSE: AnswerShape("getLastMessageIdResponse"),
    Type.GET_TOPICS_OF_NAMESPACE_RESPONSE: AnswerShape("getTopicsOfNamespaceResponse"),
    Type.GET_SCHEMA_RESPONSE: AnswerShape("getSchemaResponse", "error_code", "error_message"),
    Type.GET_OR_CREATE_SCHEMA_RESPONSE: AnswerShape(
        "getOrCreateSchemaResponse", "error_code", "error_message"
    ),
    Type.WATCH_TOPIC_LIST_SUCCESS: AnswerShape("watchTopicListSuccess"),
    Type.TC_CLIENT_CONNECT_RESPONSE: AnswerShape("tcClientConnectResponse", "error", "message"),
    Type.NEW_TXN_RESPONSE: AnswerShape("newTxnResponse", "error", "message"),
    Type.ADD_PARTITION_TO_TXN_RESPONSE: AnswerShape("addPartitionToTxnResponse", "error", "message"),
    Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: AnswerShape("addSubscriptionToTxnResponse", "error", "message"),
    Type.END_TXN_RESPONSE: AnswerShape("endTxnResponse", "error", "message"),
}

_FAILED: dict[int, int] = {
    Type.LOOKUP_RESPONSE: pb.CommandLookupTopicResponse.Failed,
    Type.PARTITIONED_METADATA_RESPONSE: pb.CommandPartitionedTopicMetadataResponse.Failed,
}


def error_of(command: pb.BaseCommand) -> ServerReportedError | None:
    """Return the error that an answer reports, None for success.

    A lookup or partition answer with ``Failed`` but without an error code is an UnknownError.
    """
    shape = ANSWERS[command.type]
    answer = getattr(command, shape.name)
    if shape.error_field is not None and answer.HasField(shape.error_field):
        return from_server(getattr(answer, shape.error_field), getattr(answer, shape.message_field or ""))
    failed = _FAILED.get(command.type)
    if failed is not None and answer.response == failed:
        return from_server(0, "the broker refused without a reason")
    return None


_TOPIC_REQUESTS: dict[int, str] = {
    Type.PARTITIONED_METADATA: "partitionMetadata",
    Type.LOOKUP: "lookupTopic",
    Type.PRODUCER: "producer",
    Type.SUBSCRIBE: "subscribe",
    Type.GET_SCHEMA: "getSchema",
    Type.GET_OR_CREATE_SCHEMA: "getOrCreateSchema",
}
"""Sub-message of each request that names a topic."""

_ADVICE: dict[type[ServerReportedError], str] = {
    TopicNotFound: "the topic does not exist and the broker does not create it automatically; create it "
    "first, for example with `geminga topics create`"
}
"""Text for errors that arrive without one."""


def explained(error: ServerReportedError, request: pb.BaseCommand) -> ServerReportedError:
    """Return the error with the topic of the request, if the broker's text lacks it."""
    name = _TOPIC_REQUESTS.get(request.type)
    topic = getattr(request, name).topic if name is not None else ""
    reason = str(error)
    kind = type(error)
    if reason == kind.__name__:
        reason = _ADVICE.get(kind, reason)
    if topic and topic not in reason:
        reason = f"{topic}: {reason}"
    return error if reason == str(error) else kind(reason)
