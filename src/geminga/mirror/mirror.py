"""`Mirror`: copies topics of one cluster to another until it is stopped."""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, TypeVar

from geminga.client.admin.exchange import parse_admin_url
from geminga.client.handles.web_address import find_admin_url
from geminga.client.io.long_running import LongRunning
from geminga.client.observe.metrics_port import serve
from geminga.errors import AdminError, InvalidConfiguration, NotConnected, PulsarException
from geminga.ids import TopicName
from geminga.mirror.cluster_pair import ClusterPair, PartitionState
from geminga.mirror.cursors import IN_USE, CursorMirror
from geminga.mirror.pairing import MirrorRefused, subscription_of
from geminga.mirror.partition import PartitionMirror
from geminga.mirror.patterns import MirrorPattern
from geminga.mirror.positions import NOWHERE, Position, parse_position
from geminga.mirror.schemas import SchemaMirror
from geminga.mirror.settings import MirrorSettings
from geminga.mirror.status import MirrorStatus, PartitionStatus, SubscriptionStatus
from geminga.mirror.topics import SourceTopic, TopicMaker, find_topics

INFINITY = float("inf")
T = TypeVar("T")

logger = logging.getLogger("geminga.mirror")

WINDOW_BYTES_MAX = 16 * 1024 * 1024
WINDOW_BYTES_MIN = 256 * 1024
LAG_SECONDS = 2.0
LAG_SECONDS_MAX = 60.0
"""Longest interval between lag queries for a partition that has no lag and receives nothing."""
QUIET_SECONDS = 0.05
"""Added interval per partition between checks of idle subscriptions."""
START_SECONDS_MAX = 60.0
"""Longest wait for a cluster that is not available when the mirror starts."""
LAST_LOOK_SECONDS = 5.0
"""Time limit of the wait for the final lags."""
BATCH_INDEX_ACKS = "acknowledgmentAtBatchIndexLevelEnabled"
_NOT_FOLLOWED = "subscriptions are not mirrored at present"
_OPENING_AT_ONCE = 32
_ROUND_SECONDS = 0.05
_REST = 4.0
"""Pause after a repeated request, as a multiple of the request's duration."""
_REST_OF_LOOKS = 50.0
"""Pause after a check of all partitions, as a multiple of the check's duration."""


