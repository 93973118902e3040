"""Broker as a process: implements ``geminga standalone``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from geminga._util.event_loops import new_event_loop
from geminga.broker.admin.health import live, ready
from geminga.broker.serving.garbage_collector import GarbageCollectorPacing
from geminga.broker.serving.health_port import STOPPING, HealthPort
from geminga.broker.serving.listening import bind
from geminga.broker.serving.output import LogOutput, log_to
from geminga.broker.serving.reloading import Reloader, Reread
from geminga.broker.serving.server import BrokerServer, end_event_loop
from geminga.broker.serving.systemd import keep_watchdog_alive, notify
from geminga.broker.settings import BrokerSettings, ProcessSettings
from geminga.errors import PulsarException, StoreError

if TYPE_CHECKING:
    from geminga.broker.admin.http import Site

log = logging.getLogger("geminga.broker")

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
_IGNORED: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that make other servers reopen files; their default would kill the process."""
_DESCRIPTORS_WANTED = 65_536
_COLLECT_AFTER_SECONDS: Final = 0.5
"""Delay of one garbage collection after the start, so that the first answer is not delayed."""


def run(
    settings: BrokerSettings,
    process: ProcessSettings | None = None,
    *,
    site: Site | None = None,
    reread: Reread | None = None,
) -> int:
    """Run the broker until SIGTERM or Ctrl-C and return the exit code.

    It exits when the store has stopped (for example after a failed sync): only a start can check the disk, so
    a supervisor should restart the process. ``site`` adds pages to the web port. On SIGHUP ``reread`` returns
    the settings to reload. Log lines that cannot be written to standard error are dropped. A second signal
    ends the process at once, which is safe: nothing receipted is lost.
    """
    process = process or ProcessSettings()
    output = LogOutput(sys.stderr)
    log_to(output, process)
    _raise_descriptor_limit()
    gc.disable()
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    server = BrokerServer(settings, site=site)
    reread = reread or (lambda: (settings, process))
    reloader = Reloader(server, settings, process, reread, lambda given: log_to(output, given))
    try:
        with _health_port(server, process.health_port, loop) as health:
            return loop.run_until_complete(_main(server, reloader.reload, health))
    except (PulsarException, OSError) as error:
        log.critical("%s", error)
        if isinstance(error, StoreError):
            return EXIT_STORE
        return EXIT_USAGE if isinstance(error, PulsarException) else EXIT_FAILED
    finally:
        gc.enable()
        end_event_loop(loop)


@contextlib.contextmanager
def _health_port(
    server: BrokerServer, port: int | None, loop: asyncio.AbstractEventLoop
) -> Iterator[HealthPort | None]:
    """Open the port of the health checks, if there is one, before the store, which may take long to open."""
    if port is None:
        yield None
        return
    listener = bind(server.settings.host, port, "health_port")
    health = HealthPort(listener, loop, lambda: live(server.broker), lambda: ready(server.broker))
    log.info("health checks: port %d", health.port)
    try:
        yield health
    finally:
        health.close()


async def _main(server: BrokerServer, reload: Callable[[], object], health: HealthPort | None = None) -> int:
    loop, began = asyncio.get_running_loop(), time.monotonic()
    with _asked_to_stop(loop, reload) as asked:
        await server.start()
        _announce(server, time.monotonic() - began)
        collector = GarbageCollectorPacing(loop)
        loop.call_later(_COLLECT_AFTER_SECONDS, collector.start)
        if health is not None:
            health.phase = ""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        notify("READY=1")
        keep_watchdog_alive(loop)
        await _first_of(asked, server.store_stopped)
        notify("STOPPING=1")
        if health is not None:
            health.phase = STOPPING
        collector.stop()
        await server.stop()
    if server.store_failure is not None:
        log.critical("stopped, because the store had stopped: %s", server.store_failure)
        return EXIT_STORE
    log.info("stopped%s", "" if server.settings.memory else ", everything receipted is kept")
    return EXIT_OK


async def _first_of(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


@contextlib.contextmanager
def _asked_to_stop(loop: asyncio.AbstractEventLoop, reload: Callable[[], object]) -> Iterator[asyncio.Event]:
    """Return an event that the first SIGINT or SIGTERM sets; the second exits. SIGHUP calls ``reload``.

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
        log.info("%s, stopping", name)

    def ignore(number: int, _: object) -> None:
        loop.call_soon_threadsafe(log.info, "%s is ignored", signal.Signals(number).name)

    def on_hangup(*_: object) -> None:
        loop.call_soon_threadsafe(reload)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    before |= {number: signal.signal(number, ignore) for number in _IGNORED}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, on_hangup)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            # None: not set by Python, and it cannot set it
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _announce(server: BrokerServer, seconds: float) -> None:
    """Log the start line, the durability of receipts, and damage that recovery found."""
    settings = server.settings
    where = "in memory" if settings.memory else str(settings.data_dir)
    own = settings.own_addresses()
    parts = ["geminga broker ready: " + " ".join(url for url in (own.pulsar, own.pulsar_tls) if url)]
    if settings.admin_url:
        parts.append("admin " + " ".join(url for url in (own.http, own.https) if url))
    parts.append(f"store {where}  started in {seconds:.2f} s")
    log.info("%s", "  ".join(parts))
    if server.site is not None and settings.admin_url:
        log.info("console: %s/", settings.admin_url)
    if settings.authenticates and not settings.super_user_roles:
        log.warning("no role is a super user, so tenants cannot be created (--super-user)")
    elif not settings.authenticates and settings.is_beyond_loopback:
        log.warning(
            "anonymous: every client that reaches %s may read, write and delete everything",
            settings.host or "0.0.0.0",
        )
    if settings.memory:
        log.warning("messages are kept in memory only and are lost when the broker stops")
    else:
        level = logging.INFO if settings.sync == "always" else logging.WARNING
        log.log(level, "sync %s: %s", settings.sync, SYNC_PROMISES[settings.sync])
    disk = server.broker.disk.start_line()
    if disk:
        log.info("%s", disk)
    for damage in server.store.damage.found:
        log.warning("%s", damage)


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
