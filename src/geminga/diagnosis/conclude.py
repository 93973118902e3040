"""The conclusion: findings and one level of trouble, from the figures of a subscription.

`diagnose` is a pure function; the command line, the console, the overview of all subscriptions and the
metrics use its result. Each finding has a level of its own, and the worst of them is the subscription's: a
state that usually passes quickly, such as a consumer without permits, counts once it has lasted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Final

from geminga.diagnosis.commands import distinct, how_many, iso_time, rate, shell_command, size, span
from geminga.diagnosis.facts import ConsumerFacts, HoleFacts, Relief, SubscriptionFacts, TransactionFacts

Json = dict[str, Any]

STUCK_SECONDS: Final = 5
"""A consumer that cannot take messages counts after this time without a FLOW or an acknowledgement."""
QUIET_SECONDS: Final = 30
"""A consumer that acknowledged within this time is at work, and never called paused."""
HOLE_SECONDS: Final = 30
HELD_SECONDS: Final = 60
"""A consumer that acknowledged none of its pending messages for this time is shown in amber."""
REDELIVERIES: Final = 5
"""An unacknowledged message is shown in amber after this number of redeliveries."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A way to change the finding. ``effects`` are the figures in ``text``, for programs."""

    text: str
    command: str = ""
    """The shell command; empty where the application has to act."""
    effects: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
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
        return in_one_text((each.text, each.command) for each in self.advice)


def in_one_text(advice: Iterable[tuple[str, str]]) -> str:
    """Return the texts of advice with their commands, where there are any."""
    return "; or ".join(f"{text}: {command}" if command else text for text, command in advice)


@dataclass(frozen=True, slots=True)
class Diagnosis:
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
        if not (facts.backlog or (facts.transaction is not None and facts.consumer_count)):
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


def _advise(text: str, command: str = "", **effects: Any) -> Advice:
    return Advice(text=text, command=command, effects=effects)


def _stop(
    kind: str,
    text: str,
    *advice: Advice,
    level: Trouble = Trouble.STOPPED,
    stops: bool = True,
    **details: Any,
) -> Finding:
    """Return a finding; unless ``stops`` is false, it is a cause for which no messages arrive."""
    return Finding(kind=kind, text=text, level=level, stops=stops, advice=advice, details=details)


def _abort(transaction: str) -> Advice:
    text = "abort it: its messages are not delivered, and those that it acknowledged are delivered again"
    return _advise(text, shell_command("transactions abort", transaction))


