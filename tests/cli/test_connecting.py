"""Selection of the cluster and of authentication: options, environment, contexts."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from web_requests import ask

import geminga
from geminga.cli import explain
from geminga.cli.connecting import as_pasted, connecting
from geminga.cli.main import command
from geminga.client.cluster import Cluster
from geminga.errors import ConnectError, InvalidConfiguration, InvalidUrl
from geminga.spark.pipelines import connection as pipelines
from geminga.spark.pipelines import running
from tests.support.certificates import Authority

SECRET = "data:;base64," + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWNyZXQ="


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    for name in ("PULSAR_SERVICE_URL", "PULSAR_ADMIN_URL", "PULSAR_TOKEN", "GEMINGA_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GEMINGA_CONFIG_HOME", str(tmp_path / "config"))

    def run(*words: str, check: bool = True, **environment: str) -> Result:
        done = CliRunner().invoke(command, words, env=environment)
        assert not check or done.exit_code == 0, (done.output, done.exception)
        return done

    return run


@pytest.fixture
def meant(invoke):
    """The cluster that options mean."""

    @click.command("what")
    @connecting
    def what(cluster: Cluster) -> None:
        found.append(cluster)

    found: list[Cluster] = []

    def run(*words: str, **environment: str) -> Cluster:
        done = CliRunner().invoke(what, words, env=environment, standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return found.pop()

    return run


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A broker that asks for tokens over TLS, the file that trusts it, and a file with a token."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    certificate, key = authority.sign("broker")
    made = CliRunner().invoke(command, ["token", "create", "--secret-key", SECRET, "--subject", "boss"])
    assert made.exit_code == 0, made.output
    token = folder / "token"
    token.write_text(made.stdout)
    with geminga.embedded(
        tls_certificate=certificate, tls_key=key, token_secret_key=SECRET, super_user_roles=("boss",)
    ) as broker:
        yield broker, str(authority.certificate), str(token)


def test_options_override_environment_and_contexts(meant, invoke):
    assert meant() == Cluster()
    assert meant("--url", "pulsar://a:1") == Cluster(service_url="pulsar://a:1")
    assert meant("--admin-url", "http://a:1").service_url == "http://a:1"
    assert meant(PULSAR_SERVICE_URL="pulsar+ssl://b").admin_url is None
    invoke("context", "set", "mine", "--url", "pulsar://c:1", "--token", "sesame")
    invoke("context", "set", "other", "--url", "pulsar://d:1", "--admin-url", "http://e:2")
    mine = Cluster(service_url="pulsar://c:1", auth_plugin="token", auth_params="token:sesame")
    assert meant() == mine
    # A token goes to the cluster that it was made for, and to no other.
    assert meant("--url", "pulsar://a:1").auth_params is None
    assert meant(PULSAR_SERVICE_URL="pulsar://a:1").auth_params is None
    assert meant("--context", "mine", PULSAR_SERVICE_URL="pulsar://a:1") == mine
    assert meant(PULSAR_TOKEN="env") == mine
    assert meant("--token", "new").auth_params == "token:new"
    assert meant("--context", "other") == Cluster(service_url="pulsar://d:1", admin_url="http://e:2")
    invoke("context", "use", "other")
    assert meant().admin_url == "http://e:2"
    assert meant(PULSAR_TOKEN="env").auth_params == "token:env"
    assert meant(GEMINGA_CONTEXT="mine") == mine
    assert meant("--url", "pulsar://a:1", GEMINGA_CONTEXT="mine").auth_params is None
    invoke("context", "use")
    assert meant() == Cluster()
    with pytest.raises(InvalidConfiguration, match="did you mean 'mine'"):
        meant("--context", "mein")


def test_contradictory_options_are_refused(meant, tmp_path):
    (tmp_path / "file").touch()
    file = str(tmp_path / "file")
    for words in (
        ("--token", "a", "--token-file", file), ("--token", "a", "--auth-plugin", "tls"), ("--token", " "),
        ("--tls-cert", file), ("--tls-key", file), ("--token", "env:THERE_IS_NONE"),
        ("--token", "/no/such/token"),
        ("--auth-params", "x"),
    ):  # fmt: skip
        with pytest.raises(click.UsageError):
            meant(*words)


def test_options_without_effect_are_refused(invoke, tmp_path):
    """And what cannot be, before anybody connects."""
    for url in ("pulsar://127.0.0.1:1", "http://127.0.0.1:1"):
        done = invoke("topics", "list", "--url", url, "--tls-trust-certs", __file__, check=False)
        assert done.exit_code == 2
        assert f"--tls-trust-certs: no TLS at {url}, so nothing" in done.stderr
    done = invoke("topics", "list", "--url", "pulsar://127.0.0.1:1", "--auth-plugin", "tokne", check=False)
    assert "auth_plugin='tokne' is not allowed" in str(done.exception)
    assert "did you mean 'token'?" in str(done.exception)
    with pytest.raises(InvalidConfiguration, match="is not allowed; allowed: tls"):
        Cluster(auth_plugin="/lib/mine.so")
    assert Cluster(auth_plugin="org.apache.pulsar.client.impl.auth.AuthenticationToken", auth_params="x")


def test_secrets_are_not_shown_and_files_are_private(invoke, tmp_path):
    done = invoke("context", "set", "mine", "--url", "pulsar://c:1", "--token", "sesame")
    shown = done.output + "".join(
        invoke(*words).output
        for words in (("context", "list"), ("context", "list", "--json"), ("context", "show"),
                      ("context", "show", "mine", "--json"), ("context", "use", "mine"))
    )  # fmt: skip
    assert "mine" in shown
    assert "sesame" not in shown
    file = tmp_path / "config/contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o644)
    done = invoke("context", "list", check=False)
    assert "others may read it" in str(done.exception)
    file.chmod(0o600)
    file.write_text("{")
    assert "is not a file of contexts" in str(invoke("context", "list", check=False).exception)
    assert repr(Cluster(auth_plugin="token", auth_params="token:sesame")).count("sesame") == 0


def test_a_context_is_shown_in_words(invoke):
    assert invoke("context", "set", "one", "--url", "pulsar://a:6650").exit_code == 0
    shown = invoke("context", "show").stdout
    assert "current: yes\ncontext: one\nservice url: pulsar://a:6650\n" in shown
    for text in ("None", "True", "False", "_"):
        assert text not in shown


def test_contexts_are_created_and_deleted(invoke):
    assert "no context yet" in invoke("context", "list").stderr
    invoke("context", "set", "a", "--url", "pulsar://a:1")
    invoke("context", "set", "b", "--admin-url", "http://b:1", "--tls-insecure")
    rows = [json.loads(line) for line in invoke("context", "list", "--json").stdout.splitlines()]
    assert [(row["context"], row["current"]) for row in rows] == [("a", True), ("b", False)]
    assert rows[1]["tls_allow_insecure_connection"]
    said = invoke("context", "delete", "a").stderr
    assert said.startswith("a was the current context: commands now go to pulsar://127.0.0.1:6650, unless")
    assert invoke("context", "show", check=False).exit_code == 2
    assert isinstance(invoke("context", "delete", "a", check=False).exception, InvalidConfiguration)
    assert not invoke("context", "delete", "b").stderr
    assert invoke("context", "set", "c", check=False).exit_code == 2
    assert invoke("context", "set", "c d", "--url", "pulsar://a:1", check=False).exit_code == 2


def test_every_connecting_command_shows_a_token_over_tls(invoke, secured):
    broker, trust, token = secured
    place = ("--url", broker.service_url, "--admin-url", broker.admin_url, "--tls-trust-certs", trust)
    invoke("context", "set", "secured", *place, "--token-file", token)
    invoke("produce", "t", "-m", "x")
    assert "x" in invoke("consume", "t", "-n", "1").stdout
    assert "x" in invoke("tail", "t", "--since", "1h", "-n", "1").stdout
    invoke("subscriptions", "create", "t", "s", "--from", "earliest")
    for words in (
        ("topics", "list"), ("topics", "stats", "t"), ("explain", "t", "s"), ("peek", "t", "s"),
        ("namespaces", "policies", "public/default"), ("tenants", "list"), ("schemas", "versions", "t"),
        ("subscriptions", "list", "t"), ("top",), ("bench", "--seconds", "100ms"),
    ):  # fmt: skip
        invoke(*words)
        refused = invoke(*words, *place, check=False)
        assert isinstance(refused.exception, geminga.PulsarException), words
        assert "Traceback" not in refused.output
    untrusted = invoke("topics", "list", "--admin-url", broker.admin_url, "--token-file", token, check=False)
    assert isinstance(untrusted.exception, ConnectError)
    assert "is not trusted" in str(untrusted.exception)
    invoke("topics", "list", "--admin-url", broker.admin_url, "--token-file", token, "--tls-insecure")


def test_a_command_with_only_a_service_url_acts_on_that_broker(invoke, tmp_path):
    with geminga.embedded() as one, geminga.embedded() as other:
        for broker, topic in ((one, "mine"), (other, "other")):
            with geminga.Admin(broker.admin_url) as admin:
                admin.topics.create(topic)
        assert "mine" in invoke("topics", "list", "--url", one.service_url).stdout
        assert "other" in invoke("topics", "list", PULSAR_SERVICE_URL=other.service_url).stdout
        invoke("context", "set", "one", "--url", one.service_url)
        assert (
            "admin_url" not in json.loads((tmp_path / "config/contexts.json").read_text())["contexts"]["one"]
        )
        assert "mine" in invoke("topics", "list").stdout
        elsewhere = {"PULSAR_SERVICE_URL": other.service_url, "PULSAR_ADMIN_URL": other.admin_url}
        assert "mine" in invoke("topics", "list", "--url", one.service_url, **elsewhere).stdout
        assert "other" in invoke("topics", "list", "--url", other.service_url, **elsewhere).stdout
    refused = invoke("topics", "delete", "other", "--yes", "--url", one.service_url, check=False)
    assert isinstance(refused.exception, ConnectError)
    assert "--admin-url" in str(refused.exception)


def test_a_password_in_an_address_is_refused_and_not_shown(invoke, tmp_path):
    """An address is shown wherever something goes wrong with it, and by the console to everybody."""
    for option in ("--url", "--admin-url"):
        done = invoke("context", "set", "x", option, "http://me:pass-word@127.0.0.1:1", check=False)
        assert done.exit_code != 0
        assert "holds user data" in done.output + str(done.exception)
        assert "pass-word" not in done.output + str(done.exception)
    assert not (tmp_path / "config" / "contexts.json").exists()
    with pytest.raises(InvalidConfiguration, match="admin_url holds user data"):
        Cluster(admin_url="https://me:pass-word@broker:8443")
    with pytest.raises(InvalidUrl) as raised:
        geminga.Admin("http://me:pass-word@127.0.0.1:1")
    assert "pass-word" not in str(raised.value)


class Handed:
    """Return the source options that `geminga pipeline run` passes to its flows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options: dict[str, str] = {}
        self._monkeypatch = monkeypatch

    def run(self, folder: Path, told: Any, *, full_refresh: Any, cluster: str) -> Any:
        self._monkeypatch.setenv(pipelines.VARIABLE, cluster)
        self.options = pipelines.connection("pulsar://projects:6650")
        return running.Outcome(0, "", {}, {}, ())


