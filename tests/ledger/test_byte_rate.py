"""Rate limit of offloads: exact in the long run, and lifted while disk space is short."""

import pytest

from geminga.ledger.store import FileStore
from geminga.ledger.tier.folder_storage import FolderStorage
from geminga.ledger.tier.offload_worker import ByteRate
from geminga.ledger.tiered import TieredStore
from tests.ledger.test_tiered import SETTINGS, TOPIC, Clock, Reports, check_tier, fill, settle
from tests.support.faulty_filesystem import FaultyFileSystem, SimulatedDisk


def test_bytes_take_as_long_as_the_rate_allows():
    clock = Clock()
    rate = ByteRate(1000, clock)
    began = clock.now
    for _ in range(11):
        clock.now += rate.wait_seconds()
        rate.take(500)
        clock.now += 0.25  # the work itself
    assert clock.now - began == pytest.approx(5.25)
    clock.now += 60  # a pause saves nothing
    began = clock.now
    for _ in range(3):
        clock.now += rate.wait_seconds()
        rate.take(500)
    assert clock.now - began == pytest.approx(1.0)


def test_bytes_taken_while_the_limit_is_lifted_delay_no_later_ones():
    rate = ByteRate(1000, Clock())
    rate.is_lifted = True
    rate.take(1 << 40)
    rate.is_lifted = False
    assert rate.wait_seconds() == 0


@pytest.mark.parametrize("limit", [0, -1])
def test_without_a_limit_nothing_waits(limit):
    rate = ByteRate(limit, Clock())
    rate.take(1 << 60)
    assert rate.wait_seconds() == 0


@pytest.mark.parametrize("is_short", [True, False])
def test_offloads_keep_to_the_rate_unless_disk_space_is_short(is_short):
    disk, clock = SimulatedDisk(), Clock()
    filesystem = FaultyFileSystem(disk)
    local = FileStore.open("/store", filesystem=filesystem, threads=False, settings=SETTINGS)
    place = FolderStorage(filesystem, "/tier")
    store = TieredStore(local, place, rate_bytes=1, threads=False, clock=clock, sleep=clock.sleep)
    kept = fill(store, ledgers=2)
    reports = Reports()
    for ledger_id in kept:
        store.tier.offload(TOPIC, ledger_id, 1, reports, offset=0)
        settle(store)
    assert reports.found == [None]
    if is_short:
        store.disk.give_back(eagerly=True)
        clock.now += 1
    else:
        size_bytes = sum(map(len, kept[min(kept)]))
        for _ in range(size_bytes - 5):
            clock.now += 1
            store.poll()
        assert reports.found == [None]
        clock.now += 10
    settle(store)
    assert reports.found == [None, None]
    check_tier(store, disk)
    store.close()
