"""Handles that are being created: what may happen before they are open."""

import pytest

from geminga.broker.commands.handles import Handles
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, SUBSCRIBE, TOPIC, Command


def test_only_the_same_handle_is_dropped(harness):
    handles: Handles[object] = Handles(harness.broker.backpressure)
    mine, other = object(), object()
    handles.begin(1, 0)
    handles.opened(1, mine)
    assert not handles.drop(1, other)
    assert handles.drop(1, mine)
    assert not handles.drop(1, mine)
    attempt = handles.begin(2, 0)
    attempt.entered = mine
    assert not handles.drop(2, mine)
    attempt.is_waiting = True
    assert not handles.drop(2, other)
    assert handles.drop(2, mine)
    assert handles.count == 0


def test_a_closed_attempt_does_not_answer_a_new_one_with_the_same_producer_id(harness):
    """PRODUCER, CLOSE_PRODUCER, PRODUCER with one id, while the name's holder is being probed."""
    holder, peer = harness.peer(), harness.peer()
    holder.producer(TOPIC, producer_name="p", user_provided_producer_name=True)
    holder.answers_pings = False
    fields = {"topic": TOPIC, "producer_id": 7, "producer_name": "p", "user_provided_producer_name": True}
    peer.command("producer", request_id=1, **fields)
    peer.command("close_producer", producer_id=7, request_id=2)
    peer.command("producer", request_id=3, **fields)
    harness.advance(6)
    answers = [(f.type, f.command.producer_success.request_id) for f in peer.take(Command.PRODUCER_SUCCESS)]
    assert answers == [(Command.PRODUCER_SUCCESS, 3)]


@pytest.mark.parametrize("mode", ["Exclusive", "ExclusiveWithFencing"])
def test_a_producer_whose_topic_is_deleted_while_it_is_created_may_not_publish(harness, mode):
    peer = harness.peer()
    harness.auto_poll = False
    fields = {"producer_id": 1, "producer_access_mode": pb.ProducerAccessMode.Value(mode)}
    peer.command("producer", topic=TOPIC, request_id=1, **fields)
    harness.actions.delete(NAME, True, lambda error: None)
    harness.poll()
    assert peer.pop().command.error.error == pb.ServiceNotReady
    assert 1 not in peer.session.producers


def test_a_consumer_created_during_a_reset_is_notified(harness):
    peer = harness.peer()
    harness.auto_poll = False
    peer.command("subscribe", **SUBSCRIBE, request_id=1)
    harness.actions.cursors.reset(NAME, "s", lambda error: None, timestamp_ms=0)
    harness.poll()
    assert peer.pop().command.error.error == pb.ServiceNotReady
    harness.auto_poll = True
    peer.subscribe(TOPIC)
    harness.peer().producer(TOPIC)
