"""ACK commands that have no receipt of the broker yet, and the tokens that wait for their receipts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from geminga.consumer.message import EntryAcks, EntryKey


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
