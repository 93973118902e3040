"""Transactions over a power loss at each operation of the disk: all of one has happened, or nothing."""

import random
from typing import Any

import pytest

from geminga.ledger.log import journal
from geminga.ledger.settings import StoreSettings
from tests.broker.conftest import TOPIC, Command, Harness, entry_bytes
from tests.support.disk_stores import open_store
from tests.support.faulty_filesystem import Fate, Plan, PowerLoss, SimulatedDisk

OUT = ("persistent://public/default/out-0", "persistent://public/default/out-1")
SETTINGS = StoreSettings(
    log_file_bytes=8192, preallocate_bytes=0, checkpoint_log_bytes=8192, checkpoint_records=20,
    cache_bytes=4096, garbage_bytes_min=8192, rewrite_live_fraction=0.5,
)  # fmt: skip
SOURCES = 8
TIMEOUT_MS = 60_000


class Life:
    """A worker that reads a topic and writes to two others, in one transaction for each message. ``ends`` has
    the ends that it asked for and those that were answered, ``seen`` what was delivered."""

    def __init__(self) -> None:
        self.asked: dict[int, bool] = {}
        self.answered: dict[int, bool] = {}
        self.seen: set[bytes] = set()
        self.outs: list[Any] = []

    def work(self, harness: Harness) -> None:
        self.outs = [harness.consumer(topic, "witness", durable=False) for topic in OUT]
        feeder, worker = harness.producer(TOPIC), harness.peer()
        for number, topic in enumerate(OUT, 1):
            worker.producer(topic, number)
        for number in range(SOURCES):
            feeder.send(number, entry_bytes(b"%d" % number, sequence_id=number))
        worker.subscribe(TOPIC, "s", kind="Shared")
        for number, message in enumerate(worker.messages()):
            self._step(worker, number, (message.ledger_id, message.entry_id))

    def look(self) -> None:
        """Take what was delivered, and answers that arrived, before the power failed."""
        for out in self.outs:
            self.seen.update(out.payloads())

    def _step(self, worker: Any, number: int, place: tuple[int, int]) -> None:
        worker.frames.clear()
        txn = worker.begin_transaction(TIMEOUT_MS)
        body = {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}
        for producer_id in (1, 2):
            entry = entry_bytes(b"%d" % number, sequence_id=number)
            worker.send(number, entry, producer_id=producer_id, transaction=txn)
        worker.ack(place, request_id=1, **body)
        if number % 4 == 3:
            return  # left to its time limit
        worker.frames.clear()
        commits = number % 4 != 2
        self.asked[number] = commits
        try:
            worker.command("endTxn", txn_action=int(not commits), request_id=2, **body)
        finally:
            for frame in worker.take(Command.END_TXN_RESPONSE):
                assert not frame.command.endTxnResponse.HasField("error")
                self.answered[number] = commits


def run(plan: Plan, disk: SimulatedDisk) -> tuple[Life, int]:
    """Let the worker work until the power fails; return how many operations the disk had."""
    life, store = Life(), None
    try:
        store = open_store(disk, SETTINGS, plan)
        life.work(Harness(store))
    except PowerLoss:
        pass
    life.look()
    return life, 0 if store is None else store.filesystem.operations  # type: ignore[attr-defined]


def check(life: Life, disk: SimulatedDisk) -> None:
    """Check what a broker on the disk serves, at once and after all time limits."""
    harness = Harness(open_store(disk, SETTINGS))
    first = _visible(harness)
    assert life.seen <= first[0] & first[1], "a message that was delivered is gone"
    harness.advance(TIMEOUT_MS / 1000 + 1)
    last = _visible(harness)
    assert first[0] <= last[0], "a message was taken back"
    harness.restart()
    assert _visible(harness) == last
    assert last[0] == last[1], "a transaction happened in one topic only"
    consumer = harness.consumer(TOPIC, "s", kind="Shared")
    unread = set(consumer.payloads())
    assert not unread & last[0], "a result without its acknowledgement"
    allowed = {b"%d" % number for number, commits in life.asked.items() if commits}
    assert last[0] <= allowed, "an aborted message is delivered"
    assert not list(harness.store.keys.names("transaction/"))
    for number, commits in life.answered.items():
        payload = b"%d" % number
        assert (payload in last[0]) == commits, "an end that was answered did not happen"
        assert payload in unread | last[0], "an acknowledgement without its result"


def _visible(harness: Harness) -> tuple[set[bytes], set[bytes]]:
    found = []
    for topic in OUT:
        start = {"ledgerId": 0, "entryId": 0}
        reader = harness.consumer(topic, "check", durable=False, start_message_id=start)
        payloads = reader.payloads()
        assert len(payloads) == len(set(payloads))
        found.append(set(payloads))
        reader.disconnect()
    return found[0], found[1]


def operations() -> int:
    return run(Plan(), SimulatedDisk())[1]


@pytest.mark.parametrize(("data", "records"), [("some", 1000), ("all", 1000), ("none", 1), ("some", 1)])
def test_a_power_loss_at_any_moment_leaves_transactions_whole(data, records, monkeypatch, part):
    """``records``: most that are written together; the store's own thread may write at any moment."""
    monkeypatch.setattr(journal, "_RECORDS_PER_GROUP_MAX", records)
    count = operations()
    assert count > 100
    for number in part(range(1, count + 1), 10):
        disk, numbers = SimulatedDisk(), random.Random(number)
        life, _ = run(Plan(crash_at=number, torn_bytes=numbers.choice([None, 0, 30])), disk)
        try:
            check(life, disk.crash(Fate(data, "some", numbers.choice(["last", "first"]), numbers)))
        except BaseException as error:
            error.add_note(f"at operation {number} of {count}")
            raise
