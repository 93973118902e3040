"""Test messages: structured JSON with the time at which the message was due.

Every message begins with ``{"ts":`` and nineteen digits: nanoseconds of the machine's monotonic clock, with
an offset that keeps the number of digits constant. All processes of a machine read the same clock, so the
reader of a message can compute its latency.
"""

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from geminga.config import check_choice, check_int

STAMP_OFFSET = 6
"""Bytes before the digits: ``{"ts":``."""
STAMP_SIZE = 19
STAMP_BASE_NS = 10**18
STAMPED_BYTES_MIN = STAMP_OFFSET + STAMP_SIZE + 1
"""Size of the smallest message with a time."""
_SERVICES = (
    ("checkout", ("/api/v1/cart", "/api/v1/cart/items", "/api/v1/payment")),
    ("catalog", ("/api/v1/products", "/api/v1/search", "/api/v1/categories")),
    ("account", ("/api/v1/login", "/api/v1/profile", "/api/v1/orders")),
    ("gateway", ("/health", "/api/v1/route", "/metrics")),
)
_METRICS = ("temperature", "pressure", "humidity", "vibration", "voltage", "current")
_PHRASES = (
    "within limits",
    "calibrated last week",
    "door open, reading may drift",
    "replaced after alarm",
    "scheduled for inspection",
)
_STATES = ("ok", "ok", "ok", "ok", "warning", "maintenance")
_as_json = json.JSONEncoder(separators=(",", ":")).encode
"""Fast ASCII encoder. Creating an encoder per field would double the cost of a message."""


def stamp_ns() -> int:
    """Return the current time in the form of the messages."""
    return time.monotonic_ns() + STAMP_BASE_NS


@dataclass(frozen=True, slots=True)
class Payloads:
    """Message bodies without their time: a message is ``head + b"%d" % stamp_ns() + tail``."""

    head: bytes
    tails: tuple[bytes, ...]

    def message(self, index: int, stamp: int) -> bytes:
        """Return the message with a number and a due time."""
        return self.head + b"%d" % stamp + self.tails[index % len(self.tails)]

    def messages(self, count: int) -> list[bytes]:
        """Return messages as a sample; as under load, several have the same time."""
        return [self.message(i, STAMP_BASE_NS + i // 4 * 200_083) for i in range(count)]


def structured_json(
    message_bytes: float, *, kind: str = "logs", variation: float = 0.0, count: int = 20_000, seed: int = 1
) -> Payloads:
    """Return JSON of a ``kind`` (see `KINDS`) with ``message_bytes`` (log-normal with a ``variation``)."""
    check_int("count", count, 1, 1_000_000)
    fields = KINDS[check_choice("payload", kind, tuple(KINDS))]
    generator = random.Random(seed)
    deviation = math.sqrt(math.log1p(variation**2))
    tails = []
    for number in range(count):
        size = message_bytes
        if deviation:
            size = generator.lognormvariate(math.log(message_bytes) - deviation**2 / 2, deviation)
        tails.append(_tail(generator, fields(generator, number), max(STAMPED_BYTES_MIN, round(size))))
    return Payloads(b'{"ts":', tuple(tails))


def of_samples(samples: Sequence[bytes]) -> Payloads:
    """Return the user's messages, each prefixed with a time."""
    return Payloads(b'{"ts":', tuple(b',"m":' + sample + b"}" for sample in samples))


def _tail(generator: random.Random, fields: Iterator[tuple[str, object]], size: int) -> bytes:
    """Return the part after the time, for ``size`` bytes: whole fields, then a padded text."""
    room = size - STAMP_OFFSET - STAMP_SIZE - 1
    pieces, missing = [], room
    for name, value in fields:
        # Most fields are integers, which JSON writes as Python does.
        piece = f',"{name}":{value if type(value) is int else _as_json(value)}'
        if len(piece) > missing:
            break
        pieces.append(piece)
        missing -= len(piece)
    text = "".join(pieces).encode("ascii")
    empty = b',"note":""'
    if missing >= len(empty):
        phrase = generator.choice(_PHRASES).encode()
        phrase *= missing // len(phrase) + 1
        return text + empty[:-1] + phrase[: missing - len(empty)] + b'"}'
    return text + b" " * missing + b"}"


def _logs(generator: random.Random, number: int) -> Iterator[tuple[str, object]]:
    """Yield the fields of a line of a service's structured log."""
    service, paths = generator.choice(_SERVICES)
    failed = generator.random() < 0.02
    yield "level", "ERROR" if failed else generator.choice(("INFO", "INFO", "INFO", "DEBUG", "WARN"))
    yield "service", service
    yield "host", f"{service}-{generator.randrange(12):02d}"
    yield "region", generator.choice(("eu-west-1", "eu-west-1", "us-east-1", "ap-south-1"))
    yield "method", generator.choice(("GET", "GET", "GET", "POST"))
    yield "path", generator.choice(paths)
    yield "status", 500 if failed else generator.choice((200, 200, 200, 200, 201, 304, 404))
    yield "duration_ms", round(generator.lognormvariate(3, 0.8))
    yield "bytes", round(generator.lognormvariate(7, 1))
    yield "user", generator.randrange(50_000)
    for call in itertools.count():
        yield f"call_{call}_ms", round(generator.lognormvariate(2, 0.8))


def _telemetry(generator: random.Random, number: int) -> Iterator[tuple[str, object]]:
    """Yield the fields of a sensor's reading, with further readings up to the size."""
    yield "device", f"sensor-{generator.randrange(5000):05d}"
    yield "site", f"plant-{generator.randrange(40):02d}"
    yield "metric", generator.choice(_METRICS)
    yield "value", round(generator.gauss(50, 12), 3)
    yield "status", generator.choice(_STATES)
    yield "sequence", number
    yield "battery", generator.randrange(20, 101)
    yield "firmware", f"2.{generator.randrange(8)}.{generator.randrange(20)}"
    for reading in itertools.count():
        yield f"reading_{reading}", round(generator.gauss(50, 12), 3)


def _orders(generator: random.Random, number: int) -> Iterator[tuple[str, object]]:
    """Yield the fields of an order: incompressible identifiers, and items up to the size."""
    yield "order", f"{generator.getrandbits(128):032x}"
    yield "customer", f"{generator.getrandbits(64):016x}"
    yield "number", number
    yield "currency", generator.choice(("EUR", "USD", "CNY", "GBP"))
    yield "total", round(generator.lognormvariate(4, 1), 2)
    yield "channel", generator.choice(("web", "app", "store"))
    for item in itertools.count():
        yield (
            f"item_{item}",
            {
                "sku": f"{generator.getrandbits(32):08x}",
                "quantity": generator.randrange(1, 6),
                "price": round(generator.lognormvariate(3, 1), 2),
            },
        )


KINDS: dict[str, Callable[[random.Random, int], Iterator[tuple[str, object]]]] = {
    "logs": _logs,
    "telemetry": _telemetry,
    "orders": _orders,
}
"""Kinds of messages, from the most to the least compressible: log lines, sensor readings, orders."""
