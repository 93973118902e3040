"""``/topics/{domain}``: publishing as Apache Pulsar's REST takes it, several messages at once.

Payloads are texts, encoded by the schema that the request names. A message that is not published has an error
in the answer of its own; what is wrong with the whole request is refused before any message is published.
"""

import asyncio
import base64
import json
import time
from functools import partial
from typing import Any, Final, NamedTuple

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal, admin_error
from geminga.broker.admin.http import (
    DONE_SECONDS_MAX,
    LONG_BODY_BYTES_MAX,
    Server,
    finish,
    object_body,
    sent,
    stepwise,
    when_done,
    whole_number,
)
from geminga.broker.admin.publishing import SEQUENCE_ID_MAX, UNCONFIRMED, Stored, publish
from geminga.broker.admin.routes import PRODUCE, route
from geminga.broker.admin.topics import TopicResourceBase
from geminga.broker.rules.schemas import version_bytes
from geminga.broker.runtime.refusal import Refused
from geminga.errors import IncompatibleSchema, PulsarException, StoreBusy
from geminga.ids import TopicName
from geminga.ledger.api import Done
from geminga.schema.from_text import from_wire, info_of_texts, text_encoders, to_wire
from geminga.schema_info import SchemaInfo
from geminga.wire.proto import pulsar_wire_pb2 as pb

_PATH: Final = "/topics/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
MESSAGES_MAX: Final = 10_000
"""Messages of one request."""
PRODUCER_NAME: Final = "RestProducer"
_NAME_MAX: Final = 1024
_RETRIABLE, _FAILED = 1, 2
"""Apache Pulsar's numbers of errors after which a retry may succeed, and of others."""
_BUSY: Final = frozenset((429, 503))
AT_ONCE: Final = 4
"""Requests that are parsed and published at once, on threads that others use, too; more wait unparsed."""
_ROOM_SECONDS: Final = 0.05
"""Interval of checks whether more entries may be pending in the store."""


_Outcome = tuple[TopicName, Exception | asyncio.Future[Stored]]


class _Message(NamedTuple):
    payload: str
    key: str | None
    metadata: pb.MessageMetadata


