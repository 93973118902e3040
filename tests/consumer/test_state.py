"""Every state × every input."""

import pytest

from geminga.consumer.state import IGNORED, TRANSITIONS, ConsumerInput, ConsumerState, next_state
from geminga.errors import AlreadyClosed, ConsumerNotInitialized

ENDED = (ConsumerState.CLOSING, ConsumerState.CLOSED, ConsumerState.FAILED)


@pytest.mark.parametrize("state", ConsumerState)
@pytest.mark.parametrize("event", ConsumerInput)
def test_every_pair_has_one_defined_outcome(state, event):
    pair = (state, event)
    assert not (pair in TRANSITIONS and pair in IGNORED)
    if pair in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[pair]
    elif pair in IGNORED:
        assert next_state(state, event) is state
    elif state in ENDED:
        with pytest.raises(AlreadyClosed, match=state.name.lower()):
            next_state(state, event)
    elif event is ConsumerInput.SEEK:
        with pytest.raises(ConsumerNotInitialized):
            next_state(state, event)
    else:
        # What remains can only be our own mistake.
        assert event in (
            ConsumerInput.ATTACH,
            ConsumerInput.SUBSCRIBED,
            ConsumerInput.REFUSED,
            ConsumerInput.CLOSED,
            ConsumerInput.CLOSE_FAILED,
        ) or (event in (ConsumerInput.SEEK_DONE, ConsumerInput.SEEK_FAILED))
        with pytest.raises(AssertionError, match=event.name):
            next_state(state, event)


@pytest.mark.parametrize("state", ConsumerState)
def test_every_state_can_end(state):
    reached = state
    for event in (ConsumerInput.CLOSE, ConsumerInput.CLOSED):
        reached = next_state(reached, event)
    assert reached is ConsumerState.CLOSED or state is ConsumerState.FAILED


def test_closed_is_final():
    assert all(
        next_state(ConsumerState.CLOSED, e) is ConsumerState.CLOSED
        for e in ConsumerInput
        if e not in (ConsumerInput.ATTACH, ConsumerInput.SEEK)
    )
