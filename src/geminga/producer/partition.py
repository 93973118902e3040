"""Producer of one partition, without I/O: from a routed message to its receipt.

The owner (in `geminga.client`, or a simulation) calls it with events and the time, and fetches the output
(`PartitionProducer.take_output`), settled operations (`ReadySet.settled`) and the time of the next call
(`PartitionProducer.next_deadline`). Nothing here waits, locks or reads a clock; calls for all partitions of
one producer must not overlap.

The states are in `states`; `send_error` and `refused` apply a broker's error to the pending queue, by the
tables of framing.md section 5 and 13.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import partial
from typing import Any, cast

from geminga import errors
from geminga.producer.assembling import IDS_AND_TIME_SIZE_MAX, PRODUCER_NAME_SIZE_GUESS, BatchBuilder
from geminga.producer.batching import Batch, KeyedBatches
from geminga.producer.chunking import UNKNOWN_DUPLICATE, ChunkPart, incomplete
from geminga.producer.message import OutgoingMessage
from geminga.producer.operation import SendOperation, deliver_at_time, name_field, schema_version_field
from geminga.producer.pending import PendingQueue
from geminga.producer.pending_limits import PendingLimits
from geminga.producer.ready_set import ReadySet
from geminga.producer.routing import BlockedReason
from geminga.producer.self_tuning import PartitionTuning
from geminga.producer.settings import ProducerAccessMode, ProducerSettings
from geminga.producer.states import ACCEPTING, ENDED, ProducerInput, ProducerState, next_state
from geminga.producer.statistics import COUNTED, PartitionCounters, ProducerStatistics
from geminga.transactions import Part, TransactionCore
from geminga.wire.checksum import Buffer
from geminga.wire.client_frames import ReceiptRun
from geminga.wire.proto import pulsar_wire_pb2 as pb

WRITE_BYTES_MAX = 1 << 20
"""Bytes at which `PartitionProducer.take_output` returns; call it again for more."""
_APACHE_VERSION = re.compile(r"Pulsar Server[^0-9]*([0-9]+)\.([0-9]+)")
_FENCING_SINCE = (2, 11)
"""First version of Apache Pulsar with ``ExclusiveWithFencing``."""
FINAL = (errors.TopicTerminated, errors.ProducerFenced, errors.TopicNotFound)
"""Errors of a creation that end every producer."""


class SendErrorVerdict(Enum):
    """Action of the owner after a SEND_ERROR."""

    NOTHING = "nothing"
    DETACH = "let go of the connection, reconnect with backoff"
    ENDED = "the producer has ended"


def _is_of_table(operation: SendOperation) -> bool:
    """Return whether this is a batch of a table, which takes no permits."""
    return operation.permits == 0 and operation.chunk is None


class PartitionProducer:
    """Producer of one partition. ``index`` is its number, -1 for a topic without partitions.

    ``tuning`` chooses delay and batch limits instead of the settings."""

    def __init__(
        self,
        *,
        topic: str,
        index: int,
        producer_id: int,
        settings: ProducerSettings,
        limits: PendingLimits,
        ready_set: ReadySet[PartitionProducer],
        tuning: PartitionTuning | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.producer_id = producer_id
        self.state = ProducerState.NOT_STARTED
        self.accepting = True
        """Whether the state is in `ACCEPTING`."""
        self.takes_many = False
        """`accepting`, after the start. Before it `PartitionedProducer.add` starts this producer."""
        self.limits = limits
        self.pending = PendingQueue()
        self.counters = PartitionCounters()
        self.schema_version = b""
        self.topic_epoch: int | None = None
        self._stored_sequence_id = -1
        """Highest sequence id that the broker had stored when this producer connected."""
        self.failure: Exception | None = None
        """Cause of a state in `ENDED`, unless the application closed the producer."""
        initial = settings.initial_sequence_id
        self.last_sequence_id = -1 if initial is None else initial
        """Highest sequence id with a receipt; after the first creation that of the broker."""
        self.created_once = False
        self.gives_up: tuple[type[Exception], ...] = ()
        """Further errors, beyond `FINAL`, of a repeated creation that end this producer."""
        self.stops_at_failure = False
        """Whether a failed operation ends this producer, and nothing is written behind an entry larger than
        all before, or delayed longer, until its receipt: the broker may refuse it. If higher sequence ids
        were stored, the next attempt would lose the failed operation as a duplicate. Not for runs."""
        self.connected = False
        """Whether the producer exists on a connection: frames may be written and receipts received."""
        self._settings = settings
        self._ready_set = ready_set
        self._epoch = 0
        self._name_field = b""
        self._schema_field = b""
        self._last_error: Exception | None = None
        self._accepted = (0, 0)
        """With `stops_at_failure`: the largest size in bytes, and the longest delay of the delivery in
        milliseconds, that the broker has accepted on this connection."""
        self._untried: tuple[int, int] | None = None
        """Size and delivery time of the entry in flight that exceeds them, the last one written."""
        self._receipted_at = self._table_receipted_at = float("-inf")
        self._tuning = tuning
        self._builder = BatchBuilder(topic, settings, limits, self.last_sequence_id + 1, tuning)

    def __repr__(self) -> str:
        return f"<PartitionProducer {self.topic} {self.state.value} pending={len(self.pending)}>"

    @property
    def batch(self) -> Batch | KeyedBatches | None:
        """The open batch."""
        return self._builder.batch

    @property
    def max_message_size(self) -> int:
        """Maximum bytes of an entry; the broker's, when it is known."""
        return self._builder.max_message_size

    @property
    def producer_name(self) -> str | None:
        """Name, given or chosen by the broker; None while it is not known."""
        return self._builder.producer_name

    def _move(self, kind: ProducerInput) -> None:
        self.state = next_state(self.state, kind)
        self.accepting = self.state in ACCEPTING
        self.takes_many = self.accepting and self.state is not ProducerState.NOT_STARTED

    # --- creation ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Note that the owner begins to look up the broker."""
        self._move(ProducerInput.START)

    def create_command(self, request_id: int) -> pb.BaseCommand:
        """Return PRODUCER, for the first creation or after a reconnect (framing.md section 5)."""
        settings = self._settings
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        body = command.producer
        body.topic = self.topic
        body.producer_id = self.producer_id
        body.request_id = request_id
        if self.producer_name is not None:
            body.producer_name = self.producer_name
        body.user_provided_producer_name = settings.producer_name is not None
        body.encrypted = settings.encrypted
        body.epoch = self._epoch
        body.producer_access_mode = cast("pb.ProducerAccessMode", int(settings.access_mode))
        for key, value in settings.properties.items():
            body.metadata.add(key=key, value=value)
        if settings.schema is not None:
            body.schema.name = settings.schema.name
            body.schema.type = cast("pb.Schema.Type", settings.schema.type)
            body.schema.schema_data = settings.schema.data
            for key, value in settings.schema.properties:
                body.schema.properties.add(key=key, value=value)
        if self.topic_epoch is not None and settings.access_mode is not ProducerAccessMode.Shared:
            body.topic_epoch = self.topic_epoch
        if settings.initial_subscription_name is not None:
            body.initial_subscription_name = settings.initial_subscription_name
        return command

    def must_wait(self) -> None:
        """Handle PRODUCER_SUCCESS without ``producer_ready``: another producer has exclusive access."""
        self._move(ProducerInput.MUST_WAIT)

    def check_granted(self, success: pb.CommandProducerSuccess, server_version: str) -> None:
        """Raise `UnsupportedVersionError` for a broker that does not know the requested access mode.

        It grants a producer that shares the topic. Its answer has a ``topic_epoch`` only if an exclusive
        producer has used the topic before."""
        mode = self._settings.access_mode
        if mode is ProducerAccessMode.Shared:
            return
        found = _APACHE_VERSION.match(server_version)
        version = (int(found[1]), int(found[2])) if found else _FENCING_SINCE
        is_known = mode is not ProducerAccessMode.ExclusiveWithFencing or version >= _FENCING_SINCE
        if not (is_known and success.HasField("topic_epoch")):
            raise errors.UnsupportedVersionError(
                f"{self.topic}: the broker does not know access_mode={mode.name} and granted a producer that "
                "shares the topic; it was closed again. Update the broker (ExclusiveWithFencing needs Apache "
                "Pulsar 2.11, the other modes 2.8), or choose another access mode"
            )

    def created(self, success: pb.CommandProducerSuccess, max_message_size: int, now: float) -> None:
        """Handle PRODUCER_SUCCESS. All pending operations are written again, in order."""
        self._move(ProducerInput.CREATED)
        if self.state in ENDED:
            return
        self._builder.producer_name = success.producer_name
        self._name_field = name_field(success.producer_name)
        self._builder.max_message_size = max_message_size
        self.schema_version = success.schema_version
        if self._settings.schema is not None:
            self._schema_field = schema_version_field(success.schema_version)
        if success.HasField("topic_epoch"):
            self.topic_epoch = success.topic_epoch
        self._last_error = None
        self._stored_sequence_id = success.last_sequence_id
        builder = self._builder
        builder.highest_sequence_id = max(builder.highest_sequence_id, success.last_sequence_id)
        builder.knows_last_id = True
        self._accepted, self._untried = (0, 0), None
        self.connected = True
        if not self.created_once:
            self.created_once = True
            self._take_over_sequence(success.last_sequence_id)
        else:
            self.counters.reconnects += 1
        self.counters.resent_operations += self.pending.resend_all()
        self.has_output()

    @property
    def metadata_room(self) -> int:
        """Return the bytes to reserve in an entry for ids, times, name and schema version."""
        name_size = len(self._name_field) or PRODUCER_NAME_SIZE_GUESS
        return IDS_AND_TIME_SIZE_MAX + name_size + max(20, len(self._schema_field)) + 20

    def _take_over_sequence(self, last_sequence_id: int) -> None:
        """Continue after the broker's last sequence id, also for messages accepted before it was known."""
        if self._settings.initial_sequence_id is not None or last_sequence_id < 0:
            return
        self.last_sequence_id = last_sequence_id
        offset = last_sequence_id + 1
        for operation in self.pending:
            if operation.automatic:
                operation.shift(offset)
        if isinstance(self.batch, KeyedBatches) and not self.batch.explicit:
            self.batch.shift(offset)
        self._builder.next_sequence_id += offset

    def is_terminal(self, error: Exception) -> bool:
        """Note the error of a creation or a reconnection, and return whether it is final. Once created, a
        producer retries after nearly every error, as the Java client does; messages end with their send
        time-out."""
        self._last_error = error
        if isinstance(error, FINAL):
            return True
        if self.created_once or not isinstance(error, errors.PulsarException):
            return isinstance(error, self.gives_up)
        return not error.retriable

    def refused(self, error: Exception, now: float) -> None:
        """Handle a failed creation; the owner retries or calls `fail`."""
        self._last_error = error
        if isinstance(error, (errors.ProducerFenced, errors.TopicTerminated)):
            self.fail(error, now)
        else:
            self._move(ProducerInput.REFUSED)
            if isinstance(error, errors.ProducerBlockedQuotaExceededException):
                # The policy: fail pending messages; creation is still retried (framing.md section 13).
                self._fail_everything(error, now)

    def fail(self, error: Exception, now: float) -> None:
        """End permanently: everything pending fails with ``error``."""
        kind = ProducerInput.FAILED
        if isinstance(error, errors.ProducerFenced):
            kind = ProducerInput.FENCED
        elif isinstance(error, errors.TopicTerminated):
            kind = ProducerInput.TERMINATED
        self._end(kind, error, now)

    def disconnected(self, error: Exception | None) -> None:
        """Handle a lost connection, or CLOSE_PRODUCER of the broker. Pending operations stay."""
        self._move(ProducerInput.DISCONNECTED)
        self._epoch += 1
        self.connected = False
        if error is not None:
            self._last_error = error

    # --- messages in ------------------------------------------------------------------------------

    def check_accepting(self) -> None:
        """Raise `AlreadyClosed`, `ProducerFenced`, `TopicTerminated`, or the error of the creation."""
        if self.accepting:
            return
        failure = self.failure
        if failure is not None:
            raise failure
        raise errors.AlreadyClosed(f"the producer of {self.topic} is {self.state.value}")

    def add(self, payload: bytes, token: Any, message: OutgoingMessage | None, now: float) -> bool:
        """Add one message; return whether it filled its batch.

        ``message`` is None for a bare payload. Raises `ProducerQueueIsFull` or `MemoryBufferIsFull`,
        `MessageTooBig`, or the errors of `check_accepting`; the message is not kept then."""
        self.check_accepting()
        builder = self._builder
        before = builder.batch
        more_follow = self.index < 0 or self.pending.head is not None
        operations, filled = builder.add(payload, token, message, now, more_follow=more_follow)
        for operation in operations:
            self.enqueue(operation)
        if builder.batch is not None and builder.batch is not before:
            self._ready_set.batch_opened(self, builder.batch)
        return filled

    def add_many(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: list[OutgoingMessage | None] | None,
        start: int,
        now: float,
        transaction: TransactionCore | None = None,
    ) -> int:
        """Add simple messages from ``start`` on, as far as nothing is needed but their permits and bytes.
        Return their number; the next message is for `add`. See `BatchBuilder.add_many`."""
        if not self.takes_many:
            return 0
        count, run = self._builder.add_many(payloads, tokens, messages, start, now, transaction)
        if run is not None:
            self.enqueue(run)
        return count

    def add_run(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: list[OutgoingMessage | None] | None,
        size: int,
        now: float,
    ) -> None:
        """Add a run of simple messages with ``size`` payload bytes, which have their permits and bytes."""
        self.enqueue(self._builder.run(payloads, tokens, messages, size, now))

    def until_full(self) -> tuple[int, int]:
        """See `BatchBuilder.until_full`."""
        return self._builder.until_full()

    def submit(self, operation: SendOperation, now: float) -> None:
        """Add an encoded operation; it takes bytes but no permits. Without sequence ids (-1) it gets the next
        ones; otherwise the automatic ids continue after its own.

        An open batch is sent first, which keeps the order. Raises `MemoryBufferIsFull`, `MessageTooBig`."""
        self.check_accepting()
        self.limits.check_possible(0, operation.size, self.topic)
        self.limits.require(0, operation.size, self.topic)
        self.close_batch()
        builder = self._builder
        if operation.sequence_id < 0:
            operation.sequence_id = builder.reserve(operation.count)
            operation.highest_sequence_id = operation.sequence_id + operation.count - 1
            operation.automatic = True
        else:
            builder.next_sequence_id = max(builder.next_sequence_id, operation.highest_sequence_id + 1)
        operation.opened_at = now
        operation.deadline = builder.deadline(now)
        self.enqueue(operation)

    def enqueue(self, operation: SendOperation) -> None:
        """Append to the pending queue."""
        operation.partition = self
        self.pending.append(operation)
        counters = self.counters
        counters.sent_messages += operation.count
        counters.sent_batches += operation.entries
        counters.sent_payload_bytes += operation.size
        self._ready_set.enqueued(self, operation)
        if (transaction := operation.transaction) is not None:
            operation.claimed = True
            transaction.begin(Part(self.topic), operation.count, partial(self._joined, operation))

    def _joined(self, operation: SendOperation, error: Exception | None) -> None:
        """Write an operation now that its transaction's coordinator knows this partition, or fail it."""
        operation.claimed = False
        if error is not None and not operation.settled:
            self._fail_one(operation, error, operation.opened_at)
        self.has_output()

    def close_batch(self) -> None:
        """Close the open batch, if any."""
        for operation in self._builder.close():
            self.enqueue(operation)

    # --- output and time --------------------------------------------------------------------------

    def has_output(self) -> None:
        """Note possible output: the owner should call `take_output`."""
        if self.pending.unsent:
            self._ready_set.writable[self] = None
            self._ready_set.attention = True

    def take_output(self, now: float, now_ms: int) -> list[Buffer]:
        """Return the SEND frames to write now, in order; about `WRITE_BYTES_MAX` bytes at a time.

        Stops at an operation that another thread is encoding. Operations that cannot be sent (too big) settle
        with their error, and later ones are still sent, without `stops_at_failure`."""
        output: list[Buffer] = []
        if not self.connected:
            self._ready_set.writable.pop(self, None)
            return output
        size = 0
        unsent, max_message_size = self.pending.unsent, self._builder.max_message_size
        accepted_size, accepted_delay = self._accepted
        if self._untried and not self.pending.in_flight:
            # The delay until now, after the receipt, is at most the one that the broker has compared.
            accepted_size = max(accepted_size, self._untried[0])
            accepted_delay = max(accepted_delay, self._untried[1] - now_ms)
            self._accepted, self._untried = (accepted_size, accepted_delay), None
        while unsent and not unsent[0].claimed and size < WRITE_BYTES_MAX and not self._untried:
            operation = unsent[0]
            try:
                frames = operation.frame(
                    self.producer_id, self._name_field, now_ms, max_message_size, self._schema_field
                )
            except errors.MessageTooBig as error:
                self._too_big(operation, error, now)
                continue
            except Exception as error:
                self._drop(operation, error, now)
                continue
            if not operation.is_run:
                operation.payloads = None
            operation.sent_at = now
            for piece in frames:
                output.append(piece)
                size += len(piece)
            unsent.popleft()
            if self.stops_at_failure:
                entry_size, deliver_at = operation.entry_size, deliver_at_time(operation)
                if entry_size > accepted_size or deliver_at - now_ms > accepted_delay:
                    self._untried = entry_size, deliver_at
        if not unsent or unsent[0].claimed or self._untried:
            self._ready_set.writable.pop(self, None)
        self.counters.sent_bytes += size
        return output

    def _too_big(self, operation: SendOperation, error: errors.MessageTooBig, now: float) -> None:
        parts = self._builder.split(operation)
        if parts is None:
            self._drop(operation, error, now)
        else:
            for part in parts:
                part.partition = self
            self.pending.replace_unsent(operation, parts)

    def _drop(self, operation: SendOperation, error: Exception, now: float) -> None:
        """Fail one operation before it is written; all chunks of a message fail together."""
        if operation.chunk is None and not self.stops_at_failure:
            self.pending.replace_unsent(operation, ())
            self._settle(operation, error, now)
        else:
            self._fail_one(operation, error, now)

    def next_deadline(self) -> float:
        """Return when `tick` must be called; infinite if no deadline is pending."""
        batch = self.batch
        deadline = float("inf") if batch is None else batch.deadline
        head = self.pending.head
        return deadline if head is None else min(deadline, head.deadline)

    def tick(self, now: float, *, expire: bool = True) -> None:
        """Close a batch that is due or urgent; with ``expire``, fail everything when the head's send time-out
        has passed.

        Everything pending fails together, as in the official clients: later operations are about as old, and
        a later message must not succeed when the application repeats an earlier one."""
        batch = self.batch
        if batch is not None and (batch.urgent or batch.deadline <= now):
            self.close_batch()
        head = self.pending.head
        if expire and head is not None and head.deadline <= now:
            # A table's batches take no permits: the time spent waiting behind any number does not count.
            receipted_at = self._receipted_at if _is_of_table(head) else self._table_receipted_at
            head.deadline = max(head.deadline, self._builder.deadline(receipted_at))
            if head.deadline > now:
                self._ready_set.check_send_timeouts_at(head.deadline)
                return
            self.counters.timeouts += 1
            cause = f"; last error: {self._last_error}" if self._last_error else ""
            refusals = errors.AuthenticationError, errors.AuthorizationError
            kind = next((each for each in refusals if isinstance(self._last_error, each)), errors.Timeout)
            error = kind(
                f"no receipt from {self.topic} within send_timeout={self._settings.send_timeout_seconds:g} s "
                f"(the producer is {self.state.value}{cause})"
            )
            self._fail_everything(error, now)

    # --- receipts and errors ----------------------------------------------------------------------

    def receipt(
        self, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int, now: float
    ) -> None:
        """Handle SEND_RECEIPT. Raises `ProtocolError` for a mismatch: close the connection."""
        if not self.connected:
            return  # from before a reconnect
        operation = self.pending.match_receipt(sequence_id, highest_sequence_id, ledger_id, entry_id)
        if operation is None:
            self.counters.late_receipts += 1
            return
        self._receipted(operation, now)

    def _receipted(self, operation: SendOperation, now: float) -> None:
        self._receipted_at = now
        if _is_of_table(operation):
            self._table_receipted_at = now
        error = None if operation.chunk is None else self._chunk_receipted(operation, operation.chunk)
        if operation.highest_sequence_id > self.last_sequence_id:
            self.last_sequence_id = operation.highest_sequence_id
        self._settle(operation, error, now)

    def _chunk_receipted(self, operation: SendOperation, chunk: ChunkPart) -> Exception | None:
        """Note the receipt of a chunk; with the last one, return the error of an incomplete message.
        Chunks of a message with a new sequence id, written once, are no duplicates: a broker that reports
        duplicates has dropped them. After a reconnect a chunk may have been stored before."""
        whole = chunk.message
        if chunk.number == 0:
            whole.first_ledger_id, whole.first_entry_id = operation.ledger_id, operation.entry_id
            whole.is_new = self._is_new(operation)
        if whole.is_new and operation.duplicate and not operation.resent:
            whole.is_incomplete = True
        return incomplete(self.topic) if chunk.last and whole.is_incomplete else None

    def _is_new(self, operation: SendOperation) -> bool:
        """Return whether the broker cannot have stored this sequence id before."""
        return operation.sequence_id > max(self.last_sequence_id, self._stored_sequence_id)

    def receipts(self, run: ReceiptRun, now: float) -> None:
        """Handle consecutive SEND_RECEIPTs; see `receipt`."""
        sequence_id, entry_id, left = run.sequence_id, run.entry_id, run.count
        while left and self.connected:
            settled = None
            if run.highest_sequence_id <= 0:
                settled = self.pending.match_run(sequence_id, run.ledger_id, entry_id, left)
            if settled is None:
                self.receipt(sequence_id, run.highest_sequence_id, run.ledger_id, entry_id, now)
                count = 1
            else:
                count = settled.count
                self._receipted(settled, now)
            sequence_id += count
            entry_id += count
            left -= count

    def send_error(self, code: int, sequence_id: int, message: str, now: float) -> SendErrorVerdict:
        """Handle SEND_ERROR, by the table of framing.md section 5."""
        if not self.connected:
            return SendErrorVerdict.NOTHING
        error = errors.from_server(code, f"{self.topic}: {message}")
        self._last_error = error
        if isinstance(error, (errors.TopicTerminated, errors.ProducerFenced)):
            self.fail(error, now)
            return SendErrorVerdict.ENDED
        if isinstance(error, errors.NotAllowedError):
            operation = self.pending.find_failed(sequence_id)
            if operation is not None:
                self._fail_one(operation, error, now)
            return SendErrorVerdict.NOTHING
        if UNKNOWN_DUPLICATE in message:
            operation = self.pending.find_failed(sequence_id)
            if operation is not None and operation.chunk and not operation.resent and self._is_new(operation):
                self._fail_one(operation, incomplete(self.topic), now)
        if isinstance(error, errors.ChecksumError):
            self.counters.checksum_errors += 1
            operation = self.pending.find_failed(sequence_id)
            if operation is not None and not operation.checksum_is_intact():
                # Our own copy is damaged: sending it again would repeat the error.
                self._fail_one(operation, error, now)
                return SendErrorVerdict.NOTHING
        return SendErrorVerdict.DETACH

    def _fail_one(self, operation: SendOperation, error: Exception, now: float) -> None:
        """Fail one message: its operation, or all its chunks; all messages with `stops_at_failure`."""
        if self.stops_at_failure:
            self._fail_everything(error, now)
            return
        group = [operation]
        if operation.chunk is not None:
            whole = operation.chunk.message
            group = [o for o in self.pending if o.chunk is not None and o.chunk.message is whole]
        for member in group:
            self.pending.remove(member)
            self._settle(member, error, now)

    def _fail_everything(self, error: Exception, now: float) -> None:
        if self.stops_at_failure and self.state not in ENDED:
            self.fail(error, now)
            return
        self.close_batch()
        for operation in self.pending.take_all():
            self._settle(operation, error, now)
        self._ready_set.writable.pop(self, None)

    def _settle(self, operation: SendOperation, error: Exception | None, now: float) -> None:
        """Remove an operation from the pending queue: return permits and bytes, list the outcome."""
        operation.error = error
        count, size, counters = operation.count, operation.size, self.counters
        if (transaction := operation.transaction) is not None:
            transaction.ended(count, error)
        self.limits.give(operation.permits, size)
        counters.settled_bytes += size
        if (error is not None or now >= counters.heard_at) and counters.heard is not None:
            written = now - operation.sent_at if operation.sent_at else None
            counters.heard_at = counters.heard(now, now - operation.opened_at, written, error is not None)
        if error is None:
            counters.acknowledged_messages += count
            counters.acknowledged_bytes += size
            counters.latency.add(now - operation.opened_at, count)
            if self._tuning is not None:
                self._tuning.receipted(operation, size, now)
            if operation.ledger_id == -1:
                counters.duplicates += count
        else:
            counters.failed_messages += count
        operation.payloads = operation.body = operation.head = None
        ready_set = self._ready_set
        ready_set.settled.append(operation)
        ready_set.attention = True
        if self._untried:
            self.has_output()
        if self._builder.batch is None and self.pending.head is None:
            ready_set.busy.pop(self, None)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, kind: ProducerInput, error: Exception, now: float) -> None:
        self._move(kind)
        self.connected = False
        if self.failure is None:
            self.failure = error
        self._fail_everything(error, now)

    def close(self, now: float) -> None:
        """Begin to close: accept no messages; close the open batch, which may still be written."""
        self.close_batch()
        self._move(ProducerInput.CLOSE)
        if self.state in ENDED:
            self._fail_everything(self._closed_error(), now)

    def closed(self, now: float) -> None:
        """Handle the broker's confirmation, or the end of the owner's wait: pending operations fail."""
        self._move(ProducerInput.CLOSED)
        self.connected = False
        self._fail_everything(self._closed_error(), now)

    def _closed_error(self) -> Exception:
        return self.failure or errors.AlreadyClosed(
            f"the producer of {self.topic} was closed before the receipt"
        )

    # --- queries of router and statistics ---------------------------------------------------------

    def blocked(self, now: float) -> BlockedReason | None:
        """Return why an unkeyed message should skip this partition, or None. A partition that is not started
        yet is not blocked: choosing it starts it."""
        if self.state is not ProducerState.READY and self.state is not ProducerState.NOT_STARTED:
            return BlockedReason.CONNECTION
        if not self.limits.own.free:
            return BlockedReason.PERMITS
        head = self.pending.head
        if head is not None and now - head.opened_at > self._settings.blocked_after_seconds:
            return BlockedReason.AGE
        return None

    def stepped_over(self, reason: BlockedReason, now: float) -> None:
        self.counters.count_step(reason, now)

    def chosen(self, now: float) -> None:
        self.counters.count_chosen(now)

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot."""
        counters = self.counters
        latency = counters.latency
        counted: dict[str, Any] = {name: getattr(counters, name) for name in COUNTED}
        for reason, count in counters.stepped_over.items():
            counted[f"stepped_over_{reason.name.lower()}"] = count
        return ProducerStatistics(
            topic=self.topic,
            state=self.state.value,
            pending_messages=self.pending.messages,
            pending_operations=self.pending.entries,
            open_batch_messages=0 if self.batch is None else len(self.batch),
            last_sequence_id=self.last_sequence_id,
            stepped_over=sum(counters.stepped_over.values()),
            latency_mean_seconds=latency.mean_seconds,
            latency_p50_seconds=latency.percentile(0.5),
            latency_p99_seconds=latency.percentile(0.99),
            latency_p999_seconds=latency.percentile(0.999),
            **counted,
        )
