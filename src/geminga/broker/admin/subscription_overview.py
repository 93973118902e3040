"""Overview of all subscriptions of the broker, one row each, the most urgent first.

A *scan* visits all subscriptions: those of topics in memory have counters; the backlogs of the others are in
`geminga.broker.topics.resting`. It works a few milliseconds at a time and takes at most a hundredth of a
core; partitions of one topic share a row. Cells and sentence of the rows shown are computed at each request.

An overview is cached for `KEPT_SECONDS` after its last request.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any, Final, NamedTuple

from geminga.broker.admin.facts import consumer_type, facts_of, rate_published, trouble
from geminga.broker.admin.http import stepwise
from geminga.broker.core import Broker
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.shared import SharedDispatcher
from geminga.broker.delivery.subscription import COMPACTION, PersistentSubscription
from geminga.broker.runtime.cooperative import STEP_SECONDS
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import Topic
from geminga.diagnosis.conclude import Trouble, diagnose
from geminga.errors import InvalidTopicName
from geminga.ids import TopicName

Json = dict[str, Any]


class Visibility(NamedTuple):
    """Topics that a role may see: ``sees`` is called with each topic's name."""

    role: str
    sees: Callable[[str], bool]


SHARE_MAX: Final = 0.008
"""Largest share of a core for scans while clients request them; a page itself takes a fifth of that."""
SEARCH_RESTS: Final = 4
"""Pause between steps of all searches, in durations of a step; more search texts make them no faster."""
AGAIN_SECONDS_MIN: Final = 2.0
WAIT_SECONDS: Final = 0.12
"""Longest wait of a request for a scan; then it is answered with the rows known so far."""
KEPT_SECONDS: Final = 60.0
BOARDS_MAX: Final = 4
"""Searches whose overviews are cached."""
LINES_MAX: Final = 100_000
"""Rows of an overview; of more subscriptions those with less trouble are left out, which the page states."""
SORTED_ASIDE: Final = 5_000
"""More rows than this are sorted on another thread."""
ROLES_MAX: Final = 8
"""Roles whose visible topics are cached until the next scan."""
ROWS_MAX: Final = 200
PARTITIONS_SUMMED_MAX: Final = 128
"""Partitions of a row that are read for its cells."""
_NAMES_AT_ONCE: Final = 128
SORTS: Final = ("trouble", "backlog", "unacked", "consumers", "in", "out", "name")


@dataclass(slots=True, eq=False)
class SubscriptionRow:
    """One subscription, of all partitions of a topic. ``worst`` is the partition in most trouble, by name."""

    topic: str
    subscription: str
    level: Trouble = Trouble.NOTHING_WAITS
    entries: int = 0
    waiting: int = 0
    unacked: int = 0
    consumers: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    parts: list[str] = field(default_factory=list)
    worst: str = ""
    worst_waiting: int = -1

    def add(self, topic: str, level: Trouble, entries: int, waiting: int) -> None:
        """Add a partition. ``waiting``: messages in its backlog, or entries if it is not in memory."""
        self.parts.append(topic)
        self.entries += entries
        self.waiting += waiting
        if (level, waiting) > (self.level, self.worst_waiting):
            self.worst, self.worst_waiting = topic, waiting
        self.level = max(self.level, level)


_KEYS: Final[dict[str, Callable[[SubscriptionRow], Any]]] = {
    "trouble": lambda line: (-line.level, -line.waiting, line.topic, line.subscription),
    "backlog": lambda line: (-line.waiting, line.topic, line.subscription),
    "unacked": lambda line: (-line.unacked, line.topic, line.subscription),
    "consumers": lambda line: (-line.consumers, line.topic, line.subscription),
    "in": lambda line: (-line.rate_in, line.topic, line.subscription),
    "out": lambda line: (-line.rate_out, line.topic, line.subscription),
    "name": lambda line: (line.topic, line.subscription),
}


