"""Tables in pandas, Polars and DuckDB: what is left of a table there is acknowledged, and nothing else."""

from typing import Any

import pyarrow as pa
import pytest

from geminga import ConsumerType, InitialPosition

ODD = {b"1", b"3", b"5", b"7", b"9"}


def with_pandas(table: pa.Table) -> Any:
    frame = pytest.importorskip("pandas") and table.to_pandas()
    return pa.Table.from_pandas(frame[frame["value"].map(lambda value: int(value) % 2 == 1)])


def with_polars(table: pa.Table) -> Any:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(table)
    return frame.filter(polars.col("value").cast(polars.String).cast(polars.Int64) % 2 == 1).to_arrow()


def with_duckdb(table: pa.Table) -> Any:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("messages", table)
    return connection.sql("SELECT * FROM messages WHERE decode(value)::INT % 2 = 1").to_arrow_table()


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "alone"])
@pytest.mark.parametrize("odd_of", [with_pandas, with_polars, with_duckdb])
def test_filtered_rows_of_a_frame_are_acknowledged(pulsar_client, pulsar_topic, odd_of, batched):
    options: Any = {"initial_position": InitialPosition.Earliest, "batch_index_ack_enabled": True}
    consumer = pulsar_client.subscribe(pulsar_topic, "s", ConsumerType.Shared, **options)
    with pulsar_client.create_producer(pulsar_topic, batching_enabled=batched) as producer:
        producer.send_many([b"%d" % number for number in range(10)])
    rows, tables = 0, []
    while rows < 10:
        tables.append(consumer.receive_table(timeout_millis=60_000))
        rows += tables[-1].num_rows
    odd = odd_of(pa.concat_tables(tables))
    assert set(odd["value"].to_pylist()) == ODD
    consumer.acknowledge_table(odd)
    consumer.close()
    again = pulsar_client.subscribe(pulsar_topic, "s", ConsumerType.Shared, **options)
    left = {again.receive(60_000).data() for _ in range(5)}
    assert left == {b"%d" % number for number in range(10)} - ODD
