"""Keys that sign marks, changed while mirrors run or restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import geminga
from geminga.mirror.entries import EntryRewriter, TargetEntry
from geminga.mirror.keys import KEY_PREFIX, StampKeys, fingerprint
from geminga.mirror.pairing import SIGNER_PROPERTY, subscription_of
from geminga.mirror.positions import Position
from tests.mirror.helpers import mirror, mirrored
from tests.mirror.test_forgeries import (
    MINE,
    entries,
    forget_progress,
    held,
    messages,
    pair_in,
    publish,
    publish_raw,
    until,
)

pytestmark = pytest.mark.timeout(240)
PROPERTIES = "namespaces/public/default/properties"


@pytest.fixture
def sides() -> Iterator[tuple[Any, Any]]:
    with geminga.embedded() as one, geminga.embedded() as other:
        yield one, other


def keys_in(broker: Any) -> list[bytes]:
    with geminga.Admin(broker.admin_url) as admin:
        found = admin.call("GET", PROPERTIES) or {}
    return [bytes.fromhex(text) for name, text in sorted(found.items()) if name.startswith(KEY_PREFIX)]


def remove_keys(broker: Any) -> None:
    with geminga.Admin(broker.admin_url) as admin:
        admin.call("DELETE", PROPERTIES)


def add_key(broker: Any, name: str, key: bytes) -> None:
    with geminga.Admin(broker.admin_url) as admin:
        admin.call("PUT", PROPERTIES, {KEY_PREFIX + name: key.hex()})


def test_a_key_that_is_removed_is_put_back_while_a_mirror_runs(sides: tuple[Any, Any]) -> None:
    """Otherwise a restarted mirror copies entries back to their origin."""
    one, other = sides
    publish(one, 0)
    with mirror(one, other) as there, mirror(other, one) as back:
        for running in (there, back):
            assert running.wait_until_caught_up(60)
        before = [keys_in(broker) for broker in sides]
        for broker in sides:
            remove_keys(broker)
        until(lambda: [keys_in(broker) for broker in sides] == before)
        publish(one, *range(1, 5))
        publish(other, *range(5, 9))
        for broker in sides:
            until(lambda broker=broker: len(messages(broker)) >= 9)
    assert sorted(messages(one)) == sorted(messages(other)) == list(range(9))


def test_no_message_loops_without_the_keys(sides: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror recognises its own entries, even if others have changed them."""

    async def nothing(self: StampKeys) -> None:
        pass

    monkeypatch.setattr(StampKeys, "keep", nothing)
    one, other = sides
    publish(one, 0)
    with mirror(one, other) as there, mirror(other, one) as back:
        for running in (there, back):
            assert running.wait_until_caught_up(60)
        for broker in sides:
            remove_keys(broker)
        publish(one, *range(1, 20))
        until(lambda: len(messages(other)) >= 20)
        publish(one, 20)
        publish(other, 21)
        for broker in sides:
            until(lambda broker=broker: {20, 21} <= set(messages(broker)))
    for broker in sides:
        assert max(messages(broker).count(number) for number in range(22)) <= 2


def test_a_mirror_that_waited_knows_what_the_other_has_signed(sides: tuple[Any, Any]) -> None:
    """Two begin at once, and each makes a key: the one that waits takes over where the first was killed."""
    one, other = sides
    publish(one, 0)
    mirrored(one, other)
    pair, theirs = pair_in(one), b"k" * 32
    with held(other, f"{MINE}.{pair.hex()}") as release, mirror(one, other) as waiting:
        until(lambda: "waiting" in waiting.status().partitions[0].state)
        add_key(one, "zzz", theirs)
        publish(one, 1, 2)
        with geminga.Admin(one.admin_url) as admin:
            ledger = admin.topics.internal_stats("t").ledgers[0].ledger_id
        rewriter = EntryRewriter(pair=pair, source_name="standalone", target_name="standalone", key=theirs)
        for number in (1, 2):
            forwarded = rewriter.rewrite(entries(one)[number], Position(ledger, number))
            assert isinstance(forwarded, TargetEntry)
            publish_raw(other, forwarded.head + bytes(forwarded.payload))
        release()
        publish(one, 3)
        until(lambda: 3 in messages(other))
    assert messages(other) == [0, 1, 2, 3]


def test_a_removed_key_is_reported(sides: tuple[Any, Any]) -> None:
    """Without the key, entries in flight when the mirror was killed would be duplicated silently."""
    one, other = sides
    publish(one, *range(5))
    mirrored(one, other)
    (key,) = keys_in(one)
    with geminga.Admin(one.admin_url) as admin:
        noted = admin.subscriptions.properties("t", subscription_of("standalone"))
    assert noted[SIGNER_PROPERTY] == fingerprint(key)
    remove_keys(one)
    forget_progress(one, other)
    status = mirror(one, other, once=True).run(signals=False)
    assert "the key is gone" in status.failed[0]
    assert messages(other) == list(range(5))
    add_key(one, "back", key)
    publish(one, 5)
    mirrored(one, other)
    assert messages(other) == list(range(6))
    # The other way out, after a mirror that ended in good order.
    remove_keys(one)
    publish(one, 6)
    mirrored(one, other, on_mismatch="continue")
    mirrored(one, other)
    assert messages(other) == list(range(7))


def test_where_nothing_was_mirrored_no_key_is_missed(sides: tuple[Any, Any]) -> None:
    one, other = sides
    with geminga.Admin(one.admin_url) as admin:
        admin.topics.create("t")
    mirrored(one, other)
    remove_keys(one)
    publish(one, 1)
    mirrored(one, other)
    assert messages(other) == [1]