@dataclass(slots=True)
class SubscriptionScan:
    """Result of one scan of all subscriptions; ``is_complete`` once it is done."""

    lines: dict[tuple[str, str], SubscriptionRow] = field(default_factory=dict)
    subscriptions: int = 0
    left_out: int = 0
    topics: int = 0
    backlog: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    seconds: float = 0.0
    """CPU time of the scan."""
    made_ms: int = 0
    is_complete: bool = False
    orders: dict[str, list[SubscriptionRow]] = field(default_factory=dict)
    sights: dict[str, dict[str, bool]] = field(default_factory=dict)

    @property
    def levels(self) -> list[int]:
        """Return the number of rows of each level of trouble."""
        counts = Counter(line.level for line in self.lines.values())
        return [counts[level] for level in Trouble]


class SubscriptionOverview:
    """Cached overviews by search. ``now`` is the monotonic clock."""

    keys = _KEYS
    """Sort keys of rows by the name of the order."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._boards: OrderedDict[str, OverviewCache] = OrderedDict()
        self._forget: asyncio.TimerHandle | None = None
        self._pace = ScanPacing()

    async def page(
        self,
        *,
        search: str,
        sort: str,
        reverse: bool,
        level: int | None,
        offset: int,
        limit: int,
        sight: Visibility | None,
    ) -> Json:
        """Return one page of the overview; with its totals if ``sight`` is None (all topics visible)."""
        board = self._board(search)
        survey = await board.survey()
        order = await _ordered(survey, sort, self.keys[sort])
        if level is not None:
            order = [line for line in order if line.level == level]
        if reverse:
            order = order[::-1]
        shown = order if sight is None else await _seen(survey, order, sight)
        rows = []
        async for line in stepwise(shown[offset : offset + min(limit, ROWS_MAX)]):
            # A permission may have been taken away since the survey.
            if sight is None or sight.sees(line.topic):
                rows.append(self._row(line, survey))
        return {
            "rows": rows,
            "offset": offset,
            "matching": len(shown),
            "totals": {
                "subscriptions": survey.subscriptions,
                "leftOut": survey.left_out,
                "topics": survey.topics,
                "levels": survey.levels,
                "entriesInBacklog": survey.backlog,
                "msgRateIn": survey.rate_in,
                "msgRateOut": survey.rate_out,
            } if sight is None else None,
            "complete": survey.is_complete,
            "surveyedAt": survey.made_ms,
            "surveySeconds": round(survey.seconds, 4),
            "now": self._broker.scheduler.now_ms,
        }  # fmt: skip

    def _board(self, search: str) -> OverviewCache:
        search = " ".join(search.lower().split())
        board = self._boards.get(search)
        if board is None:
            pace = self._pace if search else None
            board = self._boards[search] = self._cache(search, pace)
        self._boards.move_to_end(search)
        if "" in self._boards:
            self._boards.move_to_end("")  # searches never evict the overview of all
        while len(self._boards) > BOARDS_MAX:
            self._boards.popitem(last=False)[1].close()
        if self._forget is not None:
            self._forget.cancel()
        self._forget = asyncio.get_running_loop().call_later(KEPT_SECONDS, self.close)
        return board

    def _cache(self, search: str, pace: ScanPacing | None) -> OverviewCache:
        return OverviewCache(self._broker, search, pace)

    def close(self) -> None:
        """Drop all cached overviews."""
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        if self._forget is not None:
            self._forget.cancel()
            self._forget = None

    # --- rows ---
    def _row(self, line: SubscriptionRow, survey: SubscriptionScan) -> Json:
        """Return the cells of a row at present."""
        now = self._broker.scheduler.now
        row: Json = {
            "topic": line.topic,
            "subscription": line.subscription,
            "partitions": len(line.parts) if line.parts and line.parts[0] != line.topic else 0,
            "worst": line.worst or line.parts[0],
            "parts": line.parts[:PARTITIONS_SUMMED_MAX],
            "runs": runs(line.subscription),
        }
        found = [self._found(text, line.subscription) for text in line.parts[:PARTITIONS_SUMMED_MAX]]
        awake = [pair for pair in found if pair is not None]
        if not awake:
            unknown = "is still being read" if not survey.is_complete else ""
            if not unknown and self._broker.topics.resting.not_listed:
                unknown = "is none of the largest"
            return row | _resting_row(line, unknown)
        messages = size = entries = unacked = delayed = holes = 0
        members: set[tuple[str | int, str]] = set()
        """Consumers by name and connection: one consumer has a part on each partition."""
        rate_in = rate_out = 0.0
        oldest, level, worst = -1, Trouble.NOTHING_WAITS, awake[0]
        kind, durable = "", True
        for topic, subscription in awake:
            rate_in += rate_published(topic, now)
            rate_out += sum(rate_delivered(each, now) for each in subscription.consumers)
            members |= {(each.name or each.consumer_id, each.peer.address) for each in subscription.consumers}
            kind = kind or consumer_type(subscription)
            durable = subscription.durable
            if not isinstance(subscription, PersistentSubscription) or not isinstance(topic, PersistentTopic):
                continue
            own_messages, own_size = subscription.backlog_tally()
            messages, size = messages + own_messages, size + own_size
            entries += subscription.backlog
            oldest = max(oldest, subscription.oldest_age_seconds)
            holes += subscription.cursor.hole_count()
            dispatcher = subscription.dispatcher
            if isinstance(dispatcher, SharedDispatcher):
                unacked += dispatcher.unacked_messages
                delayed += dispatcher.delayed_size
            else:
                unacked += sum(map(subscription.held_by, subscription.consumers))
            now_level = trouble(topic, subscription)
            if now_level > level:
                level, worst = now_level, (topic, subscription)
        row |= {
            "awake": True, "type": kind, "durable": durable, "consumers": len(members),
            "messages": messages, "bytes": size,
            "entries": entries, "oldestSeconds": oldest, "unacked": unacked, "delayed": delayed,
            "holes": holes,
            "rateIn": rate_in, "rateOut": rate_out, "trouble": level, "worst": worst[0].text,
            "runs": runs(line.subscription, _metadata(awake[0][1])),
        }  # fmt: skip
        return row | self._sentence(*worst)

    def _sentence(self, topic: Topic, subscription: Any) -> Json:
        if not isinstance(subscription, PersistentSubscription) or not isinstance(topic, PersistentTopic):
            return {"sentence": "nothing is kept: who is not connected misses it", "kind": "non-persistent"}
        found = diagnose(facts_of(topic, subscription, self._broker.disk.refusal))
        return {"sentence": found.sentence, "kind": found.kind}

    def _found(self, text: str, subscription: str) -> tuple[Topic, Any] | None:
        """The topic and its subscription, if they are in memory."""
        try:
            topic = self._broker.topics.in_memory(TopicName.parse(text))
        except InvalidTopicName:
            return None
        found = None if topic is None else topic.subscriptions.get(subscription)
        return None if topic is None or found is None else (topic, found)


def _resting_row(line: SubscriptionRow, unknown: str) -> Json:
    """Return the cells of a row whose topics are not in memory and so have no consumers. ``unknown`` says why
    a backlog may be unknown; it is empty where all are known."""
    waits = line.entries > 0
    sentence = "everything is acknowledged; the topic is not in memory"
    if waits:
        sentence = "no consumer is connected, and nothing is published: the topic is not in memory"
    elif unknown:
        sentence = f"the topic is not in memory, and its backlog {unknown}"
    count = -1 if waits or unknown else 0
    return {
        "awake": False, "type": "", "durable": True, "consumers": 0, "messages": count, "bytes": count,
        "entries": line.entries, "oldestSeconds": -1, "unacked": 0, "delayed": 0,
        "holes": 0, "rateIn": 0.0, "rateOut": 0.0, "trouble": line.level,
        "kind": "nobody-connected" if waits else "", "sentence": sentence,
    }  # fmt: skip


async def _ordered(survey: SubscriptionScan, sort: str, key: Callable[[Any], Any]) -> list[SubscriptionRow]:
    order = survey.orders.get(sort)
    if order is None:
        lines = list(survey.lines.values())
        if len(lines) > SORTED_ASIDE:
            order = await asyncio.get_running_loop().run_in_executor(None, lambda: sorted(lines, key=key))
        else:
            order = sorted(lines, key=key)
        if survey.is_complete:
            survey.orders[sort] = order
    return order


async def _seen(
    survey: SubscriptionScan, order: list[SubscriptionRow], sight: Visibility
) -> list[SubscriptionRow]:
    """Return the rows that a role may see, in steps; each topic is checked once per scan."""
    known = survey.sights.setdefault(sight.role, {})
    if len(survey.sights) > ROLES_MAX:
        survey.sights = {sight.role: known}
    shown = []
    async for line in stepwise(order):
        if line.topic not in known:
            known[line.topic] = sight.sees(line.topic)
        if known[line.topic]:
            shown.append(line)
    return shown


def rate_delivered(consumer: Consumer, now: float) -> float:
    """Return the messages per second that are delivered to a consumer."""
    return consumer.rates_now(now)[0]


_PARTITION: Final = re.compile(r"(?<=[^/])-partition-(?:0|[1-9][0-9]*)\Z")
"""Suffix of a partition's name, as `TopicName` recognizes it."""


