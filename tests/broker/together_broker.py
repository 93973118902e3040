"""A broker for `test_together`, in a process of its own: what else takes minutes becomes due at once."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

from geminga.broker.serving.embedded import embedded
from geminga.broker.topics import (
    compaction,
    deadlines,
    expiry,
    offloading,
    topic_maintenance,
    topic_registry,
)
from geminga.ledger.tier_reading import TierReader


def hurry() -> None:
    """Rounds of upkeep, idle topics and what has failed are seen to in a moment."""
    modules: tuple[Any, ...] = (topic_maintenance, deadlines, topic_registry)
    for module in modules:
        for name, seconds in (("ROUND_SECONDS", 0.3), ("UNUSED_SECONDS", 1.0)):
            if hasattr(module, name):
                setattr(module, name, seconds)
    changes: dict[Any, dict[str, Any]] = {
        deadlines: {"SOONEST_MS": 300},
        expiry: {"OPEN_LEDGER_UNUSED_SECONDS": 1},
        compaction: {"FAILED_RETRY_MS": 500, "LOOK_BYTES": 0, "SLICE_SECONDS": -1.0, "ENTRIES_PER_FETCH": 3},
        offloading: {"FAILED_RETRY_MS": 500},
    }
    for module, values in changes.items():
        for name, value in values.items():
            setattr(module, name, value)


def slow_place(seconds: float) -> None:
    """Delay each read of an offloaded file."""
    read = TierReader._read

    def slowly(*arguments: Any) -> Any:
        time.sleep(seconds)
        return read(*arguments)

    TierReader._read = slowly  # type: ignore[assignment,method-assign]


def main() -> None:
    settings = json.loads(sys.argv[1])
    hurry()
    slow_place(settings.pop("place_seconds"))
    with embedded(settings.pop("data_dir"), **settings):
        print("ready", flush=True)
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
