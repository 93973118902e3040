"""State machine of one consumer on one topic, as a table.

::

    IDLE ──attach──▶ SUBSCRIBING ──subscribed──▶ READY ──seek──▶ SEEKING
      ▲                  │                         │               │
      └──────── refused, connection lost, closed by the broker ────┘
    any ──close──▶ CLOSING ──closed──▶ CLOSED        any ──failed──▶ FAILED

`TRANSITIONS` holds every pair that changes the state; `next_state` covers all pairs, and the tests check each
state × input.
"""

from enum import Enum, auto

from geminga.errors import AlreadyClosed, ConsumerNotInitialized


class ConsumerState(Enum):
    """State of the consumer towards the broker."""

    __hash__ = object.__hash__  # members are singletons, and hashing their names takes a Python call

    IDLE = auto()
    """No subscription on any connection: before the first attach and between connections."""
    SUBSCRIBING = auto()
    """SUBSCRIBE is in flight."""
    READY = auto()
    """Subscribed; permits were granted and messages arrive."""
    SEEKING = auto()
    """SEEK is in flight: arriving messages are put aside until its answer."""
    CLOSING = auto()
    """CLOSE_CONSUMER or UNSUBSCRIBE is in flight; no messages are delivered any more."""
    CLOSED = auto()
    """Closed; the consumer id is free again."""
    FAILED = auto()
    """The broker rejected the consumer permanently; the error is kept."""


class ConsumerInput(Enum):
    """Events of a consumer."""

    __hash__ = object.__hash__  # members are singletons, and hashing their names takes a Python call

    ATTACH = auto()
    """A connection to the topic's broker is open: SUBSCRIBE is sent."""
    SUBSCRIBED = auto()
    """The broker answered SUCCESS."""
    REFUSED = auto()
    """The broker answered with an error, or did not answer in time; a later attempt may succeed."""
    DETACHED = auto()
    """The connection was lost, or the broker sent CLOSE_CONSUMER."""
    SEEK = auto()
    """The application requested another position."""
    SEEK_DONE = auto()
    """The broker moved the cursor."""
    SEEK_FAILED = auto()
    """The broker did not move the cursor."""
    CLOSE = auto()
    """The application closes or unsubscribes."""
    CLOSE_FAILED = auto()
    """The broker rejected the unsubscribe: the subscription has other consumers."""
    CLOSED = auto()
    """The close was answered, or there was no connection."""
    FAILED = auto()
    """A permanent error: no further attempt is made."""


S, E = ConsumerState, ConsumerInput

TRANSITIONS: dict[tuple[ConsumerState, ConsumerInput], ConsumerState] = {
    (S.IDLE, E.ATTACH): S.SUBSCRIBING,
    (S.SUBSCRIBING, E.SUBSCRIBED): S.READY,
    (S.SUBSCRIBING, E.REFUSED): S.IDLE,
    (S.SUBSCRIBING, E.DETACHED): S.IDLE,
    (S.READY, E.DETACHED): S.IDLE,
    (S.READY, E.SEEK): S.SEEKING,
    (S.SEEKING, E.SEEK_DONE): S.READY,
    (S.SEEKING, E.SEEK_FAILED): S.READY,
    # The broker disconnects the consumer before it answers the SEEK (framing.md section 9).
    (S.SEEKING, E.DETACHED): S.IDLE,
    **{(state, E.CLOSE): S.CLOSING for state in (S.IDLE, S.SUBSCRIBING, S.READY, S.SEEKING)},
    (S.CLOSING, E.CLOSE_FAILED): S.READY,
    (S.CLOSING, E.CLOSED): S.CLOSED,
    **{(state, E.FAILED): S.FAILED for state in (S.IDLE, S.SUBSCRIBING, S.READY, S.SEEKING, S.CLOSING)},
    (S.FAILED, E.CLOSE): S.CLOSED,
}
"""Every pair that changes the state."""

IGNORED: frozenset[tuple[ConsumerState, ConsumerInput]] = frozenset(
    {
        # A late answer, or a loss that was already noticed.
        (S.IDLE, E.DETACHED), (S.IDLE, E.REFUSED), (S.IDLE, E.SEEK_DONE), (S.IDLE, E.SEEK_FAILED),
        (S.IDLE, E.CLOSE_FAILED), (S.IDLE, E.CLOSED),
        (S.SUBSCRIBING, E.SEEK_DONE), (S.SUBSCRIBING, E.SEEK_FAILED),
        (S.READY, E.SEEK_DONE), (S.READY, E.SEEK_FAILED), (S.READY, E.REFUSED),
        (S.SEEKING, E.REFUSED),
        # While closing, the state of the connection no longer matters.
        (S.CLOSING, E.CLOSE), (S.CLOSING, E.DETACHED), (S.CLOSING, E.SUBSCRIBED), (S.CLOSING, E.REFUSED),
        (S.CLOSING, E.SEEK_DONE), (S.CLOSING, E.SEEK_FAILED),
        *((S.CLOSED, event) for event in ConsumerInput if event not in (E.ATTACH, E.SEEK)),
        *((S.FAILED, event) for event in ConsumerInput if event not in (E.ATTACH, E.SEEK, E.CLOSE)),
    }
)  # fmt: skip
"""Pairs that may happen and change nothing."""


def next_state(state: ConsumerState, event: ConsumerInput) -> ConsumerState:
    """Return the state after ``event``.

    Raises `AlreadyClosed` for a call on a closed or failed consumer and `ConsumerNotInitialized` for a call
    before the consumer is subscribed; those are the caller's mistakes. Any other pair that is not in the
    table is a bug here, and an `AssertionError`.
    """
    after = TRANSITIONS.get((state, event))
    if after is not None:
        return after
    if (state, event) in IGNORED:
        return state
    if state in (S.CLOSED, S.FAILED, S.CLOSING):
        raise AlreadyClosed(f"the consumer is {state.name.lower()}: {event.name.lower()} is not possible")
    if event is E.SEEK:
        raise ConsumerNotInitialized(
            f"the consumer is {state.name.lower()}: seek needs a subscribed consumer"
        )
    raise AssertionError(f"consumer event {event.name} in state {state.name}")
