"""The table of ``geminga top`` on terminals of different sizes."""

import os
import shutil
from typing import Any

import click
import pytest
from click.testing import CliRunner

import geminga
from geminga.cli import top
from geminga.cli.main import command
from geminga.cli.tables import fitted


def rows(number: int) -> list[dict[str, Any]]:
    fields = dict.fromkeys(
        (
            "rate_in",
            "bytes_in",
            "rate_out",
            "unacknowledged",
            "stored",
            "producers",
            "subscriptions",
            "consumers",
        ),
        123456,
    )
    return [
        {"topic": f"persistent://shop/{'long-' * 12}web/orders-{at}", "backlog": at, **fields}
        for at in range(number)
    ]


@pytest.mark.parametrize("width", [40, 80, 100, 300])
def test_the_table_fits_the_width_and_keeps_the_end_of_names(width):
    lines = [click.unstyle(line) for line in fitted(rows(3), top.TOPICS, width)]
    assert max(map(len, lines)) <= width
    assert "orders-2" in lines[3]
    assert ("…" in lines[3]) == (width < 300)
    assert ("CONSUMERS" in lines[0]) == (width == 300)
    assert lines[0].startswith("TOPIC")


def test_the_screen_has_a_header_and_fits_the_height(capsys, monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((80, 24)))
    top.show(rows(100), top.TOPICS, "100 topics in shop/web", live=True)
    shown = [click.unstyle(line) for line in capsys.readouterr().out.splitlines()]
    assert len(shown) < 24
    assert max(len(line) for line in shown[1:]) <= 80
    assert shown[1].startswith("TOPIC")
    assert shown[-1] == "... 80 more"
    command = f"geminga top --all --url pulsar://{'host.' * 20}internal:6650"
    top.show(rows(100), top.TOPICS, command, live=True)  # wraps, and can be pasted
    shown = capsys.readouterr().out.splitlines()
    assert command in shown[0]
    assert len(shown) + 1 < 24


def test_idle_topics_are_hidden_and_other_namespaces_counted(monkeypatch):
    with geminga.embedded() as broker:
        monkeypatch.setenv("PULSAR_SERVICE_URL", broker.service_url)

        def run(*words: str) -> str:
            done = CliRunner().invoke(command, words)
            assert done.exit_code == 0, done.output
            return done.stdout

        run("namespaces", "create", "public/shop")
        run("topics", "create", "public/shop/idle")
        run("topics", "create", "public/shop/busy")
        run("subscriptions", "create", "public/shop/busy", "s")
        run("produce", "public/shop/busy", "x")
        shown = run("top")
        assert "0 topics in public/default; 2 in 1 other namespace: geminga top --all --url " in shown
        shown = run("top", "public/shop")
        assert "2 topics in public/shop, 1 idle (-a shows them)\n" in shown
        assert ("busy" in shown, "idle " in shown.split("them)")[1]) == (True, False)
        assert "shop/idle" in run("top", "--all")
