"""Keys of the settings: a path that is no readable file is an error, never the key."""

import base64
from pathlib import Path

import pytest

import geminga
from geminga.broker.serving.credentials import make_authentication, read_key, read_secret
from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration

SECRET = bytes(range(200, 248))


def test_a_key_is_read_in_each_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "signing").write_bytes(SECRET)
    text = base64.b64encode(SECRET[:32]).decode()
    assert "/" in text
    for form in (f"{tmp_path}/signing", "./signing", "signing", f"file://{tmp_path}/signing"):
        assert read_secret(form, "token_secret_key") == SECRET
    for form in (text, f" {text}\n", f"data:;base64,{text}"):
        assert read_secret(form, "token_secret_key") == SECRET[:32]


@pytest.mark.parametrize("setting", ["token_secret_key", "token_public_key", "basic_auth"])
def test_a_path_without_a_file_is_refused(setting):
    path = "/etc/geminga/signing+secretkeyproductionAAAA"
    assert len(base64.b64decode(path, validate=True)) >= 32
    with pytest.raises(InvalidConfiguration, match=f"{setting}: .*No such file or directory") as refused:
        make_authentication(BrokerSettings(memory=True, **{setting: path}))
    assert path not in str(refused.value)  # it could be a key in base64


@pytest.mark.parametrize("name", ["A" * 44, "keys/signing"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(InvalidConfiguration, match=f"{name} cannot be read: Is a directory"):
        read_key(name, "token_secret_key")


def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ("A" * 44)).write_bytes(SECRET)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InvalidConfiguration, match="Permission denied"):
        read_key("A" * 44, "token_secret_key")


def test_a_public_key_is_refused_as_the_secret(tmp_path):
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    for encoding in (Encoding.DER, Encoding.PEM):
        (tmp_path / "key").write_bytes(public.public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo))
        with pytest.raises(InvalidConfiguration, match="is a public key"):
            read_secret(f"{tmp_path}/key", "token_secret_key")


def test_a_key_that_tokens_cannot_use_never_becomes_a_secret(tmp_path):
    """Everybody who has such a public key could sign tokens with it."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    unusable = [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP192R1())]
    form = PublicFormat.SubjectPublicKeyInfo
    datas = [key.public_key().public_bytes(Encoding.DER, form) for key in unusable]
    for data in [*datas, b"-----BEGIN PUBLIC KEY-----\ncut off before the end of the file"]:
        key = f"data:;base64,{base64.b64encode(data).decode()}"
        with pytest.raises(InvalidConfiguration, match="token_secret_key is a public key"):
            make_authentication(BrokerSettings(memory=True, token_secret_key=key))
        with pytest.raises(InvalidConfiguration, match=r"cannot be read|neither an RSA key|is not known"):
            make_authentication(BrokerSettings(memory=True, token_secret_key="A" * 44, token_second_key=key))


def test_a_short_second_secret_is_named():
    with pytest.raises(InvalidConfiguration, match="token_second_key has 3 bytes; a secret needs 32"):
        make_authentication(BrokerSettings(memory=True, token_secret_key="A" * 44, token_second_key="AAAA"))


def test_a_broker_with_a_wrong_key_does_not_touch_the_store(tmp_path):
    with pytest.raises(InvalidConfiguration, match="token_secret_key has 5 bytes"):
        geminga.embedded(tmp_path / "data", token_secret_key="data:,short")
    assert list(tmp_path.iterdir()) == []
