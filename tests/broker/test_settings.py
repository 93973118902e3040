"""Broker settings: defaults, refusals that name the field, derived addresses."""

import dataclasses
from pathlib import Path

import click
import pytest
from cases import cases

from geminga.broker.settings import BrokerSettings, setting
from geminga.cli.standalone import _option
from geminga.errors import InvalidConfiguration


def test_defaults_are_loopback_and_full_sync():
    settings = BrokerSettings(memory=True)
    assert settings.host == "127.0.0.1"
    assert settings.sync == "always"
    assert settings.service_url == "pulsar://127.0.0.1:6650"
    assert settings.admin_url == "http://127.0.0.1:8080"
    assert settings.broker_id == "127.0.0.1:8080"
    assert not settings.lookup_through_service_url


@pytest.mark.parametrize("host", ["::1", "fe80::1%eth0", "::ffff:10.0.0.1", "10.0.0.1", "a-b.c_d"])
def test_names_and_addresses_are_hosts(host):
    assert BrokerSettings(memory=True, host=host, advertised_address=host).host == host


def test_a_folder_is_a_path(tmp_path):
    assert BrokerSettings(data_dir=str(tmp_path)).data_dir == tmp_path


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        *cases("broker_settings_refused"),
        ({"data_dir": Path("s3://bucket/x"), "memory": False}, "data_dir.*no URL"),
    ],
)
def test_refusals_name_what_is_wrong(wrong, names):
    with pytest.raises(InvalidConfiguration, match=names):
        BrokerSettings(**{"memory": True, **wrong})


def test_fractions_are_refused_as_numbers_without_unit():
    with pytest.raises(InvalidConfiguration, match=r"allowed: a number >= 0\.0 and <= 0\.9"):
        BrokerSettings(memory=True, disk_low_water_fraction=2.0)


@pytest.mark.parametrize("field", dataclasses.fields(BrokerSettings), ids=lambda one: one.name)
def test_values_of_another_type_are_refused_without_quoting_secrets(field):
    with pytest.raises(InvalidConfiguration, match=field.name) as refused:
        BrokerSettings(**{"memory": True, field.name: {"hunter2"}})
    is_shown = field.repr and field.name != "offload_location"  # its URL may have a secret
    assert ("hunter2" in str(refused.value)) == is_shown


def test_an_option_parses_numbers_with_a_fraction():
    made = [("ratio", float, setting(0.5, option="--ratio", in_help=True))]
    (field,) = dataclasses.fields(dataclasses.make_dataclass("Settings", made))
    field.type = "float"  # as in a module with postponed annotations
    command = click.Command("run", params=[])
    _option(field)(command)
    assert command.make_context("run", ["--ratio", "0.25"]).params == {"ratio": 0.25}


def test_settings_are_frozen_and_keyword_only():
    settings = BrokerSettings(memory=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.port = 1
    with pytest.raises(TypeError):
        BrokerSettings("127.0.0.1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "*"])
def test_wildcard_hosts_send_clients_back_the_way_they_came(host):
    settings = BrokerSettings(memory=True, host=host)
    assert settings.lookup_through_service_url
    assert settings.service_url == "pulsar://localhost:6650"
    named = BrokerSettings(memory=True, host=host, advertised_address="broker.example")
    assert not named.lookup_through_service_url
    assert named.service_url == "pulsar://broker.example:6650"


def test_ipv6_addresses_are_bracketed():
    assert BrokerSettings(memory=True, host="::1").service_url == "pulsar://[::1]:6650"


def test_settings_without_a_web_server_have_no_admin_url():
    settings = BrokerSettings(memory=True, web_port=None)
    assert settings.admin_url is None
    assert settings.broker_id == "127.0.0.1:6650"


def test_default_retention_depends_on_the_kind_of_store(tmp_path):
    assert BrokerSettings(memory=True).retention_megabytes_default == 256
    assert BrokerSettings(data_dir=tmp_path).retention_megabytes_default == -1
    assert BrokerSettings(data_dir=tmp_path, retention_megabytes=5).retention_megabytes_default == 5
