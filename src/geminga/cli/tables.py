"""Output of commands: rows as a table, or as JSON objects, one per line."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from geminga.cli.common import say, wants_json

NAME_WIDTH = 28


class TableColumn(NamedTuple):
    """Column with the rows' values of ``key``. ``show`` returns a value's text, ``right`` aligns numbers, and
    ``style`` returns click's colour for a value, or None."""

    title: str
    key: str
    show: Callable[[Any], str] = str
    right: bool = False
    style: Callable[[Any], str | None] = lambda value: None


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[TableColumn], none: str = "") -> None:
    """Print rows. A table has a header also when it is piped; values are not truncated. ``none`` is said
    instead of a table without rows."""
    if wants_json():
        for row in rows:
            click.echo(json.dumps(row, separators=(",", ":"), default=str))
        return
    kept = list(rows)
    for line in table(kept, columns):
        click.echo(line)
    if none and not kept:
        say(none)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[TableColumn]) -> list[str]:
    """Return the lines of a table, the header first; no lines without rows."""
    texts = [[_text(column, row.get(column.key)) for column in columns] for row in rows]
    titles = [column.title.upper() for column in columns]
    widths = [max([_width(title), *(_width(row[at]) for row in texts)]) for at, title in enumerate(titles)]
    lines = []
    if rows:
        lines.append(_line([(title, None) for title in titles], columns, widths, bold=True))
    for row, line in zip(rows, texts, strict=True):
        styled = [
            (text, column.style(row.get(column.key))) for text, column in zip(line, columns, strict=True)
        ]
        lines.append(_line(styled, columns, widths))
    return lines


def fitted(rows: Sequence[Mapping[str, Any]], columns: Sequence[TableColumn], width: int) -> list[str]:
    """Return the lines of a table, at most ``width`` wide: columns at the right are left out until names of
    NAME_WIDTH, or of a third of the width, fit, and texts of the first column are shortened at their left."""
    first, *others = columns
    names = max((_width(_text(first, row.get(first.key))) for row in rows), default=0)
    while True:
        rest = table(rows, [TableColumn("", ""), *others])
        room = width - max((_width(click.unstyle(line)) for line in rest), default=0)
        if room >= min(names, NAME_WIDTH, width // 3) or not others:
            break
        others.pop()

    def show(value: Any) -> str:
        text = first.show(value)
        return text if _width(text) <= room else f"…{text[len(text) - max(1, room - 1) :]}"

    return table(rows, [first._replace(show=show), *others])


def _text(column: TableColumn, value: Any) -> str:
    text = "" if value is None else column.show(value)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _line(
    cells: Sequence[tuple[str, str | None]],
    columns: Sequence[TableColumn],
    widths: Sequence[int],
    *,
    bold: bool = False,
) -> str:
    parts = []
    for at, ((text, colour), column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        space = " " * (width - _width(text))
        shown = click.style(text, fg=colour, bold=bold or None) if colour or bold else text
        last = at == len(cells) - 1 and not column.right
        parts.append(f"{space}{shown}" if column.right else shown if last else f"{shown}{space}")
    return "  ".join(parts).rstrip()


def _width(text: str) -> int:
    """Return the width on a terminal, in columns: ideographs take two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def trouble(value: Any) -> str | None:
    """Return red for a value that should be zero and is not."""
    return "red" if value else None
