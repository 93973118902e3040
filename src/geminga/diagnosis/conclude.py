"""The conclusion: findings and one level of trouble, from the figures of a subscription.

`diagnose` is a pure function; the command line, the console, the overview of all subscriptions and the
metrics use its result. Each finding has a level of its own, and the worst of them is the subscription's: a
state that usually passes quickly, such as a consumer without permits, counts once it has lasted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final

from geminga.by_fields import ByFields
from geminga.diagnosis.facts import ConsumerFacts, Relief, SubscriptionFacts

Json = dict[str, Any]

STUCK_SECONDS: Final = 5
"""A consumer that cannot take messages counts after this time without a FLOW or an acknowledgement."""
QUIET_SECONDS: Final = 30
"""A consumer that acknowledged within this time is at work, and never called paused."""
HOLE_SECONDS: Final = 30
HELD_SECONDS: Final = 60
"""A consumer that acknowledged nothing of what it holds for this time is shown in amber."""
IDLE_SECONDS: Final = 60
"""A subscription without consumers is idle if nothing was published for this time."""
SLOWER: Final = 1.1
CONSUMERS_NAMED_MAX: Final = 100
"""Consumers with findings of their own."""
_NO_DELAYS: Final = '{"active": false}'


class Trouble(IntEnum):
    """Urgency of a subscription; the overview is sorted by it."""

    NOTHING_WAITS = 0
    IDLE = 1
    """Messages wait, no consumer is connected and nothing is published."""
    MOVING = 2
    """Messages wait, and are being delivered or acknowledged."""
    WATCH = 3
    """Holes, delays, damage, slow consumers, or nothing acknowledged for a minute."""
    STOPPED = 4
    """No message is delivered."""
    GROWING = 5
    """No message is delivered, and new ones are published."""
    PRODUCERS_STOPPED = 6
    """Producers are stopped because of the subscription."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Advice(ByFields):
    """A way to change the finding. ``effects`` are the figures in ``text``, for programs."""

    text: str
    command: str = ""
    """The shell command; empty where the application has to act."""
    effects: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Finding(ByFields):
    """One cause. ``kind`` is a fixed word for programs, ``text`` is for people."""

    kind: str
    text: str
    level: Trouble = Trouble.NOTHING_WAITS
    """The urgency; below `Trouble.MOVING`: for information."""
    stops: bool = False
    """Whether messages are not delivered because of it."""
    advice: tuple[Advice, ...] = ()
    details: Json = field(default_factory=dict)

    @property
    def mend(self) -> str:
        """All advice as one text."""
        return "; or ".join(f"{a.text}: {a.command}" if a.command else a.text for a in self.advice)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Diagnosis(ByFields):
    """The conclusion about a subscription: the worst findings come first."""

    level: Trouble
    sentence: str
    findings: tuple[Finding, ...]

    @property
    def kind(self) -> str:
        """The kind of the first finding that stops messages; empty without one."""
        return next((each.kind for each in self.findings if each.stops), "")


def diagnose(facts: SubscriptionFacts) -> Diagnosis:
    """Conclude from figures alone."""
    inquiry = _Inquiry(facts)
    findings = sorted(inquiry.findings(), key=_urgency)
    level = max((each.level for each in findings), default=Trouble.NOTHING_WAITS)
    if level < Trouble.STOPPED:
        if not facts.backlog:
            level = Trouble.NOTHING_WAITS
        else:
            level = max(level, Trouble.MOVING) if facts.consumer_count else Trouble.IDLE
    if level == Trouble.STOPPED and inquiry.age(facts.published_ms) < QUIET_SECONDS:
        level = Trouble.GROWING
    return Diagnosis(level, inquiry.sentence(findings), tuple(findings))


def _urgency(finding: Finding) -> tuple[int, bool, int]:
    """The order of findings: urgent ones, then those that stop messages, then by level."""
    return -max(finding.level, Trouble.WATCH), not finding.stops, -finding.level


