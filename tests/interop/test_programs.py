"""The programs of ``tests/programs`` four ways: both libraries, each on our broker and on Apache Pulsar.

The four columns agree; the table is printed at the end of the run, by ``make interop``, too.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from geminga.broker.serving.embedded import embedded

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
columns: Any = importlib.import_module("columns")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1500)]

Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(apache_pulsar, told):
    found: Outcomes = {}
    with embedded(failover_delay_seconds=0.1, batch_index_ack=True) as broker:
        for name, place in {"Geminga": broker, "Apache Pulsar": apache_pulsar}.items():
            urls = (place.service_url, place.admin_url)
            found |= columns.run({f"{p} on {name}": (p, *urls) for p in ("geminga", "pulsar")})
    yield found
    told("programs: the same letter is the same outcome, - is a failure", columns.table(found))


@pytest.mark.parametrize("program", columns.names())
def test_programs_have_the_same_outcome_with_both_libraries_on_both_brokers(outcomes, program):
    found = columns.differing({column: of[program] for column, of in outcomes.items()})
    assert not found, found
