"""A topic of an embedded broker that is offloaded, all but the ledger that is written to."""

from insides import server_of
from waiting import eventually

from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.client.admin import admin, topic_path
from geminga.ids import MessageId, TopicName
from tests.support.insides import inside


def offload_all(broker: EmbeddedBroker, topic: str) -> None:
    """Returns when the copies in the store are gone, too."""
    path = topic_path(TopicName.parse(topic))
    newest = {"ledgerId": MessageId.latest.ledger_id, "entryId": 0, "partitionIndex": -1}
    admin(broker.admin_url, "PUT", f"{path}/offload", newest)
    eventually(lambda: admin(broker.admin_url, "GET", f"{path}/offload")["status"] != "RUNNING")
    eventually(lambda: len(inside(broker, lambda: server_of(broker).store.tier.local_ledgers(topic))) <= 1)
