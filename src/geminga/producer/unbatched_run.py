"""Steps 7 to 12 for unbatched messages: consecutive ones are sent as a run.

A producer without batching has a frame and a receipt for each message, which differ only in payload, sequence
id and entry id. So plain messages that were accepted together stay together: `UnbatchedRun` is one item of
the pending queue, like an operation for a batch, its frames are encoded in one pass (`wire.send_runs`), and
receipts received together settle as many messages as they name.

An event that concerns one message alone (the broker rejects it, or it is too big for a new connection) needs
its own operation: `UnbatchedRun.split_into_operations` creates those, which replace the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from geminga.producer.message import keyed_message
from geminga.producer.operation import SendOperation
from geminga.wire.send_runs import encode_keyed_sends, encode_sends
from geminga.wire.varint import varint

if TYPE_CHECKING:
    from geminga.producer.partition import PartitionProducer

RUN_MESSAGES_MAX = 1024
"""Maximum messages of one run."""
RUN_BYTES_MAX = 256 * 1024
"""Maximum payload bytes of one run: its frames are one piece of memory."""
PAYLOAD_BYTES_MAX = 16 * 1024
"""Maximum payload bytes of a message in a run; larger ones are sent without copying."""
KEY_SIZE_MAX = 1024
"""Maximum key bytes of a message in a run."""


class UnbatchedRun:
    """Consecutive messages of bytes, some with a key, and nothing else; each an entry of its own.

    ``payloads`` and ``tokens`` are all of them; the first ``done`` have their receipts. ``keys`` are theirs,
    ASCII and empty for none; None: no message has one. ``sequence_id`` is the first id without a receipt.
    Otherwise used like a `SendOperation`.
    """

    __slots__ = (
        "deadline",
        "done",
        "error",
        "highest_sequence_id",
        "keys",
        "opened_at",
        "partition",
        "payloads",
        "permits",
        "publish_time",
        "resent",
        "sent_at",
        "sequence_id",
        "size",
        "tokens",
        "watchers",
    )

    body = chunk = None
    claimed = False
    automatic = True

    def __init__(
        self,
        partition: PartitionProducer,
        payloads: list[bytes],
        tokens: list[Any],
        *,
        sequence_id: int,
        size: int,
        opened_at: float,
        deadline: float,
        keys: list[str] | None = None,
    ) -> None:
        self.partition = partition
        self.payloads = payloads
        self.keys = keys
        self.tokens = tokens
        self.done = 0
        self.sequence_id = sequence_id
        self.highest_sequence_id = sequence_id + len(payloads) - 1
        self.size = size
        self.permits = len(payloads)
        self.opened_at = opened_at
        self.deadline = deadline
        self.publish_time = 0
        self.resent = False
        self.sent_at = 0.0
        self.error: Exception | None = None
        self.watchers: list[Callable[[Any], None]] | None = None

    @property
    def count(self) -> int:
        """Number of messages without a receipt: each has an entry."""
        return len(self.payloads) - self.done

    @property
    def entries(self) -> int:
        return len(self.payloads) - self.done

    def shift(self, offset: int) -> None:
        """See `SendOperation.shift`."""
        self.sequence_id += offset
        self.highest_sequence_id += offset

    def frames(
        self, producer_id: int, producer_name: bytes, now_ms: int, max_message_size: int, schema: bytes
    ) -> bytes | None:
        """Return the SEND frames of messages without a receipt; None when one may be too big.

        ``now_ms`` becomes the publish time at the first call. See `SendOperation.frame`.
        """
        payloads = self.payloads[self.done :] if self.done else self.payloads
        fixed = len(producer_name) + len(schema) + 64 + (KEY_SIZE_MAX if self.keys is not None else 0)
        if max(map(len, payloads)) + fixed > max_message_size:
            return None
        if not self.publish_time:
            self.publish_time = now_ms
        before, time = producer_name + b"\x10", b"\x18" + varint(self.publish_time)
        if self.keys is None:
            return encode_sends(producer_id, self.sequence_id, payloads, before, time + schema)
        keys = self.keys[self.done :]
        return encode_keyed_sends(producer_id, self.sequence_id, payloads, keys, before, time, schema)

    def receipted(self, count: int, ledger_id: int, entry_ids: Sequence[int]) -> AckedRun:
        """Settle the next ``count`` messages."""
        start, end = self.done, self.done + count
        size = sum(map(len, self.payloads[start:end]))
        self.done = end
        self.sequence_id += count
        self.permits -= count
        self.size -= size
        whole = end == len(self.payloads)
        tokens = self.tokens if whole and not start else self.tokens[start:end]
        return AckedRun(self, tokens, size, ledger_id, entry_ids, self.watchers if whole else None)

    def split_into_operations(self) -> list[SendOperation]:
        """Return an operation for each message without a receipt."""
        operations = []
        sequence_id = self.sequence_id
        for index in range(self.done, len(self.payloads)):
            payload, token = self.payloads[index], self.tokens[index]
            key = "" if self.keys is None else self.keys[index]
            operation = SendOperation(
                [payload],
                [token],
                sequence_id=sequence_id,
                highest_sequence_id=sequence_id,
                size=len(payload),
                permits=1,
                opened_at=self.opened_at,
                deadline=self.deadline,
                is_batch=False,
                messages={0: keyed_message(payload, key)} if key else None,
            )
            operation.partition = self.partition
            operation.publish_time = self.publish_time
            operation.resent = self.resent
            operations.append(operation)
            sequence_id += 1
        operations[-1].watchers = self.watchers
        return operations

    def __repr__(self) -> str:
        return f"<Singles {self.sequence_id}..{self.highest_sequence_id}>"


class AckedRun:
    """Messages of a run whose receipts arrived together. ``entry_ids`` are as many as ``tokens``."""

    __slots__ = ("entry_ids", "ledger_id", "run", "size", "tokens", "watchers")

    error = None

    def __init__(
        self,
        run: UnbatchedRun,
        tokens: list[Any],
        size: int,
        ledger_id: int,
        entry_ids: Sequence[int],
        watchers: list[Callable[[Any], None]] | None,
    ) -> None:
        self.run = run
        self.tokens = tokens
        self.size = size
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.watchers = watchers

    @property
    def partition(self) -> PartitionProducer:
        return self.run.partition

    @property
    def count(self) -> int:
        return len(self.tokens)
