"""The last hour of topics and subscriptions, in memory: messages in and out and the backlog of each minute.

Only topics and subscriptions with a backlog or traffic are kept, `KEPT_MAX` at most, of which each takes
about 1 KiB: about 10 MiB when full, and nothing for idle topics. A restart begins a new history. While a
topic is not in memory, its backlogs do not change.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Final

from geminga.broker.core import Broker
from geminga.broker.delivery.consumer import Subscription
from geminga.broker.delivery.subscription import COMPACTION, PersistentSubscription
from geminga.broker.runtime.cooperative import Job
from geminga.broker.topics.topic import Topic

SAMPLE_SECONDS: Final = 60
SAMPLES: Final = 60
KEPT_MAX: Final = 10_000
_LINES: Final = ("in", "out", "backlog")


class SubscriptionHistory:
    """The last `SAMPLES` samples of one subscription; rates are in messages per second."""

    __slots__ = ("_lines", "_published", "_sent", "empty", "last_turn")

    def __init__(self, before: int = 0) -> None:
        """``before`` is the backlog before the first sample."""
        self._lines = {name: array("f", [before * (name == "backlog")]) * SAMPLES for name in _LINES}
        self._published = self._sent = -1
        self.last_turn = 0
        self.empty = 0
        """Successive samples without a message or a backlog."""

    def add(self, turn: int, published: int, sent: int, backlog: int) -> None:
        """Add a sample. ``published`` and ``sent`` are counters since the topic was loaded."""
        seconds = SAMPLE_SECONDS
        rate_in = (published - self._published) / seconds if 0 <= self._published <= published else 0.0
        rate_out = (sent - self._sent) / seconds if 0 <= self._sent <= sent else 0.0
        missed = min(max(0, turn - self.last_turn - 1), SAMPLES)
        for (name, line), value in zip(self._lines.items(), (rate_in, rate_out, backlog), strict=True):
            line.extend((*self._unchanged(name, missed), value))
            del line[:-SAMPLES]
        self._published, self._sent, self.last_turn = published, sent, turn
        self.empty = 0 if rate_in or rate_out or backlog else self.empty + 1

    def line(self, name: str, turn: int) -> list[float]:
        """Return the samples of ``in``, ``out`` or ``backlog`` up to ``turn``, the oldest first."""
        missed = min(turn - self.last_turn, SAMPLES)
        return [*self._lines[name][missed:], *self._unchanged(name, missed)]

    def _unchanged(self, name: str, number: int) -> list[float]:
        return [self._lines[name][-1] if name == "backlog" else 0.0] * number


def _sent(subscription: Subscription) -> int:
    return subscription.messages_out_gone + sum(each.messages_out for each in subscription.consumers)


class History:
    """Samples of all subscriptions, taken once a minute in slices."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._kept: dict[tuple[str, str], SubscriptionHistory] = {}
        self._turn = 0
        self._since_ms = broker.scheduler.now_ms
        self._sampled_ms = self._since_ms
        broker.scheduler.after(SAMPLE_SECONDS, self._begin, self)

    def __repr__(self) -> str:
        return "history of subscriptions"

    def _begin(self) -> None:
        scheduler = self._broker.scheduler
        scheduler.after(SAMPLE_SECONDS, self._begin, self)
        self._turn += 1
        self._sampled_ms = scheduler.now_ms
        self._broker.slices.start(self._sample(self._turn), self)

    def _sample(self, turn: int) -> Job:
        for topic in self._broker.topics.in_memory_now():
            sent = topic.messages_out_gone + sum(map(_sent, topic.subscriptions.values()))
            self._add(turn, (topic.text, ""), topic, sent, 0)
            for subscription in [*topic.subscriptions.values()]:
                if isinstance(subscription, PersistentSubscription) and subscription.name != COMPACTION:
                    key = (topic.text, subscription.name)
                    self._add(turn, key, topic, _sent(subscription), subscription.backlog_tally()[0])
                if self._broker.slices.should_yield:
                    yield None
            if self._broker.slices.should_yield:
                yield None
        for key, each in [*self._kept.items()]:
            if turn - each.last_turn >= SAMPLES or each.empty >= SAMPLES:
                self._kept.pop(key, None)

    def _add(self, turn: int, key: tuple[str, str], topic: Topic, sent: int, backlog: int) -> None:
        kept = self._kept.get(key)
        if kept is None:
            if not (backlog or topic.access.producers) or len(self._kept) >= KEPT_MAX:
                return
            before = max(0, backlog - topic.messages_in) if self._is_new(topic) else 0
            kept = self._kept[key] = SubscriptionHistory(before)
        kept.add(turn, topic.messages_in, sent, backlog)

    def _is_new(self, topic: Topic | None) -> bool:
        """Return whether a topic may have been absent from memory when the last sample was taken."""
        return topic is None or self._broker.scheduler.now - topic.loaded_at <= SAMPLE_SECONDS

    def of(self, topics: Sequence[str], subscription: str) -> dict[str, Any]:
        """Return the history of a subscription, or of the topic if it is empty, summed over the partitions
        ``topics``; without samples if the subscription has none and its backlog was not known."""
        found = [kept for topic in topics if (kept := self._kept.get((topic, subscription)))]
        loaded = self._broker.topics.in_memory
        is_unknown = subscription and not found and any(self._is_new(loaded(topic)) for topic in topics)
        taken = 0 if is_unknown else min(SAMPLES, self._turn)
        now_ms = self._broker.scheduler.now_ms
        answer: dict[str, Any] = {"seconds": SAMPLE_SECONDS, "end": self._sampled_ms, "now": now_ms}
        for name in _LINES:
            lines = [each.line(name, self._turn)[SAMPLES - taken :] for each in found]
            answer[name] = [round(sum(each), 3) for each in zip(*lines, strict=True)] or [0.0] * taken
        return answer
