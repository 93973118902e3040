"""Limits of micro-batches on PySpark 4.0 and 4.1: the source reads its start from Spark's own log."""

import json
from pathlib import Path
from typing import Any

import pytest
from driven_query import OlderQuery, numbers, publish

from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.errors import InvalidConfiguration, OperationNotSupported
from geminga.spark.source.offset_log import newest_offsets

pytestmark = pytest.mark.usefixtures("older_release")

TOPIC = "persistent://public/default/t"


def write_log(folder: Path, number: int, *sources: Any, version: str = "v1") -> None:
    """Write an entry of Spark's offset log, with the lines of other sources around."""
    (folder / "offsets").mkdir(exist_ok=True)
    lines = [each if isinstance(each, str) else json.dumps(each) for each in sources]
    (folder / "offsets" / str(number)).write_text("\n".join([version, '{"batchWatermarkMs":0}', *lines]))
    (folder / "offsets" / f".{number}.crc").write_text("a checksum")


class LoggedQuery(OlderQuery):
    """A query whose end is requested without its start, and whose checkpoint is a folder."""

    def __init__(self, broker: EmbeddedBroker, topic: str, folder: Path, **options: Any) -> None:
        self.folder = folder
        super().__init__(broker, topic, checkpointLocation=folder, startingOffsets="earliest", **options)

    def run(self, end: dict[str, Any]) -> list[bytes]:
        write_log(self.folder, len(self.log), '{"logOffset":3}', end, "-")
        return super().run(end)


@pytest.mark.parametrize("options", [{"maxOffsetsPerTrigger": 3}, {"maxEntriesPerTrigger": 3}])
def test_a_restarted_stream_keeps_its_limit_and_reads_each_row_once(
    pulsar_broker, client, pulsar_topic, tmp_path, options
):
    publish(client, pulsar_topic, 0, 10)
    query = LoggedQuery(pulsar_broker, pulsar_topic, tmp_path, **options)
    assert query.batch() == numbers(0, 3)
    query.restart()  # after a micro-batch that Spark has committed: it asks for the next end at once
    assert query.batch() == numbers(3, 3)
    end = query.latest()
    write_log(tmp_path, len(query.log), end)
    query.restart()  # killed before the micro-batch has run: Spark runs it before it asks for another end
    assert query.run(end) == numbers(6, 3)
    assert query.batch() == numbers(9, 1)
    assert query.latest() == query.log[-1]


def test_an_unnamed_durable_subscription_is_continued_after_a_restart(
    pulsar_broker, client, pulsar_topic, tmp_path
):
    publish(client, pulsar_topic, 0, 5)
    query = LoggedQuery(pulsar_broker, pulsar_topic, tmp_path, durableSubscription="true")
    assert query.batch() == numbers(0, 5)
    (name,) = query.stats()
    query.restart()
    publish(client, pulsar_topic, 5, 5)
    assert query.batch() == numbers(5, 5)
    assert list(query.stats()) == [name]


def test_the_checkpoint_of_another_query_is_refused_before_a_row_is_read(
    pulsar_broker, client, pulsar_topic, tmp_path
):
    publish(client, pulsar_topic, 0, 10)
    query = LoggedQuery(pulsar_broker, pulsar_topic, tmp_path, maxOffsetsPerTrigger=3)
    query.batch()
    query.options["checkpointLocation"] = tmp_path / "another"
    query.restart()
    with pytest.raises(InvalidConfiguration, match=r"checkpointLocation=.*another is not the folder of this"):
        query.batch()


def test_the_log_of_several_sources_is_read_by_topic(tmp_path):
    other = {"persistent://public/default/other": {"0": "5:1"}}
    ours: list[dict[str, Any]] = [{TOPIC: {"0": f"5:{number}"}} for number in range(12)]
    assert newest_offsets(str(tmp_path), [TOPIC]) is None
    for number, each in enumerate(ours):
        write_log(tmp_path, number, '{"a-kafka-topic":{"0":7}}', other, each, "5", "-")
    assert newest_offsets(str(tmp_path), [TOPIC]) == ours[-1]
    write_log(tmp_path, 12, ours[0], ours[0])
    with pytest.raises(OperationNotSupported, match="2 sources of its query have the topics of this one"):
        newest_offsets(str(tmp_path), [TOPIC])
    write_log(tmp_path, 13, ours[0], version="v2")
    with pytest.raises(OperationNotSupported, match="format 'v2'; supported: 'v1'"):
        newest_offsets(str(tmp_path), [TOPIC])
    (tmp_path / "offsets" / "14").write_bytes(b"\xff")
    with pytest.raises(InvalidConfiguration, match="its offsets cannot be read"):
        newest_offsets(str(tmp_path), [TOPIC])


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"query": []}', '{"topic": {"0": 23}}', "5", "-", '{"logOffset": 0}']
)
def test_the_line_of_another_kind_of_source_is_passed_over(tmp_path, line):
    offsets = {TOPIC: {"-1": "5:1"}}
    write_log(tmp_path, 0, line, offsets)
    assert newest_offsets(str(tmp_path), [TOPIC]) == offsets
