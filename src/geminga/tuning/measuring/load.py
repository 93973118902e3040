"""Process that publishes at a fixed rate and reports the outcome of each message.

The load is open-loop: messages are due by the clock, and the latency of a delayed message (full queue, slow
broker) counts from its due time. Several producers of one process take turns, message by message. The same
code drives Geminga's producer and ``pulsar-client``'s, which have the same interface. The cost of the loop is
measured with a no-op producer, to separate it from the library's cost.
"""

import functools
import importlib
import inspect
import math
import random
import resource
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geminga.client.cluster import Cluster
from geminga.tuning.measuring import conversation
from geminga.tuning.measuring.payloads import Payloads, of_samples, stamp_ns, structured_json
from geminga.tuning.publish_settings import MEMORY_LIMIT_MAX_BYTES, PublishSettings
from geminga.tuning.traffic import zipf_shares

TICK_SECONDS = 0.0002
CHUNK = 64
"""Messages sent between two readings of the clock."""
GRACE_SECONDS = 0.05
"""Delay behind the schedule beyond which a sender skips the rest at the end of a run."""
BASELINE_SECONDS = 1.0
DRAIN_SECONDS_MAX = 60.0
KEYS_MAX = 1 << 16
"""Maximum distinct keys; then they repeat."""
_FUZZ = 1e-9
"""Rounding error of the arithmetic, in messages."""


class Pace:
    """Due times of messages numbered from 0, at a steady rate, in seconds from the start."""

    def __init__(self, rate_messages_per_second: float) -> None:
        self._rate = rate_messages_per_second

    def due_by(self, seconds: float) -> int:
        """Return the number of messages due before a time; the first one is due at 0."""
        return math.ceil(seconds * self._rate - _FUZZ)

    def first_due(self, seconds: float) -> int:
        """Return the number of the first message that is not due before a time."""
        number = self.due_by(seconds)
        while self.due_at(number) < seconds:
            number += 1
        return number

    def due_at(self, number: int) -> float:
        """Return the time at which a message is due."""
        return number / self._rate


class Receipts:
    """Receipts of one part of the load. Filled on the client's threads.

    Latency is measured for the middle message of each chunk and stands for all of the chunk; the others are
    only counted, to keep the cost of measuring low.
    """

    def __init__(self, ok: Any, until_ns: int = 0) -> None:
        self._ok = ok
        self._until_ns = until_ns
        self.received = 0
        self.failed = 0
        self.first_failure = ""
        self.latencies_ns = array("q")
        self.messages_of = array("q")
        """Number of messages that each latency stands for."""
        self.last_at_ns = 0
        self.in_window = 0
        """Receipts before ``until_ns``, as of the last one with a measured latency."""

    @property
    def settled(self) -> int:
        """Return the number of receipts and failures."""
        return self.received + self.failed

    def counted(self, result: Any, _message_id: Any) -> None:
        """Count a message's receipt or failure."""
        if result == self._ok:
            self.received += 1
        else:
            self.failed += 1
            self.first_failure = self.first_failure or str(result)

    def timed(self, due_ns: int, messages: int, result: Any, _message_id: Any) -> None:
        """Like `counted`, and record the latency since a due time; it stands for ``messages`` messages."""
        self.counted(result, None)
        if result != self._ok:
            return
        now = stamp_ns()
        self.last_at_ns = now
        if now <= self._until_ns:
            self.in_window = self.received
        self.latencies_ns.append(now - due_ns)
        self.messages_of.append(messages)

    def all_latencies_ns(self) -> Any:
        """Return one latency per message: a measured one is repeated for the messages it stands for."""
        import numpy as np

        return np.repeat(
            np.frombuffer(self.latencies_ns, np.int64), np.frombuffer(self.messages_of, np.int64)
        )


