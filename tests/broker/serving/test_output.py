"""Log lines of the broker as an operator and a log collector read them."""

import errno
import fcntl
import json
import logging
import os
import select
from unittest.mock import Mock

import pytest

from geminga.broker.runtime.rate_limited_logger import AuditedRequest
from geminga.broker.serving.output import JsonFormatter, LogOutput, log_to
from geminga.broker.settings import ProcessSettings
from geminga.ids import TopicName


def record(text: str, *values: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("geminga.broker", level, "", 0, text, values, None)


def test_json_lines_have_time_level_logger_and_the_names_of_what_they_are_about(harness):
    peer = harness.consumer("persistent://public/default/t", "s")
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


def test_a_json_line_of_an_exception_is_one_line():
    try:
        raise ValueError("x\ny")
    except ValueError as error:
        line = record("failed")
        line.exc_info = (type(error), error, error.__traceback__)
    text = JsonFormatter().format(line)
    assert "\n" not in text
    assert "ValueError: x\ny" in json.loads(text)["exception"]


def test_a_line_that_cannot_be_formatted_is_named(capfd):
    import sys

    output = LogOutput(sys.__stderr__)
    output.setFormatter(logging.Formatter())
    output.handle(record("%d", "x"))
    assert capfd.readouterr().err == "a log line of geminga.broker cannot be formatted: TypeError\n"


def test_a_line_that_was_half_written_does_not_spoil_the_next_one():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb") as pipe, open(writing, "w") as full:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4 * select.PIPE_BUF)
        output = LogOutput(full)
        output.setFormatter(JsonFormatter())
        output.handle(record("x" * 8 * select.PIPE_BUF))
        assert len(os.read(reading, 1 << 20)) == 4 * select.PIPE_BUF
        output.handle(record("next"))
        full.close()
        found = pipe.read().split(b"\n")
    assert found[0] == b""
    assert [json.loads(line)["message"] for line in found[1:-1]] == [
        "1 lines are missing here: the pipe or the disk was full",
        "next",
    ]


def test_lines_that_a_full_disk_lost_are_counted(monkeypatch, tmp_path):
    with open(tmp_path / "log", "w") as log:
        output = LogOutput(log)
        with monkeypatch.context() as full:
            full.setattr(os, "write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
            output.handle(record("lost"))
        output.handle(record("kept"))
    expected = "1 lines are missing here: the pipe or the disk was full\nkept\n"
    assert (tmp_path / "log").read_text() == expected


@pytest.mark.parametrize(
    ("form", "journal", "expected"),
    [
        ("text", "", " WARNING geminga.broker: full"),
        ("text", "8:1", "<4>WARNING geminga.broker: full"),
        ("json", "8:1", '"message": "full"'),
    ],
)
def test_the_form_of_a_line(form, journal, expected, monkeypatch):
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    if journal:
        monkeypatch.setenv("JOURNAL_STREAM", journal)
    output = LogOutput(None)
    log_to(output, ProcessSettings(log_format=form))
    assert expected in output.format(record("full", level=logging.WARNING))


def test_an_audited_request_cannot_forge_lines():
    text = str(AuditedRequest("joe\n2026 INFO forged", "-", "subscribe", "x\ny", "ok"))
    assert "\n" not in text


def test_role_of_a_connection_is_in_its_lines(make_harness):
    harness = make_harness(token_secret_key="data:," + "k" * 32, anonymous_role="guest", authorization=False)
    assert json.loads(JsonFormatter().format(record("%r", harness.peer().session)))["role"] == "guest"
