from pathlib import Path

import pytest

from geminga.producer.states import ACCEPTING, ENDED, TRANSITIONS, Input, State, diagram, next_state

MUST_NOT_OCCUR = {
    # Only the owner starts, and only once.
    *((state, Input.START) for state in State if state is not State.NOT_STARTED),
    # Before the start there is no connection to hear anything from.
    *(
        (State.NOT_STARTED, kind)
        for kind in (
            Input.CREATED,
            Input.MUST_WAIT,
            Input.REFUSED,
            Input.DISCONNECTED,
            Input.FENCED,
            Input.TERMINATED,
            Input.CLOSED,
        )
    ),
    # A producer that exists on its connection is not created there again.
    *((State.READY, kind) for kind in (Input.CREATED, Input.MUST_WAIT, Input.REFUSED)),
    # An ended producer is let go of by its driver: no creation runs any more.
    *(
        (state, kind)
        for state in (State.FENCED, State.TERMINATED)
        for kind in (Input.CREATED, Input.MUST_WAIT)
    ),
    # Closing is finished only where it was begun.
    *((state, Input.CLOSED) for state in State if state not in (State.CLOSING, State.CLOSED)),
}


@pytest.mark.parametrize("kind", list(Input))
@pytest.mark.parametrize("state", list(State))
def test_every_pair_is_in_the_table_or_must_not_occur(state, kind):
    if (state, kind) in MUST_NOT_OCCUR:
        assert (state, kind) not in TRANSITIONS
        with pytest.raises(RuntimeError, match=state.value):
            next_state(state, kind)
    else:
        assert next_state(state, kind) in State


def test_nothing_leaves_the_closed_state():
    assert {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] is State.CLOSED} == {State.CLOSED}


def test_fenced_and_terminated_end_only_by_closing():
    for ended in (State.FENCED, State.TERMINATED):
        following = {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] is ended}
        assert following == {ended, State.CLOSED}


def test_no_ended_state_takes_messages():
    assert not ACCEPTING & ENDED
    assert State.CLOSING not in ACCEPTING


def test_every_state_can_be_closed():
    for state in State:
        assert next_state(state, Input.CLOSE) in (State.CLOSING, State.CLOSED)


def test_every_state_is_reached():
    reached = {State.NOT_STARTED}
    while True:
        more = {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(State)


def test_the_page_shows_the_table():
    page = Path(__file__).parents[2] / "docs" / "publish-path.md"
    assert f"```mermaid\n{diagram()}```" in page.read_text(encoding="utf-8")
