"""The modelled broker: queueing, order, faults."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from geminga.errors import InvalidConfiguration
from geminga.tuning.event_loops import EventLoop
from geminga.tuning.modelled_broker import BrokerModel, Fault, FaultKind, ModelledBroker, pooled, quantiles_of


def broker(faults: tuple[Fault, ...] = (), **fields: Any) -> ModelledBroker:
    plain = {"entry_seconds": 0.001, "byte_seconds": 0.0, "threads": 1, "keeping_seconds": (0.0,), **fields}
    return ModelledBroker(BrokerModel(**plain), faults, np.random.default_rng(1))


def test_entries_queue_for_the_brokers_threads() -> None:
    one, two = broker(), broker(threads=2)
    assert [one.arrive(0.0, i, 0, 100) for i in range(3)] == pytest.approx([0.001, 0.002, 0.003])
    assert [two.arrive(0.0, i, 0, 100) for i in range(3)] == pytest.approx([0.001, 0.001, 0.002])
    assert one.busy_seconds == pytest.approx(0.003)


def test_bytes_cost_time() -> None:
    one = broker(byte_seconds=1e-6, keeping_byte_seconds=1e-6)
    assert one.arrive(0.0, "p", 0, 1000) == pytest.approx(0.001 + 0.001 + 0.001)


def test_keeping_follows_the_measured_quantiles() -> None:
    samples = np.random.default_rng(3).lognormal(-6, 0.5, 5000)
    one = broker(entry_seconds=0.0, keeping_seconds=quantiles_of(samples.tolist()))
    drawn = [one.arrive(0.0, number, 0, 1) for number in range(20_000)]
    for level in (0.5, 0.9, 0.99):
        assert np.quantile(drawn, level) == pytest.approx(np.quantile(samples, level), rel=0.05)


def test_receipts_of_a_producer_keep_their_order() -> None:
    one = broker(entry_seconds=0.0, keeping_seconds=(0.0, 0.1))
    times = [one.arrive(0.0, "p", 0, 1) for _ in range(50)]
    assert times == sorted(times)


def test_faults_hit_their_partition_and_their_time() -> None:
    faults = (
        Fault(partition=1, kind=FaultKind.SLOW, start_seconds=1.0, end_seconds=2.0, extra_seconds=0.5),
        Fault(partition=2, kind=FaultKind.STUCK, start_seconds=1.0, end_seconds=5.0),
    )
    one = broker(faults, threads=100)
    assert one.arrive(0.5, "a", 1, 1) == pytest.approx(0.501)
    assert one.arrive(1.5, "a", 1, 1) == pytest.approx(2.001)
    assert one.arrive(2.5, "a", 1, 1) == pytest.approx(2.501)
    assert one.arrive(1.5, "b", 2, 1) == pytest.approx(5.0)
    assert one.arrive(1.5, "c", 0, 1) == pytest.approx(1.501)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"threads": 0}, "threads"),
        ({"network_seconds": -1.0}, "network_seconds"),
        ({"bandwidth_bytes_per_second": 0.0}, "bandwidth_bytes_per_second"),
        ({"keeping_seconds": ()}, "keeping_seconds"),
        ({"keeping_seconds": (2.0, 1.0)}, "keeping_seconds"),
        ({"keeping_seconds": (0.0, float("nan"))}, "keeping_seconds"),
    ],
)
def test_models_that_make_no_sense_are_refused(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidConfiguration, match=word):
        BrokerModel(**fields)


def test_a_model_survives_json() -> None:
    model = BrokerModel(keeping_seconds=(0.001, 0.002, 0.004), name="mine")
    assert BrokerModel.from_dict(model.to_dict()) == model
    with pytest.raises(InvalidConfiguration, match="no model of a broker"):
        BrokerModel.from_dict({"colour": 1})


def test_measurements_of_one_broker_are_pooled() -> None:
    quick = BrokerModel(keeping_seconds=(0.001,), keeping_byte_seconds=1e-9, name="first")
    slow = BrokerModel(keeping_seconds=(0.002, 0.004), keeping_byte_seconds=3e-9)
    model = pooled([quick, slow])
    assert model.name == "first"
    assert model.keeping_seconds[0] == 0.001
    assert model.keeping_seconds[len(model.keeping_seconds) // 4] == 0.001
    assert model.keeping_seconds[-1] == pytest.approx(0.004)
    assert model.keeping_seconds[3 * len(model.keeping_seconds) // 4] == pytest.approx(0.003, rel=0.01)
    assert model.keeping_byte_seconds == pytest.approx(2e-9)
    with pytest.raises(InvalidConfiguration, match="at least one"):
        pooled([])


def test_the_clients_part_survives_its_file() -> None:
    model = BrokerModel(event_loop=EventLoop.UVLOOP, encoding_seconds=1e-4, encoding_byte_seconds=1e-9)
    assert BrokerModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model
    with pytest.raises(InvalidConfiguration, match="no model of a broker: 'trio' is not a valid EventLoop"):
        BrokerModel.from_dict({"event_loop": "trio"})
