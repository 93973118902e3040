"""Checks of the ``geminga`` command on a cluster: ``tests/cli`` runs them against our broker,
``tests/interop`` against Apache Pulsar.

Each check takes ``run(*words, stdin=None, fails=None)``, which returns a `Done`, and a `Place`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from click.testing import CliRunner
from waiting import eventually

import geminga
from geminga.cli.main import command
from geminga.errors import PulsarException


class Place(Protocol):
    service_url: str
    admin_url: str


@dataclass
class Done:
    """Output, error and exit code of a command."""

    stdout: str
    stderr: str
    error: BaseException | None
    code: int

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]


Run = Callable[..., Done]


def runner(environment: dict[str, str]) -> Run:
    """Runs commands in this process. ``fails``: a text that the failure says."""

    def run(*words: str, stdin: str | None = None, fails: str | None = None) -> Done:
        done = CliRunner().invoke(command, words, input=stdin, env=environment, standalone_mode=False)
        failed = isinstance(done.return_value, int) and done.return_value != 0
        error = done.exception if not isinstance(done.exception, SystemExit) else None
        found = Done(done.stdout, done.stderr, error, int(failed or done.exit_code))
        said = f"{words}: {done.output} {error!r}"
        if fails is None:
            assert error is None, said
        else:
            assert isinstance(error, PulsarException) or found.code, said
            assert fails in f"{error} {getattr(error, 'message', '')} {done.output}", said
        return found

    return run


def environment_of(place: Place, folder: Path) -> dict[str, str]:
    return {
        "PULSAR_SERVICE_URL": place.service_url,
        "PULSAR_ADMIN_URL": place.admin_url,
        "GEMINGA_CONFIG_HOME": str(folder),
        "COLUMNS": "200",
    }


def fresh(name: str) -> str:
    return f"{name}-{uuid4().hex[:10]}"


def topic(name: str) -> str:
    return f"persistent://public/default/{fresh(name)}"


def settled(action: Callable[[], object]) -> bool:
    """Apache Pulsar answers 409 while it writes down an expiration or makes a topic of its own (#16669)."""
    try:
        action()
    except AssertionError as refusal:
        if "HTTP 409" not in str(refusal):
            raise
        return False
    return True


def check_tenants(run: Run, _place: Place) -> None:
    name = fresh("tenant")
    run("tenants", "create", name, "--admin-role", "boss")
    (row,) = [one for one in run("tenants", "list", "--json").rows if one["tenant"] == name]
    assert row["admin_roles"] == ["boss"]
    assert name in run("tenants", "list").stdout
    run("tenants", "update", name, "--admin-role", "other")
    run("tenants", "create", name, fails="HTTP 409")
    run("tenants", "delete", "--yes", name)
    assert name not in run("tenants", "list").stdout
    run("tenants", "delete", "--yes", name, fails=f"there is no tenant {name}")


def check_namespaces(run: Run, _place: Place) -> None:
    name = f"public/{fresh('space')}"
    run("namespaces", "create", name)
    assert {"namespace": name} in run("namespaces", "list", "public", "--json").rows
    assert name in run("namespaces", "list").stdout
    assert "forever" not in run("namespaces", "policies", name).stdout
    assert run("namespaces", "set-retention", name, "7d", "--size", "20G").stdout == (
        f"{name}: retention 7d, 20 GiB\n"
    )
    run("namespaces", "set-ttl", name, "5400")
    run("namespaces", "set-quota", name, "10G", "--policy", "producer-exception")
    run("namespaces", "set-quota", name, "--age", "1d")
    run("namespaces", "set-publish-rate", name, "--messages", "1000", "--bytes", "10M")
    run("namespaces", "set-deduplication", name, "on")
    run("namespaces", "set-max-unacked-per-consumer", name, "500")
    run("namespaces", "set-schema-compatibility", name, "backward")
    rows = {row["policy"]: row["value"] for row in run("namespaces", "policies", name, "--json").rows}
    assert rows["retention"] == {"minutes": 7 * 1440, "megabytes": 20 * 1024}
    assert rows["message_ttl"] == 5400
    assert rows["backlog_quota destination_storage"]["policy"] == "producer_exception"
    assert rows["backlog_quota message_age"]["limit_seconds"] == 86400
    assert rows["publish_rate"] == {"messages": 1000, "bytes": 10 * 1024 * 1024}
    assert (rows["deduplication"], rows["max_unacked_messages_per_consumer"]) == (True, 500)
    assert rows["schema_compatibility"] == "BACKWARD"
    shown = run("namespaces", "policies", name).stdout
    for text in ("7d, 20 GiB", "1h 30m", "1,000 messages/s, 10 MiB/s", "1d old, then producers wait"):
        assert text in shown
    run("namespaces", "unset", name, "message-ttl")
    run("namespaces", "unset", name, "backlog_quota")
    rows = {row["policy"] for row in run("namespaces", "policies", name, "--json").rows}
    assert not rows & {"message_ttl", "backlog_quota message_age", "backlog_quota destination_storage"}
    run("namespaces", "unset", name, "retenton", fails="did you mean 'retention'")
    run("namespaces", "set-retention", name, "7 parsecs", fails="is not a time such as")
    run("namespaces", "set-quota", name, fails="give either a SIZE or --age")
    run("namespaces", "policies", "public/there-is-none", fails="there is no namespace public/there-is-none")
    run("namespaces", "policies", "nonsense", fails="tenant/namespace")
    run("namespaces", "grant", name, "joe", "produce", "consume")
    (row,) = run("namespaces", "permissions", name, "--json").rows
    assert (row["role"], set(row["actions"])) == ("joe", {"produce", "consume"})
    run("namespaces", "revoke", name, "joe")
    assert run("namespaces", "permissions", name).stdout == ""
    assert run("namespaces", "policy", name, "messageTTL", "60", "--json").rows[0]["value"] == 60
    run("namespaces", "clear-backlog", name, stdin="n\n", fails="")
    run("namespaces", "clear-backlog", name, "--yes")
    eventually(lambda: settled(lambda: run("namespaces", "delete", "--yes", name)))
    assert name not in run("namespaces", "list", "public").stdout


def check_topics(run: Run, _place: Place) -> None:
    name, plain = topic("parted"), topic("plain")
    run("topics", "create", name, "-p", "3")
    run("topics", "create", plain)
    listed = run("topics", "list", "--json").rows
    assert {"topic": name, "partitions": 3} in listed
    assert {"topic": plain, "partitions": 0} in listed
    run("topics", "partitions", name, "--set", "5")
    assert run("topics", "partitions", name, "--json").rows == [{"topic": name, "partitions": 5}]
    run("produce", plain, "-m", "one", "-m", "two")
    assert plain in run("topics", "stats", plain).stdout
    assert run("topics", "stats", plain, "--json").rows[0]["msgInCounter"] == 2
    assert " ledger" in run("topics", "stats", plain, "--internal").stdout
    run("topics", "properties", plain, "team=a", "tier=1")
    assert {r["name"]: r["value"] for r in run("topics", "properties", plain, "--json").rows} == {
        "team": "a", "tier": "1",
    }  # fmt: skip
    run("topics", "properties", plain, "team=")
    assert run("topics", "properties", plain).stdout.split() == ["NAME", "VALUE", "tier", "1"]
    run("topics", "set-retention", plain, "forever")

    def kept() -> bool:
        rows = {row["policy"]: row["value"] for row in run("topics", "policies", plain, "--json").rows}
        return rows.get("retention") == {"minutes": -1, "megabytes": -1}

    eventually(kept)
    run("topics", "unset", plain, "retention")
    run("topics", "unload", plain)
    assert "ends with" in run("topics", "terminate", plain, "--yes").stdout
    for each in (name, plain):
        run("topics", "delete", "--yes", each)
    assert name not in run("topics", "list").stdout
    run("topics", "stats", plain, fails="there is no topic")


def check_subscriptions(run: Run, place: Place) -> None:
    name = topic("subscribed")
    run("topics", "create", name)
    run("subscriptions", "create", name, "s", "--from", "earliest")
    for number in range(10):
        run("produce", name, "-m", str(number))
    run("subscriptions", "create", name, "late", "--from", "1h ago")
    rows = {row["subscription"]: row for row in run("subscriptions", "list", name, "--json").rows}
    assert {one: row["entries"] for one, row in rows.items()} == {"s": 10, "late": 10}
    assert [r["value"] for r in run("peek", name, "s", "-n", "3", "--json").rows] == ["0", "1", "2"]
    assert "skipped 4 messages" in run("subscriptions", "skip", "--yes", name, "s", "-n", "4").stdout
    (row,) = run("peek", name, "s", "-n", "1", "--json").rows
    assert row["value"] == "4"
    ledger = row["message_id"].split(":")[0]
    run("subscriptions", "reset", "--yes", name, "s", f"({ledger},2,-1,-1)")
    assert run("peek", name, "s", "-n", "1", "--json").rows[0]["value"] == "2"
    run("subscriptions", "reset", "--yes", name, "s", f"{ledger}:2", "--after")
    assert run("peek", name, "s", "-n", "1", "--json").rows[0]["value"] == "3"
    assert "2h ago" in run("subscriptions", "reset", "--yes", name, "s", "2h", "ago").stdout
    assert len(run("peek", name, "s", "-n", "20", "--json").rows) == 10
    run("subscriptions", "expire", "--yes", name, "s", "--to", f"{ledger}:4")
    eventually(lambda: run("peek", name, "s", "-n", "1", "--json").rows[0]["value"] == "5")
    eventually(
        lambda: settled(lambda: run("subscriptions", "expire", "--yes", name, "s", "--older-than", "1d"))
    )
    run("subscriptions", "clear", name, "s", stdin="n\n", fails="")
    run("subscriptions", "clear", name, "s", "--yes")
    eventually(lambda: run("peek", name, "s", "--json").rows == [])
    run("subscriptions", "reset", "--yes", name, "s", "yesterday-ish", fails="is not a position in a topic")
    run("subscriptions", "skip", name, "s", fails="give one of --count, --entries and --message")
    run("subscriptions", "skip", "--yes", name, "none", "-n", "1", fails="ubscription none")
    run("subscriptions", "delete", "--yes", name, "late")
    assert "late" not in run("subscriptions", "list", name).stdout


def check_explain(run: Run, _place: Place) -> None:
    name = topic("explained")
    run("topics", "create", name)
    run("subscriptions", "create", name, "s")
    assert "everything is acknowledged" in run("explain", name, "s").stdout
    run("produce", name, "-m", "x")
    assert "nobody-connected" in run("explain", name, "s").stdout
    (found,) = run("explain", name, "s", "--json").rows
    assert found["findings"][0]["kind"] == "nobody-connected"
    run("explain", name, "none", fails="there is no subscription none on")


def check_schemas(run: Run, _place: Place, folder: Path) -> None:
    name = topic("schema")
    run("topics", "create", name)
    run("schemas", "get", name, fails="has no schema")
    definition = folder / "job.avsc"
    fields = [{"name": "number", "type": "long"}]
    definition.write_text(json.dumps({"type": "record", "name": "Job", "fields": fields}))
    assert "version 0" in run("schemas", "upload", name, "--file", str(definition)).stdout
    assert run("schemas", "get", name, "--json").rows[0]["type"] == "JSON"
    assert run("schemas", "check", name, "--file", str(definition)).stdout.startswith("compatible")
    wrong = run("schemas", "check", name, "--file", str(definition), "--type", "avro", "--json", fails="")
    assert wrong.rows[0]["compatible"] is False
    assert len(run("schemas", "versions", name, "--json").rows) == 1
    run("schemas", "upload", name, fails="give either --class or --file")
    run("schemas", "delete", name, "--yes")
    run("schemas", "get", name, fails="has no schema")


def check_messages(run: Run, place: Place) -> None:
    name = topic("messages")
    run("produce", name, "-m", "one", "-m", "two", "-k", "k", "-p", "a=b")
    rows = run("consume", name, "-n", "2", "--timeout", "60", "--json").rows
    assert [(r["value"], r["key"], r["properties"]) for r in rows] == [
        ("one", "k", {"a": "b"}), ("two", "k", {"a": "b"}),
    ]  # fmt: skip
    run("produce", name, "-m", "three")
    rows = run("tail", name, "--since", "1h", "-n", "2", "--grep", "^t", "--json").rows
    assert [r["value"] for r in rows] == ["two", "three"]
    # The number of messages in a second depends on the machine; that the command ends does not.
    rows = run("tail", name, "--since", "1h", "--for", "1s", "--grep", "^t", "--json").rows
    assert [r["value"] for r in rows] == ["two", "three"][: len(rows)]
    assert run("tail", name, "--since", "1h", "-n", "1", "--key", "k", "-p", "a=b").stdout.endswith("  one\n")
    run("tail", name, "--grep", "(", fails="not a regular expression")


def check_top(run: Run, place: Place) -> None:
    space = f"public/{fresh('top')}"
    run("namespaces", "create", space)
    busy, idle = f"persistent://{space}/busy", f"persistent://{space}/idle"
    for name in (busy, idle):
        run("topics", "create", name)
        run("subscriptions", "create", name, "s")
    for _ in range(3):
        run("produce", busy, "-m", "x")
    (look,) = run("top", space, "--json").rows
    assert [(row["topic"], row["backlog"]) for row in look["rows"]] == [(busy, 3), (idle, 0)]
    (look,) = run("top", space, "--subscriptions", "--json").rows
    assert [(row["topic"], row["subscription"]) for row in look["rows"]] == [(busy, "s"), (idle, "s")]
    assert run("top", space, "--sort", "name", "-n", "2", "--every", "100ms").stdout.count(busy) == 2
    assert run("top", space, "--pattern", "idle$", "--json").rows[0]["rows"][0]["topic"] == idle
    run("top", "public/there-is-none", fails="amespace")


def check_bench(run: Run, place: Place) -> None:
    parts = run("bench", "--seconds", "100ms", "--size", "100", "--json").rows
    assert [one["part"] for one in parts] == [
        "a send, waited for", "published one by one", "published in batches", "received",
    ]  # fmt: skip
    assert sum(one["messages"] for one in parts[:3]) == parts[3]["messages"]
    with geminga.Admin(place.admin_url) as admin:
        assert not [name for name in admin.topics.list("public/default") if "geminga-bench" in name]


CHECKS = {
    name.removeprefix("check_"): found for name, found in globals().items() if name.startswith("check_")
}
