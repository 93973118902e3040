"""Acknowledgements: collected, grouped, sent, and optionally receipted.

Grouping: acknowledgements are collected for the grouping time or up to a number of ids, and are sent in one
ACK for individual ids and one for the cumulative position (algorithms.md section 8).

Batches: the broker stores entries, so an entry is acknowledged when all its messages are. With batch-index
acknowledgement the ACK also has the remaining messages of a batch, as a bit set (framing.md section 8).
Without it, a cumulative acknowledgement inside a batch moves to the entry before it.

An acknowledgement that was not sent, or whose receipt is outstanding, survives a reconnect;
`AckTracker.is_duplicate` recognises entries redelivered meanwhile. Partial acknowledgements of a batch that
will not be sent do not survive: an administrator may have moved the subscription back, which looks like any
other reconnect, and then the whole batch must be delivered. Java's and the C++ client do so too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, repeat
from typing import Any

from geminga.consumer.commands import ACK_CUMULATIVE, ACK_INDIVIDUAL, encode_ack
from geminga.consumer.message import (
    EntryAcks,
    EntryKey,
    Message,
    ReceivedEntry,
    UnbatchedRun,
    entry_of,
    places_of,
)
from geminga.ids import MessageId

IDS_PER_COMMAND_MAX = 10_000
"""Maximum ids in one ACK command: a frame of about 200 KB."""

KNOWN_BATCHES_MAX = 100_000
"""Maximum partly acknowledged batches that are remembered; the oldest is forgotten first."""


class DeliveredParts:
    """The unfinished batches and the chunked messages that one consumer received."""

    def __init__(self) -> None:
        self.batches: dict[EntryKey, EntryAcks] = {}
        """Acknowledgement states of the unfinished batches."""
        self.chunks: dict[EntryKey, list[EntryKey]] = {}
        """Entries of each chunked message, by the last one's."""

    def batch_of(self, key: EntryKey, count: int) -> EntryAcks:
        """Return the acknowledgement state of a batch: the known one when the entry is redelivered."""
        acks = self.batches.get(key)
        if acks is None or len(acks.flags) != count:
            acks = self.batches[key] = EntryAcks(count)
            if len(self.batches) > KNOWN_BATCHES_MAX:
                del self.batches[next(iter(self.batches))]
        return acks

    def chunked(self, key: EntryKey, chunk_ids: list[EntryKey]) -> None:
        """Register the chunks of a message, which are acknowledged together; ``key`` is the last chunk's."""
        self.chunks[key] = chunk_ids
        if len(self.chunks) > KNOWN_BATCHES_MAX:
            del self.chunks[next(iter(self.chunks))]

    def entries_of(self, key: EntryKey) -> list[EntryKey]:
        """Return the entries of a message: its own, or all chunks of a chunked one."""
        return self.chunks.get(key) or [key]

    def drop_through(self, key: EntryKey, inclusive: bool) -> None:
        """Forget what is below an entry, and the entry itself if ``inclusive``."""
        drop_through(self.batches, key, inclusive)
        drop_through(self.chunks, key, inclusive)

    def forget(self) -> None:
        """Forget everything. Later acknowledgements do not complete these batches."""
        for acks in self.batches.values():
            acks.reopen()
        self.batches.clear()
        self.chunks.clear()


def drop_through(table: dict[EntryKey, Any], key: EntryKey, inclusive: bool) -> None:
    """Remove the keys below ``key``, and ``key`` itself if ``inclusive``. Tables are mostly ordered by key: a
    covered key after one that is not covered stays a while, which is harmless."""
    covered = []
    for known in table:
        if not (known < key or (inclusive and known == key)):
            break
        covered.append(known)
    for known in covered:
        del table[known]


@dataclass(slots=True, eq=False, repr=False)
class Cumulative:
    """Cumulative position; ``acks`` has the remaining messages of its last entry."""

    key: EntryKey
    acks: EntryAcks | None


@dataclass(slots=True, eq=False, repr=False)
class _Wait:
    """Tokens, and the number of ACKs sent before them that have no receipt yet."""

    tokens: list[Any]
    unanswered: int


@dataclass(slots=True, eq=False, repr=False)
class AckRequest:
    """One ACK command, sent or about to be sent."""

    individual: dict[EntryKey, EntryAcks | None] = field(default_factory=dict)
    cumulative: Cumulative | None = None
    waits: list[_Wait] = field(default_factory=list)


