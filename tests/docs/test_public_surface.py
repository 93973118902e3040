"""Every route with its permission, every command with its options, and every method of ``Admin``.

They are part of what users rely on. After a wanted change write the list again:
``python tests/docs/test_public_surface.py > tests/vectors/public_surface.txt``.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import click

from geminga.broker.admin.web import all_routes
from geminga.cli.main import command
from geminga.client.admin.aio.admin import Admin as AsyncAdmin
from geminga.client.admin.sync import Admin

SURFACE = Path(__file__).parent.parent / "vectors/public_surface.txt"
URL = "http://localhost:1"


def _routes() -> Iterator[str]:
    for route in all_routes(MagicMock()):
        method, path = route.key
        yield f"route {method} {path} needs {route.needs.name}"


def _commands(one: click.Command, name: str) -> Iterator[str]:
    taken = (f"{'/'.join(sorted(each.opts + each.secondary_opts))} {each.type.name}" for each in one.params)
    yield f"{name}: {', '.join(sorted(taken))}"
    if isinstance(one, click.Group):
        for each in one.list_commands(click.Context(one)):
            found = one.get_command(click.Context(one), each)
            assert found is not None
            yield from _commands(found, f"{name} {each}")


def _methods(owner: Any, name: str, depth: int = 2) -> Iterator[str]:
    for each in sorted(set(dir(owner))):
        found = getattr(owner, each)
        if each.startswith("_") or inspect.isclass(found):
            continue
        if inspect.isroutine(found):
            kind = "async " if inspect.iscoroutinefunction(found) else ""
            yield f"{kind}{name}.{each}({', '.join(inspect.signature(found).parameters)})"
        elif type(found).__module__.startswith("geminga.client.admin") and depth:
            yield from _methods(found, f"{name}.{each}", depth - 1)


def surface() -> list[str]:
    """Return the lines of the list, sorted."""
    return sorted(
        [
            *_routes(),
            *_commands(command, "geminga"),
            *_methods(Admin(URL), "Admin"),
            *_methods(AsyncAdmin(URL), "asyncio.Admin"),
        ]
    )


def test_routes_commands_and_admin_methods_are_those_of_the_list():
    assert surface() == SURFACE.read_text().splitlines()


if __name__ == "__main__":
    sys.stdout.write("\n".join(surface()) + "\n")
