"""``geminga store``: check, repair, back up and restore a broker's data folder."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from geminga._util.exits import unfinished
from geminga.cli.common import Commands, confirm, emit, json_option, wants_json, yes_option
from geminga.cli.units import TIME, size

EXIT_DAMAGED = 1
_CLEANUP_SECONDS: Final = 2.0
"""Time after Ctrl-C for the deletion of a partial copy."""

T = TypeVar("T")
_Progress = Callable[[int, int], None]
"""Progress callback: (bytes copied, total bytes)."""

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
to_time_option = click.option(
    "--to-time", type=TIME, help="Use the newest backup begun by this time, of a folder or URL of backups."
)


@click.group("store", cls=Commands)
def command() -> None:
    """Check, repair, back up and restore a broker's data folder."""


@command.command("check")
@click.argument("folder", metavar="DIR")
@click.option("--offload-location", help="Also verify the offloaded ledgers' files there.")
@to_time_option
@json_option
def check(folder: str, offload_location: str | None, to_time: Any) -> int:
    """Verify all files of DIR and report damage, without changes.

    DIR may be a folder of backups, or the URL of backups in an object store (see "backup --keep"): the newest
    is verified. Exits with 1 if anything is damaged.
    """
    from geminga.ledger.backup.series import chosen
    from geminga.ledger.inspection import inspect

    def read(_: Any) -> tuple[Any, bool]:
        one, storage = chosen(folder, to_time), _storage(offload_location)
        report = inspect(one.folder, filesystem=one.filesystem, place=storage)
        return replace(report, folder=one.location), one.is_single

    report, is_single = _interruptible(read)
    _print(report)
    if report.offloaded_ledgers and offload_location is None and not wants_json():
        click.echo("The files of offloaded ledgers were not checked: give their --offload-location.")
    if report.is_well:
        return 0
    if report.findings and is_single and not wants_json():
        click.echo(f"\n'geminga store repair {folder}' settles this: the damaged data is dropped.")
    return EXIT_DAMAGED


@command.command("repair")
@folder_argument
@yes_option
@json_option
def repair(folder: Path) -> int:
    """Repair DIR as far as possible, and drop what is lost, after reporting it.

    Copy DIR first: the repair cannot be undone.
    """
    from geminga.ledger.inspection import inspect
    from geminga.ledger.inspection import repair as repair_store

    report = inspect(folder)
    _print(report)
    if not report.findings:
        return 0
    confirm("\nDo that?", err=wants_json())
    left = repair_store(folder, report)
    for damage in left:
        emit({"left": damage.name, "thing": damage.thing}, f"stays listed: {damage}")
    if not left:
        emit({"repaired": len(report.findings)}, "Done: nothing is damaged any more.")
    return 0


@command.command("backup")
@folder_argument
@click.argument("target", metavar="BACKUP")
@click.option("--verify", is_flag=True, help="Verify the backup after the copy.")
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N",
    help="Make a new backup in the folder or at the URL BACKUP, and delete all but the newest N.",
)  # fmt: skip
@json_option
def backup(folder: Path, target: str, verify: bool, keep: int | None) -> int:
    """Copy the store in DIR to BACKUP, a new or empty folder; a broker may be using the store.

    With --keep, BACKUP is a folder of backups, or a URL such as s3://BUCKET/backups, gs:// or abfss://; each
    backup is named by its time in UTC. Every one of them is complete; log files that have not changed since
    the previous one are hard links (in an object store: are listed again) and take no space. If --verify
    finds damage, no older one is deleted, and the next backup copies the damaged files again.

    A backup is a snapshot with every message whose receipt was sent before. Offloaded ledgers are not
    copied: keep their files as long as the backup.
    """
    from geminga.ledger.backup.backup import backup as copy_store
    from geminga.ledger.backup.series import backup_into
    from geminga.ledger.inspection import inspect

    def to_series(say: _Progress) -> tuple[str, Any, Any]:
        made, copied, report = backup_into(folder, target, keep=keep or 1, verify=verify, say=say)
        return made.location, copied, report and replace(report, folder=made.location)

    def to_folder(say: _Progress) -> tuple[str, Any, Any]:
        return target, copy_store(folder, target, say=say), inspect(target) if verify else None

    if "://" in target and not keep:
        raise click.UsageError("BACKUP is a URL, where several backups are kept: give --keep N")
    return _copy(to_series if keep else to_folder, str(folder), "backed up")


@command.command("restore")
@click.argument("source", metavar="BACKUP")
@folder_argument
@click.option(
    "--verify/--no-verify", default=True, show_default=True, help="Verify the folder after the copy."
)
@to_time_option
@json_option
def restore(source: str, folder: Path, verify: bool, to_time: Any) -> int:
    """Copy BACKUP to DIR, a new or empty folder, on which a broker can then be started.

    BACKUP may be a folder or URL of backups (see "backup --keep"): the newest is restored. Only the moments
    of backups can be restored, none between them. Exits with 1 if the restored store is damaged.
    """
    from geminga.ledger.backup.backup import restore as copy_store
    from geminga.ledger.backup.series import chosen
    from geminga.ledger.inspection import inspect

    one = _interruptible(lambda _: chosen(source, to_time))

    def to_folder(say: _Progress) -> tuple[str, Any, Any]:
        copied = copy_store(one.folder, folder, filesystem=one.filesystem, say=say)
        return str(folder), copied, inspect(folder) if verify else None

    return _copy(to_folder, one.location, f"restored {one.location}:")


