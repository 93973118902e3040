"""Every state × every input."""

from __future__ import annotations

import pytest

from geminga.consumer.state import IGNORED, TRANSITIONS, Event, State, next_state
from geminga.errors import AlreadyClosed, ConsumerNotInitialized

ENDED = (State.CLOSING, State.CLOSED, State.FAILED)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_pair_has_one_defined_outcome(state: State, event: Event) -> None:
    pair = (state, event)
    assert not (pair in TRANSITIONS and pair in IGNORED)
    if pair in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[pair]
    elif pair in IGNORED:
        assert next_state(state, event) is state
    elif state in ENDED:
        with pytest.raises(AlreadyClosed, match=state.name.lower()):
            next_state(state, event)
    elif event is Event.SEEK:
        with pytest.raises(ConsumerNotInitialized):
            next_state(state, event)
    else:
        # What remains can only be our own mistake.
        assert event in (Event.ATTACH, Event.SUBSCRIBED, Event.REFUSED, Event.CLOSED, Event.CLOSE_FAILED) or (
            event in (Event.SEEK_DONE, Event.SEEK_FAILED)
        )
        with pytest.raises(AssertionError, match=event.name):
            next_state(state, event)


@pytest.mark.parametrize("state", State)
def test_every_state_can_end(state: State) -> None:
    reached = state
    for event in (Event.CLOSE, Event.CLOSED):
        reached = next_state(reached, event)
    assert reached is State.CLOSED or state is State.FAILED


def test_closed_is_final() -> None:
    assert all(
        next_state(State.CLOSED, e) is State.CLOSED for e in Event if e not in (Event.ATTACH, Event.SEEK)
    )
