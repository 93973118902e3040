"""The cursor follows Spark: by rule over scripted subscriptions, then with a broker as Spark drives it."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from driven_query import Query, numbers, publish, trim

from geminga import Client
from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.client.admin import admin
from geminga.errors import ConsumerBusy
from geminga.ids import MessageId
from geminga.spark.cluster.watch import SubscriptionCursor
from geminga.spark.datasource import PulsarStreamReader
from geminga.spark.offsets import EARLIEST, Offset, Offsets, Partition
from geminga.spark.source.cursor import QueryCursor
from geminga.spark.source.data_loss import DataLossError
from geminga.testing.apache_pulsar import free_ports

A, B = ("persistent://public/default/a", -1), ("persistent://public/default/b", 0)


@dataclass
class ScriptedCursors:
    """A topic's newest position, first position and mark-delete position by partition."""

    newest: dict[Partition, tuple[int, int]]
    marked: dict[Partition, tuple[int, int]] = field(default_factory=dict)
    before_first: tuple[int, int] = (3, -1)
    moves: list[dict[Partition, tuple[int, int]]] = field(default_factory=list)
    rewinds: list[dict[Partition, tuple[int, int]]] = field(default_factory=list)

    def states(
        self,
        partitions: Iterable[Partition],
        *,
        from_latest: Collection[Partition] = (),
        known: Collection[Partition] = (),
    ) -> dict[Partition, SubscriptionCursor | None]:
        found: dict[Partition, SubscriptionCursor | None] = {}
        for partition in partitions:
            if partition in known and partition not in self.marked:
                found[partition] = None
                continue
            start = self.newest[partition] if partition in from_latest else self.before_first
            marked = self.marked.setdefault(partition, start)
            found[partition] = SubscriptionCursor(
                MessageId(-1, *self.newest[partition]), MessageId(-1, *marked)
            )
        return found

    def move(self, places: Mapping[Partition, MessageId]) -> None:
        self.moves.append({p: (place.ledger_id, place.entry_id) for p, place in places.items()})
        self.marked.update(self.moves[-1])

    def rewind(self, places: Mapping[Partition, MessageId]) -> None:
        self.rewinds.append({p: (place.ledger_id, place.entry_id) for p, place in places.items()})
        self.marked.update({p: (ledger, entry - 1) for p, (ledger, entry) in self.rewinds[-1].items()})

    def close(self) -> None:
        pass


@dataclass
class ScriptedLosses:
    """``there``: whose entries are all there; what is lost is written down."""

    there: set[Partition] = field(default_factory=lambda: {A, B})
    told: list[str] = field(default_factory=list)
    fails: bool = True

    def still_there(self, places: Offsets) -> set[Partition]:
        return self.there & set(places)

    def lost(self, what: str) -> None:
        self.told.append(what)
        if self.fails:
            raise DataLossError(what)


def followed(cursors: ScriptedCursors, losses: ScriptedLosses | None = None, **given: Any) -> QueryCursor:
    return QueryCursor("s", cursors, losses or ScriptedLosses(), **given)


def test_a_new_query_creates_its_subscription_and_moves_its_cursor():
    cursors = ScriptedCursors({A: (5, 9), B: (3, 0)})
    cursor = followed(cursors, is_own=True)
    start: Offsets = {A: Offset(5, 2), B: EARLIEST}
    assert cursor.follow(start, [A, B], is_new=True) == {A: Offset(5, 9), B: Offset(3, 0)}
    assert (cursors.marked, cursors.rewinds) == ({A: (5, 2), B: (3, -1)}, [])
    assert cursor.kept == {A, B}
    cursor.follow({A: Offset(5, 9), B: EARLIEST}, [A, B], is_new=False)
    cursor.follow({A: Offset(5, 9), B: EARLIEST}, [A, B], is_new=False)
    assert cursors.moves == [{A: (5, 2)}, {A: (5, 9)}]


def test_the_cursor_moves_only_past_completed_entries():
    cursors = ScriptedCursors({A: (8, 9)}, {A: (5, 2)})
    cursor = followed(cursors)
    cursor.follow({A: Offset(5, 6, 3)}, [A], is_new=False)
    assert cursors.marked[A] == (5, 5), "the rest of the batch is not done"
    cursor.follow({A: Offset(8, -1)}, [A], is_new=False)
    assert cursors.marked[A] == (5, 5), "which entry is before ledger 8 is not known"
    cursor.follow({A: Offset(8, 0)}, [A], is_new=False)
    assert cursors.marked[A] == (8, 0)


