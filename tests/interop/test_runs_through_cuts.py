"""Messages that travel in runs to Apache Pulsar, through connections that are cut at any byte and unloads:
`pulsar-client` finds all that have a receipt."""

import sys
from pathlib import Path

import pulsar
import pytest
from waiting import until_accepted

from geminga.client.admin import admin, topic_path
from geminga.ids import TopicName

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from runs_through_cuts import Play, read_all

pytestmark = pytest.mark.interop


@pytest.mark.simulation(4, 2)
def test_what_has_a_receipt_is_found_however_connections_are_cut(apache_pulsar, topic, seeds):
    """The broker deduplicates."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    witness = pulsar.Client(apache_pulsar.service_url, logger=logger)
    for seed in seeds:
        name = topic("cut")
        path = topic_path(TopicName.parse(name))

        def unload(path: str = path) -> None:
            until_accepted(lambda: admin(apache_pulsar.admin_url, "PUT", f"{path}/unload"))

        # Else unloading trims messages without a subscription.
        witness.subscribe(name, "keeps").close()
        play = Play(seed, int(apache_pulsar.service_url.rsplit(":", 1)[1]), name, unload, dedup=True)
        play.run()
        found = read_all(witness, name, pulsar.MessageId.earliest, pulsar.Timeout, b"-1:last")
        try:
            play.audit(found)
        except AssertionError as error:
            raise AssertionError(f"--seed {seed}: {error}") from error
    witness.close()
