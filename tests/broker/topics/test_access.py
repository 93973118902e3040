"""Access modes: every mode against every state of the topic, and what happens when an owner leaves."""

from typing import Any

import pytest

from geminga.broker.topics import access
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC, Command

SHARED, EXCLUSIVE, WAIT, FENCE = pb.Shared, pb.Exclusive, pb.WaitForExclusive, pb.ExclusiveWithFencing
ERRORS = {pb.ProducerBusy: "busy", pb.ProducerFenced: "fenced"}

# A new producer of each mode joins no producer, a shared one, an exclusive one, or that and one that waits.
TABLE = {
    (SHARED, "nobody"): "in", (SHARED, "shared"): "in", (SHARED, "exclusive"): "busy",
    (SHARED, "waiting"): "busy", (EXCLUSIVE, "nobody"): "in", (EXCLUSIVE, "shared"): "fenced",
    (EXCLUSIVE, "exclusive"): "fenced", (EXCLUSIVE, "waiting"): "fenced", (WAIT, "nobody"): "in",
    (WAIT, "shared"): "waits", (WAIT, "exclusive"): "waits", (WAIT, "waiting"): "waits",
    (FENCE, "nobody"): "in", (FENCE, "shared"): "in", (FENCE, "exclusive"): "in", (FENCE, "waiting"): "in",
}  # fmt: skip


def create(peer: Any, producer_id: int, mode: int, **fields: Any) -> Any:
    return peer.request("producer", topic=TOPIC, producer_id=producer_id, producer_access_mode=mode, **fields)


def outcome(frame: Any) -> str:
    if frame.type == Command.ERROR:
        return ERRORS[frame.command.error.error]
    assert frame.type == Command.PRODUCER_SUCCESS
    return "in" if frame.command.producer_success.producer_ready else "waits"


@pytest.mark.parametrize(("mode", "state"), TABLE)
def test_each_access_mode_is_handled_in_each_state(harness, mode, state):
    others = harness.peer()
    if state == "shared":
        create(others, 1, SHARED)
    elif state in ("exclusive", "waiting"):
        create(others, 1, EXCLUSIVE)
    if state == "waiting":
        assert outcome(create(others, 2, WAIT)) == "waits"
    newcomer = harness.peer()
    assert outcome(create(newcomer, 9, mode)) == TABLE[mode, state]


def test_epochs_count_the_owners_and_survive_restarts(harness):
    shared = harness.peer()
    assert not create(shared, 1, SHARED).command.producer_success.HasField("topic_epoch")
    shared.disconnect()
    for expected in (0, 1):
        peer = harness.peer()
        assert create(peer, 1, EXCLUSIVE).command.producer_success.topic_epoch == expected
        peer.disconnect()
    harness.restart()
    assert create(harness.peer(), 1, FENCE).command.producer_success.topic_epoch == 2


@pytest.mark.parametrize("mode", [EXCLUSIVE, FENCE])
def test_an_outdated_epoch_is_fenced_and_the_current_one_reconnects(harness, mode):
    for _ in range(2):
        peer = harness.peer()
        create(peer, 1, EXCLUSIVE)
        peer.disconnect()
    peer = harness.peer()
    assert outcome(create(peer, 1, mode, topic_epoch=0)) == "fenced"
    assert create(peer, 1, mode, topic_epoch=1).command.producer_success.topic_epoch == 1


@pytest.mark.parametrize("known", [1 << 62, (1 << 62) + 1, (1 << 64) - 1])
def test_an_owner_reconnects_after_one_with_a_very_high_epoch(harness, known):
    for brought in (known, None):
        peer = harness.peer()
        fields = {} if brought is None else {"topic_epoch": brought}
        epoch = create(peer, 1, EXCLUSIVE, **fields).command.producer_success.topic_epoch
        peer.disconnect()
    harness.restart()
    answer = create(harness.peer(), 1, EXCLUSIVE, topic_epoch=epoch)
    assert answer.command.producer_success.topic_epoch == epoch


def test_waiting_producers_are_admitted_in_order(harness):
    owner, second, third = harness.peer(), harness.peer(), harness.peer()
    create(owner, 1, EXCLUSIVE)
    assert outcome(create(second, 2, WAIT)) == "waits"
    waiting = second.request_id
    assert outcome(create(third, 3, WAIT)) == "waits"
    owner.request("close_producer", producer_id=1)
    ready = second.pop().command.producer_success
    assert (ready.request_id, ready.producer_ready, ready.topic_epoch) == (waiting, True, 1)
    second.send(0, producer_id=2)
    assert len(second.receipts()) == 1
    assert not third.frames
    second.disconnect()
    assert third.pop().command.producer_success.topic_epoch == 2


def test_beyond_their_limit_waiting_producers_are_refused(harness, monkeypatch):
    monkeypatch.setattr(access, "WAITING_MAX", 1)
    peer = harness.peer()
    assert [outcome(create(peer, number, WAIT)) for number in range(3)] == ["in", "waits", "busy"]


def test_a_waiting_producer_that_leaves_is_passed_over(harness):
    owner, second, third = harness.peer(), harness.peer(), harness.peer()
    create(owner, 1, EXCLUSIVE)
    create(second, 2, WAIT)
    create(third, 3, WAIT)
    assert second.request("close_producer", producer_id=2).type == Command.SUCCESS
    owner.disconnect()
    assert outcome(third.pop()) == "in"
    assert not second.frames


def test_fencing_closes_the_other_producers_only(harness):
    loser, waiter, winner = harness.peer(), harness.peer(), harness.peer()
    create(loser, 1, EXCLUSIVE)
    create(waiter, 2, WAIT)
    assert outcome(create(winner, 3, FENCE)) == "in"
    assert outcome(waiter.pop()) == "fenced"
    told = loser.pop().command
    assert (told.type, told.close_producer.producer_id) == (Command.CLOSE_PRODUCER, 1)
    loser.send(0, producer_id=1)  # crossed that
    assert not loser.is_closed
    assert not loser.frames
    assert outcome(create(loser, 1, EXCLUSIVE, topic_epoch=0)) == "fenced"


def test_a_producer_name_can_be_used_once(harness):
    first, second = harness.peer(), harness.peer()
    create(first, 1, SHARED, producer_name="n", user_provided_producer_name=True)
    assert outcome(create(second, 1, SHARED, producer_name="n", user_provided_producer_name=True)) == "busy"
    first.disconnect()
    assert outcome(create(second, 1, SHARED, producer_name="n", user_provided_producer_name=True)) == "in"


def test_a_reconnected_handle_takes_its_generated_name_over(harness):
    first, second = harness.peer(), harness.peer()
    name = create(first, 1, SHARED).command.producer_success.producer_name
    fields: dict[str, Any] = {"producer_name": name, "user_provided_producer_name": False}
    assert outcome(create(second, 1, SHARED, **fields, epoch=0)) == "busy"
    assert outcome(create(second, 1, SHARED, **fields, epoch=1)) == "in"
    first.disconnect()
    second.send(0)
    assert len(second.receipts()) == 1


def test_an_owner_is_refused_if_its_epoch_cannot_be_stored(harness, monkeypatch):
    peer = harness.peer()
    create(peer, 1, SHARED)
    peer.request("close_producer", producer_id=1)
    harness.store.close()
    assert create(peer, 2, EXCLUSIVE).command.error.error == pb.PersistenceError
