"""Refusals name their code."""

from __future__ import annotations

from geminga.broker.refusal import Refused, storage_refusal
from geminga.errors import StoreBusy, StoreDamaged, StoreStopped
from geminga.wire.proto import pulsar_wire_pb2 as pb


def test_a_refusal_reads_well() -> None:
    assert str(Refused(pb.ConsumerBusy, "taken")) == "ConsumerBusy: taken"


def test_the_store_is_a_persistence_error() -> None:
    refused = storage_refusal(StoreStopped("disk full"))
    assert (refused.code, refused.reason) == (pb.PersistenceError, "disk full")
    assert storage_refusal(StoreStopped()).reason == "StoreStopped"


def test_what_only_had_to_wait_is_tried_again_by_clients() -> None:
    assert storage_refusal(StoreBusy("try again")).code == pb.ServiceNotReady
    assert storage_refusal(StoreDamaged("gone")).code == pb.PersistenceError
