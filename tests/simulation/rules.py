"""Rules for histories of single workloads; like `tests.simulation.checker`, without code of the product.

Each function raises `AssertionError` naming the first event that breaks its rule.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from tests.simulation.checker import Stored
from tests.simulation.history import History, Position


def exactly_once(stored: Stored, sent: int) -> None:
    """Check that each of the messages ``app-0`` to ``app-(sent - 1)`` is stored once, in this order."""
    found = [content for _, content, _ in stored]
    expected = [f"app-{number}" for number in range(sent)]
    if found != expected:
        counts = Counter(found)
        missing = [content for content in expected if content not in counts]
        doubled = [content for content, count in counts.items() if count > 1]
        raise AssertionError(f"missing: {missing}; more than once: {doubled}; in the order {found}")


def in_blocks(stored: Stored, receipted: Collection[str], returning: Collection[str]) -> None:
    """Check that in no partition an exclusive producer's message follows those of a later one.

    ``returning``: those that wait for the topic again after they have lost it, as in Apache Pulsar.
    """
    by_partition: dict[int, list[str]] = defaultdict(list)
    for position, content, _ in stored:
        producer, seen = content.rpartition("-")[0], by_partition[position[0]]
        if not seen or seen[-1] != producer:
            is_new = producer not in seen or producer in returning
            assert is_new, f"{content} at {position} after {seen[-1]} had the topic"
            seen.append(producer)
    contents = {content for _, content, _ in stored}
    for content in receipted:
        assert content in contents, f"lost: {content}"


def contiguous(history: History, stored: Stored, name: str, *, repeats: bool) -> None:
    """Check that a reader or the only consumer gets each message after the last, from where it was sent to.

    After ``sought`` with a position, the first one is that message or the next; without a position (a seek
    by time) it may be any. ``repeats``: whether an earlier message may be redelivered, as to a
    subscription whose acknowledgements are not yet stored.
    """
    order = {position: number for number, (position, _, _) in enumerate(stored)}
    expected: int | None = 0
    slack = 0
    for event in history.of("received", "seeking", "sought", who=name):
        if event.kind == "seeking":
            expected, slack = None, 0
        elif event.kind == "sought":
            if event.position is not None:
                expected, slack = order[event.position], 1
        else:
            assert event.position in order, f"nothing is stored there: {event}"
            number = order[event.position]
            if expected is not None:
                is_next = expected <= number <= expected + slack
                assert is_next or (repeats and number < expected), (
                    f"{event} where {stored[expected:][:1]} is next"
                )
            if expected is None or number >= expected:
                expected, slack = number + 1, 0


def all_received(history: History, stored: Stored, name: str) -> None:
    """Check that a reader has received everything, each message once."""
    counts = Counter(event.position for event in history.of("received", who=name))
    for position, content, _ in stored:
        assert counts[position] == 1, f"{name} received {content} at {position} {counts[position]} times"


def last_values(expected: Mapping[str, Collection[str]], found: Mapping[str, str], where: str) -> None:
    """Check that a view has one of the values of each key that may be its last; "" stands for none."""
    for key, contents in expected.items():
        assert found.get(key, "") in contents, f"{where}: {key} is {found.get(key, '')!r}, not {contents}"
    strangers = found.keys() - expected.keys()
    assert not strangers, f"{where} has keys that were never sent: {sorted(strangers)}"


def possible_last(history: History) -> dict[str, set[str]]:
    """Return for each key the values that may be the last: the last receipted, and those sent after it
    without a receipt. A value that ends with ``-`` deletes its key."""
    found: dict[str, set[str]] = defaultdict(lambda: {""})
    key_of = {event.content: event.detail for event in history.of("send")}
    receipted = {event.content for event in history.of("receipt")}
    for content, key in key_of.items():
        value = "" if content.endswith("-") else content
        if content in receipted:
            found[key] = {value}
        else:
            found[key].add(value)
    return dict(found)


def delayed(
    history: History,
    due: Mapping[str, float],
    walls: Sequence[tuple[float, float]],
    name: str,
    late: float,
    cancelled: Collection[str] = (),
) -> None:
    """Check that no message is received before its time on the wall clock, nor ``late`` seconds after it.

    Those ``cancelled`` by an acknowledgement, which may be lost with a connection, need not be received.
    ``walls``: each setting of the wall clock, as time of the event and time on the wall clock.
    """

    def wall_at(at: float) -> float:
        since, wall = max(each for each in walls if each[0] <= at)
        return wall + at - since

    sent = {event.content: event.at for event in history.of("send")}
    for event in history.of("received", who=name):
        # The clock may have reached the time and have been set back since.
        moments = [event.at, *(at - 1e-6 for at, _ in walls if sent[event.content] < at <= event.at)]
        latest = max(wall_at(at) for at in moments)
        assert latest >= due[event.content] - 0.001, f"{due[event.content] - latest:.3f} s early: {event}"
    calm = max((event.at for event in history.of("fault")), default=0.0)
    first: dict[str, float] = {}
    for event in history.of("received", who=name):
        first.setdefault(event.content, event.at)
    for event in history.of("receipt"):
        at = first.get(event.content)
        if event.content in cancelled:
            continue
        assert at is not None, f"never received: {event}"
        moments = [calm, event.at, *(each for each, _ in walls)]
        reached = max(at for at in moments if at <= max(calm, event.at)) if moments else calm
        waits = max(0.0, due[event.content] - wall_at(reached))
        assert at <= reached + waits + late, f"{event} is due {waits:.1f} s after {reached}, received at {at}"


def dead_letters(
    history: History, stored: Stored, name: str, dead: Iterable[str], bad: Collection[str], limit: int
) -> None:
    """Check that each message is acknowledged or in the dead letter topic, and there for a reason.

    A batch is counted, and becomes dead letters, as a whole, as with the official clients: also messages
    that were never received, since another one of the batch was refused while they were in the queue.
    ``stored`` tells which those are: the receipt of a message that was sent again may have no position.
    """
    dead = set(dead)
    received = Counter(event.content for event in history.of("received", who=name))
    acknowledged = {event.content for event in history.of("acknowledging", who=name)}
    for event in history.of("receipt"):
        content = event.content
        assert content in acknowledged or content in dead, f"neither acknowledged nor a dead letter: {event}"
        assert content not in bad or content in dead, f"refused each time, and no dead letter: {event}"
    batches: dict[Position, set[str]] = defaultdict(set)
    for position, content, _ in stored:
        batches[*position[:3], 0].add(content)
    most = Counter(received)
    for batch in batches.values():
        for content in batch:
            most[content] = max(most[content], *(received[other] for other in batch))
    is_calm = not any(history.of("fault", "connection ended"))
    for content in dead:
        assert most[content], f"a dead letter that was never received: {content}"
        # A consumer that lost its connection may have had more of them in its queue.
        assert most[content] > limit or not is_calm, (
            f"received {most[content]} times, no dead letter yet: {content}"
        )
    for content, count in received.items():
        assert not is_calm or count <= limit + 1, (
            f"{content} was received {count} times, the limit is {limit}"
        )


def skipped_by_rule(history: History, name: str, ages: Mapping[str, float], skips: int, ttl: float) -> None:
    """Check that messages are neither acknowledged nor received only where an administrator skipped them.

    ``ages``: the publish time of each message. Events ``asked`` and ``confirmed`` name the calls: ``clear``
    skips everything sent before it is confirmed, ``expire S`` what is older than S seconds, ``skip`` one
    message; with ``ttl`` above 0 also what is older than that.
    """
    acknowledged = {event.content for event in history.of("acknowledging", who=name)}
    asked = [(event.at, event.content) for event in history.of("asked", who="administrator")]
    end = history.events[-1].at
    by_skip = 0
    for event in history.of("receipt"):
        if event.content in acknowledged:
            continue
        age = ages[event.content]
        if (0 < ttl <= end - age) or any(_covers(what, at, age) for at, what in asked):
            continue
        by_skip += 1
        assert by_skip <= skips, f"never received, and no rule skips it: {event}"


SLOW_SECONDS = 120.0
"""Longest time for which a call of an administrator is on its way."""


def _covers(what: str, asked_at: float, published_at: float) -> bool:
    call, _, seconds = what.partition(" ")
    if call == "clear":
        return published_at <= asked_at + SLOW_SECONDS
    return call == "expire" and published_at <= asked_at + SLOW_SECONDS - float(seconds)


IN_FLIGHT_SECONDS = 10.0
"""Longest time that a message is on its way to a client that reads."""


def cleared_stays_cleared(history: History, name: str) -> None:
    """Check that nothing receipted before a confirmed ``clear`` was called is received after it."""
    receipts = {event.content: event.at for event in history.of("receipt")}
    asked = cleared = done = float("-inf")
    for event in history.events:
        if event.who == "administrator" and event.content == "clear":
            if event.kind == "asked":
                asked = event.at
            elif event.kind == "confirmed":
                cleared, done = asked, event.at
        elif event.kind == "received" and event.who == name:
            is_old = receipts.get(event.content, float("inf")) < cleared
            assert not (is_old and event.at > done + IN_FLIGHT_SECONDS), (
                f"cleared at {done} and again: {event}"
            )


def backlogs(
    history: History, name: str, ages: Mapping[str, float], ttl: float, *, deduplicated: bool
) -> None:
    """Check the backlogs of a subscription without consumers: no message leaves early or is redelivered.

    ``ages``: the publish time of each message. Events ``backlog`` have the count. What may leave it: a
    ``clear`` by ``name``, and with ``ttl`` above 0 what is older than that.
    """
    receipts = {event.content: event.at for event in history.of("receipt")}
    sends = {event.content: event.at for event in history.of("send")}
    asked = cleared = settled = float("-inf")
    """When the newest clear was asked for, when the newest confirmed one was, when the newest had ended."""
    for event in history.events:
        if event.who != name:
            continue
        if event.kind == "asked":
            asked, settled = event.at, float("inf")
        elif event.kind == "confirmed":
            cleared, settled = asked, event.at
        elif event.kind == "refused":
            settled = event.at
        elif event.kind == "backlog":
            count, oldest = int(event.content), event.at - ttl if ttl else float("-inf")
            kept = [
                content for content, at in receipts.items()
                if at < event.at and sends[content] > settled and ages[content] > oldest
            ]  # fmt: skip
            assert count >= len(kept), f"{event}, but nothing takes {len(kept)} from it: {kept}"
            behind = [
                content for content, at in sends.items()
                if at < event.at and receipts.get(content, event.at) >= cleared
            ]  # fmt: skip
            if deduplicated:
                assert count <= len(behind), f"{event}, but after {cleared} only {len(behind)} came: {behind}"


LARGEST_BATCH = 10


def within_rate(history: History, name: str, rate: int, lives: int) -> None:
    """Check that a subscription gets no more than ``rate`` messages a second, from its first one on.

    A batch may exceed it, and each of the broker's ``lives`` begins with the messages of a second.
    """
    received = list(history.of("received", who=name))
    for count, event in enumerate(received, 1):
        most = rate * (event.at - received[0].at + 1 + lives) + LARGEST_BATCH * rate
        assert count <= most, f"{count} messages where {most:.0f} are allowed: {event}"


def retained(history: History, stored: Stored, seconds: float, now: float) -> None:
    """Check that what was receipted within the retention time is stored."""
    contents = {content for _, content, _ in stored}
    for event in history.of("receipt"):
        assert event.content in contents or event.at < now - seconds, f"younger than {seconds} s: {event}"


CHUNKS_APART = 9
"""Largest distance in entries, perhaps over ledgers, from the first to the last chunk of a message: three of
each of three producers."""


def same_or_named(
    before: Stored, after: Stored, named: Collection[tuple[int, int]], all_named: bool, large: Collection[str]
) -> None:
    """Check a topic after its files were damaged: no other message, and every missing one is named.

    ``named``: ledger and entry of what the store calls damaged. ``all_named``: it names damage without
    knowing the entries. ``large``: messages that may be in chunks; their position is that of the last one.
    """
    expected: dict[Position, tuple[str, str]] = {
        position: (content, key) for position, content, key in before
    }
    for position, content, key in after:
        assert expected.pop(position, None) == (content, key), f"a wrong message: {content} at {position}"
    for position, (content, _) in expected.items():
        partition, ledger, entry, _ = position
        first = ledger, entry
        if content in large:
            earlier = sorted({at[1:3] for at, _, _ in before if at[0] == partition and at < position})
            first = earlier[-CHUNKS_APART] if len(earlier) >= CHUNKS_APART else (0, 0)
        is_named = all_named or any(first <= each <= (ledger, entry) for each in named)
        assert is_named, f"{content} at {ledger}:{entry} is missing, and no damage is named there"


def transactions(
    history: History, stored: Sequence[Stored], names: Sequence[str], receipted: Iterable[str]
) -> None:
    """Check the isolation of transactions: each wrote a result ``source/position/attempt`` to all topics,
    ``stored``, and acknowledged its source. ``names``: the consumers of the topics."""
    visible = [{content for _, content, _ in found} for found in stored]
    results, everywhere = set().union(*visible), set.intersection(*visible)
    assert results == everywhere, f"only in some topics: {sorted(results - everywhere)}"
    ended = {event.content: event.kind for event in history.of("committed", "aborted")}
    wanted = {event.content for event in history.of("committing")}
    for content in results:
        assert content in wanted, f"never to be committed, and visible: {content}"
        assert ended.get(content) != "aborted", f"aborted, and visible: {content}"
    for content, kind in ended.items():
        assert kind == "aborted" or content in results, f"committed, and lost: {content}"
    counts = Counter(content.rpartition("/")[0] for content in results)
    doubled = [source for source, count in counts.items() if count > 1]
    assert not doubled, f"processed in several committed transactions: {doubled}"
    sources = {source.partition("/")[0] for source in counts}
    lost = [content for content in receipted if content not in sources]
    assert not lost, f"never processed: {lost}"
    for name in names:
        for event in history.of("received", who=name):
            assert event.content in results, f"a dirty read: {event}"
