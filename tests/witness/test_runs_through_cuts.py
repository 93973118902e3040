"""Messages that travel in runs, through connections cut at any byte: `pulsar-client` finds them all."""

import sys
from pathlib import Path

import pytest

from geminga.broker.serving.embedded import embedded

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from runs_through_cuts import check_runs


@pytest.fixture(scope="module", params=[False, True], ids=["at least once", "deduplicated"])
def cut_broker(request):
    with embedded(deduplication=request.param) as running:
        yield running, request.param


@pytest.mark.simulation(6, 3)
def test_what_has_a_receipt_is_found_however_connections_are_cut(cut_broker, connect, seeds):
    broker, deduplicates = cut_broker
    check_runs(connect(broker.service_url), broker, seeds, deduplicates=deduplicates)
