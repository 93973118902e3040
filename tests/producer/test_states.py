from pathlib import Path

import pytest

from geminga.producer.states import (
    ACCEPTING,
    ENDED,
    TRANSITIONS,
    ProducerInput,
    ProducerState,
    diagram,
    next_state,
)

MUST_NOT_OCCUR = {
    # Only the owner starts, and only once.
    *((state, ProducerInput.START) for state in ProducerState if state is not ProducerState.NOT_STARTED),
    # Before the start there is no connection to hear anything from.
    *(
        (ProducerState.NOT_STARTED, kind)
        for kind in (
            ProducerInput.CREATED,
            ProducerInput.MUST_WAIT,
            ProducerInput.REFUSED,
            ProducerInput.DISCONNECTED,
            ProducerInput.FENCED,
            ProducerInput.TERMINATED,
            ProducerInput.CLOSED,
        )
    ),
    # A producer that exists on its connection is not created there again.
    *(
        (ProducerState.READY, kind)
        for kind in (ProducerInput.CREATED, ProducerInput.MUST_WAIT, ProducerInput.REFUSED)
    ),
    # An ended producer is let go of by its driver: no creation runs any more.
    *(
        (state, kind)
        for state in (ProducerState.FENCED, ProducerState.TERMINATED)
        for kind in (ProducerInput.CREATED, ProducerInput.MUST_WAIT)
    ),
    # Closing is finished only where it was begun.
    *(
        (state, ProducerInput.CLOSED)
        for state in ProducerState
        if state not in (ProducerState.CLOSING, ProducerState.CLOSED)
    ),
}


@pytest.mark.parametrize("kind", list(ProducerInput))
@pytest.mark.parametrize("state", list(ProducerState))
def test_every_pair_is_in_the_table_or_must_not_occur(state, kind):
    if (state, kind) in MUST_NOT_OCCUR:
        assert (state, kind) not in TRANSITIONS
        with pytest.raises(RuntimeError, match=state.value):
            next_state(state, kind)
    else:
        assert next_state(state, kind) in ProducerState


def test_nothing_leaves_the_closed_state():
    assert {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] is ProducerState.CLOSED} == {
        ProducerState.CLOSED
    }


def test_fenced_and_terminated_end_only_by_closing():
    for ended in (ProducerState.FENCED, ProducerState.TERMINATED):
        following = {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] is ended}
        assert following == {ended, ProducerState.CLOSED}


def test_no_ended_state_takes_messages():
    assert not ACCEPTING & ENDED
    assert ProducerState.CLOSING not in ACCEPTING


def test_every_state_can_be_closed():
    for state in ProducerState:
        assert next_state(state, ProducerInput.CLOSE) in (ProducerState.CLOSING, ProducerState.CLOSED)


def test_every_state_is_reached():
    reached = {ProducerState.NOT_STARTED}
    while True:
        more = {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(ProducerState)


def test_the_page_shows_the_table():
    page = Path(__file__).parents[2] / "docs" / "publish-path.md"
    assert f"```mermaid\n{diagram()}```" in page.read_text(encoding="utf-8")
