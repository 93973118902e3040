"""The log of lost connections: lines for each connection, not for each handle."""

import logging

import pytest

import geminga
from geminga.client.observe.outages import MANY_FAILURES, OutageLog
from geminga.errors import ConnectError, TopicNotFound
from tests.client.cutting import CuttingProxy

PEER = "pulsar://a:6650"
REFUSED = ConnectError("pulsar://a:6650 refused the connection")


class Log:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "geminga")
        self.seconds = 0.0
        self.outages = OutageLog(lambda: self.seconds)
        self._caplog = caplog

    def lines(self) -> list[str]:
        found = [f"{each.levelname} {each.getMessage()}" for each in self._caplog.records]
        self._caplog.clear()
        return found


@pytest.fixture
def log(caplog):
    return Log(caplog)


def test_an_outage_is_one_line_and_its_end_another(log):
    for handle in range(21):
        log.outages.lost(handle, PEER)
    for _ in range(8):
        for handle in range(21):
            log.outages.failed(handle, f"t{handle}", REFUSED, reached=False)
    assert log.lines() == [f"WARNING the connection to {PEER} was lost, and is retried: {REFUSED}"]
    log.seconds = 12.34
    for handle in range(20):
        log.outages.ended(handle, f"t{handle}", PEER)
    assert log.lines() == []
    log.outages.ended(20, "t20", PEER)
    assert log.lines() == [f"WARNING reconnected to {PEER} after 12.3 s: 21 producers and consumers"]
    log.outages.lost(0, PEER)
    log.outages.failed(0, "t0", REFUSED, reached=False)
    assert len(log.lines()) == 1, "the next outage has a line again"


def test_a_connection_that_comes_back_at_once_is_one_line(log):
    for handle in range(3):
        log.outages.lost(handle, PEER)
    for handle in range(3):
        log.outages.ended(handle, f"t{handle}", PEER)
    assert log.lines() == [f"INFO reconnected to {PEER} after 0.0 s: 3 producers and consumers"]


def test_a_handle_that_the_broker_moves_has_no_line(log):
    log.outages.ended(0, "t", PEER)
    assert log.lines() == []


def test_a_refusal_of_one_handle_has_its_own_lines(log):
    log.outages.lost(0, PEER)
    log.outages.lost(1, PEER)
    missing = TopicNotFound("no topic t0")
    for _ in range(MANY_FAILURES + 1):
        log.outages.failed(0, "t0", missing, reached=True)
    assert log.lines() == ["WARNING reconnecting t0 failed, and is retried: no topic t0"] * 2
    log.outages.failed(0, "t0", TopicNotFound("another reason"), reached=True)
    log.outages.ended(1, "t1", PEER)
    log.outages.ended(0, "t0", PEER)
    assert [line.split(" ", 3)[1] for line in log.lines()] == ["reconnecting", "reconnected", "reconnected"]


def test_a_closed_handle_is_not_waited_for(log):
    log.outages.lost(0, PEER)
    log.outages.lost(1, PEER)
    log.outages.forget(1)
    log.outages.ended(0, "t0", PEER)
    assert log.lines() == [f"INFO reconnected to {PEER} after 0.0 s: 2 producers and consumers"]


def test_a_cut_connection_of_many_handles_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "geminga")
    with (
        geminga.embedded() as broker,
        CuttingProxy(broker.settings.port, lambda: (None, None)) as proxy,
        geminga.Client(proxy.url) as client,
    ):
        producers = [client.create_producer(f"t{number}") for number in range(5)]
        proxy.cut_all()
        for producer in producers:
            producer.send(b"x")
    lines = [each.getMessage() for each in caplog.records if "reconnect" in each.getMessage()]
    assert len(lines) == 1
    assert "5 producers and consumers" in lines[0]
