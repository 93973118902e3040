"""Kill -9 of the mirror, the source and the target, and connections cut inside of frames.

In the end the target must equal the source, entry by entry.
"""

import contextlib
import random
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest
from broker_process import BrokerProcess, Process
from waiting import eventually, until_some_moment

import geminga
from geminga.client.cluster import Cluster
from geminga.ids import TopicName
from tests.client.cutting import CuttingProxy
from tests.mirror.helpers import left, mirror, mirrored, stored


class MirrorProcess(Process):
    def __init__(self, source: Any, target: Any, topic: str) -> None:
        super().__init__(
            "mirror", "--topics", topic,
            "--from", source.service_url, "--from-admin-url", source.admin_url,
            "--to", target.service_url, "--to-admin-url", target.admin_url,
        )  # fmt: skip


class Background:
    """Does its work on a thread until the end of the context."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Load(Background):
    """Publishes to both partitions of a topic, batches and single messages, until the end of the context."""

    def __init__(self, broker: BrokerProcess, topic: str, pause: float) -> None:
        super().__init__()
        self._client = broker.client()
        self._producers = [
            self._client.create_producer(
                topic, batching_enabled=batch > 0, batching_max_messages=batch or 1000,
                send_timeout_millis=0, block_if_queue_full=True,
            )
            for batch in (0, 11)
        ]  # fmt: skip
        self._pause = pause
        self.sent = 0

    def _work(self) -> None:
        while not self._stop.wait(self._pause):
            for producer in self._producers:
                for _ in range(20):
                    producer.send_async(b"%d" % self.sent, None, partition_key=str(self.sent % 7))
                    self.sent += 1

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for producer in self._producers:
            producer.flush()
        self._client.close()


def prepare(broker: Any, topic: str) -> None:
    def created() -> bool:
        namespace = TopicName.parse(topic).namespace_name
        if namespace not in admin.namespaces.list("public"):
            admin.namespaces.create(namespace)
        admin.topics.create(topic, partitions=2)
        return True

    with geminga.Admin(broker.admin_url) as admin:
        eventually(created, but=geminga.PulsarException)


def reached(broker: Any, topic: str, entries: int) -> None:
    """Wait until the target has a number of entries, restarting it when it dies."""
    names = [f"{topic}-partition-{n}" for n in range(2)]

    def is_there() -> bool:
        with geminga.Admin(broker.admin_url) as admin:
            return sum(admin.topics.internal_stats(one).number_of_entries for one in names) >= entries

    eventually(is_there, but=geminga.PulsarException)


def run(tmp_path: Path, kills: int, seed: int, pause_seconds: float = 0.01) -> None:
    chance = random.Random(seed)
    source, target = BrokerProcess(tmp_path / "source"), BrokerProcess(tmp_path / "target")
    with source, target:
        prepare(source, "t")
        with source.client() as client:
            client.subscribe("t", "s").close()
        running = MirrorProcess(source, target, ".*")
        order: list[Process] = []
        while len(order) < kills:
            each: list[Process] = [running, source, target]
            chance.shuffle(each)
            order += each
        with running, Load(source, "t", pause_seconds):
            for number, victim in enumerate(order[:kills], 1):
                reached(target, "t", 100 * number)
                until_some_moment(chance, 0.1)
                victim.again()
            # The last one ends by itself.
        mirrored(Cluster(service_url=source.service_url, admin_url=source.admin_url),
                 Cluster(service_url=target.service_url, admin_url=target.admin_url))  # fmt: skip
        with source.client() as here, target.client() as there:
            for index in range(2):
                name = f"t-partition-{index}"
                was, found = stored(here, name), stored(there, name)
                assert len(was) > 50
                assert found == was


def test_one_kill_of_each_process_loses_and_repeats_nothing(tmp_path):
    run(tmp_path, 3, 1, pause_seconds=0.05)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
def test_repeated_kills_lose_and_repeat_nothing(tmp_path, seed):
    run(tmp_path, 20, seed)


class Worker(Background):
    """Takes what a subscription has, and acknowledges it, now and then, until the end of the context."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        super().__init__()
        self._broker, self._topic = broker, topic
        self.taken: set[bytes] = set()

    def _work(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(geminga.PulsarException), self._broker.client() as client:
                consumer = client.subscribe(self._topic, "s", consumer_type=geminga.ConsumerType.Shared)
                until = time.monotonic() + 0.5  # a mirror has to find the subscription free
                while time.monotonic() < until:
                    message = consumer.receive(200)
                    consumer.acknowledge(message)
                    self.taken.add(bytes(message.data()))
            self._stop.wait(1.0)


def _backlog(broker: BrokerProcess, topic: str) -> int:
    with geminga.Admin(broker.admin_url) as admin:
        return sum(
            admin.topics.stats(f"{topic}-partition-{n}").subscriptions["s"].messages_in_backlog
            for n in range(2)
        )


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_a_mirror_each_way_and_kills_of_all_four(tmp_path, seed):
    """Messages published on either side are consumed on one side: each is consumed, and both backlogs are
    empty."""
    chance = random.Random(seed)
    one, other = BrokerProcess(tmp_path / "one"), BrokerProcess(tmp_path / "other")
    with one, other:
        for broker in (one, other):
            prepare(broker, "t")
            with broker.client() as client:
                client.subscribe("t", "s").close()
        there, back = MirrorProcess(one, other, ".*"), MirrorProcess(other, one, ".*")
        victims: list[Process] = [one, other, there, back] * 4
        chance.shuffle(victims)
        with there, back, Worker(other, "t") as worker:
            with Load(one, "t", 0.05) as here, Load(other, "t", 0.05) as elsewhere:
                for victim in victims:
                    until_some_moment(chance, 3)
                    victim.again()
                time.sleep(2)
            sent = {b"%d" % n for n in range(max(here.sent, elsewhere.sent))}
            eventually(
                lambda: worker.taken >= sent and not _backlog(one, "t") and not _backlog(other, "t"), 300
            )
        with one.client() as left_side, other.client() as right_side:
            for index in range(2):
                name = f"t-partition-{index}"
                found = [sorted(v for _, v in stored(side, name)) for side in (left_side, right_side)]
                assert found[0] == found[1]
                assert len(found[0]) > 100


@pytest.fixture
def folders(tmp_path):
    with geminga.embedded() as source, geminga.embedded() as target:
        yield source, target


def _with_cuts(source: Any, target: Any, messages: int, seed: int, bytes_max: int) -> None:
    chance = random.Random(seed)

    def budgets() -> tuple[int, int]:
        return chance.randint(10_000, bytes_max), chance.randint(10_000, bytes_max)

    proxies = [CuttingProxy(int(one.service_url.rpartition(":")[2]), budgets) for one in (source, target)]
    client = source.client()
    consumer = client.subscribe("t", "s", consumer_type=geminga.ConsumerType.Shared)
    producer = client.create_producer("t", batching_enabled=True, batching_max_messages=5)
    for n in range(messages):
        producer.send_async(b"%d" % n + b"." * chance.randint(0, 300), None)
        if n % 500 == 0:
            producer.flush()
    producer.flush()
    for n in range(messages):
        message = consumer.receive(60_000)
        if n // 5 % 3:
            consumer.acknowledge(message)
    consumer.close()
    with contextlib.ExitStack() as stack:
        ends = []
        for proxy, broker in zip(proxies, (source, target), strict=True):
            stack.enter_context(proxy)
            ends.append(Cluster(service_url=proxy.url, admin_url=broker.admin_url))
        with mirror(*ends) as running:
            assert running.wait_until_caught_up(160)
            status = running.status()
        assert sum(proxy.cuts for proxy in proxies) > 3
        assert status.partitions[0].duplicates == 0
    assert stored(target.client(), "t") == stored(client, "t")
    kept = left(source, "t", "s")
    assert messages // 3 <= len(kept) < messages
    assert left(target, "t", "s") == kept


def test_connections_are_cut(folders):
    _with_cuts(*folders, messages=1500, seed=5, bytes_max=120_000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_connections_are_cut_again_and_again(folders, seed):
    _with_cuts(*folders, messages=5_000, seed=seed, bytes_max=150_000)
