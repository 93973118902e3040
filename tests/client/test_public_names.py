"""The package's names, compared with pulsar-client's where that is installed."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import geminga
from geminga import errors

pulsar = pytest.importorskip("pulsar")


def public(module):
    return [name for name in dir(module) if not name.startswith("_")]


importlib.import_module("pulsar.asyncio")
importlib.import_module("pulsar.exceptions")

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tools():
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path.remove(str(TOOLS))


def test_every_difference_has_its_reason(tools):
    """The walk over both libraries finds what the table explains, nothing less and nothing more."""
    compare_clients = importlib.import_module("compare_clients")
    table = importlib.import_module("client_differences").NAMES
    explained = {(row.where, row.theirs, row.ours) for row in table}
    found = {(d.where, d.theirs, d.ours) for d in compare_clients.differences()}
    assert found - explained == set(), "differences without a reason: tools/client_differences.py"
    assert explained - found == set(), "reasons without a difference: tools/client_differences.py"
    assert all(row.why for row in table)


def test_compare_clients_finds_each_kind_of_difference(tools):
    """Each kind of difference, on two small libraries that are made to differ."""
    compare_clients = importlib.import_module("compare_clients")

    class Theirs:
        def same(self, a, b=1): ...
        def gone(self): ...
        def moved(self, a, b): ...
        def default(self, a=1): ...
        def fewer(self, a, b): ...
        def more(self, a): ...
        async def colour(self): ...

        kind = 5

    class Ours:
        def same(self, a, b=1, *, extra=0): ...
        def moved(self, b, a): ...
        def default(self, a=2): ...
        def fewer(self, a): ...
        def more(self, a, b): ...
        def colour(self): ...
        def kind(self): ...

    found = {d.where for d in compare_clients.compare("C", Theirs, Ours)}
    assert found == {
        "C.gone", "C.moved(a)", "C.moved(b)", "C.default(a)", "C.fewer(b)", "C.more(b)", "C.colour", "C.kind",
    }  # fmt: skip


@pytest.mark.parametrize("name", public(pulsar.exceptions))
def test_every_exception_exists(name):
    ours = getattr(geminga.exceptions, name)
    assert issubclass(ours, errors.PulsarException)
    assert ours is getattr(geminga, name)


def test_all_names_load():
    for name in geminga.__all__:
        if name != "spark":  # needs pyspark
            assert getattr(geminga, name) is not None, name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = geminga.no_such_name


def test_importing_is_light():
    program = (
        "import sys, time; t = time.process_time(); import geminga; t = time.process_time() - t;"
        "heavy = {'google.protobuf', 'pyarrow', 'numpy', 'numba', 'aiohttp', 'pyspark', 'asyncio', 'click'};"
        "print(t, sorted(heavy & set(sys.modules)))"
    )
    best, loaded = 1.0, ""
    for _ in range(3):  # the best of three: the first may have to compile
        output = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        seconds, _, loaded = output.partition(" ")
        best = min(best, float(seconds))
    assert loaded.strip() == "[]"
    assert best < 0.05
