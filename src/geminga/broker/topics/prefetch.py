"""Keys of the store to read ahead, on other threads, before a topic is used."""

from collections.abc import Sequence

from geminga.broker.delivery.cursor_writer import cursor_prefix
from geminga.broker.delivery.delivery_times import summary_prefix
from geminga.broker.entries import ledger_list
from geminga.broker.entries.entry_counts import blocks_key, has_blocks, totals_key
from geminga.broker.rules.namespaces import TOPIC_POLICIES
from geminga.broker.rules.schemas import schema_key
from geminga.broker.topics.dedup import dedup_key
from geminga.broker.topics.persistent import topic_key
from geminga.broker.topics.topic_transactions import aborted_key
from geminga.ids import TopicName
from geminga.ledger.api import KEYS_END, PrefetchRequest, StoredLedger

PARTITIONED = "partitioned/"
"""Prefix of the keys of partitioned topics."""


def partitioned_key(name: TopicName) -> str:
    return f"{PARTITIONED}{name}"


def existence_of(name: TopicName) -> PrefetchRequest:
    """Return the keys that hold whether a topic exists, its number of partitions, and its policies."""
    names = dict.fromkeys((name, name.base))
    keys = [topic_key(str(name)), *map(partitioned_key, names), f"{TOPIC_POLICIES}{name.base}"]
    return PrefetchRequest(tuple((key, key) for key in keys))


def schemas_of(name: TopicName) -> PrefetchRequest:
    """Return the keys of the versions of a topic's schema, and of the policies for them."""
    keys = (schema_key(name), f"{TOPIC_POLICIES}{name.base}")
    return PrefetchRequest(tuple((key, key) for key in keys))


def topic_of(name: TopicName) -> PrefetchRequest:
    """Return the keys that loading or creating a topic reads, except `counts_of`."""
    text = str(name)
    ranges = [(each, f"{each}{KEYS_END}") for each in (cursor_prefix(text), summary_prefix(text))]
    alone = (
        ledger_list.key_of(text), totals_key(text), dedup_key(text), schema_key(name), aborted_key(text),
    )  # fmt: skip
    return PrefetchRequest(
        (*existence_of(name).keys, *((key, key) for key in alone), *ranges), ((text, text),)
    )


def counts_of(text: str, ledgers: Sequence[StoredLedger]) -> PrefetchRequest | None:
    """Return the keys of the entry counts of a topic's last ledger, if they are not in its totals."""
    if not ledgers or not has_blocks(ledgers[-1].entries, ledgers[-1].size_bytes):
        return None
    key = blocks_key(text, ledgers[-1].ledger_id)
    return PrefetchRequest(((key, key),))
