"""Every sub-command of Apache Pulsar's own pulsar-admin, on both brokers: the same status, the same shape."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import geminga
from geminga.testing.apache_pulsar import ApachePulsar

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
admin_matrix: Any = importlib.import_module("admin_matrix")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def test_every_command_answers_as_apache_pulsar_does(pulsar_home, tmp_path):
    # Not the broker that other tests share: it still lists a cluster after its deletion.
    theirs = ApachePulsar.start(
        pulsar_home, tmp_path / "apache", timeout_seconds=180, **admin_matrix.APACHE_SETTINGS
    )
    with theirs, geminga.embedded(tmp_path / "store") as ours:
        known, rows = admin_matrix.matrix(pulsar_home, theirs, ours, tmp_path)
    assert len(known) > 500
    assert not admin_matrix.unmentioned(known, rows), "neither run nor left out"
    unexplained = [row for row in rows if row.difference is not None and row.reason is None]
    assert not unexplained, "\n".join(f"{row.line}\n    {row.difference}" for row in unexplained)
    # The page names all differences and no others; tools/admin_matrix.py writes it again.
    assert (ROOT / "docs/reference/pulsar-admin.md").read_text() == admin_matrix.page(known, rows)
