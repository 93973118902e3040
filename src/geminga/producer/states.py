"""State machine of a partition's producer, as a table.

`TRANSITIONS` holds every pair of state and input that may occur. Any other pair is a bug here
(`RuntimeError`), not of the broker.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class ProducerState(Enum):
    __hash__ = object.__hash__  # members are singletons, and hashing their names takes a Python call

    NOT_STARTED = "not started"
    CONNECTING = "connecting"
    WAITING_FOR_EXCLUSIVE = "waiting for exclusive"
    READY = "ready"
    RECONNECTING = "reconnecting"
    FENCED = "fenced"
    TERMINATED = "terminated"
    CLOSING = "closing"
    CLOSED = "closed"


class ProducerInput(Enum):
    __hash__ = object.__hash__  # members are singletons, and hashing their names takes a Python call

    START = "start"
    """The owner begins to look up the broker."""
    CREATED = "PRODUCER_SUCCESS, ready"
    MUST_WAIT = "PRODUCER_SUCCESS, not ready"
    REFUSED = "creation refused, to be tried again"
    DISCONNECTED = "connection lost, or closed by the broker"
    FENCED = "ProducerFenced"
    TERMINATED = "TopicTerminated"
    FAILED = "given up"
    CLOSE = "close asked for"
    CLOSED = "close finished"


_S, _I = ProducerState, ProducerInput

TRANSITIONS: Final[dict[tuple[ProducerState, ProducerInput], ProducerState]] = {
    (_S.NOT_STARTED, _I.START): _S.CONNECTING,
    (_S.NOT_STARTED, _I.CLOSE): _S.CLOSED,
    (_S.NOT_STARTED, _I.FAILED): _S.CLOSED,
    #
    (_S.CONNECTING, _I.CREATED): _S.READY,
    (_S.CONNECTING, _I.MUST_WAIT): _S.WAITING_FOR_EXCLUSIVE,
    (_S.CONNECTING, _I.REFUSED): _S.CONNECTING,
    (_S.CONNECTING, _I.DISCONNECTED): _S.CONNECTING,
    (_S.CONNECTING, _I.FENCED): _S.FENCED,
    (_S.CONNECTING, _I.TERMINATED): _S.TERMINATED,
    (_S.CONNECTING, _I.FAILED): _S.CLOSED,
    (_S.CONNECTING, _I.CLOSE): _S.CLOSING,
    #
    (_S.WAITING_FOR_EXCLUSIVE, _I.CREATED): _S.READY,
    (_S.WAITING_FOR_EXCLUSIVE, _I.MUST_WAIT): _S.WAITING_FOR_EXCLUSIVE,
    (_S.WAITING_FOR_EXCLUSIVE, _I.REFUSED): _S.CONNECTING,
    (_S.WAITING_FOR_EXCLUSIVE, _I.DISCONNECTED): _S.CONNECTING,
    (_S.WAITING_FOR_EXCLUSIVE, _I.FENCED): _S.FENCED,
    (_S.WAITING_FOR_EXCLUSIVE, _I.TERMINATED): _S.TERMINATED,
    (_S.WAITING_FOR_EXCLUSIVE, _I.FAILED): _S.CLOSED,
    (_S.WAITING_FOR_EXCLUSIVE, _I.CLOSE): _S.CLOSING,
    #
    (_S.READY, _I.DISCONNECTED): _S.RECONNECTING,
    (_S.READY, _I.FENCED): _S.FENCED,
    (_S.READY, _I.TERMINATED): _S.TERMINATED,
    (_S.READY, _I.FAILED): _S.CLOSED,
    (_S.READY, _I.CLOSE): _S.CLOSING,
    #
    (_S.RECONNECTING, _I.CREATED): _S.READY,
    (_S.RECONNECTING, _I.MUST_WAIT): _S.WAITING_FOR_EXCLUSIVE,
    (_S.RECONNECTING, _I.REFUSED): _S.RECONNECTING,
    (_S.RECONNECTING, _I.DISCONNECTED): _S.RECONNECTING,
    (_S.RECONNECTING, _I.FENCED): _S.FENCED,
    (_S.RECONNECTING, _I.TERMINATED): _S.TERMINATED,
    (_S.RECONNECTING, _I.FAILED): _S.CLOSED,
    (_S.RECONNECTING, _I.CLOSE): _S.CLOSING,
    # Final except for closing. Further events of the connection change nothing.
    (_S.FENCED, _I.REFUSED): _S.FENCED,
    (_S.FENCED, _I.DISCONNECTED): _S.FENCED,
    (_S.FENCED, _I.FENCED): _S.FENCED,
    (_S.FENCED, _I.TERMINATED): _S.FENCED,
    (_S.FENCED, _I.FAILED): _S.FENCED,
    (_S.FENCED, _I.CLOSE): _S.CLOSED,
    #
    (_S.TERMINATED, _I.REFUSED): _S.TERMINATED,
    (_S.TERMINATED, _I.DISCONNECTED): _S.TERMINATED,
    (_S.TERMINATED, _I.FENCED): _S.TERMINATED,
    (_S.TERMINATED, _I.TERMINATED): _S.TERMINATED,
    (_S.TERMINATED, _I.FAILED): _S.TERMINATED,
    (_S.TERMINATED, _I.CLOSE): _S.CLOSED,
    # While closing a reconnect may still succeed: then pending messages are sent.
    (_S.CLOSING, _I.CREATED): _S.CLOSING,
    (_S.CLOSING, _I.MUST_WAIT): _S.CLOSING,
    (_S.CLOSING, _I.REFUSED): _S.CLOSING,
    (_S.CLOSING, _I.DISCONNECTED): _S.CLOSING,
    (_S.CLOSING, _I.FENCED): _S.CLOSED,
    (_S.CLOSING, _I.TERMINATED): _S.CLOSED,
    (_S.CLOSING, _I.FAILED): _S.CLOSED,
    (_S.CLOSING, _I.CLOSE): _S.CLOSING,
    (_S.CLOSING, _I.CLOSED): _S.CLOSED,
    #
    (_S.CLOSED, _I.CREATED): _S.CLOSED,
    (_S.CLOSED, _I.MUST_WAIT): _S.CLOSED,
    (_S.CLOSED, _I.REFUSED): _S.CLOSED,
    (_S.CLOSED, _I.DISCONNECTED): _S.CLOSED,
    (_S.CLOSED, _I.FENCED): _S.CLOSED,
    (_S.CLOSED, _I.TERMINATED): _S.CLOSED,
    (_S.CLOSED, _I.FAILED): _S.CLOSED,
    (_S.CLOSED, _I.CLOSE): _S.CLOSED,
    (_S.CLOSED, _I.CLOSED): _S.CLOSED,
}

ACCEPTING: Final = frozenset(
    {
        ProducerState.NOT_STARTED,
        ProducerState.CONNECTING,
        ProducerState.WAITING_FOR_EXCLUSIVE,
        ProducerState.READY,
        ProducerState.RECONNECTING,
    }
)
"""States that accept messages: without a connection they wait in the pending queue."""

ENDED: Final = frozenset({ProducerState.FENCED, ProducerState.TERMINATED, ProducerState.CLOSED})
"""States without pending messages."""


def next_state(state: ProducerState, kind: ProducerInput) -> ProducerState:
    """Return the state after ``kind``. Raises `RuntimeError` for a pair that must not occur."""
    following = TRANSITIONS.get((state, kind))
    if following is None:
        raise RuntimeError(f"a producer that is {state.value} must not get {kind.value!r}")
    return following


def diagram() -> str:
    """Return the table as a Mermaid state diagram, without pairs that change nothing."""
    arrows: dict[tuple[ProducerState, ProducerState], list[str]] = {}
    for (state, kind), following in TRANSITIONS.items():
        if following is not state:
            arrows.setdefault((state, following), []).append(kind.value)
    names = {state: state.name.title().replace("_", "") for state in ProducerState}
    lines = ["stateDiagram-v2", f"    [*] --> {names[ProducerState.NOT_STARTED]}"]
    for (state, following), kinds in arrows.items():
        lines.append(f"    {names[state]} --> {names[following]}: {' / '.join(kinds)}")
    lines.append(f"    {names[ProducerState.CLOSED]} --> [*]")
    return "\n".join(lines) + "\n"
