"""A certificate authority, and a broker's settings with a certificate of it."""

import pytest

from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def tls(authority):
    certificate, key = authority.sign("broker")
    return {"tls_certificate": certificate, "tls_key": key}
