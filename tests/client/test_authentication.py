import pytest

import geminga
from geminga.connection.authentication import Credentials
from geminga.errors import OperationNotSupported

CANARY = "canary-77aa"


def test_token():
    assert geminga.AuthenticationToken(CANARY).provider.credentials() == Credentials("token", CANARY.encode())
    assert geminga.AuthenticationToken(lambda: CANARY).provider.blocking


def test_basic():
    assert geminga.AuthenticationBasic("u", "p").provider.credentials().data == b"u:p"
    text = '{"username": "u", "password": "p"}'
    assert geminga.AuthenticationBasic(auth_params_string=text).provider.credentials().method == "basic"


def test_tls_names_its_files():
    authentication = geminga.AuthenticationTLS("certificate.pem", "key.pem")
    assert (authentication.certificate_path, authentication.private_key_path) == (
        "certificate.pem",
        "key.pem",
    )
    assert authentication.provider.credentials().method == "tls"


def test_a_provider_of_ones_own():
    class Mine:
        method = "mine"
        blocking = False

        def credentials(self, challenge=None):
            return Credentials("mine", b"1")

    assert geminga.Authentication(Mine()).provider.credentials().method == "mine"


@pytest.mark.parametrize(
    "make",
    [
        lambda: geminga.Authentication("libathenz.so", "x"),
        lambda: geminga.AuthenticationAthenz("{}"),
        lambda: geminga.AuthenticationOauth2("{}"),
    ],
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
    with pytest.raises(ValueError) as caught:  # what pulsar-client raises, too
        make()
    assert CANARY not in str(caught.value)


def test_reprs_hide_secrets():
    assert CANARY not in repr(geminga.AuthenticationToken(CANARY))
    assert CANARY not in repr(geminga.AuthenticationBasic("user", CANARY))
