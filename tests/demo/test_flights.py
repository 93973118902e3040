import json

from geminga.demo import flights


def test_events_are_the_flights_in_order_of_departure():
    table = flights.events()
    assert table.num_rows == 336_776
    times = table.column("event_time").to_numpy()
    assert (times[:-1] <= times[1:]).all()
    first = json.loads(table.column("value")[0].as_py())
    assert set(first) == set(flights.FIELDS)
    assert first["scheduled_departure"] == f"{times[0].astype('datetime64[s]')}Z"
    assert table.column("key").null_count == 2512


def test_values_are_json_whose_checksum_ignores_order_and_detects_a_duplicate():
    values = flights.events(2_000).column("value").to_pylist()
    assert len(values) == 2_000
    found = [json.loads(v) for v in values]
    assert any(v["departure_delay"] is None for v in found)
    assert all(isinstance(v["distance"], int) for v in found)
    whole = flights.Checksum.of(values)
    assert whole == flights.Checksum.of(values[::-1])
    assert whole != flights.Checksum.of([*values[:-1], values[0]])


def test_the_dimension_tables_have_rows():
    assert [len(flights.dimension(name)) for name in ("planes", "airlines")] == [3322, 16]