class TopicMessagesResource(TopicResourceBase):
    """Publishing to topics, and to one partition."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._turns = asyncio.Semaphore(AT_ONCE)

    @route("POST", _PATH, needs=PRODUCE)
    async def publish(self, request: web.Request) -> object:
        """Publish `messages`, to the partitions in turn. Body: `valueSchema`, `keySchema` or `schemaVersion`,
        `producerName`, and of each message `payload`, `key`, `properties`, `eventTime`, `sequenceId`,
        `deliverAt` or `deliverAfterMs`. Each has its own error in the answer."""
        return await self._answered(request, self.existing(request), None)

    @route("POST", _PATH + "/partitions/{partition:[0-9]+}", needs=PRODUCE)
    async def publish_to_partition(self, request: web.Request, partition: int) -> object:
        """The same, to one partition."""
        topic = self.existing(request)
        if topic.partition >= 0:
            raise AdminRefusal(400, "Topic name can't contain '-partition-' suffix.")
        return await self._answered(request, topic, partition)

    async def _answered(self, request: web.Request, topic: TopicName, partition: int | None) -> object:
        await sent(request)  # before it has a turn: its sender may be slow
        async with self._turns:
            version, outcomes = await self._published(request, topic, partition)
        waiting = (each for _, each in outcomes if isinstance(each, asyncio.Future))
        stored = asyncio.gather(*waiting, return_exceptions=True)
        await finish(self.server, stored, 504, UNCONFIRMED)
        found = [_acknowledgement(each, target.partition, version) for target, each in outcomes]
        return {"messagePublishResults": found, "schemaVersion": version}

    async def _published(
        self, request: web.Request, topic: TopicName, partition: int | None
    ) -> tuple[int, list[_Outcome]]:
        """Pass the messages of a request to their topics; return the version of their schema, and of each
        message the topic with its error or the future of its id."""
        body = await object_body(request, bytes_max=LONG_BODY_BYTES_MAX)
        messages = await asyncio.to_thread(read_messages, body)
        version, info = await self._schema(topic, body)
        encoded = await asyncio.to_thread(_encoded, messages, info)
        targets = self.actions.parts(topic) if partition is None else [topic.partition_name(partition)]
        for target in targets[: len(encoded)]:
            await when_done(self.server, partial(self.topics.loader.prepare, target))
        deadline = time.monotonic() + DONE_SECONDS_MAX
        outcomes: list[_Outcome] = []
        async for metadata, payload in stepwise(encoded):
            target = targets[len(outcomes) % len(targets)]
            outcome: Exception | asyncio.Future[Stored]
            if isinstance(payload, Exception):
                outcome = payload
            else:
                metadata.schema_version = version_bytes(version)
                await self._wait_for_room(deadline)
                try:
                    outcome = self.now(partial(self._publish, target, metadata, payload))
                except (PulsarException, Refused) as error:
                    outcome = error
            outcomes.append((target, outcome))
        self.now(lambda: None)
        return version, outcomes

    async def _wait_for_room(self, deadline: float) -> None:
        """Wait, until ``deadline``, while as many bytes are pending in the store as may be."""
        backpressure = self.server.broker.backpressure
        while backpressure.pending_bytes >= backpressure.pending_bytes_max and time.monotonic() < deadline:
            self.server.unanswered.check()
            await asyncio.sleep(_ROOM_SECONDS)

    def _publish(
        self, target: TopicName, metadata: pb.MessageMetadata, payload: bytes
    ) -> asyncio.Future[Stored]:
        count = self.topics.partitioned.count(target.base) if target.partition >= 0 else 0
        topic = self.topics.find(target) if target.partition < max(count, 1) else None
        if topic is None:
            raise AdminRefusal(404, f"Topic not owned by current broker: there is no {target}")
        return publish(topic, metadata, payload, self.server.broker.backpressure)

    async def _schema(self, topic: TopicName, body: dict[str, Any]) -> tuple[int, SchemaInfo]:
        """Return the schema of the payloads with its version: an old one, or that of the body, registered if
        it is new."""
        schemas = self.server.broker.schemas
        version = body.get("schemaVersion")
        if version is not None and version != -1:
            version = whole_number(version, "schemaVersion")
            known = await self.looking(partial(schemas.get, topic, version))
            if known is None:
                raise AdminRefusal(404, f"Schema version {version} not found for topic {topic}")
            return version, from_wire(known)
        try:
            info = info_of_texts(_text(body, "keySchema") or "", _text(body, "valueSchema") or "")
            wire = to_wire(info)
        except (ValueError, IncompatibleSchema) as error:
            raise AdminRefusal(400, f"Fail to add or retrieve schema: {error}") from None

        def put(done: Done) -> int:
            self.actions.partitions(topic)  # 404 if the topic was deleted meanwhile: a new one has no schema
            auto_update = self.namespaces.topic_policies(topic).schema_auto_update
            return schemas.put(topic, wire, auto_update=auto_update, done=done)

        try:
            return await self.durable(put), info
        except Refused as error:
            raise AdminRefusal(409, f"Unable to add schema to topic {topic}: {error.reason}") from error


def read_messages(body: dict[str, Any]) -> list[_Message]:
    """Return the messages of a request's body. Raises `AdminRefusal`."""
    items, producer = body.get("messages"), _text(body, "producerName") or PRODUCER_NAME
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise AdminRefusal(400, "messages must be a list of JSON objects")
    if len(items) > MESSAGES_MAX:
        raise AdminRefusal(413, f"the request has {len(items)} messages; at most {MESSAGES_MAX} are allowed")
    if len(producer) > _NAME_MAX:
        raise AdminRefusal(
            412, f"producerName has {len(producer)} characters; at most {_NAME_MAX} are allowed"
        )
    try:
        return [_message(each, producer) for each in items]
    except AdminRefusal as error:
        raise AdminRefusal(400, error.reason) from None


