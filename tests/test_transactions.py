"""A transaction's state, operations and parts, in a time that the test decides."""

import pytest

from geminga.errors import InvalidTxnStatusError, Timeout, TransactionNotFound
from geminga.transactions import Part, TransactionCore, TransactionId, TransactionState

State = TransactionState
PART = Part("persistent://public/default/t")


class Clock:
    now = 0.0


@pytest.fixture
def asked():
    return []


@pytest.fixture
def core(asked):
    return TransactionCore(TransactionId(3, 7), 60.0, lambda: Clock.now, asked.append)


@pytest.fixture(autouse=True)
def time_starts_anew():
    Clock.now = 0.0


@pytest.mark.parametrize(
    ("wanted", "end"), [(State.COMMITTING, State.COMMITTED), (State.ABORTING, State.ABORTED)]
)
def test_an_open_transaction_ends_as_wanted_and_cannot_end_twice(core, wanted, end):
    assert core.state is State.OPEN
    core.begin_end(wanted)
    core.begin_end(wanted)  # a repetition after an attempt without an answer
    assert core.state is wanted
    core.end()
    assert core.state is end
    for each in (State.COMMITTING, State.ABORTING):
        with pytest.raises(InvalidTxnStatusError, match=rf"transaction 3:7 cannot .*; it is {end.name}"):
            core.begin_end(each)


def test_a_commit_under_way_cannot_become_an_abort_by_a_call(core):
    core.begin_end(State.COMMITTING)
    with pytest.raises(InvalidTxnStatusError, match="cannot be aborted; it is COMMITTING"):
        core.begin_end(State.ABORTING)


def test_a_commit_begun_in_time_continues_after_the_time_limit(core):
    core.begin_end(State.COMMITTING)
    Clock.now = 61.0
    assert core.state is State.COMMITTING


def test_operations_are_counted_and_the_first_failure_is_kept(core):
    idle, told = [], []
    core.begin(PART, 3, told.append)
    core.begin(PART, 1, told.append)
    core.on_idle = lambda: idle.append(1)
    first = Timeout("first")
    core.ended(3, first)
    assert not idle
    core.ended(1, Timeout("second"))
    assert (core.failure, idle, core.pending) == (first, [1], 0)


def test_a_refused_part_is_requested_again_by_the_next_operation(core, asked):
    told = []
    refusal = TransactionNotFound("gone")
    core.begin(PART, 1, told.append)
    core.joined(PART, refusal)
    core.begin(PART, 1, told.append)
    assert (asked, told) == ([PART, PART], [refusal])