class Mirror(LongRunning[MirrorStatus]):
    """A mirror of topics: `run` blocks, `start` and `close` work in the background. A mirror runs once.

    ::

        settings = MirrorSettings(source=Cluster(...), target=Cluster(...), topics=["public/default/.*"])
        with Mirror(settings) as mirror:
            mirror.wait_until_caught_up(timeout=600)
            print(mirror.status().line())
    """

    def __init__(
        self, settings: MirrorSettings, on_status: Callable[[MirrorStatus], None] | None = None
    ) -> None:
        """``on_status`` is called with the status, about every `LAG_SECONDS`, on the mirror's thread."""
        super().__init__("geminga-mirror")
        self.settings = settings
        self._on_status = on_status
        self._caught_up = threading.Event()
        self._run: _Run | None = None

    def run(self, *, signals: bool = True) -> MirrorStatus:
        """Mirror until `stop`, with ``once`` until everything is copied, with ``signals`` until Ctrl-C or
        SIGTERM; a second signal ends the process. Waits at the end for the receipts of entries in flight.

        Returns the final status. Raises errors of the start: `InvalidConfiguration`, `MirrorRefused`, errors
        of the clusters, and `AlreadyClosed` if the mirror has run before.
        """
        return super().run(signals=signals)

    def wait_until_caught_up(self, timeout: float | None = None) -> bool:
        """Wait until everything that the source had at the start is in the target, subscriptions included;
        return False if ``timeout`` seconds pass or the mirror ends before."""
        self._caught_up.wait(timeout)
        return self._run is not None and self._run.caught_up

    def status(self) -> MirrorStatus:
        """Return the status. May be called on any thread."""
        run = self._run
        if run is None:
            settings = self.settings
            return MirrorStatus(settings.source.service_url, settings.target.service_url, "", False)
        return run.status()

    def _has_ended(self) -> None:
        super()._has_ended()
        self._caught_up.set()

    # --- one run ------------------------------------------------------------------------------------

    async def _work(self) -> MirrorStatus:
        from geminga.asyncio import Admin, Client

        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            clients, admins = [], []
            sides = (("source", settings.source), ("target", settings.target))
            for side, cluster in sides:
                with _naming(side):
                    if cluster.admin_url is not None:
                        parse_admin_url(cluster.admin_url)  # before the wait for a cluster
                    client = Client(**cluster.client_arguments(), stats_interval_in_seconds=0)
                    stack.push_async_callback(_closed, client)
                clients.append(client)
            for (side, cluster), client in zip(sides, clients, strict=True):
                url = cluster.admin_url or await self._patiently(functools.partial(_admin_url, side, client))
                if url is None:
                    return self.status()
                with _naming(side):
                    admin = Admin(**replace(cluster, admin_url=url).admin_arguments())
                    stack.push_async_callback(admin.close)
                admins.append(admin)
            (source, target), (source_admin, target_admin) = clients, admins
            names = await self._patiently(lambda: _cluster_names(settings, source_admin, target_admin))
            if names is None:
                return self.status()
            run = _Run(
                self,
                await _warnings(settings, target_admin),
                ClusterPair(
                    source=source.context,
                    target=target.context,
                    source_admin=source_admin,
                    target_admin=target_admin,
                    source_name=names[0],
                    forwarded_to=names[1] if settings.forward else None,
                    mirror=settings.name or names[0],
                    on_mismatch=settings.on_mismatch,
                ),
            )
            if settings.metrics_port is not None:
                web = await serve(lambda: run.status().exposition(), settings.metrics_port)
                stack.callback(web.close)
            self._run = run
            await run.work(self._ready)
            return run.status()

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of ``ask``, retried while a cluster is starting; None if the mirror is
        stopped."""
        until = time.monotonic() + START_SECONDS_MAX
        is_logged = False
        while not self._stopping.is_set():
            try:
                return await ask()
            except PulsarException as error:
                if not error.retriable or _is_hopeless(error) or time.monotonic() >= until:
                    raise
                if not is_logged:
                    text = f"waiting for up to {until - time.monotonic():.0f} s: {error}"
                    logger.warning("%s", text)
                    if self._on_status is not None:
                        self._on_status(replace(self.status(), warnings=(text,)))
                is_logged = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 0.5)
        return None


def _is_hopeless(error: BaseException | None) -> bool:
    """Return whether a certificate or a host name is the cause: retrying does not help."""
    while error is not None:
        if isinstance(error, (ssl.SSLError, socket.gaierror)):
            return True
        error = error.__cause__ or error.__context__
    return False


async def _closed(client: Any) -> None:
    with contextlib.suppress(PulsarException):
        await client.close()


@contextlib.contextmanager
def _naming(side: str) -> Iterator[None]:
    """Prefix errors with the cluster that they come from, and name its option."""
    try:
        yield
    except PulsarException as error:
        option = "--from-admin-url" if side == "source" else "--to-admin-url"
        error.args = (f"the {side}: {error}".replace("--admin-url", option),)
        raise


async def _admin_url(side: str, client: Any) -> str:
    """Return the web address of a cluster, as `find_admin_url` does."""
    with _naming(side):
        return await find_admin_url(client.context)


async def _cluster_names(settings: MirrorSettings, source: Any, target: Any) -> tuple[str, str]:
    """Return the cluster names that mark messages."""
    names = []
    ends = (("source", settings.source_name, source), ("target", settings.target_name, target))
    for side, given, admin in ends:
        if given is not None:
            names.append(given)
            continue
        with _naming(side):
            clusters = [name for name in await admin.clusters.list() if name != "global"]
        if len(clusters) != 1 and (side == "source" or settings.forward):
            raise InvalidConfiguration(
                f"{admin.admin_url} knows the clusters {', '.join(clusters) or 'none'}: say which one it is, "
                "with --from-name or --to-name"
            )
        names.append("".join(clusters[:1]))
    if settings.forward and names[0] == names[1]:
        raise InvalidConfiguration(
            f"forward: both clusters are called {names[0]!r}, so that messages of the target cannot be "
            "recognised by their cluster's name; give different names, with --from-name or --to-name"
        )
    return names[0], names[1]


async def _warnings(settings: MirrorSettings, target: Any) -> tuple[str, ...]:
    """Return what users of the target will notice of its configuration, and log it."""
    if not settings.subscriptions:
        return ()
    harm = "messages that were acknowledged singly in a batch of the source may be delivered again"
    try:
        is_kept = (await target.brokers.configuration()).get(BATCH_INDEX_ACKS)
    except AdminError as error:
        text = f"the target does not show its {BATCH_INDEX_ACKS} ({error}): where it is false, {harm}"
    else:
        if is_kept == "true":
            return ()
        text = f"the target has {BATCH_INDEX_ACKS}={is_kept}: {harm}; set it to true on its brokers first"
    logger.warning("%s", text)
    return (text,)


class _Part:
    """A partition with the progress of its subscriptions and its lag."""

    def __init__(self, ends: ClusterPair, topic: str, schemas: SchemaMirror) -> None:
        self.mirror = PartitionMirror(ends, topic, schemas)
        self.cursors = CursorMirror(ends, self.mirror)
        self.task: asyncio.Task[None] | None = None
        self.lag = -1
        self.goal: Position | None = None
        """The source's newest entry when the partition was found."""
        self.followed = False
        """True if the subscriptions were mirrored after the goal was reached."""
        self.lag_known: tuple[Position, float] | None = None
        """Position of the partition at the last lag query, and the time of the query."""
        self._followed_at = (-INFINITY, NOWHERE)
        self._pause = 0.0

    @property
    def has_ended(self) -> bool:
        return self.mirror.state is PartitionState.FAILED

    def wants_following(self, now: float, seconds: float) -> bool:
        """Return whether to mirror the subscriptions now: when the goal is reached, and when something
        happens."""
        at, done = self._followed_at
        return (
            now >= at + self._pause
            or (self.mirror.done != done and now >= at + seconds)
            or (not self.followed and self.at_goal)
        )

    def was_followed(self, now: float, seconds: float, seconds_max: float, *, moved: bool) -> None:
        """Set the interval to the next check, which grows until something changes (``moved``)."""
        if moved or self.mirror.done != self._followed_at[1]:
            self._pause = seconds
        else:
            self._pause = max(seconds, min(2 * self._pause, seconds_max))
        self._followed_at = now, self.mirror.done

    def wants_look(self, now: float, state: PartitionState = PartitionState.COPYING) -> bool:
        """Return whether the lag may have changed."""
        if self.mirror.state is not state:
            return False
        if self.lag != 0 or self.lag_known is None:
            return True
        done, at = self.lag_known
        return self.mirror.done != done or now >= at + LAG_SECONDS_MAX

    @property
    def at_goal(self) -> bool:
        if self.goal is None or self.mirror.state is not PartitionState.COPYING:
            return False
        # Undelivered entries (a broker's markers, skipped messages) are never done, and not waited for.
        return self.goal == NOWHERE or self.mirror.done >= self.goal or (self.lag == 0 and self.mirror.rests)


