"""Fetching schema versions: once, for all callers, and never while a coroutine decodes."""

import asyncio

from waiting import loop_turns

from geminga.client.handles import schema_versions
from geminga.client.handles.schema_versions import SchemaVersions
from geminga.wire.proto import pulsar_wire_pb2 as pb

ONE = "\x00" * 7 + "\x01"


class Core:
    """Substitute for the client context: topics with schemas, counting requests."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.asked = []
        self.error = None
        self.release = None

    async def schema(self, topic, version=None):
        self.asked.append((topic, version))
        if self.release is not None:
            await self.release.wait()
        if self.error is not None:
            raise self.error
        if topic == "missing":
            return None
        schema = pb.Schema(name=topic, type=pb.Schema.Avro, schema_data=b"data")
        schema.properties.add(key="k", value="v")
        return schema


class Message:
    def __init__(self, topic="t", version=ONE):
        self.topic, self.version = topic, version

    def topic_name(self):
        return self.topic

    def schema_version(self):
        return self.version


def made():
    context = Core()
    return context, SchemaVersions(context)


async def test_each_version_is_asked_for_once():
    context, versions = made()
    context.release = asyncio.Event()
    together = [asyncio.ensure_future(versions.get("t", ONE)) for _ in range(5)]
    await loop_turns()
    together.pop().cancel()  # one that gives up does not take the others along
    context.release.set()
    infos = await asyncio.gather(*together)
    assert all(info is infos[0] for info in infos)
    assert (infos[0].type, infos[0].data, infos[0].properties) == (4, b"data", (("k", "v"),))
    assert await versions.get("t", ONE) is versions.known("t", ONE) is infos[0]
    assert context.asked == [("t", b"\x00" * 7 + b"\x01")]
    assert await versions.get("missing", ONE) is None
    assert versions.known("missing", ONE) is None


async def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(schema_versions, "VERSIONS_KEPT", 3)

    _context, versions = made()
    for number in range(10):
        await versions.prepare(Message(f"t{number}"))
    known = [number for number in range(10) if versions.known(f"t{number}", ONE) is not None]
    assert known == [7, 8, 9]