class AckReceipts:
    """The ACKs of one consumer, by request id."""

    def __init__(self) -> None:
        self._requests: dict[int, AckRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def sent(self, request_id: int, request: AckRequest) -> None:
        """Note an ACK that is about to be sent."""
        self._requests[request_id] = request

    def wait(self, tokens: list[Any]) -> list[Any]:
        """Keep ``tokens`` until all these ACKs are answered; return those that wait for no ACK."""
        if not tokens or not self._requests:
            return tokens
        wait = _Wait(tokens, len(self._requests))
        for request in self._requests.values():
            request.waits.append(wait)
        return []

    def settles(self, key: EntryKey) -> bool:
        """Return whether one of the ACKs has all messages of the entry."""
        sent = self._requests
        return bool(sent) and any(one.individual.get(key, self) is None for one in sent.values())

    def touches(self, keys: Sequence[EntryKey]) -> bool:
        """Return whether one of the ACKs has one of the entries."""
        return not all(request.individual.keys().isdisjoint(keys) for request in self._requests.values())

    def answered(self, request_id: int, *, failed: bool = False) -> list[Any]:
        """Handle an ACK_RESPONSE; return the tokens that it settles: those whose last answer it is, and with
        ``failed`` all that it concerns. An unknown id settles none."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return []
        settled: list[Any] = []
        for wait in request.waits:
            wait.unanswered -= 1
            if failed or not wait.unanswered:
                settled += wait.tokens
                wait.tokens = []
        return settled

    def withdraw(self) -> tuple[list[AckRequest], list[Any]]:
        """Forget all ACKs: return them, and the tokens that waited for them."""
        requests, self._requests = list(self._requests.values()), {}
        waits = {id(wait): wait for request in requests for wait in request.waits}
        return requests, [token for wait in waits.values() for token in wait.tokens]


class AckTracker:
    """The acknowledgements of one consumer.

    ``receipts``: every ACK carries a request id, and the tokens given with its acknowledgements are returned
    when the broker has answered.
    """

    def __init__(
        self, consumer_id: int, *, grouping_seconds: float = 0.1, grouping_max: int = 1000,
        batch_index: bool = False, receipts: bool = False,
    ) -> None:  # fmt: skip
        self._consumer_id = consumer_id
        self._grouping_seconds = grouping_seconds
        self._grouping_max = grouping_max
        self._batch_index = batch_index
        self._receipts = receipts
        self._pending: dict[EntryKey, EntryAcks | None] = {}
        self._cumulative: Cumulative | None = None
        self._cumulative_pending = False
        self.receipts = AckReceipts()
        self.parts = DeliveredParts()
        self._tokens: list[Any] = []
        self._deadline = float("inf")

    # --- deliveries ------------------------------------------------------------------------------

    def is_duplicate(self, key: EntryKey) -> bool:
        """Return True for an entry whose acknowledgement has not reached the broker yet.

        For an entry below the cumulative position the broker lost it: it is sent again.
        """
        if self._pending.get(key, self) is None:
            return True
        cumulative = self._cumulative
        if cumulative is not None and (
            key < cumulative.key or (key == cumulative.key and not _remaining(cumulative.acks))
        ):
            self._cumulative_pending = True
            return True
        return self.receipts.settles(key)

    def may_be_duplicate(self, keys: Sequence[EntryKey]) -> bool:
        """Return False if no entry is one of those of `is_duplicate`; ``keys`` are in order."""
        if self._cumulative is not None and keys[0] <= self._cumulative.key:
            return True
        return not self._pending.keys().isdisjoint(keys) or self.receipts.touches(keys)

    # --- acknowledging ---------------------------------------------------------------------------

    def acknowledge_messages(self, messages: Iterable[Message[Any]], now: float) -> list[EntryKey]:
        """Acknowledge messages one by one; return the entries that are done now.

        The hot path: messages of one entry or run that follow each other are handled together.
        """
        done: list[EntryKey] = []
        is_partial = False
        for entry, same in groupby(messages, entry_of):
            acks = entry.acks
            if type(entry) is UnbatchedRun:
                done += [row[1] for row in places_of(same)]
            elif acks is None:
                if entry.chunk_ids is not None:
                    self._chunks_done(entry)
                done.append((entry.ledger_id, entry.entry_id))
            else:
                flags, before = acks.flags, acks.remaining
                for index in places_of(same):
                    acks.remaining -= flags[index]
                    flags[index] = 0
                if before and not acks.remaining:
                    self.parts.batches.pop((entry.ledger_id, entry.entry_id), None)
                    done.append((entry.ledger_id, entry.entry_id))
                elif self._batch_index and acks.remaining < before:
                    # The remaining messages are read when the ACK is sent.
                    self._note_partial((entry.ledger_id, entry.entry_id), acks)
                    is_partial = True
        self._pending.update(zip(done, repeat(None)))
        if done or is_partial:
            self._arm(now)
        return done

    def _note_partial(self, key: EntryKey, acks: EntryAcks) -> None:
        """Note a partial acknowledgement of a batch. Acknowledgements already pending for the entry stay."""
        known = self._pending.get(key, acks)
        if known is None:
            return
        if known is not acks:
            # Two deliveries of the entry have separate states: the first was forgotten meanwhile.
            for index, unacked in enumerate(known.flags):
                if not unacked:
                    acks.settle(index)
        self._pending[key] = acks if acks.remaining else None

    def _chunks_done(self, entry: ReceivedEntry) -> None:
        self.parts.chunks.pop((entry.ledger_id, entry.entry_id), None)
        self._pending.update(dict.fromkeys(entry.chunk_ids or ()))

    def acknowledge_entries(self, entries: Iterable[ReceivedEntry], now: float) -> list[EntryKey]:
        """Acknowledge all messages of entries at once."""
        done: list[EntryKey] = []
        for entry in entries:
            if entry.acks is not None:
                entry.acks.settle_through(entry.count - 1)
                self.parts.batches.pop((entry.ledger_id, entry.entry_id), None)
            self._chunks_done(entry)
            done.append((entry.ledger_id, entry.entry_id))
        self._pending.update(dict.fromkeys(done))
        if done:
            self._arm(now)
        return done

    def acknowledge_id(self, message_id: MessageId, now: float) -> list[EntryKey]:
        """Acknowledge by id; return the entries that are done now.

        An unknown batch is done when the ids of all its messages were acknowledged, if the id has the batch
        size; otherwise the whole entry is acknowledged, as the C++ client does.
        """
        key, index = (message_id.ledger_id, message_id.entry_id), message_id.batch_index
        if index >= 0 and (message_id.batch_size > 0 or key in self.parts.batches):
            return self.acknowledge_indexes(key, message_id.batch_size, (index,), now)
        if self._pending.get(key, self) is None:
            return []
        self._arm(now)
        chunk_ids = self.parts.chunks.pop(key, None)
        if chunk_ids is None and message_id.first_chunk is not None:
            first = message_id.first_chunk
            chunk_ids = [(first.ledger_id, first.entry_id)]
        if chunk_ids:
            self._pending.update(dict.fromkeys(chunk_ids))
        self.parts.batches.pop(key, None)
        self._pending[key] = None
        return [key]

    def acknowledge_indexes(
        self, key: EntryKey, size: int, indexes: Iterable[int], now: float
    ) -> list[EntryKey]:
        """Acknowledge these messages of a batch of ``size``; return the entry if it is done now."""
        if self._pending.get(key, self) is None:
            return []
        self._arm(now)
        acks = self.parts.batches.get(key) or self.parts.batch_of(key, size)
        for index in indexes:
            acks.settle(index)
        if acks.remaining:
            if self._batch_index:
                self._note_partial(key, acks)
            return []
        self.parts.batches.pop(key, None)
        self._pending[key] = None
        return [key]

    def acknowledge_foreign(self, entry: Any, indexes: Sequence[Any], now: float) -> list[EntryKey]:
        """`acknowledge_messages` for some messages of an entry that another consumer received, perhaps of
        another subscription: the acknowledgement states of the two are independent."""
        key = entry.key(indexes[0])
        if entry.chunk_ids is not None:
            self.acknowledge_keys(entry.chunk_ids, now)
            return [key]
        if entry.batched:
            return self.acknowledge_indexes(key, entry.count, indexes, now)
        return self.acknowledge_id(entry.message_id(indexes[0]), now)

    def acknowledge_keys(self, keys: Iterable[EntryKey], now: float) -> None:
        """Acknowledge entries that are not delivered: abandoned chunks, markers."""
        self._pending.update(dict.fromkeys(keys))
        if self._pending:
            self._arm(now)

    def acknowledge_through(self, key: EntryKey, index: int, acks: EntryAcks | None, now: float) -> EntryKey:
        """Acknowledge everything up to this message. Return the last entry that is done completely."""
        self._arm(now)
        if acks is not None and index >= 0 and not acks.settle_through(index):
            if not self._batch_index:
                # The rest of this batch keeps the whole entry; only the one before it is done.
                self._move_cumulative((key[0], key[1] - 1), None)
            else:
                self._move_cumulative(key, acks)
            return (key[0], key[1] - 1)
        self._move_cumulative(key, None)
        return key

    def acknowledge_id_through(self, message_id: MessageId, now: float) -> EntryKey:
        """`acknowledge_through` by id. Inside a batch of unknown size the entry before it is the last."""
        key = (message_id.ledger_id, message_id.entry_id)
        if message_id.batch_index < 0:
            return self.acknowledge_through(key, -1, None, now)
        acks = self.parts.batches.get(key)
        if acks is None and message_id.batch_size > 0:
            acks = self.parts.batch_of(key, message_id.batch_size)
        if acks is None:
            before = (key[0], key[1] - 1)
            return self.acknowledge_through(before, -1, None, now)
        return self.acknowledge_through(key, message_id.batch_index, acks, now)

    def _move_cumulative(self, key: EntryKey, acks: EntryAcks | None) -> None:
        known = self._cumulative
        if known is not None and (key < known.key or (key == known.key and known.acks is None)):
            return
        self._cumulative = Cumulative(key, acks)
        self._cumulative_pending = True
        # All entries below are covered.
        drop_through(self._pending, key, acks is None)
        self.parts.drop_through(key, acks is None)

    # --- tokens and time -------------------------------------------------------------------------

    def add_token(self, token: Any, now: float) -> None:
        """Send now; `flush` or `receipts.answered` returns ``token`` when all pending ACKs are receipted."""
        self._tokens.append(token)
        self._deadline = now

    @property
    def pending_count(self) -> int:
        """Number of ids waiting to be sent."""
        return len(self._pending) + self._cumulative_pending

    def _arm(self, now: float) -> None:
        self._deadline = min(self._deadline, now + self._grouping_seconds)

    def next_deadline(self) -> float:
        return self._deadline

    def due(self, now: float) -> bool:
        """Return whether the pending acknowledgements must be sent, by time or number."""
        if self._deadline == float("inf"):
            return False
        return self._deadline <= now or len(self._pending) >= self._grouping_max

    # --- the wire --------------------------------------------------------------------------------

    def flush(self, new_request_id: Callable[[], int] | None) -> tuple[list[bytes], list[Any]]:
        """Return all pending acknowledgements as frames, and the tokens that are settled by sending.

        With receipts no token is settled here while this or an earlier ACK has none: `receipts.answered`
        returns them. ``new_request_id`` is only needed with receipts.
        """
        self._deadline = float("inf")
        tokens, self._tokens = self._tokens, []
        frames: list[bytes] = []
        pending, self._pending = self._pending, {}
        requests = []
        while len(pending) > IDS_PER_COMMAND_MAX:
            requests.append(AckRequest(individual=dict(islice(pending.items(), IDS_PER_COMMAND_MAX))))
            pending = dict(islice(pending.items(), IDS_PER_COMMAND_MAX, None))
        if pending:
            requests.append(AckRequest(individual=pending))
        if self._cumulative_pending:
            self._cumulative_pending = False
            requests.append(AckRequest(cumulative=self._cumulative))
        if not self._receipts or new_request_id is None:
            return [self._encode(request, None) for request in requests], tokens
        for request in requests:
            request_id = new_request_id()
            self.receipts.sent(request_id, request)
            frames.append(self._encode(request, request_id))
        # A token's acknowledgements may have been sent earlier, with those of another token.
        return frames, self.receipts.wait(tokens)

    def _encode(self, request: AckRequest, request_id: int | None) -> bytes:
        through = request.cumulative
        keys, kind = request.individual, ACK_INDIVIDUAL
        if through is not None:
            keys, kind = {through.key: through.acks if _remaining(through.acks) else None}, ACK_CUMULATIVE
        ack_sets = {}
        if any(keys.values()):
            ack_sets = {key: acks.ack_set() for key, acks in keys.items() if acks is not None}
        return encode_ack(self._consumer_id, kind, keys, ack_sets, request_id=request_id)

    def disconnected(self, now: float) -> None:
        """Make all acknowledgements without a receipt pending again, to be sent after the reconnect. Call
        `reopen_batches` once no more queued messages of this connection are delivered."""
        requests, tokens = self.receipts.withdraw()
        for request in requests:
            for key, acks in request.individual.items():
                if acks is None:  # even if a message of it was acknowledged a second time meanwhile
                    self._pending[key] = None
                else:
                    self._note_partial(key, acks)
            if request.cumulative is not None:
                self._cumulative_pending = True
        if not self._cumulative_pending:
            # The cumulative ACK was sent and perhaps stored: entries redelivered below it may have been
            # requested since by moving the subscription back, and must not be acknowledged unseen.
            self._cumulative = None
        self._tokens = tokens + self._tokens
        if self._pending or self._cumulative_pending:
            self._arm(now)

    def reopen_batches(self) -> None:
        """Forget partial acknowledgements of batches that were not sent and are not pending: the broker
        decides what it redelivers. Late acknowledgements of the other messages do not complete these batches.
        """
        told = self._cumulative.acks if self._cumulative is not None else None
        for key, acks in self.parts.batches.items():
            if acks is not told and self._pending.get(key) is not acks:
                acks.reopen()

    def forget(self) -> list[Any]:
        """Forget all acknowledgements after a seek moved the position. Return all tokens."""
        tokens = self.receipts.withdraw()[1] + self._tokens
        self._tokens = []
        self.parts.forget()
        self._pending.clear()
        self._cumulative = None
        self._cumulative_pending = False
        self._deadline = float("inf")
        return tokens


def _remaining(acks: EntryAcks | None) -> int:
    return 0 if acks is None else acks.remaining
