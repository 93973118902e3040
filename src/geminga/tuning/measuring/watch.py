"""Process that reads a topic and reports the latency of each message.

It receives whole entries as Arrow tables, to keep its own cost low; a message contains the time at which it
was due (`payloads`).
"""

import sys
import threading
import time
from array import array
from typing import Any

from geminga.tuning.measuring import conversation
from geminga.tuning.measuring.payloads import STAMP_OFFSET, STAMP_SIZE, stamp_ns

RECEIVER_QUEUE = 50_000
POLL_MILLISECONDS = 200
QUIET_SECONDS = 5.0
"""If messages are missing, reading ends after this time without a message."""


READING_ENDS_SECONDS_MAX = 60.0


class LatencyReader:
    """Reads a subscription on a separate thread."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._due_ns = array("q")
        self._latencies_ns = array("q")
        self.received = 0
        self.expected: int | None = None
        """Number of messages, set when no more are sent."""
        self.failure = ""
        self.thread = threading.Thread(target=self._run, name="geminga-watch", daemon=True)

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _read(self) -> None:
        import geminga

        last = time.monotonic()
        while self.expected is None or self.received < self.expected:
            try:
                table = self._consumer.receive_table(timeout_millis=POLL_MILLISECONDS)
            except geminga.Timeout:
                if self.expected is not None and time.monotonic() - last > QUIET_SECONDS:
                    return
                continue
            now = stamp_ns()
            last = time.monotonic()
            self.received += table.num_rows
            self._note(table, now)
            self._consumer.acknowledge_table(table)

    def _note(self, table: Any, now: int) -> None:
        import numpy as np

        due = _stamps(table["value"])
        self._due_ns.frombytes(due.astype(np.int64).tobytes())
        self._latencies_ns.frombytes((now - due).astype(np.int64).tobytes())

    def latencies_since(self, since_ns: int) -> Any:
        """Return the latency in nanoseconds of each message due at or after a time."""
        import numpy as np

        due = np.frombuffer(self._due_ns, np.int64)
        return np.frombuffer(self._latencies_ns, np.int64)[due >= since_ns]


def _stamps(values: Any) -> Any:
    """Return the nineteen digits of each message as a number."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    digits = pc.binary_slice(values, STAMP_OFFSET, STAMP_OFFSET + STAMP_SIZE)
    return np.asarray(pc.cast(digits.cast(pa.string()), pa.int64()))


def watch(given: dict[str, Any]) -> None:
    """Main function of the process; see `geminga.tuning.measuring.run` for the specification."""
    from geminga.client.cluster import Cluster

    with Cluster.from_dict(given["cluster"]).client() as client:
        watchers = []
        for number in range(given["subscriptions"]):
            consumer = client.subscribe(
                given["topic"],
                f"watch-{number}",
                receiver_queue_size=RECEIVER_QUEUE,
                max_total_receiver_queue_size_across_partitions=20 * RECEIVER_QUEUE,
            )
            watchers.append(LatencyReader(consumer))
        for watcher in watchers:
            watcher.thread.start()
        conversation.report("ready")
        since_ns = _obey(watchers)
        latencies = [watcher.latencies_since(since_ns) for watcher in watchers]
        with open(given["latency_file"], "wb") as file:
            for found in latencies:
                found.tofile(file)
        conversation.report(
            "read",
            received=[watcher.received for watcher in watchers],
            latencies=[len(found) for found in latencies],
            failure=next((watcher.failure for watcher in watchers if watcher.failure), ""),
        )
        conversation.await_order("close")


def _obey(watchers: list[LatencyReader]) -> int:
    """Wait for ``end NANOSECONDS MESSAGES`` and until MESSAGES messages are read; return NANOSECONDS, from
    which on messages count."""
    words = sys.stdin.readline().split()
    if len(words) != 3:
        return 0  # the parent has ended
    for watcher in watchers:
        watcher.expected = int(words[2])
    for watcher in watchers:
        watcher.thread.join(READING_ENDS_SECONDS_MAX)
    return int(words[1])


if __name__ == "__main__":
    conversation.run(watch)
