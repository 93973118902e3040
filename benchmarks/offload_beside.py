"""Effect of an offload on publishing beside it.

Each *round* begins in the same state: a broker of its own in a folder of its own, an old ledger with the same
messages, all of it on the disk and out of the page cache, no writes or deletions left from the round before.
Then a publisher sends to another topic without a break, while the process that makes files is stopped and
continued in turn, each for a *window*, in the order ABBA, so that neighbours differ in nothing else.
The output has the medians of the windows, and median and quartiles of the ratios of neighbours. Rounds
run at full speed, where publisher and broker need both cores, and at a fixed rate that leaves one core free,
where the latency of receipts counts.

Rounds with the storage location in memory (the process writes nothing to the disk) and with everything in
memory show the disk's share of the loss. *Whole* turns, with and without an offload that starts with the
turn, each in a folder of its own, include what windows leave out: the start of the process, and the broker's
steps.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import geminga
from benchmarks import brokers, load
from benchmarks.brokers import RunningBroker
from benchmarks.harness import children_of, io_bytes, threads_cpu_seconds
from geminga.client.admin import admin, topic_path
from geminga.ids import TopicName

OLD, NEW = "persistent://public/default/old", "persistent://public/default/new"
BATCH = 1_000
ENTRY_BYTES = 102_000
"""Approximate size of an entry of `old_entries`."""
MEMORY = Path("/dev/shm")
WARM_SECONDS = 1.0
SETTLE_SECONDS = 0.05
"""Pause between stopping or continuing the process and the next window."""
ORDER = (False, True, True, False)
FILL_RATE = 2.5e6
"""Messages a second that a process reads with a core for itself, rounded up."""
WHOLE_MESSAGES, WHOLE_SECONDS = 2_000_000, 4.0
RATE = 2_000.0
"""Batches a second where a core is left."""


AT_WORK_BYTES = 48 << 20
"""Bytes read by a process that has begun to read entries, and not only its own code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Folders of the log and of the files of offloaded ledgers."""

    name: str
    log_in_memory: bool = False
    tier_in_memory: bool = False


DISK = Placement(name="log and files on the disk")
TIER_IN_MEMORY = Placement(name="files in memory", tier_in_memory=True)
ALL_IN_MEMORY = Placement(name="log and files in memory", log_in_memory=True, tier_in_memory=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a round. CPU is seconds, ``written`` bytes to the disk."""

    goes_on: bool
    seconds: float
    messages: int
    broker_cpu: float
    maker_cpu: float
    broker_written: int
    maker_written: int
    offloaded: float
    """Messages that the process has read."""
    receipts: Sequence[float]
    """With a fixed rate: latency of each receipt in seconds."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def p99(self) -> float:
        return quantile(self.receipts, 0.99)


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else float("nan")


# --- a round's beginning ---------------------------------------------------------------------------------


def old_entries(count: int) -> list[bytes]:
    """Frames of ``count`` batches of JSON of about 100 B."""
    chance = random.Random(count)
    frames = []
    for number in range(count):
        rows = [
            b'{"flight": "UA%d", "origin": "%s", "delay": %d, "scheduled": %d, "tail": "N%05dUA", "leg": %d}'
            % (
                chance.randrange(2000), (b"JFK", b"LGA", b"EWR")[row % 3], chance.randrange(-20, 400),
                1_357_034_400 + 60 * (row // 9), chance.randrange(4000), row,
            )
            for row in range(number * BATCH, (number + 1) * BATCH)
        ]  # fmt: skip
        frames.append(load.entry_of(rows))
    return frames


@contextlib.contextmanager
def fresh(
    base: Path | None, placement: Placement, *, drops: bool = False
) -> Iterator[tuple[RunningBroker, Path]]:
    """A broker in a new folder; behind it nothing is left to be written or deleted. ``drops``: of what is
    offloaded the broker keeps nothing."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(brokers.work_folder(base))
        stack.callback(os.sync)
        memory = Path(tempfile.mkdtemp(prefix="bench-", dir=MEMORY))
        stack.callback(shutil.rmtree, memory, ignore_errors=True)
        store = memory if placement.log_in_memory else folder
        tier = (memory if placement.tier_in_memory else folder) / "tier"
        broker = stack.enter_context(brokers.geminga(store, extra=("--offload-location", str(tier))))
        for name, value in (
            ("offloadDeletionLagMs", 0 if drops else 14_400_000),
            ("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
        ):
            method = "POST" if name == "retention" else "PUT"
            admin(broker.admin_url, method, f"namespaces/public/default/{name}", value)
        yield broker, store


def fill(broker: RunningBroker, store: Path, entries: Sequence[bytes], count: int) -> None:
    """``count`` of these entries, again and again, in a ledger that is closed, and not in memory any more."""
    peer = load.Peer(broker.address, OLD)
    try:
        peer.publish_these([entries[number % len(entries)] for number in range(count)], messages=BATCH)
    finally:
        peer.close()
    admin(broker.admin_url, "PUT", f"{topic_path(TopicName.parse(OLD))}/unload")
    with geminga.Client(broker.service_url) as client:
        client.create_producer(OLD).send(b"the next ledger begins")
    os.sync()
    for path in store.rglob("log-*"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def command(broker: RunningBroker) -> None:
    path = topic_path(TopicName.parse(OLD))
    newest = admin(broker.admin_url, "GET", f"{path}/internalStats")["ledgers"][-1]["ledgerId"]
    admin(
        broker.admin_url, "PUT", f"{path}/offload", {"ledgerId": newest, "entryId": 0, "partitionIndex": -1}
    )


def status(broker: RunningBroker) -> str:
    found = admin(broker.admin_url, "GET", f"{topic_path(TopicName.parse(OLD))}/offload")
    if found["status"] == "ERROR":
        raise RuntimeError(found["lastError"])
    return str(found["status"])


def maker_of(broker: RunningBroker) -> int:
    """The process that makes files, once it is at work."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for child in children_of(broker.pid):
            if io_bytes(child, "rchar") > AT_WORK_BYTES:
                return child
        time.sleep(0.002)
    raise RuntimeError("no process makes files: is the ledger too small for one?")


# --- windows -----------------------------------------------------------------------------------------------


def windows(
    base: Path | None, placement: Placement, entries: Sequence[bytes], *, count: int, rate: float,
    seconds: float, cycles: int,
) -> list[Window]:  # fmt: skip
    """One round: ``cycles`` times windows of ``seconds`` in the order ABBA."""
    found: list[Window] = []
    with fresh(base, placement) as (broker, store):
        fill(broker, store, entries, count)
        command(broker)
        maker = maker_of(broker)
        os.kill(maker, signal.SIGSTOP)
        stream = load.Stream(broker.address, NEW, messages=BATCH, rate=rate)
        try:
            time.sleep(WARM_SECONDS)
            for goes_on in ORDER * cycles:
                os.kill(maker, signal.SIGCONT if goes_on else signal.SIGSTOP)
                time.sleep(SETTLE_SECONDS)
                found.append(_window(broker.pid, maker, stream, goes_on, seconds))
            stream.check()
        finally:
            stream.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(maker, signal.SIGCONT)
        if status(broker) != "RUNNING":
            raise RuntimeError("the ledger was offloaded before the round's end: make it larger")
    return found


def _window(broker: int, maker: int, stream: load.Stream, goes_on: bool, seconds: float) -> Window:
    def look() -> tuple[float, ...]:
        return (
            time.perf_counter(), stream.received, threads_cpu_seconds(broker), threads_cpu_seconds(maker),
            io_bytes(broker, "write_bytes"), io_bytes(maker, "write_bytes"), io_bytes(maker, "rchar"),
        )  # fmt: skip

    before = look()
    time.sleep(seconds)
    after = look()
    took = [one - other for one, other in zip(after, before, strict=True)]
    times = stream.times[:]
    return Window(
        goes_on=goes_on, seconds=took[0], messages=int(took[1]) * BATCH, broker_cpu=took[2],
        maker_cpu=took[3], broker_written=int(took[4]), maker_written=int(took[5]),
        offloaded=took[6] / ENTRY_BYTES * BATCH,
        receipts=[wait for at, wait in times if before[0] <= at < after[0]],
    )  # fmt: skip


# --- whole turns -------------------------------------------------------------------------------------------


def whole(
    base: Path | None, entries: Sequence[bytes], *, count: int, seconds: float, goes_on: bool
) -> float:  # fmt: skip
    """Messages a second, with an offload that begins when the time does, or without."""
    with fresh(base, DISK) as (broker, store):
        fill(broker, store, entries, count)
        stream = load.Stream(broker.address, NEW, messages=BATCH)
        try:
            time.sleep(WARM_SECONDS)
            start, first = time.perf_counter(), stream.received
            if goes_on:
                command(broker)
            time.sleep(seconds)
            took, sent = time.perf_counter() - start, (stream.received - first) * BATCH
            stream.check()
        finally:
            stream.close()
    return sent / took


# --- output ------------------------------------------------------------------------------------------------


def ratios(found: Sequence[Window], what: Callable[[Window], float]) -> list[float]:
    """Return the ratios of neighbouring windows: with the process running to with the process stopped."""
    pairs = zip(found[::2], found[1::2], strict=True)
    return [what(one) / what(two) if one.goes_on else what(two) / what(one) for one, two in pairs]


def spread(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


HEAD = (
    "| | publishing beside an offload × (quarters of the pairs) | alone and beside, M/s | p99 of receipts × "
    "| alone and beside, ms | broker's CPU a message, µs | process: cores | offloads, M/s "
    "| to the disk, MB/s: broker, process |\n|---|---|---|---|---|---|---|---|---|"
)


def row(name: str, found: Sequence[Window]) -> str:
    """A line of Markdown of the windows of all rounds."""

    def both(what: Callable[[Window], float], form: str) -> str:
        parts = [[what(each) for each in found if each.goes_on is goes_on] for goes_on in (False, True)]
        return " and ".join(format(statistics.median(each), form) for each in parts)

    beside = [each for each in found if each.goes_on]
    late = spread(ratios(found, lambda each: each.p99)) if found[0].receipts else ""
    cpu = both(lambda each: each.broker_cpu / max(each.messages, 1) * 1e6, ".3f")
    cells = (
        name, spread(ratios(found, lambda each: each.rate)), both(lambda each: each.rate / 1e6, ".2f"),
        late, both(lambda each: each.p99 * 1e3, ".2f") if late else "", cpu,
        f"{statistics.median(each.maker_cpu / each.seconds for each in beside):.2f}",
        f"{statistics.median(each.offloaded / each.seconds for each in beside) / 1e6:.2f}",
        both(lambda each: each.broker_written / each.seconds / 1e6, ".0f")
        + f", {statistics.median(each.maker_written / each.seconds for each in beside) / 1e6:.0f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def measure(
    base: Path | None, *, rounds: int, seconds: float, cycles: int, wholes: int, placements: bool
) -> str:
    """Measure and print; returns what counts most in one line."""
    entries = old_entries(200)
    print(f"Two windows of {seconds:g} s, {rounds * cycles * 2} pairs each:\n\n{HEAD}")
    plans = [("full speed", DISK, 0.0), (f"{RATE * BATCH / 1e6:g} M/s", DISK, RATE)]
    if placements:
        plans += [(f"full speed, {each.name}", each, 0.0) for each in (TIER_IN_MEMORY, ALL_IN_MEMORY)]
    found: dict[str, list[Window]] = {}
    for turn in range(rounds):
        for name, placement, rate in plans[:: -1 if turn % 2 else 1]:
            # At the pace of a process that has a core for itself.
            count = int(FILL_RATE * (1.5 + seconds * cycles * 2) / BATCH)
            found.setdefault(name, []).extend(
                windows(base, placement, entries, count=count, rate=rate, seconds=seconds, cycles=cycles)
            )
    for name, _, _ in plans:
        print(row(name, found[name]), flush=True)
    full, paced = (found[name] for name, _, _ in plans[:2])
    told = (
        f"beside an offload: publishing at full speed × {spread(ratios(full, lambda each: each.rate))}, "
        f"p99 of receipts at {plans[1][0]} × {spread(ratios(paced, lambda each: each.p99))}"
    )
    if wholes:
        pairs = []
        for turn in range(wholes):
            rates = {}
            for goes_on in ORDER[:2] if turn % 2 else ORDER[2:]:
                rates[goes_on] = whole(
                    base, entries, count=WHOLE_MESSAGES // BATCH, seconds=WHOLE_SECONDS, goes_on=goes_on
                )
            pairs.append(rates[True] / rates[False])
        told += f", whole turns × {spread(pairs)}"
    return told
