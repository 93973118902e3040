"""Coordinator of transactions: begins and ends them, and aborts those whose time is over.

A transaction ends by one durable write of its state (`transactions`). Only then does its end take effect in
the topics, which are loaded for it: `_settle` is repeated until all have been reached, also after a restart.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from geminga.broker.runtime.refusal import Refused, storage_refusal
from geminga.broker.runtime.scheduler import Timer
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import TopicServices
from geminga.broker.topics.topic_registry import TopicRegistry, parse_topic
from geminga.broker.topics.transactions import TransactionRecord
from geminga.broker.topics.transactions import TransactionStatus as Status
from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.transactions import TransactionId
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.broker")

ENDED_REMEMBERED = 10_000
"""Ended transactions whose state is kept in memory, for clients that ask again after a lost connection."""
SETTLE_AGAIN_SECONDS = 5.0
TIMEOUT_MS_MAX = 7 * 24 * 3600 * 1000
"""Longest time limit of a transaction: until it ends, its topics are not delivered beyond it."""

Answer = Callable[[Refused | None], None]
"""Called when a request has been done durably, or with its refusal."""


class TransactionCoordinator:
    """The broker's coordinator. ``committed``, ``aborted`` and ``timed_out`` count since the start."""

    def __init__(self, services: TopicServices, topics: TopicRegistry) -> None:
        self._services = services
        self.records = services.transactions
        """Transactions that are open, or whose end has not taken effect everywhere."""
        self._scheduler = services.scheduler
        self._topics = topics
        self._timers: dict[TransactionId, Timer] = {}
        self._ended: OrderedDict[TransactionId, Status] = OrderedDict()
        self.created = self.committed = self.aborted = self.timed_out = 0
        for transaction in list(self.records.by_id.values()):
            if transaction.is_open:
                self._set_timer(transaction)
            else:
                self._scheduler.after(0.0, partial(self._settle, transaction), self)

    def __repr__(self) -> str:
        return "transaction coordinator"

    @property
    def active(self) -> list[TransactionRecord]:
        """The transactions that have not ended."""
        return [each for each in self.records.by_id.values() if each.state not in _ENDED]

    @property
    def counts(self) -> dict[str, int]:
        """Return the open transactions, and all since the start, by the last part of the metrics' names."""
        return {
            "active_count": len(self.active),
            "created_total": self.created,
            "committed_total": self.committed,
            "aborted_total": self.aborted,
            "timeout_total": self.timed_out,
        }

    # --- requests ---
    def begin(
        self, owner: str, timeout_ms: int, answer: Callable[[TransactionRecord, Refused | None], None]
    ) -> None:
        """Begin a transaction of ``owner``. Raises `Refused`."""
        active_max = self._services.settings.active_transactions_max
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise Refused(
                pb.NotAllowedError,
                f"A time limit of {timeout_ms} ms is not allowed; allowed: 1 to {TIMEOUT_MS_MAX}",
            )
        if 0 < active_max <= len(self.records.by_id):
            # The client asks again until its time-out; Apache Pulsar does not answer.
            raise Refused(
                pb.ServiceNotReady,
                f"{len(self.records.by_id)} transactions are open, as many as active_transactions_max allows",
            )
        begun: list[TransactionRecord] = []

        def durable(error: StoreError | None) -> None:
            answer(begun[0], None if error is None else storage_refusal(error))

        try:
            done = self._scheduler.guarded("store", self, durable)
            begun.append(self.records.begin(owner, self._scheduler.now_ms, timeout_ms, done))
        except StoreError as error:
            raise storage_refusal(error) from error
        self.created += 1
        self._set_timer(begun[0])

    def find(self, transaction_id: TransactionId, owner: str | None) -> TransactionRecord:
        """Return a transaction that is to be changed by ``owner`` (None: anybody). Raises `Refused`."""
        found = self.records.by_id.get(transaction_id)
        if found is None or (owner is not None and found.owner != owner):
            state = self._ended.get(transaction_id) if found is None else None
            if state is not None:
                raise _wrong_state(transaction_id, state)
            raise Refused(
                pb.TransactionNotFound,
                f"Transaction {transaction_id} is not found: it has ended, or is another client's",
            )
        return found

    def open(self, transaction_id: TransactionId, owner: str | None) -> TransactionRecord:
        """Return an open transaction. Raises `Refused`."""
        found = self.find(transaction_id, owner)
        if not found.is_open:
            raise _wrong_state(found.id, found.state)
        return found

    def end(self, transaction_id: TransactionId, owner: str | None, *, commit: bool, answer: Answer) -> None:
        """Commit or abort a transaction; a repeated call with the same end succeeds. Raises `Refused`."""
        wanted = Status.COMMITTED if commit else Status.ABORTED
        if transaction_id not in self.records.by_id and self._ended.get(transaction_id) is wanted:
            answer(None)
            return
        transaction = self.find(transaction_id, owner)
        if transaction.is_open:
            self._end(transaction, wanted, answer)
        elif transaction.state in (wanted, _BEFORE[wanted]):
            self.when_durable(transaction, answer)
        else:
            raise _wrong_state(transaction.id, transaction.state)

    # --- the end ---
    def _set_timer(self, transaction: TransactionRecord) -> None:
        left_ms = transaction.began_ms + transaction.timeout_ms - self._scheduler.now_ms
        left_ms = min(max(0, left_ms), transaction.timeout_ms)  # the clock may have been set back
        over = partial(self._time_is_over, transaction)
        self._timers[transaction.id] = self._scheduler.after(left_ms / 1000, over, self)

    def _time_is_over(self, transaction: TransactionRecord) -> None:
        if transaction.is_open:
            self.timed_out += 1
            log.info("transaction %s is aborted: its time limit has passed", transaction.id)
            try:
                self._end(transaction, Status.ABORTED, lambda _: None)
            except Refused as refused:
                log.error("transaction %s cannot be aborted: %s", transaction.id, refused.reason)

    def _end(self, transaction: TransactionRecord, wanted: Status, answer: Answer) -> None:
        def decided(error: StoreError | None) -> None:
            if error is not None:
                answer(storage_refusal(error))  # the store has stopped
                return
            transaction.state = wanted
            if wanted is Status.COMMITTED:
                self.committed += 1
            else:
                self.aborted += 1
            self._settle(transaction, answer)

        try:
            self.records.end(transaction, wanted, self._scheduler.guarded("store", self, decided))
        except StoreError as error:
            raise storage_refusal(error) from error
        transaction.state = _BEFORE[wanted]
        timer = self._timers.pop(transaction.id, None)
        if timer is not None:
            timer.cancel()

    def when_durable(self, transaction: TransactionRecord, answer: Answer) -> None:
        """Answer when everything so far of a transaction is durable. Raises `Refused`."""

        def durable(error: StoreError | None) -> None:
            answer(None if error is None else storage_refusal(error))

        try:
            self.records.when_durable(transaction, self._scheduler.guarded("store", self, durable))
        except StoreError as error:
            raise storage_refusal(error) from error

    def _settle(self, transaction: TransactionRecord, answer: Answer = lambda _: None) -> None:
        """Let the end of a transaction take effect in its topics, then delete its record. The client is
        answered although a topic cannot be loaded now: the end is decided."""
        names = [parse_topic(topic) for topic in transaction.topics]

        def loaded(failed: set[TopicName]) -> None:
            try:
                reached = [each for each in names if each not in failed and self._end_in(each, transaction)]
                if len(reached) == len(names):
                    self._settled(transaction)
                else:
                    for name in reached:
                        self.records.leave(transaction, str(name))
                    log.error("transaction %s has not reached all its topics yet", transaction.id)
                    self._scheduler.after(SETTLE_AGAIN_SECONDS, partial(self._settle, transaction), self)
            except StoreError as error:
                answer(storage_refusal(error))  # the store has stopped
            else:
                answer(None)

        self._topics.loader.prepare_all(names, loaded)

    def _end_in(self, name: TopicName, transaction: TransactionRecord) -> bool:
        """Let the end take effect in a topic; return whether that is possible now. Raises `StoreError`."""
        try:
            topic = self._topics.find(name)
        except Refused:
            return False  # it is logged
        if isinstance(topic, PersistentTopic):
            topic.end_transaction(transaction)
        return True

    def _settled(self, transaction: TransactionRecord) -> None:
        self.records.settled(transaction)
        self._ended[transaction.id] = transaction.state
        if len(self._ended) > ENDED_REMEMBERED:
            self._ended.popitem(last=False)


_ENDED = (Status.COMMITTED, Status.ABORTED)
_BEFORE = {Status.COMMITTED: Status.COMMITTING, Status.ABORTED: Status.ABORTING}


def _wrong_state(transaction_id: TransactionId, state: Status) -> Refused:
    return Refused(pb.InvalidTxnStatus, f"Transaction {transaction_id} is {state}")
