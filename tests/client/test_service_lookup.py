"""Lookups over HTTP, against a scripted REST API; test_context.py tests those in the binary protocol."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest
from waiting import eventually_async

from geminga import errors
from geminga.client.handles.context import ClientContext
from geminga.client.handles.service_lookup import ServiceUnreachable
from geminga.client.options.settings import ClientSettings
from geminga.connection.authentication import BasicCredentials
from geminga.ids import TopicName

TOPIC = "persistent://public/default/t"


class Rest:
    """Answers GETs by path; counts them; keeps the headers."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], tuple[int, Any, str]]] = {}
        self.asked: list[str] = []
        self.headers: list[bytes] = []
        self.port = 0

    async def __aenter__(self) -> Rest:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.readuntil(b"\r\n\r\n")
        path = question.split(b" ")[1].decode().partition("?")[0]
        self.asked.append(path)
        self.headers.append(question)
        kind = next((name for name in self.answers if name in path), None)
        status, body, extra = (404, {"reason": "nothing here"}, "") if kind is None else self.answers[kind]()
        content = json.dumps(body).encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n{extra}\r\n".encode() + content
        )
        writer.close()


@asynccontextmanager
async def looking_up(
    url: str = "http://127.0.0.1:{port}", **options: Any
) -> AsyncIterator[tuple[Rest, ClientContext]]:
    """REST of a broker, and a client's context that looks up there."""
    async with Rest() as rest:
        settings = ClientSettings(
            service_url=url.format(port=rest.port),
            operation_timeout_seconds=5,
            backoff_initial_seconds=0.001,
            connection_timeout_seconds=1,
            **options,
        )
        context = ClientContext(settings, random=random.Random(1))
        try:
            yield rest, context
        finally:
            await context.close()


