"""Deduplication of the exactly-once sink's topics, checked and turned on through admin REST."""

import logging
import time

from geminga.client.admin.sync import Admin
from geminga.client.handles.web_address import find_admin_url
from geminga.errors import AdminError, AdminNotFound, NotAllowedError, PulsarException
from geminga.ids import TopicName
from geminga.spark.cluster.clients import client_for, open_admin
from geminga.spark.options import WriteOptions

logger = logging.getLogger("geminga.spark")

ENABLED = "Enabled"
IN_FORCE_SECONDS = 30.0
"""Limit of the wait until a policy that was set is in force."""

ADDRESS_SECONDS = 10.0
"""Limit of the search for the broker's web address."""

_asked: set[tuple[object, ...]] = set()
"""Connections and topics already checked in this process."""


def ensure_deduplication(options: WriteOptions, topic: str) -> None:
    """Turn deduplication on for a topic if it is off.

    Return without effect where the topic is not there yet, or where admin REST does not answer: the commit
    finds out later. Raises `NotAllowedError` with the command that turns it on.
    """
    key = options.connection, options.admin_url, topic
    if key in _asked:
        return
    client = client_for(options.connection)
    url = options.admin_url
    try:
        if url is None:
            url = client.runtime.call(find_admin_url(client.context), ADDRESS_SECONDS)
        with open_admin(options.connection, url) as admin:
            name, *_ = client.get_topic_partitions(topic)
            if _status(admin, name) != ENABLED:
                _turn_on(admin, topic, name)
    except AdminNotFound:
        return
    except (PulsarException, OSError) as error:
        if isinstance(error, NotAllowedError) and not isinstance(error, AdminError):
            raise
        logger.info("admin REST does not show whether %s is deduplicated: %s", topic, error)
    _asked.add(key)


def command_for(topic: str) -> str:
    """Return the command that turns deduplication on for the topic's namespace."""
    namespace = TopicName.parse(topic).namespace_name
    return f"'geminga namespaces set-deduplication {namespace} on'"


def _turn_on(admin: Admin, topic: str, name: str) -> None:
    try:
        admin.topic_policies.deduplication.set(topic, True)
    except AdminError as error:
        raise NotAllowedError(
            f"{topic}: the broker does not deduplicate, which exactlyOnce=true needs, and turning it on for "
            f"the topic failed: {error}. Turn it on for the namespace: {command_for(topic)}. Nothing of this "
            "micro-batch is published"
        ) from error
    until = time.monotonic() + IN_FORCE_SECONDS
    while _status(admin, name) != ENABLED:
        if time.monotonic() >= until:
            raise NotAllowedError(
                f"{topic}: deduplication was turned on for the topic and is not in force after "
                f"{IN_FORCE_SECONDS:g} s. Turn it on for the namespace: {command_for(topic)}"
            )
        time.sleep(0.05)
    logger.warning("%s: deduplication was turned on for the topic, as exactlyOnce=true needs it", topic)


def _status(admin: Admin, name: str) -> str | None:
    return admin.topics.stats(name).deduplication_status
