"""From measured round trips to a modelled broker, and the measuring itself against a real one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geminga.errors import InvalidConfiguration
from geminga.producer.settings import ProducerSettings
from geminga.tuning.modelled_broker import BrokerModel
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.round_trips import fitted, measure_round_trips
from geminga.tuning.simulation import simulate
from geminga.tuning.traffic import TrafficProfile


def test_the_fitted_model_gives_the_times_that_were_measured() -> None:
    draw = np.random.default_rng(4)
    base = {size: (0.001 + size * 2e-8 + draw.lognormal(-7.5, 0.4, 2000)) for size in (200, 20_000, 80_000)}
    model = fitted({size: times.tolist() for size, times in base.items()}, name="mine")
    assert model.name == "mine"
    assert model.keeping_byte_seconds + model.byte_seconds == pytest.approx(2e-8, rel=0.15)
    run = simulate(
        TrafficProfile(rate_messages_per_second=50, message_bytes=200),
        PublishSettings(producer=ProducerSettings(batching_enabled=False)), model, seconds=60.0,
    )  # fmt: skip
    for level, name in ((0.5, "latency_p50"), (0.9, "latency_p90"), (0.99, "latency_p99")):
        assert getattr(run, name) == pytest.approx(float(np.quantile(base[200], level)), rel=0.1)


def test_times_that_do_not_grow_with_size_make_bytes_free() -> None:
    assert fitted({100: [0.002, 0.003], 10_000: [0.001, 0.002]}).keeping_byte_seconds == 0.0
    assert fitted({100: [0.002]}).keeping_byte_seconds == 0.0


def test_a_network_is_not_slower_than_a_whole_trip() -> None:
    quick = fitted({100: [0.00015] * 20})
    usual = BrokerModel()
    assert 0 < quick.network_seconds < usual.network_seconds
    known = quick.timer_lag_seconds + 2 * quick.network_seconds + quick.entry_seconds
    assert known == pytest.approx(0.00015)
    assert fitted({100: [0.005] * 20}).network_seconds == usual.network_seconds
    assert fitted({100: [1e-6] * 20}).network_seconds == 0.0


@pytest.mark.parametrize("samples", [{}, {100: []}])
def test_nothing_measured_is_refused(samples: dict[int, list[float]]) -> None:
    with pytest.raises(InvalidConfiguration, match="at least one time"):
        fitted(samples)


def test_a_real_broker_is_measured(pulsar_broker: Any, pulsar_topic: str) -> None:
    trips = measure_round_trips(
        pulsar_broker.service_url, pulsar_topic, sizes=(100, 5000), entries=20, per_second=200.0
    )
    assert {size: len(times) for size, times in trips.items()} == {100: 20, 5000: 20}
    assert all(0 < seconds < 10 for times in trips.values() for seconds in times)
    assert isinstance(fitted(trips), BrokerModel)
