"""Programs of threads in virtual time: `geminga.Client` and Geminga's broker, with CPython's thread switches.

Threads send, receive, listen, read, follow table views and close, all at once; connections
break meanwhile. The auditor records receipts, callbacks, deliveries and calls of listeners. It checks that
no thread sleeps while a message is there for it, that no wait outlives its time-out, and that the end of a
client ends every wait in it.
"""

import gc
import random
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from insides import inner_consumer, publisher_of
from readers import available
from virtual import Clock, Network, Remembered
from virtual_threads import STOPS, Actor, Scheduler, ThreadLoop, shells_on

import geminga
from geminga import (
    AlreadyClosed,
    BatchingType,
    ConsumerBatchReceivePolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
    Timeout,
)
from geminga.broker.serving.server import BrokerServer
from geminga.broker.settings import BrokerSettings
from geminga.client.io import runtime
from geminga.errors import Result

TOPIC = "persistent://public/default/t"
PATIENCE_SECONDS = 240.0
LATE_SECONDS = 0.05
"""A time-out may be so late: what runs takes a little virtual time, too."""


class World:
    """Program of one seed, with the auditor's records."""

    def __init__(self, seed: int, unlocked: bool = False) -> None:
        self.seed = seed
        self.numbers = r = random.Random(seed)
        self.clock = Clock()
        self.network = Network(r)
        density = r.choice([0.0, 0.0, 0.002, 0.02, 0.1])
        self.scheduler = Scheduler(
            r, self.clock, density=density, by_priority=r.random() < 0.5,
            coarseness_seconds=r.choice([0.0, 0.0, 0.001, 0.01]), unlocked=unlocked,
        )  # fmt: skip
        self.slow = r.random() < 0.3
        self.lateness = r.choice([0.0, 0.2])
        self.loops: list[ThreadLoop] = []
        self.faulty = r.random() < 0.3
        self.partitions = r.choice([0, 0, 3])
        self.kind = r.choice([ConsumerType.Shared, ConsumerType.Shared, ConsumerType.KeyShared,
                              ConsumerType.Exclusive, ConsumerType.Failover])  # fmt: skip
        self.nacks = r.random() < 0.2
        self.tracks = r.random() < 0.2
        self.handed_over: set[str] = set()
        self.receipted: set[str] = set()
        self.called_back: Counter[str] = Counter()
        self.failed: dict[str, Any] = {}
        self.given_up: set[str] = set()
        self.promised: set[str] = set()
        """A call returned and owes a callback."""
        self.came: Counter[str] = Counter()
        self.read: dict[int, list[tuple[int, str]]] = {}
        self.heard: list[dict[str, list[bytes]]] = []
        self.ends: Counter[str] = Counter()
        self.senders: list[Actor] = []
        self.actors: list[Actor] = []
        self.consumers: list[Any] = []
        self.producers: list[Any] = []
        self.shared: list[Any] = []
        self.over = False
        self.scheduler.at_idle.append(self.nobody_sleeps)

    # --- the play ---
    def play(self) -> None:
        # The seed decides the whole run, with the names of consumers and the jitter of reconnects.
        numbers = SimpleNamespace(Random=lambda: random.Random(self.seed))
        gc.collect()
        gc.disable()
        try:
            with (
                shells_on(self.scheduler, self.new_loop),
                patch("geminga.client.handles.context.random_module", numbers),
                patch.object(runtime, "_live", weakref.WeakSet()),  # other tests' clients live outside
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore", ResourceWarning)
                self.main()
        finally:
            gc.enable()
            self.network.close()
        for loop in self.loops:
            assert not loop.errors, loop.errors[0]

    def new_loop(self) -> ThreadLoop:
        loop = ThreadLoop(self.scheduler, self.numbers, self.clock, self.network, self.lateness)
        self.loops.append(loop)
        return loop

    @contextmanager
    def broker(self) -> Iterator[BrokerServer]:
        kinds = {"auto_create_topic_kind": "partitioned", "auto_create_partitions": 3}
        loop = self.new_loop()
        server = BrokerServer(
            BrokerSettings(
                memory=True, port=0, web_port=None, failover_delay_seconds=0.1,
                **(kinds if self.partitions else {}),
            )
        )  # fmt: skip
        loop.run_until_complete(server.start())
        serving = self.scheduler.spawn("broker", loop.run_forever)
        yield server
        loop.call_soon_threadsafe(loop.stop)
        self.scheduler.join(serving)
        loop.run_until_complete(server.stop())
        loop.close()

    def main(self) -> None:
        with self.broker() as server:
            self.client = geminga.Client(
                server.settings.service_url,
                initial_backoff_interval_ms=10,
                max_backoff_interval_ms=300,
                memory_limit_bytes=self.numbers.choice([0, 0, 20_000]),
                message_listener_threads=self.numbers.choice([1, 3]),
            )
            self.act()
            self.came_at = self.clock.now
            self.end()
            self.scheduler.pass_time(30)
            assert not server.connections, "connections outlive their client"
            left = [actor.name for actor in self.scheduler.alive() if not actor.name.startswith("broker")]
            assert not left, f"threads outlive their client: {left}\n{self.scheduler.where()}"

    def act(self) -> None:
        r = self.numbers
        one = self.kind in (ConsumerType.Exclusive, ConsumerType.Failover)
        for number in range(1 if self.kind is ConsumerType.Exclusive else r.randrange(1, 4)):
            listens = r.random() < 0.4
            consumer = self.subscribe(f"c{number}", listens)
            self.consumers.append(consumer)
            if not listens:
                for _ in range(1 if one and r.random() < 0.3 else r.randrange(1, 4)):
                    self.start("receiver", lambda c=consumer: self.receive(c))
                for _ in range(r.randrange(2)):
                    self.start("passer-by", lambda c=consumer: self.pass_by(c))
            elif r.random() < 0.5:
                self.start("pauser", lambda c=consumer: self.pause(c))
        if r.random() < 0.5:
            self.shared.append(self.create_producer())
        for number in range(r.randrange(1, 4)):
            self.senders.append(self.scheduler.spawn("sender", lambda n=number: self.send(n)))
        for number in range(r.randrange(0, 3)):
            self.start("reader", lambda n=number: self.follow(n))
        self.view = self.client.create_table_view(TOPIC)
        for _ in range(r.randrange(1, 3)):
            self.senders.append(self.scheduler.spawn("viewer", self.listen))
        if self.faulty:
            self.senders.append(self.scheduler.spawn("breaker", self.break_things))
        for sender in self.senders:
            assert self.scheduler.join(sender, PATIENCE_SECONDS), f"hangs:\n{self.scheduler.where()}"
        self.network.refuses = False
        self.everything_comes()

    def start(self, name: str, run: Callable[[], None]) -> None:
        def to_the_end() -> None:
            with suppress(AlreadyClosed, StopIteration):
                run()
            self.ends["told"] += 1

        self.actors.append(self.scheduler.spawn(name, to_the_end))

    def nap(self, *choices: float) -> None:
        self.scheduler.pass_time(self.numbers.choice(choices))

    # --- sending ---
    def create_producer(self) -> Any:
        r = self.numbers
        batching = r.random() < 0.5
        options: dict[str, Any] = {"batching_enabled": batching, "block_if_queue_full": True}
        if batching:
            options |= {"batching_max_messages": r.choice([2, 10]), "batching_max_publish_delay_ms": 5}
        if self.kind is ConsumerType.KeyShared:
            options["batching_type"] = BatchingType.KeyBased
        producer = self.client.create_producer(TOPIC, max_pending_messages=r.choice([1, 5, 1000]), **options)
        self.producers.append(producer)
        return producer

    def send(self, number: int) -> None:
        r = self.numbers
        own = not self.shared or r.random() < 0.3
        producer = self.create_producer() if own else self.shared[0]
        for i in range(r.choice([1, 10, 25])):
            self.send_one(producer, number, i)
            if r.random() < 0.2:
                self.nap(0.0, 0.001, 0.02, 0.2 if self.slow else 0.0)
        if r.random() < 0.5:
            producer.flush()
        if own and r.random() < 0.5:
            producer.close()
            self.given_up |= {name for name, result in self.failed.items() if result is Result.AlreadyClosed}

    def send_one(self, producer: Any, number: int, i: int) -> None:
        r = self.numbers
        name = f"{number}.{i}"
        key = f"{number}-{r.randrange(3)}" if r.random() < 0.7 else None
        removes = key is not None and r.random() < 0.1
        self.handed_over.add(name)
        content = b"" if removes else name.encode()
        extras: dict[str, Any] = {"partition_key": key}
        if removes:
            extras["properties"] = {"name": name}
        way = r.random()
        if way < 0.3:
            producer.send(content, **extras)
            self.receipted.add(name)
        elif way < 0.9 or removes:
            producer.send_async(content, self.callback(name), **extras)
            self.promised.add(name)
        else:
            producer.send_many([content], [self.callback(name)], keys=[key])
            self.promised.add(name)

    def callback(self, name: str) -> Callable[[Any, Any], None]:
        def done(result: Any, message_id: Any) -> None:
            self.called_back[name] += 1
            if result is Result.Ok:
                self.receipted.add(name)
            else:
                self.failed[name] = result

        return done

    # --- receiving ---
    def subscribe(self, name: str, listens: bool) -> Any:
        r = self.numbers
        return self.client.subscribe(
            TOPIC, "s", self.kind, consumer_name=name,
            receiver_queue_size=r.choice([1, 3, 50, 1000]),
            negative_ack_redelivery_delay_ms=50,
            initial_position=InitialPosition.Earliest,
            batch_receive_policy=r.choice([None, ConsumerBatchReceivePolicy(3, -1, 20)]),
            unacked_messages_timeout_ms=10_000 if self.tracks else None,
            message_listener=self.listener() if listens else None,
        )  # fmt: skip

    def listener(self) -> Callable[[Any, Any], None]:
        inside: list[bool] = []

        def listen(consumer: Any, message: Any) -> None:
            assert not inside, "a listener is called on two threads at once"
            inside.append(True)
            if self.numbers.random() < 0.3:
                self.nap(0.0, 0.001, 0.05)
            with suppress(AlreadyClosed):
                self.process(consumer, message)
            inside.clear()

        return listen

    def process(self, consumer: Any, message: Any) -> None:
        r = self.numbers
        if self.nacks and r.random() < 0.2:
            consumer.negative_acknowledge(message)
            return
        self.came[name_of(message)] += 1
        consumer.acknowledge(message if r.random() < 0.8 else message.message_id())

    def receive(self, consumer: Any) -> None:
        while True:
            for message in self.take(consumer):
                if self.numbers.random() < 0.1:
                    self.nap(0.0, 0.01, 0.05)
                self.process(consumer, message)
            if self.tracks and self.numbers.random() < 0.05:
                self.nap(12.0)  # longer than the acknowledgement time-out of received messages

    def take(self, consumer: Any) -> list[Any]:
        r = self.numbers
        way = r.random()
        if way < 0.4:
            return [consumer.receive()]
        if way < 0.5:
            return list(consumer.batch_receive())
        if way < 0.6:
            return [next(consumer)]
        millis = r.choice([1, 20, 1000])
        began = self.clock.now
        try:
            return [consumer.receive(millis)]
        except Timeout:
            late = self.clock.now - began - millis / 1000
            assert late < LATE_SECONDS, f"receive({millis}) took {late:.3f} s more"
            return []

    def pass_by(self, consumer: Any) -> None:
        """Wait for a message at times, and mostly go without one."""
        while not self.over:
            self.nap(0.001, 0.01, 0.1)
            with suppress(Timeout):
                self.process(consumer, consumer.receive(self.numbers.choice([0, 1, 5])))

    def pause(self, consumer: Any) -> None:
        while not self.over:
            consumer.pause_message_listener()
            self.nap(0.0, 0.01, 12.0 if self.tracks else 0.1)
            consumer.resume_message_listener()
            self.nap(0.0, 0.01, 0.1)

    # --- reading and viewing ---
    def follow(self, number: int) -> None:
        reader = self.client.create_reader(
            TOPIC, MessageId.earliest, receiver_queue_size=self.numbers.choice([1, 10])
        )
        found = self.read[number] = []
        while True:
            with suppress(Timeout):
                message = reader.read_next(self.numbers.choice([None, 5, 1000]))
                found.append((message.message_id().partition(), name_of(message)))

    def listen(self) -> None:
        inside: list[bool] = []
        heard: dict[str, list[bytes]] = {}

        def told(key: str, value: bytes) -> None:
            assert not inside, "a table view's listener is called on two threads at once"
            inside.append(True)
            if self.numbers.random() < 0.3:
                self.nap(0.0, 0.003)
            heard.setdefault(key, []).append(value)
            inside.clear()

        self.nap(0.0, 0.01, 0.05)
        self.view.for_each_and_listen(told)
        self.heard.append(heard)

    def break_things(self) -> None:
        r = self.numbers
        for _ in range(r.randrange(1, 6)):
            self.scheduler.pass_time(r.uniform(0, 0.3))
            self.network.cut()
            if r.random() < 0.3:
                self.network.refuses = True
                self.scheduler.pass_time(r.uniform(0, 0.5))
                self.network.refuses = False

    # --- the auditor ---
    def nobody_sleeps(self) -> None:
        """Check, while no thread can run, that no receiver waits with a message in its queue."""
        for consumer in self.consumers:
            heart = inner_consumer(consumer)
            if len(heart.receive_waiters) and heart.queue:
                raise AssertionError(
                    f"{len(heart.receive_waiters)} receivers sleep before {len(heart.queue)} messages"
                )
        for producer in self.producers:
            engine = publisher_of(producer)
            if engine.submit_queue.pairs and engine._timer is None and not engine._loop.is_closed():
                raise AssertionError("messages were handed over, and nobody was told")

    def everything_comes(self) -> None:
        """Check that consumers, readers and views get each message with a receipt; all callbacks ran."""

        def missing() -> list[Any]:
            lists = [sorted(self.receipted - set(self.came))]
            lists += [sorted(self.receipted - {name for _, name in found}) for found in self.read.values()]
            lists += [sorted(self.promised - set(self.called_back))]
            return [some for some in lists if some]

        end = self.clock.now + PATIENCE_SECONDS
        while missing():
            assert self.clock.now < end, f"never came: {missing()}\n{self.scheduler.where()}"
            self.scheduler.pass_time(0.5)
        self.scheduler.pass_time(45 if self.tracks else 5)
        assert set(self.came) <= self.handed_over
        # A producer that is closed without a connection fails its pending messages.
        assert self.promised <= self.receipted | (self.given_up if self.faulty else set()), (
            f"failed without a reason: {self.failed}"
        )
        repeated = [name for name, count in self.called_back.items() if count > 1]
        assert not repeated, f"callbacks called again: {repeated}"
        if not self.faulty and not self.nacks:  # a nack brings a whole batch back
            twice = [name for name, count in self.came.items() if count > 1]
            assert not twice, f"delivered twice, without a reason: {twice}"
        self.order_is_kept()

    def order_is_kept(self) -> None:
        """Check that readers and listeners received all stored messages in order, and none twice."""
        stored: dict[int, list[str]] = {}
        of_key: dict[str, list[bytes]] = {}
        lanes: dict[tuple[str, str], list[int]] = {}
        reader = self.client.create_reader(TOPIC, MessageId.earliest)
        for message in available(reader):
            name = name_of(message)
            stored.setdefault(message.message_id().partition(), []).append(name)
            if message.has_partition_key():
                of_key.setdefault(message.partition_key(), []).append(message.data())
                sender, _, number = name.partition(".")
                lanes.setdefault((sender, message.partition_key()), []).append(int(number))
        reader.close()
        for (sender, key), numbers in lanes.items():
            numbers = list(dict.fromkeys(numbers)) if self.faulty else numbers  # sent again after a cut
            # A handler's messages may overtake the one that it runs on top of.
            assert sender == "9" or numbers == sorted(numbers), f"{key} is stored in another order: {numbers}"
        for found in self.read.values():
            for partition, names in stored.items():
                own = [name for where, name in found if where == partition]
                assert own == names, f"the reader of partition {partition} read otherwise"
        newest = {key: contents[-1] for key, contents in of_key.items() if contents[-1]}
        with self.client.create_table_view(TOPIC) as fresh:
            values = [{key: view.get(key) for key in view} for view in (fresh, self.view)]
        assert values == [newest, newest], "the view is behind"
        for heard in self.heard:
            assert set(newest) <= set(heard)
            for key, told in heard.items():
                # The value at the time that the listener was added, and every later change.
                assert told == of_key[key][-len(told) :], f"a listener heard {key} otherwise: {told}"

    # --- the end ---
    def end(self) -> None:
        r = self.numbers
        self.over = True
        if r.random() < 0.3:
            r.choice(self.consumers).close()
        if r.random() < 0.2:
            self.network.cut()
        if self.shared:
            for number in range(r.randrange(3)):
                self.start("last", lambda n=number: self.send_to_the_end(n))
            self.nap(0.0, 0.0, 0.001)
        way = r.choice(["close", "close", "shutdown", "twice", "exit"])
        self.ends[way] += 1
        if way == "close":
            self.client.close()
        elif way == "shutdown":
            self.client.shutdown()
        elif way == "twice":
            other = self.scheduler.spawn("closer", r.choice([self.client.close, self.client.shutdown]))
            r.choice([self.client.close, self.client.shutdown])()
            assert self.scheduler.join(other, PATIENCE_SECONDS), f"hangs:\n{self.scheduler.where()}"
        else:
            # The interpreter ends, with threads that still wait.
            runtime.end_all()
        for actor in self.actors:
            assert self.scheduler.join(actor, 60), (
                f"{actor.name} still waits for a client that is closed:\n{self.scheduler.where()}"
            )
        untold = self.promised - set(self.called_back)
        assert not untold, f"the client has ended, and these callbacks were never called: {sorted(untold)}"
        self.client.shutdown()

    def send_to_the_end(self, number: int) -> None:
        """Handed over in the last moment: the end may come before the receipt, not before the outcome."""
        for i in range(200):
            name = f"{70 + number}.{i}"
            if i % 8 == 7:
                self.shared[0].send(name.encode())
                self.nap(0.0, 0.001)
            else:
                self.shared[0].send_async(name.encode(), self.callback(name))
                self.promised.add(name)


def name_of(message: Any) -> str:
    return message.properties().get("name") or message.data().decode()


class Told(NamedTuple):
    """Record of a run."""

    came: tuple[tuple[str, int], ...]
    came_at: float
    switches: int
    stops: int
    cuts: int
    receipted: int
    heard: int


def run_seed(seed: int, unlocked: bool = False) -> Told:
    assert threading.current_thread() is threading.main_thread()
    world = World(seed, unlocked)
    try:
        world.play()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise AssertionError(f"--seed {seed}: {type(error).__name__}: {error}") from error
    return Told(
        tuple(world.came.items()), world.came_at, world.scheduler.switches, world.scheduler.stops,
        world.network.cuts, len(world.receipted), sum(map(len, world.heard)),
    )  # fmt: skip


told = Remembered(run_seed)


@pytest.mark.simulation(6, 6)
def test_threads_lose_no_message_and_no_call_hangs(seeds):
    for seed in seeds:
        told.play(seed)


@pytest.mark.skipif(not STOPS, reason="needs stops between instructions")
@pytest.mark.simulation(4, 4)
def test_threads_without_the_interpreter_lock_lose_no_message_and_no_call_hangs(seeds):
    for seed in seeds:
        run_seed(seed, unlocked=True)


def test_the_simulation_reaches_what_it_is_meant_to_reach():
    runs = [told.of(seed) for seed in range(12)]
    assert sum(run.stops for run in runs) > 100 or not STOPS
    assert sum(run.receipted for run in runs) > 100
    assert sum(run.cuts for run in runs) > 2
    assert sum(run.heard for run in runs) > 10


def test_the_same_seed_repeats_the_same_run():
    for seed in (2, 3, 5):
        first, second = told.of(seed), told.play(seed)
        assert first.came == second.came
        assert (first.came_at, first.switches) == (second.came_at, second.switches)