@command.command("claim")
@folder_argument
@click.option("--offload-location", required=True, help="Storage location that this store takes over.")
@yes_option
@json_option
def claim(folder: Path, offload_location: str) -> int:
    """Make the store in DIR, which is a copy, the owner of an offload storage.

    A copy of a store only reads the original's offloaded files. If the original is gone for good, this
    command makes the copy their owner, which then deletes unneeded files. Stop the brokers of both first.
    """
    from geminga.ledger.tier.claim import claim as claim_storage
    from geminga.ledger.tier.claim import holder

    storage = _storage(offload_location)
    held = _interruptible(lambda _: holder(folder, storage))
    if not held:
        emit({"claimed": True}, "The storage belongs to this store or to none.")
        return 0
    emit({"holder": held}, f"{held}.")
    confirm(
        "\nThat store may lose offloaded messages when it is opened again. Is it gone for good?",
        err=wants_json(),
    )
    claim_storage(folder, storage)
    emit({"claimed": True}, "The storage now belongs to this store.")
    return 0


def _interruptible(work: Callable[[_Progress], T], show: _Progress = lambda done, total: None) -> T:
    """Return the result of ``work``, which gets a progress callback, or raise its error.

    Requests of storage clients cannot be interrupted and may never be answered, so the work is done on a
    thread. After Ctrl-C the callback raises, which deletes a partial copy; work that does not end then is
    abandoned.
    """
    result: Future[T] = Future()
    is_interrupted = threading.Event()

    def progress(done: int, total: int) -> None:
        if is_interrupted.is_set():
            raise click.Abort
        show(done, total)

    def run() -> None:
        try:
            result.set_result(work(progress))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="geminga-store", daemon=True).start()
    try:
        return result.result()
    except KeyboardInterrupt:
        is_interrupted.set()
        if wait([result], _CLEANUP_SECONDS).not_done:
            unfinished.add("store")
        raise


def _copy(copy_store: Callable[[_Progress], tuple[str, Any, Any]], source: str, what: str) -> int:
    hidden = wants_json() or not sys.stderr.isatty()
    with click.progressbar(length=1, label=what, file=sys.stderr, hidden=hidden) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        target, copied, report = _interruptible(copy_store, show)
    links = f" ({copied.linked_files} unchanged since the previous backup)" if copied.linked_files else ""
    emit(
        {
            "source": source,
            "target": target,
            "log_files": copied.files,
            "log_bytes": copied.bytes,
            "linked_files": copied.linked_files,
            "end": copied.end,
            "seconds": round(copied.seconds, 3),
        },
        f"{what} {copied.files} log files{links}, {size(copied.bytes)}, in {copied.seconds:.1f} s, "
        f"up to {copied.end}: {target}",
        is_done=True,  # the exit status is that of the copy
    )
    if report is not None:
        _print(report)
    return 0 if report is None or report.is_well else EXIT_DAMAGED


def _storage(location: str | None) -> Any:
    """Return the offload storage at ``location``; None without a location."""
    if location is None:
        return None
    from geminga.ledger.tier.storage import place_at

    return place_at(location, fails_soon=False)


_REPORTED = (
    "folder", "log_files", "log_bytes", "ledgers", "keys", "offloaded_ledgers", "offloaded_bytes",
)  # fmt: skip


def _print(report: Any) -> None:
    found = len(report.findings)
    summary = f"{found} damaged thing{'s' if found != 1 else ''}" if found else "all is well"
    emit(
        {
            **{name: getattr(report, name) for name in _REPORTED},
            "damaged": found,
            "borrowed": report.borrowed,
            "written_by": report.written_by,
        },
        f"{report.folder}: {report.log_files} log files ({size(report.log_bytes)}), "
        f"{report.ledgers:,} ledgers, {report.keys:,} keys: {summary}."
        + (f" Last written by {report.written_by}." if report.written_by else "")
        + (
            f"\n{report.offloaded_ledgers:,} ledgers are offloaded, {size(report.offloaded_bytes)}."
            if report.offloaded_ledgers
            else ""
        )
        + (f"\n{report.borrowed}." if report.borrowed else ""),
    )
    for wrong in report.tier_findings:
        emit({"offloaded": wrong}, f"\n  {wrong}")
    for finding in report.findings:
        damage = finding.damage
        owner = f" of {finding.owner}" if finding.owner else ""
        emit(
            {
                "name": damage.name,
                "thing": damage.thing,
                "owner": finding.owner,
                "what": damage.what,
                "lost": str(damage.lost),
                "fate": finding.fate,
            },
            f"\n  {damage.name}  {damage.thing}{owner}\n      {damage.what}\n      {finding.fate}",
        )
