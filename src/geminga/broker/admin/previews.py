"""Previews: the effect of an action on a subscription, in figures and one sentence, before the action."""

from collections.abc import Callable
from typing import Any, Final

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.entries.position_lookup import offset_by_time, publish_time
from geminga.broker.topics.persistent import PersistentTopic
from geminga.diagnosis.commands import how_many, iso_time, shell_command

Json = dict[str, Any]


class Preview:
    """Previews for one subscription of a topic in memory. Methods change nothing and return the effect."""

    def __init__(self, topic: PersistentTopic, subscription: PersistentSubscription) -> None:
        self.topic = topic
        self.subscription = subscription
        self.ledger = topic.ledger
        self.cursor = subscription.cursor
        self.now_ms = topic.scheduler.now_ms

    def skip(self, count: int) -> Json:
        """Skip the next ``count`` open messages."""
        open_now = self._open()
        if count >= open_now:
            return self.skip_all()
        offset, inside = self.subscription.behind_messages(count)
        messages = count
        found = self._given_up(offset, messages, self._command("skip", options=f"--count {count}"))
        if inside and offset < self.ledger.confirmed:
            found["text"] += (
                f"; the last {how_many(inside, 'message')} of them lie in batch {self._place(offset)}, "
            )
            found["text"] += "the rest of which stays"
        return found

    def skip_all(self) -> Json:
        """Skip everything that is stored now."""
        return self._given_up(self.ledger.confirmed, self._open(), self._command("clear"))

    def expire(self, seconds: int) -> Json:
        """Expire the messages older than ``seconds``."""
        offset = offset_by_time(self.ledger, self.now_ms - seconds * 1000, self.now_ms)
        command = self._command("expire", options=f"--older-than {seconds}s")
        return self._given_up(offset, self._open_below(offset), command)

    def reset(self, offset: int, where: str) -> Json:
        """Reset the cursor to ``offset``: messages behind it are redelivered, open ones before it skipped."""
        mark = self.cursor.mark
        offset = min(max(offset, self.ledger.start), self.ledger.confirmed)
        again = self.ledger.counts.between(offset, self.ledger.confirmed)[0] - (
            self._open() - self._open_below(offset)
        )
        lost = self._open_below(offset) if offset > mark else 0
        found = self._base(offset, self._command("reset", where))
        parts = [f"starts at {self._place(offset)}"]
        if offset < self.ledger.confirmed:
            parts[0] += f", published {self._time(offset)}"
        if again > 0:
            parts.append(f"{how_many(again, 'message')} that were acknowledged are redelivered")
        if lost:
            parts.append(f"{how_many(lost, 'message')} that were not acknowledged are skipped")
        if not again and not lost:
            parts.append("no message is skipped or redelivered")
        connected = len(self.subscription.consumers)
        if connected:
            who = "its consumer reconnects" if connected == 1 else f"its {connected} consumers reconnect"
            parts.append(who)
        return found | {"messages": lost, "messagesAgain": max(0, again), "text": "; ".join(parts)}

    def redeliver(self, consumer: str) -> Json:
        """Redeliver the unacknowledged messages of all consumers, or of one."""
        of = [each for each in self.subscription.consumers if not consumer or each.name == consumer]
        messages = sum(map(self.subscription.held_by, of))
        held = f"{how_many(messages, 'message')} that {how_many(len(of), 'consumer')} hold unacknowledged"
        text = f"{held} are redelivered to consumers with permits: those in work are processed twice"
        if not messages:
            text = "no consumer holds a message: nothing is redelivered"
        return self._base(self.cursor.mark, "") | {"messages": 0, "messagesAgain": messages, "text": text}

    # --- inside ---
    def _base(self, offset: int, command: str) -> Json:
        return {"from": self._place(self.cursor.mark), "to": self._place(offset), "command": command}

    def _command(self, verb: str, *names: str, options: str = "") -> str:
        place = self.topic.text, self.subscription.name
        return shell_command(f"subscriptions {verb}", *place, *names, options=options)

    def _given_up(self, offset: int, messages: int, command: str) -> Json:
        found = self._base(offset, command)
        text = f"{how_many(messages, 'message')} are skipped for good by this subscription"
        if messages and self.cursor.mark < self.ledger.confirmed:
            text += f", from {self._place(self.subscription.wanted_from)}"
            text += f" published {self._time(self.subscription.wanted_from)}" if messages else ""
        if not messages:
            text = "nothing is skipped: no unacknowledged message is concerned"
        left = self._open() - messages
        return found | {"messages": messages, "messagesAgain": 0, "left": left,
                        "text": f"{text}; {how_many(left, 'message')} stay"}  # fmt: skip

    def _open(self) -> int:
        return self.subscription.backlog_tally()[0]

    def _open_below(self, offset: int) -> int:
        """Return the open messages below an offset, counted on the shorter side of it."""
        mark, end = self.cursor.mark, self.ledger.confirmed
        if offset <= mark:
            return 0
        if offset - mark <= end - offset:
            return self.cursor.messages_open(mark, offset)
        return max(0, self._open() - self.cursor.messages_open(offset, end))

    def _place(self, offset: int) -> str:
        if offset >= self.ledger.confirmed:
            return "the end"
        return "{}:{}".format(*self.ledger.position(offset))

    def _time(self, offset: int) -> str:
        published_ms = publish_time(self.ledger, offset, self.now_ms)
        return iso_time(published_ms) if published_ms else "at a time that it does not say"


ACTIONS: Final[tuple[str, ...]] = ("skip", "skip-all", "expire", "reset", "redeliver")


def preview(
    found: Preview, action: str, number: Callable[[str], int], message: tuple[int, int] | None, consumer: str
) -> Json:
    """Return the effect of ``action``; ``number(name)`` returns a whole number that the request must have."""
    topic = found.topic
    if action == "skip":
        return found.skip(number("count"))
    if action == "skip-all":
        return found.skip_all()
    if action == "expire":
        return found.expire(number("seconds"))
    if action == "redeliver":
        return found.redeliver(consumer)
    if action != "reset":
        raise AdminRefusal(404, f"no action {action!r}; there are {', '.join(ACTIONS)}")
    if message is not None:
        ledger_id, entry_id = message
        offset = topic.ledger.offset_from(ledger_id, entry_id)
        places = {(-1, -1): "earliest", (_END, _END): "latest"}
        where = places.get(message, f"{ledger_id}:{entry_id}")
        return found.reset(offset, where)
    moment = number("timestamp")
    offset = offset_by_time(topic.ledger, moment, topic.scheduler.now_ms)
    return found.reset(offset, str(moment))


_END: Final = (1 << 63) - 1
