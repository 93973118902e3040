"""Stock settings: Geminga's are what its clients really do without arguments; others are pinned."""

import inspect

import pytest

import geminga
from geminga.client.options import arguments
from geminga.errors import InvalidConfiguration
from geminga.producer.settings import CompressionType
from geminga.schema import BytesSchema
from geminga.tuning.publish_settings import CHOSEN
from geminga.tuning.stock import GEMINGA, JAVA, PULSAR_CLIENT, STOCK, stock


def test_gemingas_stock_settings_are_the_defaults_of_create_producer():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(geminga.Client.create_producer).parameters.items()
    }
    settings = arguments.producer_settings(defaults, BytesSchema())
    for name in CHOSEN:
        assert getattr(GEMINGA.settings.producer, name) == getattr(settings, name), name


def test_pulsar_clients_stock_settings_are_the_defaults_of_its_signature():
    pulsar = pytest.importorskip("pulsar")
    takes = inspect.signature(pulsar.Client.create_producer).parameters
    for name, value in PULSAR_CLIENT.settings.producer_arguments().items():
        if name in takes and name not in ("compression_type", "batching_type"):
            assert takes[name].default == value, name


def test_javas_stock_settings_limit_memory():
    assert JAVA.settings.memory_limit_bytes == 64 << 20
    assert JAVA.settings.permits_per_partition(60) == 0
    assert JAVA.settings.producer.batching_max_publish_delay_seconds == 0.001


def test_stock_is_found_by_name_and_takes_a_codec():
    assert [stock(name).title for name in STOCK] == ["Java client 4.0.4", "pulsar-client 3.13", "Geminga"]
    assert JAVA.compressed(CompressionType.LZ4).producer.compression_type is CompressionType.LZ4
    with pytest.raises(InvalidConfiguration, match=r"stock='jav'.*did you mean 'java'"):
        stock("jav")