class _Inquiry:
    def __init__(self, facts: SubscriptionFacts) -> None:
        self.facts = facts
        self.unload = shell_command("topics unload", facts.topic)
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
            if (
                each.level > Trouble.MOVING
                or each.level == Trouble.IDLE
                or each.kind in ("slow", "throttled")
                or (each.kind in ("transaction", "transaction-acks") and each.stops)
            ):
                return each.text
        if not facts.backlog:
            return "everything is acknowledged" + self._expired()
        if any(each.stops for each in findings) or self.is_stuck:
            return "its consumers are busy: waiting messages are delivered as they ask for more"
        if facts.held and not facts.waiting and not facts.delayed:
            text = "all messages are delivered"
            return f"{text}, and wait to be acknowledged" if facts.durable else f"{text} to its reader"
        return "nothing stands in the way: messages are being delivered"

    def _expired(self) -> str:
        """Expired messages, if the newest change of the backlog is their expiry; else empty."""
        facts = self.facts
        if not (facts.expired and facts.expired_ms) or facts.expired_ms < facts.acked_ms:
            return ""
        number = how_many(facts.expired, "entry")
        return f" or expired: {number} expired, the last {span(self.age(facts.expired_ms))} ago"

    # --- findings ---
    def findings(self) -> Iterator[Finding]:
        facts = self.facts
        yield from self._subscription()
        yield from self._producers()
        yield from self._transaction()
        if not facts.backlog:
            if facts.transaction is not None:
                return
            text = "all messages are acknowledged" + self._expired()
            if facts.terminated:
                text += ", and the topic is terminated: no more will be published"
            yield Finding(kind="caught-up", text=text, level=Trouble.NOTHING_WAITS)
            return
        yield from self._damage()
        if not facts.consumer_count:
            yield self._unconnected()
        elif facts.reading_fails:
            text = "entries cannot be read from the store; the broker retries every few seconds"
            check = _advise("see the broker's log, and, with the broker stopped", "geminga store check DIR")
            yield _stop("store", text, check)
        yield from self._limit()
        yield from self._consumers()
        yield from self._keys()
        yield from self._delays()
        yield from self._undelivered()
        yield from self._pending_acks()
        yield from self._rejected()
        yield from self._hole()
        yield from self._held()

    def _subscription(self) -> Iterator[Finding]:
        facts = self.facts
        if facts.harmed:
            text = f"the subscription's state was lost to damage in the store: {facts.harmed}"
            reset = self._command("subscriptions reset", "earliest")
            yield _stop("harmed", text, _advise("redeliver all messages of the topic", reset))
        elif facts.fenced:
            text = "the subscription is being reset or deleted: no consumer can attach"
            yield _stop("fenced", text, _advise("wait a moment; if it stays like that", self.unload))

    # --- producers ---
    def _producers(self) -> Iterator[Finding]:
        facts, quota = self.facts, self.facts.quota
        if facts.disk:
            free = _advise("free space: acknowledge or delete messages, or enlarge the disk")
            yield Finding(kind="disk", text=f"producers are stopped: {facts.disk}", advice=(free,))
        if quota is None:
            return
        text = f"producers are stopped: {quota.text}" if quota.certain else quota.text
        level = Trouble.NOTHING_WAITS
        if quota.subscription == facts.subscription:
            advice = tuple(self._relief(quota.oldest, quota.first, quota.enough))
            level = Trouble.PRODUCERS_STOPPED if quota.certain else Trouble.WATCH
        else:
            other = shell_command("explain", facts.topic, quota.subscription)
            advice = (_advise("see that subscription", other),)
        yield Finding(kind="quota", text=text, level=level, advice=advice, details=dict(quota.details))

    def _relief(self, oldest: str, first: Relief | None, enough: Relief | None) -> Iterator[Advice]:
        """Advise what frees enough for producers to continue."""

        def outcome(relief: Relief) -> str:
            rest = "and producers continue"
            if relief.still_over:
                rest = f"but subscription {relief.still_over!r} exceeds the quota, too"
            return f"frees {size(relief.frees)}, {rest}"

        if first is not None and (not first.still_over or (enough and first.frees >= enough.frees)):
            text = f"acknowledge {oldest}, or skip it: {outcome(first)}"
            continues = not first.still_over
            yield _advise(text, self._skip(oldest), frees=first.frees, producersContinue=continues)
        elif enough is not None:
            what = f"all up to {enough.up_to}" if enough.up_to else "all of the backlog"
            number = f" ({how_many(enough.messages, 'message')})" if enough.messages >= 0 else ""
            text = f"acknowledge {what}{number}, or skip them: {outcome(enough)}"
            if first is not None:
                text += f"; {oldest} alone frees {size(first.frees)}, too little"
            to = self._command("subscriptions clear")
            if enough.up_to:
                to = self._command("subscriptions expire", options=f"--to {enough.up_to}")
            yield _advise(
                text, to, frees=enough.frees, messages=enough.messages,
                producersContinue=not enough.still_over,
            )  # fmt: skip

    # --- damage, and no consumer ---
    def _damage(self) -> Iterator[Finding]:
        for first, last in self.facts.damaged:
            what = f"entry {first}" if first == last else f"entries {first} to {last}"
            text = f"{what} cannot be read from the disk: later ones are delivered, and the backlog counts "
            yield Finding(
                kind="damaged-entry", level=Trouble.WATCH, text=f"{text}the damage until it is skipped",
                advice=(_advise(f"skip {first}", self._skip(first)),), details={"first": first, "last": last},
            )  # fmt: skip

    def _unconnected(self) -> Finding:
        facts = self.facts
        since = f" (since {iso_time(facts.left_ms)})" if facts.left_ms else ""
        start = _advise("start the consumer; to see the messages", self._command("peek"))
        details: Json = {"sinceTimestamp": facts.left_ms} if facts.left_ms else {}
        if min(self.age(facts.published_ms), self.age(facts.left_ms)) < IDLE_SECONDS:
            return _stop("nobody-connected", f"no consumer is connected{since}", start, **details)
        text = f"no consumer is connected{since}, and nothing is published"
        return _stop("nobody-connected", text, start, level=Trouble.IDLE, **details)

    # --- consumers ---
    def _limit(self) -> Iterator[Finding]:
        facts = self.facts
        if not facts.blocked:
            return
        ready = [each for each in self.receiving if each.ready]
        can = any(each.queued for each in ready) if facts.type == "Key_Shared" else bool(ready)
        allowed = f"{facts.held_limit:,} are allowed" if facts.held_limit else "the most that is allowed"
        yield _stop(
            "unacked-limit",
            f"its consumers hold {facts.held:,} unacknowledged messages, {allowed}; "
            "delivery continues when half of them are acknowledged",
            *self._more("Subscription", facts.held, facts.held_limit, can),
            level=Trouble.WATCH if self.age(facts.acked_ms) < QUIET_SECONDS else Trouble.STOPPED,
            unackedMessages=facts.held, limit=facts.held_limit,
        )  # fmt: skip

    def _consumers(self) -> Iterator[Finding]:
        facts = self.facts
        if facts.switching_to:
            text = f"{facts.switching_to} becomes active in a moment: the previous one may still acknowledge"
            yield _stop("switching", text, _advise("wait a moment"), level=Trouble.MOVING)
        active = next((each.text for each in self.receiving), "another")
        for each in facts.consumers:
            if each.standby:
                text = f"{each.text} is on standby: {active} is the active one"
                yield Finding(kind="standby", text=text)
            elif not each.ready:
                yield from self._consumer(each)
        slow = [each for each in self.receiving if not each.ready and self._is_working(each)]
        if slow and (self.is_stuck or any(each.queued for each in slow)):
            yield self._slow(slow)

    def _slow(self, slow: list[ConsumerFacts]) -> Finding:
        """Return the finding about consumers that work but cannot take more messages."""
        rate_in = self.facts.rate_in
        acks = sum(each.acks_per_second for each in self.receiving)
        held = sum(each.held for each in slow)
        first = slow[0].text
        who = f"{first} is" if len(slow) == 1 else f"{len(slow):,} consumers, such as {first}, are"
        last = f"{span(min(self.age(each.acked_ms) for each in slow))} ago"
        rest = f"{held:,} unacknowledged, the last acknowledgement {last}"
        details = {"consumer": slow[0].name, "unackedMessages": held,
                   "acknowledgedPerSecond": acks, "publishedPerSecond": rate_in}  # fmt: skip
        if not 0 < acks * SLOWER < rate_in:
            return Finding(kind="slow", level=Trouble.MOVING, text=f"{who} busy: {rest}", details=details)
        text = f"{who} slower than the producers: {' against '.join(distinct(rate, acks, rate_in))}; {rest}"
        more = _advise("add consumers, or let the application acknowledge faster")
        return Finding(kind="slow", level=Trouble.WATCH, text=text, advice=(more,), details=details)

    def _consumer(self, consumer: ConsumerFacts) -> Iterator[Finding]:
        """Findings about a consumer that cannot take an entry now."""
        facts, who = self.facts, consumer.text
        held, limit, queued = consumer.held, consumer.held_limit, consumer.queued
        level = Trouble.MOVING
        if self.is_quiet:
            level = Trouble.STOPPED
        elif queued and self._is_quiet(consumer):
            level = self._stopped()
        queue = f"; {how_many(queued, 'entry')} of its keys wait for it" if queued else ""
        common: Json = {"level": level, "stops": self.is_stuck or queued > 0}
        common |= {"consumer": consumer.name, "address": consumer.address, "waiting": queued}
        if consumer.blocked:
            can = consumer.permits > 0 and consumer.reads and not facts.blocked
            can = can and (facts.type != "Key_Shared" or queued > 0)
            allowed = f"{limit:,} are allowed" if limit else "the most that is allowed"
            text = f"{who} holds {held:,} unacknowledged messages, {allowed} to one consumer; "
            text += f"it gets more when half of them are acknowledged{queue}"
            advice = self._more("Consumer", held, limit, can)
            yield _stop("unacked-limit", text, *advice, unackedMessages=held, limit=limit, **common)
        if consumer.permits <= 0 and not self._is_working(consumer):
            kind, text, advice = self._without_permits(consumer)
            yield _stop(kind, text + queue, *advice, lastFlowTimestamp=consumer.asked_ms, **common)
        if not consumer.reads:
            text = f"{who} does not read from its connection: messages sent to it wait there{queue}"
            advice = _advise("see what its process does"), *self._reconnect(facts.held)
            yield _stop("not-reading", text, *advice, **common)

    def _without_permits(self, consumer: ConsumerFacts) -> tuple[str, str, tuple[Advice, ...]]:
        """Kind, text and advice."""
        asked, who, held = self._asked(consumer), consumer.text, consumer.held
        if asked == float("inf"):
            receive = _advise("call receive in its application: with a receiver queue of 0 it asks only then")
            never = "has no permits and got nothing yet" if consumer.asked_ms else "never asked for messages"
            return "no-permits", f"{who} {never}", (receive,)
        has = f"holds {held:,} unacknowledged messages and " if held else ""
        when = "it last asked for messages" if consumer.asked_ms > 0 else "the last message went to it"
        text = f"{who} {has}takes no more: {when} {span(asked)} ago"
        advice = _advise("receive, or resume the listener, in its application"), *self._reconnect(held)
        if asked < QUIET_SECONDS:
            return "no-permits", text, advice
        return "paused", f"{text}, and its application does not receive, or is paused", advice

    # --- keys ---
    def _keys(self) -> Iterator[Finding]:
        facts = self.facts
        level = Trouble.WATCH if self.age(facts.acked_ms) < STUCK_SECONDS else Trouble.STOPPED
        advice = _advise("acknowledge them there"), *self._reconnect(facts.held)
        for key in facts.keys:
            verb = "waits" if key.waiting == 1 else "wait"
            text = f"{how_many(key.waiting, 'entry')} of key {key.key!r} {verb}: {key.holder_text} holds "
            text += f"{how_many(key.held, 'unacknowledged message')} of that key, and its order is kept"
            yield _stop(
                "key-blocked", text, *advice, level=level, key=key.key, slot=key.slot, waiting=key.waiting,
                held=key.held, holder=key.holder, firstWaiting=key.first,
            )  # fmt: skip
        if facts.draining and not facts.keys:
            text = f"{facts.draining:,} key slots wait for acknowledgements of another consumer"
            yield _stop("key-blocked", text, *advice, level=level)
        for name in facts.newcomers:
            text = f"consumer {name!r} joined, and waits until all messages delivered before are acknowledged"
            yield _stop("key-blocked", text, *advice, level=level)
        if facts.unowned:
            text = f"{facts.unowned:,} entries have keys in hash ranges that no consumer has taken"
            ranges = _advise("subscribe with the missing ranges, or with automatic ones (AUTO_SPLIT)")
            yield _stop("key-unowned", text, ranges, entries=facts.unowned)
        if facts.look_ahead:
            yield self._look_ahead()

    def _look_ahead(self) -> Finding:
        facts, level = self.facts, self._stopped()
        text = f"no further entry is read: {how_many(facts.look_ahead, 'entry')} wait for their consumers"
        waits = {each.name: each.queued for each in self.receiving if each.queued and not each.ready}
        for key in facts.keys:
            waits[key.holder] = waits.get(key.holder, 0) + key.waiting
        causes = [each for each in self.receiving if each.name in waits]
        if not causes:
            return _stop("look-ahead", text, level=level, entries=facts.look_ahead)
        cause = max(causes, key=lambda each: waits[each.name])
        text += f", {waits[cause.name]:,} of them because of {cause.text}, "
        text += f"which holds {cause.held:,} unacknowledged"
        close = f"acknowledge there, or close {cause.text}: its messages are delivered to the others"
        advice = _advise(close, closes=cause.name)
        return _stop("look-ahead", text, advice, level=level, entries=facts.look_ahead, consumer=cause.name)

    # --- delays and limits ---
    def _delays(self) -> Iterator[Finding]:
        facts = self.facts
        if not facts.delayed:
            return
        advice = [_advise("wait")]
        if facts.is_geminga:
            now = f"{self._policy('delayedDelivery', _NO_DELAYS)} && {self.unload}"
            advice.append(_advise("have them delivered now", now, delivers=facts.delayed))
        details: Json = {"entries": facts.delayed, "nextTimestamp": facts.delayed_next_ms}
        when = f": the next at {iso_time(facts.delayed_next_ms)}" if facts.delayed_next_ms else ""
        verb = "is" if facts.delayed == 1 else "are"
        text = f"{how_many(facts.delayed, 'entry')} {verb} to be delivered later"
        yield Finding(
            kind="delayed", level=Trouble.WATCH, stops=not facts.waiting and not facts.held, text=text + when,
            advice=tuple(advice), details=details,
        )  # fmt: skip

    def _undelivered(self) -> Iterator[Finding]:
        """Findings if consumers could take messages: a dispatch rate, or as a fallback no known cause."""
        facts = self.facts
        known = facts.look_ahead or facts.reading_fails or facts.switching_to
        if known or facts.blocked or not (facts.waiting and facts.any_ready):
            return
        raise_rate = _advise("raise the dispatch rate of topic, subscription or broker")
        seconds = min(self.age(facts.waiting_since_ms), self.age(facts.delivered_ms))
        if not facts.waiting_since_ms or seconds < QUIET_SECONDS or self._moved(QUIET_SECONDS):
            if facts.throttled:
                text = f"a dispatch rate limits delivery: {how_many(facts.waiting, 'entry')} waiting"
                yield _stop("throttled", text, raise_rate, level=Trouble.MOVING, stops=False)
            return
        ready = next((each.text for each in self.receiving if each.ready), "a consumer")
        if facts.throttled:
            text = f"a dispatch rate is used up: {ready} has permits, but got nothing for {int(seconds)} s"
            yield _stop("throttled", text, raise_rate)
        elif not (facts.keys or facts.unowned or any(e.queued and not e.ready for e in self.receiving)):
            text = f"messages wait and {ready} could take them, but none was delivered for {int(seconds)} s"
            if facts.open_transactions:
                text += (
                    ": they may be behind the first message of an open transaction, of which the topic has "
                )
                see = _advise("see since when each is open", shell_command("transactions list"))
                yield _stop("transaction", f"{text}{facts.open_transactions:,}", see)
                return
            yield _stop("undelivered", text, _advise("see the broker's log; then", self.unload))

    # --- transactions ---
    def _transaction(self) -> Iterator[Finding]:
        """The open transaction that holds back messages of others."""
        facts, found = self.facts, self.facts.transaction
        if found is None:
            return
        verb = "waits" if found.messages == 1 else "wait"
        text = f"{how_many(found.messages)} {verb} behind the first message of {self._name(found)}"
        stops = facts.consumer_count > 0 and not facts.waiting
        yield self._of_transaction("transaction", text, found, stops=stops)

    def _pending_acks(self) -> Iterator[Finding]:
        """Acknowledgements that wait for a commit."""
        facts, found = self.facts, self.facts.pending_acks
        if found is None:
            return
        text = f"{how_many(found.messages)} {'is' if found.messages == 1 else 'are'} acknowledged in "
        more = f" and {found.others:,} more" if found.others else ""
        text += f"{self._name(found)}{more}: they count as unacknowledged until the commit, and are not "
        text += "delivered again before the end"
        idle = not (facts.waiting or facts.held or facts.delayed or facts.transaction)
        yield self._of_transaction("transaction-acks", text, found, stops=facts.consumer_count > 0 and idle)

    @staticmethod
    def _name(found: TransactionFacts) -> str:
        if not found.is_open:
            return f"transaction {found.id}, which is being ended"
        began, ends = iso_time(found.began_ms), iso_time(found.ends_ms)
        return f"transaction {found.id} (open since {began}, time limit {ends})"

    def _of_transaction(self, kind: str, text: str, found: TransactionFacts, *, stops: bool) -> Finding:
        advice = [_advise("wait a moment; see the broker's log")]
        if found.is_open:
            advice = [_advise("commit or abort it in its application"), _abort(found.id)]
        level = Trouble.MOVING
        if self.facts.consumer_count and self.age(found.began_ms) >= QUIET_SECONDS:
            level = self._stopped() if stops else Trouble.WATCH
        return _stop(
            kind, text, *advice, level=level, stops=stops, transaction=found.id,
            messages=found.messages, sinceTimestamp=found.began_ms, endsTimestamp=found.ends_ms,
        )  # fmt: skip

    # --- acknowledgements that are missing ---
    def _rejected(self) -> Iterator[Finding]:
        """The oldest message, if consumers received it again and again."""
        facts = self.facts
        if facts.redeliveries < REDELIVERIES:
            return
        text = f"message {facts.oldest_open} was redelivered {facts.redeliveries:,} times and is not "
        text += "acknowledged: consumers reject it, or exceed their acknowledgement timeout"
        policy = _advise("see its application; a dead-letter policy moves the message to a topic of its own")
        yield _stop(
            "rejected", text, policy, _advise("skip it", self._skip(facts.oldest_open)),
            level=Trouble.WATCH, stops=False, message=facts.oldest_open, redeliveries=facts.redeliveries,
        )  # fmt: skip

    def _hole(self) -> Iterator[Finding]:
        facts, hole = self.facts, self.facts.hole
        if not facts.holes:
            return
        level = Trouble.WATCH if self.age(facts.mark_ms) >= HOLE_SECONDS else Trouble.MOVING
        if hole is None:
            text = "messages are not acknowledged although later ones are, in "
            yield Finding(kind="hole", level=level, text=text + how_many(facts.holes, "range"))
            return
        number = hole.acknowledged_behind
        later = f"later ones are, in {how_many(facts.holes, 'range')}"
        if number >= 0:
            later = "1 later one is" if number == 1 else f"{number:,} later ones are"
        text = f"message {hole.message} is not acknowledged although {later}"
        if hole.open_in_batch:
            what, are = ("message", "is") if hole.open_in_batch.isdecimal() else ("messages", "are")
            text += f"; of its batch, {what} {hole.open_in_batch} {are} not"
        if hole.delivered:
            text += f"; {hole.holder_text} holds it" if hole.holder else "; it was delivered"
        text += "; it is to be delivered later" if hole.delayed else ""
        text += f"; published {span(hole.age_seconds)} ago" if hole.age_seconds >= 0 else ""
        if hole.transaction:
            text += f"; acknowledged in transaction {hole.transaction}, which is not committed"
        yield Finding(
            kind="hole", level=level, text=text + self._again_after(), advice=tuple(self._close_hole(hole)),
            details={"message": hole.message, "acknowledgedBehind": number, "holes": facts.holes,
                     "consumer": hole.holder},
        )  # fmt: skip

    def _close_hole(self, hole: HoleFacts) -> Iterator[Advice]:
        if not self.facts.is_geminga:
            yield from self._reconnect(self.facts.held)
            expire = self._command("subscriptions expire", options=f"--to {hole.message}")
            yield _advise("skip it with all before it", expire)
            return
        if hole.delayed:
            yield _advise("wait")
            return
        if hole.transaction:
            yield _abort(hole.transaction)
            return
        if hole.delivered:
            yield from self._redeliver(1)
        freed = f": frees {size(hole.frees)}" if hole.frees > 0 else ""
        yield _advise(f"skip it{freed}", self._skip(hole.message), frees=hole.frees)

    def _held(self) -> Iterator[Finding]:
        """The consumer that has held messages for longest without acknowledging any."""
        facts = self.facts
        held = [each for each in self.receiving if each.held and each.held_since_ms > 0 and facts.durable]
        worst = min(held, key=lambda each: each.held_since_ms, default=None)
        if worst is None or self.age(worst.held_since_ms) < HELD_SECONDS:
            return
        pending = facts.pending_acks
        if pending and self.age(pending.began_ms) >= HELD_SECONDS and worst.held <= pending.messages:
            return  # they may be acknowledged in a transaction
        again = self._redeliver(worst.held) if facts.is_geminga else self._reconnect(facts.held)
        since = f"{iso_time(worst.held_since_ms)}{self._again_after()}"
        yield Finding(
            kind="unacknowledged", level=Trouble.WATCH,
            text=f"{worst.text} holds {how_many(worst.held)}, and has acknowledged none since {since}",
            advice=(_advise("see what its application does"), *again),
            details={"consumer": worst.name, "unackedMessages": worst.held,
                     "sinceTimestamp": worst.held_since_ms},
        )  # fmt: skip

    # --- advice ---
    def _command(self, verb: str, *names: str, options: str = "") -> str:
        return shell_command(verb, self.facts.topic, self.facts.subscription, *names, options=options)

    def _again_after(self) -> str:
        seconds = self.facts.redeliver_after
        return f"; redelivered after {seconds:g} s" if seconds else ""

    def _skip(self, position: str) -> str:
        return self._command("subscriptions skip", options=f"--message {position}")

    def _policy(self, name: str, value: object) -> str:
        return shell_command("topics policy", self.facts.topic, name, str(value))

    def _reconnect(self, held: int) -> Iterator[Advice]:
        if held:
            text = "have all consumers reconnect, which redelivers what they hold"
            yield _advise(text, self.unload, redelivers=held)

    def _redeliver(self, messages: int) -> Iterator[Advice]:
        """Advise redelivery after a minute, where consumers have permits for it."""
        facts = self.facts
        can = [each.permits > 0 and each.reads for each in self.receiving]
        enough = all(can) if facts.type == "Key_Shared" else any(can)
        if enough and facts.is_geminga and not facts.redeliver_after:
            text = f"redeliver what is unacknowledged for {HELD_SECONDS} s"
            command = self._command("subscriptions redeliver-unacked", str(HELD_SECONDS))
            yield _advise(text, command, redeliversLater=messages)

    def _more(self, whose: str, held: int, limit: int, delivers: bool) -> tuple[Advice, ...]:
        """A limit of unacknowledged messages is reached; ``delivers``: messages are delivered beyond it."""
        advice = [_advise("acknowledge them"), *self._redeliver(held), *self._reconnect(held)]
        if limit and delivers and self.facts.waiting:
            more = 2 * max(limit, held)
            command = self._policy(f"maxUnackedMessagesOn{whose}", more)
            advice.append(_advise(f"allow {more:,}", command, resumes=True))
        return tuple(advice)
