"""The arguments of end-to-end encryption."""

import os

import pytest

from geminga.client.options import crypto
from geminga.client.options.crypto import CryptoKeyReader, KeyReader, ProducerCryptoFailureAction
from geminga.errors import CryptoError, InvalidConfiguration

pytest.importorskip("cryptography")

FAIL, SEND = ProducerCryptoFailureAction.FAIL, ProducerCryptoFailureAction.SEND
READER = CryptoKeyReader("public.pem", "private.pem")


def test_names_of_keys():
    assert crypto.encryptor(None, (), None, FAIL) is None
    assert crypto.encryptor("", (), None, FAIL) is None
    assert crypto.encryptor("a", (), READER, FAIL).key_names == ("a",)
    assert crypto.encryptor("a", ["b", "a"], READER, FAIL).key_names == ("a", "b")
    assert not crypto.encryptor("a", (), READER, FAIL).plain_on_failure
    assert crypto.encryptor(None, ["b"], READER, SEND).plain_on_failure


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("k", (), None, FAIL), "crypto_key_reader"),
        ((None, ("k",), None, FAIL), "crypto_key_reader"),
        ((None, (), READER, FAIL), "encryption_key"),
        ((None, "k", READER, FAIL), "encryption_keys"),
        ((None, ("k", 1), READER, FAIL), "encryption_keys"),
        ((7, (), READER, FAIL), "encryption_key"),
        (("k", (), "public.pem", FAIL), "crypto_key_reader"),
        (("k", (), READER, "FAIL"), "crypto_failure_action"),
    ],
)
def test_encryption_settings_that_would_publish_plain_text_are_refused(arguments, field):
    with pytest.raises(InvalidConfiguration, match=field):
        crypto.encryptor(*arguments)


def test_custom_key_readers_are_accepted():
    class Server:
        def get_public_key(self, key_name, metadata):
            return b""

        def get_private_key(self, key_name, metadata):
            return b""

    for reader in (Server(), READER, CryptoKeyReader.of()):
        assert isinstance(reader, KeyReader)
        assert crypto.decryptor(reader) is not None
    assert crypto.decryptor(None) is None
    with pytest.raises(InvalidConfiguration, match="crypto_key_reader"):
        crypto.decryptor(lambda name, metadata: b"")
    with pytest.raises(InvalidConfiguration, match="private_key"):
        CryptoKeyReader.of(private_key=b"PEM")
    with pytest.raises(InvalidConfiguration, match="public_key_path"):
        CryptoKeyReader(b"public.pem", "private.pem")


def test_functions_as_a_reader():
    reader = CryptoKeyReader.of(public_key=lambda name, metadata: name.encode())
    assert reader.get_public_key("k", {}) == b"k"
    with pytest.raises(LookupError):
        reader.get_private_key("k", {})


def test_a_missing_file_is_a_crypto_error_that_names_the_key(tmp_path):
    source = crypto.encryptor("orders", (), CryptoKeyReader(str(tmp_path / "none.pem"), ""), FAIL, os.urandom)
    with pytest.raises(CryptoError, match="public key 'orders' was not given: FileNotFoundError"):
        source.renew()
