"""One transaction on the client's side, without I/O: its state, operations and parts.

The states are the Java client's::

    OPEN -> COMMITTING -> COMMITTED
     | \\--> ABORTING  -> ABORTED
     |          \\------> ERROR       (also from COMMITTING) its coordinator does not know it
     \\---> TIME_OUT                  its time limit has passed: the coordinator aborts it

*Operations* are sends and acknowledgements: it ends when all have their receipts. *Parts* are the partitions
that messages go to and the subscriptions that acknowledge: the coordinator must know each before the first
operation there.
"""

from collections.abc import Callable
from typing import NamedTuple

from geminga._util.choices import Choice
from geminga.errors import InvalidTxnStatusError

COORDINATORS_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"
"""Topic with a partition for each coordinator: clients look up the broker of one by it."""


class TransactionState(Choice):
    """State of a transaction, with the Java client's names."""

    OPEN = 0
    COMMITTING = 1
    ABORTING = 2
    COMMITTED = 3
    ABORTED = 4
    ERROR = 5
    TIME_OUT = 6


class TransactionId(NamedTuple):
    """Id of a transaction; ``most_bits`` is the number of its coordinator."""

    most_bits: int
    least_bits: int

    def __str__(self) -> str:
        """Return it as ``geminga transactions`` takes it: ``0:17``."""
        return f"{self.most_bits}:{self.least_bits}"


class Part(NamedTuple):
    """A partition that messages go to, or with ``subscription`` one whose messages are acknowledged."""

    topic: str
    subscription: str | None = None


Joined = Callable[[Exception | None], None]
"""Called when the coordinator knows a part, or with its refusal."""

_S = TransactionState


class TransactionCore:
    """One transaction. ``deadline`` is its time limit, in seconds of the clock ``now``; ``ask`` has the
    coordinator add a part, whose answer goes to `joined`. Any thread may call `check_open`."""

    def __init__(
        self,
        transaction_id: TransactionId,
        deadline: float,
        now: Callable[[], float],
        ask: Callable[[Part], None],
    ) -> None:
        self.id = transaction_id
        self.name = f"transaction {transaction_id}"
        self.deadline = deadline
        self.pending = 0
        """Messages and acknowledgements without an outcome."""
        self.failure: Exception | None = None
        """Error of the first operation that failed: the transaction cannot be committed."""
        self.on_idle: Callable[[], object] | None = None
        """Called whenever no operation is pending."""
        self._now = now
        self._ask = ask
        self._state = _S.OPEN
        self.sealed = False
        """Whether all operations have their outcome, or have had their time."""
        self._parts: dict[Part, list[Joined] | None] = {}
        """Callers that wait until the coordinator knows a part, by part; None: it knows the part."""

    @property
    def state(self) -> TransactionState:
        if self._state is _S.OPEN and self._now() >= self.deadline:
            return _S.TIME_OUT
        return self._state

    def check_open(self) -> None:
        """Raise `InvalidTxnStatusError` unless the transaction is open."""
        if self._state is not _S.OPEN or self._now() >= self.deadline:
            raise self._wrong_state("takes no more messages and acknowledgements")

    def _wrong_state(self, what: str) -> InvalidTxnStatusError:
        state = self.state
        limit = ": its time limit has passed, and it is aborted" if state is _S.TIME_OUT else ""
        return InvalidTxnStatusError(f"{self.name} {what}; it is {state.name}{limit}")

    # --- operations ------------------------------------------------------------------------------

    def begin(self, part: Part, count: int, then: Joined) -> None:
        """Note ``count`` operations; call ``then`` when the coordinator knows their part. `ended` follows."""
        self.pending += count
        if self.sealed:
            then(self._wrong_state("was ended before"))
        elif part not in self._parts:
            self._parts[part] = [then]
            self._ask(part)
        elif (waiting := self._parts[part]) is not None:
            waiting.append(then)
        else:
            then(None)

    def joined(self, part: Part, error: Exception | None = None) -> None:
        """Handle the coordinator's answer. The next operation of a refused part requests the part again."""
        waiting = self._parts.pop(part) or ()
        if error is None:
            self._parts[part] = None
        for then in waiting:
            then(error)

    def ended(self, count: int, error: Exception | None) -> None:
        """Note the outcome of ``count`` operations."""
        self.pending -= count
        if error is not None:
            self.failed(error)
        if not self.pending and self.on_idle is not None:
            self.on_idle()

    def failed(self, error: Exception) -> None:
        """Note an operation that was refused, or failed; after the seal it has no part in the end."""
        if not self.sealed:
            self.failure = self.failure or error

    # --- the end ---------------------------------------------------------------------------------

    def begin_end(self, wanted: TransactionState) -> None:
        """Begin to commit or abort (``wanted``: COMMITTING or ABORTING), or begin again after an attempt
        without an answer. Raises `InvalidTxnStatusError` in any other state."""
        if self.state not in (_S.OPEN, wanted):
            raise self._wrong_state(f"cannot be {'committed' if wanted is _S.COMMITTING else 'aborted'}")
        self._state = wanted

    def seal(self) -> None:
        """Refuse operations from now on. If one has failed, the transaction is aborted."""
        self.sealed = True
        if self.failure is not None:
            self._state = _S.ABORTING

    def end(self, *, known: bool = True) -> None:
        """Note the coordinator's answer to the end; ``known``: it knew the transaction."""
        ended = _S.COMMITTED if self._state is _S.COMMITTING else _S.ABORTED
        self._state = ended if known else _S.ERROR
