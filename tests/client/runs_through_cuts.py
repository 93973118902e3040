"""Runs of a producer that is disconnected at any byte, unloaded, timed out or closed while it sends;
an independent reader then reads the topic."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pulsar
from cutting import CuttingProxy
from waiting import until_accepted

import geminga
from geminga import Result
from geminga.client.admin import admin


class Play:
    """One producer's life. ``results``: what each message's callback said, in the callbacks' order."""

    def __init__(self, seed: int, port: int, topic: str, unload: Callable[[], None], dedup: bool) -> None:
        self.random = random.Random(seed)
        self.topic = topic
        self.dedup = dedup
        self.results: list[tuple[int, Result, Any]] = []
        self.taken: list[int] = []
        self.payloads: dict[int, bytes] = {}
        self.reconnects = 0
        self._unload = unload
        self._port = port
        self._lock = threading.Lock()

    def budgets(self) -> tuple[int | None, int | None]:
        r = self.random
        if self.calm:
            return None, None
        # From the middle of the handshake to the middle of a run of a thousand.
        up = r.choice([None, r.randrange(1, 600), r.randrange(400, 4_000), r.randrange(4_000, 90_000)])
        down = r.choice([None, r.randrange(300, 900), r.randrange(600, 4_000), r.randrange(4_000, 40_000)])
        return up, down

    def run(self) -> None:
        r = self.random
        self.calm = False
        timeout = r.choice([0, 30_000, 30_000, 150])
        ends = r.choice(["flush", "flush", "close in the midst"])
        with CuttingProxy(self._port, self.budgets) as proxy:
            client = geminga.Client(
                proxy.url,
                initial_backoff_interval_ms=5,
                max_backoff_interval_ms=40,
                memory_limit_bytes=r.choice([0, 0, 300_000]),
                operation_timeout_seconds=10,
            )
            waits = r.random() < 0.7
            producer = client.create_producer(
                self.topic,
                producer_name="mine" if self.dedup else None,
                send_timeout_millis=timeout,
                max_pending_messages=r.choice([7, 300, 1_000, 0]),
                block_if_queue_full=waits,
            )
            for _ in range(r.randrange(3, 9)):
                self._burst(producer)
                event = r.random()
                if event < 0.2:
                    proxy.cut_all()
                elif event < 0.3:
                    self._unload()
                if event < 0.6:
                    time.sleep(r.uniform(0, 0.03))
            self.calm = True
            if ends == "flush":
                try:
                    producer.flush()
                except geminga.Timeout:
                    assert timeout == 150
            self.reconnects = producer.statistics().reconnects
            self.cuts = proxy.cuts
            producer.close()
            client.close()
        self.may_time_out, self.may_end = timeout == 150, ends != "flush"

    def _burst(self, producer: Any) -> None:
        r = self.random
        count = r.choice([1, 20, 400, 1_500])
        size = r.choice([1, 40, 40, 400])
        numbers = range(len(self.payloads), len(self.payloads) + count)
        values = []
        for number in numbers:
            self.payloads[number] = value = b"%d:" % number + bytes(r.randrange(size))
            values.append(value)
        many = r.random() < 0.2
        own = r.choice([{}, {}, {"partition_key": "k"}, {"event_timestamp": 5, "ordering_key": "o"}])
        if many:
            callbacks = [self._callback(number) for number in numbers]
            try:
                producer.send_many(values, callbacks)
                self.taken += numbers
            except geminga.ProducerQueueIsFull:
                pass
            return
        for number, value in zip(numbers, values, strict=True):
            options = own if number % 7 == 0 else {}
            try:
                producer.send_async(value, self._callback(number), **options)
            except (geminga.ProducerQueueIsFull, geminga.MemoryBufferIsFull):
                continue
            self.taken.append(number)

    def _callback(self, number: int) -> Callable[[Result, Any], None]:
        return lambda result, message_id: self.results.append((number, result, message_id))

    # --- the auditor ---
    def audit(self, found: list[bytes]) -> None:
        """``found``: payloads in the order of an independent reader."""
        told = [number for number, _, _ in self.results]
        assert sorted(told) == sorted(set(told)), "a callback came twice"
        assert set(self.taken) <= set(told), f"{len(set(self.taken) - set(told))} callbacks never came"
        codes = {result for _, result, _ in self.results}
        allowed = {Result.Ok}
        allowed |= {Result.Timeout} if self.may_time_out else set()
        allowed |= {Result.AlreadyClosed} if self.may_end else set()
        extra = {Result.ProducerQueueIsFull, Result.MemoryBufferIsFull}
        assert codes <= allowed | extra, codes
        kept = [number for number, result, _ in self.results if result is Result.Ok]
        numbers = [int(content.split(b":")[0]) for content in found]
        assert all(found[i] == self.payloads[n] for i, n in enumerate(numbers)), "contents changed"
        missing = set(kept) - set(numbers)
        assert not missing, (
            f"{len(missing)} of {len(kept)} receipted messages are lost: {sorted(missing)[:5]}"
        )
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), "the order changed"
        assert kept == sorted(kept), "callbacks came out of order"
        copies = Counter(numbers)
        most = max(copies.values(), default=1)
        if self.dedup:
            assert most <= 1, "twice, with deduplication"
        assert most <= 1 + self.reconnects, f"{most} copies after {self.reconnects} reconnects"
        places = [(i.partition(), i.ledger_id(), i.entry_id()) for _, c, i in self.results
                  if c is Result.Ok and i.ledger_id() >= 0]  # fmt: skip
        assert len(places) == len(set(places)), "two messages have one place"


def check_runs(witness: Any, broker: Any, seeds: range, *, deduplicates: bool) -> None:
    """Play each seed on a topic of its own; ``witness``, an official client, finds what has a receipt."""
    for seed in seeds:
        topic = f"persistent://public/default/cut-{uuid4().hex[:12]}"
        path = f"{topic.replace('://', '/')}/unload"

        def unload(path: str = path) -> None:
            until_accepted(lambda: admin(broker.admin_url, "PUT", path))

        witness.subscribe(topic, "keeps").close()  # else unloading trims the messages
        play = Play(seed, int(broker.service_url.rsplit(":", 1)[1]), topic, unload, deduplicates)
        play.run()
        try:
            play.audit(read_all(witness, topic, b"-1:last"))
        except AssertionError as error:
            raise AssertionError(f"--seed {seed}: {error}") from error


def read_all(client: Any, topic: str, last: bytes) -> list[bytes]:
    """Everything in a topic; ``last`` is sent first, to know where it ends."""
    producer = client.create_producer(topic)
    producer.send(last)
    producer.close()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: list[bytes] = []
    while not found or found[-1] != last:
        found.append(reader.read_next(60_000).data())
    reader.close()
    return found[:-1]