def test_a_pipeline_receives_the_connection_options(invoke, tmp_path, monkeypatch):
    handed = Handed(monkeypatch)
    monkeypatch.setattr(running, "run", handed.run)
    token = tmp_path / "token"
    token.write_text("t")
    own = {"service.url": "pulsar://projects:6650"}
    invoke("context", "set", "there", "--url", "pulsar://there:6651", "--token", "of-there")

    def told(*words: str, **environment: str) -> dict[str, str]:
        invoke("pipeline", "run", str(tmp_path), *words, **environment)
        return handed.options

    assert told() == own
    assert told(PULSAR_SERVICE_URL="pulsar://elsewhere:6650") == own, "the project's own address stands"
    by_file = {"auth.plugin": "token", "auth.params": f"file://{token}"}
    assert told("--token-file", str(token)) == own | by_file
    assert told(PULSAR_TOKEN="x") == own | {"auth.plugin": "token", "auth.params": "token:x"}
    assert told("--tls-trust-certs", str(token), "--tls-any-hostname", "--tls-insecure") == own | {
        "tls.trustCertsFilePath": str(token), "tls.allowInsecureConnection": "true",
        "tls.validateHostname": "false",
    }  # fmt: skip
    assert told("--url", "pulsar+ssl://a:6651", "--token", "x") == {
        "service.url": "pulsar+ssl://a:6651", "auth.plugin": "token", "auth.params": "token:x"
    }  # fmt: skip
    assert told("--context", "there") == {
        "service.url": "pulsar://there:6651", "auth.plugin": "token", "auth.params": "token:of-there"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("printed", "pasted"), [("geminga peek t s", "geminga peek t s --url pulsar://h:1"),
     ("geminga store check DIR", "geminga store check DIR"),  # connects to no broker
     ("geminga topics a && geminga topics b",
      "geminga topics a --url pulsar://h:1 && geminga topics b --url pulsar://h:1"),
     ("geminga peek 'a && b' s", "geminga peek 'a && b' s --url pulsar://h:1"),
     ("geminga x --to 1 -- t -s && geminga peek 'a -- b' s",
      "geminga x --to 1 --url pulsar://h:1 -- t -s && geminga peek 'a -- b' s --url pulsar://h:1")],
)  # fmt: skip
def test_each_printed_command_that_connects_carries_the_address(printed, pasted):
    with explain.command.make_context("explain", ["t", "--url", "pulsar://h:1", "--token", "secret"]):
        assert as_pasted(printed) == pasted


