"""Producer access to a topic: names, access modes, and the topic's epoch (framing.md section 5).

The epoch counts the exclusive owners that a topic has had. It is durable before an owner is notified, so that
a fenced producer cannot become the owner again after a restart.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from geminga.broker.runtime.refusal import HolderBusy, Refused, storage_refusal
from geminga.broker.topics.producer import Producer
from geminga.errors import StoreError
from geminga.ledger.api import Done
from geminga.wire.proto import pulsar_wire_pb2 as pb

SHARED = pb.Shared
EXCLUSIVE = pb.Exclusive
WAIT_FOR_EXCLUSIVE = pb.WaitForExclusive
EXCLUSIVE_WITH_FENCING = pb.ExclusiveWithFencing

Admitted = Callable[[Refused | None], None]
"""Called when a producer is admitted (None) or refused."""

WAITING_MAX = 10_000
"""Producers that may wait for exclusive access to one topic."""
EPOCH_MAX = 1 << 62
"""Highest topic epoch accepted from a producer, unless it is the topic's own: brokers assign no higher ones,
and further epochs must fit into 64 bits. Its producer gets the topic's next epoch instead."""


class OwnedTopic(Protocol):
    """Interface of a topic for this module."""

    def save_epoch(self, epoch: int, done: Done) -> None:
        """Make the topic's epoch durable."""


class ProducerAccess:
    """The producers of one topic."""

    __slots__ = ("_topic", "_waiting", "epoch", "exclusive", "producers")

    def __init__(self, epoch: int | None, topic: OwnedTopic) -> None:
        self.epoch = epoch
        self.producers: dict[str, Producer] = {}
        self.exclusive: Producer | None = None
        self._waiting: OrderedDict[Producer, Admitted] | None = None  # few topics have any
        self._topic = topic

    def leave_memory(self) -> None:
        """Drop what refers to the topic when it leaves memory."""
        del self._topic

    @property
    def waiting(self) -> int:
        return len(self._waiting or ())

    @property
    def first_owner(self) -> str:
        """Return the name of the exclusive producer, or of the next one."""
        if self.exclusive is not None:
            return self.exclusive.name
        return next(iter(self._waiting)).name if self._waiting else ""

    def everyone(self) -> list[Producer]:
        """Return the admitted and the waiting producers."""
        return [*self.producers.values(), *(self._waiting or ())]

    def add(self, producer: Producer, admitted: Admitted) -> bool:
        """Add a producer; ``admitted`` is called at once or later.

        False if it has to wait for its turn (WaitForExclusive). Raises `Refused` ProducerBusy or
        ProducerFenced.
        """
        self._check_name(producer)
        mode = producer.access_mode
        if mode == SHARED:
            if self.exclusive is not None or self._waiting:
                owner = self.first_owner
                raise Refused(pb.ProducerBusy, f"Topic has an existing exclusive producer: {owner}")
            self.producers[producer.name] = producer
            admitted(None)
            return True
        if mode == WAIT_FOR_EXCLUSIVE and (self.producers or self._waiting):
            if self.waiting >= WAITING_MAX:
                raise Refused(pb.ProducerBusy, f"{WAITING_MAX} producers wait for this topic already")
            self._waiting = self._waiting or OrderedDict()
            self._waiting[producer] = admitted
            return False
        self._check_epoch(producer)
        if mode == EXCLUSIVE:
            if self.exclusive is not None or self._waiting:
                owner = self.first_owner
                raise Refused(pb.ProducerFenced, f"Topic has an existing exclusive producer: {owner}")
            if self.producers:
                raise Refused(pb.ProducerFenced, "Topic has existing shared producers")
        elif mode == EXCLUSIVE_WITH_FENCING:
            self._fence_all(producer)
        self._own(producer, admitted)
        return True

    def _check_name(self, producer: Producer) -> None:
        """Refuse a name that is in use, unless the same handle reconnects."""
        existing = self.producers.get(producer.name)
        if existing is None:
            return
        same_handle = existing.peer is producer.peer and existing.producer_id == producer.producer_id
        reconnected = (
            not existing.user_provided_name
            and not producer.user_provided_name
            and producer.epoch > existing.epoch
        )
        if (same_handle and producer.epoch > existing.epoch) or reconnected:
            existing.lost()
            self.remove(existing)
            return
        reason = f"Producer with name '{producer.name}' is already connected to topic"
        raise HolderBusy(pb.ProducerBusy, reason, existing.peer)

    def _check_epoch(self, producer: Producer) -> None:
        known = producer.topic_epoch
        if known is not None and self.epoch is not None and known < self.epoch:
            raise Refused(
                pb.ProducerFenced,
                f"Producer was fenced: its topic epoch {known} is below the topic's {self.epoch}",
            )

    def _fence_all(self, winner: Producer) -> None:
        """Revoke access of all other producers: their clients are notified, reconnect, and are refused.

        Apache Pulsar's broker does not notify them. There, the next SEND of a fenced producer closes its
        whole connection, with all other producers and consumers of the client.
        """
        for producer in list(self.producers.values()):
            producer.fenced()
            producer.removed = True
        self.producers = {}
        self.exclusive = None
        waiting, self._waiting = self._waiting, None
        for admitted in (waiting or {}).values():
            admitted(Refused(pb.ProducerFenced, f"Topic has an existing exclusive producer: {winner.name}"))

    def _own(self, producer: Producer, admitted: Admitted) -> None:
        known, own = producer.topic_epoch, -1 if self.epoch is None else self.epoch
        self.epoch = own + 1 if known is None or known > max(EPOCH_MAX, own) else known
        producer.topic_epoch = self.epoch
        self.exclusive = producer
        self.producers[producer.name] = producer

        def saved(error: StoreError | None) -> None:
            if error is not None:
                self.remove(producer)
                admitted(storage_refusal(error))
            else:
                admitted(None)

        self._topic.save_epoch(self.epoch, saved)

    def remove(self, producer: Producer) -> None:
        """Remove a producer; the next one that waits for exclusive access gets it."""
        if producer.removed:
            return
        producer.removed = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        if self._waiting:
            self._waiting.pop(producer, None)
        if self.exclusive is producer:
            self.exclusive = None
        while not self.producers and self._waiting:
            waiter, admitted = self._waiting.popitem(last=False)
            waiter.topic_epoch = None
            self._own(waiter, admitted)