class _Run:
    """One run of a mirror, on its event loop."""

    def __init__(self, mirror: Mirror, warnings: tuple[str, ...], ends: ClusterPair) -> None:
        self.settings = settings = mirror.settings
        self.warnings = warnings
        self.caught_up = False
        self._mirror = mirror
        self._ends = ends
        self._patterns = [MirrorPattern.parse(text) for text in settings.topics]
        self._maker = TopicMaker(ends.source_admin, ends.target_admin, policies=settings.policies)
        self._parts: dict[str, _Part] = {}
        self._schemas: dict[str, SchemaMirror] = {}
        self._refused: dict[str, str] = {}
        self._known: dict[str, int] = {}
        self._unmatched: tuple[str, ...] = ()
        self._troubles: dict[str, str] = {}
        """Faults of jobs beside the copying, by their harm, while they last."""
        self._first: set[str] | None = None
        """Topics that existed at the start."""

    async def work(self, ready: threading.Event) -> None:
        until = asyncio.create_task(self._mirror._stopping.wait())
        first = asyncio.ensure_future(self._mirror._patiently(self._discover))
        try:
            await asyncio.wait({first, until}, return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                first.result()
                self._first = set(self._parts)
                ready.set()
                await self._keep(until)
        finally:
            for task in (first, until):
                task.cancel()
            await asyncio.wait({first, until})
            await self._end()
            with contextlib.suppress(PulsarException, OSError, TimeoutError):
                async with asyncio.timeout(LAST_LOOK_SECONDS):
                    await self._ask_lags(PartitionState.STOPPED)
        await self._show()

    async def _keep(self, until: asyncio.Task[Any]) -> None:
        """Run discovery, status and subscriptions until ``until`` is done or nothing is left to do."""
        keepers: list[asyncio.Task[Any]] = [
            asyncio.create_task(
                self._every(self.settings.discovery_seconds, "no search for new topics", self._discover)
            ),
            asyncio.create_task(self._every(LAG_SECONDS, "the lag is not known", self._look)),
            # Separate from `_look`, which waits while the source does not answer.
            asyncio.create_task(self._every(LAG_SECONDS, "no status", self._show)),
            asyncio.create_task(self._follow_always()),
        ]
        try:
            while not until.done():
                began = time.monotonic()
                if not self.caught_up and self._all_there():
                    self.caught_up = True
                    self._mirror._caught_up.set()
                if self.settings.once and (self.caught_up or self._nothing_moves()):
                    break
                rest = max(_ROUND_SECONDS, (time.monotonic() - began) * _REST_OF_LOOKS)
                await asyncio.wait({until}, timeout=1.0 if self.caught_up else rest)
        finally:
            for task in keepers:
                task.cancel()
            await asyncio.wait(keepers)

    def _all_there(self) -> bool:
        first = self._first or ()
        parts = [part for name in first if (part := self._parts.get(name)) is not None]
        return not self._refused and all(self._has_all(part) for part in parts)

    def _has_all(self, part: _Part) -> bool:
        return part.at_goal and (part.followed or not self.settings.subscriptions)

    def _nothing_moves(self) -> bool:
        """Return whether no partition can progress without a decision of the user."""
        return all(part.has_ended or self._has_all(part) for part in self._parts.values())

    async def _end(self) -> None:
        tasks = [part.task for part in self._parts.values() if part.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _every(self, seconds: float, harm: str, call: Callable[[], Awaitable[float | None]]) -> None:
        """Run ``call`` periodically. It returns the seconds that set the pause; None: its whole duration.
        ``harm``: what its failure means."""
        pause = seconds
        while True:
            await asyncio.sleep(pause)
            started, took = time.monotonic(), None
            try:
                took = await call()
                self._troubles.pop(harm, None)
            except (PulsarException, OSError) as error:
                self._failed(harm, error)
            except Exception:
                logger.exception("unexpected error in the mirror")
            pause = max(seconds, (time.monotonic() - started if took is None else took) * _REST)

    def _failed(self, harm: str, error: Exception) -> None:
        """Note what does not work; log it when it begins."""
        text = f"{harm}: {error}"
        logger.log(logging.DEBUG if self._troubles.get(harm) == text else logging.WARNING, "%s", text)
        self._troubles[harm] = text

    # --- topics ---------------------------------------------------------------------------------------

    async def _discover(self) -> float:
        """Find new and deleted topics; return the duration of the query alone. Setting up new topics happens
        once and needs no pause: another mirror may create thousands one after the other."""
        began = time.monotonic()
        with _naming("source"):
            found = await find_topics(self._ends.source_admin, self._patterns, self._known)
        took = time.monotonic() - began
        self._unmatched = tuple(
            text
            for text, pattern in zip(self.settings.topics, self._patterns, strict=True)
            if not any(pattern.matches(one.topic) for one in found)
        )
        there = {name for one in found for name in one.names()}
        for name in [name for name in self._parts if name not in there]:
            part = self._parts.pop(name)
            self._known.pop(str(TopicName.parse(name).base), None)
            logger.warning("%s was deleted in the source; its copy in the target stays", name)
            if part.task is not None:
                part.task.cancel()
        new = [one for one in found if self._known.get(str(one.topic)) != one.partitions]
        share = self.settings.memory_bytes // (4 * max(1, len(there)))
        self._ends.window_bytes = max(WINDOW_BYTES_MIN, min(WINDOW_BYTES_MAX, share))
        opening = asyncio.Semaphore(_OPENING_AT_ONCE)
        await asyncio.gather(*(self._add(one, opening) for one in new))
        return took

    async def _add(self, found: SourceTopic, opening: asyncio.Semaphore) -> None:
        name = str(found.topic)
        async with opening:
            try:
                await self._maker.make(found)
                schemas = self._schemas.get(name)
                if schemas is None:
                    first = found.names()[0]
                    schemas = SchemaMirror(self._ends.source, self._ends.target, first)
                    self._schemas[name] = schemas
                for topic in found.names():
                    if topic not in self._parts:
                        await self._open(topic, schemas)
            except MirrorRefused as error:
                self._refused[name] = str(error)
                logger.error("%s", error)
            except (PulsarException, OSError) as error:
                self._refused[name] = str(error)
                logger.warning("%s cannot be mirrored yet: %s", name, error)
                return
            else:
                self._refused.pop(name, None)
            self._known[name] = found.partitions

    async def _open(self, topic: str, schemas: SchemaMirror) -> None:
        part = _Part(self._ends, topic, schemas)
        stats = await self._ends.source_admin.topics.internal_stats(topic)
        newest = parse_position(stats.last_confirmed_entry)
        part.goal = newest if newest.entry >= 0 else NOWHERE
        if self.settings.subscriptions:
            await part.cursors.create()
        self._parts[topic] = part
        part.task = asyncio.create_task(part.mirror.run(), name=f"mirror {topic}")

    # --- subscriptions and figures ---------------------------------------------------------------------

    async def _follow_always(self) -> None:
        if not self.settings.subscriptions:
            return
        seconds = self.settings.subscription_seconds
        while True:
            began = time.monotonic()
            parts = [part for part in self._parts.values() if part.wants_following(began, seconds)]
            looked = time.monotonic()
            waits = any(not part.followed for part in parts)  # `wait_until_caught_up` may be waiting
            await self._follow(parts)
            rest = 0.0 if waits else (time.monotonic() - looked) * _REST
            await asyncio.sleep(max(_ROUND_SECONDS, rest, (looked - began) * _REST_OF_LOOKS))

    async def _follow(self, parts: list[_Part]) -> None:
        seconds = self.settings.subscription_seconds
        for part in parts:
            at_goal, moved = part.at_goal, True
            try:
                moved = await part.cursors.follow()
                part.followed |= at_goal and part.mirror.state is PartitionState.COPYING
                self._troubles.pop(_NOT_FOLLOWED, None)
            except NotConnected as error:
                logger.debug("subscriptions of %s are not mirrored yet: %s", part.mirror.topic, error)
            except (PulsarException, OSError) as error:
                self._failed(_NOT_FOLLOWED, error)
            except Exception:
                logger.exception("unexpected error with the subscriptions of %s", part.mirror.topic)
            part.was_followed(time.monotonic(), seconds, len(self._parts) * QUIET_SECONDS, moved=moved)

    async def _ask_lags(self, state: PartitionState) -> None:
        """Query the source for the lag of each partition in a state whose lag may have changed."""
        name, now = subscription_of(self._ends.mirror), time.monotonic()
        parts = {topic: part for topic, part in self._parts.items() if part.wants_look(now, state)}
        for topic in {str(TopicName.parse(one).base) for one in parts}:
            stats = await self._ends.source_admin.topics.stats(topic)
            for partition, one in (stats.partitions or {topic: stats}).items():
                part = self._parts.get(partition)
                subscription = one.subscriptions.get(name)
                if part is not None and subscription is not None and part.mirror.state is state:
                    part.lag, part.lag_known = subscription.msg_backlog, (part.mirror.done, now)

    async def _show(self) -> None:
        if self._mirror._on_status is not None:
            self._mirror._on_status(self.status())

    async def _look(self) -> None:
        await self._ask_lags(PartitionState.COPYING)
        for part in list(self._parts.values()):
            if part.mirror.wants_look or (part.lag > 0 and part.mirror.state is PartitionState.COPYING):
                try:
                    await part.mirror.look()
                except (PulsarException, OSError) as error:
                    logger.debug("the position of %s is not known: %s", part.mirror.topic, error)

    def status(self) -> MirrorStatus:
        settings = self.settings
        return MirrorStatus(
            source=settings.source.service_url,
            target=settings.target.service_url,
            name=self._ends.mirror,
            caught_up=self.caught_up,
            partitions=tuple(_status_of(part) for part in list(self._parts.values())),
            refused=tuple(self._refused.items()),
            unmatched=self._unmatched,
            warnings=(*self.warnings, *self._troubles.values()),
        )


def _status_of(part: _Part) -> PartitionStatus:
    mirror = part.mirror
    figures = asdict(mirror.counters)
    del figures["sessions"]
    return PartitionStatus(
        topic=mirror.topic,
        state=mirror.state.value,
        lag_entries=part.lag if mirror.error is None else -1,
        done=str(mirror.done) if mirror.done != NOWHERE else "",
        **figures,
        error="" if mirror.error is None else str(mirror.error),
        subscriptions=tuple(
            SubscriptionStatus(
                name, "" if one.marked is None else str(one.marked), IN_USE if one.in_use else ""
            )
            for name, one in sorted(dict(part.cursors.followed).items())
        ),
    )
