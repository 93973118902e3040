"""`geminga config` and the sources of the settings of `geminga standalone`."""

import contextlib
import dataclasses
import json
import stat
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from cases import cases
from click.testing import CliRunner, Result

from geminga.broker.settings import BrokerSettings
from geminga.cli import standalone
from geminga.cli.config import command
from geminga.errors import InvalidConfiguration


def run(*words: str, file: str | None = None, **environment: str) -> Result:
    """`geminga config show` with a file of this text, and the environment."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if file is not None:
            Path("geminga.toml").write_text(file)
            words = ("--config", "geminga.toml", *words)
        return CliRunner().invoke(command, ["show", *words], env=environment, standalone_mode=False)


def rows(result: Result) -> dict[str, tuple[Any, str]]:
    assert result.exception is None, result.exception
    found = [json.loads(line) for line in result.output.splitlines()]
    return {row["name"]: (row["value"], row["source"]) for row in found}


def test_an_option_overrides_the_environment_which_overrides_the_file():
    found = rows(
        run(
            "--json", "--port", "1",
            file="port = 3\nweb_port = 3\nconnections_max = 3\n",
            GEMINGA_PORT="2", GEMINGA_WEB_PORT="2",
        )
    )  # fmt: skip
    assert found["port"] == (1, "--port")
    assert found["web_port"] == (2, "GEMINGA_WEB_PORT")
    assert found["connections_max"] == (3, "geminga.toml")
    assert found["sync"] == ("always", "default")


def test_every_setting_can_be_given_by_file_environment_and_option():
    assert set(standalone.FIELDS) >= {field.name for field in dataclasses.fields(BrokerSettings)}
    text = {
        "anonymous_role": "guest", "token_audience": "a b", "disk_full_action": "producer_exception",
        "connections_max": "7", "backlog_quota_bytes": "-1", "offload_deletion_lag_seconds": "-1",
        "pending_bytes_max": "1G", "batch_index_ack": "false", "super_user_roles": "admin, ops",
        "advertised_listeners": "a:pulsar://h:1,b:pulsar://h:2", "token_secret_key": "A" * 44,
        "disk_low_water_bytes": "2G", "web_port": "none",
    }  # fmt: skip
    by_variable = rows(run("--json", **{f"GEMINGA_{name.upper()}": value for name, value in text.items()}))
    values = {
        "connections_max": 7, "backlog_quota_bytes": -1, "offload_deletion_lag_seconds": -1,
        "batch_index_ack": False, "pending_bytes_max": "1G", "super_user_roles": ["admin", "ops"],
        "disk_low_water_bytes": "2G",
        "advertised_listeners": ["a:pulsar://h:1", "b:pulsar://h:2"],
    }  # fmt: skip
    file = "".join(f"{name} = {json.dumps(values.get(name, value))}\n" for name, value in text.items())
    by_file = rows(run("--json", file=file))
    for name in text:
        assert by_variable[name][0] == by_file[name][0], name
    assert by_file["pending_bytes_max"][0] == 1 << 30
    assert by_file["web_port"][0] is None
    assert by_file["disk_low_water_fraction"][0] == 0.9
    assert rows(run("--json", "--connections-max", "8"))["connections_max"] == (8, "--connections-max")


@pytest.mark.parametrize(("file", "names"), cases("configuration_files_refused"))
def test_errors_in_the_file_name_file_key_value_and_what_is_allowed(file, names):
    error = run(file=file).exception
    assert isinstance(error, InvalidConfiguration)
    assert [name for name in names if name not in str(error)] == []


def test_a_mistyped_variable_is_refused_and_those_of_kubernetes_are_not():
    assert "did you mean 'GEMINGA_CONNECTIONS_MAX'?" in str(run(GEMINGA_CONECTIONS_MAX="1").exception)
    for option, meant in {"DISK_LIMIT": "DISK_LIMIT_BYTES", "SUPER_USER": "SUPER_USER_ROLES"}.items():
        assert f"did you mean 'GEMINGA_{meant}'?" in str(run(**{f"GEMINGA_{option}": "1"}).exception)
    wrong = run(GEMINGA_CONNECTIONS_MAX="many").exception
    assert isinstance(wrong, click.BadParameter)
    assert "GEMINGA_CONNECTIONS_MAX" in wrong.format_message()
    service = {
        "GEMINGA_PORT": "tcp://10.0.0.1:6650",
        "GEMINGA_SERVICE_HOST": "x",
        "GEMINGA_PORT_6650_TCP": "x",
    }
    assert rows(run("--json", **service))["port"] == (6650, "default")


def test_secrets_and_credentials_in_urls_are_hidden():
    done = run(
        "--token-secret-key", "hunter2" * 9,
        file='offload_location = "s3://hunter2:hunter2@bucket/x?key=hunter2"\nbasic_auth = "hunter2"\n',
    )  # fmt: skip
    assert done.exception is None
    assert "hunter2" not in done.output
    assert 's3://bucket/x"' in done.output
    for secret in ("hunter2", "hunt/hunter2"):
        location = f"s3://hunter2:{secret}@bucket/x"
        kept = BrokerSettings(data_dir="x", offload_location=location)
        assert "hunter2" not in repr(kept)
        assert "'s3://bucket/x'" in repr(kept)
        in_list = run(file=f'offload_location = ["{location}"]').exception
        for error in (run("--memory", "--offload-location", location).exception, in_list):
            assert isinstance(error, InvalidConfiguration)
            assert "hunter2" not in str(error)


def test_an_empty_or_unexpanded_folder_is_not_the_current_one():
    for words, file in (("--data-dir", ""), ""), ((), 'data_dir = ""'), ((), 'data_dir = "~/data"'):
        error = run(*words, file=file).exception
        assert isinstance(error, InvalidConfiguration)
        assert "data_dir=" in str(error)


@pytest.mark.parametrize("name", ["TOKEN_SECRET_KEY", "BASIC_AUTH", "TLS_CERTIFICATE", "CONFIG", "DATA_DIR"])
def test_an_empty_variable_does_not_switch_security_off_or_begin_a_new_store(name):
    error = run(**{f"GEMINGA_{name}": ""}).exception
    assert str(error) == f"GEMINGA_{name} is empty: give a value, or unset it"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("message_ttl_seconds", "7d", 604_800),
        ("message_ttl_seconds", "90", 90),
        ("retention_minutes", "12h", 720),
        ("retention_minutes", "-1", -1),
        ("keepalive_seconds", "1m30s", 90.0),
        ("offload_deletion_lag_seconds", "-1", -1.0),
        ("max_message_size", "10M", 10_485_760),
    ],
)
def test_times_and_sizes_may_have_a_unit(name, text, value):
    option = "--" + name.replace("_", "-")
    found = rows(run("--json", option, text)), rows(run("--json", **{"GEMINGA_" + name.upper(): text}))
    assert [each[name][0] for each in found] == [value, value]


def test_a_time_that_its_setting_cannot_hold_is_refused():
    found = run("--retention-minutes", "90s")
    assert isinstance(found.exception, click.BadParameter)
    assert "'90s' is not a whole number of minutes" in str(found.exception)


def test_the_help_names_the_limits_of_times():
    shown = CliRunner().invoke(standalone.command, ["--help"]).output
    assert "[x>=0]" in shown
    assert "[default: 10080; x>=-1]" in shown
    assert "None" not in shown


def test_a_byte_order_mark_is_skipped():
    assert rows(run("--json", file="\ufeffport = 7000\r\nweb_port = 7001\r\n"))["port"][0] == 7000


def test_a_written_file_has_every_setting_and_its_defaults_are_those_in_force(tmp_path):
    file = tmp_path / "geminga.toml"
    done = CliRunner().invoke(command, ["init", str(file)], standalone_mode=False)
    assert done.exception is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = [line[2:] for line in file.read_text().splitlines() if line.startswith("# ")]
    assert [line.split(" = ")[0] for line in lines] == list(standalone.FIELDS)
    for line in lines:
        name, _, value = line.partition(" = ")
        default = standalone.FIELDS[name].default
        if default is None:
            assert value == "(not set)"
        else:
            found = tomllib.loads(line)[name]
            assert (tuple(found) if isinstance(found, list) else found) == default
    assert not rows(run("--json", file=file.read_text())).keys() ^ set(standalone.FIELDS)
    assert isinstance(CliRunner().invoke(command, ["init", str(file)]).exception, FileExistsError)


def test_memory_as_an_option_overrides_the_folder_of_the_file():
    found = rows(run("--json", "--memory", file='data_dir = "x"\n'))
    assert (found["memory"][0], found["data_dir"][0]) == (True, None)
