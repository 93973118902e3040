"""Loading of functions by ``module:callable``, and inspection of their parameters."""

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geminga.config import refuse
from geminga.errors import InvalidConfiguration
from geminga.functions.serde import IdentitySerDe, SerDe


@dataclass(frozen=True, slots=True)
class Call:
    """A loaded function, called as ``function(value)``, or ``function(value, context)`` if ``takes_context``.
    ``is_async``: it returns a coroutine or an async generator. ``takes``: bytes, str or Message if the first
    parameter is annotated so."""

    function: Callable[..., Any]
    takes_context: bool
    is_async: bool
    takes: str = ""


def find(reference: str) -> Any:
    """Import the object of ``module:name``, ``module.name`` or ``file.py:name``; ``name`` may have dots.

    Modules are searched in the current folder too. Raises `InvalidConfiguration` if it does not exist.
    """
    where, colon, name = reference.rpartition(":")
    if not colon:
        where, _, name = reference.rpartition(".")
    if not where or not name:
        refuse("function", reference, "'module:callable'")
    if where.startswith("serde") and "." not in where:
        where = "geminga.functions.serde"  # function workers import these by their bare name
    found: Any = _module(where, reference)
    for part in name.split("."):
        if not hasattr(found, part):
            names = [n for n in dir(found) if not n.startswith("_")]
            from geminga.config import suggestion

            raise InvalidConfiguration(
                f"function={reference!r}: {where} has no {part!r}{suggestion(part, names)}"
            )
        found = getattr(found, part)
    return found


def _module(where: str, reference: str) -> Any:
    if where.endswith(".py"):
        path = Path(where).resolve()
        if not path.is_file():
            raise InvalidConfiguration(f"function={reference!r}: there is no file {path}")
        folder = str(path.parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)  # a file can import modules of its folder
        where = path.stem
    elif "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not where.startswith(error.name):
            raise
        raise InvalidConfiguration(
            f"function={reference!r}: there is no module {error.name!r} here or on Python's path"
        ) from None


def resolve(function: str | Callable[..., Any]) -> Call:
    """Return how to call a function. A class is instantiated without arguments, and its
    ``process(input, context)`` is called. Raises `InvalidConfiguration` for an unsuitable callable."""
    found = find(function) if isinstance(function, str) else function
    if inspect.isclass(found):
        found = found()
    # Pulsar's oldest form of a function is a module with `process(input)`.
    process = None if inspect.isfunction(found) else getattr(found, "process", None)
    is_class = process is not None
    target: Any = process if is_class else found
    if not callable(target):
        refuse("function", function, "a callable, or a class with process(input, context)")
    parameters = _positional(target, function)
    if not 1 <= len(parameters) <= 2:
        refuse("function", function, f"a callable of (input) or (input, context), not of {len(parameters)}")
    return Call(target, len(parameters) == 2, _is_async(target), "" if is_class else _takes(parameters[0]))


def _positional(target: Callable[..., Any], function: object) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # built-in: assume one argument, as for str.upper
        return [inspect.Parameter("input", inspect.Parameter.POSITIONAL_ONLY)]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in kinds]
    needed = [p for p in positional if p.default is p.empty]
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        refuse("function", function, "a callable without keyword-only arguments that have no default")
    if len(positional) == 2 and len(needed) < 2 and positional[1].name != "context":
        return positional[:1]
    return positional if len(positional) <= 2 else needed


def _is_async(target: Callable[..., Any]) -> bool:
    while isinstance(target, functools.partial):
        target = target.func
    for one in (target, getattr(target, "__call__", None)):  # noqa: B004 - an object whose __call__ is async
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            return True
    return False


def _takes(parameter: inspect.Parameter) -> str:
    said = parameter.annotation
    name = said if isinstance(said, str) else getattr(said, "__name__", "")
    name = name.rpartition(".")[2]
    return name if name in ("bytes", "str", "Message") else ""


def serde(field: str, given: Any) -> SerDe:
    """Return a serde for an instance, a class or a name; `IdentitySerDe` for None."""
    if given is None or given == "":
        return IdentitySerDe()
    found: Any = find(given) if isinstance(given, str) else given
    found = found() if inspect.isclass(found) else found
    if not (hasattr(found, "serialize") and hasattr(found, "deserialize")):
        refuse(field, given, "a class with serialize and deserialize")
    return found  # type: ignore[no-any-return]


def schema(field: str, given: Any) -> Any:
    """Return the client's schema for a schema, a record class or a name; None for None."""
    if given is None or given == "":
        return None
    from geminga.client.options.arguments import checked_schema
    from geminga.functions.borrowed_schemas import borrowed
    from geminga.schema import Schema

    found: Any = find(given) if isinstance(given, str) else given
    known = borrowed(found)
    if known is not None:
        return known
    if inspect.isclass(found) and issubclass(found, Schema):
        found = found()  # type: ignore[call-arg]  # those that need arguments say so
    try:
        checked = checked_schema(found)
    except InvalidConfiguration:  # under another name
        checked = None
    if checked is None:
        refuse(field, given, "a schema, a record class or a dataclass")
    return checked
