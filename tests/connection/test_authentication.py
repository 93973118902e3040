import pytest
from doubles import raising

from geminga.connection.authentication import (
    BasicCredentials,
    Credentials,
    NoAuthentication,
    TlsCredentials,
    TokenCredentials,
    obtain,
)
from geminga.errors import ErrorGettingAuthenticationData, InvalidConfiguration, Result

CANARY = "canary-0c1d"


def test_each_provider_has_its_method_and_data():
    assert NoAuthentication().credentials() == Credentials("none", b"")
    token = TokenCredentials(CANARY).credentials()
    assert (token.method, token.data) == ("token", CANARY.encode())
    assert token.http_headers == (("Authorization", f"Bearer {CANARY}"),)
    assert TokenCredentials(lambda: CANARY + "\n").credentials().data == CANARY.encode()
    basic = BasicCredentials("u", "p").credentials()
    assert (basic.method, basic.data) == ("basic", b"u:p")
    assert basic.http_headers == (("Authorization", "Basic dTpw"),)
    assert TlsCredentials().credentials() == Credentials("tls", b"")


def test_basic_credentials_are_read_from_json():
    provider = BasicCredentials.from_json('{"username": "u", "password": "p", "method": "oms3.0"}')
    assert (provider.credentials().method, provider.credentials().data) == ("oms3.0", b"u:p")
    provider = BasicCredentials.from_json('{"userId": "u", "password": "p"}')
    assert (provider.credentials().method, provider.credentials().data) == ("basic", b"u:p")


@pytest.mark.parametrize("text", ["", "[]", '{"username": "u"}', f'{{"password": "{CANARY}"}}', "nonsense"])
def test_wrong_json_is_refused_without_echo(text):
    with pytest.raises(InvalidConfiguration) as caught:
        BasicCredentials.from_json(text)
    assert CANARY not in str(caught.value)


def test_a_supplier_may_return_the_bytes_of_a_file():
    assert TokenCredentials(lambda: b"a.b.c\n").credentials().data == b"a.b.c"


@pytest.mark.parametrize("result", [None, "", b"", 7])
def test_a_supplier_must_return_text(result):
    with pytest.raises(ErrorGettingAuthenticationData):
        TokenCredentials(lambda: result).credentials()


def test_a_failing_supplier_is_an_authentication_error():
    with pytest.raises(ErrorGettingAuthenticationData, match="vault is sealed") as caught:
        TokenCredentials(raising(OSError("vault is sealed"))).credentials()
    assert caught.value.error() == Result.AuthenticationError, "what programs for pulsar-client compare with"


def test_only_token_suppliers_are_blocking():
    assert not TokenCredentials("t").blocking
    assert TokenCredentials(lambda: "t").blocking


def test_secrets_are_not_in_reprs_or_errors():
    for thing in (
        TokenCredentials(CANARY),
        BasicCredentials("user", CANARY),
        Credentials("token", CANARY.encode()),
    ):
        assert CANARY not in repr(thing)
        assert CANARY not in str(thing)


def test_obtain_wraps_what_a_provider_raises():
    class Broken:
        method = "mine"
        blocking = False

        def credentials(self, challenge=None):
            raise KeyError("no key")

    with pytest.raises(ErrorGettingAuthenticationData, match="'mine'"):
        obtain(Broken())
