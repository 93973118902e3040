"""Acknowledging: the inbox of one consumer, emptied on the loop and handed to the cores.

Acknowledgements wait for company up to the grouping time and leave for all topics together. What is urgent
(a negative acknowledgement, a receipt that somebody waits for) empties the inbox at the end of the turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from geminga.client.consumer_handle import ConsumerHandle
from geminga.client.context import ClientContext
from geminga.client.multi_consumer import HandleGroup
from geminga.consumer.core import ConsumerCore
from geminga.consumer.inbox import (
    AcknowledgedId,
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
from geminga.errors import AlreadyClosed, PulsarException, Timeout
from geminga.ids import MessageId

logger = logging.getLogger("geminga")

TAKEN_GROUPING_SECONDS = 0.05
"""How long the note that a message was taken may wait: little beside any acknowledgement time-out."""

Acknowledgeable = Message[Any] | MessageId

Several = Sequence[Acknowledgeable]
"""Acknowledged by one call, and with receipts by one wait."""


class Acknowledging:
    """``inbox`` may be added to on any thread; everything else runs on the loop's."""

    def __init__(self, context: ClientContext, group: HandleGroup, settings: ConsumerSettings) -> None:
        self.inbox = Inbox(settings.ack_grouping_max, self._arm_soon, self._hurry)
        self._context = context
        self._group = group
        self._delay_seconds = settings.ack_grouping_time_ms / 1000
        if settings.ack_timeout_seconds:
            self._delay_seconds = max(self._delay_seconds, TAKEN_GROUPING_SECONDS)
        self.said = 0
        """Acknowledgements, negative ones included, that the application has said."""
        self._timer: asyncio.TimerHandle | None = None
        self._touched: dict[ConsumerHandle, None] = {}
        """Handles whose cores have got something from the inbox that is not sent yet."""

    # --- when to empty the inbox -----------------------------------------------------------------

    def _arm_soon(self) -> None:
        self._call_soon(self._arm)

    def _hurry(self) -> None:
        # Not now: whoever acknowledges in this turn of the loop shares the command.
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
        """Take nothing more; what is there goes to the cores."""
        self.inbox.ended = _closed
        self.drain()

    # --- emptying it -----------------------------------------------------------------------------

    def drain(self) -> None:
        """Hand what the inbox holds to the cores, and send. Costs nothing for topics that it says nothing of:
        each topic of thousands drains when it attaches."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._context.now()
        items = self.inbox.take()
        notes = [item for item in items if type(item) is TakenByApplication or type(item) is ReturnedToQueue]
        if notes:
            # A message's own notes precede whatever was said about it: all notes may go first. They keep
            # their order: what was put back may be taken again by now.
            for kind, run in groupby(notes, type):
                for handle, messages in self._group.by_handle([note.message for note in run]):
                    if kind is TakenByApplication:
                        self._core(handle).taken(messages, now)
                    else:
                        self._core(handle).put_back(messages)
            items = [
                item
                for item in items
                if type(item) is not TakenByApplication and type(item) is not ReturnedToQueue
            ]
        self.said += len(items)
        if set(map(type, items)) == {Message}:
            self._acknowledge_run(items, now)  # type: ignore[arg-type]
        else:
            self._process_mixed(items, now)
        touched, self._touched = self._touched, {}
        for handle in touched:
            if handle.consumer.acks.pending_count:
                handle.consumer.flush_acks()
            handle.flush()

    def _process_mixed(self, items: list[Item], now: float) -> None:
        run: list[Message[Any]] = []
        for item in items:
            if type(item) is Message:
                run.append(item)
                continue
            if run:
                self._acknowledge_run(run, now)
                run = []
            try:
                self._process(item, now)
            except PulsarException as error:
                logger.warning("an acknowledgement is dropped: %s", error)
            except Exception:  # those behind it are wanted all the same
                logger.exception("an acknowledgement is dropped: %r", item)
        if run:
            self._acknowledge_run(run, now)

    def _acknowledge_run(self, messages: list[Message[Any]], now: float) -> None:
        for handle, run in self._group.by_handle(messages):
            self._core(handle).acknowledge_messages(run, now)

    def _process(self, item: Item, now: float) -> None:
        if isinstance(item, AcknowledgedId):
            self._core(self._group.handle_of(item.message_id)).acknowledge_id(item.message_id, now)
        elif isinstance(item, AcknowledgedThrough):
            self._through(item.message, now)
        elif isinstance(item, ReadThrough):
            for message in list(item.newest.values()):
                self._through(message, now)
        elif isinstance(item, NegativelyAcknowledged):
            self._refuse(item.message, now)
        elif isinstance(item, ReceiptsWanted):
            self._await_receipts(item.token, now)

    def _core(self, handle: ConsumerHandle) -> ConsumerCore:
        """The core of a handle, which is flushed at the end of the drain."""
        self._touched[handle] = None
        return handle.consumer

    def _through(self, place: Acknowledgeable, now: float) -> None:
        if isinstance(place, Message):
            self._core(self._group.handle_of_message(place)).acknowledge_through(place, now)
        else:
            self._core(self._group.handle_of(place)).acknowledge_id_through(place, now)

    def _refuse(self, place: Acknowledgeable, now: float) -> None:
        if isinstance(place, Message):
            self._core(self._group.handle_of_message(place)).negative_acknowledge(place, now)
        else:
            self._core(self._group.handle_of(place)).negative_acknowledge_id(place, now)

    # --- receipts --------------------------------------------------------------------------------

    async def receipt(self) -> None:
        """Wait until what was acknowledged so far is stored by the broker. Raises `Timeout`, and why the
        broker refused."""
        done = self._context.loop.create_future()
        self.inbox.add(ReceiptsWanted(done))
        # Told in any case: a thread that says it has told may be interrupted just before it does.
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
            if not done.done():
                done.set_result(None)
            return
        gathered = asyncio.gather(*waiting)

        def finish(result: asyncio.Future[Any]) -> None:
            error = None if result.cancelled() else result.exception()
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
                done.exception()  # whoever waited may have gone

        gathered.add_done_callback(finish)


def _has_unanswered(handle: ConsumerHandle) -> bool:
    acks = handle.consumer.acks
    return bool(acks.pending_count or acks.unanswered_count)


def _closed() -> AlreadyClosed:
    return AlreadyClosed("the consumer is closed")
