import pytest

import geminga
from geminga.connection.authentication import Credentials
from geminga.errors import InvalidConfiguration, OperationNotSupported

CANARY = "canary-77aa"


def test_tls_names_its_files():
    authentication = geminga.AuthenticationTLS("certificate.pem", "key.pem")
    assert (authentication.certificate_path, authentication.private_key_path) == (
        "certificate.pem",
        "key.pem",
    )
    assert authentication.provider.credentials().method == "tls"


def test_a_custom_provider_supplies_credentials():
    class Mine:
        method = "mine"
        blocking = False

        def credentials(self, challenge=None):
            return Credentials("mine", b"1")

    assert geminga.Authentication(Mine()).provider.credentials().method == "mine"


@pytest.mark.parametrize(
    "make", [lambda: geminga.Authentication("athenz", "{}"), lambda: geminga.AuthenticationAthenz("{}")]
)
def test_what_is_not_supported_says_what_to_use(make):
    with pytest.raises(OperationNotSupported, match="AuthenticationToken"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: geminga.AuthenticationToken(7),
        lambda: geminga.AuthenticationBasic("u"),
        lambda: geminga.AuthenticationBasic(7, CANARY),
        lambda: geminga.AuthenticationTLS("c", None),
    ],
)
def test_wrong_types_are_value_errors_without_secrets(make):
    with pytest.raises(ValueError) as caught:  # as pulsar-client
        make()
    assert CANARY not in str(caught.value)


def test_reprs_hide_secrets():
    assert CANARY not in repr(geminga.AuthenticationToken(CANARY))
    assert CANARY not in repr(geminga.AuthenticationBasic("user", CANARY))


JAVA = "org.apache.pulsar.client.impl.auth."


def shown(authentication):
    made = authentication.auth.credentials()
    return made.method, made.data


def test_a_path_is_refused_where_a_token_is_expected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jwt").write_text("a.b.c")
    for path in ("/etc/geminga/token", "keys/token", "jwt", "files:///etc/geminga/token"):
        with pytest.raises(InvalidConfiguration, match="authParamsString is a path"):
            geminga.Authentication("token", path)
    assert shown(geminga.Authentication("token", "token:a/b")) == ("token", b"a/b")


def test_kinds_by_name(tmp_path, monkeypatch):
    kept = tmp_path / "token"
    kept.write_text("from a file\n")
    monkeypatch.setenv("PULSAR_TEST_TOKEN", "from the environment")
    for name in ("token", f"{JAVA}AuthenticationToken"):
        assert shown(geminga.Authentication(name, "token:abc")) == ("token", b"abc")
        assert shown(geminga.Authentication(name, "a.b.c")) == ("token", b"a.b.c")
        assert shown(geminga.Authentication(name, f"file://{kept}")) == ("token", b"from a file")
        assert shown(geminga.Authentication(name, f"file:{kept}")) == ("token", b"from a file")
        named = geminga.Authentication(name, "env:PULSAR_TEST_TOKEN")
        assert shown(named) == ("token", b"from the environment")
    for name in ("basic", f"{JAVA}AuthenticationBasic"):
        named = geminga.Authentication(name, '{"username": "u", "password": "p"}')
        assert shown(named) == ("basic", b"u:p")
    for name in ("tls", f"{JAVA}AuthenticationTls"):
        named = geminga.Authentication(name, "tlsCertFile:/a.pem,tlsKeyFile:/b.pem")
        assert (named.certificate_path, named.private_key_path) == ("/a.pem", "/b.pem")
        assert shown(named) == ("tls", b"")


@pytest.mark.parametrize(("kind", "parameters"), [("tls", "tlsCertFile:/a.pem"), ("basic", "junk")])
def test_wrong_parameters_are_runtime_errors_too(kind, parameters):
    for error in (RuntimeError, ValueError):
        with pytest.raises(error):
            geminga.Authentication(kind, parameters)


def test_wrong_authentication_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="dynamicLibPath"):
        geminga.Authentication(5, "x")
    with pytest.raises(ValueError, match="authParamsString"):
        geminga.Authentication("token")
