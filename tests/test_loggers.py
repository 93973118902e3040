"""A log line decides nothing: handlers, filters and record factories that raise stop no I/O."""

import contextlib
import logging
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import loop_turns

import geminga
from geminga._util import loggers
from geminga._util.event_loops import new_event_loop
from geminga.broker.admin.redacted_log import unquoted
from geminga.testing.apache_pulsar import free_ports

SOURCES = Path(geminga.__file__).parent
REPORT = loggers.report


class OutsideOfARequest(RuntimeError):
    """Error of a filter that reads the id of the current web request."""


def fail(record: logging.LogRecord) -> bool:
    raise OutsideOfARequest(record.getMessage())


@contextlib.contextmanager
def raising(way: str) -> Iterator[None]:
    """Make every log line of the process meet an error."""
    root, geminga_logger = logging.getLogger(), logging.getLogger("geminga")
    handler = logging.StreamHandler() if way == "filter" else logging.NullHandler()
    level, factory = geminga_logger.level, logging.getLogRecordFactory()
    if way == "filter":
        handler.addFilter(fail)
    elif way == "handler":
        handler.handle = fail
    else:
        logging.setLogRecordFactory(lambda *arguments, **options: fail(factory(*arguments, **options)))
    root.addHandler(handler)
    geminga_logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)
        geminga_logger.setLevel(level)
        root.removeHandler(handler)


@pytest.fixture
def reported(monkeypatch):
    """The errors that log lines met."""
    found: list[Any] = []
    monkeypatch.setattr(loggers, "report", lambda: found.append(sys.exception()))
    return found


@pytest.mark.parametrize("way", ["filter", "handler", "record factory"])
def test_client_and_broker_work_while_every_log_line_raises(tmp_path, reported, way):
    (port,) = free_ports(1)
    url, folder = f"pulsar://127.0.0.1:{port}", tmp_path / "data"
    with raising(way), contextlib.ExitStack() as stack:
        first = stack.enter_context(geminga.embedded(folder, port=port, web_port=None))
        client = stack.enter_context(geminga.Client(url, max_backoff_interval_ms=100))
        consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
        producer.send(b"before")
        consumer.acknowledge(consumer.receive(30_000))
        first.close()
        stack.enter_context(geminga.embedded(folder, port=port, web_port=None))
        producer.send(b"after")
        assert consumer.receive(30_000).data() == b"after"
        client.runtime.loop.call_soon_threadsafe(lambda: 1 / 0)
        producer.send(b"after an error of a callback")
        assert consumer.receive(30_000).data() == b"after an error of a callback"
    assert any("reconnected" in str(error) for error in reported)
    assert all(isinstance(error, OutsideOfARequest) for error in reported)


def test_a_loop_survives_what_the_handlers_of_its_log_raise(reported):
    loop = new_event_loop()
    with raising("handler"):
        loop.call_soon(lambda: 1 / 0)
        loop.run_until_complete(loop_turns())
    loop.close()
    assert any("Exception in callback" in str(error) for error in reported)


def test_the_web_port_answers_while_every_log_line_raises(reported):
    with raising("handler"), geminga.embedded() as broker:
        address = broker.admin_url.removeprefix("http://").rsplit(":", 1)
        with socket.create_connection((address[0], int(address[1])), timeout=30) as peer:
            peer.sendall(b"no HTTP at all\r\n\r\n")
            assert peer.recv(100).startswith(b"HTTP/1.0 400")
        unquoted(logging.getLogger("geminga.broker"), lambda *_: None).error("unhandled")
    assert any("unhandled" in str(error) for error in reported)


def test_an_error_is_printed_and_the_place_of_a_line_is_the_callers(capsys, caplog, monkeypatch):
    monkeypatch.setattr(loggers, "report", REPORT)
    logger = loggers.shield(logging.getLogger("geminga"))
    assert loggers.shield(logger) is logger
    logger.warning("from here")
    [record] = caplog.records
    assert (record.funcName, record.filename) == (
        "test_an_error_is_printed_and_the_place_of_a_line_is_the_callers", "test_loggers.py",
    )  # fmt: skip
    with raising("handler"):
        logger.warning("not written")
    assert "OutsideOfARequest: not written" in capsys.readouterr().err


def test_every_logger_of_the_package_is_shielded():
    for name in loggers.NAMES:
        assert "_log" in vars(logging.getLogger(name))
    shielded = re.compile(r"shield\(logging\.getLogger\([^)]*\)\)")
    for path in SOURCES.rglob("*.py"):
        module = "geminga." + ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for name in re.findall(
            r"getLogger\((__name__|f?\"[^\"]*\")\)", shielded.sub("", path.read_text(encoding="utf-8"))
        ):
            name = module if name == "__name__" else name.strip('"')
            assert name in loggers.NAMES or not name.startswith(("geminga", 'f"geminga')), (path, name)
