"""A process that publishes at a rate, whatever happens, and tells what became of each message.

The load is open: messages are due by the clock, and one that is held up (by a full queue, by a slow
partition) counts its time from when it was due, not from when there was room for it. The same lines drive
Geminga's producer and ``pulsar-client``'s, which have the same interface. What the loop itself costs is
measured with a producer that does nothing, so that it can be told from what the library costs.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import random
import resource
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from geminga.client.cluster import Cluster
from geminga.tuning.measuring import conversation
from geminga.tuning.measuring.outcome import SLICE_NS
from geminga.tuning.measuring.pacing import Pace
from geminga.tuning.measuring.payloads import Payloads, of_samples, stamp_ns, structured_json
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.traffic import Bursts, zipf_shares

TICK_SECONDS = 0.0002
CHUNK = 64
"""Messages that are sent between two looks at the clock."""
GRACE_SECONDS = 0.05
"""A sender that is this far behind at the end sends no more."""
BASELINE_SECONDS = 1.0
DRAIN_SECONDS_MAX = 60.0
KEYS_MAX = 1 << 16
"""Different keys that are sent at the most; then they begin again."""


class Receipts:
    """What came back of the messages of one part of the load. Filled on the client's threads.

    The message in the middle of each chunk tells the time, for all of the chunk; the others are only counted,
    so that measuring costs little beside what is measured.
    """

    def __init__(self, ok: Any, until_ns: int = 0) -> None:
        self._ok = ok
        self._until_ns = until_ns
        self.received = 0
        self.failed = 0
        self.first_failure = ""
        self.latencies_ns = array("q")
        self.messages_of = array("q")
        """For how many messages each latency stands."""
        self.last_at_ns = 0
        self.longest_gap_ns = 0
        self.received_by: dict[int, int] = {}
        """How many there were at the end of each slice of time."""

    @property
    def settled(self) -> int:
        """Receipts and failures."""
        return self.received + self.failed

    def counted(self, result: Any, _message_id: Any) -> None:
        """A message's receipt or failure."""
        if result == self._ok:
            self.received += 1
        else:
            self.failed += 1
            self.first_failure = self.first_failure or str(result)

    def timed(self, due_ns: int, messages: int, result: Any, _message_id: Any) -> None:
        """The same of a message that was due at a time, for some around it."""
        self.counted(result, None)
        if result != self._ok:
            return
        now = stamp_ns()
        gap = now - self.last_at_ns
        # What trickles in after the last message was due is no silence of a load.
        if gap > self.longest_gap_ns and self.last_at_ns and self.last_at_ns < self._until_ns:
            self.longest_gap_ns = gap
        self.last_at_ns = now
        self.latencies_ns.append(now - due_ns)
        self.messages_of.append(messages)
        self.received_by[now // SLICE_NS] = self.received

    def all_latencies_ns(self) -> Any:
        """One for each message: in a burst a chunk holds many, otherwise one or two."""
        import numpy as np

        return np.repeat(
            np.frombuffer(self.latencies_ns, np.int64), np.frombuffer(self.messages_of, np.int64)
        )

    def by_slice(self, since_ns: int) -> dict[str, int]:
        """Receipts of each slice of time after ``since_ns``."""
        first, before, found = since_ns // SLICE_NS, 0, {}
        for number, received in sorted(self.received_by.items()):
            found[str(number - first)] = received - before
            before = received
        if found:
            found[max(found, key=int)] += self.received - before  # counted after the last look at the clock
        return found


class Sender:
    """Sends what is due."""

    def __init__(self, payloads: Payloads, pace: Pace, keys: list[str]) -> None:
        self._payloads = payloads
        self._pace = pace
        self._keys = keys
        self.sent = 0
        self._next = 0
        """The number of the message that is due next."""
        self.behind_seconds_max = 0.0

    def run(
        self,
        send: Any,
        receipts: Receipts,
        start_ns: int,
        until_seconds: float,
        since_seconds: float = 0.0,
    ) -> None:
        """Publish what is due from ``since_seconds`` until a time, in seconds from ``start_ns``; goes on
        where it ended before.

        Whoever has fallen behind by then stops too: what is left was due and not sent. The next part does
        not send it either: its messages are told from those before by when they were due.
        """
        head, tails, tail_count = self._payloads.head, self._payloads.tails, len(self._payloads.tails)
        keys, key_count = self._keys, len(self._keys)
        timed, counted = receipts.timed, receipts.counted
        number = max(self._next, self._pace.first_due(since_seconds))
        while True:
            now = (stamp_ns() - start_ns) / 1e9
            due = self._pace.due_by(min(now, until_seconds))
            while number < due:
                due_at = self._pace.due_at(number)
                now = (stamp_ns() - start_ns) / 1e9
                self.behind_seconds_max = max(self.behind_seconds_max, now - due_at)
                if now > until_seconds + GRACE_SECONDS:
                    break
                first, last = number, min(due, number + CHUNK)
                # One tells the time for all: in the middle it is right for them on the mean.
                middle = (first + last - 1) // 2
                due_ns = start_ns + int(self._pace.due_at(middle) * 1e9)
                stamped = head + b"%d" % due_ns
                telling: Callable[[Any, Any], None] = functools.partial(timed, due_ns, last - first)
                try:
                    for index in range(first, last):
                        back = telling if index == middle else counted
                        if key_count:
                            key = keys[index % key_count]
                            send(stamped + tails[index % tail_count], back, partition_key=key)
                        else:
                            send(stamped + tails[index % tail_count], back)
                        number += 1
                finally:
                    self.sent += number - first
                    self._next = number
            if now >= until_seconds:
                return
            time.sleep(TICK_SECONDS)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _baseline(payloads: Payloads, pace: Pace, keys: list[str], ok: Any) -> float:
    """CPU seconds a second that this loop takes for itself."""
    sender, receipts = Sender(payloads, pace, keys), Receipts(ok)

    def send(_payload: bytes, back: Any, partition_key: str = "") -> None:
        back(ok, None)

    before = _cpu_seconds()
    sender.run(send, receipts, stamp_ns(), BASELINE_SECONDS)
    return (_cpu_seconds() - before) / BASELINE_SECONDS


def library_arguments(library: Any, settings: PublishSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments of a library's ``Client`` and ``create_producer``: those that it knows.

    Enumerations are the library's own. What it does not know is left out: it has no such choice.
    """
    takes = set(inspect.signature(library.Client.create_producer).parameters)
    takes_client = set(inspect.signature(library.Client.__init__).parameters)
    producer: dict[str, Any] = {}
    for name, value in settings.producer_arguments().items():
        if name not in takes:
            continue
        kind = {"compression_type": "CompressionType", "batching_type": "BatchingType"}.get(name)
        if kind is not None:
            value = getattr(getattr(library, kind), value.name)
        elif name == "batching_max_publish_delay_ms" and library.__name__ == "pulsar":
            value = max(1, round(value))
        producer[name] = value
    client = {name: value for name, value in settings.client_arguments().items() if name in takes_client}
    return client, producer


def _payloads(given: Mapping[str, Any]) -> Payloads:
    if given.get("samples"):
        return of_samples([sample.encode("latin-1") for sample in given["samples"]])
    return structured_json(
        given["message_bytes"], kind=given["kind"], variation=given["variation"], seed=given.get("seed", 1)
    )


def _keys(count: int, skew: float) -> list[str]:
    """Keys in the order in which messages get them; none when there are none."""
    if not count:
        return []
    names = [f"key-{number}" for number in range(min(count, KEYS_MAX))]
    return random.Random(7).choices(names, zipf_shares(len(names), skew), k=KEYS_MAX)


def _quiet_logger() -> Any:
    import logging

    logger = logging.getLogger("measured-client")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def _client(library: Any, cluster: dict[str, Any], for_client: dict[str, Any]) -> Any:
    """A client of either library: what says where and how is named alike in both."""
    arguments = Cluster.from_dict(cluster).client_arguments()
    if cluster.get("auth_plugin") is not None:
        kind, parameters = cluster["auth_plugin"], cluster.get("auth_params") or ""
        arguments["authentication"] = library.Authentication(kind, parameters)
    if cluster["service_url"].startswith("pulsar://"):
        arguments = {name: arguments[name] for name in ("service_url", "authentication")}
    return library.Client(logger=_quiet_logger(), **arguments, **for_client)


def publish(given: dict[str, Any]) -> None:
    """The life of the process; see `geminga.tuning.measuring.run` for the specification."""
    library = importlib.import_module(given["library"])
    payloads = _payloads(given["payload"])
    bursts = Bursts(**given["bursts"]) if given.get("bursts") else None
    pace = Pace(given["rate"], bursts)
    keys = _keys(given["keys"], given["key_skew"])
    ok = library.Result.Ok
    baseline = _baseline(payloads, pace, keys, ok)
    settings = PublishSettings.from_dict(given["settings"])
    for_client, for_producer = library_arguments(library, settings)
    client = _client(library, given["cluster"], for_client)
    producer = client.create_producer(given["topic"], **for_producer)
    conversation.report("ready", baseline_cpu_per_second=baseline)
    if not conversation.await_order("go"):
        return
    warm_seconds, seconds = given["warm_seconds"], given["seconds"]
    start_ns = stamp_ns()
    since_ns = start_ns + int(warm_seconds * 1e9)
    sender, warm = Sender(payloads, pace, keys), Receipts(ok)
    receipts = Receipts(ok, since_ns + int(seconds * 1e9))
    sender.run(producer.send_async, warm, start_ns, warm_seconds)
    sent_before, cpu_before, sender.behind_seconds_max = sender.sent, _cpu_seconds(), 0.0
    conversation.report("measuring", since_ns=since_ns)
    failure = _send_measured(
        sender, producer, receipts, start_ns, warm_seconds + seconds, since_seconds=warm_seconds
    )
    sent_at_ns = stamp_ns()
    sent = sender.sent - sent_before
    _drain(lambda: warm.settled + receipts.settled >= sender.sent)
    with open(given["latency_file"], "wb") as file:
        receipts.all_latencies_ns().tofile(file)
    statistics = getattr(producer, "statistics", None)
    conversation.report(
        "sent",
        offered=pace.due_by(warm_seconds + seconds) - pace.due_by(warm_seconds),
        sent=sent,
        receipts=receipts.received,
        failed=receipts.failed,
        failure=failure or receipts.first_failure,
        seconds=(max(receipts.last_at_ns, sent_at_ns) - since_ns) / 1e9,
        cpu_seconds=_cpu_seconds() - cpu_before,
        # The loop and the latencies are this program's, not the library's.
        own_cpu_seconds=baseline * sent / given["rate"],
        behind_seconds_max=sender.behind_seconds_max,
        longest_gap_seconds=receipts.longest_gap_ns / 1e9,
        by_slice=receipts.by_slice(since_ns),
        stepped_over=statistics().stepped_over if statistics is not None else None,
    )
    conversation.await_order("close")
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(conversation.STOP_SECONDS / 2)


def _send_measured(
    sender: Sender, producer: Any, receipts: Receipts, start_ns: int, until: float, since_seconds: float
) -> str:
    """Run the measured part; what ends it early is its result, not a failure of this process."""
    try:
        sender.run(producer.send_async, receipts, start_ns, until, since_seconds)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _drain(done: Callable[[], bool]) -> None:
    end = time.monotonic() + DRAIN_SECONDS_MAX
    while not done() and time.monotonic() < end:
        time.sleep(TICK_SECONDS)


if __name__ == "__main__":
    conversation.run(publish)
