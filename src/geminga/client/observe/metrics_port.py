"""Prometheus endpoint and text format, for functions, mirrors and Spark's queries."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

_REQUEST_BYTES_MAX = 8192


def exposition(
    families: Iterable[tuple[str, str, str]], samples: Iterable[tuple[str, Mapping[str, str], float]]
) -> str:
    """Return samples (name, labels, value) in Prometheus' text format; ``families`` are name, type and
    meaning of each metric. Metrics without a sample are left out."""
    blocks = {name: [f"# HELP {name} {text}", f"# TYPE {name} {kind}"] for name, kind, text in families}
    for name, labels, value in samples:
        pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        blocks[name].append(f"{name}{{{pairs}}} {value}")
    lines = (line for block in blocks.values() if len(block) > 2 for line in block)
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