def test_a_new_partition_starts_at_its_first_message():
    cursors = ScriptedCursors({A: (5, 9), B: (3, 4)}, {A: (5, 9)})
    cursor = followed(cursors)
    cursor.follow({A: Offset(5, 9)}, [A, B], is_new=False)
    assert cursors.marked[B] == (3, -1)
    assert cursor.kept == {A, B}


def test_a_subscription_that_is_ahead_is_moved_back_and_not_trusted(caplog):
    cursors = ScriptedCursors({A: (6, 4)}, {A: (6, 2)})
    cursor = followed(cursors, kept={A})
    with caplog.at_level(logging.WARNING, "geminga.spark"):
        cursor.follow({A: Offset(5, 9)}, [A], is_new=False)
    assert (cursor.kept, cursors.rewinds) == (set(), [{A: (5, 10)}])
    assert "the subscription s of persistent://public/default/a was moved or recreated" in caplog.text
    cursor.follow({A: Offset(5, 9)}, [A], is_new=False)
    assert cursor.kept == {A}


@pytest.mark.parametrize("before_first", [(9, -1), (-1, -1)], ids=["between ledgers", "no ledger"])
def test_later_subscriptions_are_not_trusted_for_earlier_messages(before_first):
    """The topic was trimmed empty, and the query had no subscription until now: where it is made is where the
    broker would have moved one that had kept everything."""
    cursors, losses = ScriptedCursors({A: (9, -1)}, before_first=before_first), ScriptedLosses(there=set())
    cursor = followed(cursors, losses)
    for _ in range(2):
        cursor.follow({A: Offset(5, 9)}, [A], is_new=False)
        assert (cursor.kept, cursors.rewinds, losses.told) == (set(), [], [])
    cursor.follow({A: Offset(9, 0)}, [A], is_new=False)
    assert cursor.kept == {A}


def test_a_subscription_added_later_retains_the_existing_messages(caplog):
    cursors = ScriptedCursors({A: (6, 4)}, before_first=(5, -1))
    cursor = followed(cursors)
    cursor.follow({A: Offset(5, 9)}, [A], is_new=False)
    assert (cursor.kept, cursors.moves, cursors.rewinds) == ({A}, [{A: (5, 9)}], [])
    assert not [record for record in caplog.records if record.name.startswith("geminga.spark")]


def test_the_cursor_is_not_moved_in_a_recreated_topic():
    cursors = ScriptedCursors({A: (2, 4)}, {A: (2, -1)})
    cursor = followed(cursors)
    assert cursor.follow({A: Offset(5, 9)}, [A], is_new=False) == {A: Offset(2, 4)}
    assert (cursor.kept, cursors.moves, cursors.rewinds) == (set(), [], [])


def test_removed_subscriptions_are_recreated_if_nothing_is_missing(caplog):
    cursors = ScriptedCursors({A: (6, 4)}, before_first=(5, -1))
    cursor = followed(cursors)
    with caplog.at_level(logging.WARNING, "geminga.spark"):
        cursor.follow({A: Offset(5, 9)}, [A], is_new=False, is_known=True)
    assert (cursor.kept, cursors.moves, cursors.rewinds) == ({A}, [{A: (5, 9)}], [])
    assert "the subscription s of persistent://public/default/a was removed" in caplog.text


@pytest.mark.parametrize("place", [Offset(5, 9), EARLIEST], ids=str)
def test_a_removed_subscription_is_not_trusted(place):
    """On a topic trimmed empty a recreated cursor is where the broker would have moved the old one."""
    cursors, losses = ScriptedCursors({A: (9, -1)}, before_first=(9, -1)), ScriptedLosses(there=set())
    for _ in range(2):
        with pytest.raises(DataLossError, match="was removed"):
            followed(cursors, losses).follow({A: place}, [A], is_new=False, is_known=True)
    assert not cursors.marked, "it is missing still, whenever the query starts again"
    losses.fails = False
    cursor = followed(cursors, losses)
    for _ in range(2):
        cursor.follow({A: place}, [A], is_new=False, is_known=True)
        assert (cursor.kept, cursors.rewinds) == (set(), [])
    assert len(losses.told) == 3
    cursor.follow({A: Offset(9, 0)}, [A], is_new=False, is_known=True)
    assert cursor.kept == {A}


