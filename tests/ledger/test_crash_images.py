"""Thousands of disk images that a power loss may leave: each opens undamaged, with all confirmed writes.

A history runs once. The power may fail before each of its operations, and any part of the unsynced data may
survive, torn anywhere: each such moment gives many images. Each new image is opened and read.
`test_recovery` has fewer images and continues the history on each of them.
"""

import hashlib
import os
import random
from collections.abc import Callable

import pytest

from geminga.ledger import callbacks, steps
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, SimulatedDisk
from tests.support.store_auditor import Contents, StoreAuditor, observe

FOLDER = "/data/store"
IMAGES = int(os.environ.get("GEMINGA_CRASH_IMAGES", "100"))
"""Different disks that each test looks at; ``make long`` sets 2,500, which makes 20,000 in all."""
FATES_EACH = 24
"""Tried at each operation."""
GOES_ON_EACH = 50
"""One in this many images is written to, closed and opened once more; others are only read."""


class Mortal(FaultyFileSystem):
    """File system that calls a function before each operation, where the power may fail."""

    def __init__(self, disk: SimulatedDisk, moment: Callable[[], None]) -> None:
        super().__init__(disk)
        self._moment = moment

    def step(self, what: str, path: str) -> int:
        self._moment()
        return super().step(what, path)


def open_store(filesystem: FaultyFileSystem, settings: StoreSettings) -> FileStore:
    return FileStore.open(FOLDER, settings=settings, filesystem=filesystem, threads=False)


def likeness(disk: SimulatedDisk) -> bytes:
    """Two disks with the same are alike."""
    digest = hashlib.blake2b(digest_size=16)
    for path, inode in sorted(disk.names.items()):
        digest.update(b"%d %d\n" % (len(path), len(inode.visible)) + path.encode() + inode.visible)
    for path, images in sorted(disk.databases.items()):
        digest.update(b"%d %d\n" % (len(path), len(images[-1])) + path.encode() + images[-1])
    digest.update("\n".join(sorted(disk.folders)).encode())
    return digest.digest()


class Examiner:
    """Checks the images that a power loss may leave of one run after the other."""

    def __init__(self, settings: StoreSettings, seed: int) -> None:
        self._settings = settings
        self._chance = random.Random(seed)
        self._seen: set[bytes] = set()
        self._auditor = StoreAuditor()
        self._disk = SimulatedDisk()
        self.images = 0

    def live(self) -> None:
        """Run operations, with a power loss before every one."""
        self._auditor, self._disk = StoreAuditor(), SimulatedDisk()
        filesystem = Mortal(self._disk, self._moment)
        store = open_store(filesystem, self._settings)
        self._write(store)
        store.close()
        assert filesystem.operations > 50

    def _write(self, store: FileStore) -> None:
        """Create and delete ledgers, put, merge and delete keys, in large and small groups."""
        chance, auditor = self._chance, self._auditor
        ledgers: list[int] = []
        for number in range(40):
            if not ledgers or chance.random() < 0.15:
                ledgers.append(auditor.create_ledger(store, f"topic-{chance.randrange(3)}"))
            for _ in range(chance.randrange(4)):
                auditor.append(store, chance.choice(ledgers), chance.randbytes(chance.choice((0, 40, 300))))
            if chance.random() < 0.3:
                auditor.append_run(store, ledgers[-1], [chance.randbytes(50) for _ in range(3)])
            if chance.random() < 0.6:
                auditor.merge(store, f"cursor-{chance.randrange(2)}", b"delta %d" % number)
            if chance.random() < 0.3:
                auditor.put(store, f"cursor-{chance.randrange(2)}", b"base %d" % number * 9)
            if chance.random() < 0.2:
                auditor.put(store, f"policy-{chance.randrange(4)}", b"value %d" % number)
            if chance.random() < 0.1:
                auditor.delete(store, f"policy-{chance.randrange(4)}")
            if len(ledgers) > 3:
                auditor.delete_ledgers(store, [ledgers.pop(0), ledgers.pop(0)])
            if chance.random() < 0.7:
                is_enough = chance.random() < 0.3
                store.poll(lambda is_enough=is_enough: is_enough)

    def _moment(self) -> None:
        if self.images >= IMAGES:
            return
        allowed = [contents for _, contents in self._auditor.expected()]
        for fate in (Fate("none", "none"), Fate("all", "all"), *self._fates()):
            disk = self._disk.crash(fate)
            likeness_of_it = likeness(disk)
            if likeness_of_it not in self._seen:
                self._seen.add(likeness_of_it)
                self._examine(disk, allowed)
                self.images += 1

    def _fates(self) -> list[Fate]:
        return [Fate.by_chance(self._chance) for _ in range(FATES_EACH - 2)]

    def _examine(self, disk: SimulatedDisk, allowed: list[Contents]) -> None:
        store = open_store(FaultyFileSystem(disk), self._settings)
        assert store.damage.found == []
        found = observe(store, self._auditor.owners)
        assert found in allowed, "the store shows no state that it may be in"
        if self.images % GOES_ON_EACH:
            store.abandon()
            return
        auditor = StoreAuditor(found)
        self._go_on(store, auditor)
        store.close()
        store = open_store(FaultyFileSystem(disk), self._settings)
        assert store.damage.found == []
        auditor.check_running(store)
        store.close()

    @staticmethod
    def _go_on(store: FileStore, auditor: StoreAuditor) -> None:
        ledger = auditor.create_ledger(store, "topic-0")
        auditor.append(store, ledger, b"goes on")
        auditor.merge(store, "cursor-0", b"goes on")
        store.poll()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Poll with a limit, so that steps are interrupted anywhere."""
    monkeypatch.setattr(steps, "AT_ONCE", 2)
    monkeypatch.setattr(callbacks, "REPORTED_AT_ONCE", 1)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Discard log messages about catalogs that are rebuilt after a power loss."""
    caplog.set_level("CRITICAL", "geminga.ledger")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_image_of_a_power_loss_opens_with_all_confirmed_writes(small_settings, seed, record_property):
    examiner = Examiner(small_settings, seed)
    lives = 0
    while examiner.images < IMAGES:
        examiner.live()
        lives += 1
        assert lives < 50, "ever less is new"
    record_property("crash_images", examiner.images)