def _message(item: dict[str, Any], producer: str) -> _Message:
    payload, key, properties = _text(item, "payload"), _text(item, "key"), item.get("properties") or {}
    event_time, sequence_id, deliver_at, delay = (
        _number(item, name) for name in ("eventTime", "sequenceId", "deliverAt", "deliverAfterMs")
    )
    clusters = item.get("replicationClusters")
    if str(item.get("disableReplication")).lower() == "true":
        clusters = ["__local__"]
    if payload is None:
        raise AdminRefusal(400, "a message needs a payload")
    if clusters is not None and not isinstance(clusters, list):
        raise AdminRefusal(400, "replicationClusters must be a list of texts")
    if not isinstance(properties, dict):
        raise AdminRefusal(400, "properties must be a JSON object of texts")
    if (deliver_at or delay) and not event_time:
        raise AdminRefusal(400, "deliverAt and deliverAfterMs need an eventTime: delays count from it")
    try:
        metadata = pb.MessageMetadata(
            producer_name=producer, sequence_id=sequence_id, partition_key=key, replicate_to=clusters
        )
        for name in properties:
            metadata.properties.add(key=name, value=_text(properties, name) or "")
        if event_time:
            metadata.event_time = event_time
        if deliver_at or delay:
            metadata.deliver_at_time = deliver_at or event_time + delay
    except (ValueError, TypeError) as error:
        raise AdminRefusal(400, f"a message cannot be built: {error}") from None
    return _Message(payload, key, metadata)


def _number(item: dict[str, Any], name: str) -> int:
    number = whole_number(item.get(name) or 0, name)
    if number > SEQUENCE_ID_MAX:
        raise AdminRefusal(400, f"{name}={number} is not allowed; allowed: at most {SEQUENCE_ID_MAX}")
    return number


def _text(item: dict[str, Any], name: str) -> str | None:
    """Return a field as text, numbers and booleans as JSON has them."""
    value = item.get(name)
    if isinstance(value, dict | list):
        raise AdminRefusal(400, f"{name} must be a text")
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _encoded(
    messages: list[_Message], info: SchemaInfo
) -> list[tuple[pb.MessageMetadata, bytes | Exception]]:
    """Return the metadata and the payload of each message, or the error of one that does not fit."""
    try:
        encode_key, encode = text_encoders(info)
    except PulsarException as error:
        raise AdminRefusal(400, f"Fail to publish message: {error}") from None
    found: list[tuple[pb.MessageMetadata, bytes | Exception]] = []
    for payload, key, metadata in messages:
        try:
            if encode_key is not None and key is not None:
                metadata.partition_key = base64.b64encode(encode_key(key)).decode()
                metadata.partition_key_b64_encoded = True
            found.append((metadata, encode(payload)))
        except (ValueError, TypeError, RecursionError) as error:
            found.append((metadata, error))
    return found


def _acknowledgement(
    outcome: Exception | asyncio.Future[Stored], partition: int, version: int
) -> dict[str, Any]:
    error = outcome.exception() if isinstance(outcome, asyncio.Future) else outcome
    if error is None:
        assert isinstance(outcome, asyncio.Future)
        ledger_id, entry_id = outcome.result()
        return {"messageId": f"{ledger_id}:{entry_id}:{partition}", "errorCode": 0, "schemaVersion": version}
    if isinstance(error, Refused):
        error = admin_error(error)
    passes = isinstance(error, StoreBusy) or (isinstance(error, AdminRefusal) and error.status in _BUSY)
    code = _RETRIABLE if passes else _FAILED
    return {
        "errorMsg": str(error), "messageId": str(partition), "errorCode": code, "schemaVersion": version,
    }  # fmt: skip
