"""Basic authentication: hashes made by other programs, and guesses that delay no known user."""

import base64
import contextlib
import threading
from typing import Any

import pytest

import geminga

pytest.importorskip("passlib")
pytest.importorskip("bcrypt")

from cases import cases
from passlib.context import CryptContext
from web_requests import ask

from geminga.broker.rules.authentication import Authenticator, Unauthenticated
from geminga.broker.rules.passwords import BasicMethod, _FailedLogins, parse_users
from geminga.broker.serving.embedded import embedded
from geminga.errors import InvalidConfiguration

# Hashes of "secret" by openssl passwd -apr1, -5, -6, and by the C library's crypt.
HASHES = {
    "apr1": "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/",
    "sha256": "$5$abcdefgh$gruCpC7VkOTspMQTTSAR8mtlO9Upms.fwqE5y16JVM.",
    "sha512": "$6$abcdefgh$ltjgWl6579NluT/Vi1nwEvcil.G5Nbc4NiXZaNGStk8PSwGfQv72N2CKPPrVACtLtip/cZ/1GM/O6"
    "IND4WQhG.",
    "des": "abNANd1rDfiNc",
    "bcrypt": "$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a",
    "sha1": "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
}
FILE = "# who may come\n\n" + "\n".join(f"{name}:{hashed}" for name, hashed in HASHES.items()) + "\n"
NOW = 1_800_000_000_000


@pytest.fixture
def method():
    return BasicMethod(parse_users(FILE), bytes(32))


@pytest.mark.parametrize("user", HASHES)
def test_hashes_of_other_programs_are_verified(method, user):
    found = method.authenticate(f"{user}:secret".encode(), NOW)
    assert (found.role, found.method, found.expires_at_ms) == (user, "basic", None)
    for wrong in (b"Secret", b"secret ", b"", b"x" * 100, b"secret\0", b"\xff", b"x" * 100_000):
        with pytest.raises(Unauthenticated, match="unknown user or invalid password"):
            method.authenticate(user.encode() + b":" + wrong, NOW + 60_000)


@pytest.mark.parametrize(
    "data", [b"", b"nobody:secret", b"apr1", b":secret", b"\xff:secret", b"apr1\0:secret"]
)
def test_unknown_users_get_the_same_answer(method, data):
    with pytest.raises(Unauthenticated, match="unknown user or invalid password"):
        method.authenticate(data, NOW)


def test_guessing_takes_a_share_of_the_time_and_does_not_delay_known_users(method):
    method.authenticate(b"apr1:secret", NOW)
    looked_at = 0
    for number in range(10_000):
        with pytest.raises(Unauthenticated) as caught:
            method.authenticate(b"apr1:%d" % number, NOW + number // 100, f"10.0.{number // 200}.9")
        looked_at += "too many" not in str(caught.value)
    # Half a second was saved up, and a tenth of a tenth of a second came since; a check is taken for 2 ms.
    assert 200 <= looked_at < 260
    assert method.authenticate(b"apr1:secret", NOW + 100).role == "apr1"
    with pytest.raises(Unauthenticated, match="too many"):
        method.authenticate(b"sha512:secret", NOW + 100)
    assert method.authenticate(b"sha512:secret", NOW + 1_000).role == "sha512"
    # A clock that was set back is no reason to look at more.
    with pytest.raises(Unauthenticated):
        method.authenticate(b"sha256:wrong", NOW - 1_000_000)


@pytest.mark.parametrize(("text", "said"), cases("password_files_refused"))
def test_errors_of_a_file_do_not_show_hashes(text, said):
    with pytest.raises(InvalidConfiguration, match="basic_auth") as caught:
        parse_users(text)
    assert said in str(caught.value)
    assert not any(part in str(caught.value) for part in ("abNANd1rDfiNc", "h9FWgUz3", "password:", "short"))


def test_a_password_is_not_recognised_among_many_guesses_of_one_host(method):
    """A right password is recognised without a hash; guesses must not profit from that speed."""
    method.authenticate(b"apr1:secret", NOW, "10.0.0.1")
    for network in ("10.0.0.2", "2001:db8::{}", "fe80::{}%eth0"):
        for number in range(2000):
            with pytest.raises(Unauthenticated):
                method.authenticate(b"apr1:%d" % number, NOW, network.format(number))
        with pytest.raises(Unauthenticated, match="too many"):
            method.authenticate(b"apr1:secret", NOW, network.format(7))
    # Others are not held up by it, nor is the same host when it tries as another user.
    assert method.authenticate(b"apr1:secret", NOW, "10.0.0.1").role == "apr1"
    assert method.authenticate(b"sha1:secret", NOW + 2_000, "10.0.0.2").role == "sha1"
    assert method.authenticate(b"apr1:secret", NOW + 2_000, "10.0.0.2").role == "apr1"


def test_guesses_at_many_users_take_bounded_memory():
    guesses = _FailedLogins()
    for number in range(30_000):
        guesses.add(("10.0.0.1", b"%d" % number), NOW)
    assert len(guesses._shown) <= 10_000


def test_old_hashes_match_several_passwords(method):
    users = {"des": CryptContext(schemes=["des_crypt"]).hash("12345678")}
    method = BasicMethod(users, bytes(32))
    for number in range(120):
        assert method.authenticate(b"des:12345678%d" % (number % 2), NOW + number, "10.0.0.1").role == "des"


def test_no_kind_of_hash_reveals_existing_users(method):
    """Names that there are not take the time of all kinds of hashes, each always that of the same one."""
    kinds = {method._hash_of(f"nobody{number}") for number in range(200)}
    assert kinds == set(HASHES.values())
    assert method._hash_of("nobody") == method._hash_of("nobody")
    assert method._hash_of("des") == HASHES["des"]


def test_hashing_does_not_block_the_loop(monkeypatch, tmp_path):
    """A good hash takes a quarter of a second, during which the loop continues."""
    (tmp_path / "users").write_text(FILE)
    threads = []
    judge = BasicMethod._is_right

    def watched(self: BasicMethod, password: bytes, hashed: str) -> bool:
        threads.append(threading.current_thread().name)
        return judge(self, password, hashed)

    monkeypatch.setattr(BasicMethod, "_is_right", watched)
    with embedded(basic_auth=str(tmp_path / "users"), super_user_roles=("bcrypt",)) as broker:
        for password, works in (("wrong", False), ("secret", True)):
            authentication = geminga.AuthenticationBasic("bcrypt", password)
            with geminga.Client(broker.service_url, authentication=authentication) as client:
                error = contextlib.nullcontext() if works else pytest.raises(geminga.AuthenticationError)
                with error:
                    client.create_producer("t").send(b"x")
        for user, status in (("sha1:wrong", 401), ("nobody:x", 401), ("sha256:secret", 403)):
            shown = base64.b64encode(user.encode()).decode()
            answer = ask(f"{broker.admin_url}/admin/v2/tenants", Authorization=f"Basic {shown}")
            assert answer.status == status
    assert len(threads) == 5
    assert all(name.startswith("geminga-passwords") for name in threads)


def test_passwords_authenticate_http_requests(method):
    authentication: Any = Authenticator({"basic": method})
    assert authentication.authenticate(*authentication.shown("Basic YXByMTpzZWNyZXQ="), NOW).role == "apr1"
    for header in ("Basic YXByMTp3cm9uZw==", "Basic !", "Bearer x", None):
        with pytest.raises(Unauthenticated):
            authentication.authenticate(*authentication.shown(header), NOW)
    assert "secret" not in repr(authentication)
    assert "apr1$" not in repr(method)
