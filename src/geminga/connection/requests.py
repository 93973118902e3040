"""Requests in flight on one connection: matching answers by request id, and time-outs.

An answer is any command with a ``request_id`` that is not addressed to a producer or consumer.
`ANSWERS` says where each keeps its id and its error (framing.md sections 4 to 12).
"""

from __future__ import annotations

import heapq
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
    """The id that an answer echoes."""
    answer = getattr(command, ANSWERS[command.type].name)
    return int(answer.request_id)


def error_of(command: pb.BaseCommand) -> ServerReportedError | None:
    """The error that an answer reports, None for success.

    A lookup or partition answer that says ``Failed`` without an error code is an UnknownError.
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
"""The sub-message of each request that names a topic."""

_ADVICE: dict[type[ServerReportedError], str] = {
    TopicNotFound: "the topic does not exist and the broker creates none by itself; create it first, for "
    "example with `geminga topics create`",
}
"""What is said for an error that came without a word."""


def explained(error: ServerReportedError, request: pb.BaseCommand) -> ServerReportedError:
    """The error with the topic that the request was about, where the broker's words leave it out."""
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
    """True for the first of two answers to one request.

    A producer that waits for exclusive access is answered at once with ``producer_ready=false`` and
    again, with the same request id, when it got access (framing.md section 5).
    """
    return command.type == Type.PRODUCER_SUCCESS and not command.producer_success.producer_ready


class RequestTable:
    """The deadlines of the requests in flight. Ids are opaque numbers that only have to differ."""

    __slots__ = ("_deadlines", "_heap")

    def __init__(self) -> None:
        self._deadlines: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._deadlines

    def add(self, request_id: int, deadline: float) -> None:
        """Raises `ValueError` when the id is in flight already: ids must differ on one connection."""
        if request_id in self._deadlines:
            raise ValueError(f"request id {request_id} is in flight already")
        self._deadlines[request_id] = deadline
        if deadline != float("inf"):
            heapq.heappush(self._heap, (deadline, request_id))

    def settle(self, request_id: int) -> bool:
        """Forget an answered or abandoned request; False when it was unknown (late or never sent)."""
        return self._deadlines.pop(request_id, None) is not None

    def extend(self, request_id: int, deadline: float) -> None:
        """Move a deadline; unknown ids are ignored."""
        if self._deadlines.pop(request_id, None) is not None:
            self.add(request_id, deadline)

    def next_deadline(self) -> float:
        """The earliest deadline, infinity without one."""
        while self._heap and self._deadlines.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def expire(self, now: float) -> list[int]:
        """Forget the requests whose deadline has passed and return their ids, oldest deadline first."""
        expired = []
        while self.next_deadline() <= now:
            _, request_id = heapq.heappop(self._heap)
            del self._deadlines[request_id]
            expired.append(request_id)
        return expired

    def drain(self) -> list[int]:
        """Forget all: the connection ended."""
        ids = list(self._deadlines)
        self._deadlines.clear()
        self._heap.clear()
        return ids
