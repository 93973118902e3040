"""A process that publishes at a rate, whatever happens, and tells what became of each message.

The load is open: messages are due by the clock, and one that is held up (by a full queue, by a slow
partition) counts its time from when it was due, not from when there was room for it. The same lines drive
Geminga's producer and ``pulsar-client``'s, which have the same interface. What the loop itself costs is
measured with a producer that does nothing, so that it can be told from what the library costs.
"""

from __future__ import annotations

import importlib
import inspect
import random
import resource
import threading
import time
from array import array
from collections.abc import Mapping
from typing import Any

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
    """What came back from ``since_ns`` on. Filled on the client's threads."""

    def __init__(self, ok: Any) -> None:
        self._ok = ok
        self.since_ns = 0
        self.until_ns = 0
        self.latencies_ns = array("q")
        """Of messages that were due from then on, too."""
        self.settled_count = 0
        """All of them, the warm-up included."""
        self.failed = 0
        self.first_failure = ""
        self.last_at_ns = 0
        self.longest_gap_ns = 0
        self.longest_gap_at_ns = 0
        self.by_slice: dict[int, int] = {}

    def settled(self, result: Any, due_ns: int) -> None:
        """A message's receipt or failure."""
        now = stamp_ns()
        self.settled_count += 1
        if now < self.since_ns:
            return
        if result != self._ok:
            self.failed += 1
            self.first_failure = self.first_failure or str(result)
            return
        gap = now - self.last_at_ns
        # What trickles in after the last message was due is no silence of a load.
        if gap > self.longest_gap_ns and self.last_at_ns and self.last_at_ns < self.until_ns:
            self.longest_gap_ns, self.longest_gap_at_ns = gap, self.last_at_ns
        self.last_at_ns = now
        slice_number = now // SLICE_NS
        self.by_slice[slice_number] = self.by_slice.get(slice_number, 0) + 1
        if due_ns >= self.since_ns:
            self.latencies_ns.append(now - due_ns)


class Sender:
    """Sends what is due."""

    def __init__(self, payloads: Payloads, pace: Pace, keys: list[str]) -> None:
        self._payloads = payloads
        self._pace = pace
        self._keys = keys
        self.sent = 0
        self.behind_seconds_max = 0.0

    def run(self, send: Any, receipts: Receipts, start_ns: int, until_seconds: float) -> None:
        """Publish what is due until a time, in seconds from ``start_ns``; goes on where it ended before.

        Whoever has fallen behind by then stops too: what is left was due and not sent.
        """
        head, tails, tail_count = self._payloads.head, self._payloads.tails, len(self._payloads.tails)
        keys, key_count = self._keys, len(self._keys)
        settled, number = receipts.settled, self.sent
        while True:
            now = (stamp_ns() - start_ns) / 1e9
            due = self._pace.due_by(min(now, until_seconds))
            while number < due:
                due_at = self._pace.due_at(number)
                now = (stamp_ns() - start_ns) / 1e9
                self.behind_seconds_max = max(self.behind_seconds_max, now - due_at)
                if now > until_seconds + GRACE_SECONDS:
                    break
                due_ns = start_ns + int(due_at * 1e9)
                stamped = head + b"%d" % due_ns

                def back(result: Any, _message_id: Any, due_ns: int = due_ns) -> None:
                    settled(result, due_ns)

                for index in range(number, min(due, number + CHUNK)):
                    if key_count:
                        key = keys[index % key_count]
                        send(stamped + tails[index % tail_count], back, partition_key=key)
                    else:
                        send(stamped + tails[index % tail_count], back)
                    number += 1
                self.sent = number
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
    client = library.Client(given["service_url"], logger=_quiet_logger(), **for_client)
    producer = client.create_producer(given["topic"], **for_producer)
    conversation.report("ready", baseline_cpu_per_second=baseline)
    if not conversation.await_order("go"):
        return
    sender, receipts = Sender(payloads, pace, keys), Receipts(ok)
    warm_seconds, seconds = given["warm_seconds"], given["seconds"]
    start_ns = stamp_ns()
    receipts.since_ns = start_ns + int(warm_seconds * 1e9)
    receipts.until_ns = receipts.since_ns + int(seconds * 1e9)
    sender.run(producer.send_async, receipts, start_ns, warm_seconds)
    before, warm_sent, sender.behind_seconds_max = _cpu_seconds(), sender.sent, 0.0
    conversation.report("measuring", since_ns=receipts.since_ns)
    failure = _send_measured(sender, producer, receipts, start_ns, warm_seconds + seconds)
    sent_at_ns = stamp_ns()
    _drain(sender, receipts)
    _report(given, pace, sender, receipts, warm_sent, before, sent_at_ns, baseline, failure, producer)
    conversation.await_order("close")
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(conversation.STOP_SECONDS / 2)


def _send_measured(sender: Sender, producer: Any, receipts: Receipts, start_ns: int, until: float) -> str:
    """Run the measured part; what ends it early is its result, not a failure of this process."""
    try:
        sender.run(producer.send_async, receipts, start_ns, until)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _drain(sender: Sender, receipts: Receipts) -> None:
    end = time.monotonic() + DRAIN_SECONDS_MAX
    while receipts.settled_count < sender.sent and time.monotonic() < end:
        time.sleep(TICK_SECONDS)


def _report(
    given: Mapping[str, Any],
    pace: Pace,
    sender: Sender,
    receipts: Receipts,
    warm_sent: int,
    cpu_before: float,
    sent_at_ns: int,
    baseline: float,
    failure: str,
    producer: Any,
) -> None:
    active_seconds = (max(receipts.last_at_ns, sent_at_ns) - receipts.since_ns) / 1e9
    # The loop and the latencies are this program's, not the library's.
    own = baseline * (sender.sent - warm_sent) / given["rate"]
    due_before = pace.due_by(given["warm_seconds"])
    with open(given["latency_file"], "wb") as file:
        receipts.latencies_ns.tofile(file)
    gap_at = (receipts.longest_gap_at_ns - receipts.since_ns) / 1e9
    first = receipts.since_ns // SLICE_NS
    statistics = getattr(producer, "statistics", None)
    conversation.report(
        "sent",
        offered=pace.due_by(given["warm_seconds"] + given["seconds"]) - due_before,
        sent=max(0, sender.sent - due_before),
        receipts=len(receipts.latencies_ns),
        failed=receipts.failed,
        failure=failure or receipts.first_failure,
        seconds=active_seconds,
        cpu_seconds=_cpu_seconds() - cpu_before,
        own_cpu_seconds=own,
        behind_seconds_max=sender.behind_seconds_max,
        longest_gap_seconds=receipts.longest_gap_ns / 1e9,
        longest_gap_at_seconds=gap_at,
        by_slice={str(number - first): count for number, count in sorted(receipts.by_slice.items())},
        stepped_over=statistics().stepped_over if statistics is not None else None,
    )


if __name__ == "__main__":
    conversation.run(publish)