def test_a_subscription_removed_during_the_query_is_not_trusted():
    cursors, losses = ScriptedCursors({A: (6, 4)}, {A: (5, 9)}), ScriptedLosses(there=set())
    cursor = followed(cursors, losses)
    cursor.follow({A: Offset(5, 9)}, [A], is_new=True)
    cursors.marked.clear()
    assert cursor.keeps({A: Offset(5, 9)}) == set()
    with pytest.raises(DataLossError, match="was removed"):
        cursor.follow({A: Offset(5, 9)}, [A], is_new=True)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_cursor_moved_past_an_unread_message_is_a_loss(is_known):
    """A broker moves a cursor to the next ledger when a done one was trimmed, but not past a message that is
    not read; a time to live does."""
    losses = ScriptedLosses(there=set())
    cursors = ScriptedCursors({A: (6, 4)}, {A: (5, 9)})
    cursor = followed(cursors, losses)
    if is_known:  # by an earlier run
        cursors.marked[A] = (9, -1)
        with pytest.raises(DataLossError, match="moved to 9:-1, by a time to live"):
            cursor.follow({A: Offset(5, 9)}, [A], is_new=False, is_known=True, waiting={A: Offset(6, 4)})
        return
    cursor.follow({A: Offset(5, 9)}, [A], is_new=False)
    cursors.marked[A] = (6, -1)
    cursor.follow({A: Offset(5, 9)}, [A], is_new=False)
    assert cursor.kept == {A}, "ledger 5 was done"
    cursors.newest[A], cursors.marked[A] = (9, -1), (9, -1)
    with pytest.raises(DataLossError, match="moved to 9:-1, by a time to live"):
        cursor.follow({A: Offset(5, 9)}, [A], is_new=False)
    assert cursors.rewinds == []


def test_a_new_query_moves_an_existing_subscription_back_to_its_start(caplog):
    """The cursor may stand between two ledgers, with the earlier ones retained."""
    back = [{A: (-1, -1)}]
    for is_own, marked, rewinds in ((True, (6, -1), []), (False, (6, -1), back), (False, (6, 2), back)):
        cursors = ScriptedCursors({A: (6, 4)}, {A: marked})
        followed(cursors, is_own=is_own).follow({A: EARLIEST}, [A], is_new=True)
        assert cursors.rewinds == rewinds
    assert not [record for record in caplog.records if record.name.startswith("geminga.spark")]


# --- with a broker ---
@pytest.fixture(scope="module")
def broker():
    with embedded(ledger_entries_max=10, retention_minutes=0, retention_megabytes=0) as running:
        yield running


def durable(broker: EmbeddedBroker, topic: str, **options: Any) -> Query:
    """A query from the first message on, with a subscription of its own unless another one is given."""
    own = {} if "predefinedSubscription" in options else {"durableSubscription": True}
    return Query(broker, topic, startingOffsets="earliest", **own, **options)


def begun(broker: EmbeddedBroker, client: Client, topic: str, **options: Any) -> Query:
    """Nothing is retained here: what is published before the subscription is there may be removed."""
    query = durable(broker, topic, **options)
    client.create_producer(topic).close()
    query.latest()
    return query


def test_the_backlog_is_sparks_lag(broker, client, pulsar_topic):
    query = begun(broker, client, pulsar_topic, subscriptionPrefix="mine", maxRowsPerTrigger=10)
    publish(client, pulsar_topic, 0, 25)
    for number, size in enumerate((10, 10, 5)):
        assert query.batch() == numbers(10 * number, size)
        query.latest()
        left = max(0, 15 - 10 * number)
        assert query.backlog == left
        assert query.lag["messages"] == max(0, left - 10), "behind the end of the micro-batch that is planned"
    (name,) = query.stats()
    assert name.startswith("mine-")
    publish(client, pulsar_topic, 25, 10)
    query.restart()
    assert query.latest() != query.log[-1]
    assert query.backlog == 10
    assert query.batch() == numbers(25, 10)
    query.latest()
    assert query.backlog == 0
    assert list(query.stats()) == [name], "a restart goes on with the subscription of the checkpoint"


