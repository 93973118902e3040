"""What the store has of a topic, by key: it is read ahead on other threads before the topic is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from geminga.broker import ledger_list
from geminga.broker.delivery.subscription import cursor_prefix
from geminga.broker.entry_counts import blocks_key, has_blocks, totals_key
from geminga.broker.rules.namespaces import TOPIC_POLICIES
from geminga.broker.rules.schemas import schema_key
from geminga.broker.topics.dedup import dedup_key
from geminga.broker.topics.persistent import topic_key
from geminga.ids import TopicName
from geminga.ledger.api import KEYS_END, PrefetchRequest, StoredLedger

PARTITIONED = "partitioned/"
"""What the keys of partitioned topics begin with."""


def partitioned_key(name: TopicName) -> str:
    return f"{PARTITIONED}{name}"


def existence_of(name: TopicName) -> PrefetchRequest:
    """What says whether there is such a topic, of how many partitions, and by which rules."""
    names = dict.fromkeys((name, name.base))
    keys = [topic_key(str(name)), *map(partitioned_key, names), f"{TOPIC_POLICIES}{name.base}"]
    return PrefetchRequest(tuple((key, key) for key in keys))


def schemas_of(name: TopicName) -> PrefetchRequest:
    """The versions of a topic's schema, and the rules for them."""
    keys = (schema_key(name), f"{TOPIC_POLICIES}{name.base}")
    return PrefetchRequest(tuple((key, key) for key in keys))


def topic_of(name: TopicName) -> PrefetchRequest:
    """What loading a topic reads, and who makes it if there is none; but for `counts_of`."""
    text = str(name)
    cursors = cursor_prefix(text)
    alone = (ledger_list.key_of(text), totals_key(text), dedup_key(text), schema_key(name))
    return PrefetchRequest(
        (*existence_of(name).keys, *((key, key) for key in alone), (cursors, f"{cursors}{KEYS_END}")),
        ((text, text),),
    )


def counts_of(text: str, ledgers: Sequence[StoredLedger]) -> PrefetchRequest | None:
    """The counts of the entries of a topic's last ledger, if they are not in its totals."""
    if not ledgers or not has_blocks(ledgers[-1].entries, ledgers[-1].size_bytes):
        return None
    key = blocks_key(text, ledgers[-1].ledger_id)
    return PrefetchRequest(((key, key),))
