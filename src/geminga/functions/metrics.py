"""Counters of an instance, for the last line of the command and for Prometheus."""

import threading
from collections.abc import Mapping

from geminga.client.observe.metrics_port import exposition

NAMES_MAX = 1000
"""Limit of a function's user metrics; names made of data would need unlimited memory."""
FAMILIES = (
    ("pulsar_function_received_total", "counter", "messages", "Taken from the subscription."),
    ("pulsar_function_processed_successfully_total", "counter", "messages", "Calls that came back."),
    ("pulsar_function_published_total", "counter", "messages", "Results that have their receipts."),
    ("pulsar_function_user_exceptions_total", "counter", "calls", "Calls that raised."),
    ("pulsar_function_system_exceptions_total", "counter", "failures", "What failed around the calls."),
    ("pulsar_function_process_latency_ms_sum", "counter", "ms", "What the calls took together."),
    ("pulsar_function_last_invocation", "gauge", "ms since 1970", "The last call; 0: none."),
)
"""Name, type, unit and meaning of each instance's metrics."""
OWN_FAMILIES = (
    ("pulsar_function_user_metric_count", "counter", "records", "Records of a metric of the function's own."),
    ("pulsar_function_user_metric_sum", "counter", "", "Their sum."),
)
"""Metrics of ``context.record_metric``; the label ``metric`` holds the name."""


class Metrics:
    """Counters since the start. The metrics have the names of Apache Pulsar's function workers."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.received = 0
        self.processed = 0
        self.published = 0
        self.user_exceptions = 0
        self.system_exceptions = 0
        self.process_seconds = 0.0
        self.last_invocation_ms = 0
        self._labels = labels
        self._own: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def record(self, name: str, value: float) -> None:
        """Record a value of a user metric. May run on any thread."""
        with self._lock:
            kept = self._own.get(name)
            if kept is None:
                if len(self._own) >= NAMES_MAX:
                    return
                kept = self._own[name] = [0.0, 0.0]
            kept[0] += 1
            kept[1] += value

    def own(self) -> dict[str, tuple[float, float]]:
        """Return by name of each user metric: number and sum of its records."""
        with self._lock:
            return {name: (count, total) for name, (count, total) in self._own.items()}

    def exposition(self) -> str:
        """Return the metrics in Prometheus' text format."""
        values = (
            self.received, self.processed, self.published, self.user_exceptions, self.system_exceptions,
            self.process_seconds * 1000, self.last_invocation_ms,
        )  # fmt: skip
        names = [family[0] for family in FAMILIES]
        samples = [(name, self._labels, value) for name, value in zip(names, values, strict=True)]
        for metric, found in self.own().items():
            labels = {**self._labels, "metric": metric}
            samples += [(family[0], labels, value) for family, value in zip(OWN_FAMILIES, found, strict=True)]
        families = ((name, kind, text) for name, kind, _, text in FAMILIES + OWN_FAMILIES)
        return exposition(families, samples)