def base_of(topic: str) -> str:
    """Return the name of the partitioned topic of a partition; any other name is returned unchanged."""
    found = _PARTITION.search(topic)
    return topic if found is None else topic[: found.start()]


def runs(subscription: str, metadata: Mapping[str, str] | None = None) -> str:
    """Return ``mirror`` or ``function`` for a subscription of one, else nothing. Functions are known by their
    default subscription, ``tenant/namespace/name``, and by the ``metadata`` of a consumer."""
    if subscription.startswith("geminga-mirror."):
        return "mirror"
    is_function = subscription.count("/") == 2 or (metadata or {}).get("application") == "pulsar-function"
    return "function" if is_function else ""


def matches(words: Sequence[str], topic: str, subscription: str, kind: str) -> bool:
    """Return whether topic and subscription contain all words; ``is:function`` and ``is:mirror`` stand for
    what `runs` returns."""
    if not words:
        return True
    text = f"{topic} {subscription}".lower()
    return all(word[3:] == kind if word.startswith("is:") else word in text for word in words)


def _metadata(subscription: Any) -> Mapping[str, str] | None:
    return next((each.metadata for each in subscription.consumers), None)


def _most_urgent(lines: dict[tuple[str, str], SubscriptionRow]) -> dict[tuple[str, str], SubscriptionRow]:
    """Return half of `LINES_MAX` rows: those with the most trouble, of these the longest backlogs."""
    return dict(nlargest(LINES_MAX // 2, lines.items(), key=lambda each: (each[1].level, each[1].waiting)))


class ScanPacing:
    """Time of the next step, shared by all searches, cancelled ones included."""

    def __init__(self) -> None:
        self.free_at = 0.0


class OverviewCache:
    """The scans of one search: the last complete one, and one in progress."""

    row_type: type[SubscriptionRow] = SubscriptionRow

    def __init__(self, broker: Broker, search: str, pace: ScanPacing | None = None) -> None:
        """``pace`` is shared by the searches that are scanned step by step, with pauses."""
        self._broker = broker
        self._pace = pace
        self._words = search.lower().split()
        self._last: SubscriptionScan | None = None
        self._task: asyncio.Task[None] | None = None
        self._next: SubscriptionScan = SubscriptionScan()
        self._not_before = 0.0

    async def survey(self) -> SubscriptionScan:
        """Return the newest scan; the first one after a moment, complete or not."""
        if self._task is None and time.monotonic() >= self._not_before:
            self._next = SubscriptionScan()
            self._task = asyncio.get_running_loop().create_task(self._run(self._next))
        if self._last is None and self._task is not None:
            await asyncio.wait({self._task}, timeout=WAIT_SECONDS)
        return self._last or self._next

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, survey: SubscriptionScan) -> None:
        try:
            await self._rest(0.0)
            began, worked = time.monotonic(), time.thread_time()
            for _ in self._walk(survey):
                too_many = len(survey.lines) > LINES_MAX
                if not too_many and time.monotonic() - began < STEP_SECONDS:
                    continue
                took = time.thread_time() - worked
                survey.seconds += took
                if too_many:
                    loop, lines = asyncio.get_running_loop(), survey.lines
                    survey.lines = await loop.run_in_executor(None, _most_urgent, lines)
                    survey.left_out += len(lines) - len(survey.lines)
                await self._rest(took)
                began, worked = time.monotonic(), time.thread_time()
            survey.seconds += time.thread_time() - worked
            survey.is_complete = self._broker.topics.resting.is_complete
            survey.made_ms = self._broker.scheduler.now_ms
            survey.orders.clear()
            self._last = survey
        finally:
            pause = AGAIN_SECONDS_MIN if survey.is_complete else WAIT_SECONDS
            pause = max(pause, survey.seconds / SHARE_MAX)
            self._not_before = time.monotonic() + pause
            self._task = None

    async def _rest(self, took: float) -> None:
        """Pause while others are served."""
        pace = self._pace
        if pace is None:
            await asyncio.sleep(0)
            return
        pace.free_at = max(pace.free_at, time.monotonic()) + SEARCH_RESTS * took
        # Nothing is awaited between this check and the next step, so only one waiter continues.
        await asyncio.sleep(0)
        while (seconds := pace.free_at - time.monotonic()) > 0:
            await asyncio.sleep(seconds)

    def _walk(self, survey: SubscriptionScan) -> Iterator[None]:
        """Scan all subscriptions; yields now and then."""
        now = self._broker.scheduler.now
        topics = self._broker.topics
        for number, topic in enumerate(topics.in_memory_now(), 1):
            if number % 256 == 0:
                yield None
            if not topic.subscriptions and not topic.access.producers:
                continue
            survey.topics += 1
            rate_in = rate_published(topic, now) if topic.access.producers else 0.0
            survey.rate_in += rate_in
            for position, (name, subscription) in enumerate([*topic.subscriptions.items()]):
                if position % 4 == 3:
                    yield None
                kind = runs(name, _metadata(subscription)) if self._words else ""
                if name != COMPACTION and self._is_wanted(topic.text, name, kind):
                    self._add_awake(survey, topic, subscription, rate_in, now)
            yield None
        resting, in_memory = topics.resting, topics.in_memory
        for number, key in enumerate(self._broker.store.keys.names(_CURSORS), 1):
            text, _, name = key[len(_CURSORS) :].partition("\x00")
            if name != COMPACTION and not in_memory(text) and self._is_wanted(text, name, runs(name)):
                entries = resting.backlog(text, name)
                level = Trouble.IDLE if entries else Trouble.NOTHING_WAITS
                self._line(survey, text, name).add(text, level, entries, entries)
                survey.backlog += entries
            if number % _NAMES_AT_ONCE == 0:
                yield  # skipping names that do not match takes time, too

    def _is_wanted(self, topic: str, subscription: str, kind: str) -> bool:
        return matches(self._words, topic, subscription, kind)

    def _line(self, survey: SubscriptionScan, topic: str, subscription: str) -> SubscriptionRow:
        base = base_of(topic)
        line = survey.lines.get((base, subscription))
        if line is None:
            line = survey.lines[base, subscription] = self.row_type(base, subscription)
            survey.subscriptions += 1
        return line

    def _add_awake(
        self, survey: SubscriptionScan, topic: Topic, subscription: Any, rate_in: float, now: float
    ) -> None:
        line = self._line(survey, topic.text, subscription.name)
        level, entries, waiting = Trouble.NOTHING_WAITS, 0, 0
        if isinstance(subscription, PersistentSubscription) and isinstance(topic, PersistentTopic):
            level, entries = trouble(topic, subscription), subscription.backlog
            waiting = subscription.backlog_tally()[0] if entries else 0
            dispatcher = subscription.dispatcher
            if isinstance(dispatcher, SharedDispatcher):
                line.unacked += dispatcher.unacked_messages
        line.add(topic.text, level, entries, waiting)
        line.rate_in += rate_in
        if subscription.consumers:
            line.consumers += len(subscription.consumers)
            rate = sum(rate_delivered(each, now) for each in subscription.consumers)
            line.rate_out += rate
            survey.rate_out += rate
        survey.backlog += entries


_CURSORS: Final = "cursor/"