# --- the console of several clusters ---
def test_the_console_offers_saved_clusters_by_name(invoke, tmp_path):
    for name in ("prod", "test", "far"):
        token = [] if name == "far" else ["--token", f"of-{name}"]
        invoke("context", "set", name, "--admin-url", "http://127.0.0.1:1", *token)
    running = subprocess.Popen(
        [sys.executable, "-m", "geminga", "console", "--also", "far", "--also", "prod", "--port", "0"],
        env={**os.environ, "GEMINGA_CONFIG_HOME": str(tmp_path / "config")},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        url = running.stdout.readline().rpartition(" ")[2].strip()
        found = ask(f"{url}console/api/clusters").document
        assert found == [{"name": "prod", "path": "/"}, {"name": "far", "path": "/cluster/far/"}]
        running.terminate()
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.stdout.close()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--also", "tset"], "no context 'tset' (did you mean 'test'?)"),
        (["--also", "test", "--host", "0.0.0.0"], "would act with your credentials"),
        (["--mask", "orders=card"], "masked_fields='orders=card' is not allowed"),
    ],
)
def test_the_console_refuses_what_it_cannot_offer(invoke, words, reason):
    invoke("context", "set", "here", "--admin-url", "http://127.0.0.1:1")
    invoke("context", "set", "test", "--admin-url", "http://127.0.0.1:1", "--token", "secret")
    done = invoke("console", *words, check=False)
    assert done.exit_code != 0
    assert reason in done.output + str(done.exception)
