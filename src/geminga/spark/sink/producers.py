"""Producers that a Python worker keeps open between tasks and micro-batches.

Spark reuses its workers, and opening a producer of many partitions takes longer than publishing a small
micro-batch. A producer that stays unused is closed after `IDLE_SECONDS`. Producers with a name (`named`) are
not kept: another process may need the name.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from geminga.errors import IncompatibleSchema, ProducerBusy, PulsarException
from geminga.schema.schema import BytesSchema, Schema, SchemaInfo, SchemaType
from geminga.spark.cluster.clients import client_for
from geminga.spark.options import COMPRESSIONS, WriteOptions

if TYPE_CHECKING:
    from geminga.client.options.crypto import CryptoKeyReader
    from geminga.client.publish.producer import Producer

logger = logging.getLogger("geminga.spark")

IDLE_SECONDS = 10.0
"""Idle time after which a producer is closed."""
PRODUCERS_MAX = 256
"""Maximum idle producers of one process; the least recently used one is closed first."""
NAME_SECONDS = 20.0
"""Maximum wait for a producer name that another process uses."""

Key = tuple[WriteOptions, str, SchemaInfo | None]
"""Options, topic and schema of the payloads."""


@dataclass(slots=True)
class KeptProducers:
    """Idle producers of this process, each lent to one user at a time."""

    _idle: list[tuple[float, Key, Producer[Any]]] = field(default_factory=list)
    """The time since when each is idle, the oldest first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sweeper: threading.Timer | None = None

    @contextlib.contextmanager
    def borrowed(
        self, options: WriteOptions, topic: str, info: SchemaInfo | None = None
    ) -> Iterator[Producer[Any]]:
        """Lend a producer for the options; ``info`` is its payloads' schema. Raises `IncompatibleSchema`
        naming the topic that rejects it.

        It is kept for the next borrower, unless its work ends with an error.
        """
        key = options, topic, info
        producer = self._take(key) or _opened(options, topic, None, info)
        try:
            yield producer
        except BaseException:
            _close(producer)
            raise
        self._keep(key, producer)

    def _take(self, key: Key) -> Producer[Any] | None:
        with self._lock:
            for number in reversed(range(len(self._idle))):
                if self._idle[number][1] == key:
                    return self._idle.pop(number)[2]
            return None

    def _keep(self, key: Key, producer: Producer[Any]) -> None:
        with self._lock:
            self._idle.append((time.monotonic(), key, producer))
            surplus = self._expired()
            self._arm()
        for each in surplus:
            _close(each)

    def _expired(self) -> list[Producer[Any]]:
        """Remove producers that were idle for too long or exceed the limit. Call with the lock held."""
        oldest = time.monotonic() - IDLE_SECONDS
        expired = sum(since <= oldest for since, *_ in self._idle)
        count = max(expired, len(self._idle) - PRODUCERS_MAX)
        gone, self._idle = self._idle[:count], self._idle[count:]
        return [producer for *_, producer in gone]

    def _arm(self) -> None:
        if self._sweeper is None and self._idle:
            self._sweeper = threading.Timer(IDLE_SECONDS / 2, self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        with self._lock:
            self._sweeper = None
            gone = self._expired()
            self._arm()
        for producer in gone:
            _close(producer)


kept = KeptProducers()
"""Idle producers of this process."""


@contextlib.contextmanager
def named(
    options: WriteOptions, topic: str, name: str, info: SchemaInfo | None = None
) -> Iterator[Producer[Any]]:
    """Open a producer with this name, for deduplication, that stops at a failure; it is closed at the end.
    Raises as `KeptProducers.borrowed`, and `ProducerBusy` if the name stays in use."""
    producer = _opened(options, topic, name, info)
    for partition in producer.publisher.state.partitions:
        partition.stops_at_failure = True
    try:
        yield producer
    finally:
        _close(producer)


class _Registered(Schema):
    """A schema for payloads that are already encoded."""

    def __init__(self, info: SchemaInfo) -> None:
        kind = SchemaType(info.type)
        super().__init__(bytes, kind, None, info.name, schema_data=info.data, properties=info.properties)

    def encode(self, obj: Any) -> bytes:
        return bytes(obj)

    def decode(self, data: bytes) -> Any:
        return data


def public_keys(options: WriteOptions) -> CryptoKeyReader | None:
    """Return the reader of the encryption keys; None without encryption."""
    from geminga.client.options.crypto import CryptoKeyReader

    path = options.crypto_public_key_path
    return None if path is None else CryptoKeyReader(path, "")


def _opened(options: WriteOptions, topic: str, name: str | None, info: SchemaInfo | None) -> Producer[Any]:
    """Open a producer; wait if its name is in use, perhaps by a process that has ended."""
    from geminga.client.options.enums import CompressionType, HashingScheme

    deadline = time.monotonic() + NAME_SECONDS

    def attempt() -> Producer[Any]:
        while True:
            try:
                return client_for(options.connection).create_producer(
                    topic,
                    schema=BytesSchema() if info is None else _Registered(info),
                    producer_name=name,
                    send_timeout_millis=options.send_timeout_ms,
                    compression_type=CompressionType(COMPRESSIONS.index(options.compression)),
                    compression_level=options.compression_level,
                    hashing_scheme=HashingScheme[options.hashing],
                    batching_max_messages=options.messages_in_a_batch,
                    batching_max_allowed_size_in_bytes=options.batching_max_bytes,
                    block_if_queue_full=True,
                    encryption_keys=options.encryption_keys,
                    crypto_key_reader=public_keys(options),
                )
            except IncompatibleSchema as error:
                error.add_note(f"{topic} does not take the schema that the frame's columns give")
                raise
            except ProducerBusy as error:
                if name is None or time.monotonic() > deadline:
                    raise
                logger.info("waiting for the producer name %s: %s", name, error)
                time.sleep(0.2)

    return options.connection.retry_policy.call(f"opening a producer of {topic}", attempt)


def _close(producer: Producer[Any]) -> None:
    """Close a producer without raising: its receipts and errors were already handled."""
    try:
        producer.close()
    except PulsarException as error:
        logger.debug("closing a producer: %s", error)