def test_the_last_micro_batch_of_an_available_now_run_is_acknowledged(broker, client, pulsar_topic):
    query = begun(broker, client, pulsar_topic, predefinedSubscription="s", maxRowsPerTrigger=9)
    publish(client, pulsar_topic, 0, 25)
    query.reader.prepareForTriggerAvailableNow()
    seen = []
    while not query.log or query.latest() != query.log[-1]:
        seen += query.batch()
    assert seen == numbers(0, 25)
    assert query.backlog == 0


def test_a_killed_driver_keeps_uncommitted_messages_after_the_cursor(broker, client, pulsar_topic):
    """Planned and uncommitted messages are after the cursor, before and after the restart."""
    query = begun(broker, client, pulsar_topic, predefinedSubscription="s", maxRowsPerTrigger=10)
    publish(client, pulsar_topic, 0, 25)
    first = query.latest()
    query.restart()
    assert query.run(first) == numbers(0, 10)
    assert query.backlog == 25
    planned = query.latest()
    assert query.backlog == 15
    query.restart()
    assert query.run(planned) == numbers(10, 10)
    assert query.backlog == 15
    query.latest()
    assert query.backlog == 5


def test_ledgers_trimmed_after_their_commit_are_no_loss(broker, client, pulsar_topic):
    """Each run ends with a ledger that the broker then deletes, and nothing was lost."""
    query = durable(broker, pulsar_topic)
    for run in range(3):
        publish(client, pulsar_topic, 10 * run, 10)
        assert query.batch() == numbers(10 * run, 10)
        query.latest()
        trim(broker, pulsar_topic)
        query.restart()
    without = Query(broker, pulsar_topic, startingOffsets="earliest")
    without.log = [{pulsar_topic: {"-1": next(iter(query.log[0][pulsar_topic].values()))}}]
    publish(client, pulsar_topic, 30, 1)
    with pytest.raises(DataLossError, match="is gone"):
        without.batch()
    assert query.batch() == numbers(30, 1)


@pytest.mark.parametrize("moment", ["planned", "asked"])
def test_a_subscription_moved_after_planning_is_a_loss(broker, client, pulsar_topic, monkeypatch, moment):
    """As a time to live, a quota or an administrator does, once the micro-batch is planned: until then it has
    kept all there is, which is no promise."""
    path = pulsar_topic.replace("://", "/")
    query = durable(broker, pulsar_topic)
    publish(client, pulsar_topic, 0, 5)
    query.batch()
    query.latest()
    publish(client, pulsar_topic, 5, 10)
    (name,) = query.stats()

    def move() -> None:  # ledger 0 has ten entries, and is removed; the later ledger exists
        admin(broker.admin_url, "POST", f"{path}/subscription/{name}/skip/5")
        trim(broker, pulsar_topic)

    planned = query.latest()
    if moment == "asked":
        move()
    else:
        monkeypatch.setattr(query.reader, "read", _before(query.reader.read, move))
    with pytest.raises(DataLossError, match="is gone"):
        query.run(planned)


def _before(read: Callable[..., Iterator[Any]], act: Callable[[], None]) -> Callable[..., Iterator[Any]]:
    acts = [act]

    def reading(part: Any) -> Iterator[Any]:
        if acts:
            acts.pop()()
        yield from read(part)

    return reading


def remove(query: Query) -> None:
    (name,) = query.stats()
    path = query.topic.replace("://", "/")
    admin(query.broker.admin_url, "DELETE", f"{path}/subscription/{name}?force=true")


@pytest.mark.parametrize("is_down", [True, False], ids=["down", "running"])
def test_a_removed_subscription_of_an_emptied_topic_is_a_loss(broker, client, pulsar_topic, is_down):
    """The empty topic shows no trace of the messages that it had."""
    query = begun(broker, client, pulsar_topic)
    publish(client, pulsar_topic, 0, 15)
    assert query.batch() == numbers(0, 15)
    query.latest()
    if is_down:
        query.reader.stop()
    remove(query)
    publish(client, pulsar_topic, 15, 30)
    admin(broker.admin_url, "PUT", f"{pulsar_topic.replace('://', '/')}/unload")
    trim(broker, pulsar_topic)
    for _ in range(2):
        with pytest.raises(DataLossError, match="was removed, by an administrator"):
            query.latest()
        query.restart()
        publish(client, pulsar_topic, 45, 5)
    query.options["failOnDataLoss"] = False
    query.restart()
    assert query.batch()[-5:] == numbers(45, 5)
    query.latest()
    del query.options["failOnDataLoss"]
    query.restart()
    publish(client, pulsar_topic, 50, 5)
    assert query.batch() == numbers(50, 5)


