"""Refusals name their code."""

from geminga.broker.refusal import Refused, storage_refusal
from geminga.errors import StoreBusy, StoreDamaged, StoreStopped
from geminga.wire.proto import pulsar_wire_pb2 as pb


def test_a_refusal_has_code_and_message():
    assert str(Refused(pb.ConsumerBusy, "taken")) == "ConsumerBusy: taken"


def test_store_errors_are_persistence_errors():
    refused = storage_refusal(StoreStopped("disk full"))
    assert (refused.code, refused.reason) == (pb.PersistenceError, "disk full")
    assert storage_refusal(StoreStopped()).reason == "StoreStopped"


def test_temporary_errors_have_codes_that_clients_retry():
    assert storage_refusal(StoreBusy("try again")).code == pb.ServiceNotReady
    assert storage_refusal(StoreDamaged("gone")).code == pb.PersistenceError
