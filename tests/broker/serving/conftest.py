"""A certificate authority, and a broker's settings with a certificate of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geminga.testing.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls(authority: Authority) -> dict[str, Any]:
    certificate, key = authority.sign("broker")
    return {"tls_certificate": certificate, "tls_key": key}
