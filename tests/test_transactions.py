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
        with pytest.raises(InvalidTxnStatusError, match=rf"transaction \(3, 7\) cannot .*; it is {end.name}"):
            core.begin_end(each)


def test_a_commit_under_way_cannot_become_an_abort_by_a_call(core):
    core.begin_end(State.COMMITTING)
    with pytest.raises(InvalidTxnStatusError, match="cannot be aborted; it is COMMITTING"):
        core.begin_end(State.ABORTING)


def test_a_commit_with_a_failed_operation_becomes_an_abort(core):
    core.begin_end(State.COMMITTING)
    core.failed(Timeout("late"))
    core.seal()
    assert core.state is State.ABORTING
    core.end()
    assert core.state is State.ABORTED


def test_a_transaction_unknown_to_its_coordinator_is_in_error(core):
    core.begin_end(State.COMMITTING)
    core.end(known=False)
    assert core.state is State.ERROR


def test_after_its_time_limit_a_transaction_takes_nothing_and_is_not_committed(core):
    Clock.now = 59.9
    core.check_open()
    Clock.now = 60.0
    assert core.state is State.TIME_OUT
    with pytest.raises(InvalidTxnStatusError, match="its time limit has passed"):
        core.check_open()
    with pytest.raises(InvalidTxnStatusError, match="cannot be committed; it is TIME_OUT"):
        core.begin_end(State.COMMITTING)


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


def test_an_operation_after_all_had_their_time_is_refused(core, asked):
    told = []
    core.begin_end(State.COMMITTING)
    core.begin(PART, 1, told.append)
    core.joined(PART)
    core.seal()
    core.begin(PART, 1, told.append)
    assert told[0] is None
    assert isinstance(told[1], InvalidTxnStatusError)
    assert core.pending == 2  # each ends by its outcome


def test_a_part_is_requested_once_for_all_its_operations(core, asked):
    told = []
    core.begin(PART, 1, told.append)
    core.begin(PART, 1, told.append)
    assert (asked, told) == ([PART], [])
    core.joined(PART)
    assert told == [None, None]
    core.begin(PART, 1, told.append)
    assert (asked, told) == ([PART], [None] * 3)
    core.begin(Part(PART.topic, "s"), 1, told.append)
    assert asked == [PART, Part(PART.topic, "s")]


def test_a_refused_part_is_requested_again_by_the_next_operation(core, asked):
    told = []
    refusal = TransactionNotFound("gone")
    core.begin(PART, 1, told.append)
    core.joined(PART, refusal)
    core.begin(PART, 1, told.append)
    assert (asked, told) == ([PART, PART], [refusal])
