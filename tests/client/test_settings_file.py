"""Settings files: what is written is read, by programs and by Spark, and what is wrong is named."""

from pathlib import Path

import pytest
from cases import cases

import geminga
from geminga.client.api.settings_file import FileSettings, dump_settings
from geminga.errors import InvalidConfiguration


def written(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_what_is_written_is_read(tmp_path):
    settings = FileSettings(
        client={"memory_limit_bytes": 64 << 20},
        producer={
            "batching_enabled": True, "batching_max_messages": 800, "batching_max_publish_delay_ms": 40.5,
            "compression_type": geminga.CompressionType.ZSTD, "batching_type": geminga.BatchingType.KeyBased,
        },
    )  # fmt: skip
    text = dump_settings(settings, {"batching_max_messages": "half of the permits"}, "made for a test")
    assert text.startswith("# made for a test\n")
    assert "# half of the permits\nbatching_max_messages = 800\n" in text
    assert geminga.load_settings(written(tmp_path, text)) == settings


def test_a_producer_is_made_from_a_file(tmp_path):
    path = written(tmp_path, '[client]\nmemory_limit_bytes = 1000000\n[producer]\ncompression_type = "LZ4"\n')
    tuned = geminga.load_settings(path)
    with geminga.embedded() as broker, geminga.Client(broker.service_url, **tuned.client) as client:
        producer = client.create_producer("from-a-file", **tuned.producer)
        producer.send(b"hello")


@pytest.mark.parametrize(("text", "sentence"), cases("settings_files_refused"))
def test_what_is_wrong_is_named(tmp_path, text, sentence):
    with pytest.raises(InvalidConfiguration, match=sentence):
        geminga.load_settings(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidConfiguration, match=r"nothing\.toml cannot be read: No such file"):
        geminga.load_settings(tmp_path / "nothing.toml")


def test_sparks_sink_takes_the_file_and_its_own_options_first(tmp_path):
    from geminga.spark.options import write_options

    path = written(
        tmp_path,
        '[producer]\ncompression_type = "ZLib"\nhashing_scheme = "BoostHash"\nbatching_max_messages = 800\n'
        "batching_max_allowed_size_in_bytes = 500000\nsend_timeout_millis = 1234\n"
        "batching_max_publish_delay_ms = 40.0\n",
    )
    options = {"service.url": "pulsar://x", "topic": "t", "settingsFile": str(path)}
    found = write_options(options)
    assert (found.compression, found.hashing, found.batching_max_messages) == ("ZLIB", "BoostHash", 800)
    assert (found.batching_max_bytes, found.send_timeout_ms) == (500_000, 1234)
    assert write_options({**options, "batchingMaxMessages": "5"}).batching_max_messages == 5
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        write_options({**options, "settingsFile": "/nowhere.toml"})


def test_a_latency_budget_may_stand_in_a_file(tmp_path):
    path = tmp_path / "tunes-itself.toml"
    path.write_text("[producer]\nlatency_budget_ms = 20\n")
    assert geminga.load_settings(path).producer == {"latency_budget_ms": 20}
    path.write_text('[producer]\nlatency_budget_ms = "20"\n')
    with pytest.raises(InvalidConfiguration, match="latency_budget_ms='20'"):
        geminga.load_settings(path)
