"""Differences between the public names of Geminga and ``pulsar-client``, found by walking both.

It looks at modules, classes, methods, parameters with their order, kinds and defaults, at attributes, and at
what is a coroutine; and at the differences between the synchronous and the asyncio API
(`between_faces`). ``tools/client_differences.py`` gives every difference its reason, a test holds the two
together (``tests/client/test_public_names.py``), and ``docs/coming-from-pulsar-client.md`` is drawn from the
reasons. What Geminga adds is no difference as long as it can be left out.

    python tools/compare_clients.py      # print what the walk finds
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

THEIRS, OURS = "pulsar", "geminga"
MISSING = "(none)"


@dataclass(frozen=True, order=True)
class Difference:
    """A difference of the two clients; ``theirs`` and ``ours`` are short texts."""

    where: str
    theirs: str
    ours: str


def modules(package: ModuleType) -> list[str]:
    """The names of a package's public modules, the package first, without the package's own name."""
    found = [""]
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        name = info.name.removeprefix(f"{package.__name__}.")
        if not any(part.startswith("_") for part in name.split(".")):
            found.append(name)
    return sorted(found)


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The names that a module offers, without what it only imported from other libraries."""
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith("_"):
            continue
        if inspect.ismodule(value):
            if value.__name__.startswith(f"{THEIRS}."):
                yield name, value
            continue
        home = str(getattr(value, "__module__", module.__name__))
        # A package gathers what its modules define; a module that imports from a sibling does not offer it.
        if home.split(".")[0] == f"_{THEIRS}" or home.startswith(
            THEIRS if _is_package(module) else module.__name__
        ):
            yield name, value


def _is_package(module: ModuleType) -> bool:
    return hasattr(module, "__path__")


def differences() -> list[Difference]:
    """Everything that the walk finds, in the order of names."""
    theirs = importlib.import_module(THEIRS)
    found: set[Difference] = set()
    seen: set[int] = set()
    for name in modules(theirs):
        module = importlib.import_module(f"{THEIRS}.{name}" if name else THEIRS)
        try:
            ours = importlib.import_module(f"{OURS}.{name}" if name else OURS)
        except ImportError:
            found.add(Difference(name, "module", MISSING))
            continue
        for attribute, value in public(module):
            label = f"{name}.{attribute}" if name in ("asyncio", "functions") else attribute
            if not hasattr(ours, attribute):
                found.add(Difference(f"{name}.{attribute}" if name else attribute, _kind(value), MISSING))
            elif id(value) not in seen:
                seen.add(id(value))
                found.update(compare(label, value, getattr(ours, attribute)))
    for label, make in SAMPLES.items():
        found.update(_compare_instances(label, make(theirs), make(importlib.import_module(OURS))))
    return sorted(found)


def compare(label: str, theirs: Any, ours: Any) -> Iterator[Difference]:
    """Return the differences of two objects of one name."""
    if _kind(theirs) != _kind(ours):
        yield Difference(label, _kind(theirs), _kind(ours))
    elif inspect.isclass(theirs) and hasattr(theirs, "__members__"):
        yield from _compare_members(label, theirs, ours)
    elif inspect.isclass(theirs):
        yield from _compare_classes(label, theirs, ours)
    elif callable(theirs):
        yield from _compare_calls(label, theirs, ours)


def _compare_members(label: str, theirs: Any, ours: Any) -> Iterator[Difference]:
    their_members = {name: int(member) for name, member in theirs.__members__.items()}
    our_members = {name: int(member) for name, member in ours.__members__.items()}
    for name, number in their_members.items():
        if our_members.get(name) != number:
            yield Difference(f"{label}.{name}", str(number), str(our_members.get(name, MISSING)))


def _compare_classes(label: str, theirs: type, ours: type) -> Iterator[Difference]:
    if issubclass(theirs, Exception):
        missing = {c.__name__ for c in theirs.__mro__} - {c.__name__ for c in ours.__mro__}
        if missing:
            yield Difference(label, f"a {', '.join(sorted(missing))}", "not one")
        return
    for name in dir(theirs):
        if name.startswith("_") and name != "__init__":
            continue
        value = inspect.getattr_static(theirs, name)
        if not hasattr(ours, name):
            yield Difference(f"{label}.{name}", _kind(value), MISSING)
        elif name == "__init__":
            yield from _compare_constructors(label, theirs, ours)
        else:
            yield from _compare_attributes(f"{label}.{name}", value, inspect.getattr_static(ours, name), ours)


def _compare_constructors(label: str, theirs: Any, ours: Any) -> Iterator[Difference]:
    """One difference for a class that is made by the client in other ways; else argument by argument."""
    their_parameters = _parameters(theirs.__init__)
    our_parameters = _parameters(ours.__init__)
    if their_parameters is None or our_parameters is None:
        return
    required = {name for name, p in our_parameters.items() if p.default is p.empty}
    if set(their_parameters) - set(our_parameters) or required - set(their_parameters):
        shown = [", ".join(list(names)) for names in (their_parameters, our_parameters)]
        yield Difference(f"{label}()", *(f"({names})" for names in shown))
    else:
        yield from _compare_calls(label, theirs.__init__, ours.__init__)


def _compare_attributes(label: str, theirs: Any, ours: Any, owner: type) -> Iterator[Difference]:
    if _kind(theirs) != _kind(ours):
        yield Difference(label, _kind(theirs), _kind(ours))
        return
    if isinstance(theirs, (staticmethod, classmethod)):
        theirs, ours = theirs.__func__, ours.__func__
    if callable(theirs):
        if inspect.iscoroutinefunction(theirs) != inspect.iscoroutinefunction(ours):
            yield Difference(label, _colour(theirs), _colour(ours))
        yield from _compare_calls(label, theirs, ours)


