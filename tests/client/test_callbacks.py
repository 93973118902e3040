"""Callbacks that raise what is no error, or that end the client they are called by."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from scripted_broker import Type
from waiting import Blocked

import geminga
import geminga.asyncio
from geminga._util import loggers
from geminga.client.io.runtime import LoopThread
from geminga.errors import AlreadyClosed, UsageError

SECONDS = 60
KINDS = pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, ValueError]
)


class Outcomes:
    """Callbacks of ten messages, of which the third does something."""

    def __init__(self, third: Callable[[], object]) -> None:
        self.results: list[Any] = []
        self.all = threading.Event()
        self._third = third

    def __call__(self, result: Any, message_id: Any) -> None:
        self.results.append(result)
        if len(self.results) == 10:
            self.all.set()
        if len(self.results) == 3:
            self._third()

    def check(self, producer: Any) -> None:
        """Send ten messages, and check that all callbacks run."""
        for number in range(10):
            producer.send_async(b"%d" % number, self)
        self.check_all()

    def check_all(self) -> None:
        assert self.all.wait(SECONDS), self.results
        assert self.results == [geminga.Result.Ok] * 10


def raising(kind: type[BaseException]) -> Callable[[], None]:
    def third() -> None:
        raise kind("said by a callback")

    return third


@KINDS
@pytest.mark.parametrize("how", ["batches", "singles", "many"])
def test_all_callbacks_run_though_one_raises(pulsar_client, pulsar_topic, how, kind, caplog):
    producer = pulsar_client.create_producer(pulsar_topic, batching_enabled=how != "singles")
    outcomes = Outcomes(raising(kind))
    if how == "many":
        producer.send_many([b"%d" % n for n in range(10)], callback=[outcomes] * 10)
    else:
        for n in range(10):
            producer.send_async(b"%d" % n, outcomes)
    outcomes.check_all()
    assert "a send callback raised" in caplog.text
    assert "said by a callback" in caplog.text
    producer.send(b"and on")


def test_all_callbacks_run_though_a_logging_handler_raises(pulsar_client, pulsar_topic, monkeypatch):
    monkeypatch.setattr(loggers, "report", lambda: None)

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("said by a handler")

    handler = Broken()
    logging.getLogger("geminga.producer").addHandler(handler)
    try:
        producer = pulsar_client.create_producer(pulsar_topic, batching_enabled=True)
        Outcomes(raising(ValueError)).check(producer)
    finally:
        logging.getLogger("geminga.producer").removeHandler(handler)


@pytest.mark.parametrize("batching", [True, False])
def test_all_callbacks_run_though_one_takes_other_arguments(pulsar_client, pulsar_topic, batching, caplog):
    producer = pulsar_client.create_producer(pulsar_topic, batching_enabled=batching)
    outcomes = Outcomes(lambda: None)
    for n in range(11):
        producer.send_async(b"%d" % n, asyncio.Future if n == 4 else outcomes)
    outcomes.check_all()
    producer.flush()
    assert "a send callback raised" in caplog.text


def test_one_callback_of_many_may_ask_for_the_end_of_its_thread(pulsar_client, pulsar_topic, caplog):
    producer = pulsar_client.create_producer(pulsar_topic)
    producer.send_many([b"1", b"2"], callback=lambda sent: raising(SystemExit)())
    producer.send(b"and on")
    assert "said by a callback" in caplog.text


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_callback_may_end_an_asyncio_program_after_all_callbacks(pulsar_broker, pulsar_topic, kind):
    outcomes = Outcomes(raising(kind))

    async def main() -> None:
        client = geminga.asyncio.Client(pulsar_broker.service_url)
        producer = await client.create_producer(pulsar_topic, batching_enabled=True)
        for n in range(10):
            producer.send_async(b"%d" % n, outcomes)
        await asyncio.wait_for(asyncio.Event().wait(), SECONDS)

    with pytest.raises(kind, match="said by a callback"):
        asyncio.run(main())
    outcomes.check_all()


@KINDS
def test_failed_sends_are_reported_to_all_callbacks(broker, kind):
    """At the end of the client, on its thread, when its loop has ended."""
    broker.answers.pop(Type.SEND)
    client = geminga.Client(broker.url)
    producer = client.create_producer("t")
    told: list[Any] = []

    def callback(result: Any, message_id: Any) -> None:
        told.append(result)
        raise kind("said by a callback")

    for n in range(10):
        producer.send_async(b"%d" % n, callback)
    client.shutdown()
    assert told == [geminga.Result.AlreadyClosed] * 10


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_refusals_on_the_callers_thread_are_reported_to_all(broker, kind):
    """The closed client has no thread: send_many raises the exception after it has called all callbacks."""
    client = geminga.Client(broker.url)
    producer = client.create_producer("t")
    client.close()
    told: list[Any] = []

    def callback(result: Any, message_id: Any) -> None:
        told.append(result)
        raise kind("said by a callback")

    with pytest.raises(kind, match="said by a callback"):
        producer.send_many([b"%d" % n for n in range(10)], [callback] * 10)
    assert told == [geminga.Result.AlreadyClosed] * 10


def test_a_callback_cannot_close_its_client(pulsar_broker, pulsar_topic):
    """The close would wait for its own callback: it is refused, and the client stays open."""
    raised: list[BaseException] = []

    def third() -> None:
        try:
            client.close()
        except UsageError as error:
            raised.append(error)

    client = geminga.Client(pulsar_broker.service_url)
    producer = client.create_producer(pulsar_topic, batching_enabled=True)
    Outcomes(third).check(producer)
    assert len(raised) == 1
    assert producer.send(b"and on") is not None
    client.close()


def test_a_callback_may_shut_its_client_down(pulsar_broker, pulsar_topic):
    """Waiters on other threads get the error."""
    client = geminga.Client(pulsar_broker.service_url)
    producer = client.create_producer(pulsar_topic)
    consumer = client.subscribe(pulsar_topic + "-other", "s")
    receiving = Blocked(consumer.receive)
    producer.send_async(b"x", lambda result, message_id: client.shutdown())
    assert isinstance(receiving.ended(), AlreadyClosed)
    client.runtime.thread.join(SECONDS)
    assert not client.runtime.thread.is_alive()


def test_the_client_of_another_callback_can_be_closed(pulsar_broker, pulsar_topic):
    other = geminga.Client(pulsar_broker.service_url)
    other.create_producer(pulsar_topic).send(b"x")
    with geminga.Client(pulsar_broker.service_url) as client:
        Outcomes(other.close).check(client.create_producer(pulsar_topic))
    assert other.runtime.closed


@KINDS
def test_an_io_thread_survives_exceptions_of_its_callbacks(kind, caplog):
    """Uncaught exceptions, as a logging handler or a metrics exporter may raise."""
    runtime = LoopThread("outlives")

    async def answer() -> str:
        return "still here"

    with caplog.at_level(logging.CRITICAL):  # asyncio logs what it catches itself
        for _ in range(3):
            runtime.post(raising(kind))
            assert runtime.call(answer(), SECONDS) == "still here"
    runtime.close()
    assert not runtime.thread.is_alive()
