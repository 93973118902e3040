"""Counters of an instance, for the last line of the command and for Prometheus."""

import threading
from collections.abc import Mapping

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
        self._labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
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
        lines = []
        for (name, kind, _, text), value in zip(FAMILIES, values, strict=True):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name}{{{self._labels}}} {value}"]
        own = self.own()
        for place, (name, kind, _, text) in enumerate(OWN_FAMILIES if own else ()):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for metric, found in own.items():
                lines.append(f'{name}{{{self._labels},metric="{_escaped(metric)}"}} {found[place]}')
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
