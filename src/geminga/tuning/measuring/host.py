"""Operating system queries about this machine and its processes: CPU, disk writes, listening ports.

Linux only: ``/proc`` and CPU clocks of processes.
"""

import contextlib
import ipaddress
import os
import platform
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_SCHEDULER_CLOCK = 2
"""Clock number that, with the process id, forms the id of a process's CPU clock (``clock_getcpuclockid``)."""
_LISTEN = "0A"


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
    ticks = _machine_ticks()
    if ticks is None:
        return None
    user, nice, system, _idle, _waiting, interrupts, soft, *_ = ticks
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def disk_wait_seconds() -> float | None:
    """Return the seconds in which an idle core waited for a disk, over all cores so far; None if unknown."""
    ticks = _machine_ticks()
    return None if ticks is None else ticks[4] / os.sysconf("SC_CLK_TCK")


def _machine_ticks() -> list[int] | None:
    try:
        return [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    except OSError:
        return None


def disk_written_bytes(pid: int) -> int | None:
    """Return the bytes that a process has caused to be written to disk; None if unknown."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return None
    return int(dict(line.split(": ") for line in text.splitlines())["write_bytes"])


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


def machine() -> dict[str, Any]:
    """Describe this machine and today's date."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "at": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _processor() -> str:
    """Return the processor's name if the system has it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
