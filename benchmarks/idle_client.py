"""One run of `benchmarks.idle`, in a process that has imported neither library before."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time

from benchmarks.harness import cpu_seconds, resident_megabytes

SETTLE_SECONDS = 3.0


class Watch:
    """Wall and CPU milliseconds since its creation."""

    def __init__(self) -> None:
        self._start, self._cpu = time.perf_counter(), cpu_seconds()

    def read(self) -> tuple[float, float]:
        return (time.perf_counter() - self._start) * 1000, (cpu_seconds() - self._cpu) * 1000


def first_message(library: str, url: str, topic: str) -> dict[str, float]:
    """Import a library, send a message and receive it."""
    watch = Watch()
    pulsar = importlib.import_module(library)
    found = dict(zip(("import, ms", "import, ms of CPU"), watch.read(), strict=True))
    client = pulsar.Client(url)
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    producer.send(b"first")
    consumer.acknowledge(consumer.receive(30_000))
    names = ("import and first message, ms", "import and first message, ms of CPU")
    found |= zip(names, watch.read(), strict=True)
    return found


def idle(library: str, url: str, topic: str, consumers: int, seconds: float) -> dict[str, float]:
    """Open consumers and wait."""
    pulsar = importlib.import_module(library)
    client = pulsar.Client(url)
    opened = [client.subscribe(f"{topic}-{number}", "s") for number in range(consumers)]
    time.sleep(SETTLE_SECONDS)
    cpu, before = cpu_seconds(), resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    kind = f"{len(opened):,} idle consumer{'s' if consumers > 1 else ''}"
    return {
        f"{kind}, ms of CPU a second": (cpu_seconds() - cpu) / seconds * 1000,
        f"{kind}, wake-ups a second": (after.ru_nvcsw - before.ru_nvcsw) / seconds,
        f"{kind}, MB of memory of the process": resident_megabytes(os.getpid()),
    }


def main() -> None:
    """Run the part that the command line names and print its figures."""
    part, library, url, topic, seconds = sys.argv[1:]
    if part == "first":
        found = first_message(library, url, topic)
    else:
        found = idle(library, url, topic, int(part), float(seconds))
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
