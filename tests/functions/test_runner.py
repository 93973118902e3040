"""Functions between topics of an embedded broker: inputs, results, and acknowledgements."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from waiting import eventually, loop_turns, start_thread

import geminga
from geminga.errors import CorruptPayload, InvalidConfiguration
from geminga.functions import FunctionRunner, FunctionSettings, Output
from geminga.functions import runner as runner_module
from geminga.functions.effectively_once import EffectivelyOnce
from tests.functions import relayed
from tests.functions.place import ALL, BOTH


@BOTH
def test_each_message_has_its_result_and_is_acknowledged(place, guarantee):
    settings = place.settings(relayed.shout, guarantee=guarantee)
    with FunctionRunner(settings) as runner:
        place.send(*range(1000), partition_key="k")
        results = place.results(1000)
    assert [m.data().decode() for m in results] == [f"{n}!" for n in range(1000)]
    assert {m.partition_key() for m in results} == {"k"}
    assert (runner.metrics.received, runner.metrics.processed, runner.metrics.published) == (1000,) * 3
    with FunctionRunner(settings) as again:
        place.send("more")
        assert place.values(1) == ["more!"]
    assert again.metrics.received == 1  # finished messages are not redelivered


@BOTH
def test_async_callables_run_concurrently_and_keep_the_order(place, guarantee):
    with FunctionRunner(place.settings(relayed.slowly, guarantee=guarantee)):
        place.send(*range(200))
        assert place.values(200) == [str(n) for n in range(200)]


def test_without_an_order_results_are_sent_as_they_finish(place):
    with FunctionRunner(place.settings(relayed.slowly, keep_order=False)):
        place.send(*range(50))
        values = place.values(50)
    assert sorted(values, key=int) == [str(n) for n in range(50)] != values


def test_concurrent_calls_are_limited(place):
    running = most = 0

    async def counted(value: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await loop_turns(5)
        running -= 1
        return value

    with FunctionRunner(place.settings(counted, max_concurrency=7)):
        place.send(*range(100))
        place.results(100)
    assert most == 7


@BOTH
def test_a_call_may_return_several_results_or_none(place, guarantee):
    with FunctionRunner(place.settings(relayed.words, guarantee=guarantee)):
        place.send("all good things", "", "end")
        results = place.results(4)
    assert [(m.data(), m.partition_key(), m.properties()["of"]) for m in results[:2]] == [
        (b"all", "a", "all good things"), (b"good", "g", "all good things"),
    ]  # fmt: skip
    assert place.backlog(place.settings("a:b").subscription_name) == 0


def test_at_most_once_acknowledgements_are_stored_before_the_calls(place, monkeypatch):
    monkeypatch.setattr(runner_module, "_ACK_GROUPING_MS", 60_000)
    waiting: list[int] = []

    def looks(value: str) -> str:
        (subscription,) = place.admin("GET", place.topic, "stats")["subscriptions"].values()
        waiting.append(subscription["msgBacklog"])
        return value

    place.send(*range(20))
    settings = place.settings(looks, guarantee="ATMOST_ONCE")
    with FunctionRunner(settings):
        assert place.values(20) == [str(n) for n in range(20)]
    assert all(behind < 20 - n for n, behind in enumerate(waiting)), waiting


def blocking() -> tuple[threading.Event, threading.Event, Callable[[str], str]]:
    """Return a function whose calls wait for the second event, after they have set the first."""
    entered, leave = threading.Event(), threading.Event()

    def blocks(value: str) -> str:
        entered.set()
        leave.wait(60)
        threading.Event().wait(0.006)  # longer than CHUNK_SECONDS, and than results are held back
        return value

    return entered, leave, blocks


def test_at_most_once_a_stop_processes_acknowledged_messages(place):
    entered, leave, blocks = blocking()
    place.send(*range(30))
    runner = FunctionRunner(place.settings(blocks, guarantee="ATMOST_ONCE")).start()
    assert entered.wait(60)
    runner.stop()
    leave.set()
    runner.close()
    assert runner.metrics.received > 1
    assert place.values(runner.metrics.received) == [str(n) for n in range(runner.metrics.received)]


def test_none_publishes_no_result(place):
    with FunctionRunner(place.settings(relayed.odd)):
        place.send(1, 2, 3, 4, 5)
        assert place.values(3) == ["1", "3", "5"]


def test_a_result_may_choose_its_topic(place):
    def route(value: str) -> Any:
        return Output(value, topic=place.topic + ("-even" if int(value) % 2 == 0 else "-odd"))

    with FunctionRunner(place.settings(route, output=None)):
        place.send(*range(6))
        assert place.values(3, "-even") == ["0", "2", "4"]
        assert place.values(3, "-odd") == ["1", "3", "5"]


@BOTH
def test_a_pulsar_function_receives_its_context(place, guarantee, monkeypatch):
    monkeypatch.setenv("FUNCTION_TOKEN", "s3cret")
    settings = place.settings(
        "tests.functions.relayed.Everything", guarantee=guarantee, secrets={"token": "FUNCTION_TOKEN"},
        user_config={"side": place.topic + "-side"}, log_topic=place.topic + "-log", metrics_port=0,
    )  # fmt: skip
    with FunctionRunner(settings) as runner:
        place.send("x", "y", properties={"a": "b"}, partition_key="k")
        assert place.values(2) == [f"{settings.name}:x", f"{settings.name}:y"]
        side = place.results(2, "-side")
        assert place.values(2, "-log")[0].endswith("got x")
    assert [(m.data(), m.partition_key(), m.event_timestamp()) for m in side] == [
        (b"x?", "k", 17), (b"y?", "k", 17),
    ]  # fmt: skip
    assert side[0].properties() == {"from": place.topic}
    assert runner.metrics.user_exceptions == 0
    assert runner.metrics.own() == {"length": (2.0, 2.0)}
    assert 'metric="length"' in runner.metrics.exposition()


def test_state_survives_a_restart_and_counters_of_instances_add_up(place):
    seen: list[tuple[int, Any]] = []

    def count(value: str, context: Any) -> None:
        context.incr_counter("n", 2)
        if value == "clear":
            context.put_state("kept", None)
            context.del_counter("n")
        elif value != "look":
            context.put_state("kept", value)
        seen.append((context.get_counter("n"), context.get_state("kept")))

    settings = place.settings(count, output=None)
    for values in (["a", "b"], ["look"], ["clear"], ["look"]):
        before = len(seen)
        with FunctionRunner(settings):
            place.send(*values)
            wanted = before + len(values)
            eventually(lambda wanted=wanted: len(seen) == wanted)
    assert seen == [(2, b"a"), (4, b"b"), (6, b"b"), (0, None), (2, None)]
    with FunctionRunner(settings) as one, FunctionRunner(settings) as other:
        place.send(*["x"] * 20)
        eventually(lambda: len(seen) == 25)
        both = one.metrics.processed, other.metrics.processed
    with FunctionRunner(settings):
        place.send("look")
        eventually(lambda: len(seen) == 26)
    assert seen[-1][0] == 2 + 40 + 2, both


def test_a_failing_call_changes_no_state_and_publishes_nothing(place):
    tries: list[int] = []

    def fails_once(value: str, context: Any) -> str:
        context.incr_counter("n", 1)
        context.publish(place.topic + "-side", value)
        tries.append(context.get_counter("n"))
        if len(tries) == 1:
            raise ValueError("once")
        return value

    with FunctionRunner(place.settings(fails_once)):
        place.send("v")
        assert place.values(1) == ["v"]
        assert place.values(1, "-side") == ["v"]
    assert tries == [1, 1]


@BOTH
def test_messages_that_keep_failing_go_to_the_dead_letters(place, guarantee):
    settings = place.dead_lettering(relayed.fails_on_seven, guarantee=guarantee, max_message_retries=2)
    with FunctionRunner(settings) as runner:
        place.send(*range(20))
        assert sorted(place.values(19), key=int) == [str(n) for n in range(20) if n != 7]
        assert place.values(1, "-dead") == ["7"]
    assert runner.metrics.user_exceptions == 3
    assert place.backlog(settings.subscription_name) == 0


@ALL
def test_dead_letters_have_a_default_topic(place, guarantee):
    settings = place.settings(relayed.fails_on_seven, guarantee=guarantee, max_message_retries=1)
    with FunctionRunner(settings):
        place.send(7)
        assert place.values(1, f"-public-default-{settings.name}-DLQ") == ["7"]
    assert place.backlog(settings.subscription_name) == 0


@ALL
def test_failed_messages_are_retried(place, guarantee):
    relayed._seen.clear()
    with FunctionRunner(place.settings(relayed.fails_twice_on_three, guarantee=guarantee)):
        place.send(*range(10))
        values = place.values(10)
    assert sorted(values) == [str(n) for n in range(10)]
    if guarantee == "EFFECTIVELY_ONCE":
        assert values == sorted(values)  # nothing goes past what is tried again


def test_an_unavailable_broker_sends_no_message_to_the_dead_letters(place, monkeypatch):
    found, asked = EffectivelyOnce._partition, 0

    async def away(self: Any, *given: Any) -> str:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise geminga.ConnectError("away")
        return await found(self, *given)

    monkeypatch.setattr(EffectivelyOnce, "_partition", away)
    settings = place.settings(
        lambda value: Output(value, topic=place.topic + "-chosen"), max_message_retries=1,
        retry_delay_ms=10, guarantee="EFFECTIVELY_ONCE",
    )  # fmt: skip
    with FunctionRunner(settings):
        place.send("a")
        assert place.values(1, "-chosen") == ["a"]


@pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE"])
def test_a_record_that_is_too_big_fails_its_call(place, guarantee):
    def grow(value: str) -> Any:
        return Reading("x" * 6_000_000 if value == "big" else value, 1.0)

    settings = place.dead_lettering(grow, guarantee=guarantee, output_schema=Reading)
    with FunctionRunner(settings):
        place.send("a", "big", "b")
        assert [json.loads(value)["name"] for value in place.values(2)] == ["a", "b"]
        assert place.values(1, "-dead") == ["big"]


def test_serdes_decode_inputs_and_encode_results(place):
    settings = place.settings(
        "tests.functions.relayed.AddToPair", input_serde="tests.functions.relayed.PairSerDe",
        output_serde="tests.functions.relayed.PairSerDe",
    )  # fmt: skip
    with FunctionRunner(settings):
        place.send("1,2")
        assert place.values(1) == ["12,26"]


@dataclass
class Reading:
    name: str
    degrees: float


@BOTH
def test_schemas_decode_inputs_and_encode_results(place, guarantee):
    def warmer(reading: Any) -> Any:
        return Reading(reading.name, reading.degrees + 1)

    settings = place.settings(warmer, guarantee=guarantee, input_schema=Reading, output_schema=Reading)
    with FunctionRunner(settings):
        place.client.create_producer(place.topic, schema=Reading).send(Reading("a", 1.5))
        consumer = place.client.subscribe(
            place.topic + "-out", "s", schema=Reading, initial_position=geminga.InitialPosition.Earliest
        )
        assert consumer.receive(30_000).value() == Reading("a", 2.5)


def test_tables_are_processed(place):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.compute as pc

    def upper(table: Any) -> Any:
        value = pc.binary_join_element_wise(table.column("value"), pa.scalar(b"!"), pa.scalar(b""))
        return table.set_column(table.column_names.index("value"), "value", value)

    settings = place.settings(upper, arrow=True)
    with FunctionRunner(settings) as runner:
        place.send(*range(5000))
        assert place.values(5000) == [f"{n}!" for n in range(5000)]
    assert runner.metrics.processed == 5000
    assert place.backlog(settings.subscription_name) == 0


def test_stopping_acknowledges_only_messages_with_results(place):
    entered, leave, blocks = blocking()
    settings = place.settings(blocks)
    runner = FunctionRunner(settings).start()
    place.send(*range(100))
    assert entered.wait(60)
    runner.stop()
    leave.set()
    runner.close()
    done = runner.metrics.processed
    assert 0 < done < 100
    with FunctionRunner(settings):
        assert sorted(place.values(100), key=int) == [str(n) for n in range(100)]


@pytest.mark.parametrize("kind", ["plain", "async", "table"])
def test_a_call_that_does_not_end_is_abandoned_when_stopping(place, kind):
    """A stop ends in time: messages in flight are redelivered."""
    entered, leave = threading.Event(), threading.Event()

    def plain(value: str) -> None:
        entered.set()
        leave.wait(60)

    async def on_the_loop(value: str) -> None:
        entered.set()
        await asyncio.Event().wait()

    def table(rows: Any) -> None:
        plain("")

    if kind == "table":
        pytest.importorskip("pyarrow")
    function = {"plain": plain, "async": on_the_loop, "table": table}[kind]
    settings = place.settings(function, arrow=kind == "table", drain_seconds=0.1)
    runner = FunctionRunner(settings).start()
    place.send(1, 2, 3)
    assert entered.wait(60)
    runner.close()
    assert place.backlog(settings.subscription_name) == 3
    leave.set()


@pytest.mark.parametrize("function", [relayed.fails_on_seven, relayed.fails_on_seven_async])
def test_stopping_ends_the_retries_of_a_call(place, function):
    settings = place.settings(function, guarantee="EFFECTIVELY_ONCE", retry_delay_ms=10)
    with FunctionRunner(settings) as runner:
        place.send(*range(10))
        eventually(lambda: runner.metrics.user_exceptions > 2)
    assert place.values(7) == [str(n) for n in range(7)]
    assert place.backlog(settings.subscription_name) == 3


def test_a_state_topic_that_cannot_be_read_ends_the_function(place):
    def count(value: str, context: Any) -> str:
        context.incr_counter("n", 1)
        return str(context.get_counter("n"))

    settings = place.settings(count)
    runner = FunctionRunner(settings).start()
    place.send("a")
    assert place.values(1) == ["1"]
    stranger = place.client.create_producer(f"{settings.tenant}/{settings.namespace}/{settings.name}-state")
    stranger.send(b"no number", partition_key="counter/n/7")
    with pytest.raises(CorruptPayload, match="no number"):
        runner.wait(60)


def test_unformattable_log_lines_are_dropped(place, capsys):
    def says(value: str, context: Any) -> str:
        context.get_logger().error("%d things", "no number")
        return value

    settings = place.settings(says, log_topic=place.topic + "-log")
    logging.getLogger(f"geminga.function.{settings.name}").propagate = False  # pytest's handler raises
    with FunctionRunner(settings) as runner:
        place.send(1)
        assert place.values(1) == ["1"]
    assert runner.metrics.user_exceptions == 0
    assert "no number" in capsys.readouterr().err


def test_a_function_may_close_its_own_runner(place):
    """On the thread of plain callables, and on the loop: both are what the end waits for."""

    def plain(value: str) -> str:
        runner.close()
        return value + "!"

    async def on_the_loop(value: str) -> str:
        runner.close()
        return value + "!"

    for function in (plain, on_the_loop):
        runner = FunctionRunner(place.settings(function, name=function.__name__)).start()
        place.send(1)
        assert runner.wait(30)
        assert place.values(1) == ["1!"]
        place.topic += "-2"


@pytest.mark.parametrize("partitions", [1, 3])
def test_partitioned_topics_are_processed_effectively_once(place, partitions):
    for name in (place.topic, place.topic + "-out"):
        place.admin("PUT", name, "partitions", 3)
    with FunctionRunner(place.settings(relayed.shout, guarantee="EFFECTIVELY_ONCE")):
        producer = place.client.create_producer(place.topic, batching_enabled=True)
        for n in range(300):
            producer.send_async(str(n).encode(), lambda *_: None, partition_key=f"k{n % partitions}")
        producer.flush()
        assert sorted(place.values(300)) == sorted(f"{n}!" for n in range(300))


def test_moved_partitions_are_processed_effectively_once(place):
    place.admin("PUT", place.topic, "partitions", 4)
    producer = place.client.create_producer(place.topic, batching_enabled=True, block_if_queue_full=True)
    settings = place.settings(relayed.shout, guarantee="EFFECTIVELY_ONCE")
    done = threading.Event()
    sent: list[int] = []

    def produce() -> None:
        while not done.is_set():
            for _ in range(50):
                producer.send_async(b"%d" % len(sent), lambda *_: None)
                sent.append(len(sent))
            producer.flush()
            done.wait(0.01)

    thread = start_thread(produce)
    try:
        first = FunctionRunner(settings).start()
        eventually(lambda: first.metrics.processed > 500)
        second = FunctionRunner(settings).start()
        eventually(lambda: second.metrics.processed > 500)  # the first lets go of what has moved
        first.close()
        before = second.metrics.processed
        eventually(lambda: second.metrics.processed > before + 500)
    finally:
        done.set()
        thread.join()
    assert sorted(place.values(len(sent))) == sorted(f"{n}!" for n in sent)
    second.close()


def test_effectively_once_without_deduplication_is_an_error():
    with geminga.embedded() as broker, broker.client() as client:
        client.create_producer("in").send(b"1")
        runner = FunctionRunner(
            FunctionSettings(
                function=relayed.shout, inputs=("in",), output="out", guarantee="EFFECTIVELY_ONCE",
                service_url=broker.service_url,
            )
        ).start()  # fmt: skip
        producer = client.create_producer("in")

        def until_it_ends() -> None:
            while not runner.wait(0.05):
                producer.send(b"x")

        with pytest.raises(InvalidConfiguration, match="does not deduplicate"):
            until_it_ends()
        runner.close()  # stop it
