"""Packages that import their modules at first use name the same objects for type checkers."""

import ast
import importlib
import types
from pathlib import Path

import pytest

import geminga

PACKAGES = (
    "geminga", "geminga.asyncio", "geminga.functions", "geminga.mirror", "geminga.schema", "geminga.spark",
)  # fmt: skip


def stub_of(package: str) -> dict[str, object]:
    """Return the objects that a package's stub names, read from the modules that the stub imports."""
    module = importlib.import_module(package)
    source = Path(module.__file__ or "").with_suffix(".pyi")
    names: dict[str, object] = {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            home = importlib.import_module(node.module or "")
            listed = [alias.name for alias in node.names]
            if listed == ["*"]:
                listed = [name for name in module.__all__ if name in vars(home)]
            names |= {name: getattr(home, name) for name in listed}
        elif isinstance(node, ast.Assign):
            (target,) = node.targets
            assert isinstance(target, ast.Name)
            assert isinstance(node.value, ast.Name)
            names[target.id] = names.pop(node.value.id)
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_a_stub_names_what_the_package_exports(package):
    module = importlib.import_module(package)
    exported = {name: getattr(module, name) for name in module.__all__}
    objects = {name: value for name, value in exported.items() if not isinstance(value, types.ModuleType)}
    assert {name: id(value) for name, value in stub_of(package).items()} == {
        name: id(value) for name, value in objects.items()
    }


def test_every_package_with_a_stub_is_checked():
    root = Path(geminga.__file__).parent
    stubs = {
        ".".join(
            (path.parent if path.stem == "__init__" else path.with_suffix("")).relative_to(root.parent).parts
        )
        for path in root.rglob("*.pyi")
        if not path.stem.endswith("_pb2")
    }
    assert stubs == set(PACKAGES)