class Sender:
    """Sends messages when they are due."""

    def __init__(self, payloads: Payloads, pace: Pace, keys: list[str]) -> None:
        self._payloads = payloads
        self._pace = pace
        self._keys = keys
        self.sent = 0
        self._next = 0
        """Number of the next due message."""
        self.behind_seconds_max = 0.0

    def run(
        self,
        sends: Sequence[Any],
        receipts: Receipts,
        start_ns: int,
        until_seconds: float,
        since_seconds: float = 0.0,
    ) -> None:
        """Publish the messages due from ``since_seconds`` until a time, in seconds from ``start_ns``;
        continues where the last call ended. ``sends``: a function for each producer.

        A sender that is behind at the end stops, too: the remaining messages count as due and not sent. The
        next part does not send them either.
        """
        head, tails, tail_count = self._payloads.head, self._payloads.tails, len(self._payloads.tails)
        keys, key_count = self._keys, len(self._keys)
        timed, counted, send_count = receipts.timed, receipts.counted, len(sends)
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
                # Only the middle one is timed: its latency is the mean of the chunk's.
                middle = (first + last - 1) // 2
                due_ns = start_ns + int(self._pace.due_at(middle) * 1e9)
                stamped = head + b"%d" % due_ns
                telling: Callable[[Any, Any], None] = functools.partial(timed, due_ns, last - first)
                try:
                    for index in range(first, last):
                        back = telling if index == middle else counted
                        send = sends[index % send_count]
                        # By turn: each producer sends all payloads, also if their number is a multiple.
                        payload = stamped + tails[index // send_count % tail_count]
                        if key_count:
                            send(payload, back, partition_key=keys[index % key_count])
                        else:
                            send(payload, back)
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
    """Return the CPU seconds per second of the loop with no-op producers."""
    sender, receipts = Sender(payloads, pace, keys), Receipts(ok)

    def send(_payload: bytes, back: Any, partition_key: str = "") -> None:
        back(ok, None)

    before = _cpu_seconds()
    sender.run([send], receipts, stamp_ns(), BASELINE_SECONDS)
    return (_cpu_seconds() - before) / BASELINE_SECONDS


def library_arguments(library: Any, settings: PublishSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keyword arguments of a library's ``Client`` and ``create_producer``.

    Enumerations are the library's. Settings that the library does not have are omitted.
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


def memory_of_process(settings: PublishSettings, producers: int, producers_per_client: int) -> int:
    """Return the memory limit of a process in bytes: its only client stands for those of several programs,
    each with its own limit."""
    clients = -(-producers // producers_per_client)
    return min(settings.memory_limit_bytes * clients, MEMORY_LIMIT_MAX_BYTES)


def _payloads(given: Mapping[str, Any]) -> Payloads:
    if given.get("samples"):
        return of_samples([sample.encode("latin-1") for sample in given["samples"]])
    return structured_json(
        given["message_bytes"], kind=given["kind"], variation=given["variation"], seed=given.get("seed", 1)
    )


def _keys(count: int, skew: float) -> list[str]:
    """Return keys in the order of the messages; empty for messages without keys."""
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
    """Return a client of either library, with the same addresses and authentication."""
    arguments = Cluster.from_dict(cluster).client_arguments()
    if cluster.get("auth_plugin") is not None:
        kind, parameters = cluster["auth_plugin"], cluster.get("auth_params") or ""
        arguments["authentication"] = library.Authentication(kind, parameters)
    if cluster["service_url"].startswith("pulsar://"):
        arguments = {name: arguments[name] for name in ("service_url", "authentication")}
    return library.Client(logger=_quiet_logger(), **arguments, **for_client)


def publish(given: dict[str, Any]) -> None:
    """Main function of the process; see `geminga.tuning.measuring.run` for the specification."""
    library = importlib.import_module(given["library"])
    payloads = _payloads(given["payload"])
    pace = Pace(given["rate"])
    keys = _keys(given["keys"], given["key_skew"])
    ok = library.Result.Ok
    baseline = _baseline(payloads, pace, keys, ok)
    settings = PublishSettings.from_dict(given["settings"])
    memory = memory_of_process(settings, given["producers"], given["producers_per_client"])
    settings = settings.changed(memory_limit_bytes=memory)
    for_client, for_producer = library_arguments(library, settings)
    client = _client(library, given["cluster"], for_client)
    producers = [client.create_producer(given["topic"], **for_producer) for _ in range(given["producers"])]
    sends = [producer.send_async for producer in producers]
    conversation.report("ready", baseline_cpu_per_second=baseline)
    if not conversation.await_order("go"):
        return
    warm_seconds, seconds = given["warm_seconds"], given["seconds"]
    start_ns = stamp_ns()
    since_ns = start_ns + int(warm_seconds * 1e9)
    sender, warm = Sender(payloads, pace, keys), Receipts(ok)
    receipts = Receipts(ok, since_ns + int(seconds * 1e9))
    sender.run(sends, warm, start_ns, warm_seconds)
    sent_before, cpu_before, sender.behind_seconds_max = sender.sent, _cpu_seconds(), 0.0
    conversation.report("measuring", since_ns=since_ns)
    failure = _send_measured(
        sender, sends, receipts, start_ns, warm_seconds + seconds, since_seconds=warm_seconds
    )
    sent_at_ns = stamp_ns()
    sent = sender.sent - sent_before
    _drain(lambda: warm.settled + receipts.settled >= sender.sent)
    with open(given["latency_file"], "wb") as file:
        receipts.all_latencies_ns().tofile(file)
    conversation.report(
        "sent",
        offered=pace.due_by(warm_seconds + seconds) - pace.due_by(warm_seconds),
        sent=sent,
        receipts=receipts.received,
        failed=receipts.failed,
        failure=failure or receipts.first_failure,
        seconds=(max(receipts.last_at_ns, sent_at_ns) - since_ns) / 1e9,
        cpu_seconds=_cpu_seconds() - cpu_before,
        # Subtract the CPU of the loop and of timing from the library's.
        own_cpu_seconds=baseline * sent / given["rate"],
        behind_seconds_max=sender.behind_seconds_max,
        receipts_in_window=receipts.in_window,
    )
    conversation.await_order("close")
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(conversation.STOP_SECONDS / 2)


def _send_measured(
    sender: Sender,
    sends: Sequence[Any],
    receipts: Receipts,
    start_ns: int,
    until: float,
    since_seconds: float,
) -> str:
    """Run the measured part; an error that ends it is part of the result."""
    try:
        sender.run(sends, receipts, start_ns, until, since_seconds)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _drain(done: Callable[[], bool]) -> None:
    end = time.monotonic() + DRAIN_SECONDS_MAX
    while not done() and time.monotonic() < end:
        time.sleep(TICK_SECONDS)


if __name__ == "__main__":
    conversation.run(publish)
