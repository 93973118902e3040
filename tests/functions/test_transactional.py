"""Transactional processing: results, state and acknowledgements are stored together, or not at all."""

import threading
from typing import Any

import pytest
from waiting import eventually

import geminga
from geminga.functions import FunctionRunner, Output
from geminga.functions.transactional import Transactional
from tests.functions.relayed import fails_on_seven, slowly, two_of_each

pytestmark = pytest.mark.timeout(120)


def _settings(place: Any, function: Any, **given: Any) -> Any:
    return place.settings(function, **{"guarantee": "TRANSACTIONAL", **given})


@pytest.mark.parametrize(("function", "each"), [(two_of_each, ["a", "b"]), (slowly, [""])])
def test_each_input_has_its_results_once_and_is_acknowledged(place, function, each):
    place.send(*range(250))
    with FunctionRunner(_settings(place, function, transaction_messages=100)) as runner:
        assert sorted(place.values(250 * len(each))) == sorted(f"{n}{s}" for n in range(250) for s in each)
        eventually(lambda: runner.metrics.processed == 250)
    stats = place.admin("GET", place.topic, "stats")
    assert next(iter(stats["subscriptions"].values()))["msgBacklog"] == 0


def test_a_call_that_always_fails_ends_in_the_dead_letter_topic(place):
    place.send(*range(10), batched=False)
    settings = place.dead_lettering(fails_on_seven, guarantee="TRANSACTIONAL")
    with FunctionRunner(settings):
        assert sorted(place.values(9)) == [str(n) for n in range(10) if n != 7]
        assert place.values(1, "-dead") == ["7"]


def test_results_of_several_topics_are_stored_together(place):
    def both(value: str) -> Any:
        yield Output(value, topic=place.topic + "-left", key=value)
        yield Output(value, topic=place.topic + "-right")

    place.send(*range(50))
    with FunctionRunner(_settings(place, both)):
        for suffix in ("-left", "-right"):
            assert sorted(place.values(50, suffix), key=int) == [str(n) for n in range(50)]


def test_a_result_that_no_topic_takes_fails_its_own_input_only(place):
    def too_big(value: str, context: Any) -> str:
        if value == "3":
            context.publish(place.topic + "-side", "x" * 6_000_000)
        return value

    place.send(*range(6))
    with FunctionRunner(_settings(place, too_big)) as runner:
        assert sorted(place.values(5)) == ["0", "1", "2", "4", "5"]
        eventually(lambda: runner.metrics.system_exceptions >= 2)  # it is redelivered and fails again


def test_a_transaction_is_repeated_if_its_results_may_be_stored_twice(place, monkeypatch):
    # As if the connection were lost between the first sends and their receipts.
    monkeypatch.setattr("geminga.functions.transactional.resent_operations", lambda producer: 1)
    place.send(1, 2)
    with FunctionRunner(_settings(place, lambda value: value)) as runner:
        place.client.create_producer(place.topic).send(b"3")
        assert sorted(place.values(3)) == ["1", "2", "3"]
        eventually(lambda: runner.metrics.processed == 3)
        assert runner.metrics.published > 3


def test_an_input_that_another_transaction_acknowledged_has_no_results(place, monkeypatch):
    send_all = Transactional.send_all
    taken: list[Any] = []

    async def acknowledged_meanwhile(self: Any, outcomes: Any, txn: Any, seconds: float) -> Any:
        for outcome in outcomes:
            if outcome.message.data() == b"3" and not taken:
                taken.append(outcome.message)
                other = await self._client.new_transaction()
                self._settling.consumer.acknowledge_in(other, outcome.message)
                await other.commit()
        return await send_all(self, outcomes, txn, seconds)

    monkeypatch.setattr(Transactional, "send_all", acknowledged_meanwhile)
    place.send(*range(6))
    with FunctionRunner(_settings(place, lambda value: value)):
        assert sorted(place.values(5)) == ["0", "1", "2", "4", "5"]


def test_changes_of_the_state_are_committed_with_the_results(place):
    def count(value: str, context: Any) -> str:
        context.incr_counter("all", 1)
        return value

    place.send(*range(20))
    settings = _settings(place, count)
    with FunctionRunner(settings):
        place.values(20)
    reader = place.client.create_reader(
        f"persistent://public/default/{settings.name}-state", geminga.MessageId.earliest
    )
    counts = [int(reader.read_next(10_000).data()) for _ in range(20)]
    assert counts == list(range(1, 21))


def test_a_function_whose_state_an_abort_undid_ends_and_starts_with_the_stored_state(place, monkeypatch):
    def count(value: str, context: Any) -> str:
        context.incr_counter("all", 1)
        return f"{value} {context.get_counter('all')}"

    async def abort_first(self: Any, outcomes: Any, txn: Any) -> Any:
        monkeypatch.undo()
        await txn.abort()
        return await self._commit(outcomes, txn)

    monkeypatch.setattr(Transactional, "_commit", abort_first)
    place.send("a")
    settings = _settings(place, count)
    with pytest.raises(geminga.InvalidTxnStatusError):
        FunctionRunner(settings).run(signals=False)
    with FunctionRunner(settings):
        assert place.values(1) == ["a 1"]


def test_results_do_not_wait_for_a_call_that_takes_long(place):
    entered, go = threading.Event(), threading.Event()

    def waits(value: str) -> str:
        if value == "last":
            entered.set()
            assert go.wait(60)
        return value

    place.send("first", *["x"] * 600, "last")
    settings = _settings(place, waits, transaction_messages=10_000)
    results = place.client.subscribe(settings.output, "early")
    with FunctionRunner(settings):
        assert entered.wait(60)
        assert results.receive(60_000).data() == b"first"
        go.set()


def test_a_broker_without_transactions_ends_the_function(place, monkeypatch):
    async def refuse(*arguments: Any) -> Any:
        raise geminga.errors.OperationNotSupported("the broker has no transactions")

    monkeypatch.setattr("geminga.asyncio.Client.new_transaction", refuse)
    place.send("a")
    with pytest.raises(geminga.errors.OperationNotSupported):
        FunctionRunner(_settings(place, lambda value: value)).run(signals=False)


def test_inputs_are_divided_if_their_results_take_longer_than_the_time_limit(place, monkeypatch):
    send_all = Transactional.send_all

    async def slow(self: Any, outcomes: Any, txn: Any, seconds: float) -> Any:
        if len(outcomes) > 2:
            txn.core.deadline = 0.0
        return await send_all(self, outcomes, txn, seconds)

    monkeypatch.setattr(Transactional, "send_all", slow)
    place.send(*range(10))
    with FunctionRunner(_settings(place, lambda value: value)):
        assert sorted(place.values(10)) == [str(n) for n in range(10)]


def test_results_wait_for_no_inputs_that_cannot_follow(place):
    place.send(*range(20))
    waits = {"transaction_delay_ms": 3_600_000, "retry_delay_ms": 3_600_000}
    with FunctionRunner(_settings(place, lambda value: value, max_pending=3, **waits)):
        assert len(place.values(20)) == 20
    place.send(*range(600))  # the function stops with others queued
    entered = threading.Event()

    def last(value: str) -> str:
        if value == "300":
            entered.set()
        return value

    runner = FunctionRunner(_settings(place, last, transaction_messages=10_000, **waits)).start()
    assert entered.wait(60)
    runner.stop()
    assert runner.wait(60)
