from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geminga.errors import InvalidConfiguration
from geminga.spark.offsets import Offset
from geminga.spark.options import OPTIONS, read_options, write_options

URL = {"service.url": "pulsar://localhost:6650"}
READ = {**URL, "topic": "t"}
TOPIC = "persistent://public/default/t"


def test_defaults() -> None:
    options = read_options(READ)
    assert options.topics == (TOPIC,)
    assert options.fail_on_data_loss
    assert (options.columns, options.starting_offsets, options.ending_offsets) == (None, None, "latest")
    assert write_options(READ).topic == TOPIC
    assert write_options(URL).topic is None


def test_names_in_lower_case_and_aliases() -> None:
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
    assert options.connection.token == "secret"
    assert options.columns == ("value", "__key")
    assert "secret" not in repr(options)


def test_offsets() -> None:
    options = read_options({**READ, "startingOffsets": '{"t": {"0": "5:12"}}', "endingOffsets": "latest"})
    assert options.starting_offsets == {(TOPIC, 0): Offset(5, 12)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"service\.url is missing"),
        (
            {"service.url": "kafka://h:80", "topic": "t"},
            r"option service\.url: .*kafka://h:80. has the scheme",
        ),
        ({"service.url": "pulsar://h:port", "topic": "t"}, r"option service\.url: .*allowed: 1 to 65535"),
        (URL, "exactly one of the options topic, topics and topicsPattern"),
        ({**READ, "topicsPattern": "a.*"}, "exactly one"),
        ({**READ, "topics": "a,b"}, "'topic' and 'topics' both say"),
        ({**URL, "topics": "a,a"}, "every topic once"),
        ({**URL, "topics": ","}, "topic names, separated by commas"),
        ({**URL, "topic": "a/b"}, "option topic: topic name 'a/b' has 2 parts"),
        ({**URL, "topicsPattern": "a["}, "a regular expression"),
        (
            {**READ, "startingOffset": "latest"},
            r"unknown option 'startingOffset'.*did you mean 'startingOffsets'",
        ),
        ({**READ, "kafka.bootstrap.servers": "h"}, r"the option is 'service\.url'"),
        ({**READ, "exactlyOnce": "true"}, "'exactlyOnce' is for writing only"),
        ({**READ, "startingOffsets": "lates"}, "did you mean 'latest'"),
        ({**READ, "startingOffsets": '{"t": "x"}'}, "option startingOffsets: offset 'x'"),
        ({**READ, "startingOffsets": "latest", "startingTime": "1"}, "exclude each other"),
        ({**READ, "failOnDataLoss": "yes"}, "failOnDataLoss='yes' is not allowed; allowed: true or false"),
        ({**READ, "minPartitions": "0"}, "minPartitions='0' is not allowed; allowed: a whole number >= 1"),
        ({**READ, "maxBytesPerTrigger": "many"}, "a number of bytes"),
        ({**READ, "pulsar.client.authPluginClassName": "AuthenticationAthenz"}, "AuthenticationToken"),
        ({**READ, "auth.token": "token:"}, "holds no token"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
def test_refusals(given: dict[str, str], message: str) -> None:
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
def test_refusals_of_writers(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        write_options({**URL, **given})


def test_sparks_own_options_pass() -> None:
    own: dict[str, Any] = {"checkpointLocation": "/c", "queryName": "q", "outputMode": "append"}
    assert write_options({**READ, **own}).checkpoint_location == "/c"
    assert read_options({**URL, "path": "t", **own}).topics == (TOPIC,)


def test_every_option_is_documented() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "spark.md"
    text = page.read_text()
    for option in OPTIONS.values():
        for name in (option.name, *option.aliases):
            assert f"`{name}`" in text, f"docs/spark.md says nothing about the option {name}"
