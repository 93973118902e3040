"""Output of commands: rows as a table, or as JSON objects, one per line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click


class TableColumn(NamedTuple):
    """Column with the rows' values of ``key``. ``show`` returns a value's text, ``right`` aligns numbers, and
    ``style`` returns click's colour for a value, or None."""

    title: str
    key: str
    show: Callable[[Any], str] = str
    right: bool = False
    style: Callable[[Any], str | None] = lambda value: None


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[TableColumn], *, as_json: bool) -> int:
    """Print rows and return their number. A table has a header only on a terminal, so that other programs
    read rows only; values are not truncated."""
    if as_json:
        number = 0
        for row in rows:
            click.echo(json.dumps(row, separators=(",", ":"), default=str))
            number += 1
        return number
    kept = list(rows)
    for line in table(kept, columns, heads=sys.stdout.isatty()):
        click.echo(line)
    return len(kept)


def table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[TableColumn], *, heads: bool = True
) -> list[str]:
    """Return the lines of a table."""
    texts = [[_text(column, row.get(column.key)) for column in columns] for row in rows]
    titles = [column.title.upper() for column in columns] if heads else ["" for _ in columns]
    widths = [max([_width(title), *(_width(row[at]) for row in texts)]) for at, title in enumerate(titles)]
    lines = []
    if heads and rows:
        lines.append(_line([(title, None) for title in titles], columns, widths, bold=True))
    for row, line in zip(rows, texts, strict=True):
        styled = [
            (text, column.style(row.get(column.key))) for text, column in zip(line, columns, strict=True)
        ]
        lines.append(_line(styled, columns, widths))
    return lines


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


def done(value: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print the result of a command on one resource."""
    click.echo(json.dumps(value, separators=(",", ":"), default=str) if as_json else text)
