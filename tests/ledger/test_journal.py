import errno
import threading
from collections.abc import Callable

from doubles import raising

from geminga.errors import StoreStopped
from geminga.ledger.files.filesystem import FileSystem
from geminga.ledger.files.format import RecordKind
from geminga.ledger.log.journal import FailedRecords, Journal
from geminga.ledger.log.log import Group, LogEnd, LogWriter


def make_journal(
    filesystem: FileSystem,
    *,
    sync: str = "always",
    group_bytes_max: int = 1000,
    signal: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Journal:
    writer = LogWriter(
        filesystem, "/store", bytes(16), end=LogEnd(), file_bytes_max=1 << 20, preallocate_bytes=0
    )
    return Journal(
        writer, sync=sync, sync_interval_seconds=1.0, group_bytes_max=group_bytes_max, signal=signal,
        clock=clock,
    )  # fmt: skip


def add(journal: Journal, count: int, size: int, kind: int = RecordKind.ENTRY) -> None:
    journal.pending.extend((kind, 1, number, bytes(size), None) for number in range(count))


def sizes_of(journal: Journal) -> list[int]:
    sizes = []
    while journal.completed:
        outcome = journal.completed.popleft()
        assert isinstance(outcome, Group)
        sizes.append(len(outcome.kinds))
    return sizes


def test_takes_all_that_is_pending_as_one_group(filesystem):
    journal = make_journal(filesystem)
    assert not journal.commit()
    add(journal, 5, 10)
    assert journal.commit()
    assert not journal.commit()
    assert sizes_of(journal) == [5]
    assert journal.syncs == 1


def test_groups_keep_to_their_bytes_and_single_big_records_go_alone(filesystem):
    journal = make_journal(filesystem)
    add(journal, 7, 300)
    add(journal, 1, 5000)
    add(journal, 1, 10)
    while journal.commit():
        pass
    assert sizes_of(journal) == [3, 3, 1, 1, 1]


def test_a_checkpoint_is_the_last_record_of_its_group(filesystem):
    journal = make_journal(filesystem)
    for sizes, expected in (((2, 3), [3, 3]), ((9, 1), [3, 3, 4, 1])):
        add(journal, sizes[0], 300)
        journal.checkpoint_pending = True
        add(journal, 1, 0, RecordKind.CHECKPOINT)
        add(journal, sizes[1], 300)
        while journal.commit():
            pass
        groups = list(journal.completed)
        kinds = [group.kinds for group in groups if isinstance(group, Group)]
        assert sum(RecordKind.CHECKPOINT in each for each in kinds) == 1
        assert all(RecordKind.CHECKPOINT not in each[:-1] for each in kinds)
        assert sizes_of(journal) == expected
        assert not journal.checkpoint_pending


def test_interval_syncs_when_it_is_time(filesystem):
    times = [0.0]
    journal = make_journal(filesystem, sync="interval", clock=lambda: times[-1])
    for now, syncs in ((0.0, 0), (0.9, 0), (1.0, 1), (1.5, 1), (2.1, 2)):
        times.append(now)
        add(journal, 1, 10)
        journal.commit()
        assert journal.syncs == syncs, now


def test_never_syncs_but_for_checkpoints(filesystem):
    journal = make_journal(filesystem, sync="never")
    add(journal, 3, 10)
    journal.commit()
    assert journal.syncs == 0
    journal.checkpoint_pending = True
    add(journal, 1, 0, RecordKind.CHECKPOINT)
    journal.commit()
    assert journal.syncs == 1


def test_after_a_failure_everything_is_refused_in_order(filesystem):
    signals: list[int] = []
    journal = make_journal(filesystem, signal=lambda: signals.append(1))
    add(journal, 1, 10)
    journal.commit()
    filesystem.plan.errors[filesystem.operations + 2] = errno.EIO  # the sync behind the next write
    add(journal, 8, 300)
    while journal.commit():
        pass
    outcomes = list(journal.completed)
    assert isinstance(outcomes[0], Group)
    failed = [outcome for outcome in outcomes[1:] if isinstance(outcome, FailedRecords)]
    assert len(failed) == len(outcomes) - 1
    assert [record[2] for outcome in failed for record in outcome.records] == list(range(8))
    assert all(isinstance(outcome.error, StoreStopped) for outcome in failed)
    assert isinstance(failed[0].error.__cause__, OSError)
    add(journal, 1, 10)
    assert journal.commit()
    assert isinstance(journal.completed[-1], FailedRecords)
    assert len(signals) >= 3


def test_the_thread_writes_all_before_it_stops(filesystem):
    ready = threading.Event()
    journal = make_journal(filesystem, signal=ready.set)
    journal.start()
    for number in range(2000):
        journal.pending.append((RecordKind.ENTRY, 1, number, b"entry", None))
        if journal.idle:
            journal.wake()
    journal.stop()
    assert not journal.busy or journal.completed
    seconds = [n for group in journal.completed if isinstance(group, Group) for n in group.seconds]
    assert seconds == list(range(2000))
    assert ready.is_set()


def test_will_report_is_true_only_if_a_signal_follows(filesystem):
    """A caller that waits because of `will_report` must be signaled afterwards."""
    seen: list[bool] = []
    journal = make_journal(filesystem, signal=lambda: seen.append(journal.will_report))
    assert not journal.will_report
    assert not journal.commit()
    assert not journal.will_report
    add(journal, 3, 10)
    assert journal.will_report
    journal.commit()
    assert seen == [True]
    assert journal.will_report
    sizes_of(journal)
    assert not journal.will_report


def test_a_caller_that_waits_for_a_report_is_signaled(filesystem):
    signaled = threading.Event()
    journal = make_journal(filesystem, group_bytes_max=100_000, signal=signaled.set)
    journal.start()
    for number in range(2_000):
        signaled.clear()
        journal.completed.clear()
        add(journal, number % 3, 10)
        if number % 3 and journal.idle:
            journal.wake()
        if journal.will_report:
            assert signaled.wait(60), f"round {number}"
    journal.stop()


def test_will_report_is_false_while_the_disk_is_full(filesystem):
    journal = make_journal(filesystem)
    add(journal, 3, 10)
    write = journal.writer.write
    journal.writer.write = raising(OSError(errno.ENOSPC, "full"))
    assert not journal.commit()
    assert not journal.will_report
    journal.writer.write = write
    assert journal.commit()
    assert journal.will_report
