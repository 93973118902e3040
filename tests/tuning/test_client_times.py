"""What the client takes for a batch, measured without any broker."""

from __future__ import annotations

import threading

import pytest

from geminga.errors import InvalidConfiguration
from geminga.producer.settings import CompressionType, ProducerSettings
from geminga.tuning.client_times import TICKING, EncodingTimes, measure_encoding, measured_client, ticking
from geminga.tuning.event_loops import installed
from geminga.tuning.modelled_broker import BrokerModel
from geminga.tuning.traffic import TrafficProfile

PACKED = ProducerSettings(batching_enabled=True, compression_type=CompressionType.ZSTD)


def test_encoding_is_measured_on_this_machine() -> None:
    found = measure_encoding(PACKED, batches=5, per_second=1000.0)
    assert 0.0 <= found.seconds < 1.0
    assert 0.0 <= found.byte_seconds < 1e-5
    assert found.seconds + 100_000 * found.byte_seconds > 0.0


def test_batches_that_are_not_compressed_are_written_at_once() -> None:
    plain = ProducerSettings(batching_enabled=True)
    assert measure_encoding(plain) == EncodingTimes(seconds=0.0, byte_seconds=0.0)
    model = measured_client(BrokerModel(name="mine"), plain)
    assert (model.name, model.event_loop, model.encoding_seconds) == ("mine", installed(), 0.0)


def test_a_sender_ticks_beside_and_ends() -> None:
    profile = TrafficProfile(rate_messages_per_second=5000, message_bytes=10)
    with ticking(profile):
        assert TICKING in {thread.name for thread in threading.enumerate()}
    assert TICKING not in {thread.name for thread in threading.enumerate()}


def test_one_batch_is_too_few() -> None:
    with pytest.raises(InvalidConfiguration, match="batches"):
        measure_encoding(PACKED, batches=1)
