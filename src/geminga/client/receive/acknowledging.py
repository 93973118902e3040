"""Acknowledgements of one consumer: its inbox, which the event loop empties into the consumer cores.

Acknowledgements are grouped up to the grouping time and sent for all topics together. Urgent items (a
negative acknowledgement, a receipt that the application awaits) empty the inbox at the end of the loop
iteration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from geminga.client.handles.consumer_handle import ConsumerHandle
from geminga.client.handles.context import ClientContext
from geminga.client.io.tasks import resolve
from geminga.client.receive.multi_consumer import HandleGroup
from geminga.consumer.acknowledgements import IDS_PER_COMMAND_MAX
from geminga.consumer.core import ConsumerCore
from geminga.consumer.inbox import (
    AcknowledgedId,
    AcknowledgedIn,
    AcknowledgedThrough,
    Inbox,
    Item,
    NegativelyAcknowledged,
    ReadThrough,
    ReceiptsWanted,
    ReturnedToQueue,
    TakenByApplication,
)
from geminga.consumer.message import Message
from geminga.consumer.settings import ConsumerSettings
from geminga.consumer.settlement import AckedEntries
from geminga.errors import AlreadyClosed, PulsarException, Timeout
from geminga.ids import MessageId
from geminga.transactions import Part, TransactionCore, TransactionId

logger = logging.getLogger("geminga")

TAKEN_GROUPING_SECONDS = 0.05
"""Longest delay of the notes that messages were taken: short beside any acknowledgement time-out."""

Acknowledgeable = Message[Any] | MessageId

Several = Sequence[Acknowledgeable]
"""Messages or ids acknowledged by one call, and with receipts by one wait."""


class Acknowledging:
    """Acknowledgements of one consumer. Any thread may add to ``inbox``; everything else runs on the loop's
    thread."""

    def __init__(self, context: ClientContext, group: HandleGroup, settings: ConsumerSettings) -> None:
        self.inbox = Inbox(settings.ack_grouping_max, self._arm_soon, self._hurry)
        self._context = context
        self._group = group
        self._delay_seconds = settings.ack_grouping_time_ms / 1000
        if settings.ack_timeout_seconds:
            self._delay_seconds = max(self._delay_seconds, TAKEN_GROUPING_SECONDS)
        self._tracks_taken = settings.ack_timeout_seconds > 0
        self.said = 0
        """Acknowledgements by the application, negative ones included."""
        self._timer: asyncio.TimerHandle | None = None
        self._touched: dict[ConsumerHandle, None] = {}
        """Handles whose cores received acknowledgements from the inbox that are not sent yet."""

    # --- when to empty the inbox -----------------------------------------------------------------

    def _arm_soon(self) -> None:
        self._call_soon(self._arm)

    def _hurry(self) -> None:
        # Not at once: all acknowledgements of this loop iteration share the command.
        self._call_soon(self.drain)

    def _call_soon(self, callback: Any) -> None:
        try:
            self._context.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            raise AlreadyClosed("the client is closed") from None

    def _arm(self) -> None:
        if self._timer is None and self.inbox.ended is None:
            self._timer = self._context.loop.call_later(self._delay_seconds, self.drain)

    def end(self) -> None:
        """Accept no more items and pass the queued ones to the cores."""
        self.inbox.ended = lambda: AlreadyClosed("the consumer is closed")
        self.drain()

    # --- emptying the inbox -----------------------------------------------------------------------------

    def drain(self) -> None:
        """Pass the inbox's items to the cores and send. Costs nothing for topics without items: each of
        thousands of topics drains when it attaches."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        items = self.inbox.take()
        if not items and not self._touched:
            return
        now = self._context.now()
        if self._tracks_taken:
            items = self._note_taken(items, now)
        self.said += len(items)
        if set(map(type, items)) == {Message}:
            self._settle(Message, items, now)  # type: ignore[arg-type]
        else:
            self._process_mixed(items, now)
        touched, self._touched = self._touched, {}
        for handle in touched:
            if handle.consumer.acks.pending_count:
                handle.consumer.flush_acks()
            handle.flush()

    def _note_taken(self, items: list[Item], now: float) -> list[Item]:
        """Pass the notes about taken messages to the cores; return the other items.

        A message's notes precede its acknowledgement, so all notes may be processed first. They keep their
        order: a message that was put back may have been taken again."""
        notes = [item for item in items if isinstance(item, (TakenByApplication, ReturnedToQueue))]
        for kind, run in groupby(notes, type):
            for handle, messages in self._group.by_handle([note.about for note in run]):
                if kind is TakenByApplication:
                    self._core(handle).taken(messages, now)
                else:
                    self._core(handle).put_back(messages)
        return [item for item in items if not isinstance(item, (TakenByApplication, ReturnedToQueue))]

    def _process_mixed(self, items: list[Item], now: float) -> None:
        for kind, run in groupby(items, _kind_of_run):
            if kind is AcknowledgedIn:
                self._acknowledge_in(list(run))  # type: ignore[arg-type]
                continue
            if kind is not None:
                self._settle(kind, list(map(_about, run)), now)
                continue
            for item in run:
                try:
                    self._process(item, now)
                except PulsarException as error:
                    logger.warning("an acknowledgement is dropped: %s", error)
                except Exception:  # the items after it are processed all the same
                    logger.exception("an acknowledgement is dropped: %r", item)

    def _settle(self, kind: type, messages: list[Message[Any]], now: float) -> None:
        for handle, run in self._group.by_handle(messages):
            _SETTLES[kind](self._core(handle), run, now)

    def _acknowledge_in(self, notes: list[AcknowledgedIn]) -> None:
        """Acknowledge in transactions, together what is of one topic, once their coordinators know it."""
        alike: dict[tuple[Any, ...], list[AcknowledgedIn]] = {}
        for note in notes:
            about = note.about
            try:
                handle = self._group.handle_of(about.message_id() if isinstance(about, Message) else about)
            except PulsarException as error:
                note.transaction.core.failed(error)
                continue
            alone = note if note.through else None
            alike.setdefault((note.transaction, handle, alone), []).append(note)
        for (transaction, handle, _), same in alike.items():
            acked = transaction.acked.setdefault(handle, {})
            part = Part(handle.topic, handle.consumer.subscription)
            for start in range(0, len(same), IDS_PER_COMMAND_MAX):
                few = same[start : start + IDS_PER_COMMAND_MAX]
                done = self._context.loop.create_future()
                done.add_done_callback(partial(_ended, transaction.core, len(few)))
                send = partial(_send_in, transaction.id, acked, handle, few, done)
                transaction.core.begin(part, len(few), send)

    def _process(self, item: Item, now: float) -> None:
        if isinstance(item, AcknowledgedId):
            self._core(self._group.handle_of(item.about)).acknowledge_id(item.about, now)
        elif isinstance(item, AcknowledgedThrough):
            self._core(self._group.handle_of(item.about)).acknowledge_id_through(item.about, now)
        elif isinstance(item, ReadThrough):
            self._settle(AcknowledgedThrough, list(item.about.values()), now)
        elif isinstance(item, NegativelyAcknowledged) and isinstance(item.about, MessageId):
            handle = self._group.handle_of(item.about)
            self._core(handle).negative_acknowledge_id(item.about, now)
        elif isinstance(item, ReceiptsWanted):
            self._await_receipts(item.about, now)

    def _core(self, handle: ConsumerHandle) -> ConsumerCore:
        """Return the core of a handle, which is flushed at the end of the drain."""
        self._touched[handle] = None
        return handle.consumer

    # --- receipts --------------------------------------------------------------------------------

    async def receipt(self) -> None:
        """Wait until the broker has stored all acknowledgements so far. Raises `Timeout`, and the broker's
        refusal."""
        done = self._context.loop.create_future()
        self.inbox.add(ReceiptsWanted(done))
        # Scheduled in any case: the thread that should schedule the drain may be interrupted just before.
        self._context.loop.call_soon(self.drain)
        limit = self._context.settings.operation_timeout_seconds
        finished, _ = await asyncio.wait([done], timeout=limit)
        if not finished:
            raise Timeout(f"the broker did not receipt the acknowledgement within {limit:g} s")
        done.result()

    def _await_receipts(self, done: asyncio.Future[None], now: float) -> None:
        """Resolve ``done`` when all handles' acknowledgements so far are answered."""
        waiting = []
        for handle in self._group.handles.values():
            if _has_unanswered(handle):
                token = self._context.loop.create_future()
                self._core(handle).await_receipt(token, now)
                waiting.append(token)
        if not waiting:
            resolve(done)
            return
        gathered = asyncio.gather(*waiting)

        def finish(result: asyncio.Future[Any]) -> None:
            error = None if result.cancelled() else result.exception()
            resolve(done, error if isinstance(error, Exception) else None)

        gathered.add_done_callback(finish)


