"""Broker whose answers a test decides, behind real sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from waiting import eventually_async, loop_turns

from geminga.wire.frames import Frame, FrameDecoder, encode_command, encode_message, encode_send_receipt
from geminga.wire.proto import pulsar_wire_pb2 as pb

UNSOLICITED = (1 << 64) - 1
"""Request id of commands that answer no request."""
Type = pb.BaseCommand


def command(type_: int, field: str, **values: Any) -> pb.BaseCommand:
    result = pb.BaseCommand(type=type_)
    body = getattr(result, field)
    body.SetInParent()
    for name, value in values.items():
        setattr(body, name, value)
    return result


class Peer(asyncio.Protocol):
    """One connection of the scripted broker."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.decoder = FrameDecoder()
        self.connect: pb.CommandConnect | None = None
        self.received: list[int] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.broker.peers.append(self)

    def data_received(self, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            self.received.append(frame.type)
            answer = self.broker.answers.get(frame.type)
            if answer is not None:
                answer(self, frame)

    def send(self, *commands: pb.BaseCommand) -> None:
        self.transport.write(b"".join(encode_command(c) for c in commands))

    def message(self, entry_id: int, raw: bytes) -> None:
        """Send an entry to consumer 0."""
        self.transport.write(encode_message(0, 1, entry_id, -1, len(raw)) + raw)

    def drop(self) -> None:
        self.transport.abort()


class ScriptedBroker:
    """Answers like a broker that serves every topic itself. ``answers`` maps command types to functions
    of (peer, frame); a test replaces those that it wants to misbehave."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.port = 0
        self.next_entry = 0
        self.partitions: dict[str, int] = {}
        self.answers: dict[int, Callable[[Peer, Frame], None]] = {
            Type.CONNECT: self.on_connect,
            Type.PING: lambda peer, frame: peer.send(command(Type.PONG, "pong")),
            Type.PARTITIONED_METADATA: self.on_partitions,
            Type.LOOKUP: self.on_lookup,
            Type.PRODUCER: self.on_producer,
            Type.SUBSCRIBE: lambda peer, frame: self.ok(peer, frame.command.subscribe.request_id),
            Type.CLOSE_PRODUCER: lambda peer, frame: self.ok(peer, frame.command.close_producer.request_id),
            Type.CLOSE_CONSUMER: lambda peer, frame: self.ok(peer, frame.command.close_consumer.request_id),
            Type.UNSUBSCRIBE: lambda peer, frame: self.ok(peer, frame.command.unsubscribe.request_id),
            Type.SEND: self.on_send,
        }

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def count(self, type_: int) -> int:
        return sum(peer.received.count(type_) for peer in self.peers)

    async def until(self, type_: int, count: int = 1) -> None:
        """Wait until N commands of the type were received."""
        await eventually_async(lambda: self.count(type_) >= count)

    async def __aenter__(self) -> ScriptedBroker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Peer(self), "127.0.0.1", self.port, ssl=tls)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.server.close()
        for peer in self.peers:
            peer.drop()
        await loop_turns()

    def ok(self, peer: Peer, request_id: int) -> None:
        peer.send(command(Type.SUCCESS, "success", request_id=request_id))

    def refuse(self, peer: Peer, request_id: int, code: int, text: str = "said so") -> None:
        peer.send(command(Type.ERROR, "error", request_id=request_id, error=code, message=text))

    def refuse_send(self, peer: Peer, send: Any, code: int, text: str = "said so") -> None:
        ids = {"producer_id": send.producer_id, "sequence_id": send.highest_sequence_id or send.sequence_id}
        peer.send(command(Type.SEND_ERROR, "send_error", **ids, error=code, message=text))

    def let_wait(self, peer: Peer, frame: Frame) -> None:
        """Tell a new producer that it has to wait for access."""
        fields = {"request_id": frame.command.producer.request_id, "producer_name": "waiting"}
        peer.send(command(Type.PRODUCER_SUCCESS, "producer_success", **fields, producer_ready=False))

    def close_producer(self, producer_id: int = 0, **fields: Any) -> None:
        ids = {"producer_id": producer_id, "request_id": UNSOLICITED}
        self.peers[-1].send(command(Type.CLOSE_PRODUCER, "close_producer", **ids, **fields))

    def on_connect(self, peer: Peer, frame: Frame) -> None:
        peer.connect = frame.command.connect
        fields = {"server_version": "scripted", "protocol_version": 21, "max_message_size": 5 * 1024 * 1024}
        peer.send(command(Type.CONNECTED, "connected", **fields))

    def on_partitions(self, peer: Peer, frame: Frame) -> None:
        body = frame.command.partitionMetadata
        fields = {"request_id": body.request_id, "partitions": self.partitions.get(body.topic, 0)}
        fields["response"] = pb.CommandPartitionedTopicMetadataResponse.Success
        peer.send(command(Type.PARTITIONED_METADATA_RESPONSE, "partitionMetadataResponse", **fields))

    def on_lookup(self, peer: Peer, frame: Frame) -> None:
        self.answer_lookup(peer, frame)

    def answer_lookup(
        self, peer: Peer, frame: Frame, response: int = pb.CommandLookupTopicResponse.Connect,
        url: str | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        fields |= {"request_id": frame.command.lookupTopic.request_id, "response": response}
        fields["brokerServiceUrl"] = url or self.url
        peer.send(command(Type.LOOKUP_RESPONSE, "lookupTopicResponse", **fields))

    def on_producer(self, peer: Peer, frame: Frame) -> None:
        body = frame.command.producer
        fields: dict[str, Any] = {"topic_epoch": 0} if body.producer_access_mode else {}
        fields |= {"request_id": body.request_id, "producer_name": body.producer_name or "scripted-0"}
        fields |= {"last_sequence_id": -1, "schema_version": b"", "producer_ready": True}
        peer.send(command(Type.PRODUCER_SUCCESS, "producer_success", **fields))

    def on_send(self, peer: Peer, send: Any) -> None:
        self.next_entry += 1
        highest = send.highest_sequence_id or None
        receipt = encode_send_receipt(send.producer_id, send.sequence_id, highest, 1, self.next_entry)
        peer.transport.write(receipt)
