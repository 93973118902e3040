"""Tools for assistants: commands of the command line by the Model Context Protocol."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner

import geminga
from geminga.cli.mcp import CHANGING, READING, Finished, ToolServer, command, command_tools, run_command

mcp = pytest.importorskip("mcp")

ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])


@pytest.fixture(scope="module")
def url():
    with geminga.embedded() as broker, broker.client() as client:
        client.subscribe("orders", "bill", initial_position=geminga.InitialPosition.Earliest).close()
        producer = client.create_producer("orders")
        for value in (b"one", b"two", b"three"):
            producer.send(value)
        yield broker.service_url


def talk(
    server: Any, work: Callable[[Any], Awaitable[None]], answer: str | None = None, mode: str = "auto"
) -> list[str]:
    """Run ``work`` with a client of the server; return the questions that the client was asked."""
    import mcp_types as types

    questions: list[str] = []

    async def elicit(context: Any, params: Any) -> Any:
        questions.append(params.message)
        return types.ElicitResult(action=answer, content={} if answer == "accept" else None)

    async def run() -> None:
        callback = None if answer is None else elicit
        async with mcp.Client(server, elicitation_callback=callback, mode=mode) as client:
            await work(client)

    asyncio.run(run())
    return questions


def tools(url: str, *more: str, allow_changes: bool = False) -> Any:
    return ToolServer(allow_changes, [f"--url={url}", *more], {}).server()


async def called(client: Any, name: str, **arguments: Any) -> tuple[bool, str]:
    found = await client.call_tool(name, arguments)
    return not found.is_error, "".join(each.text for each in found.content)


def test_tools_only_read_unless_changes_are_allowed():
    assert [each.words for each in command_tools(False).values()] == [tuple(line.split()) for line in READING]
    assert len(command_tools(True)) == len(READING) + len(CHANGING)
    assert all(each.text for each in command_tools(True).values())
    consume = command_tools(False)["consume"].schema()["properties"]
    assert "count" in consume
    assert "subscription" not in consume, "with a subscription it would acknowledge"


def test_arguments_become_options_and_words_of_the_command():
    peek = command_tools(False)["peek"]
    line = peek.arguments({"topic": "--json", "subscription": "-s", "count": 3, "properties": ["a=b", "c=d"]})
    assert line[0] == "peek"
    assert line[line.index("--") :] == ["--", "--json", "-s"]
    assert {"--count=3", "--property=a=b", "--property=c=d"} <= set(line)
    with pytest.raises(ValueError, match="yes is not an argument of topics_delete"):
        command_tools(True)["topics_delete"].arguments({"topic": "t", "yes": True})
    with pytest.raises(ValueError, match="force 'false' is not true or false"):
        command_tools(True)["topics_delete"].arguments({"topic": "t", "force": "false"})
    consume = command_tools(False)["consume"].arguments({"topic": "t", "count": None})
    assert "--count=100" in consume, "without a count it would read the whole topic"


def test_an_assistant_reads_topics_messages_and_explanations(url):
    async def work(client: Any) -> None:
        offered = {each.name: each for each in (await client.list_tools()).tools}
        assert offered["explain"].annotations.read_only_hint
        assert "topics_delete" not in offered
        assert "persistent://public/default/orders" in (await called(client, "topics_list"))[1]
        assert "no consumer is connected" in (await called(client, "explain", topic="orders"))[1]
        good, peeked = await called(client, "peek", topic="orders", subscription="bill", count=2)
        assert good
        assert peeked.count("\n") == 2
        assert '"value":"one"' in peeked
        good, read = await called(client, "consume", topic="orders", count=1)
        assert good
        assert '"value":"one"' in read
        good, why = await called(client, "topics_stats", topic="ordes")
        assert not good
        assert "did you mean 'orders'?" in why
        good, why = await called(client, "topics_delete", topic="orders")
        assert (good, "--allow-changes" in why) == (False, True)

    talk(tools(url), work)


@ERAS
def test_a_question_is_put_to_the_user_and_no_means_no(url, mode):
    async def work(client: Any) -> None:
        good, why = await called(client, "subscriptions_clear", topic="orders", subscription="bill")
        assert (good, why) == (False, "the user has refused: nothing was changed")
        assert (await called(client, "peek", topic="orders", subscription="bill"))[1].count("\n") == 3

    (question,) = talk(tools(url, allow_changes=True), work, "decline", mode)
    assert question.startswith("Skip the backlog of 'bill' of orders (3 messages")


def test_a_question_is_shown_as_a_whole():
    found = Finished(2, "", "Delete a\nShow it? with its messages? [y/N]: \nno answer")
    assert found.question == "Delete a\nShow it? with its messages?"


@ERAS
def test_after_a_yes_the_command_runs(url, mode):
    async def work(client: Any) -> None:
        assert (await called(client, "topics_create", topic=f"gone-{mode}"))[0]
        assert (await called(client, "topics_delete", topic=f"gone-{mode}"))[0]
        assert not (await called(client, "topics_stats", topic=f"gone-{mode}"))[0]

    (question,) = talk(tools(url, allow_changes=True), work, "accept", mode)
    assert question.startswith(f"Delete persistent://public/default/gone-{mode} with its messages")


def test_without_a_way_to_ask_nothing_is_destroyed(url):
    async def work(client: Any) -> None:
        good, why = await called(client, "topics_delete", topic="orders")
        assert not good
        shown = f"to do it: geminga topics delete --json --url={url} --auth-plugin=basic -- orders"
        assert why.endswith(shown), "without the password"
        assert (await called(client, "topics_stats", topic="orders"))[0]

    secrets = ["--auth-plugin=basic", '--auth-params={"username":"u","password":"p"}']
    talk(tools(url, *secrets, allow_changes=True), work)


def test_calls_without_a_full_answer_say_why(url):
    """Fewer messages than asked for, a partition that is missing and stays so, what no process takes."""

    async def work(client: Any) -> None:
        good, read = await called(client, "consume", topic="orders", timeout_seconds="1")
        assert good
        assert '"value":"three"' in read
        assert "3 of 100 messages came" in read
        good, why = await called(client, "consume", topic="new-partition-0")
        assert (good, "new-partition-0" in why) == (False, True)
        assert "new-partition-0" not in (await called(client, "topics_list"))[1]
        assert "no process for the command" in (await called(client, "topics_stats", topic="a\0b"))[1]
        assert "no process for the command" in (await called(client, "topics_stats", topic="a" * 200_000))[1]

    talk(tools(url), work)


def test_only_the_beginning_of_a_long_output_is_kept(monkeypatch):
    monkeypatch.setattr("geminga.cli.mcp.OUTPUT_MAX", 10)
    found = asyncio.run(run_command(["--help", "--"], [], {}))
    assert (found.status, found.output, found.left_out > 100) == (0, "Usage: gem", True)


def test_the_command_serves_on_standard_input_and_output(url):
    async def work(client: Any) -> None:
        assert "orders" in (await called(client, "topics_list"))[1]

    command = [sys.executable, "-m", "geminga.cli.main", "mcp"]
    environment = {**os.environ, "PULSAR_SERVICE_URL": url}
    server = mcp.StdioServerParameters(command=command[0], args=command[1:], env=environment)
    talk(server, work)


def test_a_token_of_the_command_line_wins_over_a_context_and_is_in_no_process_list(monkeypatch):
    made: list[tuple[list[str], Any]] = []

    def note(allow_changes: bool, connection: list[str], environment: Any) -> Any:
        made.append((connection, environment))
        raise SystemExit

    monkeypatch.setattr("geminga.cli.mcp.ToolServer", note)
    CliRunner().invoke(command, ["--context", "strong", "--token", "token:weak"])
    CliRunner().invoke(command, [], env={"PULSAR_TOKEN": "weak"})
    assert made == [
        (["--context=strong", "--token=env:GEMINGA_MCP_TOKEN"], {"GEMINGA_MCP_TOKEN": "weak"}),
        ([], {}),  # the environment is handed on anyway
    ]
