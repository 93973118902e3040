"""Output of a benchmark: a table on standard output and in a file, and figures for the pages."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_options(parser: argparse.ArgumentParser, published: Path) -> None:
    """Add the options ``--markdown`` and ``--publish``."""
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to FILE")
    parser.add_argument("--publish", action="store_true", help=f"write docs/proof/{published.name}")


def show(given: argparse.Namespace, table: str) -> None:
    """Print the table, and write it to the file of ``--markdown``."""
    print(table)
    if given.markdown:
        given.markdown.write_text(table + "\n")


def publish(published: Path, values: Any) -> None:
    """Write the figures from which ``make docs`` draws a page."""
    published.write_text(json.dumps(values, indent=1) + "\n")
    print(f"wrote {published}; `make docs` draws the pages")
