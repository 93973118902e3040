"""Tables and checkpoints of a project's flows, read without starting Spark.

A flow's checkpoint is the folder ``<storage>/_checkpoints/<catalog>/<database>/<table>/<flow>/<version>``. In
it, Spark writes ``offsets/N`` when it has planned micro-batch N, and ``commits/N`` when its rows are stored.
"""

from collections.abc import Collection, Iterator
from pathlib import Path

from pyarrow import fs

from geminga.errors import UsageError
from geminga.filesystems import resolve
from geminga.spark.pipelines import lake
from geminga.spark.pipelines.project import places
from geminga.spark.source.offset_log import last_batch


def tables(folder: Path) -> dict[str, str]:
    """Return the Parquet tables of a project: their folders by name."""
    warehouse = places(folder).warehouse.rstrip("/")
    system, root = resolve(warehouse)
    found: dict[str, str] = {}
    for info in folders(system, root):
        is_database = info.base_name.endswith(".db")
        database = f"{info.base_name.removesuffix('.db')}." if is_database else ""
        for each in folders(system, info.path) if is_database else [info]:
            if not any(part.base_name == "_delta_log" for part in folders(system, each.path)):
                below = each.path[len(root.rstrip("/")) :]
                found[database + each.base_name] = f"{warehouse}{below}"
    return dict(sorted(found.items()))


def folders(system: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    """Return the folders in a folder, which need not exist."""
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return [info for info in found if info.type == fs.FileType.Directory]


def check_checkpoints(folder: Path, refreshed: Collection[str] = ()) -> None:
    """Raise `UsageError` when a table is ahead of its flow's checkpoint.

    That happens after a checkpoint was deleted or an older one restored. Spark's file sink identifies a
    micro-batch by its number alone and silently skips those that the table has: their new contents differ
    from the old ones, and would be lost.
    """
    system, root = resolve(places(folder).storage)
    for name, path in tables(folder).items():
        listed = lake.listing(path)
        if listed is None or name in refreshed:
            continue
        database, _, table = name.rpartition(".")
        place = f"{root}/_checkpoints/spark_catalog/{database or 'default'}/{table}"
        newest = (newest_checkpoint(system, flow.path) for flow in folders(system, place))
        planned = max((last_batch(system, f"{each}/offsets") for each in newest if each), default=-1)
        if listed.batch > planned:
            raise UsageError(
                f"the table {name} has micro-batches up to {listed.batch}, its checkpoint below {place} only "
                f"up to {planned}: Spark would skip micro-batches with known numbers, and "
                f"lose messages. Put the checkpoint back, or recompute the table: --full-refresh {name}"
            )


def remove_unfinished_offsets(folder: Path) -> None:
    """Delete the temporary files of flows that were killed while Spark wrote their first offsets: it rejects
    such a checkpoint (`STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`), although nothing was planned yet."""
    system, root = resolve(places(folder).storage)
    for checkpoint in _checkpoints(system, f"{root}/_checkpoints"):
        if last_batch(system, f"{checkpoint}/offsets") < 0:
            for info in system.get_file_info(fs.FileSelector(f"{checkpoint}/offsets")):
                if info.base_name.endswith(".tmp"):
                    system.delete_file(info.path)


def _checkpoints(system: fs.FileSystem, path: str) -> Iterator[str]:
    """Yield the folders below ``path`` that are a flow's checkpoint."""
    below = folders(system, path)
    if any(info.base_name == "offsets" for info in below):
        yield path
    else:
        for info in below:
            yield from _checkpoints(system, info.path)


def newest_checkpoint(system: fs.FileSystem, flow: str) -> str | None:
    """Return the newest checkpoint of a flow, whose folder is ``flow``: a full refresh begins another one."""
    versions = [info for info in folders(system, flow) if info.base_name.isdigit()]
    return max(versions, key=lambda info: int(info.base_name)).path if versions else None
