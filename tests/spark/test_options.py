import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from geminga.errors import InvalidConfiguration
from geminga.spark.offsets import EARLIEST, OTHERS, Offset
from geminga.spark.options import (
    OPTIONS,
    ConnectionOptions,
    ReadOptions,
    WriteOptions,
    read_options,
    write_options,
)

URL = {"service.url": "pulsar://localhost:6650"}
READ = {**URL, "topic": "t"}
TOPIC = "persistent://public/default/t"


def test_options_have_their_defaults():
    options = read_options(READ)
    assert options.topics == (TOPIC,)
    assert options.fail_on_data_loss
    assert (options.columns, options.starting_offsets, options.ending_offsets) == (None, None, "latest")
    assert write_options(READ).topic == TOPIC
    assert write_options(URL).topic is None


def test_defaults_in_the_options_table_match_the_code():
    """Defaults of client and producer options come from their settings: the table must match them too."""
    fields = {
        f.name: f.default
        for kind in (ConnectionOptions, ReadOptions, WriteOptions)
        for f in dataclasses.fields(kind)
    }
    told = {
        option.field: found.group(1)
        for option in OPTIONS.values()
        if (found := re.search(r"Default (\d+|true|false)\b", option.text)) and option.field in fields
    }
    assert len(told) > 10
    assert {name: str(fields[name]).lower() for name in told} == told


def test_names_ignore_case_and_have_aliases():
    options = read_options({
        "SERVICE.URL": "pulsar+ssl://h", "subscribe": "a, tenant/ns/b", "startingoffsets": "EARLIEST",
        "maxoffsetspertrigger": "5", "maxbytespertrigger": "64m", "failondataloss": "False",
        "pulsar.client.authpluginclassname": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "pulsar.client.authparams": "token:secret", "columns": "value, __key",
    })  # fmt: skip
    assert options.topics == ("persistent://public/default/a", "persistent://tenant/ns/b")
    assert options.starting_offsets == "earliest"
    assert (options.max_rows_per_trigger, options.max_bytes_per_trigger) == (5, 64 << 20)
    assert not options.fail_on_data_loss
    assert (options.connection.auth_plugin, options.connection.auth_params) == ("token", "token:secret")
    assert options.columns == ("value", "__key")
    assert "secret" not in repr(options)


def test_names_of_the_kafka_source_and_pulsar_spark_are_accepted():
    options = read_options({
        **URL, "assign": '{"t": [0, 2]}',
        "startingOffsetsByTimestamp": '{"t": {"0": 1000000000005}, "u-partition-1": 1000000000006}',
        "endingTimestamp": "1000000000007", "minOffsetsPerTrigger": "8", "maxTriggerDelay": "2m",
        "groupIdPrefix": "g",
        "kafkaConsumer.pollTimeoutMs": "9", "fetchOffset.numRetries": "3", "includeHeaders": "true",
        "startingOffsetsByTimestampStrategy": "latest",
        "pulsar.client.numIoThreads": "4", "pulsar.admin.readTimeoutMs": "5", "pulsar.reader.readerName": "n",
        "pulsar.producer.maxPendingMessages": "5", "pulsar.producer.compressionType": "LZ4",
        "pulsar.client.keepAliveIntervalSeconds": "20", "allowDifferentTopicSchemas": "true",
    })  # fmt: skip
    assert options.topics == (f"{TOPIC}-partition-0", f"{TOPIC}-partition-2")
    assert options.starting_times == {
        (TOPIC, 0): 1_000_000_000_005,
        ("persistent://public/default/u", 1): 1_000_000_000_006,
    }
    assert (options.ending_time_ms, options.min_rows_per_trigger, options.max_trigger_delay_ms) == (
        1_000_000_000_007, 8, 120_000,
    )  # fmt: skip
    assert (options.subscription_prefix, options.poll_timeout_ms, options.future_is_latest) == ("g", 9, True)
    assert options.connection.keep_alive_interval_seconds == 20
    wanted = write_options({
        **READ, "pulsar.producer.batchingEnabled": "false", "pulsar.producer.blockIfQueueFull": "true",
        "pulsar.reader.receiverQueueSize": "5", "pulsar.producer.producerName": "me",
    })  # fmt: skip
    assert (wanted.messages_in_a_batch, wanted.sink_name) == (1, "me")


def test_every_authentication_of_the_client_is_accepted():
    def of(**given: str) -> ConnectionOptions:
        return read_options(
            {**READ, **{name.replace("_", "."): value for name, value in given.items()}}
        ).connection

    java = "org.apache.pulsar.client.impl.auth.Authentication"
    assert of(auth_token="file:///t").auth_params == "file:///t"
    for plugin in ("basic", "oauth2"):
        assert of(auth_plugin=plugin, auth_params="{}").auth_plugin == plugin
    assert of(auth_plugin=f"{java}Tls", auth_params="tlsCertFile:/c,tlsKeyFile:/k").auth_plugin == "tls"
    assert of(auth_plugin="org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2",
              auth_params="{}").auth_plugin == "oauth2"  # fmt: skip
    with_files = of(auth_plugin="tls", tls_certificateFilePath="/c", tls_keyFilePath="/k")
    assert (with_files.tls_certificate_file_path, with_files.tls_key_file_path) == ("/c", "/k")
    secret = '{"userId": "u", "password": "canary"}'
    assert "canary" not in repr(of(auth_plugin="basic", auth_params=secret))


def test_offsets_are_parsed():
    options = read_options({**READ, "startingOffsets": '{"t": {"0": "5:12"}}', "endingOffsets": "latest"})
    assert options.starting_offsets == {(TOPIC, 0): Offset(5, 12)}
    options = read_options({**READ, "startingOffsets": '{"*": "earliest", "t": {"0": "5:12"}}'})
    assert options.starting_offsets == {OTHERS: EARLIEST, (TOPIC, 0): Offset(5, 12)}


@pytest.mark.parametrize(
    ("given", "message"),
    cases("spark_options_refused"),
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
def test_invalid_read_options_are_refused(given, message):
    with pytest.raises(InvalidConfiguration, match=message):
        read_options(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compresion": "LZ4"}, "did you mean 'compression'"),
        ({"compression": "LZ5"}, "did you mean 'LZ4'"),
        ({"startingOffsets": "latest"}, "for reading only"),
        ({"topics": "a,b"}, "for reading only"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_invalid_write_options_are_refused(given, message):
    with pytest.raises(InvalidConfiguration, match=message):
        write_options({**URL, **given})


def test_sparks_own_options_are_accepted():
    own: dict[str, Any] = {"checkpointLocation": "/c", "queryName": "q", "outputMode": "append"}
    assert write_options({**READ, **own}).checkpoint_location == "/c"
    assert read_options({**URL, "path": "t", **own}).topics == (TOPIC,)


def test_every_option_is_documented():
    page = Path(__file__).parent.parent.parent / "docs" / "spark.md"
    text = page.read_text()
    for option in OPTIONS.values():
        for name in (option.name, *option.aliases):
            assert f"`{name}`" in text, f"docs/spark.md says nothing about the option {name}"
