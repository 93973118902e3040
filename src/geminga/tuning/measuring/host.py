"""Operating system queries about processes: CPU, disk writes, listening ports, bytes of sockets.

Linux only: ``/proc`` and the kernel's socket diagnostics (``NETLINK_SOCK_DIAG``), which count the bytes of
every TCP connection of any program, so that clients in Java, C++ and Python are measured alike.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_SCHEDULER_CLOCK = 2
"""Clock number that, with the process id, forms the id of a process's CPU clock (``clock_getcpuclockid``)."""
_LISTEN = "0A"

_SOCK_DIAG_BY_FAMILY = 20
_NLM_REQUEST_DUMP = 0x301
_NLMSG_DONE = 3
_NLMSG_ERROR = 2
_INET_DIAG_INFO = 2
_NETLINK_SOCK_DIAG = 4
_DIAG_SIZE = 72
"""Size of ``struct inet_diag_msg`` in bytes."""
_INODE_OFFSET = 68
_BYTES_ACKED_OFFSET = 120
"""Offset of ``tcpi_bytes_acked`` in ``struct tcp_info``; ``tcpi_bytes_received`` follows."""


def cpu_seconds(pid: int) -> float:
    """Return user and system CPU seconds of a process so far, including ended threads.

    Raises `ProcessLookupError` if it has ended.
    """
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULER_CLOCK)
    except OSError:
        raise ProcessLookupError(pid) from None


def all_cpu_seconds() -> float | None:
    """Return the CPU seconds of all processes on this machine so far; None if unknown."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, interrupts, soft, *_ = map(int, fields)
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def disk_written_bytes(pid: int) -> int | None:
    """Return the bytes that a process has caused to be written to disk; None if unknown."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return None
    return int(dict(line.split(": ") for line in text.splitlines())["write_bytes"])


def resident_bytes(pid: int) -> int | None:
    """Return the memory of a process; None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def is_local(host: str) -> bool:
    """Return whether a host name is this machine."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found):
        return True
    for address in found:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((address, 0))  # only a local address can be bound
            except OSError:
                return False
    return bool(found)


def host_and_port(url: str, default_port: int) -> tuple[str, int]:
    """Return host and port of the first host of a URL."""
    first = url.split(",")[0]
    parts = urlsplit(first if "://" in first else f"//{first}")
    return parts.hostname or "localhost", parts.port or default_port


def listening_pid(port: int) -> int | None:
    """Return the process that listens on a TCP port of this machine; None if unknown."""
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    if not inodes:
        return None
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and not inodes.isdisjoint(_socket_inodes(int(entry.name))):
            return int(entry.name)
    return None


def _socket_inodes(pid: int) -> Iterator[str]:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)
                except OSError:
                    continue
                if target.startswith("socket:["):
                    yield target[8:-1]
    except OSError:
        return


@dataclass(slots=True)
class _Connection:
    sent: int
    received: int


def tcp_byte_counts(families: Iterable[int] = (socket.AF_INET, socket.AF_INET6)) -> dict[int, _Connection]:
    """Return the acknowledged sent bytes and the received bytes of each established TCP connection, by inode.

    Raises `OSError` if the kernel does not answer.
    """
    found: dict[int, _Connection] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(5)
        for family in families:
            # Family, protocol, "with tcp_info", established connections; no further filter.
            body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << 1)
            body += bytes(48)
            head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_REQUEST_DUMP, 1, 0)
            link.send(head + body)
            while _read_dump(link.recv(1 << 18), found):
                pass
    return found


def _read_dump(data: bytes, found: dict[int, _Connection]) -> bool:
    """Parse the messages of a netlink packet; return False after the last one."""
    offset = 0
    while offset + 16 <= len(data):
        size, kind = struct.unpack_from("=IH", data, offset)
        if kind == _NLMSG_DONE or size < 16:
            return False
        if kind == _NLMSG_ERROR:
            raise OSError("the kernel refuses socket diagnostics")
        (inode,) = struct.unpack_from("=I", data, offset + 16 + _INODE_OFFSET)
        place, end = offset + 16 + _DIAG_SIZE, offset + size
        while place + 4 <= end:
            length, attribute = struct.unpack_from("=HH", data, place)
            if length < 4:
                break
            if attribute == _INET_DIAG_INFO and length >= 4 + _BYTES_ACKED_OFFSET + 16:
                acked, received = struct.unpack_from("=QQ", data, place + 4 + _BYTES_ACKED_OFFSET)
                found[inode] = _Connection(acked, received)
            place += (length + 3) & ~3
        offset += (size + 3) & ~3
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBytes:
    """Bytes of TCP payload that processes exchanged with their peers."""

    sent: int
    received: int

    @property
    def total(self) -> int:
        return self.sent + self.received


@dataclass(slots=True)
class WireMeter:
    """Counts the TCP bytes of processes from outside, by periodic queries.

    The bytes of a connection since the last query are lost if it closes: measured processes must keep
    connections open until `stop`, or be queried often.
    """

    pids: frozenset[int]
    interval_seconds: float = 0.25
    _seen: dict[int, _Connection] = field(default_factory=dict)
    _first: dict[int, _Connection] = field(default_factory=dict)
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start counting from now."""
        self._look()
        self._first = {inode: _Connection(seen.sent, seen.received) for inode, seen in self._seen.items()}
        self._thread = threading.Thread(target=self._watch, name="geminga-wire-meter", daemon=True)
        self._thread.start()

    def stop(self) -> WireBytes:
        """Query once more and return the sums."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        self._look()
        nothing = _Connection(0, 0)
        return WireBytes(
            sent=sum(c.sent - self._first.get(i, nothing).sent for i, c in self._seen.items()),
            received=sum(c.received - self._first.get(i, nothing).received for i, c in self._seen.items()),
        )

    def _watch(self) -> None:
        while not self._ending.wait(self.interval_seconds):
            self._look()

    def _look(self) -> None:
        mine = {int(inode) for pid in self.pids for inode in _socket_inodes(pid)}
        if mine:
            self._seen.update((i, c) for i, c in tcp_byte_counts().items() if i in mine)
