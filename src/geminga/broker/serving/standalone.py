"""Broker as a process: implements ``geminga standalone``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TextIO

from geminga.broker.serving.garbage_collector import GarbageCollectorPacing
from geminga.broker.serving.output import Output
from geminga.broker.serving.server import BrokerServer, end_event_loop
from geminga.broker.serving.transport_leak_fix import untangle_transports
from geminga.broker.settings import BrokerSettings
from geminga.errors import PulsarException, StoreError
from geminga.event_loops import new_event_loop

if TYPE_CHECKING:
    from geminga.broker.admin.http import Site

log = logging.getLogger("geminga.broker")
Stream = Output | TextIO

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""A setting, an address or a port is invalid."""
EXIT_STORE: Final = 3
"""The store is damaged, locked by another process, not a store, or stopped while the broker ran."""

SYNC_PROMISES: Final = {
    "always": "a receipt means: on disk and synced",
    "interval": "a receipt means: handed to the operating system, synced within a second - "
    "a power cut may lose the last second of receipted messages",
    "never": "a receipt means: handed to the operating system, never synced on purpose - "
    "a power cut may lose receipted messages",
}
_IGNORED: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that make other servers reload or reopen files; their default would kill the process."""
_DESCRIPTORS_WANTED = 65_536
_COLLECT_AFTER_SECONDS: Final = 0.5
"""Delay of one garbage collection after the start, so that the first answer is not delayed."""


def run(settings: BrokerSettings, *, site: Site | None = None) -> int:
    """Run the broker until SIGTERM or Ctrl-C and return the exit code.

    It exits when the store has stopped (for example after a failed sync): only a start can check the disk, so
    a supervisor should restart the process. ``site`` adds pages to the web port.
    Standard output gets the start line, standard error warnings and errors; what cannot be written there
    changes nothing else. A second signal ends the process at once, which is safe: nothing receipted is lost.
    """
    out, err = Output(sys.stdout), Output(sys.stderr)
    _log_to(err)
    _raise_descriptor_limit()
    gc.disable()
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_main(BrokerServer(settings, web_on_demand=True, site=site), out, err))
    except StoreError as error:
        _say(f"geminga: {error}", err)
        return EXIT_STORE
    except PulsarException as error:
        _say(f"geminga: {error}", err)
        return EXIT_USAGE
    except OSError as error:
        _say(f"geminga: {error}", err)
        return EXIT_FAILED
    finally:
        gc.enable()
        end_event_loop(loop)


def _say(line: str, stream: Stream) -> None:
    stream.write(f"{line}\n")


async def _main(server: BrokerServer, out: Stream, err: Stream) -> int:
    loop = asyncio.get_running_loop()
    with _asked_to_stop(loop, err) as asked:
        return await _serve(server, loop, asked, out, err)


async def _serve(
    server: BrokerServer, loop: asyncio.AbstractEventLoop, asked: asyncio.Event, out: Stream, err: Stream
) -> int:
    await server.start()
    _announce(server, out, err)
    untangle_transports()
    collector = GarbageCollectorPacing(loop)
    loop.call_later(_COLLECT_AFTER_SECONDS, collector.start)
    await _first_of(asked, server.store_stopped)
    collector.stop()
    await server.stop()
    if server.store_failure is not None:
        _say(f"geminga: the store had stopped: {server.store_failure}", err)
        return EXIT_STORE
    kept = "" if server.settings.memory else ", everything receipted is kept"
    _say(f"geminga: stopped{kept}", out)
    return EXIT_OK


async def _first_of(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


@contextlib.contextmanager
def _asked_to_stop(loop: asyncio.AbstractEventLoop, err: Stream) -> Iterator[asyncio.Event]:
    """Return an event that the first SIGINT or SIGTERM sets; the second exits. `_IGNORED` are logged.

    The loop's own handlers run on the loop alone, which closing the store blocks.
    """
    asked, signalled = asyncio.Event(), False

    def on_signal(number: int, _: object) -> None:
        nonlocal signalled
        if signalled:
            os._exit(128 + number)
        signalled = True
        loop.call_soon_threadsafe(stop, signal.Signals(number).name)

    def stop(name: str) -> None:
        asked.set()
        _say(f"geminga: {name}, stopping", err)

    def ignore(number: int, _: object) -> None:
        loop.call_soon_threadsafe(log.info, "%s is ignored", signal.Signals(number).name)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    before |= {number: signal.signal(number, ignore) for number in _IGNORED}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            # None: not set by Python, and it cannot set it
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _announce(server: BrokerServer, out: Stream, err: Stream) -> None:
    """Print the start line, the durability of receipts, and damage that recovery found."""
    settings = server.settings
    where = "in memory" if settings.memory else str(settings.data_dir)
    own = settings.own_addresses()
    parts = ["geminga broker ready: " + " ".join(url for url in (own.pulsar, own.pulsar_tls) if url)]
    if settings.admin_url:
        parts.append("admin " + " ".join(url for url in (own.http, own.https) if url))
    parts.append(f"store {where}")
    _say("  ".join(parts), out)
    if server.site is not None and settings.admin_url:
        _say(f"console: {settings.admin_url}/", out)
    if settings.authenticates and not settings.super_user_roles:
        _say("WARNING: no role is a super user: nobody can make tenants (--super-user)", err)
    elif not settings.authenticates and settings.is_beyond_loopback:
        _say(
            f"WARNING: anonymous: whoever reaches {settings.host or '0.0.0.0'} may read, write and delete "
            "everything; nobody is asked who they are",
            err,
        )
    if settings.memory:
        _say("WARNING: kept in memory only; nothing survives this process", err)
    elif settings.sync == "always":
        _say(f"sync always: {SYNC_PROMISES['always']}", out)
    else:
        _say(f"WARNING: sync {settings.sync}: {SYNC_PROMISES[settings.sync]}", err)
    disk = server.broker.disk.start_line()
    if disk:
        _say(disk, out)
    for line in server.recovery_report():
        _say(f"WARNING: {line}", err)


def _log_to(err: Stream) -> None:
    root = logging.getLogger()
    if not root.handlers:
        logging.basicConfig(
            stream=err, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        logging.getLogger("aiohttp").setLevel(logging.WARNING)


def _raise_descriptor_limit() -> None:
    """Raise the soft limit of file descriptors: the usual 1,024 is too low for connections and log files."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
