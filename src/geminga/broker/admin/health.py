"""Health of a broker, for ``/livez`` and ``/readyz``."""

from geminga.broker.core import Broker


def live(broker: Broker) -> str:
    """Return why the broker must be restarted; empty while its store works."""
    failure = broker.store.failure
    return "" if failure is None else f"the store has stopped: {failure}"


def ready(broker: Broker) -> str:
    """Return why the broker takes no messages; empty while it does."""
    if broker.disk.refusal:
        # Without its figures: this needs no credentials.
        return "the disk is full: nothing is published; see /admin/v2/geminga/disk"
    return live(broker)
