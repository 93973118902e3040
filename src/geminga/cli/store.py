"""``geminga store``: a broker's folder, checked and mended, backed up and brought back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from geminga.cli.common import Commands, confirm, emit, json_option, yes_option

EXIT_DAMAGED = 1

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.group("store", cls=Commands)
def command() -> None:
    """The folder of a broker: check and repair it, back it up and bring it back."""


@command.command("check")
@folder_argument
@click.option("--offload-location", help="Read and verify the files of offloaded ledgers there, too.")
@json_option
def check(folder: Path, offload_location: str | None, as_json: bool) -> int:
    """Read and verify all of DIR and say what is damaged; changes nothing.

    Exits with 1 when anything is.
    """
    from geminga.ledger.inspection import inspect

    place = _place(offload_location)
    report = inspect(folder, place=place)
    _print(report, as_json=as_json)
    if report.offloaded_ledgers and place is None and not as_json:
        click.echo(
            "The files of offloaded ledgers were not looked at: --offload-location says where they are."
        )
    if report.is_well:
        return 0
    if (report.findings or report.forgotten) and not as_json:
        click.echo(f"\n'geminga store repair {folder}' does that.")
    return EXIT_DAMAGED


@command.command("repair")
@folder_argument
@click.option("--offload-location", help="Put back what the store has lost of ledgers that are there, too.")
@yes_option
@json_option
def repair(folder: Path, offload_location: str | None, yes: bool, as_json: bool) -> int:
    """Put right in DIR what can be, and give up what is lost, after saying what that is.

    Make a copy of DIR first: what is given up stays so.
    """
    from geminga.ledger.inspection import inspect
    from geminga.ledger.inspection import repair as repair_store

    place = _place(offload_location)
    report = inspect(folder, place=place)
    _print(report, as_json=as_json)
    if not (report.findings or report.forgotten):
        return 0
    confirm("\nDo that?", yes=yes, err=as_json)
    left = repair_store(folder, report, place=place)
    for damage in left:
        emit({"left": damage.name, "thing": damage.thing}, as_json=as_json, text=f"stays listed: {damage}")
    if not left:
        mended = len(report.findings) + len(report.forgotten)
        emit({"repaired": mended}, as_json=as_json, text="Done: nothing is damaged any more.")
    return 0


@command.command("backup")
@folder_argument
@click.argument("target", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Read all of the backup again and check it.")
@json_option
def backup(folder: Path, target: Path, verify: bool, as_json: bool) -> int:
    """Copy the store in DIR to BACKUP, a new or empty folder, while a broker uses it or not.

    The copy is the store as it was at one moment: everything that was receipted before is in it. Ledgers
    that were offloaded stay where they are: keep their files as long as the backup.
    """
    from geminga.ledger.backup import backup as copy_store

    return _copy(copy_store, folder, target, verify, as_json, "backed up")


@command.command("restore")
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@folder_argument
@click.option("--verify/--no-verify", default=True, show_default=True, help="Check all of it afterwards.")
@json_option
def restore(source: Path, folder: Path, verify: bool, as_json: bool) -> int:
    """Copy BACKUP to DIR, a new or empty folder, for a broker to be started on.

    Exits with 1 when what was brought back is damaged.
    """
    from geminga.ledger.backup import restore as copy_store

    return _copy(copy_store, source, folder, verify, as_json, "restored")


@command.command("claim")
@folder_argument
@click.option("--offload-location", required=True, help="The place that is to be this store's.")
@yes_option
@json_option
def claim(folder: Path, offload_location: str, yes: bool, as_json: bool) -> int:
    """Make the place of offloaded ledgers that of the store in DIR, which is a copy.

    A copy only reads the files of the store that it was made of. When that one is gone for good, this gives
    them to the copy, which deletes what it does not need. Nobody may have either store open.
    """
    from geminga.ledger.claim_storage import claim as claim_place
    from geminga.ledger.claim_storage import holder

    place = _place(offload_location)
    held = holder(folder, place)
    if not held:
        emit({"claimed": True}, as_json=as_json, text="The place is this store's, or nobody's.")
        return 0
    emit({"holder": held}, as_json=as_json, text=f"{held}.")
    confirm(
        "\nThat store may lose offloaded messages when it is opened again. Is it gone for good?",
        yes=yes,
        err=as_json,
    )
    claim_place(folder, place)
    emit({"claimed": True}, as_json=as_json, text="The place is this store's now.")
    return 0


def _copy(copy_store: Any, source: Path, target: Path, verify: bool, as_json: bool, what: str) -> int:
    if as_json or not sys.stderr.isatty():
        copied = copy_store(source, target)
    else:
        with click.progressbar(length=1, label=what, file=sys.stderr) as bar:

            def say(done: int, total: int) -> None:
                bar.length = total
                bar.update(done - bar.pos)

            copied = copy_store(source, target, say=say)
    emit(
        {
            "source": str(source),
            "target": str(target),
            "log_files": copied.files,
            "log_bytes": copied.bytes,
            "end": copied.end,
            "seconds": round(copied.seconds, 3),
        },
        as_json=as_json,
        text=f"{what} {copied.files} log files, {copied.bytes / 1e6:,.1f} MB, in {copied.seconds:.1f} s, "
        f"up to {copied.end}: {target}",
    )
    if not verify:
        return 0
    from geminga.ledger.inspection import inspect

    report = inspect(target)
    _print(report, as_json=as_json)
    return 0 if report.is_well else EXIT_DAMAGED


def _place(location: str | None) -> Any:
    """The place of an option; None without."""
    if location is None:
        return None
    from geminga.ledger.tier_storage import place_at

    return place_at(location, fails_soon=False)


def _print(report: Any, *, as_json: bool) -> None:
    found = len(report.findings)
    told = f"{found} damaged thing{'s' if found != 1 else ''}" if found else "all is well"
    emit(
        {
            "folder": report.folder,
            "log_files": report.log_files,
            "log_bytes": report.log_bytes,
            "ledgers": report.ledgers,
            "keys": report.keys,
            "offloaded_ledgers": report.offloaded_ledgers,
            "offloaded_bytes": report.offloaded_bytes,
            "damaged": found,
            "borrowed": report.borrowed,
        },
        as_json=as_json,
        text=f"{report.folder}: {report.log_files} log files ({report.log_bytes / 1e6:,.1f} MB), "
        f"{report.ledgers:,} ledgers, {report.keys:,} keys: {told}."
        + (
            f"\n{report.offloaded_ledgers:,} ledgers are offloaded, {report.offloaded_bytes / 1e6:,.1f} MB."
            if report.offloaded_ledgers
            else ""
        )
        + (f"\n{report.borrowed}." if report.borrowed else ""),
    )
    for forgotten in report.forgotten:
        emit({"forgotten": forgotten.record.file}, as_json=as_json, text=f"\n  {forgotten}")
    for wrong in report.tier_findings:
        emit({"offloaded": wrong}, as_json=as_json, text=f"\n  {wrong}")
    for finding in report.findings:
        damage = finding.damage
        owner = f" of {finding.owner}" if finding.owner else ""
        emit(
            {
                "name": damage.name,
                "thing": damage.thing,
                "owner": finding.owner,
                "what": damage.what,
                "lost": "nothing" if finding.wrong_bits else str(damage.lost),
                "fate": finding.fate,
            },
            as_json=as_json,
            text=f"\n  {damage.name}  {damage.thing}{owner}\n      {damage.what}\n      {finding.fate}",
        )
