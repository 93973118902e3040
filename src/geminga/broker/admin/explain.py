"""Why a subscription does not go on: what stands in the way of its next message, and what mends it.

`explain` looks at one subscription of a loaded topic and returns findings, those that stop messages first.
It changes nothing and reads at most a few entries, for their keys. `trouble` says in a few microseconds how
bad it is, without saying why: it is what ten thousand subscriptions are sorted by.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Any

from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.dispatcher import Dispatcher
from geminga.broker.delivery.key_shared import KeySharedDispatcher
from geminga.broker.delivery.shared import SharedDispatcher
from geminga.broker.delivery.single_active import SingleActiveDispatcher
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.entries import head_of, sticky_key
from geminga.broker.rates import iso_time
from geminga.broker.topics.persistent import PersistentTopic
from geminga.errors import StoreError

Json = dict[str, Any]
KEYS_SHOWN_MAX = 5
"""Blocked keys and damaged runs that are described one by one."""
CONSUMERS_TOLD_MAX = 100
"""Consumers that are described one by one: of a very large group the others are like them."""
_NO_DELAYS = '{"active": false}'
_LONG_SECONDS = 30
"""A consumer that has not asked for messages for so long, though it could, is called paused."""
HELD_SECONDS = 60
"""Messages that a consumer was sent, and of which none was acknowledged for so long, are worth a word."""


STUCK_SECONDS = 5
HOLE_SECONDS = 30


class Trouble(IntEnum):
    """How much a subscription needs somebody; sorted by it, the worst is the highest."""

    NOTHING_WAITS = 0
    MOVING = 1
    """Messages wait, and are on their way."""
    WATCH = 2
    """They are, but not all: holes, delays, damage, or nothing acknowledged for long."""
    STOPPED = 3
    """Messages do not come, or producers are stopped because of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing. ``kind`` is a fixed word for programs, ``text`` is for people."""

    kind: str
    stops: bool
    """Whether messages do not come because of it; otherwise it is worth knowing."""
    text: str
    mend: str = ""
    """The command or the act that mends it; empty where nothing is to be done."""
    details: Json = field(default_factory=dict)


def explain(topic: PersistentTopic, subscription: PersistentSubscription, disk: str = "") -> Json:
    """``{"topic", "subscription", "summary", "facts", "findings"}``; ``disk`` says why nobody publishes."""
    found = _Inquiry(topic, subscription)
    findings = [*found.findings()]
    if disk:
        mend = "free space: acknowledge or delete messages, or enlarge the disk; it goes on by itself"
        findings.append(Finding("disk", False, f"producers are stopped: {disk}", mend))
    findings = sorted(findings, key=lambda each: not each.stops)
    stopping = [each for each in findings if each.stops]
    if stopping:
        summary = stopping[0].text
    elif not subscription.backlog:
        summary = "everything is acknowledged"
    elif found.is_delivered:
        summary = "all messages are delivered, and wait to be acknowledged"
    else:
        summary = "nothing stands in the way: messages are on their way"
    level = trouble(topic, subscription)
    return {
        "topic": topic.text,
        "subscription": subscription.name,
        "summary": summary,
        "sentence": _sentence(subscription, findings, level) or summary,
        "trouble": level,
        "facts": found.facts(),
        "findings": [asdict(each) for each in findings],
    }


def _sentence(subscription: PersistentSubscription, findings: list[Finding], level: Trouble) -> str:
    """What is told where there is room for one sentence; empty for the summary."""
    for each in findings:
        if each.kind == "quota" and each.details.get("subscription") == subscription.name:
            return each.text
    stopping = [each for each in findings if each.stops and each.kind != "delayed"]
    if stopping and level < Trouble.WATCH:
        return "its consumers are busy: what waits is delivered as they ask for more"
    if stopping and level == Trouble.STOPPED:
        return ""
    if level == Trouble.WATCH:
        worth = [each.text for kind in _WORTH for each in findings if each.kind == kind]
        return worth[0] if worth else ""
    return ""


_WORTH = ("damaged-entry", "hole", "unacknowledged", "key-blocked", "delayed")
"""What is told in one sentence where nothing stops messages, the worst first."""


def trouble(topic: PersistentTopic, subscription: PersistentSubscription) -> Trouble:
    """How much trouble the subscription is in: what `explain` would find, by counters alone.

    What passes by itself is no trouble before it has lasted for `STUCK_SECONDS`, holes `HOLE_SECONDS`: of
    busy consumers one may be without permits whenever it is looked at.
    """
    if subscription.harmed or subscription.fenced or subscription.resetting:
        return Trouble.STOPPED
    quota = topic.quota_exceeded
    if quota is not None and quota.subscription == subscription.name:
        return Trouble.STOPPED
    if not subscription.backlog:
        return Trouble.NOTHING_WAITS
    dispatcher, cursor = subscription.dispatcher, subscription.cursor
    if dispatcher is None or dispatcher.reading_fails or _is_stuck(topic, subscription, dispatcher):
        return Trouble.STOPPED
    now_ms = subscription.agenda.now_ms
    has_holes = bool(cursor.holes) or bool(cursor.batches)
    if has_holes and now_ms - subscription.last_mark_ms >= HOLE_SECONDS * 1000:
        return Trouble.WATCH
    if any(stop > cursor.mark for _, stop in topic.ledger.damaged):
        return Trouble.WATCH
    if isinstance(dispatcher, SharedDispatcher) and dispatcher.delayed_size:
        return Trouble.WATCH
    if isinstance(dispatcher, KeySharedDispatcher) and dispatcher.draining_slots:
        return Trouble.WATCH
    if not _waits(topic, dispatcher) and _held_seconds(subscription) >= HELD_SECONDS:
        return Trouble.WATCH
    return Trouble.MOVING


def _is_stuck(topic: PersistentTopic, subscription: PersistentSubscription, dispatcher: Dispatcher) -> bool:
    """Whether something waits and nobody can be sent it, and not just for a moment."""
    before_ms = subscription.agenda.now_ms - STUCK_SECONDS * 1000
    if isinstance(dispatcher, SharedDispatcher) and dispatcher.blocked:
        return True
    if isinstance(dispatcher, KeySharedDispatcher):
        if dispatcher.unowned_size:
            return True
        if dispatcher.draining_slots and subscription.last_acked_ms <= before_ms:
            return True
    if not _waits(topic, dispatcher):
        return False
    receiving = subscription.consumers
    if isinstance(dispatcher, SingleActiveDispatcher):
        receiving = [] if dispatcher.active is None else [dispatcher.active]
    return all(not each.ready and (each.blocked or each.last_flow_ms <= before_ms) for each in receiving)


def _waits(topic: PersistentTopic, dispatcher: Dispatcher) -> bool:
    """Whether there is something that was not sent to anybody yet, or is to be sent again."""
    again = dispatcher.replay_size if isinstance(dispatcher, SharedDispatcher) else 0
    return dispatcher.read_offset < topic.ledger.confirmed or again > 0


def _held_seconds(subscription: PersistentSubscription) -> int:
    """For how long nothing was delivered or acknowledged, though something is open."""
    last_ms = max(subscription.last_acked_ms, *(each.last_consumed_ms for each in subscription.consumers), 0)
    return (subscription.agenda.now_ms - last_ms) // 1000 if last_ms else 0


class _Inquiry:
    def __init__(self, topic: PersistentTopic, subscription: PersistentSubscription) -> None:
        self.topic = topic
        self.subscription = subscription
        self.ledger = topic.ledger
        self.cursor = subscription.cursor
        self.now_ms = topic.agenda.now_ms
        self.place = f"{shlex.quote(topic.text)} {shlex.quote(subscription.name)}"

    @property
    def is_delivered(self) -> bool:
        """Whether every message has been sent to a consumer."""
        dispatcher = self.subscription.dispatcher
        if dispatcher is None or dispatcher.read_offset < self.ledger.confirmed:
            return False
        return not isinstance(dispatcher, SharedDispatcher) or not (
            dispatcher.replay_size or dispatcher.delayed_size
        )

    def facts(self) -> Json:
        subscription, cursor = self.subscription, self.cursor
        dispatcher = subscription.dispatcher
        tally = subscription.backlog_tally() or (-1, -1)
        read = dispatcher.read_offset if dispatcher is not None else cursor.mark
        return {
            "type": consumer_type(subscription),
            "consumers": len(subscription.consumers),
            "messagesInBacklog": tally[0],
            "bytesInBacklog": tally[1],
            "entriesInBacklog": subscription.backlog,
            "oldestBacklogMessageAgeSeconds": subscription.oldest_age_seconds,
            "messagesHeld": sum(map(subscription.held_by, subscription.consumers)),
            "ackHoles": cursor.hole_count(),
            "oldestOpenMessage": self._position(subscription.wanted_from),
            "readPosition": self._position(read),
            "entriesNotReadYet": max(0, self.ledger.confirmed - read),
            "redeliverUnackedAfterSeconds": subscription.compensation.after_seconds,
            "messagesPushedAgain": subscription.compensation.messages,
        }

    def findings(self) -> Iterator[Finding]:
        subscription = self.subscription
        if subscription.harmed:
            yield Finding(
                "harmed", True,
                f"the subscription's state was lost to damage in the store: {subscription.harmed}",
                f"geminga subscriptions reset {self.place} earliest",
            )  # fmt: skip
        elif subscription.fenced or subscription.resetting:
            yield Finding(
                "fenced", True, "the subscription is being reset or deleted: nobody can attach",
                f"wait a moment; if it stays so: geminga topics unload {shlex.quote(self.topic.text)}",
            )  # fmt: skip
        yield from self._quota()
        if not subscription.backlog:
            text = "no message waits: all are acknowledged"
            if self.topic.terminated:
                text += ", and the topic is terminated: none will come"
            yield Finding("caught-up", False, text)
            return
        yield from self._damage()
        if not subscription.consumers:
            since = iso_time(subscription.last_active_ms)
            yield Finding(
                "nobody-connected", True, f"no consumer is connected (since {since})",
                f"start the consumer; to look at what waits: geminga peek {self.place}",
                {"sinceTimestamp": subscription.last_active_ms},
            )  # fmt: skip
        yield from self._dispatching()
        yield from self._holes()
        yield from self._held()

    # --- the topic ---
    def _quota(self) -> Iterator[Finding]:
        quota = self.topic.quota_exceeded
        if quota is not None:
            text = f"producers are stopped: {quota}"
            mend = f"geminga explain {shlex.quote(self.topic.text)} {shlex.quote(quota.subscription)}"
            if quota.subscription == self.subscription.name:
                ledger_id, entry_id = quota.oldest
                mend = f"acknowledge {ledger_id}:{entry_id}, or give it up: {self._skip(quota.oldest)}"
            yield Finding("quota", False, text, mend, asdict(quota))

    def _damage(self) -> Iterator[Finding]:
        runs = [run for run in self.ledger.damaged if run[1] > self.cursor.mark]
        for start, stop in runs[:KEYS_SHOWN_MAX]:
            place = self.ledger.position(start)
            last = self.ledger.position(stop - 1)
            what = (
                f"entry {_text(place)}" if stop - start == 1 else f"entries {_text(place)} to {_text(last)}"
            )
            yield Finding(
                "damaged-entry", False,
                f"{what} cannot be read from the disk: the subscription goes on behind, and it stays in the "
                "backlog until it is given up",
                self._skip(place), {"first": _text(place), "last": _text(last)},
            )  # fmt: skip

    # --- the dispatcher ---
    def _dispatching(self) -> Iterator[Finding]:
        dispatcher = self.subscription.dispatcher
        if dispatcher is None:
            return
        if dispatcher.reading_fails:
            yield Finding(
                "store", True, "entries cannot be read from the store; it is tried again every few seconds",
                "see the broker's log, and: geminga store check DIR (with the broker stopped)",
            )  # fmt: skip
        if isinstance(dispatcher, SingleActiveDispatcher):
            yield from self._single_active(dispatcher)
        elif isinstance(dispatcher, SharedDispatcher):
            yield from self._shared(dispatcher)

    def _single_active(self, dispatcher: SingleActiveDispatcher) -> Iterator[Finding]:
        active = dispatcher.active
        if active is None:
            return
        if dispatcher.is_switching:
            yield Finding(
                "switching", True, f"{_name(active)} takes over in a moment: what the one before still "
                "acknowledges is waited for", "wait a moment",
            )  # fmt: skip
        others = (each for each in self.subscription.consumers if each is not active)
        for standby in islice(others, CONSUMERS_TOLD_MAX):
            yield Finding(
                "standby", False, f"{_name(standby)} stands by: {_name(active)} is the one that receives"
            )
        yield from self._consumer(active, stops=_waits(self.topic, dispatcher))

    def _shared(self, dispatcher: SharedDispatcher) -> Iterator[Finding]:
        limit = self.topic.policies.unacked_messages_per_subscription_max
        waiting = _waits(self.topic, dispatcher)
        if dispatcher.blocked:
            yield Finding(
                "unacked-limit", True,
                f"its consumers hold {dispatcher.unacked_messages} messages that they have not acknowledged, "
                f"{limit} are allowed; delivery goes on at half",
                self._again_or("maxUnackedMessagesOnSubscription", limit),
                {"unackedMessages": dispatcher.unacked_messages, "limit": limit},
            )  # fmt: skip
        stuck = all(not each.ready for each in dispatcher.consumers)
        waited_for = (each for each in dispatcher.consumers if not each.ready)
        for consumer in islice(waited_for, CONSUMERS_TOLD_MAX):
            yield from self._consumer(consumer, stops=waiting and stuck)
        if dispatcher.delayed_size:
            due_ms = dispatcher.next_delayed_ms
            alone = not waiting and not dispatcher.unacked_messages
            yield Finding(
                "delayed", alone,
                f"{dispatcher.delayed_size} entries are to be delivered later: the next at "
                f"{iso_time(due_ms)}",
                f"wait; or have them now: {self._policy('delayedDelivery', _NO_DELAYS)} && {self._unload()}",
                {"entries": dispatcher.delayed_size, "nextTimestamp": due_ms},
            )  # fmt: skip
        if isinstance(dispatcher, KeySharedDispatcher):
            yield from self._keys(dispatcher)

    def _keys(self, dispatcher: KeySharedDispatcher) -> Iterator[Finding]:
        for blocked in dispatcher.blocked_keys(KEYS_SHOWN_MAX):
            key = self._key(blocked.first_waiting)
            yield Finding(
                "key-blocked", True,
                f"{blocked.waiting} entries of key {key!r} wait: {_name(blocked.holder)} has "
                f"{blocked.held} of the same key that it has not acknowledged, and order is kept",
                f"acknowledge them there, or hand its keys to the others: {self._unload()}",
                {"key": key, "slot": blocked.slot, "waiting": blocked.waiting, "held": blocked.held,
                 "holder": blocked.holder.name, "firstWaiting": self._position(blocked.first_waiting)},
            )  # fmt: skip
        if dispatcher.unowned_size:
            yield Finding(
                "key-unowned", True,
                f"{dispatcher.unowned_size} entries have keys in hash ranges that no consumer has taken",
                "subscribe with the missing ranges, or with automatic ranges (AUTO_SPLIT)",
                {"entries": dispatcher.unowned_size},
            )  # fmt: skip

    def _consumer(self, consumer: Consumer, *, stops: bool) -> Iterator[Finding]:
        who = _name(consumer)
        details: Json = {"consumer": consumer.name, "address": consumer.peer.address}
        if consumer.blocked:
            limit = consumer.unacked_messages_max
            yield Finding(
                "unacked-limit", stops,
                f"{who} holds {consumer.unacked_messages} messages that it has not acknowledged, {limit} are "
                "allowed to one consumer; it gets more when half are acknowledged",
                self._again_or("maxUnackedMessagesOnConsumer", limit),
                {**details, "unackedMessages": consumer.unacked_messages, "limit": limit},
            )  # fmt: skip
        if consumer.permits <= 0:
            if not consumer.flow_count:
                yield Finding(
                    "no-permits", stops, f"{who} has never asked for messages",
                    "its application must receive: a receiver queue of 0 asks only when it does", details,
                )  # fmt: skip
            else:
                idle = (self.now_ms - consumer.last_flow_ms) // 1000
                kind = "paused" if idle >= _LONG_SECONDS else "no-permits"
                unacked = consumer.unacked_messages
                held = f"holds {unacked} messages that it has not acknowledged, and " if unacked else ""
                yield Finding(
                    kind, stops,
                    f"{who} {held}has room for no more: it last asked for messages {idle} s ago, and its "
                    "application does not receive, or is paused",
                    f"receive or resume there, or hand its messages to the others: {self._unload()}",
                    {**details, "lastFlowTimestamp": consumer.last_flow_ms},
                )  # fmt: skip
        if not consumer.output.writable:
            yield Finding(
                "not-reading", stops, f"{who} does not read from its connection: what was sent lies unread",
                "see what its process does; without it: "
                f"{self._unload()}", details,
            )  # fmt: skip

    # --- what is delivered and not acknowledged ---
    def _held(self) -> Iterator[Finding]:
        subscription, dispatcher = self.subscription, self.subscription.dispatcher
        if dispatcher is None or not self.is_delivered:
            return
        seconds = _held_seconds(subscription)
        if seconds < HELD_SECONDS:
            return
        for consumer in sorted(subscription.consumers, key=lambda each: -each.unacked_messages)[:1]:
            held = subscription.held_by(consumer)
            if held:
                since = iso_time(max(consumer.last_consumed_ms, consumer.last_acked_ms))
                yield Finding(
                    "unacknowledged", False,
                    f"{_name(consumer)} holds {held} messages unacknowledged since {since}",
                    f"see what its application does; push them again: {self._again()}",
                    {"consumer": consumer.name, "unackedMessages": held},
                )  # fmt: skip

    def _holes(self) -> Iterator[Finding]:
        subscription, cursor = self.subscription, self.cursor
        offset = subscription.wanted_from
        dispatcher = subscription.dispatcher
        behind = subscription.acknowledged_behind
        if offset >= self.ledger.confirmed or (not cursor.holes and not cursor.batches):
            return
        place = self._position(offset)
        holder = next((each for each in subscription.consumers if offset in each.pending), None)
        delivered = dispatcher is not None and offset < dispatcher.read_offset
        text = f"message {place} is not acknowledged, {behind} behind it are"
        if offset in cursor.batches:
            ranges = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in cursor.open_ranges(offset)[:5])
            text += f"; of its batch, {ranges} are open"
        if holder is not None:
            text += f"; {_name(holder)} has it"
        elif delivered:
            text += "; it was delivered"
        age = subscription.oldest_age_seconds
        if age >= 0:
            text += f"; published {age} s ago"
        seconds = subscription.compensation.after_seconds
        mend = f"give it up: {self._skip(self.ledger.position(offset))}"
        if not seconds:
            mend = f"have it pushed again: geminga subscriptions redeliver-unacked {self.place} 60; or {mend}"
        else:
            text += f"; it is pushed again after {seconds:g} s"
        yield Finding(
            "hole", False, text, mend,
            {"message": place, "acknowledgedBehind": behind, "holes": cursor.hole_count(),
             "consumer": holder.name if holder is not None else ""},
        )  # fmt: skip

    # --- words ---
    def _position(self, offset: int) -> str:
        if offset >= self.ledger.end:
            return "end"
        return _text(self.ledger.position(offset))

    def _key(self, offset: int) -> str:
        try:
            entry = self.ledger.read_one(offset)
        except StoreError:
            entry = None
        return "?" if entry is None else sticky_key(head_of(entry)).decode(errors="backslashreplace")

    def _unload(self) -> str:
        return f"geminga topics unload {shlex.quote(self.topic.text)}"

    def _skip(self, place: tuple[int, int]) -> str:
        return f"geminga subscriptions skip {self.place} --message {_text(place)}"

    def _policy(self, name: str, value: object) -> str:
        return f"geminga topics policy {shlex.quote(self.topic.text)} {name} {shlex.quote(str(value))}"

    def _again(self) -> str:
        return f"geminga subscriptions redeliver-unacked {self.place} 60"

    def _again_or(self, policy: str, limit: int) -> str:
        return (
            f"acknowledge them; push again what was forgotten: {self._again()}; "
            f"or allow more: {self._policy(policy, 2 * limit)}"
        )


def consumer_type(subscription: PersistentSubscription) -> str:
    """``Shared`` and so on; empty before the first consumer."""
    return subscription.consumers[0].type_name if subscription.consumers else ""


def _name(consumer: Consumer) -> str:
    return f"consumer {consumer.name or consumer.consumer_id!r} at {consumer.peer.address}"


def _text(place: tuple[int, int]) -> str:
    return f"{place[0]}:{place[1]}"
