"""``make suite`` with a suite of three tests: who runs on which library, and where a test fails."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
official_suite: Any = importlib.import_module("official_suite")

SUITE = """
import unittest
import pulsar
import _pulsar
from pulsar.schema import StringSchema

class PlainTest(unittest.TestCase):
    serviceUrl = "pulsar://localhost:6650"

    def test_a_message(self):
        client = pulsar.Client(self.serviceUrl, operation_timeout_seconds=20)
        kind = _pulsar.ConsumerType.Shared
        consumer = client.subscribe("suite", "s", consumer_type=kind, schema=StringSchema())
        client.create_producer("suite", schema=StringSchema()).send("hello")
        self.assertEqual(consumer.receive(60_000).value(), "hello")
        client.close()

    def test_of_ours(self):
        self.assertEqual(pulsar.__name__, "geminga")

    def test_of_theirs(self):
        self.assertEqual(_pulsar.SchemaType.JSON, 2)
        _pulsar.ProducerConfiguration()

    @unittest.skip("for the third outcome")
    def test_nothing(self):
        pass
"""


def test_both_libraries_run_a_suite(broker, tmp_path):
    (tmp_path / "plain_test.py").write_text(SUITE)
    found = {library: official_suite.run(library, broker, tmp_path, 120) for library in ("geminga", "pulsar")}
    place = "plain_test::PlainTest::"
    assert found["geminga"] == {
        f"{place}test_a_message": "passed",
        f"{place}test_of_ours": "passed",
        f"{place}test_of_theirs": "private",
        f"{place}test_nothing": "skipped",
    }
    assert found["pulsar"] == {
        **found["geminga"], f"{place}test_of_ours": "failed", f"{place}test_of_theirs": "passed"
    }  # fmt: skip
    assert official_suite.table(found, "geminga").splitlines() == [
        "| file | tests | geminga | pulsar |",
        "|---|---|---|---|",
        "| plain_test | 2 | 2 | 1 |",
        "| all | 2 | 2 | 1 |",
        f"{place}test_of_ours: pulsar",
    ]
    assert (tmp_path / "plain_test.py").read_text() == SUITE, "a copy runs"


def test_a_folder_without_a_suite_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["official_suite.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="checkout of pulsar-client"):
        official_suite.main()


def test_the_page_names_failing_and_private_tests():
    theirs = {f"t::T::{name}": "passed" for name in ("test_a", "test_b", "test_seek_timestamp", "test_c")}
    columns = {
        official_suite.JUDGE: {**theirs, "t::T::test_tls": "failed"},
        "geminga on Geminga": {**theirs, "t::T::test_b": "private", "t::T::test_seek_timestamp": "failed"},
        "geminga on Apache Pulsar": {**theirs, "t::T::test_c": "failed"},
    }
    values = official_suite.figures(columns, "3.13")
    assert (values["tests"], list(values["passed"].values())) == (4, [4, 2, 3])
    text = official_suite.page(values)
    assert "test what is private to `pulsar-client`: `test_b`." in text
    assert "Fails: `t::T::test_seek_timestamp` (geminga on Geminga): " in text
    assert "Fails: `t::T::test_c` (geminga on Apache Pulsar)." in text
    assert "test_tls" not in text
