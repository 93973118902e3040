"""GET_LAST_MESSAGE_ID: the newest durable entry, which may have to be read first (framing.md section 9).

A busy disk is awaited, within limits: if the request were refused, ``pulsar-client`` would report that no
message is available, and its application would stop reading in the middle. Further requests of a consumer
join its pending one: any number of requests causes one read, and there is no polling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from geminga.broker.commands import answers
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.peer import PeerOutput
from geminga.broker.refusal import Refused, storage_refusal
from geminga.broker.scheduler import Scheduler, Timer
from geminga.errors import StoreBusy, StoreError
from geminga.wire.proto import pulsar_wire_pb2 as pb

WAITING_SECONDS_MAX = 20.0
"""Longest wait for the disk; clients give up after 30 s."""
BUSY_RETRY_SECONDS = 1.0
"""Delay of the next try when too many reads are pending."""
REQUESTS_MAX = 1_000
"""Pending requests of one consumer at once."""


class AskingPeer(Protocol):
    """Interface of the requesting session."""

    scheduler: Scheduler
    output: PeerOutput
    last_message_questions: dict[Consumer, LastMessageRequests]

    @property
    def consumers(self) -> Mapping[int, Consumer]: ...

    def refuse(self, request_id: int, refused: Refused) -> None: ...


class LastMessageRequests:
    """Pending requests of one consumer."""

    __slots__ = ("_consumer", "_requests", "_session", "_timeout")

    def __init__(self, session: AskingPeer, consumer: Consumer) -> None:
        self._session = session
        self._consumer = consumer
        self._requests: list[int] = []
        self._timeout: Timer | None = None

    def ask(self, request_id: int) -> None:
        """Add a request; it is answered now with the pending ones, or refused."""
        if len(self._requests) >= REQUESTS_MAX:
            reason = f"{REQUESTS_MAX} questions for the last message id wait for the disk already"
            self._session.refuse(request_id, Refused(pb.TooManyRequests, reason))
            return
        self._requests.append(request_id)
        if len(self._requests) == 1:
            self._look()

    def _look(self) -> None:
        """Answer if the entry is in memory; else read it."""
        session, consumer = self._session, self._consumer
        if not self._requests:
            return  # they were refused meanwhile
        if not self._is_open:
            self._end()
            return
        try:
            last = consumer.subscription.last_message(self._read, compacted=consumer.read_compacted)
        except Refused as refused:
            self._refuse(refused)
            return
        except StoreBusy:
            session.scheduler.after(BUSY_RETRY_SECONDS, self._look, consumer)
            last = None
        except StoreError as error:
            self._refuse(storage_refusal(error))
            return
        if last is None:
            if self._timeout is None:
                self._timeout = session.scheduler.after(WAITING_SECONDS_MAX, self._too_late, consumer)
            return
        partition = consumer.subscription.partition
        for request_id in self._end():
            session.output.write(
                answers.last_message_id(
                    request_id, last.position, partition, last.batch_index, last.mark_delete_position
                )
            )

    def _read(self, error: StoreError | None) -> None:
        """Continue after the entry was read."""
        if error is None:
            self._session.scheduler.isolated("session", self._consumer, self._look)
        else:
            self._refuse(storage_refusal(error))

    def _too_late(self) -> None:
        self._timeout = None
        self._refuse(storage_refusal(StoreBusy("the disk of the store does not answer: try again")))

    def _refuse(self, refused: Refused) -> None:
        is_open = self._is_open
        for request_id in self._end():
            if is_open:
                self._session.refuse(request_id, refused)

    @property
    def _is_open(self) -> bool:
        """Return whether the consumer is still open and its client connected."""
        return self._session.consumers.get(self._consumer.consumer_id) is self._consumer

    def _end(self) -> list[int]:
        """Clear and return the pending requests."""
        requests, self._requests = self._requests, []
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self._session.last_message_questions.get(self._consumer) is self:
            del self._session.last_message_questions[self._consumer]
        return requests
