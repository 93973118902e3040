"""Mirrors in both directions: acknowledgements and resets on either side are mirrored to the other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import geminga
from geminga.mirror import Mirror, subscription_checkpoint
from geminga.mirror.cursor_state import CursorState, PartialBatch, went_back
from geminga.mirror.cursors import AHEAD, BACK_THERE, IN_USE, MOVED_BACK, CursorMirror
from geminga.mirror.pairing import PAIR_PROPERTY, RECEIPT_PROPERTY, SIGNER_PROPERTY
from geminga.mirror.positions import Position
from geminga.mirror.status import MirrorStatus, SubscriptionStatus
from geminga.mirror.subscription_checkpoint import NOTE_BYTES_MAX, SubscriptionCheckpoint, restored
from tests.mirror.helpers import mirror, mirrored

Earliest = geminga.InitialPosition.Earliest
Shared = geminga.ConsumerType.Shared
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def sides() -> Iterator[tuple[Any, Any]]:
    with geminga.embedded(batch_index_ack=True) as one, geminga.embedded(batch_index_ack=True) as other:
        yield one, other


def until(what: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def publish(broker: Any, *numbers: int, topic: str = "t") -> None:
    client = broker.client()
    producer = client.create_producer(topic)
    for number in numbers:
        producer.send(b"%d" % number)
    client.close()


def subscribed(client: geminga.Client, **options: Any) -> Any:
    """Open a consumer; retries while a mirror updates the subscription."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return client.subscribe("t", "s", initial_position=Earliest, **options)
        except geminga.exceptions.ConsumerBusy:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def take(broker: Any, *, but: tuple[int, ...] = (), count: int, **options: Any) -> None:
    """Receive a number of messages, and acknowledge all but some."""
    client = broker.client()
    consumer = subscribed(client, consumer_type=Shared, **options)
    for _ in range(count):
        message = consumer.receive(20_000)
        if int(message.data()) not in but:
            consumer.acknowledge(message)
    client.close()


def backlog(broker: Any, topic: str = "t") -> int:
    with geminga.Admin(broker.admin_url) as admin:
        return admin.topics.stats(topic).subscriptions["s"].messages_in_backlog


def waiting(broker: Any) -> list[int]:
    client = broker.client()
    consumer = subscribed(client, consumer_type=Shared)
    found = sorted(int(consumer.receive(20_000).data()) for _ in range(backlog(broker)))
    client.close()
    return found


def has_holes(broker: Any) -> bool:
    with geminga.Admin(broker.admin_url) as admin:
        cursor = admin.topics.internal_stats("t").cursors["s"]
    return ":" in cursor.individually_deleted_messages


def has_left(broker: Any, count: int) -> None:
    until(lambda: backlog(broker) == count)


def subscribe(broker: Any) -> None:
    client = broker.client()
    client.subscribe("t", "s", initial_position=Earliest).close()
    client.close()


def arrived(running: Mirror, messages: int) -> None:
    until(lambda: running.status().messages >= messages)


# --- echoes -----------------------------------------------------------------------------------------------


def test_what_is_taken_in_the_other_cluster_is_taken_here(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(50))
    with mirror(one, other) as there, mirror(other, one) as back:
        arrived(there, 50)
        take(other, count=50)
        until(lambda: backlog(one) == 0)
        # And from now on, some published on either side.
        publish(one, *range(50, 70))
        publish(other, *range(70, 80))
        publish(one, *range(80, 90))
        arrived(there, 80)
        arrived(back, 10)
        take(other, count=40, but=(55, 75, 85))
        until(lambda: backlog(one) == 3)
        assert there.status().line()
    assert waiting(one) == waiting(other) == [55, 75, 85]


