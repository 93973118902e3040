"""Delayed delivery: never early, and not lost by a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"
Command = pb.BaseCommand


def test_delayed_messages_are_never_early_and_survive_a_restart(
    harness: Any, producer: Any, make_entry: Callable[..., bytes]
) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 5000))
    producer.send(1, make_entry(b"later", deliver_at_time=harness.now_ms + 9000))
    producer.send(2, make_entry(b"now"))
    assert peer.payloads() == [b"now"]
    harness.advance(4.999)
    assert peer.payloads() == []
    harness.advance(0.001)
    assert peer.payloads() == [b"late"]
    peer.ack((0, 0), (0, 2))
    harness.restart()
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    assert peer.payloads() == []
    harness.advance(4)
    assert peer.payloads() == [b"later"]


def test_the_wall_clock_decides_about_delays_not_the_timer(
    harness: Any, producer: Any, make_entry: Callable[..., bytes]
) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    due_ms = harness.now_ms + 1000
    producer.send(0, make_entry(b"late", deliver_at_time=due_ms))
    harness.broker.tick(harness.now + 2, due_ms - 1)
    assert peer.payloads() == []
    harness.broker.tick(harness.now + 2.1, due_ms)
    assert peer.payloads() == [b"late"]


def test_exclusive_consumers_do_not_wait_for_delays(
    harness: Any, producer: Any, make_entry: Callable[..., bytes]
) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC)
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 5000))
    assert peer.payloads() == [b"late"]
