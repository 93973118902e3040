"""stats_interval_in_seconds: what producers and consumers say in the log."""

import asyncio
import logging
import re
from typing import Any

import pytest

import geminga
from geminga.client.observe.statistics_log import HandleCounts, StatisticsLog


class Handle:
    def __init__(self) -> None:
        self.sent = 0

    def counts(self) -> HandleCounts:
        return HandleCounts("handle", {"sent": self.sent}, {"pending": 2.5})


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Others of the process may have something to say."""
    return [record.message for record in caplog.records if record.name == "geminga.statistics"]


async def test_each_line_counts_since_the_line_before(caplog):
    with caplog.at_level(logging.INFO, "geminga.statistics"):
        busy, silent = Handle(), object()
        log = StatisticsLog(asyncio.get_running_loop(), 0.01, lambda: [busy, silent])
        log.start()
        log.start()
        for sent in (3, 3, 10):
            busy.sent = sent
            lines = len(said(caplog))
            for _ in range(3 if sent == 3 and lines else 100):
                if len(said(caplog)) > lines:
                    break
                await asyncio.sleep(0.01)
        log.stop()
    assert said(caplog) == ["handle in 0.01 s: sent=3, pending=2.5", "handle in 0.01 s: sent=7, pending=2.5"]


def test_never_with_an_interval_of_zero():
    loop: Any = object()  # has no timers
    log = StatisticsLog(loop, 0, list)
    log.start()
    log.stop()


def test_producers_consumers_and_readers(pulsar_broker, pulsar_topic, caplog):
    with (
        caplog.at_level(logging.INFO, "geminga.statistics"),
        geminga.Client(pulsar_broker.service_url, stats_interval_in_seconds=3600) as client,
    ):
        consumer = client.subscribe(pulsar_topic, "s")
        reader = client.create_reader(pulsar_topic, geminga.MessageId.earliest)
        producer = client.create_producer(pulsar_topic)
        for _ in range(3):
            producer.send(b"12345")
        for _ in range(3):
            consumer.acknowledge(consumer.receive(30_000))
            reader.read_next(30_000)

        async def tell() -> None:
            client.context._statistics._log()

        client.runtime.call(tell())  # not waiting for the hour to pass
    lines = "\n".join(said(caplog))
    assert re.search(r"producer 'persistent://[^']*' '.*sent_messages=3, .*acknowledged_messages=3", lines)
    assert re.search(r"consumer 's' of .*received_messages=3, received_bytes=15", lines)
    assert lines.count("received_messages=3") == 2  # the reader too
