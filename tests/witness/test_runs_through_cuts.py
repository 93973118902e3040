"""Messages that travel in runs, through connections cut at any byte: `pulsar-client` finds them all."""

import sys
import uuid
from pathlib import Path

import pulsar
import pytest

from geminga.broker.serving.embedded import embedded
from geminga.client.admin import admin

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from runs_through_cuts import Play, read_all


@pytest.fixture(scope="module", params=[False, True], ids=["at least once", "deduplicated"])
def cut_broker(request):
    with embedded(deduplication=request.param) as running:
        yield running, request.param


@pytest.mark.simulation(6, 3)
def test_what_has_a_receipt_is_found_however_connections_are_cut(cut_broker, connect, seeds):
    broker, deduplicates = cut_broker
    witness = connect(broker.service_url)
    for seed in seeds:
        topic = f"persistent://public/default/cut-{uuid.uuid4().hex[:12]}"

        def unload(topic: str = topic) -> None:
            admin(broker.admin_url, "PUT", f"{topic.replace('://', '/')}/unload")

        # A subscription must retain the messages for later readers.
        witness.subscribe(topic, "keeps").close()
        play = Play(seed, int(broker.service_url.rsplit(":", 1)[1]), topic, unload, deduplicates)
        play.run()
        found = read_all(witness, topic, pulsar.MessageId.earliest, pulsar.Timeout, b"-1:last")
        try:
            play.audit(found)
        except AssertionError as error:
            raise AssertionError(f"--seed {seed}: {error}") from error
