"""Log lines of the broker as an operator and a log collector read them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.rate_limited_logger import AuditedRequest
from geminga.broker.serving.output import JsonFormatter, LogOutput, log_to
from geminga.broker.settings import ProcessSettings
from geminga.ids import TopicName


def record(text: str, *values: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("geminga.broker", level, "", 0, text, values, None)


def test_json_lines_have_time_level_logger_and_the_names_of_what_they_are_about(harness: Any) -> None:
    peer = harness.peer()
    peer.subscribe("persistent://public/default/t", "s")
    topic = harness.broker.topics.in_memory(TopicName.parse("persistent://public/default/t"))
    lines = [
        record("%r: closed\n%s", peer.session, 'line "two"', level=logging.WARNING),
        record("%r and %r", topic, topic.subscriptions["s"]),
        record("%s", AuditedRequest("joe", "1.2.3.4", "DELETE", "/x", "204")),
    ]
    found = [json.loads(line) for line in map(JsonFormatter().format, lines)]
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in found)
    assert (found[0]["level"], found[0]["connection"]) == ("WARNING", "/10.0.0.1:4242")
    assert found[0]["message"].endswith('closed\nline "two"')
    assert (found[1]["topic"], found[1]["subscription"]) == ("persistent://public/default/t", "s")
    assert {"role": "joe", "method": "DELETE", "path": "/x", "status": "204"}.items() <= found[2].items()


def test_a_json_line_of_an_exception_is_one_line() -> None:
    try:
        raise ValueError("x\ny")
    except ValueError as error:
        line = record("failed")
        line.exc_info = (type(error), error, error.__traceback__)
    text = JsonFormatter().format(line)
    assert "\n" not in text
    assert "ValueError: x\ny" in json.loads(text)["exception"]


def test_a_line_that_cannot_be_formatted_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    import sys

    output = LogOutput(sys.__stderr__)
    output.setFormatter(logging.Formatter())
    output.handle(record("%d", "x"))
    assert capfd.readouterr().err == "a log line of geminga.broker cannot be formatted: TypeError\n"


@pytest.mark.parametrize(
    ("form", "journal", "expected"),
    [
        ("text", "", " WARNING geminga.broker: full"),
        ("text", "8:1", "<4>WARNING geminga.broker: full"),
        ("json", "8:1", '"message": "full"'),
    ],
)
def test_the_form_of_a_line(form: str, journal: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    if journal:
        monkeypatch.setenv("JOURNAL_STREAM", journal)
    output = LogOutput(None)
    log_to(output, ProcessSettings(log_format=form))
    assert expected in output.format(record("full", level=logging.WARNING))


def test_an_audited_request_cannot_forge_lines() -> None:
    text = str(AuditedRequest("joe\n2026 INFO forged", "-", "subscribe", "x\ny", "ok"))
    assert "\n" not in text


def test_role_of_a_connection_is_in_its_lines(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(token_secret_key="data:," + "k" * 32, anonymous_role="guest", authorization=False)
    found = json.loads(JsonFormatter().format(record("%r", harness.peer().session)))
    assert found["role"] == "guest"