def _send_in(
    transaction: TransactionId,
    acked: AckedEntries,
    handle: ConsumerHandle,
    notes: Sequence[AcknowledgedIn],
    done: asyncio.Future[None],
    error: Exception | None,
) -> None:
    """Send acknowledgements in a transaction, unless its coordinator has refused them with ``error``."""
    if error is not None:
        resolve(done, error)
        return
    items = [note.about for note in notes]
    handle.consumer.acknowledge_in(transaction, acked, items, done, through=notes[0].through)
    handle.flush()


def _ended(transaction: TransactionCore, count: int, done: asyncio.Future[None]) -> None:
    error = done.exception()
    transaction.ended(count, error if isinstance(error, Exception) else None)


_SETTLES: dict[type, Callable[[ConsumerCore, Sequence[Message[Any]], float], None]] = {
    Message: ConsumerCore.acknowledge_messages,
    AcknowledgedThrough: ConsumerCore.acknowledge_through,
    NegativelyAcknowledged: ConsumerCore.negative_acknowledge,
}
"""Methods that process consecutive items of one type together, if they are about messages."""


def _about(item: Item) -> Any:
    return item if isinstance(item, Message) else item.about


def _kind_of_run(item: Item) -> type | None:
    """Return the type of items that are processed together; None for one that is processed alone."""
    if isinstance(item, AcknowledgedIn):
        return AcknowledgedIn
    return type(item) if type(item) in _SETTLES and isinstance(_about(item), Message) else None


def _has_unanswered(handle: ConsumerHandle) -> bool:
    acks = handle.consumer.acks
    return bool(acks.pending_count or acks.receipts)
