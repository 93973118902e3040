"""Steps 10 and 12 of publishing: operations without a receipt, in order.

Operations stay here from the moment their batch closes until they settle. The first ones are *in flight* on
the current connection; after a reconnect none is, and all are written again from the start. Receipts arrive
in the order of the sends and must name the head (framing.md section 5).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from geminga.errors import ProtocolError
from geminga.producer.operation import SendOperation


class PendingQueue:
    """The ordered pending operations of one partition."""

    __slots__ = ("_queue", "messages", "unsent")

    def __init__(self) -> None:
        self._queue: deque[SendOperation] = deque()
        self.unsent: deque[SendOperation] = deque()
        """Operations to be written, in order; the caller removes each after writing it."""
        self.messages = 0
        """Number of messages in all pending operations."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[SendOperation]:
        return iter(self._queue)

    @property
    def head(self) -> SendOperation | None:
        return self._queue[0] if self._queue else None

    @property
    def tail(self) -> SendOperation | None:
        return self._queue[-1] if self._queue else None

    @property
    def in_flight(self) -> int:
        """Number of operations written to the current connection without a receipt."""
        return len(self._queue) - len(self.unsent)

    @property
    def entries(self) -> int:
        """Number of entries that all pending operations add to the topic."""
        return sum(operation.entries for operation in self._queue)

    def first_unsent(self, count: int) -> list[SendOperation]:
        """Return the next ``count`` operations to be written, at most."""
        return list(islice(self.unsent, count))

    def append(self, operation: SendOperation) -> None:
        self._queue.append(operation)
        self.unsent.append(operation)
        self.messages += operation.count

    def resend_all(self) -> int:
        """Mark everything unsent. Return how many entries will be written a second time."""
        repeated = 0
        for index in range(self.in_flight):
            operation = self._queue[index]
            operation.resent = True
            repeated += operation.entries
        if repeated:
            self.unsent = deque(self._queue)
        return repeated

    def replace_unsent(self, operation: SendOperation, pieces: Iterable[SendOperation]) -> None:
        """Replace the operation that is next to be written by ``pieces``; without pieces, remove it."""
        if not self.unsent or self.unsent[0] is not operation:
            raise RuntimeError("only the next unsent operation can be replaced")
        fresh = list(pieces)
        index = self.in_flight
        self.unsent.popleft()
        self.unsent.extendleft(reversed(fresh))
        self._replace(index, fresh)
        self.messages += sum(piece.count for piece in fresh) - operation.count

    def match_run(self, sequence_id: int, ledger_id: int, entry_id: int, count: int) -> SendOperation | None:
        """Remove as many messages of the head as consecutive receipts settle; None: handle them one by one.

        ``sequence_id`` and ``entry_id`` are the first's.
        """
        head = self.head
        if head is None or not head.is_run or sequence_id != head.sequence_id or not self.in_flight:
            return None
        return self._receipted(head, min(count, head.count), ledger_id, entry_id)

    def _receipted(self, run: SendOperation, count: int, ledger_id: int, entry_id: int) -> SendOperation:
        settled = run.split_off(count, ledger_id, entry_id)
        self.messages -= count
        if settled is run or not run.count:
            self._queue.popleft()
        return settled

    def match_receipt(
        self, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int
    ) -> SendOperation | None:
        """Remove the operation that a receipt settles; return None for a late receipt, which is ignored.

        Ledger and entry id are signed (-1:-1 for a duplicate); the highest id is that on the wire, 2^64-1 for
        none.

        The rules are the Java client's: a smaller sequence id than the head's belongs to a timed-out
        operation; a larger one, or another highest id, means that the two sides disagree. Raises
        `ProtocolError` then: the connection must be closed, and everything is sent again.
        """
        queue = self._queue
        if not queue:
            return None
        head = queue[0]
        if len(queue) == len(self.unsent):
            if sequence_id < head.sequence_id:
                return None
            raise ProtocolError(f"a receipt for sequence id {sequence_id} came and nothing is in flight")
        if sequence_id > head.sequence_id:
            raise ProtocolError(
                f"a receipt for sequence id {sequence_id} came while {head.sequence_id} has none yet"
            )
        if sequence_id < head.sequence_id:
            return None
        highest = highest_sequence_id - (1 << 64) if highest_sequence_id >= 1 << 63 else highest_sequence_id
        if highest > sequence_id and (head.is_run or highest != head.highest_sequence_id):
            raise ProtocolError(
                f"a receipt for sequence ids {sequence_id}..{highest} came while "
                f"{head.sequence_id}..{head.highest_sequence_id} were sent"
            )
        if head.is_run:
            return self._receipted(head, 1, ledger_id, entry_id)
        if head.chunk is not None:
            whole, place = head.chunk.message, (ledger_id, entry_id)
            if place == whole.receipted and ledger_id >= 0:
                return None  # the receipt of the chunk before, a second time: all have one sequence id
            whole.receipted = place
        self.messages -= queue.popleft().count
        head.ledger_id = ledger_id
        head.entry_id = entry_id
        return head

    def find_failed(self, sequence_id: int) -> SendOperation | None:
        """Return the operation in flight that a SEND_ERROR names, by its highest sequence id or its first
        one.

        A message of a run gets its own operation for that.
        """
        for index in range(self.in_flight):
            operation = self._queue[index]
            if operation.is_run:
                if operation.sequence_id <= sequence_id <= operation.highest_sequence_id:
                    singles = operation.singles()
                    self._replace(index, singles)
                    return singles[sequence_id - operation.sequence_id]
            elif sequence_id in (operation.highest_sequence_id, operation.sequence_id):
                return operation
        return None

    def _replace(self, index: int, pieces: Sequence[SendOperation]) -> None:
        """Replace the operation at ``index`` by ``pieces``."""
        del self._queue[index]
        for offset, piece in enumerate(pieces):
            self._queue.insert(index + offset, piece)

    def remove(self, operation: SendOperation) -> None:
        """Remove an operation at any position."""
        self._queue.remove(operation)
        if operation in self.unsent:
            self.unsent.remove(operation)
        self.messages -= operation.count

    def take_all(self) -> list[SendOperation]:
        """Empty the queue."""
        operations = list(self._queue)
        self._queue.clear()
        self.unsent.clear()
        self.messages = 0
        return operations
