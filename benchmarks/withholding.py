"""A broker that stores nothing and withholds the receipts of chosen partitions.

It answers enough of the protocol for producers of any client: a load target that costs little, and the
stuck partition of the benchmark. ``python -m benchmarks.withholding 3`` withholds partition 3.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from geminga.client.io.runtime import new_event_loop
from geminga.wire.frames import Frame, FrameDecoder, SendFrame, encode_command, encode_send_receipt
from geminga.wire.proto import pulsar_wire_pb2 as pb

PARTITIONS = 8
Type = pb.BaseCommand


class Peer(asyncio.Protocol):
    """One connection."""

    url = ""
    withheld: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._silent: set[int] = set()
        self._entries = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        out: list[bytes] = []
        for frame in self._decoder.feed(data):
            if not isinstance(frame, SendFrame):
                answer = self._answer(frame)
                if answer is not None:
                    out.append(encode_command(answer))
            elif frame.producer_id not in self._silent:
                self._entries += 1
                highest = frame.highest_sequence_id or None
                out.append(
                    encode_send_receipt(frame.producer_id, frame.sequence_id, highest, 1, self._entries)
                )
        if out:
            self._transport.write(b"".join(out))

    def _answer(self, frame: Frame) -> pb.BaseCommand | None:
        command, answer = frame.command, pb.BaseCommand()
        if frame.type == Type.CONNECT:
            answer.type = Type.CONNECTED
            answer.connected.server_version = "withholding"
            answer.connected.protocol_version = min(command.connect.protocol_version, 21)
            answer.connected.max_message_size = 5 * 1024 * 1024
        elif frame.type == Type.PING:
            answer.type = Type.PONG
            answer.pong.SetInParent()
        elif frame.type == Type.PARTITIONED_METADATA:
            asked = command.partitionMetadata
            answer.type = Type.PARTITIONED_METADATA_RESPONSE
            body = answer.partitionMetadataResponse
            body.request_id = asked.request_id
            body.response = pb.CommandPartitionedTopicMetadataResponse.Success
            body.partitions = 0 if "-partition-" in asked.topic or "plain" in asked.topic else PARTITIONS
        elif frame.type == Type.LOOKUP:
            answer.type = Type.LOOKUP_RESPONSE
            place = answer.lookupTopicResponse
            place.request_id = command.lookupTopic.request_id
            place.response = pb.CommandLookupTopicResponse.Connect
            place.brokerServiceUrl = self.broker_of(command.lookupTopic.topic)
            place.authoritative = True
        elif frame.type == Type.PRODUCER:
            self._created(command.producer, answer)
        elif frame.type in (Type.CLOSE_PRODUCER, Type.CLOSE_CONSUMER):
            answer.type = Type.SUCCESS
            answer.success.request_id = command.close_producer.request_id
        else:
            return None
        return answer

    def broker_of(self, topic: str) -> str:
        """The service URL of the broker that a lookup of ``topic`` names."""
        return self.url

    def _created(self, asked: pb.CommandProducer, answer: pb.BaseCommand) -> None:
        if asked.topic.rpartition("-")[2] in self.withheld and "-partition-" in asked.topic:
            self._silent.add(asked.producer_id)
        answer.type = Type.PRODUCER_SUCCESS
        success = answer.producer_success
        success.request_id = asked.request_id
        success.producer_name = asked.producer_name or f"made-{asked.producer_id}"
        success.last_sequence_id = -1
        success.schema_version = b""
        success.producer_ready = True


async def serve() -> None:
    """Print the service URL and answer until killed."""
    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", 0)
    Peer.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(Peer.url, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    Peer.withheld = frozenset(sys.argv[1:])
    new_event_loop().run_until_complete(serve())
