"""Header of the PROXY protocol, version 2: the address of a client behind a proxy such as HAProxy.

It comes before the client's first byte: a signature, version and command, family, length, addresses.
"""

import asyncio
import socket
import struct
from typing import Final

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_HEADER: Final = struct.Struct("!12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_FAMILIES: Final = {0x11: (socket.AF_INET, 4), 0x21: (socket.AF_INET6, 16)}
"""TCP over IPv4 and IPv6: the family, and the bytes of an address."""
_BYTES_MAX: Final = 4096
"""Limit of addresses and further fields of a header, which usually are below 100 bytes."""


class ProxyHeaderError(OSError):
    """A connection did not begin with a header."""


class ProxyHeaderCut(ProxyHeaderError, ConnectionResetError):
    """A connection ended before its header was complete, as probes of ports do."""


async def read_header(
    loop: asyncio.AbstractEventLoop, connection: socket.socket, seconds: float
) -> tuple[str, int] | None:
    """Read a header; return the client's address, None for a connection of the proxy itself (a health check).

    Raises `ProxyHeaderError`, also if the header is not complete within ``seconds``.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _read_header(loop, connection)
    except TimeoutError:
        raise ProxyHeaderError(f"no PROXY protocol header came in within {seconds:g} s") from None
    except ConnectionError:
        raise ProxyHeaderCut("the connection ended within the header") from None


async def _read_header(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> tuple[str, int] | None:
    signature, command, family, size = _HEADER.unpack(await _read(loop, connection, _HEADER.size))
    if signature != _SIGNATURE or command not in (_LOCAL, _PROXY) or size > _BYTES_MAX:
        raise ProxyHeaderError(
            "no PROXY protocol header of version 2 came in: let the proxy send one (HAProxy: send-proxy-v2), "
            "or set proxy_protocol to false"
        )
    fields = await _read(loop, connection, size)
    kind, width = _FAMILIES.get(family, (None, 0))
    if command == _LOCAL or kind is None or size < 2 * width + 4:
        return None
    (port,) = struct.unpack_from("!H", fields, 2 * width)
    return socket.inet_ntop(kind, fields[:width]), port


async def _read(loop: asyncio.AbstractEventLoop, connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await loop.sock_recv(connection, size - len(data))
        if not piece:
            raise ConnectionResetError("the connection ended within the header")
        data += piece
    return data
