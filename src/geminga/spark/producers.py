"""Producers that a Python worker keeps open between tasks and micro-batches.

Spark reuses its workers, and opening a producer takes longer than publishing a small micro-batch. A producer
that stays unused is closed after `IDLE_SECONDS`: its name is then free for another worker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from geminga.errors import IncompatibleSchema, ProducerBusy, PulsarException
from geminga.schema.schema import BytesSchema, Schema, SchemaInfo, SchemaType
from geminga.spark.cluster import client_for
from geminga.spark.options import COMPRESSIONS, WriteOptions
from geminga.spark.retry_policy import RetryPolicy

if TYPE_CHECKING:
    from geminga.client.crypto import CryptoKeyReader
    from geminga.client.producer import Producer

logger = logging.getLogger("geminga.spark")

IDLE_SECONDS = 10.0
"""Idle time after which a producer is closed."""
PRODUCERS_MAX = 256
"""Maximum idle producers of one process; the least recently used one is closed first."""

Key = tuple[object, ...]


@dataclass(slots=True)
class _Idle:
    producer: Producer[Any]
    since: float


@dataclass(slots=True)
class KeptProducers:
    """Idle producers of this process, each lent to one user at a time."""

    idle_seconds: float = IDLE_SECONDS
    _idle: dict[Key, list[_Idle]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sweeper: threading.Timer | None = None
    _pid: int = field(default_factory=os.getpid)

    @contextlib.contextmanager
    def borrowed(
        self,
        options: WriteOptions,
        topic: str,
        name: str | None = None,
        info: SchemaInfo | None = None,
        *,
        partitions: int = 0,
    ) -> Iterator[Producer[Any]]:
        """Lend a producer for the options; ``name`` fixes its name, for deduplication, ``info`` is its
        payloads' schema. Raises `IncompatibleSchema` naming the topic that rejects it. The producer knows at
        least ``partitions`` partitions of the topic: a kept one that knows fewer is reopened.

        It is kept for the next borrower, unless its work ends with an error.
        """
        key = _key(options, topic, name, info)
        producer = self._take(key)
        if producer is not None and len(producer.statistics().partitions) < partitions:
            _close(producer)
            producer = None
        producer = producer or _opened(options, topic, name, info)
        try:
            yield producer
        except BaseException:
            _close(producer)
            raise
        self._keep(key, producer)

    def drop(
        self,
        options: WriteOptions,
        topic: str,
        name: str | None = None,
        info: SchemaInfo | None = None,
    ) -> None:
        """Close the idle producers for these options."""
        producer = self._take(_key(options, topic, name, info))
        if producer is not None:
            _close(producer)

    def _take(self, key: Key) -> Producer[Any] | None:
        with self._lock:
            self._forget_after_fork()
            kept = self._idle.get(key)
            if not kept:
                return None
            found = kept.pop().producer
            if not kept:
                del self._idle[key]
            return found

    def _keep(self, key: Key, producer: Producer[Any]) -> None:
        with self._lock:
            self._forget_after_fork()
            self._idle.setdefault(key, []).append(_Idle(producer, time.monotonic()))
            surplus = self._expired(time.monotonic())
            self._arm()
        for each in surplus:
            _close(each)

    def _forget_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._idle, self._sweeper = os.getpid(), {}, None

    def _expired(self, now: float) -> list[Producer[Any]]:
        """Remove producers that were idle for too long or exceed the limit. Call with the lock held."""
        everything = sorted(
            ((each.since, key, each) for key, kept in self._idle.items() for each in kept),
            key=lambda item: item[0],
        )
        count = len(everything)
        gone: list[Producer[Any]] = []
        for number, (since, key, each) in enumerate(everything):
            if now - since < self.idle_seconds and count - number <= PRODUCERS_MAX:
                break
            self._idle[key].remove(each)
            if not self._idle[key]:
                del self._idle[key]
            gone.append(each.producer)
        return gone

    def _arm(self) -> None:
        if self._sweeper is None and self._idle:
            self._sweeper = threading.Timer(self.idle_seconds / 2, self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        with self._lock:
            self._sweeper = None
            gone = self._expired(time.monotonic())
            self._arm()
        for producer in gone:
            _close(producer)

    def close(self) -> None:
        """Close all idle producers."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for kept in idle.values():
            for each in kept:
                _close(each.producer)


kept = KeptProducers()
"""Idle producers of this process."""


def _key(options: WriteOptions, topic: str, name: str | None, info: SchemaInfo | None) -> Key:
    return (
        options.connection, topic, name, info, options.compression, options.compression_level,
        options.hashing, options.messages_in_a_batch, options.batching_max_bytes, options.send_timeout_ms,
        options.encryption_keys, options.crypto_public_key_path,
    )  # fmt: skip


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
    from geminga.client.crypto import CryptoKeyReader

    path = options.crypto_public_key_path
    return None if path is None else CryptoKeyReader(path, "")


def _opened(options: WriteOptions, topic: str, name: str | None, info: SchemaInfo | None) -> Producer[Any]:
    """Open a producer; while its name is in use, wait as long as another worker may keep it idle."""
    from geminga.client.enums import CompressionType, HashingScheme

    deadline = time.monotonic() + 2 * IDLE_SECONDS

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

    return RetryPolicy(options.connection.operation_timeout_ms / 1000).call(
        f"opening a producer of {topic}", attempt
    )


def _close(producer: Producer[Any]) -> None:
    """Close a producer without raising: its receipts and errors were already handled."""
    try:
        producer.close()
    except PulsarException as error:
        logger.debug("closing a producer: %s", error)
