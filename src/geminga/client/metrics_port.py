"""Prometheus endpoint, for functions, mirrors and Spark's queries."""

import asyncio
from collections.abc import Callable

_REQUEST_BYTES_MAX = 8192


async def serve(exposition: Callable[[], str], port: int, host: str = "127.0.0.1") -> asyncio.Server:
    """Serve ``GET /metrics`` in Prometheus' text format; ``host`` is the loopback address by default.

    Raises `OSError` if the port is in use.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                wanted = head.split(b" ", 2)[1:2] == [b"/metrics"]
                body = exposition().encode() if wanted else b"see /metrics\n"
                status = "200 OK" if wanted else "404 Not Found"
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_REQUEST_BYTES_MAX)