async def test_lookup_partitions_and_topics_are_requested_over_http():
    async with looking_up(credentials=BasicCredentials("u", "p")) as (rest, context):
        rest.answers = {
            "/lookup/": lambda: (200, {"brokerUrl": "pulsar://b:6650"}, ""),
            "/partitions": lambda: (200, {"partitions": 2}, ""),
            "/topics": lambda: (200, [TOPIC], ""),
        }
        assert (await context.lookup(TOPIC)).broker.host == "b"
        assert await context.partition_topics(TOPIC) == [f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"]
        assert list((await context.topics_of_namespace("public/default", 0)).topics) == [TOPIC]
        assert b"Authorization: Basic dTpw\r\n" in rest.headers[0]
        with pytest.raises(errors.OperationNotSupported):
            await context.service_connection()


async def test_servers_faults_are_retried():
    async with looking_up() as (rest, context):
        rest.answers["/lookup/"] = lambda: (
            (503, {"reason": "loading"}, "")
            if len(rest.asked) < 4
            else (200, {"brokerUrl": "pulsar://b:1"}, "")
        )
        await context.lookup(TOPIC)
        assert len(rest.asked) == 4


async def test_refusals_are_raised_at_once():
    async with looking_up(url="http://127.0.0.1:{port},127.0.0.1:{port}") as (rest, context):
        with pytest.raises(errors.TopicNotFound, match="nothing here"):
            await context.lookup(TOPIC)
        assert len(rest.asked) == 1


async def test_redirects_are_followed_to_their_end():
    async with looking_up() as (rest, context):
        there = f"Location: http://127.0.0.1:{rest.port}"
        rest.answers["/lookup/"] = lambda: (307, "", f"{there}/elsewhere\r\n")
        rest.answers["/elsewhere"] = lambda: (200, {"brokerUrl": "pulsar://b:1"}, "")
        assert (await context.lookup(TOPIC)).broker.host == "b"
        rest.answers["/elsewhere"] = lambda: (307, "", f"{there}/elsewhere\r\n")
        rest.asked.clear()
        with pytest.raises(errors.LookupError, match="redirected too often"):
            await context.service.place(TOPIC, 60)  # one attempt, however long it takes
        assert rest.asked.count("/elsewhere") == context.settings.lookup_redirects_max


async def test_hosts_are_tried_in_turn():
    async with looking_up(url="http://127.0.0.1:1,127.0.0.1:{port}") as (rest, context):
        rest.answers["/partitions"] = lambda: (200, {"partitions": 0}, "")
        for _ in range(3):
            assert await context.partitions(TOPIC) == 0


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts no connection and refuses none."""
    with ExitStack() as opened:
        listening = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # fill the queue of connections to accept
            line = opened.enter_context(socket.socket())
            line.setblocking(False)
            line.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a queue of connections with a limit")
async def test_a_host_that_is_silent_holds_up_many_lookups_once():
    with silent_port() as silent:
        async with looking_up(url=f"http://127.0.0.1:{silent},127.0.0.1:{{port}}") as (rest, context):
            rest.answers["/lookup/"] = lambda: (200, {"brokerUrl": "pulsar://b:6650"}, "")
            assert context.service.hosts.current.port == silent
            await asyncio.gather(*(context.service.place(f"{TOPIC}{number}", 60) for number in range(100)))
            assert len(rest.asked) == 100
            assert context.service.hosts.current.port == rest.port


ENDS_DURING_A_LOOKUP = """
import sys, threading, time, geminga
client = geminga.Client(sys.argv[1], operation_timeout_seconds=600)
threading.Thread(target=client.create_producer, args=("t",), daemon=True).start()
while not any(each.name.startswith("geminga-admin") for each in threading.enumerate()):
    time.sleep(0.01)
"""


def test_a_program_that_ends_does_not_wait_for_a_lookup():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        subprocess.run([sys.executable, "-c", ENDS_DURING_A_LOOKUP, url], check=True, timeout=150)


async def test_threads_of_lookups_end_with_their_client():
    def threads() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("geminga-admin")]

    before = len(threads())
    async with looking_up() as (rest, context):
        rest.answers["/partitions"] = lambda: (200, {"partitions": 3}, "")
        for _ in range(5):
            await context.partitions(TOPIC, auto_creation=False)
        assert len(threads()) == before + 1
    await eventually_async(lambda: len(threads()) == before)


async def test_a_closed_client_has_no_connection_of_its_lookups():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 Ok\r\nContent-Length: 16\r\n\r\n{"partitions":3}')
        ended.append(await reader.read())
        writer.close()

    ended: list[bytes] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        context = ClientContext(ClientSettings(service_url=f"http://127.0.0.1:{port}"))
        assert await context.partitions(TOPIC) == 3
        assert not ended
        await context.close()
        assert await eventually_async(lambda: ended) == [b""]
        with pytest.raises(errors.AlreadyClosed):
            await context.service.partitions(TopicName.parse(TOPIC), auto_creation=True, remaining=1)


async def test_the_host_of_a_redirect_is_named_where_it_is_down():
    async with looking_up() as (rest, context):
        rest.answers["/lookup/"] = lambda: (307, "", "Location: http://127.0.0.1:1/lookup/x\r\n")
        with pytest.raises(ServiceUnreachable, match=r"no answer from http://127\.0\.0\.1:1 "):
            await context.service.place(TOPIC, 60)


async def test_no_host_answers():
    async with looking_up(url="http://127.0.0.1:1") as (_rest, context):
        with pytest.raises((ServiceUnreachable, errors.Timeout), match="Connection refused"):
            await context.lookup(TOPIC, timeout=2.0)


async def test_a_binary_port_is_named_in_the_error():
    async with looking_up() as (_rest, _context):

        async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"\x00\x00\x00\x09\x00\x00\x00\x05")
            writer.close()

        server = await asyncio.start_server(garbage, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        other = ClientContext(
            ClientSettings(service_url=f"http://127.0.0.1:{port}", operation_timeout_seconds=1)
        )
        with pytest.raises(errors.PulsarException, match="web address of a Pulsar broker"):
            await other.lookup(TOPIC, timeout=0.2)
        await other.close()
        server.close()
