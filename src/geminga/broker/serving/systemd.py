"""State reports to systemd (``sd_notify``), for units of ``Type=notify`` or ``notify-reload``."""

import asyncio
import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send a state such as ``READY=1`` to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), f"\0{address[1:]}" if address[0] == "@" else address)


def keep_watchdog_alive(loop: asyncio.AbstractEventLoop) -> None:
    """Report at half the watchdog's interval that the event loop runs, if the unit has ``WatchdogSec``."""
    interval, process_id = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
    if interval.isdecimal() and int(interval) and process_id in (None, str(os.getpid())):

        def beat() -> None:
            notify("WATCHDOG=1")
            loop.call_later(int(interval) / 2_000_000, beat)

        beat()
