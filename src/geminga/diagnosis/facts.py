"""Figures about one subscription: everything that `geminga.diagnosis.conclude` decides by.

A Geminga broker fills them from its own objects (`geminga.broker.admin.facts`), `geminga.diagnosis.pulsar`
from the JSON of an Apache Pulsar. Times are milliseconds since 1970, 0: never, or not known. Positions are
texts, ``ledger:entry``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFacts:
    """One connected consumer."""

    name: str
    address: str
    permits: int
    """Permits: messages that may still be sent to it."""
    held: int = 0
    """Messages that were delivered to it and are not acknowledged."""
    held_since_ms: int = 0
    """Its last acknowledgement, or the first delivery after that."""
    held_limit: int = 0
    """Limit of its unacknowledged messages; 0: no limit, or not known."""
    blocked: bool = False
    """Whether it reached that limit."""
    reads: bool = True
    """Whether its connection takes more bytes."""
    standby: bool = False
    """Whether another consumer is the active one (Exclusive, Failover)."""
    asked_ms: int = 0
    """Its last FLOW; -1: not known."""
    delivered_ms: int = 0
    acked_ms: int = 0
    acks_per_second: float = 0.0
    """Messages a second."""
    queued: int = 0
    """Key_Shared: entries that were read and wait for this consumer."""

    @property
    def ready(self) -> bool:
        """Whether an entry may be sent to it now."""
        return self.permits > 0 and not self.blocked and self.reads

    @property
    def text(self) -> str:
        return f"consumer {self.name!r} at {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """Key_Shared: entries of a key that wait until another consumer acknowledges its entries of that key."""

    key: str
    slot: int
    holder: str
    holder_text: str
    held: int
    waiting: int
    first: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoleFacts:
    """The oldest message that is not acknowledged although later ones are."""

    message: str
    acknowledged_behind: int
    """Messages; -1: not known."""
    open_in_batch: str = ""
    holder: str = ""
    holder_text: str = ""
    delivered: bool = False
    delayed: bool = False
    """Whether the time of its delivery has not come."""
    transaction: str = ""
    """The open transaction in which it is acknowledged, as ``0:17``."""
    age_seconds: int = -1
    frees: int = -1
    """Bytes that the subscription no longer retains once this message is acknowledged; -1: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFacts:
    """A transaction, the end of which messages or acknowledgements of the subscription wait for."""

    id: str
    """``0:17``: the number of the coordinator, and a number there."""
    began_ms: int
    ends_ms: int
    """When its time limit has passed."""
    messages: int
    """Messages that wait for it: to be delivered, or for their acknowledgement to take effect; -1: not
    counted."""
    is_open: bool = True
    """False: it is being committed or aborted."""
    others: int = 0
    """Further transactions with acknowledgements, to which some of the messages belong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """Effect of skipping the oldest messages of a subscription, computed on the topic as it is."""

    up_to: str
    """The last skipped message; empty: all."""
    messages: int
    frees: int
    """Bytes that the subscription no longer retains."""
    still_over: str = ""
    """The subscription whose backlog exceeds a quota afterwards; empty: producers may publish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFacts:
    """The backlog quota that stops the producers of the topic."""

    text: str
    subscription: str
    oldest: str = ""
    certain: bool = True
    """Whether it is known that producers are stopped."""
    details: tuple[tuple[str, object], ...] = ()
    first: Relief | None = None
    """Effect of skipping the oldest message alone."""
    enough: Relief | None = None
    """Effect of skipping no more than what exceeds the quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionFacts:
    """One subscription of a topic or partition."""

    topic: str
    subscription: str
    now_ms: int
    is_geminga: bool = True
    """Whether the broker has Geminga's own commands."""
    type: str = ""
    durable: bool = True
    """False for a reader's subscription, which ends with it."""
    backlog: int = 0
    """Entries that are not acknowledged."""
    messages: int = -1
    """Messages that are not acknowledged; -1: not known."""
    bytes: int = -1
    oldest_seconds: int = -1
    waiting: int = 0
    """Entries that may be delivered now and are with no consumer."""
    waiting_since_ms: int = 0
    """A time since which one of them waits; 0: not known."""
    unread: int | None = None
    """Entries behind the read position; None: not known."""
    held: int = 0
    """Messages that were delivered and are not acknowledged."""
    held_limit: int = 0
    blocked: bool = False
    """Whether all consumers together reached that limit."""
    delivered_ms: int = 0
    acked_ms: int = 0
    published_ms: int = 0
    """The last message that was published to the topic."""
    rate_in: float = 0.0
    """Messages a second that are published to the topic."""
    consumers: tuple[ConsumerFacts, ...] = ()
    """The first ones, of a very large number; those that are not ready before the others."""
    consumer_count: int = 0
    any_ready: bool = False
    """Whether any consumer that receives can take an entry now."""
    left_ms: int = 0
    """When the last consumer disconnected; 0: none was connected since the topic was loaded."""
    harmed: str = ""
    fenced: bool = False
    terminated: bool = False
    quota: QuotaFacts | None = None
    disk: str = ""
    """The reason why the broker's disk takes no messages, if it takes none."""
    damaged: tuple[tuple[str, str], ...] = ()
    """First and last entry of runs that cannot be read."""
    reading_fails: bool = False
    switching_to: str = ""
    throttled: bool = False
    """Whether a dispatch rate is used up now."""
    delayed: int = 0
    """Delayed entries that are not due yet."""
    delayed_next_ms: int = 0
    keys: tuple[KeyFacts, ...] = ()
    draining: int = 0
    """Key_Shared: key slots that wait for acknowledgements of another consumer."""
    unowned: int = 0
    """Key_Shared: entries whose slots are not assigned to a consumer."""
    look_ahead: int = 0
    """Key_Shared: entries that were read and wait, if no more are read because of their number."""
    newcomers: tuple[str, ...] = ()
    """Key_Shared consumers of an Apache Pulsar that wait for messages delivered before they connected."""
    transaction: TransactionFacts | None = None
    """The transaction up to whose first message the topic is delivered, if messages of others are behind."""
    open_transactions: int = 0
    """Apache Pulsar: the topic's open transactions. It does not report which of them holds messages back."""
    pending_acks: TransactionFacts | None = None
    """The oldest transaction with acknowledgements; its messages are those of all transactions."""
    holes: int = 0
    mark_ms: int = 0
    """When the position up to which all is acknowledged last moved."""
    hole: HoleFacts | None = None
    oldest_open: str = ""
    redeliveries: int = 0
    """Redeliveries of the oldest unacknowledged message; 0 also if not known."""
    expired: int = 0
    """Entries that expired since the topic was loaded."""
    expired_ms: int = 0
    read_position: str = ""
    redeliver_after: float = 0
    """Seconds after which unacknowledged messages are redelivered; 0: never."""
    pushed_again: int = 0
