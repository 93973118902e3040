"""``geminga mirror``: what it shows, how it ends, and both sides' credentials."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from cases import cases
from click.testing import CliRunner
from waiting import eventually

import geminga
from geminga.cli.mirror import command
from geminga.errors import AuthenticationError, PulsarException
from tests.mirror.helpers import stored


@pytest.fixture
def other():
    with geminga.embedded() as broker:
        yield broker


def options(source: Any, target: Any, *more: str) -> list[str]:
    return [
        "--topics", "t", "--from", source.service_url, "--from-admin-url", source.admin_url,
        "--to", target.service_url, "--to-admin-url", target.admin_url, *more,
    ]  # fmt: skip


def run(*words: str, **environment: str) -> Any:
    return CliRunner().invoke(command, list(words), env=environment, standalone_mode=False)


def test_once_copies_the_backlog_and_exits(pulsar_broker, other):
    pulsar_broker.client().create_producer("t").send(b"x")
    done = run(*options(pulsar_broker, other, "--once"))
    assert done.return_value == 0, done.exception
    assert done.stdout == ""
    assert "1 messages" in done.stderr
    done = run(*options(pulsar_broker, other, "--once", "--json"))
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["caught_up"], found["messages"], found["lag_entries"]) == (True, 0, 0)
    assert found["partitions"][0]["topic"] == "persistent://public/default/t"


def test_a_topic_that_cannot_be_mirrored_is_a_failure(pulsar_broker, other):
    pulsar_broker.client().create_producer("t").send(b"x")
    with geminga.Admin(other.admin_url) as admin:
        admin.topics.create("t", partitions=2)
    done = run(*options(pulsar_broker, other, "--once"))
    assert done.return_value == 1
    assert "none in the source" in done.stderr


def test_missing_options_are_named(pulsar_broker):
    done = run("--topics", "t", "--to", pulsar_broker.service_url)
    assert "--from URL or --from-context NAME is missing" in str(done.exception)


@pytest.mark.parametrize(("words", "told"), cases("mirror_options_refused"))
def test_wrong_options_are_named_with_their_side(words, told):
    given = {"--topics": "t", "--from": "pulsar://127.0.0.1:1", "--to": "pulsar://127.0.0.1:2"}
    rest = [word for name, value in given.items() if name != words[0] for word in (name, value)]
    assert told in str(run(*rest, *words).exception)


def test_a_cluster_that_requires_credentials_is_named(pulsar_broker, tmp_path):
    key = base64.b64encode(b"k" * 32).decode()
    with geminga.embedded(token_secret_key=f"data:;base64,{key}", super_user_roles=("root",)) as closed:
        done = run(*options(pulsar_broker, closed, "--once"))
        assert str(done.exception).startswith("the target: Authentication required")
        done = run(*options(closed, pulsar_broker, "--once", "--from-token", "junk"))
        assert str(done.exception).startswith("the source: Authentication required")


def test_to_name_without_forward_is_reported(pulsar_broker, other):
    pulsar_broker.client().create_producer("t").send(b"x")
    done = run(*options(pulsar_broker, other, "--once", "--to-name", "there"))
    assert done.return_value == 0, done.exception
    assert "--to-name has no effect without --forward" in done.stderr
    done = run(*options(pulsar_broker, other, "--once", "--forward"))
    assert "give different names, with --from-name or --to-name" in str(done.exception)


@pytest.mark.parametrize(("pattern", "code"), [("typo", 1), ("public/default/typo-.*", 0)])
def test_a_pattern_that_matches_nothing_is_reported(pulsar_broker, other, pattern, code):
    pulsar_broker.client().create_producer("t").send(b"x")
    done = run(*options(pulsar_broker, other, "--once", "--topics", pattern))
    assert done.return_value == code
    assert f"--topics {pattern!r} matches no topic of the source" in done.stderr
    assert "1 messages" in done.stderr


def test_the_reason_of_a_waiting_topic_is_printed(pulsar_broker, other):
    """Brokers without TLS under a TLS address: without a message, the user would not know why nothing is
    copied."""
    pulsar_broker.client().create_producer("t").send(b"x")
    words = options(pulsar_broker, other, "--once")
    at = words.index("--to") + 1
    words[at] = words[at].replace("pulsar://", "pulsar+ssl://")
    process = subprocess.Popen(
        [sys.executable, "-m", "geminga", "mirror", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "GEMINGA_CONFIG_HOME": "/nonexistent"},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        assert "does that port speak TLS" in process.stderr.readline()
    finally:
        process.kill()
        process.communicate()


def test_each_outage_and_its_end_are_printed_once(monkeypatch):
    from geminga.mirror import mirror
    from geminga.mirror.status import MirrorStatus, PartitionStatus

    class Scripted:
        def __init__(self, settings: Any, on_status: Callable[[MirrorStatus], None]) -> None:
            self.show = on_status

        def run(self) -> MirrorStatus:
            for error in ("gone", "gone", "", "", "gone", ""):
                partition = PartitionStatus("t", "copying", 0, "", 0, 0, 0, 0, 0, error=error)
                status = MirrorStatus("", "", "m", True, (partition,), warnings=("mind this",))
                self.show(status)
            return status

    monkeypatch.setattr(mirror, "Mirror", Scripted)
    done = run("--topics", "t", "--from", "pulsar://127.0.0.1:1", "--to", "pulsar://127.0.0.1:2")
    again = "geminga: all topics are mirrored again"
    assert done.stderr.splitlines()[:-1] == [
        "geminga: mind this", "geminga: gone", again, "geminga: gone", again,
    ]  # fmt: skip


def test_each_side_has_context_and_token(other, tmp_path, monkeypatch):
    from geminga.cli.main import command as whole

    key = tmp_path / "secret.key"
    CliRunner().invoke(whole, ["token", "create-secret-key", "--output", str(key)], standalone_mode=False)
    made = CliRunner().invoke(
        whole, ["token", "create", "--secret-key", str(key), "--subject", "root"], standalone_mode=False
    )
    token = tmp_path / "token.jwt"
    token.write_text(made.stdout.strip())
    monkeypatch.setenv("GEMINGA_CONFIG_HOME", str(tmp_path / "contexts"))
    with geminga.embedded(token_secret_key=f"file://{key}", super_user_roles=("root",)) as closed:
        client = closed.client(authentication=geminga.AuthenticationToken(token.read_text()))
        client.create_producer("t").send(b"x")
        CliRunner().invoke(
            whole,
            ["context", "set", "closed", "--url", closed.service_url, "--admin-url", closed.admin_url,
             "--token-file", str(token)],
            standalone_mode=False,
        )  # fmt: skip
        to = ["--to", other.service_url, "--to-admin-url", other.admin_url]
        # The environment's token is ignored: it does not name a side.
        done = run("--topics", "t", "--once", "--from-context", "closed", *to, PULSAR_TOKEN="wrong")
        assert done.return_value == 0, done.exception
        at = ["--from", closed.service_url, "--from-admin-url", closed.admin_url]
        done = run("--topics", "t", "--once", *at, "--from-token-file", str(token), *to)
        assert done.return_value == 0, done.exception
        done = run("--topics", "t", "--once", *at, *to)
        assert isinstance(done.exception, (AuthenticationError, PulsarException))
        assert stored(other.client(), "t") == stored(client, "t")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_mirror_cleanly(pulsar_broker, other, number):
    client = pulsar_broker.client()
    producer = client.create_producer("t")
    for n in range(50):
        producer.send(b"%d" % n)
    process = subprocess.Popen(
        [sys.executable, "-m", "geminga", "mirror", *options(pulsar_broker, other)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "GEMINGA_CONFIG_HOME": "/nonexistent"},
    )  # fmt: skip
    _until(lambda: len(stored(other.client(), "t")) == 50)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, ""), errors
    assert "50 messages" in errors
    assert "Traceback" not in errors
    assert len(errors.splitlines()) == 1


def _until(what: Callable[[], bool]) -> None:
    eventually(what, but=PulsarException)


def test_both_sides_may_use_tls(tmp_path):
    pytest.importorskip("cryptography")
    from tests.support.certificates import Authority

    authorities = [Authority(tmp_path, name) for name in ("here", "there")]
    settings = []
    for authority in authorities:
        certificate, key = authority.sign(f"{authority.certificate.stem}-broker")
        settings.append(
            {
                "tls_port": 0, "web_tls_port": 0, "tls_certificate": certificate, "tls_key": key,
            }
        )  # fmt: skip
    with geminga.embedded(**settings[0]) as source, geminga.embedded(**settings[1]) as target:
        source.client().create_producer("t").send(b"x")
        words = ["--topics", "t", "--once"]
        for side, broker, authority in (("from", source, authorities[0]), ("to", target, authorities[1])):
            used = broker.settings
            words += [
                f"--{side}", f"pulsar+ssl://localhost:{used.tls_port}",
                f"--{side}-admin-url", f"https://localhost:{used.web_tls_port}",
                f"--{side}-tls-trust-certs", str(authority.certificate),
            ]  # fmt: skip
        done = run(*words)
        assert done.return_value == 0, done.exception
        assert stored(target.client(), "t") == stored(source.client(), "t")
        wrong = [
            str(authorities[0].certificate) if one == str(authorities[1].certificate) else one
            for one in words
        ]
        assert isinstance(run(*wrong).exception, PulsarException)
