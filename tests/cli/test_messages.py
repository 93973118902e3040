"""produce, consume and topics against an embedded broker."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

import geminga
from geminga.cli.main import command
from geminga.errors import SubscriptionNotFound, TopicNotFound


@pytest.fixture
def run(broker, monkeypatch):
    monkeypatch.setenv("PULSAR_SERVICE_URL", broker.service_url)
    monkeypatch.setenv("PULSAR_ADMIN_URL", broker.admin_url)

    def invoke(*arguments: str, stdin: str | None = None, check: bool = True) -> Result:
        done = CliRunner().invoke(command, arguments, input=stdin)
        if check:
            assert done.exit_code == 0, (done.output, done.exception)
        return done

    return invoke


def _lines(done: Result) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_message_that_is_not_utf_8_is_sent_as_it_is(run):
    run("produce", "cli-bytes", os.fsdecode(b"\xff"))
    (row,) = _lines(run("consume", "cli-bytes", "-n", "1", "--json"))
    assert row["value_base64"] == "/w=="


def test_lines_of_standard_input_are_messages(run):
    (summary,) = _lines(run("produce", "cli-stdin", "--json", stdin="a\nb\nc\n"))
    assert (summary["messages"], summary["failed"]) == (3, 0)
    assert [r["value"] for r in _lines(run("consume", "cli-stdin", "-n", "3", "--json"))] == ["a", "b", "c"]


def test_what_must_not_be_done_twice_succeeds_where_its_summary_cannot_be_written(run):
    run("subscriptions", "create", "cli-full", "s")
    for arguments in (
        ("produce", "cli-full", "-m", "x"),
        ("subscriptions", "skip", "cli-full", "s", "-n1", "--yes"),
    ):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "geminga", *arguments], stdout=full, stderr=subprocess.PIPE, text=True,
                timeout=60, check=False,
            )  # fmt: skip
        assert (done.returncode, "the output cannot be written" in done.stderr) == (0, True)


def test_a_subscription_continues_after_consumed_messages(run):
    run("produce", "cli-sub", "-m", "x", "-n", "4")
    assert len(_lines(run("consume", "cli-sub", "-s", "s", "-n", "3", "--json"))) == 3
    assert len(_lines(run("consume", "cli-sub", "-s", "s", "--timeout", "1", "--json"))) == 1


def test_too_few_messages_end_in_a_timeout(run):
    run("produce", "cli-few", "-m", "x")
    done = run("consume", "cli-few", "-n", "2", "--timeout", "0.5", "--json", check=False)
    assert isinstance(done.exception, geminga.Timeout)
    assert "1 of 2" in str(done.exception)


def test_a_list_says_that_there_is_none_and_fits_80_columns(run, broker):
    run("topics", "create", "cli-wide")
    listed = run("subscriptions", "list", "cli-wide")
    assert (listed.stdout, listed.stderr) == ("", "cli-wide has no subscriptions\n")
    assert run("schemas", "versions", "cli-wide").stderr == "cli-wide has no schema\n"
    run("namespaces", "create", "public/cli-empty")
    assert run("topics", "list", "public/cli-empty").stderr == "public/cli-empty has no topics\n"
    with broker.client() as client, client.create_producer("cli-wide", block_if_queue_full=True) as producer:
        client.subscribe("cli-wide", "billing-service", geminga.ConsumerType.KeyShared, receiver_queue_size=9)
        producer.send_many([b"x" * 30] * 20_000)
        heading, line = run("subscriptions", "list", "cli-wide").stdout.splitlines()
        assert max(len(heading), len(line)) <= 80
        assert line.split()[:4] == ["billing-service", "1", "Key_Shared", "20,000"]
        (row,) = _lines(run("subscriptions", "list", "cli-wide", "--json"))
        assert (row["consumers"], row["type"]) == (1, "Key_Shared")


@pytest.mark.parametrize(
    "command_words", ["produce", "health", "pipeline compact", "tune fleet", "tune prove", "tune advise"]
)
def test_defaults_of_times_have_their_unit(run, command_words):
    text = run(*command_words.split(), "--help").stdout
    assert re.search(r"\[default:\s+\d+(ms|s|h)[;\]]", text)
    assert not re.search(r"\[default:\s+\d+\.\d+\]", text)


@pytest.mark.parametrize(
    "words",
    ["topics delete cli-kept", "subscriptions delete cli-kept s", "namespaces delete public/default --force",
     "tenants delete public --force", "subscriptions skip cli-kept s -n 1",
     "subscriptions skip cli-kept s --message 0:0", "subscriptions reset cli-kept s latest",
     "subscriptions expire cli-kept s --older-than 1h", "subscriptions expire cli-kept s --to 0:0"],
)  # fmt: skip
def test_destructive_commands_ask_for_confirmation(run, words):
    if "cli-kept" not in run("topics", "list").stdout:
        run("topics", "create", "cli-kept")
        run("subscriptions", "create", "cli-kept", "s")
    refused = run(*words.split(), check=False, stdin="n\n")
    assert refused.exit_code == 1
    assert "? [y/N]" in refused.stderr
    assert "s" in run("subscriptions", "list", "cli-kept").stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        *(
            (words, "there is no namespace public/defalt (did you mean 'public/default'?)")
            for words in ("namespaces policies public/defalt", "topics list public/defalt",
                          "topics stats public/defalt/x", "topics create public/defalt/x",
                          "produce public/defalt/x y")
        ),
        ("namespaces list publik", "there is no tenant publik (did you mean 'public'?)"),
        ("topics list publik/default", "there is no tenant publik (did you mean 'public'?)"),
        ("topics list public/zzz", "there is no namespace public/zzz"),
    ],
)  # fmt: skip
def test_a_missing_namespace_or_tenant_gets_a_suggestion(run, words, reason):
    assert str(run(*words.split(), check=False).exception) == reason


@pytest.mark.parametrize("words", ["consume", "tail", "peek {} s", "explain {} s"])
def test_reading_a_missing_topic_suggests_a_name_and_creates_nothing(run, words):
    run("produce", "cli-orders", "-m", "x")
    form = words if "{}" in words else f"{words} {{}}"
    done = run(*form.format("cli-ordesr").split(), check=False)
    assert isinstance(done.exception, TopicNotFound)
    assert "cli-ordesr" in str(done.exception)
    assert str(done.exception).endswith(" (did you mean 'cli-orders'?)")
    assert "cli-ordesr" not in run("topics", "list").stdout


def test_skip_counts_messages_and_not_batches(run, broker):
    topic = "cli-skip"
    with geminga.Client(broker.service_url) as client:
        client.subscribe(topic, "s").close()
        producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)
        for number in range(1000):
            producer.send_async(str(number).encode(), lambda result, message_id: None)
        producer.flush()
    assert "backlog 1,000 messages" in run("topics", "stats", topic).stdout
    assert "skipped 1 message\n" in run("subscriptions", "skip", "--yes", topic, "s", "-n", "1").stdout
    (skipped,) = _lines(run("subscriptions", "skip", "--yes", topic, "s", "-n", "98", "--json"))
    assert (skipped["skipped"], skipped["unit"]) == (98, "messages")
    assert "backlog 901 messages" in run("topics", "stats", topic).stdout
    rows = _lines(run("consume", topic, "-s", "s", "-n", "901", "--json"))
    assert [row["value"] for row in rows] == [str(number) for number in range(99, 1000)]


def test_a_stuck_consumer_is_explained_and_its_messages_redelivered(run, broker):
    topic = "persistent://public/default/cli-explain"
    with geminga.Client(broker.service_url) as client:
        consumer = client.subscribe(topic, "s", consumer_type=geminga.ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(5):
            producer.send(str(number).encode())
        messages = [consumer.receive(timeout_millis=30_000) for _ in range(5)]
        for message in messages[1:]:
            consumer.acknowledge(message)
        oldest = messages[0].message_id()
        place = f"{oldest.ledger_id()}:{oldest.entry_id()}"
        deadline = time.monotonic() + 60
        while "- hole" not in (screen := run("explain", topic, "s").stdout):
            assert time.monotonic() < deadline, "the client has gathered its acknowledgements for long enough"
        assert f"- hole: message {place} is not acknowledged although 4 later ones are" in screen
        assert f"geminga subscriptions skip {topic} s --message {place}" in screen
        assert "redelivered after 60 s" in run("subscriptions", "redeliver-unacked", topic, "s", "60").stdout
        (found,) = _lines(run("explain", topic, "s", "--json"))
        assert found["facts"]["redeliverUnackedAfterSeconds"] == 60
        (finding,) = found["findings"]
        assert finding["kind"] == "hole"
        assert all(f" --url {broker.service_url}" in each["command"] for each in finding["advice"])
        assert finding["mend"].count("geminga ") == finding["mend"].count(" --url ") > 0
        run("subscriptions", "skip", "--yes", topic, "s", "--message", place)
        assert "everything is acknowledged" in run("explain", topic, "s").stdout
        assert run("subscriptions", "skip", "--yes", topic, "s", "--message", "77:0", check=False).exit_code
        assert (
            run("subscriptions", "skip", "--yes", topic, "s", "--message", "77", check=False).exit_code == 2
        )
        assert run("subscriptions", "skip", "--yes", topic, "s", check=False).exit_code == 2


def test_explain_covers_every_partition(run):
    run("topics", "create", "cli-explain-parts", "--partitions", "6")
    assert isinstance(run("explain", "cli-explain-parts", "s", check=False).exception, SubscriptionNotFound)
    run("consume", "cli-explain-parts", "-s", "s", "--timeout", "0.2", "-n", "1", check=False)
    assert len(_lines(run("explain", "cli-explain-parts", "s", "--json"))) == 6


def test_policies_of_a_topic_are_set_and_removed(run):
    run("topics", "create", "cli-policy")
    assert run("topics", "policy", "cli-policy", "messageTTL").stdout == "null\n"
    assert run(
        "topics", "policy", "cli-policy", "retention", '{"retentionTimeInMinutes": 5, "retentionSizeInMB": 1}'
    )
    (found,) = _lines(run("topics", "policy", "cli-policy", "retention", "--json"))
    assert found["value"]["retentionTimeInMinutes"] == 5
    assert run("topics", "policy", "cli-policy", "retention", "--remove").stdout == "null\n"
    assert run("topics", "policy", "cli-policy", "retention", "{", check=False).exit_code == 2
    assert run("topics", "policy", "cli-policy", "retention", "1", "--remove", check=False).exit_code == 2
    assert run("topics", "policy", "cli-policy", "messageTTL", "60").stdout == "60\n"
    assert "unloaded" in run("topics", "unload", "cli-policy").stdout


def test_words_after_the_topic_are_messages(run):
    run("produce", "cli-words", "hello", "-m", "first", "world")
    rows = _lines(run("consume", "cli-words", "-n", "3", "--json"))
    assert [row["value"] for row in rows] == ["first", "hello", "world"]


def test_consumed_json_is_produced_again_with_keys_and_properties(run, broker):
    with broker.client() as client, client.create_producer("cli-from") as producer:
        producer.send(b"one", partition_key="k", properties={"a": "b"}, event_timestamp=5)
        producer.send(b"\xff")
    lines = run("consume", "cli-from", "-n", "2", "--json").stdout
    run("produce", "cli-to", "--from-json", stdin=lines)
    rows = sorted(_lines(run("consume", "cli-to", "-n", "2", "--json")), key=lambda row: "value" not in row)
    assert (rows[0]["value"], rows[0]["key"], rows[0]["properties"]) == ("one", "k", {"a": "b"})
    assert (rows[0]["event_time"], rows[1]["value_base64"]) == (5, "/w==")
    assert run("consume", "cli-to", "-n", "2").stdout.rstrip().splitlines()[-1].endswith("base64:/w==")


@pytest.mark.parametrize(
    ("options", "line", "text"),
    [(["--key-separator", ":"], "k1:v1\nk2", "line 2: no ':' after the key"),
     (["--from-json"], '{"value": "x"}\n{"x": 1}', 'line 2: no JSON object with "value"'),
     (["--from-json"], '{"value": "x"}\n{"value_base64": "!!"}', "line 2: Only base64 data is allowed"),
     (["--from-json"], '{"value": "x"}\n' + "[" * 100_000, "line 2: maximum recursion depth exceeded")],
)  # fmt: skip
def test_a_line_of_the_wrong_form_is_named(run, options, line, text):
    done = run("produce", "cli-wrong", *options, stdin=line, check=False)
    assert (done.exit_code, text in done.stderr) == (1, True)
    assert done.stdout.startswith("1 message to cli-wrong")


def test_an_interrupted_produce_reports_what_is_stored(broker):
    with broker.client() as client:
        consumer = client.subscribe("cli-interrupted", "s")
        command = ["produce", "cli-interrupted", "--url", broker.service_url]
        running = subprocess.Popen(
            [sys.executable, "-m", "geminga", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            running.stdin.write("a\nb\n")
            running.stdin.flush()
            assert [consumer.receive(60_000).data() for _ in range(2)] == [b"a", b"b"]
            running.send_signal(signal.SIGINT)
            assert running.stdout.read().startswith("2 messages to cli-interrupted in ")
            assert running.wait(60) == 130
        finally:
            running.kill()
            for each in (running.stdin, running.stdout, running.stderr):
                each.close()


def test_values_are_encoded_and_decoded_by_the_topics_schema(run, broker, tmp_path):
    definition = tmp_path / "job.avsc"
    fields = [{"name": "number", "type": "long"}]
    definition.write_text(json.dumps({"type": "record", "name": "Job", "fields": fields}))
    run("schemas", "upload", "cli-schema", "--file", str(definition), "--type", "avro")
    run("subscriptions", "create", "cli-schema", "s", "--from", "earliest")
    run("produce", "cli-schema", "--schema", stdin='{"number": 7}\n')
    for words in ("consume cli-schema -n 1", "peek cli-schema s", "tail cli-schema --since 1h -n 1"):
        assert run(*words.split(), "--decode").stdout.endswith('  {"number":7}\n')
        assert _lines(run(*words.split(), "--decode", "--json"))[0]["value"] == {"number": 7}
    wrong = run("produce", "cli-schema", "--schema", stdin='{"number": "x"}\n', check=False)
    assert wrong.exit_code == 1
    assert 'line 1: Job.number="x" is not allowed; allowed: long' in wrong.stderr
    none = run("produce", "cli-plain", "--schema", stdin="1\n", check=False)
    assert "cli-plain has no schema; register one: geminga schemas upload" in none.stderr
    run("schemas", "delete", "cli-schema", "--yes")
    gone = run("schemas", "delete", "cli-schema", "--yes", check=False)
    assert (gone.exit_code, "cli-schema has no schema" in str(gone.exception)) == (1, True)


def test_schemas_of_a_missing_topic_name_the_nearest_topic(run):
    run("topics", "create", "cli-near", "-p", "2")
    assert str(run("schemas", "get", "cli-near", check=False).exception) == "cli-near has no schema"
    for words in (("get",), ("get", "--version", "1"), ("versions",), ("delete", "--yes")):
        done = run("schemas", *words, "cli-nearr", check=False)
        wanted = "there is no topic public/default/cli-nearr (did you mean 'cli-near'?)"
        assert (done.exit_code, str(done.exception)) == (1, wanted)


def test_peek_and_consume_choose_by_position_key_and_text(run):
    run("topics", "create", "cli-chosen")
    run("subscriptions", "create", "cli-chosen", "s")
    for number in range(30):
        run("produce", "cli-chosen", f"number {number}", "--key", f"k{number % 3}")
    for words in (("peek", "cli-chosen", "s"), ("consume", "cli-chosen")):
        rows = _lines(run(*words, "--key", "k2", "-n", "9", "--json"))
        assert [row["value"] for row in rows] == [f"number {number}" for number in range(2, 27, 3)]
        start = rows[4]["message_id"]
        rows = _lines(run(*words, "--from", start, "--grep", "[05]$", "-n", "3", "--json"))
        assert [row["value"] for row in rows] == ["number 15", "number 20", "number 25"]
    assert "1 message" in run("peek", "cli-chosen", "s", "--from", "1h", "-n", "1").stderr
    assert not _lines(run("peek", "cli-chosen", "s", "--key", "other", "--json"))
    assert _lines(run("consume", "cli-chosen", "--from", "1h", "-n", "1", "--json"))[0]["value"] == "number 0"
    for option, hint in (("--key", "without --subscription"), ("--from", "geminga subscriptions reset")):
        refused = run("consume", "cli-chosen", "-s", "s", option, start, check=False)
        assert (refused.exit_code, hint in refused.stderr) == (2, True)


def test_peek_prints_as_many_messages_as_it_is_asked_for(run, broker, monkeypatch):
    monkeypatch.setattr("geminga.cli.peek.LOOKED_AT_MAX", 10)
    run("topics", "create", "cli-many")
    run("subscriptions", "create", "cli-many", "s")
    run("produce", "cli-many", stdin="\n".join(map(str, range(15))) + "\n")
    rows = _lines(run("peek", "cli-many", "s", "-n", "20", "--json"))
    assert len(rows) == 15
    later = _lines(run("peek", "cli-many", "s", "-n", "20", "--json", "--from", rows[6]["message_id"]))
    assert [row["value"] for row in later] == [str(number) for number in range(6, 15)]


@pytest.mark.parametrize("endless", [("--follow",), ("--count", "0")])
def test_a_timeout_ends_an_endless_consume(run, endless):
    topic = f"cli-endless{endless[0]}"
    run("produce", topic, "one")
    rows = _lines(run("consume", topic, "--timeout", "0.1", "--json", *endless))
    assert [row["value"] for row in rows] == ["one"]


def test_minus_one_is_a_value_and_no_option(run):
    run("topics", "create", "cli-minus")
    assert run("topics", "set-retention", "cli-minus", "-1").stdout.endswith("retention forever, any size\n")


def test_explain_without_a_subscription_explains_each(run):
    run("topics", "create", "cli-all")
    assert "has no subscription" in run("explain", "cli-all").stdout
    for name in ("a", "b"):
        run("subscriptions", "create", "cli-all", name)
    assert [row["subscription"] for row in _lines(run("explain", "cli-all", "--json"))] == ["a", "b"]


def test_printed_commands_carry_the_address_and_no_token(run, broker):
    topic = "persistent://public/default/cli-pasted"
    run("topics", "create", topic)
    run("subscriptions", "create", topic, "s")
    run("produce", topic, "x")
    screen = run("explain", topic, "s", "--token", "secret").stdout
    assert f"geminga peek {topic} s --url {broker.service_url} --admin-url {broker.admin_url}\n" in screen


@pytest.mark.parametrize("words", ["peek {} bilin", "explain {} bilin", "subscriptions clear {} bilin"])
def test_a_missing_subscription_gets_a_suggestion(run, words):
    if "cli-orders-2" not in run("topics", "list").stdout:
        run("topics", "create", "cli-orders-2")
        run("subscriptions", "create", "cli-orders-2", "billing")
    done = run(*words.format("cli-orders-2").split(), check=False)
    assert str(done.exception).endswith(" (did you mean 'billing'?)")


def test_questions_count_messages(run, broker):
    with broker.client() as client:
        client.subscribe("cli-count", "s").close()
        with client.create_producer("cli-count", batching_enabled=True) as producer:
            producer.send_many([b"%d" % number for number in range(3)])
    for words in ("clear", "delete"):
        done = run("subscriptions", words, "cli-count", "s", stdin="n\n", check=False)
        assert "(3 messages, " in done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [("consume t --from-beginning", "give --from earliest"), ("consume --topic t", "name the topic without"),
     ("produce t --bootstrap-server localhost:9092", "give --url pulsar://HOST:PORT"),
     ("consume t -o start", "give --from earliest"), ("consume t --max-messages 3", "give --count")],
)  # fmt: skip
def test_options_of_other_tools_get_the_option_to_use(run, words, hint):
    done = run(*words.split(), check=False)
    assert (done.exit_code, hint in done.stderr) == (2, True)


def test_stats_and_policies_are_in_words(run):
    run("topics", "create", "cli-words-of-stats")
    run("subscriptions", "create", "cli-words-of-stats", "s")
    run("topics", "set-auto-subscription-creation", "cli-words-of-stats", "off")
    shown = run("topics", "stats", "cli-words-of-stats").stdout
    shown += run("topics", "policies", "cli-words-of-stats").stdout
    shown += run("namespaces", "policies", "public/default").stdout
    assert "s: no consumer, backlog 0 messages, 0 B" in shown
    assert "auto-subscription-creation  allow off" in shown
    for text in ("None", "UNDEFINED", "msg/s", "message_ttl"):
        assert text not in shown
