"""The programs of ``tests/programs`` with both libraries on our broker: they cannot tell them apart."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from geminga.broker.serving.embedded import embedded

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
columns: Any = importlib.import_module("columns")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def outcomes():
    with embedded(failover_delay_seconds=0.1, batch_index_ack=True) as broker:
        urls = (broker.service_url, broker.admin_url)
        found: dict[str, dict[str, Any]] = columns.run({p: (p, *urls) for p in ("geminga", "pulsar")})
    return found


@pytest.mark.parametrize("program", columns.names())
def test_both_libraries_have_the_same_outcome(outcomes, program):
    found = columns.differing({library: of[program] for library, of in outcomes.items()})
    assert not found, found
