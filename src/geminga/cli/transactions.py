"""``geminga transactions``: open transactions of a cluster's coordinators."""

import re
import time
from typing import Any

import click

from geminga.cli.common import Commands, Duration, confirm, emit, yes_option
from geminga.cli.connecting import operation
from geminga.cli.tables import TableColumn, print_rows
from geminga.cli.units import span
from geminga.client.cluster import Cluster

_PATH = "/admin/v3/transactions"
_COLUMNS = (
    TableColumn("transaction", "id"),
    TableColumn("state", "status"),
    TableColumn("open for", "open_seconds", span, right=True),
    TableColumn("time limit", "timeout_seconds", span, right=True),
    TableColumn("topics", "topics", right=True),
    TableColumn("subscriptions", "subscriptions", right=True),
    TableColumn("owner", "owner"),
)


@click.group("transactions", cls=Commands)
def command() -> None:
    """List, describe and abort open transactions."""


@operation(command, "list")
@click.option(
    "--longer-than", "seconds", type=Duration(0), default=0.0, metavar="TIME",
    help="Only transactions that have been open for at least this time, such as 30s.",
)  # fmt: skip
def list_transactions(seconds: float, cluster: Cluster) -> None:
    """List the open transactions, the oldest first. A topic is delivered up to the first message of one."""
    found = cluster.admin().call("GET", f"{_PATH}/slowTransactions/{round(seconds * 1000)}") or {}
    rows = sorted(map(_row, found.values()), key=lambda row: -row["open_seconds"])
    print_rows(
        rows, _COLUMNS, "no transaction is open" + (f" for {span(seconds)} or longer" if seconds else "")
    )


@operation(command, "describe", "transaction")
def describe(transaction: str, cluster: Cluster) -> None:
    """Show what TRANSACTION, such as 0:17, did in which topics."""
    found = cluster.admin().call("GET", f"{_PATH}/transactionMetadata/{_id(transaction)}")
    row = _row(found)
    lines = [f"transaction {row['id']} is {row['status']}, open for {span(row['open_seconds'])}"]
    lines += [
        f"  publishes to {topic}, first message {part.get('startPosition') or 'not stored yet'}"
        for topic, part in found.get("producedPartitions", {}).items()
    ]
    lines += [
        f"  acknowledges messages of {topic} in subscription {name}"
        for topic, parts in found.get("ackedPartitions", {}).items()
        for name in parts
    ]
    emit(found, "\n".join(lines))


@operation(command, "abort", "transaction")
@yes_option
def abort(transaction: str, cluster: Cluster) -> None:
    """Abort TRANSACTION, such as 0:17: its messages are not delivered, and those that it acknowledged are
    delivered again."""
    confirm(f"Abort transaction {transaction}?")
    cluster.admin().call("POST", f"{_PATH}/abortTransaction/{_id(transaction)}")
    emit({"transaction": transaction, "aborted": True}, f"aborted {transaction}")


def _id(text: str) -> str:
    """Return a transaction's id as a part of a path: ``0:17``, also in the forms ``0,17`` and ``(0,17)``."""
    found = re.fullmatch(r"\(?(\d+)[:,] ?(\d+)\)?", text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no transaction; give coordinator and number, such as 0:17")
    return f"{found[1]}/{found[2]}"


def _row(metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": _id(metadata["txnId"]).replace("/", ":"),
        "status": metadata["status"],
        "open_seconds": max(0.0, time.time() - metadata["openTimestamp"] / 1000),
        "timeout_seconds": metadata["timeoutAt"] / 1000,
        "topics": len(metadata.get("producedPartitions") or {}),
        "subscriptions": sum(len(each) for each in (metadata.get("ackedPartitions") or {}).values()),
        "owner": metadata.get("owner") or "",
    }
