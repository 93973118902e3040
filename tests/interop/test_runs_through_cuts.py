"""Messages that travel in runs to Apache Pulsar, through connections that are cut at any byte and unloads:
`pulsar-client` finds all that have a receipt."""

import sys
from pathlib import Path

import pulsar
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from runs_through_cuts import check_runs

pytestmark = pytest.mark.interop


@pytest.mark.simulation(4, 2)
def test_what_has_a_receipt_is_found_however_connections_are_cut(apache_pulsar, seeds):
    """The broker deduplicates."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    witness = pulsar.Client(apache_pulsar.service_url, logger=logger)
    check_runs(witness, apache_pulsar, seeds, deduplicates=True)
    witness.close()
