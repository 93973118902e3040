"""Budgets of size and clarity: figures about the sources that may only fall.

``tools/budgets.toml`` holds the highest value allowed for each figure.

    python tools/budgets.py            print each figure beside its budget; exit with 1 if one is exceeded
    python tools/budgets.py --lower    write today's figures into the file where they are below the budget
    python tools/budgets.py --list F   print what figure F counts, such as `cycles` or `large_classes`
"""

from __future__ import annotations

import ast
import gc
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import prose

ROOT = Path(__file__).parent.parent
FILE = ROOT / "tools/budgets.toml"
METHODS_MAX, LINES_MAX, PARAMETERS_MAX = 25, 60, 8
_GENERATED = re.compile(r"_pb2|/proto/|client/api/sync\.py$")
_WIDE_BY_NATURE = re.compile(
    r"settings|client/(api/(aio|base|sync)|publish/producer|receive/(consumer|reader|table_view)|options/arguments)\.py$"
)


class Module(NamedTuple):
    """A parsed source file: its dotted name, its path and the nodes of its syntax tree."""

    name: str
    path: Path
    nodes: tuple[ast.AST, ...]

    @property
    def shown(self) -> str:
        """The path below the repository."""
        return self.path.relative_to(ROOT).as_posix()


@cache
def modules(folder: str) -> tuple[Module, ...]:
    """Return the modules below a folder of the repository, generated protocol buffers left out."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "_pb2" not in path.name:
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, path, tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))))
    return tuple(found)


def _imports(module: Module, names: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield each first-party module that a module imports, and whether for type checking alone."""
    guarded = {
        id(inner)
        for node in module.nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in module.nodes:
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [name if name in names else node.module for name in inside]
        for target in dict.fromkeys(targets):
            if target in names:
                yield target, id(node) in guarded


def cycles() -> list[str]:
    """Return the groups of modules that import one another, imports for type checking included."""
    names = {module.name for module in modules("src")}
    graph = {module.name: {target for target, _ in _imports(module, names)} for module in modules("src")}
    return [" ".join(sorted(group)) for group in _components(graph) if len(group) > 1]


def _components(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """Yield the strongly connected components of a graph (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[set[str]]:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                yield from visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = set(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            yield group

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            yield from visit(name)


def type_checking_imports() -> list[str]:
    """Return the first-party imports that only type checkers follow.

    Those in the stubs of packages that import at first use are no such imports: they list public names.
    """
    names = {module.name for module in modules("src")}
    return [
        f"{module.shown}: {target}"
        for module in modules("src")
        for target, guarded in _imports(module, names)
        if guarded
    ]


def _definitions(folder: str) -> Iterator[tuple[Module, ast.AST]]:
    for module in modules(folder):
        if not _GENERATED.search(module.shown):
            for node in module.nodes:
                yield module, node


def large_classes() -> list[str]:
    """Return the classes with more than 25 methods."""
    return [
        f"{module.shown}: {node.name} ({count})"
        for module, node in _definitions("src")
        if isinstance(node, ast.ClassDef)
        and (count := sum(isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef) for x in node.body))
        > METHODS_MAX
    ]


def long_functions() -> list[str]:
    """Return the functions of more than 60 lines."""
    return [
        f"{module.shown}:{node.lineno}: {node.name} ({length})"
        for module, node in _definitions("src")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LINES_MAX
    ]


def wide_functions() -> list[str]:
    """Return the functions with more than 8 parameters, settings and the generated API left out."""
    return [
        f"{module.shown}:{node.lineno}: {node.name} ({count})"
        for module, node in _definitions("src")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not _WIDE_BY_NATURE.search(module.shown)
        and (count := len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])) > PARAMETERS_MAX
    ]


def private_reads(folder: str = "src") -> list[str]:
    """Return the reads of private attributes of an object that the module does not define."""
    found = []
    for module in modules(folder):
        own = _own_names(module)
        found.extend(
            f"{module.shown}:{node.lineno}: {ast.unparse(node)[:60]}"
            for node in module.nodes
            if isinstance(node, ast.Attribute)
            and re.match(r"_[a-z]", node.attr)
            and node.attr not in own
            and node.attr not in {"_asdict", "_replace", "_fields"}
            and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", "os", "sys"})
        )
    return found


def _own_names(module: Module) -> set[str]:
    """Return the private attributes that a module's own classes and functions define."""
    own: set[str] = set()
    for node in module.nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in {"self", "cls"}
        ):
            own.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            own.update(target.id for target in targets if isinstance(target, ast.Name))
    return own


def repeated_class_names() -> list[str]:
    """Return the public class names that more than one module defines. Classes for threads have the names of
    the asyncio ones."""
    where = defaultdict(list)
    for module, node in _definitions("src"):
        if (
            isinstance(node, ast.ClassDef)
            and not node.name.startswith("_")
            and not module.shown.endswith("client/admin/sync.py")
        ):
            where[node.name].append(module.shown)
    return [f"{name}: {', '.join(places)}" for name, places in sorted(where.items()) if len(places) > 1]


def sleeps_in_tests() -> list[str]:
    """Return the calls of `sleep` in tests."""
    return [
        f"{module.shown}:{node.lineno}"
        for module in modules("tests")
        for node in module.nodes
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep"
    ]


def private_reads_in_tests() -> list[str]:
    """Return the reads of private attributes in tests."""
    return private_reads("tests")


def _package(path: Path) -> str:
    """Return the package (or the folder) that a file counts for, such as `src/geminga/broker`."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "src":
        return "/".join(parts[: 3 if len(parts) > 3 else 2])
    return parts[0] if len(parts) > 1 else "."


def lines() -> Counter[str]:
    """Return the lines of Python of each package, and of the tests; those of stubs are included."""
    counted: Counter[str] = Counter()
    for folder in ("src", "tests"):
        for path in (ROOT / folder).rglob("*.py*"):
            if path.suffix in {".py", ".pyi"} and "_pb2" not in path.name:
                with path.open("rb") as file:
                    counted[_package(path)] += sum(1 for _ in file)
    return counted


def flagged_prose() -> Counter[str]:
    """Return the number of pieces of prose that break a rule of `prose`, for each package."""
    counted: Counter[str] = Counter()
    roots = (
        "src", "tests", "docs", "tools", "benchmarks", "deploy", ".ci", "README.md", "CONTRIBUTING.md",
        "CHANGELOG.md", "Makefile", "pyproject.toml",
    )  # fmt: skip
    for path in prose.files(*(ROOT / root for root in roots)):
        if path != Path(prose.__file__):
            counted[_package(path)] += sum(prose.problem(piece) is not None for piece in prose.pieces(path))
    return counted


COUNTS = (
    cycles,
    type_checking_imports,
    large_classes,
    long_functions,
    wide_functions,
    private_reads,
    repeated_class_names,
    sleeps_in_tests,
    private_reads_in_tests,
)


def measured() -> dict[str, dict[str, int]]:
    """Return today's figures: the sections of ``budgets.toml``."""
    gc.disable()  # it would look through the syntax trees of a thousand modules again and again
    try:
        return {
            "counts": {count.__name__: len(count()) for count in COUNTS},
            "lines": dict(sorted(lines().items())),
            "flagged_prose": dict(sorted(flagged_prose().items())),
        }
    finally:
        gc.enable()


def budgets() -> dict[str, dict[str, int]]:
    """Return the highest value allowed for each figure."""
    return tomllib.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def exceeded(figures: dict[str, dict[str, int]], limits: dict[str, dict[str, int]]) -> list[str]:
    """Return a line for each figure above its budget; a package without one may have no flagged prose."""
    return [
        f"{section}.{name} is {value}; the budget is {limit}"
        for section, values in figures.items()
        for name, value in values.items()
        if value > (limit := limits.get(section, {}).get(name, 0 if section == "flagged_prose" else value))
    ]


def _write(figures: dict[str, dict[str, int]], limits: dict[str, dict[str, int]]) -> None:
    text = ["# Highest values allowed; they may only fall: python tools/budgets.py --lower"]
    for section, values in figures.items():
        text.append(f"\n[{section}]")
        for name, value in values.items():
            key = name if name.isidentifier() else f'"{name}"'
            text.append(f"{key} = {min(value, limits.get(section, {}).get(name, value))}")
    FILE.write_text("\n".join(text) + "\n", encoding="utf-8")


def main() -> int:
    """Print, list or lower the figures, as the command line says."""
    if "--list" in sys.argv:
        print("\n".join(next(count for count in COUNTS if count.__name__ == sys.argv[-1])()))
        return 0
    figures, limits = measured(), budgets()
    if "--lower" in sys.argv:
        _write(figures, limits)
    for section, values in figures.items():
        for name, value in values.items():
            print(f"{section}.{name}: {value} of {limits.get(section, {}).get(name, '-')}")
    above = exceeded(figures, limits)
    print("\n".join(above))
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
