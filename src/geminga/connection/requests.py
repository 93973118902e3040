"""Requests in flight on one connection: matching answers by request id, and time-outs.

An answer is any command with a ``request_id`` that is not addressed to a producer or consumer. `ANSWERS`
names the fields of their ids and errors (framing.md sections 4 to 12).
"""

from __future__ import annotations

from typing import NamedTuple

from geminga.errors import ServerReportedError, TopicNotFound, from_server
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand


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
    Type.NEW_TXN_RESPONSE: AnswerShape("newTxnResponse", "error", "message"),
    Type.ADD_PARTITION_TO_TXN_RESPONSE: AnswerShape("addPartitionToTxnResponse", "error", "message"),
    Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: AnswerShape("addSubscriptionToTxnResponse", "error", "message"),
    Type.END_TXN_RESPONSE: AnswerShape("endTxnResponse", "error", "message"),
    Type.END_TXN_ON_PARTITION_RESPONSE: AnswerShape("endTxnOnPartitionResponse", "error", "message"),
    Type.END_TXN_ON_SUBSCRIPTION_RESPONSE: AnswerShape("endTxnOnSubscriptionResponse", "error", "message"),
    Type.TC_CLIENT_CONNECT_RESPONSE: AnswerShape("tcClientConnectResponse", "error", "message"),
    Type.WATCH_TOPIC_LIST_SUCCESS: AnswerShape("watchTopicListSuccess"),
}

_FAILED: dict[int, int] = {
    Type.LOOKUP_RESPONSE: pb.CommandLookupTopicResponse.Failed,
    Type.PARTITIONED_METADATA_RESPONSE: pb.CommandPartitionedTopicMetadataResponse.Failed,
}


def request_id_of(command: pb.BaseCommand) -> int:
    """Return the request id of an answer."""
    answer = getattr(command, ANSWERS[command.type].name)
    return int(answer.request_id)


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
    "first, for example with `geminga topics create`",
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


def is_interim(command: pb.BaseCommand) -> bool:
    """Return True for the first of two answers to one request.

    A producer that waits for exclusive access is answered at once with ``producer_ready=false`` and again,
    with the same request id, when it got access (framing.md section 5).
    """
    return command.type == Type.PRODUCER_SUCCESS and not command.producer_success.producer_ready


class RequestTable:
    """Deadlines of the requests in flight. Ids are numbers that only have to differ."""

    __slots__ = ("_deadlines",)

    def __init__(self) -> None:
        self._deadlines: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._deadlines

    def add(self, request_id: int, deadline: float) -> None:
        """Add a request. Raises `ValueError` if its id is in flight already."""
        if request_id in self._deadlines:
            raise ValueError(f"request id {request_id} is in flight already")
        self._deadlines[request_id] = deadline

    def settle(self, request_id: int) -> bool:
        """Remove an answered or cancelled request; return False if it was unknown (late or never sent)."""
        return self._deadlines.pop(request_id, None) is not None

    def extend(self, request_id: int, deadline: float) -> None:
        """Change a deadline; unknown ids are ignored."""
        if self._deadlines.pop(request_id, None) is not None:
            self.add(request_id, deadline)

    def next_deadline(self) -> float:
        """Return the earliest deadline, infinity without one."""
        return min(self._deadlines.values(), default=float("inf"))

    def expire(self, now: float) -> list[int]:
        """Remove the requests whose deadline has passed and return their ids, oldest deadline first."""
        due = sorted((deadline, each) for each, deadline in self._deadlines.items() if deadline <= now)
        for _, request_id in due:
            del self._deadlines[request_id]
        return [request_id for _, request_id in due]

    def drain(self) -> list[int]:
        """Remove all requests at the end of the connection, and return their ids."""
        ids = list(self._deadlines)
        self._deadlines.clear()
        return ids
