"""Spark's log of planned offsets, below a query's checkpoint.

PySpark 4.0 and 4.1 do not pass the start of the next micro-batch to a Python source: after a restart the
newest offsets of this log are that start.
"""

import json
from collections.abc import Collection
from typing import Any

from pyarrow import fs

from geminga.errors import InvalidConfiguration, OperationNotSupported
from geminga.filesystems import resolve
from geminga.spark.offsets import Checkpoint


def newest_offsets(checkpoint: str, topics: Collection[str]) -> dict[str, Any] | None:
    """Return the newest planned end of the query's Pulsar source; None if Spark has planned none yet.

    ``topics``: full names of the source's topics, which distinguish it if the query has several. Raises
    `InvalidConfiguration` if the folder cannot be read, `OperationNotSupported` if the sources of the query
    cannot be distinguished.
    """
    option = f"option checkpointLocation={checkpoint}"
    try:
        files, root = resolve(checkpoint)
        log = f"{root.rstrip('/')}/offsets"
        number = last_batch(files, log)
        if number < 0:
            return None
        with files.open_input_stream(f"{log}/{number}") as stream:
            version, *lines = stream.read().decode().splitlines()
    except (OSError, ValueError) as error:
        raise InvalidConfiguration(f"{option}: its offsets cannot be read: {error}") from error
    if version != "v1":
        raise OperationNotSupported(f"{option}: its offsets have the format {version!r}; supported: 'v1'")
    sources = [value for line in lines[1:] if (value := _of_pulsar(line)) is not None]
    if len(sources) > 1:
        sources = [each for each in sources if {topic for topic, _ in _offsets(each)} & set(topics)]
    if len(sources) != 1:
        raise OperationNotSupported(
            f"{option}: {len(sources)} sources of its query have the topics of this one; a limit of a "
            "micro-batch needs exactly one below PySpark 4.2"
        )
    return sources[0]


def _of_pulsar(line: str) -> dict[str, Any] | None:
    """Return the offset in a line of the log; None if another source wrote the line."""
    try:
        value = json.loads(line)
        _offsets(value)
    except (ValueError, TypeError, AttributeError, RecursionError, InvalidConfiguration):
        return None
    return value if isinstance(value, dict) else None


def _offsets(value: dict[str, Any]) -> Any:
    return Checkpoint.from_json(value).offsets


def last_batch(system: fs.FileSystem, log: str) -> int:
    """Return the last micro-batch that ``log``, a checkpoint's offsets or commits, names; -1 without one."""
    found = system.get_file_info(fs.FileSelector(log, allow_not_found=True))
    return max((int(info.base_name) for info in found if info.base_name.isdigit()), default=-1)