def test_turning_the_option_on_after_a_loss_reports_the_loss(broker, client, pulsar_topic):
    """The subscription is made on a topic that was trimmed empty: it kept nothing of what is gone."""
    query = Query(broker, pulsar_topic, startingOffsets="earliest")
    publish(client, pulsar_topic, 0, 45)
    assert query.batch() == numbers(0, 45)
    query.reader.stop()
    publish(client, pulsar_topic, 45, 30)
    admin(broker.admin_url, "PUT", f"{pulsar_topic.replace('://', '/')}/unload")
    trim(broker, pulsar_topic)
    query.options["durableSubscription"] = True
    query.restart()
    query.latest()
    publish(client, pulsar_topic, 75, 5)
    with pytest.raises(DataLossError, match="is gone, the first one left is"):
        query.batch()


def test_messages_after_the_cursor_are_not_trimmed(broker, client, pulsar_topic):
    query = begun(broker, client, pulsar_topic, maxRowsPerTrigger=15)
    publish(client, pulsar_topic, 0, 50)
    seen = []
    for _ in range(3):
        seen += query.batch()
        trim(broker, pulsar_topic)
        query.restart()
    seen += query.batch()
    assert seen == numbers(0, 50)


def test_an_existing_subscription_determines_the_start(broker, client, pulsar_topic):
    consumer = client.subscribe(pulsar_topic, "s", receiver_queue_size=10)
    publish(client, pulsar_topic, 0, 20)
    for _ in range(5):
        consumer.acknowledge(consumer.receive(30_000))
    consumer.close()
    assert Query(broker, pulsar_topic, predefinedSubscription="s").batch() == numbers(5, 15)
    again = Query(broker, pulsar_topic, predefinedSubscription="s", startingOffsets="earliest")
    with pytest.raises(ConsumerBusy):
        again.batch()


def test_a_repeated_first_micro_batch_from_latest_reads_the_same(broker, client, pulsar_topic):
    """Spark keeps no note of its start: asked again, 'latest' would be behind what was planned."""
    publish(client, pulsar_topic, 0, 5)
    for options in ({}, {"durableSubscription": True}):
        query = Query(broker, pulsar_topic, **options)
        query.reader.initialOffset()
        publish(client, pulsar_topic, 5, 5)
        planned = query.latest()
        publish(client, pulsar_topic, 10, 5)
        query.restart()
        assert query.run(planned) == numbers(5, 5)
        assert query.batch() == numbers(10, 5)


def test_a_minimum_of_rows_delays_micro_batches(broker, client, pulsar_topic, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(PulsarStreamReader, "clock", staticmethod(lambda: clock[0]))
    publish(client, pulsar_topic, 0, 5)
    query = Query(
        broker, pulsar_topic, startingOffsets="earliest", minRowsPerTrigger=10, maxTriggerDelay="1m"
    )
    assert query.batch() == numbers(0, 5), "nothing was there before it started"
    publish(client, pulsar_topic, 5, 5)
    assert query.latest() == query.log[-1]
    assert query.lag["messages"] == 5
    publish(client, pulsar_topic, 10, 8)
    assert query.batch() == numbers(5, 13)
    publish(client, pulsar_topic, 18, 1)
    clock[0] += 59
    assert query.latest() == query.log[-1]
    clock[0] += 2
    assert query.batch() == numbers(18, 1)
    publish(client, pulsar_topic, 19, 1)
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == numbers(19, 1)


def test_offsets_and_cursor_survive_a_restart_of_the_broker(tmp_path):
    topic = "persistent://public/default/kept"
    port, web_port = free_ports(2)
    with embedded(tmp_path / "store", port=port, web_port=web_port) as first, first.client() as client:
        publish(client, topic, 0, 20)
        query = durable(first, topic, maxRowsPerTrigger=10)
        assert query.batch() == numbers(0, 10)
        query.latest()
    with embedded(tmp_path / "store", port=port, web_port=web_port) as second:
        query.broker = second
        assert query.backlog == 10
        assert query.batch() == numbers(10, 10)
        query.latest()
        assert query.backlog == 0
        query.reader.stop()
