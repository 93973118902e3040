"""Tokens and permissions with the Java tools of the real distribution, unchanged."""

import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import geminga
from geminga.cli.token import command as token_command
from geminga.testing.apache_pulsar import run_tool

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
admin_matrix: Any = importlib.import_module("admin_matrix")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


@pytest.fixture(scope="module")
def keys(pulsar_home, tmp_path_factory):
    """A pair that the Java tool has made."""
    folder = tmp_path_factory.mktemp("keys")
    made = run_tool(
        pulsar_home, "pulsar", "tokens", "create-key-pair",
        "--output-private-key", str(folder / "private"), "--output-public-key", str(folder / "public"),
        service_url="", admin_url="",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def token_of(pulsar_home, keys):
    """The Java tool signs."""

    @functools.cache
    def sign(role: str) -> str:
        made = run_tool(
            pulsar_home, "pulsar", "tokens", "create", "--private-key", f"file://{keys}/private",
            "--subject", role, "--expiry-time", "1h", service_url="", admin_url="",
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    return sign


@pytest.fixture(scope="module")
def broker(keys):
    settings = {"token_public_key": f"file://{keys}/public", "super_user_roles": ("admin",)}
    with geminga.embedded(**settings) as running:
        yield running


def test_both_token_tools_read_each_others_tokens(pulsar_home, keys, token_of):
    made = CliRunner().invoke(token_command, ["create", "-pk", str(keys / "private"), "-s", "joe"])
    ours = made.output.strip()
    read = run_tool(
        pulsar_home, "pulsar", "tokens", "validate", "-pk", f"file://{keys}/public", ours,
        service_url="", admin_url="",
    )  # fmt: skip
    assert read.stdout.strip() == "{sub=joe}", read.stderr
    theirs = CliRunner().invoke(token_command, ["validate", "-pk", str(keys / "public"), token_of("joe")])
    assert json.loads(theirs.output)["sub"] == "joe"


def test_pulsar_admin_grants_and_revokes_permissions(pulsar_home, broker, token_of, request):
    def admin(role: str, *arguments: str) -> Any:
        return run_tool(
            pulsar_home, "pulsar-admin", "--auth-plugin", PLUGIN, "--auth-params", f"token:{token_of(role)}",
            *arguments, service_url=broker.service_url, admin_url=broker.admin_url,
        )  # fmt: skip

    def good(*arguments: str) -> str:
        done = administrator.run(arguments)
        assert done.succeeded, done.output
        return str(done.output)

    topic = "persistent://public/default/t"
    refused = admin("joe", "tenants", "list")
    assert refused.returncode != 0
    assert "Unauthorized" in refused.stdout + refused.stderr
    allowed = admin("admin", "tenants", "list")
    assert "public" in allowed.stdout.split(), allowed.stderr
    # The tool's own start is tested by now: the other commands run in one Java process.
    administrator = admin_matrix.PulsarAdmin(
        pulsar_home, broker.admin_url, authPlugin=PLUGIN, authParams=f"token:{token_of('admin')}"
    )
    request.addfinalizer(administrator.close)
    good("topics", "create", topic)
    good("namespaces", "grant-permission", "public/default", "--role", "joe", "--actions", "produce")
    good("topics", "grant-permission", topic, "--role", "jane", "--actions", "produce,consume")
    assert good("namespaces", "permissions", "public/default").split() == ["joe", "[produce]"]
    assert "jane    [" in good("topics", "permissions", topic)
    good("namespaces", "set-subscription-auth-mode", "public/default", "-m", "Prefix")
    good("namespaces", "set-publish-rate", "public/default", "-m", "100", "-b", "1000000")
    good("topicPolicies", "set-dispatch-rate", topic, "-md", "50", "-bd", "-1", "-dt", "1")
    with geminga.Client(
        broker.service_url, authentication=geminga.AuthenticationToken(token_of("jane"))
    ) as client:
        consumer = client.subscribe(topic, "jane-1")
        client.create_producer(topic).send(b"1")
        assert consumer.receive(60_000).data() == b"1"
        with pytest.raises(geminga.exceptions.PulsarException):
            client.subscribe(topic, "other")
    good("topics", "revoke-permission", topic, "--role", "jane")
    assert "jane" not in good("topics", "permissions", topic)


def test_pulsar_admin_and_the_java_client_log_in_with_a_password(pulsar_home, tmp_path):
    pytest.importorskip("passlib")
    pytest.importorskip("bcrypt")
    users = tmp_path / "htpasswd"
    users.write_text("admin:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\n")  # openssl passwd -apr1: "secret"
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationBasic"

    def shown(word: str) -> list[str]:
        return ["--auth-plugin", plugin, "--auth-params", json.dumps({"userId": "admin", "password": word})]

    with geminga.embedded(basic_auth=f"file://{users}", super_user_roles=("admin",)) as broker:
        run = functools.partial(
            run_tool, pulsar_home, service_url=broker.service_url, admin_url=broker.admin_url
        )
        made = run("pulsar-admin", *shown("secret"), "tenants", "list")
        assert (made.returncode, made.stdout.split()) == (0, ["public", "pulsar"]), made.stderr
        refused = run("pulsar-admin", *shown("wrong"), "tenants", "list")
        assert refused.returncode == 1
        assert "401" in refused.stdout + refused.stderr or "Authentication" in refused.stdout + refused.stderr
        sent = run("pulsar-client", *shown("secret"), "produce", "t", "-m", "hello")
        assert sent.returncode == 0, sent.stderr[-2000:]