def _compare_calls(label: str, theirs: Any, ours: Any) -> Iterator[Difference]:
    their_parameters = _parameters(theirs)
    our_parameters = _parameters(ours)
    if their_parameters is None or our_parameters is None:
        return  # written in C: the docstring's arguments have no names
    for index, (name, parameter) in enumerate(their_parameters.items()):
        own = our_parameters.get(name)
        if own is None:
            yield Difference(f"{label}({name})", "parameter", MISSING)
            continue
        if parameter.kind is not own.kind:
            yield Difference(f"{label}({name})", str(parameter.kind), str(own.kind))
        elif list(our_parameters).index(name) != index:
            yield Difference(
                f"{label}({name})", f"argument {index}", f"argument {list(our_parameters).index(name)}"
            )
        if _default(parameter) != _default(own) and parameter.default is not parameter.empty:
            yield Difference(f"{label}({name})", _default(parameter), _default(own))
    for name, own in our_parameters.items():
        if name not in their_parameters and own.default is own.empty and own.kind not in _VARIABLE:
            yield Difference(f"{label}({name})", MISSING, "required")


FACES = ("Client", "Producer", "Consumer", "Reader", "TableView")
"""Return the names that both ``geminga`` and ``geminga.asyncio`` have."""


def between_faces() -> list[Difference]:
    """Return public synchronous methods and arguments that differ from those for asyncio (``theirs``) or are
    missing there. Arguments are compared by name, order, kind and default."""
    threads, aio = importlib.import_module(OURS), importlib.import_module(f"{OURS}.asyncio")
    found: list[Difference] = []
    for face in FACES:
        here, there = getattr(threads, face), getattr(aio, face)
        for name in ("__init__", *dir(here)):
            if name.startswith("_") and (name != "__init__" or face != "Client"):
                continue
            label, ours = f"{face}.{name}", inspect.getattr_static(here, name)
            theirs = inspect.getattr_static(there, name, None)
            if theirs is None:
                found.append(Difference(label, MISSING, _kind(ours)))
            elif not callable(ours) or not callable(theirs):
                if _kind(ours) != _kind(theirs):
                    found.append(Difference(label, _kind(theirs), _kind(ours)))
            else:
                found.extend(_between_calls(label, theirs, ours))
    return sorted(found)


def _between_calls(label: str, theirs: Any, ours: Any) -> Iterator[Difference]:
    one, other = _parameters(theirs) or {}, _parameters(ours) or {}
    for name in {**one, **other}:
        parameters = one.get(name), other.get(name)
        shown = [MISSING if p is None else f"{p.kind.description}, {_default(p)}" for p in parameters]
        if shown[0] != shown[1]:
            yield Difference(f"{label}({name})", *shown)
    common = [[name for name in order if name in one and name in other] for order in (one, other)]
    if common[0] != common[1]:
        moved = next(name for name, at in zip(*common, strict=True) if name != at)
        yield Difference(f"{label}({moved})", "earlier position", "later position")


def plain_calls() -> set[str]:
    """The methods for asyncio that are no coroutines and have a twin for threads."""
    threads, aio = importlib.import_module(OURS), importlib.import_module(f"{OURS}.asyncio")
    return {
        f"{face}.{name}"
        for face in FACES
        for name in dir(getattr(threads, face))
        if not name.startswith("_")
        and inspect.isfunction(method := inspect.getattr_static(getattr(aio, face), name, None))
        and not inspect.iscoroutinefunction(method)
    }


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(call: Any) -> dict[str, inspect.Parameter] | None:
    try:
        found = inspect.signature(call).parameters
    except (TypeError, ValueError):
        return None
    if list(found) == ["self", "args", "kwargs"] and "(self:" in (call.__doc__ or ""):
        return None
    return {name: p for name, p in found.items() if p.kind not in _VARIABLE and name != "self"}


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return "required"
    if isinstance(value, Enum) or hasattr(type(value), "__members__"):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return type(value).__name__


def _kind(value: Any) -> str:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "enumeration" if hasattr(value, "__members__") else "class"
    return "method" if isinstance(value, (staticmethod, classmethod)) or callable(value) else "attribute"


def _colour(call: Any) -> str:
    return "coroutine" if inspect.iscoroutinefunction(call) else "plain call"


def _compare_instances(label: str, theirs: Any, ours: Any) -> Iterator[Difference]:
    """Return attributes that ``__init__`` sets and the class does not show."""
    on_class = set(dir(type(theirs)))
    for name in sorted(set(dir(theirs)) - on_class):
        if not name.startswith("_") and not hasattr(ours, name):
            yield Difference(f"{label}.{name}", "attribute", MISSING)


SAMPLES: dict[str, Callable[[Any], Any]] = {
    "ConsoleLogger": lambda p: p.ConsoleLogger(),
    "FileLogger": lambda p: p.FileLogger(p.LoggerLevel.Info, "a.log"),
    "CryptoKeyReader": lambda p: p.CryptoKeyReader("a", "b"),
    "AuthenticationToken": lambda p: p.AuthenticationToken("x"),
    "AutoClusterFailover": lambda p: p.AutoClusterFailover(
        p.ServiceInfo("pulsar://a:1"), [p.ServiceInfo("pulsar://b:1")]
    ),
    "schema.CustomEnum": lambda p: p.schema.CustomEnum(Enum("E", "a b")),
    "schema.Array": lambda p: p.schema.Array(p.schema.String()),
    "schema.Map": lambda p: p.schema.Map(p.schema.String()),
}
"""Objects that programs make themselves, and whose attributes they may read."""


if __name__ == "__main__":
    for difference in differences() + between_faces():
        print(difference.where, "|", difference.theirs, "|", difference.ours)
