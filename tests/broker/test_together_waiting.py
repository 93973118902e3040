"""Waiting messages and seeks while the broker is killed and the offload storage becomes unavailable.

Beside `test_together`: delayed messages, negatively acknowledged ones, and dead letters; a time to live under
seeks by id and by time; topics terminated during publishing. The tests note which messages were receipted,
received and acknowledged, and derive from that which ones must be delivered.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from waiting import eventually

import geminga
from geminga import ConsumerType
from tests.broker.test_together import Process

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SECONDS = 20.0
EARLIEST = {"ledgerId": -1, "entryId": -1}
OPTIONS: dict[str, Any] = {
    "ack_receipt_enabled": True, "ack_grouping_time_ms": 0, "negative_ack_redelivery_delay_ms": 100,
}  # fmt: skip


class Troubles:
    """Thread that kills the broker and moves its offload folder away and back, until ``end`` is called."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.broker = Process(folder, self.random)
        self.happened: list[float] = []
        """Times at which the broker or the offload folder became unavailable and available, by turns."""
        self._tier, self._away = folder / "tier", folder / "away"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(Random(seed),))
        self._thread.start()

    def _run(self, random: Random) -> None:
        while not self._stop.wait(random.uniform(0.5, 3.5)):
            match random.randrange(4):
                case 0 if self._tier.exists() and not self._away.exists():
                    self.happened.append(time.time())
                    self._tier.rename(self._away)
                case 1:
                    self.mend()
                case 2 | 3:
                    self.happened.append(time.time())
                    self.broker.end(random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                    self.broker.start()
                    self.happened.append(time.time())

    def mend(self) -> None:
        if self._away.exists():
            shutil.rmtree(self._tier, ignore_errors=True)  # files of offloads that were in flight
            self._away.rename(self._tier)
            self.happened.append(time.time())

    def since(self, moment: float) -> bool:
        """Return whether the broker or the offload folder was unavailable at any time since ``moment``."""
        return len(self.happened) % 2 == 1 or any(each >= moment for each in self.happened)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        self.mend()


@pytest.fixture
def troubles(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Troubles]:
    troubles = Troubles(tmp_path, request.param)
    yield troubles
    troubles.end()
    troubles.broker.end(signal.SIGTERM)


@pytest.fixture
def client(troubles: Troubles) -> Iterator[geminga.Client]:
    with contextlib.closing(
        geminga.Client(f"pulsar://127.0.0.1:{troubles.broker.port}", max_backoff_interval_ms=300)
    ) as client:
        yield client


def path_of(topic: str) -> str:
    return f"persistent/public/default/{topic}"


def make(broker: Process, topic: str, subscriptions: list[str], **policies: Any) -> None:
    broker.rest("PUT", path_of(topic))
    for policy, value in {"deduplicationEnabled": True, **policies}.items():
        broker.rest("POST", f"{path_of(topic)}/{policy}", value)
    for subscription in subscriptions:
        broker.rest("PUT", f"{path_of(topic)}/subscription/{subscription}", EARLIEST)


def number_of(message: Any) -> int:
    return int(message.data().split(b"|")[0])


class Waiting:
    """A subscription whose consumer gives back, forgets and acknowledges, and what it was given."""

    def __init__(
        self, client: geminga.Client, topic: str, name: str, kind: ConsumerType, **more: Any
    ) -> None:
        self.random = Random(name)
        self.acknowledged, self.uncertain = set[int](), set[int]()
        self.wrong: list[str] = []
        self.is_patient = True
        self.due: dict[int, float] = {}
        self.poison: set[int] = set()
        self._stop = threading.Event()
        self.consumer = client.subscribe(topic, name, kind, **OPTIONS, **more)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._take(self.consumer.receive(300))
            except geminga.Timeout:
                continue
            except geminga.PulsarException:
                time.sleep(0.1)

    def _take(self, message: Any) -> None:
        number, chance = number_of(message), self.random.random()
        if number in self.acknowledged:
            self.wrong.append(f"{number} was acknowledged and came again")
        if time.time() < self.due.get(number, 0) - 0.02:
            self.wrong.append(f"{number} came before its time")
        if number in self.poison or (self.is_patient and chance < 0.2):
            self.consumer.negative_acknowledge(message)
        elif not self.is_patient or chance > 0.23:
            self.uncertain.add(number)
            self.consumer.acknowledge(message)
            self.uncertain.discard(number)
            self.acknowledged.add(number)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.consumer.close()


@pytest.mark.parametrize("troubles", range(2), indirect=True)
def test_delayed_messages_arrive_in_time_and_rejected_ones_are_redelivered(
    troubles: Troubles, client: geminga.Client
) -> None:
    random, broker = Random(7), troubles.broker
    for topic in ("delayed", "dead"):
        make(broker, topic, ["shared", "keyed"])
    make(broker, "letters", ["all"])
    letters_to = geminga.ConsumerDeadLetterPolicy(max_redeliver_count=4, dead_letter_topic="letters")
    waiting = {
        "delayed": [
            Waiting(client, "delayed", "shared", ConsumerType.Shared),
            Waiting(client, "delayed", "keyed", ConsumerType.KeyShared),
        ],
        "dead": [
            Waiting(client, "dead", "shared", ConsumerType.Shared, dead_letter_policy=letters_to),
            Waiting(client, "dead", "keyed", ConsumerType.KeyShared),
        ],
    }
    sent: dict[str, set[int]] = {"delayed": set(), "dead": set()}
    poison = waiting["dead"][0].poison
    results = list[geminga.Result]()
    producers = {topic: client.create_producer(topic, send_timeout_millis=0) for topic in sent}
    number, end = 0, time.time() + SECONDS
    try:
        while time.time() < end:
            number += 1
            topic, options = random.choice(["delayed", "dead"]), dict[str, Any]()
            if topic == "delayed" and random.random() < 0.6:
                due_ms = int(time.time() * 1000) + random.choice([300, 3000, 15_000])
                options["deliver_at"] = due_ms
                for each in waiting[topic]:
                    each.due[number] = due_ms / 1000
            elif topic == "dead" and random.random() < 0.2:
                poison.add(number)
            sent[topic].add(number)
            producers[topic].send_async(
                b"%d|" % number + bytes(random.choice([3, 900])), lambda result, _: results.append(result),
                partition_key=f"k{random.randrange(9)}", **options,
            )  # fmt: skip
            time.sleep(random.random() * 0.04)
        for producer in producers.values():
            producer.flush()
        assert results == [geminga.Result.Ok] * number
        troubles.end()
        letters = client.subscribe("letters", "all", ConsumerType.Shared, **OPTIONS)
        dead = set[int]()
        for each in (each for both in waiting.values() for each in both):
            each.is_patient = False
        for topic in sent:
            broker.rest("PUT", f"{path_of(topic)}/unload")  # redelivers dropped messages
        deadline = time.time() + 60
        while True:
            with contextlib.suppress(geminga.Timeout):
                message = letters.receive(300)
                dead.add(number_of(message))
                letters.acknowledge(message)
            left = {
                (topic, each.consumer.subscription_name()): sent[topic]
                - each.acknowledged
                - each.uncertain
                - (dead if each.poison else set())
                for topic, both in waiting.items()
                for each in both
            }
            if not any(left.values()):
                break
            assert time.time() < deadline, left
        assert dead >= poison
        assert [each.wrong for both in waiting.values() for each in both] == [[]] * 4
    finally:
        for each in (each for both in waiting.values() for each in both):
            each.end()


class Moving:
    """A topic with a time to live, and what a subscription gets of it after it was moved."""

    def __init__(self, troubles: Troubles, client: geminga.Client, seconds: float) -> None:
        self.troubles, self.client, self.seconds = troubles, client, seconds
        self.random = Random(11)
        self.ids: dict[int, tuple[int, int]] = {}
        self.sent: dict[int, float] = {}
        self.producers = [
            client.create_producer(
                "moving", send_timeout_millis=0, batching_enabled=is_batched, batching_max_messages=6
            )
            for is_batched in (False, True)
        ]

    def publish(self) -> None:
        random = self.random
        for _ in range(random.choice([1, 10, 50])):
            number = len(self.sent)
            self.sent[number] = time.time()

            def told(result: geminga.Result, found: Any, number: int = number) -> None:
                assert result == geminga.Result.Ok
                if found.ledger_id() >= 0:
                    self.ids[number] = found.ledger_id(), found.entry_id()

            value = b"%d|" % number + bytes(random.choice([3, 1500]))
            random.choice(self.producers).send_async(value, told, partition_key=f"k{random.randrange(8)}")
        for producer in self.producers:
            producer.flush()

    def seek(self, name: str, kind: ConsumerType) -> None:
        """Seek, and check that all unexpired messages from there on are delivered, acknowledged or not."""
        if not self.ids:
            return
        began, number = time.time(), self.random.choice([*self.ids])
        consumer = self.client.subscribe("moving", name, kind, **OPTIONS)
        found = list[Any]()
        place: Any = self.sent[number] * 1000 - 1
        is_id = self.random.random() < 0.5
        if is_id:
            place = geminga.MessageId(-1, *self.ids[number], -1)
        try:
            consumer.seek(place if is_id else int(place))
            while True:
                found.append(consumer.receive(2000))
                if self.random.random() < 0.4:
                    consumer.acknowledge(found[-1])
        except geminga.PulsarException as end:
            if not isinstance(end, geminga.Timeout) or self.troubles.since(began):
                return  # it could not be moved, or not all of it came, for something was away
        finally:
            consumer.close()
        numbers = [number_of(each) for each in found]
        oldest = time.time() - self.seconds + 1
        wanted = {
            each
            for each, entry in self.ids.items()
            if (entry > self.ids[number] if is_id else self.sent[each] > self.sent[number])
            and self.sent[each] > oldest
            and entry != self.ids[number]
        }
        assert wanted <= {*numbers}, (name, is_id)
        if is_id:
            assert all(self.ids[each] >= self.ids[number] for each in numbers if each in self.ids)


@pytest.mark.parametrize("troubles", range(2), indirect=True)
def test_a_subscription_is_moved_among_expiring_and_offloaded_entries(
    troubles: Troubles, client: geminga.Client
) -> None:
    broker = troubles.broker
    kinds = {"shared": ConsumerType.Shared, "keyed": ConsumerType.KeyShared, "alone": ConsumerType.Exclusive}
    make(broker, "moving", [*kinds])
    broker.rest("POST", f"{path_of('moving')}/messageTTL?messageTTL=5")
    moving = Moving(troubles, client, 5.0)
    end = time.time() + SECONDS
    while time.time() < end:
        if moving.random.random() < 0.6:
            moving.publish()
        else:
            moving.seek(*moving.random.choice([*kinds.items()]))
    troubles.end()
    with contextlib.closing(client.create_reader("moving", geminga.MessageId.earliest)) as reader:
        found = []
        while reader.has_message_available():
            found.append(number_of(reader.read_next(20_000)))
    assert sorted(found) == [*moving.sent]
    eventually(
        lambda: (
            not any(
                each["msgBacklog"]
                for each in broker.rest("GET", f"{path_of('moving')}/stats")["subscriptions"].values()
            )
        )
    )


@pytest.mark.parametrize("troubles", range(1), indirect=True)
def test_terminated_topics_keep_receipted_messages(troubles: Troubles, client: geminga.Client) -> None:
    """All receipted messages are stored, and no message follows the one reported as the last."""
    broker, random = troubles.broker, Random(5)
    ends: dict[str, tuple[set[int], set[int], tuple[int, int]]] = {}
    for topic in (f"ending-{each}" for each in range(10)):
        make(broker, topic, ["shared"], compactionThreshold=500)
        stored, refused = set[int](), set[int]()
        producer = client.create_producer(
            topic, send_timeout_millis=0, batching_enabled=random.random() < 0.5
        )

        def publish(producer: Any = producer, stored: set[int] = stored, refused: set[int] = refused) -> None:
            for number in range(300):
                with contextlib.suppress(geminga.PulsarException):
                    producer.send_async(
                        b"%d|" % number,
                        lambda result, _, number=number: (
                            stored if result == geminga.Result.Ok else refused
                        ).add(number),
                        partition_key=f"k{number % 9}",
                    )
                if number % 10 == 0:
                    time.sleep(0.005)

        publishing = threading.Thread(target=publish)
        began = time.time()
        publishing.start()
        time.sleep(random.random() * 0.15)
        last = broker.rest("POST", f"{path_of(topic)}/terminate")
        publishing.join(60)
        assert not publishing.is_alive()
        with contextlib.suppress(geminga.PulsarException):
            producer.close()
        if not troubles.since(began):
            ends[topic] = stored, refused, (last["ledgerId"], last["entryId"])
    troubles.end()
    broker.end(signal.SIGKILL)
    broker.start()
    for topic, (stored, refused, last_id) in ends.items():
        with contextlib.closing(client.create_reader(topic, geminga.MessageId.earliest)) as reader:
            found = dict[int, tuple[int, int]]()
            while reader.has_message_available():
                message = reader.read_next(20_000)
                place = message.message_id()
                found[number_of(message)] = place.ledger_id(), place.entry_id()
        assert {*found} == stored, topic
        assert not refused & {*found}
        assert max(found.values(), default=(-1, -1)) == last_id
        with pytest.raises(geminga.TopicTerminated):
            client.create_producer(topic)