def test_single_messages_of_batches(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    client = one.client()
    producer = client.create_producer("t", batching_enabled=True, batching_max_messages=10)
    for number in range(40):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    with mirror(one, other) as there, mirror(other, one):
        arrived(there, 40)
        take(other, count=40, but=(3, 4, 17, 39), batch_index_ack_enabled=True)
        until(lambda: backlog(one) == 4)
    assert waiting(one) == waiting(other) == [3, 4, 17, 39]


def test_what_was_taken_while_no_mirror_ran(sides: tuple[Any, Any]) -> None:
    """The map of echoes begins with the process: what is older the source itself says."""
    one, other = sides
    subscribe(one)
    publish(one, *range(30))
    mirrored(one, other)
    publish(other, *range(100, 110))
    mirrored(other, one)
    mirrored(one, other)
    take(other, count=40, but=(7, 20, 105))
    mirrored(other, one)
    assert waiting(one) == waiting(other) == [7, 20, 105]
    # What was a hole is none any more: it is older than each of these mirrors.
    take(other, count=3, but=(105,))
    publish(other, 110)
    mirrored(other, one)
    assert waiting(one) == waiting(other) == [105, 110]


def test_holes_that_close_while_mirrors_run(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(30))
    mirrored(one, other)
    mirrored(other, one)
    with mirror(one, other), mirror(other, one):
        left_over: tuple[int, ...]
        for left_over in ((0, 1, 2, 15, 25), (0, 15), (15,), ()):
            take(other, count=backlog(other), but=left_over)
            has_left(one, len(left_over))
            assert waiting(one) == list(left_over)


def test_a_source_brought_back_from_a_backup_loses_nothing_by_echoes(tmp_path: Path) -> None:
    """Its positions mean other messages now: what the other cluster says of them is not believed."""
    import shutil

    with geminga.embedded() as other:
        with geminga.embedded(tmp_path / "one") as one:
            subscribe(one)
            publish(one, *range(10))
            mirrored(one, other)
            mirrored(other, one)
        shutil.copytree(tmp_path / "one", tmp_path / "backup")
        with geminga.embedded(tmp_path / "one") as one:
            publish(one, *range(10, 20))
            mirrored(one, other)
            mirrored(other, one)
        take(other, count=20)
        with geminga.embedded(tmp_path / "backup") as one:
            publish(one, *range(100, 120))
            mirrored(other, one)
            assert [number for number in waiting(one) if number >= 100] == list(range(100, 120))


def test_through_three_clusters(sides: tuple[Any, Any]) -> None:
    one, other = sides
    with geminga.embedded() as third:
        subscribe(one)
        publish(one, *range(10))
        mirrored(one, other)
        mirrored(other, third)
        take(third, count=10, but=(4,))
        assert mirrored(third, one).messages == 0
        assert waiting(one) == waiting(third) == [4]


# --- rewinds ----------------------------------------------------------------------------------------------


def rewind(broker: Any, place: Any = geminga.MessageId.earliest) -> None:
    with geminga.Admin(broker.admin_url) as admin:
        admin.subscriptions.reset_to_id("t", "s", place)


def test_a_rewind_is_copied(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(40))
    with mirror(one, other) as running:
        take(one, count=40, but=(30,))
        until(lambda: backlog(other) == 1)
        rewind(one)
        until(lambda: backlog(other) == 40)
        take(one, count=40, but=(10, 20))
        until(lambda: backlog(other) == 2)
        publish(one, 40)
        arrived(running, 41)
    assert waiting(one) == waiting(other) == [10, 20, 40]


def test_a_rewind_that_only_opens_holes_is_copied(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(20))
    with mirror(one, other):
        take(one, count=20, but=(0, 10))
        until(lambda: backlog(other) == 2)
        rewind(one)  # to where its mark is
        until(lambda: backlog(other) == 20)
    assert waiting(other) == list(range(20))


def test_a_rewind_that_only_opens_holes_skips_nothing_of_others(sides: tuple[Any, Any]) -> None:
    """Messages published in the target lie before the entries that the reset reopens."""
    one, other = sides
    subscribe(one)
    publish(one, 0)
    with mirror(one, other) as running:
        arrived(running, 1)
        publish(other, 100)
        publish(one, *range(1, 6))
        take(one, count=6, but=(1, 2, 4, 5))
        until(lambda: backlog(other) == 5)
        with geminga.Admin(one.admin_url) as admin:
            ledger = admin.topics.internal_stats("t").ledgers[0].ledger_id
        rewind(one, geminga.MessageId(-1, ledger, 1))  # to where its mark is
        until(lambda: not has_holes(other))
    assert waiting(other) == [1, 2, 3, 4, 5, 100]


def test_a_rewind_of_what_is_older_than_the_mirror(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(20))
    take(one, count=20)
    mirrored(one, other)
    with mirror(one, other) as running:
        assert running.wait_until_caught_up(60)
        rewind(one)
        until(lambda: backlog(other) == 20)
    assert waiting(other) == list(range(20))


def followed(running: Mirror) -> list[SubscriptionStatus]:
    return [one for part in running.status().partitions for one in part.subscriptions]


def notes(running: Mirror) -> list[str]:
    return [one.note for one in followed(running)]


def test_a_rewind_undoes_nobodys_work_in_the_target(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(20))
    with mirror(one, other) as running:
        take(one, count=10)
        until(lambda: backlog(other) == 10)
        take(other, count=3)  # a consumer has moved on
        rewind(one)
        until(lambda: notes(running) == [MOVED_BACK])
        assert waiting(other) == list(range(13, 20))
        client = other.client()
        consumer = subscribed(client)
        take(one, count=20)
        until(lambda: notes(running) == [IN_USE])
        rewind(one)
        consumer.close()
        until(lambda: notes(running) == [""] or notes(running) == [MOVED_BACK])
        assert waiting(other) == list(range(13, 20))
        client.close()


def test_a_rewind_with_a_mirror_each_way(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(20))
    with mirror(one, other) as there, mirror(other, one) as back:
        arrived(there, 20)
        publish(other, *range(20, 30))
        arrived(back, 10)
        take(one, count=30)
        # Both are at rest: else the one back may bring what the other side has just learnt from here.
        until(lambda: [one.marked[-3:] for one in followed(back)] == [":29"])
        rewind(one)
        until(lambda: backlog(other) == 30)
        assert waiting(one) == list(range(30))
        take(other, count=30, but=(5, 25))  # the other consumer continues
        until(lambda: backlog(one) == 2)
    assert waiting(one) == waiting(other) == [5, 25]


def test_a_rewind_is_not_undone_by_what_the_other_cluster_has_learnt_before(sides: tuple[Any, Any]) -> None:
    """The one there has told the other cluster more, and has not seen the rewind when the one back looks."""
    one, other = sides
    subscribe(one)
    publish(other, 100)
    with mirror(other, one) as back:
        arrived(back, 1)
        publish(one, *range(20))
        with mirror(one, other) as there:
            arrived(there, 20)
            take(one, count=11)
            until(lambda: backlog(other) == 10)
            until(lambda: [status.marked[-2:] for status in followed(back)] == [":0"])
        rewind(one)
        with geminga.Admin(other.admin_url) as admin:
            admin.subscriptions.skip("t", "s", 5)  # as the one there would have told it
        until(lambda: notes(back) == [BACK_THERE])
        assert backlog(one) == 21
        # What is taken from now on is told, and leaves the rest as it is.
        take(other, count=2)
        until(lambda: backlog(one) == 19)
    assert waiting(one) == [*(number for number in range(20) if number not in (15, 16)), 100]


def test_more_of_the_other_side_than_a_map_can_be(
    sides: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of both sides in turn: each is a stretch of its own."""
    monkeypatch.setattr("geminga.mirror.position_map.RUNS_MAX", 8)
    one, other = sides
    subscribe(one)
    with mirror(one, other) as there, mirror(other, one) as back:
        for number in range(30):
            publish(one, number)
            arrived(there, number + 1)
            publish(other, 100 + number)
            arrived(back, number + 1)
    take(one, count=60, but=(29,))
    mirrored(one, other)
    assert waiting(other) == [29]
    take(one, count=1)
    mirrored(one, other)
    assert waiting(other) == []


# --- rewinds while no mirror runs -------------------------------------------------------------------------


def test_a_rewind_while_no_mirror_runs_is_copied(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(40))
    mirrored(one, other)
    take(one, count=40, but=(30,))
    mirrored(one, other)
    assert backlog(other) == 1
    rewind(one)
    mirrored(one, other)
    assert waiting(other) == list(range(40))
    take(one, count=40, but=(10, 20))
    mirrored(one, other)
    assert waiting(one) == waiting(other) == [10, 20]
    with geminga.Admin(one.admin_url) as admin:
        place = admin.topics.internal_stats("t").cursors["s"].mark_delete_position
        ledger, entry = map(int, place.split(":"))
        admin.subscriptions.reset_to_id(
            "t", "s", geminga.MessageId(-1, ledger, entry + 1)
        )  # opens holes only
    publish(one, 40)
    assert mirrored(one, other).messages == 1
    assert waiting(one) == waiting(other) == list(range(10, 41))


def test_moves_in_the_target_while_no_mirror_runs_are_left_alone(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(20))
    take(one, count=10)
    mirrored(one, other)
    # Somebody has moved on there: a rewind here does not take that back, and it is said.
    take(other, count=3)
    rewind(one)
    assert notes_of(mirrored(one, other)) == [MOVED_BACK]
    assert waiting(other) == list(range(13, 20))
    # Somebody moves it back there: nothing is taken anew that was told before.
    take(one, count=20)
    mirrored(one, other)
    assert waiting(other) == []
    rewind(other)
    publish(one, 20)
    mirrored(one, other)
    assert waiting(other) == list(range(21))
    take(one, count=1)
    mirrored(one, other)
    assert waiting(other) == list(range(20))


def notes_of(status: MirrorStatus) -> list[str]:
    return [one.note for part in status.partitions for one in part.subscriptions]


def test_an_outdated_note_resets_nothing(sides: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror was killed in between: it is unknown whether another client used the subscription, and this
    is reported."""
    one, other = sides
    subscribe(one)
    publish(one, *range(20))
    take(one, count=5)
    mirrored(one, other)
    with monkeypatch.context() as patched:

        async def killed(self: CursorMirror) -> bool:
            self._noted = {}
            return False

        patched.setattr(CursorMirror, "_note", killed)
        take(one, count=10)
        mirrored(one, other)
    rewind(one)
    with geminga.Admin(one.admin_url) as admin:
        admin.subscriptions.skip("t", "s", 7)
    assert notes_of(mirrored(one, other)) == [AHEAD]
    assert waiting(other) == list(range(15, 20))


def test_what_was_noted_of_another_subscription_does_not_count(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(20))
    take(one, count=12)
    mirrored(one, other)
    with geminga.Admin(other.admin_url) as admin:
        admin.subscriptions.delete("t", "s")
    mirrored(one, other)
    assert waiting(other) == list(range(12, 20))
    with geminga.Admin(one.admin_url) as admin:
        admin.subscriptions.delete("t", "s")
        mirrored(one, other)
        noted = admin.subscriptions.properties("t", "geminga-mirror.standalone")
    assert set(noted) == {PAIR_PROPERTY, SIGNER_PROPERTY, RECEIPT_PROPERTY}


def test_a_rewind_while_neither_of_two_mirrors_runs(sides: tuple[Any, Any]) -> None:
    one, other = sides
    subscribe(one)
    publish(one, *range(20))
    publish(other, *range(20, 30))

    def both() -> None:
        for source, target in ((one, other), (other, one)) * 2:
            mirrored(source, target)

    both()
    take(one, count=30)
    both()
    assert backlog(other) == 0
    rewind(one)
    both()
    assert waiting(one) == waiting(other) == list(range(30))
    take(other, count=30, but=(5, 25))
    both()
    assert waiting(one) == waiting(other) == [5, 25]


@pytest.mark.parametrize(
    "applied",
    [
        SubscriptionCheckpoint(state=CursorState(Position(3, -1))),
        SubscriptionCheckpoint(
            state=CursorState(
                Position(3, 5),
                ((Position(3, 6), Position(4, 7)),),
                ((Position(4, 9), PartialBatch(9, (0, 8))),),
            ),
            through=Position(4, 9), echoed={b"12345678": Position(1, 2)}, marked=Position(7, 8),
            stood=("7:8", "abc"), seen=Position(7, 8),
        ),
    ],
)  # fmt: skip
def test_a_note_is_read_as_it_was_written(applied: SubscriptionCheckpoint) -> None:
    text = applied.noted()
    assert text is not None
    assert restored(text) == dataclasses.replace(applied, restored=True)


def test_notes_have_bounds() -> None:
    holes = tuple((Position(n, 5), Position(n, 7)) for n in range(1, 20_000, 2))
    partly = tuple((Position(n, 9), PartialBatch(10_000, tuple(range(n)))) for n in range(1, 500))
    large = SubscriptionCheckpoint(state=CursorState(Position(0, 3), holes, partly))
    text = large.noted()
    assert text is not None
    assert len(text) <= NOTE_BYTES_MAX
    found = restored(text)
    assert found is not None
    assert found.state is not None
    assert large.state is not None
    assert not went_back(found.state, large.state)
    assert went_back(found.state, CursorState(Position(-1, -1)))
    notes = subscription_checkpoint.notes_of("t", {f"s-{n:05}": large for n in range(5_000)})
    assert 100 < len(notes) < 5_000
    assert (
        sum(len(key) + len(value) for key, value in notes.items())
        <= 2 * subscription_checkpoint.NOTES_BYTES_MAX
    )


@pytest.mark.parametrize(
    "junk",
    [
        "", "{", "[]", "3", '{"source":"x"}', '{"source":"1:2"}', '{"source":3,"through":"1:2"}', "null",
        '{"source":"1:2","through":"1:2","partly":[["1:2",3,[1]]]}', "[" * 100_000,
        '{"source":"1:2","through":"1:2","partly":[["1:2",[3]]]}',
        '{"source":"1:2","through":"1:2","partly":[["1:2"]]}',
    ],
)  # fmt: skip
def test_what_is_no_note(junk: str) -> None:
    assert restored(junk) is None


def position(entry: int) -> Position:
    return Position(3, entry)


@pytest.mark.parametrize(
    ("known", "state", "back"),
    [
        (CursorState(position(5)), CursorState(position(5)), False),
        (CursorState(position(5)), CursorState(position(4)), True),
        (CursorState(position(5), ((position(7), position(9)),)), CursorState(position(5)), True),
        (CursorState(position(5), ((position(7), position(9)),)), CursorState(position(9)), False),
        (
            CursorState(position(5), ((position(7), position(9)), (position(12), position(14)))),
            CursorState(position(8), ((position(11), position(14)),)),
            True,
        ),
        (
            CursorState(position(5), ((position(7), position(9)), (position(12), position(14)))),
            CursorState(position(5), ((position(6), position(16)),)),
            False,
        ),
        (
            CursorState(position(5), (), ((position(8), PartialBatch(10, (1, 2))),)),
            CursorState(position(5), (), ((position(8), PartialBatch(10, (2,))),)),
            True,
        ),
        (
            CursorState(position(5), (), ((position(8), PartialBatch(10, (1, 2))),)),
            CursorState(position(5), ((position(7), position(8)),)),
            False,
        ),
        (
            CursorState(position(5), (), ((position(8), PartialBatch(10, (1,))),)),
            CursorState(position(5)),
            True,
        ),
    ],
)
def test_what_went_back(known: CursorState, state: CursorState, back: bool) -> None:
    assert went_back(known, state) is back
