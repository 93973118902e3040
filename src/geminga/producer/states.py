"""State machine of a partition's producer, as a table.

`TRANSITIONS` holds every pair of state and input that may occur. Any other pair is a bug here
(`RuntimeError`), not of the broker.
"""

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

_ENDS = {
    _I.FENCED: _S.FENCED, _I.TERMINATED: _S.TERMINATED, _I.FAILED: _S.CLOSED, _I.CLOSE: _S.CLOSING,
}  # fmt: skip
_CONNECTED = {_I.CREATED: _S.READY, _I.MUST_WAIT: _S.WAITING_FOR_EXCLUSIVE}
_UNCONNECTED = (_I.REFUSED, _I.DISCONNECTED)
_LATE = (*_UNCONNECTED, _I.FENCED, _I.TERMINATED, _I.FAILED)

_TABLE: Final[dict[ProducerState, dict[ProducerInput, ProducerState]]] = {
    _S.NOT_STARTED: {_I.START: _S.CONNECTING, _I.CLOSE: _S.CLOSED, _I.FAILED: _S.CLOSED},
    _S.CONNECTING: {**_CONNECTED, **dict.fromkeys(_UNCONNECTED, _S.CONNECTING), **_ENDS},
    _S.WAITING_FOR_EXCLUSIVE: {**_CONNECTED, **dict.fromkeys(_UNCONNECTED, _S.CONNECTING), **_ENDS},
    _S.READY: {_I.DISCONNECTED: _S.RECONNECTING, **_ENDS},
    _S.RECONNECTING: {**_CONNECTED, **dict.fromkeys(_UNCONNECTED, _S.RECONNECTING), **_ENDS},
    # Final except for closing. Further events of the connection change nothing.
    _S.FENCED: {**dict.fromkeys(_LATE, _S.FENCED), _I.CLOSE: _S.CLOSED},
    _S.TERMINATED: {**dict.fromkeys(_LATE, _S.TERMINATED), _I.CLOSE: _S.CLOSED},
    # While closing a reconnect may still succeed: then pending messages are sent.
    _S.CLOSING: {
        **dict.fromkeys((_I.CREATED, _I.MUST_WAIT, *_UNCONNECTED, _I.CLOSE), _S.CLOSING),
        **dict.fromkeys((_I.FENCED, _I.TERMINATED, _I.FAILED, _I.CLOSED), _S.CLOSED),
    },
    _S.CLOSED: dict.fromkeys((kind for kind in _I if kind is not _I.START), _S.CLOSED),
}
TRANSITIONS: Final = {(state, kind): end for state, row in _TABLE.items() for kind, end in row.items()}

ENDED: Final = frozenset({ProducerState.FENCED, ProducerState.TERMINATED, ProducerState.CLOSED})
"""States without pending messages."""

ACCEPTING: Final = frozenset(ProducerState) - ENDED - {ProducerState.CLOSING}
"""States that accept messages: without a connection they wait in the pending queue."""


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