def explanation(facts: SubscriptionFacts) -> Json:
    """The diagnosis with its figures, as admin REST returns it."""
    found = diagnose(facts)
    return {
        "topic": facts.topic,
        "subscription": facts.subscription,
        "summary": found.sentence,
        "sentence": found.sentence,
        "trouble": found.level,
        "facts": {
            "type": facts.type if facts.consumer_count else "",
            "consumers": facts.consumer_count,
            "messagesInBacklog": facts.messages,
            "bytesInBacklog": facts.bytes,
            "entriesInBacklog": facts.backlog,
            "oldestBacklogMessageAgeSeconds": facts.oldest_seconds,
            "messagesHeld": facts.held,
            "ackHoles": facts.holes,
            "oldestOpenMessage": facts.oldest_open,
            "readPosition": facts.read_position,
            "entriesNotReadYet": facts.unread,
            "redeliverUnackedAfterSeconds": facts.redeliver_after,
            "messagesPushedAgain": facts.pushed_again,
        },
        "findings": [
            asdict(each) | {"mend": each.mend, "advice": [asdict(advice) for advice in each.advice]}
            for each in found.findings
        ],
    }


def time_text(milliseconds: int) -> str:
    """``2026-11-21T00:46:42.051Z``, or the number itself beyond the calendar."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def _rate(number: float) -> str:
    return f"{number:.0f}/s" if number >= 10 else f"{number:.1f}/s"


class _Inquiry:
    def __init__(self, facts: SubscriptionFacts) -> None:
        self.facts = facts
        self.where = f"{shlex.quote(facts.topic)} {shlex.quote(facts.subscription)}"
        self.unload = f"geminga topics unload {shlex.quote(facts.topic)}"
        self.receiving = [each for each in facts.consumers if not each.standby]
        self.is_stuck = facts.waiting > 0 and bool(self.receiving) and not facts.any_ready
        self.is_quiet = self.is_stuck and all(map(self._is_quiet, self.receiving))

    # --- times ---
    def age(self, milliseconds: int) -> float:
        """Seconds since a time; infinite for never."""
        return (self.facts.now_ms - milliseconds) / 1000 if milliseconds > 0 else float("inf")

    def _moved(self, seconds: float) -> bool:
        """Whether a message was delivered or acknowledged within that time."""
        return min(self.age(self.facts.delivered_ms), self.age(self.facts.acked_ms)) < seconds

    def _is_working(self, consumer: ConsumerFacts) -> bool:
        return self.age(consumer.acked_ms) < QUIET_SECONDS

    def _asked(self, consumer: ConsumerFacts) -> float:
        """Seconds since the consumer asked for messages; since the last delivery, if that is not known."""
        return self.age(consumer.asked_ms if consumer.asked_ms >= 0 else consumer.delivered_ms)

    def _is_quiet(self, consumer: ConsumerFacts) -> bool:
        """Whether the consumer cannot take messages, and not just for a moment."""
        if self._is_working(consumer):
            return False
        return consumer.blocked or self._asked(consumer) >= STUCK_SECONDS or not self._moved(QUIET_SECONDS)

    def _stopped(self) -> Trouble:
        """The level of a cause that stops some messages and may pass by itself."""
        return Trouble.WATCH if self._moved(STUCK_SECONDS) else Trouble.STOPPED

    # --- one sentence ---
    def sentence(self, findings: list[Finding]) -> str:
        """Return the one line of the overview; ``findings`` are sorted."""
        facts = self.facts
        for each in findings:
            if each.level > Trouble.MOVING or each.level == Trouble.IDLE or each.kind == "slow":
                return each.text
        if not facts.backlog:
            return "everything is acknowledged"
        if any(each.stops for each in findings) or self.is_stuck:
            return "its consumers are busy: waiting messages are delivered as they ask for more"
        if facts.held and not facts.waiting and not facts.delayed:
            return "all messages are delivered, and wait to be acknowledged"
        return "nothing stands in the way: messages are being delivered"

    # --- findings ---
    def findings(self) -> Iterator[Finding]:
        facts = self.facts
        yield from self._subscription()
        yield from self._producers()
        if not facts.backlog:
            text = "all messages are acknowledged"
            if facts.terminated:
                text += ", and the topic is terminated: no more will be published"
            yield Finding(kind="caught-up", text=text, level=Trouble.NOTHING_WAITS)
            return
        yield from self._damage()
        if not facts.consumer_count:
            yield self._unconnected()
        elif facts.reading_fails:
            yield Finding(
                kind="store", level=Trouble.STOPPED, stops=True,
                text="entries cannot be read from the store; the broker retries every few seconds",
                advice=(Advice(text="see the broker's log, and, with the broker stopped",
                               command="geminga store check DIR"),),
            )  # fmt: skip
        yield from self._limit()
        yield from self._consumers()
        yield from self._keys()
        yield from self._delays()
        yield from self._undelivered()
        yield from self._hole()
        yield from self._held()

    def _subscription(self) -> Iterator[Finding]:
        facts = self.facts
        if facts.harmed:
            reset = f"geminga subscriptions reset {self.where} earliest"
            yield Finding(
                kind="harmed", level=Trouble.STOPPED, stops=True,
                text=f"the subscription's state was lost to damage in the store: {facts.harmed}",
                advice=(Advice(text="deliver all messages of the topic again", command=reset,
                               effects={"attachable": True}),),
            )  # fmt: skip
        elif facts.fenced:
            yield Finding(
                kind="fenced", level=Trouble.STOPPED, stops=True,
                text="the subscription is being reset or deleted: no consumer can attach",
                advice=(Advice(text="wait a moment; if it stays like that", command=self.unload,
                               effects={"attachable": True}),),
            )  # fmt: skip

    # --- producers ---
    def _producers(self) -> Iterator[Finding]:
        facts, quota = self.facts, self.facts.quota
        if facts.disk:
            yield Finding(
                kind="disk", text=f"producers are stopped: {facts.disk}",
                advice=(Advice(text="free space: acknowledge or delete messages, or enlarge the disk"),),
            )  # fmt: skip
        if quota is None:
            return
        own = quota.subscription == facts.subscription
        text = f"producers are stopped: {quota.text}" if quota.certain else quota.text
        if own:
            advice = tuple(self._relief(quota.oldest, quota.first, quota.enough))
        else:
            other = f"{shlex.quote(facts.topic)} {shlex.quote(quota.subscription)}"
            advice = (Advice(text="see that subscription", command=f"geminga explain {other}"),)
        level = Trouble.NOTHING_WAITS
        if own:
            level = Trouble.PRODUCERS_STOPPED if quota.certain else Trouble.WATCH
        yield Finding(kind="quota", text=text, level=level, advice=advice, details=dict(quota.details))

    def _relief(self, oldest: str, first: Relief | None, enough: Relief | None) -> Iterator[Advice]:
        """Advise what frees enough for producers to continue."""
        if first is not None and not first.still_over:
            yield Advice(
                text=f"acknowledge {oldest}, or skip it: frees {first.frees} bytes, and producers continue",
                command=f"geminga subscriptions skip {self.where} --message {oldest}",
                effects={"frees": first.frees, "producersContinue": True},
            )  # fmt: skip
        elif enough is not None:
            what = f"all up to {enough.up_to}" if enough.up_to else "all of the backlog"
            then = "and producers continue"
            if enough.still_over:
                then = f"but subscription {enough.still_over!r} exceeds the quota, too"
            number = f" ({_count(enough.messages, 'message')})" if enough.messages >= 0 else ""
            text = f"acknowledge {what}{number}, or give them up: frees {enough.frees} bytes, {then}"
            if first is not None:
                text += f"; {oldest} alone frees {first.frees} bytes, too little"
            to = f"expire {self.where} --to {enough.up_to}" if enough.up_to else f"clear {self.where}"
            yield Advice(
                text=text, command=f"geminga subscriptions {to}",
                effects={"frees": enough.frees, "messages": enough.messages,
                         "producersContinue": not enough.still_over},
            )  # fmt: skip

    # --- damage, and no consumer ---
    def _damage(self) -> Iterator[Finding]:
        for first, last in self.facts.damaged:
            what = f"entry {first}" if first == last else f"entries {first} to {last}"
            yield Finding(
                kind="damaged-entry", level=Trouble.WATCH,
                text=f"{what} cannot be read from the disk: delivery continues behind, and the backlog "
                "counts it until it is skipped",
                advice=(Advice(text=f"skip {first}", command=self._skip(first), effects={"entries": 1}),),
                details={"first": first, "last": last},
            )  # fmt: skip

    def _unconnected(self) -> Finding:
        facts = self.facts
        text = "no consumer is connected"
        text += f" (since {time_text(facts.left_ms)})" if facts.left_ms else ""
        in_use = min(self.age(facts.published_ms), self.age(facts.left_ms)) < IDLE_SECONDS
        if not in_use:
            text += ", and nothing is published"
        peek = f"geminga peek {self.where}"
        return Finding(
            kind="nobody-connected", level=Trouble.STOPPED if in_use else Trouble.IDLE, stops=True, text=text,
            advice=(Advice(text="start the consumer; to see the messages", command=peek),),
            details={"sinceTimestamp": facts.left_ms} if facts.left_ms else {},
        )  # fmt: skip

    # --- consumers ---
    def _limit(self) -> Iterator[Finding]:
        facts = self.facts
        if not facts.blocked:
            return
        working = self.age(facts.acked_ms) < QUIET_SECONDS
        ready = [each for each in self.receiving if each.ready]
        can = any(each.queued for each in ready) if facts.type == "Key_Shared" else bool(ready)
        allowed = f", {facts.held_limit} are allowed" if facts.held_limit else ", the most that is allowed"
        yield Finding(
            kind="unacked-limit", level=Trouble.WATCH if working else Trouble.STOPPED, stops=True,
            text=f"its consumers hold {facts.held} messages that they have not acknowledged{allowed}; "
            "delivery continues at half",
            advice=tuple(self._more("Subscription", facts.held, facts.held_limit, can)),
            details={"unackedMessages": facts.held, "limit": facts.held_limit},
        )  # fmt: skip

    def _consumers(self) -> Iterator[Finding]:
        facts = self.facts
        if facts.switching_to:
            yield Finding(
                kind="switching", level=Trouble.MOVING, stops=True, advice=(Advice(text="wait a moment"),),
                text=f"{facts.switching_to} takes over in a moment, after the last acknowledgements of the "
                "consumer before it",
            )  # fmt: skip
        active = next((each.text for each in self.receiving), "another")
        named = 0
        for each in facts.consumers:
            if named >= CONSUMERS_NAMED_MAX:
                break
            if each.standby:
                named += 1
                yield Finding(
                    kind="standby", text=f"{each.text} stands by: {active} is the one that receives"
                )
            elif not each.ready and not (each.permits <= 0 and not each.blocked and self._is_working(each)):
                named += 1
                yield from self._consumer(each)
        slow = [each for each in self.receiving if not each.ready and self._is_working(each)]
        if slow and (self.is_stuck or any(each.queued for each in slow)):
            yield self._slow(slow)

    def _slow(self, slow: list[ConsumerFacts]) -> Finding:
        """Consumers that are at work and have no room for more."""
        facts = self.facts
        acks = sum(each.acks_per_second for each in self.receiving)
        held = sum(each.held for each in slow)
        who = slow[0].text if len(slow) == 1 else f"{len(slow)} consumers, such as {slow[0].text},"
        verb = "is" if len(slow) == 1 else "are"
        last = int(min(self.age(each.acked_ms) for each in slow))
        rest = f"{held} unacknowledged, the last acknowledgement {last} s ago"
        slower = acks > 0 and facts.rate_in > acks * SLOWER
        text = f"{who} {verb} busy: {rest}"
        if slower:
            rates = f"{_rate(acks)} against {_rate(facts.rate_in)}"
            text = f"{who} {verb} slower than the producers: {rates}; {rest}"
        more = Advice(text="add consumers, or let the application acknowledge faster")
        return Finding(
            kind="slow", level=Trouble.WATCH if slower else Trouble.MOVING, text=text,
            advice=(more,) if slower else (),
            details={"consumer": slow[0].name, "unackedMessages": held, "acknowledgedPerSecond": acks,
                     "publishedPerSecond": facts.rate_in},
        )  # fmt: skip

    def _consumer(self, consumer: ConsumerFacts) -> Iterator[Finding]:
        """Findings about a consumer that cannot take an entry now."""
        facts, who = self.facts, consumer.text
        details: Json = {"consumer": consumer.name, "address": consumer.address}
        stops = self.is_stuck or consumer.queued > 0
        level = Trouble.MOVING
        if self.is_quiet:
            level = Trouble.STOPPED
        elif consumer.queued and self._is_quiet(consumer):
            level = self._stopped()
        queue = f"; {_count(consumer.queued, 'entry')} of its keys wait for it" if consumer.queued else ""
        details |= {"waiting": consumer.queued} if consumer.queued else {}
        if consumer.blocked:
            can = consumer.permits > 0 and consumer.reads and not facts.blocked
            can = can and (facts.type != "Key_Shared" or consumer.queued > 0)
            allowed = (
                f"{consumer.held_limit} are allowed" if consumer.held_limit else "the most that is allowed"
            )
            yield Finding(
                kind="unacked-limit", level=level, stops=stops,
                text=f"{who} holds {consumer.held} messages that it has not acknowledged, {allowed} to one "
                f"consumer; it gets more when half are acknowledged{queue}",
                advice=tuple(self._more("Consumer", consumer.held, consumer.held_limit, can)),
                details={**details, "unackedMessages": consumer.held, "limit": consumer.held_limit},
            )  # fmt: skip
        if consumer.permits <= 0 and not self._is_working(consumer):
            yield self._without_permits(consumer, level, stops, queue, details)
        if not consumer.reads:
            yield Finding(
                kind="not-reading", level=level, stops=stops, details=details,
                text=f"{who} does not read from its connection: sent messages lie unread{queue}",
                advice=(Advice(text="see what its process does; without it", command=self.unload,
                               effects={"redelivers": facts.held}),),
            )  # fmt: skip

    def _without_permits(
        self, consumer: ConsumerFacts, level: Trouble, stops: bool, queue: str, details: Json
    ) -> Finding:
        asked, who = self._asked(consumer), consumer.text
        if asked == float("inf"):
            never = (
                "has never asked for messages"
                if consumer.asked_ms == 0
                else "has no permits and got nothing yet"
            )
            return Finding(
                kind="no-permits", level=level, stops=stops, text=f"{who} {never}{queue}", details=details,
                advice=(Advice(text="its application must receive: with a queue of 0 it asks only then"),),
            )  # fmt: skip
        held = f"holds {consumer.held} messages that it has not acknowledged, and " if consumer.held else ""
        when = "it last asked for messages" if consumer.asked_ms > 0 else "the last message went to it"
        paused = asked >= QUIET_SECONDS
        why = ", and its application does not receive, or is paused" if paused else ""
        return Finding(
            kind="paused" if paused else "no-permits", level=level, stops=stops,
            text=f"{who} {held}has room for no more: {when} {int(asked)} s ago{why}{queue}",
            advice=(Advice(text="receive or resume there"), *self._reconnect(consumer.held)),
            details={**details, "lastFlowTimestamp": consumer.asked_ms},
        )  # fmt: skip

    # --- keys ---
    def _keys(self) -> Iterator[Finding]:
        facts = self.facts
        level = Trouble.WATCH if self.age(facts.acked_ms) < STUCK_SECONDS else Trouble.STOPPED
        for key in facts.keys:
            yield Finding(
                kind="key-blocked", level=level, stops=True,
                text=f"{key.waiting} entries of key {key.key!r} wait: {key.holder_text} has {key.held} of "
                "that key that it has not acknowledged, and order is kept",
                advice=(Advice(text="acknowledge them there"), *self._reconnect(facts.held)),
                details={"key": key.key, "slot": key.slot, "waiting": key.waiting, "held": key.held,
                         "holder": key.holder, "firstWaiting": key.first},
            )  # fmt: skip
        if facts.draining and not facts.keys:
            yield Finding(
                kind="key-blocked", level=level, stops=True,
                text=f"{facts.draining} key slots wait for acknowledgements of another consumer",
            )  # fmt: skip
        for name in facts.newcomers:
            yield Finding(
                kind="key-blocked", level=level, stops=True,
                text=f"consumer {name!r} joined a Key_Shared subscription and waits until all that was "
                "delivered before is acknowledged",
                advice=(Advice(text="acknowledge that"), *self._reconnect(facts.held)),
            )  # fmt: skip
        if facts.unowned:
            yield Finding(
                kind="key-unowned", level=Trouble.STOPPED, stops=True, details={"entries": facts.unowned},
                text=f"{facts.unowned} entries have keys in hash ranges that no consumer has taken",
                advice=(Advice(text="subscribe with the missing ranges, or automatic ones (AUTO_SPLIT)"),),
            )  # fmt: skip
        if facts.look_ahead:
            yield self._look_ahead()

    def _look_ahead(self) -> Finding:
        facts = self.facts
        cause = max(self.receiving, key=lambda each: each.queued * (not each.ready), default=None)
        text = f"no further entry is read: {facts.look_ahead} that were read wait for their consumers"
        level = self._stopped()
        advice: tuple[Advice, ...] = ()
        details: Json = {"entries": facts.look_ahead}
        if cause is not None and cause.queued and not cause.ready:
            text += f", {cause.queued} of them for {cause.text}, which holds {cause.held} unacknowledged"
            details["consumer"] = cause.name
            level = Trouble.WATCH if self._is_working(cause) else level
            close = f"acknowledge there, or close {cause.text}: its messages are delivered to the others"
            advice = (Advice(text=close, effects={"closes": cause.name}),)
        return Finding(kind="look-ahead", level=level, stops=True, text=text, advice=advice, details=details)

    # --- delays and limits ---
    def _delays(self) -> Iterator[Finding]:
        facts = self.facts
        if not facts.delayed:
            return
        when = f": the next at {time_text(facts.delayed_next_ms)}" if facts.delayed_next_ms else ""
        advice = [Advice(text="wait")]
        if facts.is_geminga:
            policy = self._policy("delayedDelivery", _NO_DELAYS)
            advice.append(Advice(text="have them delivered now", command=f"{policy} && {self.unload}",
                                 effects={"delivers": facts.delayed}))  # fmt: skip
        details = {"entries": facts.delayed, "nextTimestamp": facts.delayed_next_ms}
        if facts.delayed_max:
            yield Finding(
                kind="delayed-limit", level=self._stopped(), stops=facts.waiting > 0,
                text=f"{facts.delayed} entries are to be delivered later, the most that a subscription "
                f"keeps: no further entry is read until one is due{when}",
                advice=tuple(advice), details={**details, "limit": facts.delayed_max},
            )  # fmt: skip
            return
        noun = "entry is" if facts.delayed == 1 else "entries are"
        yield Finding(
            kind="delayed", level=Trouble.WATCH, stops=not facts.waiting and not facts.held,
            text=f"{facts.delayed} {noun} to be delivered later{when}", advice=tuple(advice), details=details,
        )  # fmt: skip

    def _undelivered(self) -> Iterator[Finding]:
        """A last resort: consumers could take messages and get none, for no cause that is known here."""
        facts = self.facts
        if not facts.waiting or not facts.any_ready or self._moved(QUIET_SECONDS):
            return
        seconds = min(self.age(facts.waiting_since_ms), self.age(facts.delivered_ms))
        known = (
            facts.look_ahead
            or facts.delayed_max
            or facts.reading_fails
            or facts.switching_to
            or facts.blocked
        )
        if known or not facts.waiting_since_ms or seconds < QUIET_SECONDS:
            return
        ready = next((each.text for each in self.receiving if each.ready), "a consumer")
        if facts.throttled:
            yield Finding(
                kind="throttled", level=Trouble.STOPPED, stops=True,
                text=f"a dispatch rate is used up: {ready} has permits, but got nothing for {int(seconds)} s",
                advice=(Advice(text="raise the dispatch rate of the topic, the subscription or the broker"),),
            )  # fmt: skip
            return
        if any(each.queued and not each.ready for each in self.receiving) or facts.keys or facts.unowned:
            return
        yield Finding(
            kind="undelivered", level=Trouble.STOPPED, stops=True,
            text=f"messages wait and {ready} could take them, but none was delivered for {int(seconds)} s",
            advice=(Advice(text="see the broker's log; then", command=self.unload),),
        )  # fmt: skip

    # --- acknowledgements that are missing ---
    def _hole(self) -> Iterator[Finding]:
        facts, hole = self.facts, self.facts.hole
        if not facts.holes:
            return
        level = Trouble.WATCH if self.age(facts.mark_ms) >= HOLE_SECONDS else Trouble.MOVING
        if hole is None:
            text = f"messages are not acknowledged although later ones are, in {_count(facts.holes, 'range')}"
            yield Finding(kind="hole", level=level, text=text)
            return
        number = hole.acknowledged_behind
        behind = f"{number} behind it are" if number >= 0 else f"later ones are, in {facts.holes} ranges"
        text = f"message {hole.message} is not acknowledged, {behind}"
        if hole.open_in_batch:
            text += f"; of its batch, {hole.open_in_batch} are open"
        if hole.holder:
            text += f"; {hole.holder_text} has it"
        elif hole.delivered:
            text += "; it was delivered"
        if hole.age_seconds >= 0:
            text += f"; published {hole.age_seconds} s ago"
        yield Finding(
            kind="hole", level=level, text=text + self._again_after(),
            advice=tuple(self._close_hole(hole.frees)),
            details={"message": hole.message, "acknowledgedBehind": hole.acknowledged_behind,
                     "holes": facts.holes, "consumer": hole.holder},
        )  # fmt: skip

    def _close_hole(self, frees: int) -> Iterator[Advice]:
        facts, hole = self.facts, self.facts.hole
        assert hole is not None
        if not facts.is_geminga:
            yield from self._reconnect(facts.held)
            expire = f"geminga subscriptions expire {self.where} --to {hole.message}"
            yield Advice(text="give it up with all before it", command=expire)
            return
        if hole.delivered:
            yield from self._redeliver(1)
        freed = f": frees {frees} bytes" if frees > 0 else ""
        yield Advice(text=f"skip it{freed}", command=self._skip(hole.message), effects={"frees": frees})

    def _held(self) -> Iterator[Finding]:
        """The consumer that has held messages for longest without acknowledging any."""
        facts = self.facts
        held = [each for each in self.receiving if each.held and self.age(each.held_since_ms) < float("inf")]
        worst = max(held, key=lambda each: self.age(each.held_since_ms), default=None)
        if worst is None or self.age(worst.held_since_ms) < HELD_SECONDS:
            return
        advice = [Advice(text="see what its application does")]
        if not facts.is_geminga:
            advice += self._reconnect(facts.held)
        advice += self._redeliver(worst.held)
        yield Finding(
            kind="unacknowledged", level=Trouble.WATCH, advice=tuple(advice),
            text=f"{worst.text} holds {worst.held} messages, and has acknowledged none since "
            f"{time_text(worst.held_since_ms)}{self._again_after()}",
            details={"consumer": worst.name, "unackedMessages": worst.held,
                     "sinceTimestamp": worst.held_since_ms},
        )  # fmt: skip

    # --- advice ---
    def _again_after(self) -> str:
        seconds = self.facts.redeliver_after
        return f"; redelivered after {seconds:g} s" if seconds else ""

    def _reconnect(self, held: int) -> Iterator[Advice]:
        if held:
            text = "have all consumers reconnect, which delivers what they hold again"
            yield Advice(text=text, command=self.unload, effects={"redelivers": held})

    def _skip(self, position: str) -> str:
        return f"geminga subscriptions skip {self.where} --message {position}"

    def _policy(self, name: str, value: object) -> str:
        return f"geminga topics policy {shlex.quote(self.facts.topic)} {name} {shlex.quote(str(value))}"

    def _redeliver(self, messages: int) -> Iterator[Advice]:
        """Advise redelivery after a minute, where consumers have permits for it."""
        can = [each.permits > 0 and each.reads for each in self.receiving]
        if (
            (all(can) if self.facts.type == "Key_Shared" else any(can))
            and self.facts.is_geminga
            and not self.facts.redeliver_after
        ):
            command = f"geminga subscriptions redeliver-unacked {self.where} {HELD_SECONDS}"
            text = f"deliver again what is unacknowledged for {HELD_SECONDS} s"
            yield Advice(text=text, command=command, effects={"redeliversLater": messages})

    def _more(self, whose: str, held: int, limit: int, delivers: bool) -> Iterator[Advice]:
        """A limit of unacknowledged messages is reached; ``delivers``: messages are delivered beyond it."""
        yield Advice(text="acknowledge them")
        yield from self._redeliver(held)
        yield from self._reconnect(held)
        if limit and delivers and self.facts.waiting:
            more = 2 * max(limit, held)
            command = self._policy(f"maxUnackedMessagesOn{whose}", more)
            yield Advice(text=f"allow {more}", command=command, effects={"resumes": True})
