"""Parts of an open store that its other parts share."""

from dataclasses import dataclass

from geminga.ledger.catalog.catalog import Catalog
from geminga.ledger.files.filesystem import FileSystem
from geminga.ledger.files.space import SpaceGauge
from geminga.ledger.log.journal import StoreWrites
from geminga.ledger.log.log import LogFiles
from geminga.ledger.settings import StoreSettings
from geminga.ledger.state.state import StoreState
from geminga.ledger.worker import Worker


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class StoreParts:
    """Shared parts of a store, which has only one of each."""

    filesystem: FileSystem
    folder: str
    store_id: bytes
    settings: StoreSettings
    state: StoreState
    files: LogFiles
    sizes: dict[int, int]
    """Size of each log file that is not written any more, by number."""
    gauge: SpaceGauge
    writes: StoreWrites
    worker: Worker
    catalog: Catalog
    """Connection to the catalog of the worker's thread."""
