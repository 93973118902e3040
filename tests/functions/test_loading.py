"""Forms of functions, and how they are loaded and called."""

import functools
from typing import Any

import pytest

from geminga.errors import InvalidConfiguration
from geminga.functions.loading import find, resolve, schema, serde
from tests.functions import relayed


class _Caller:
    async def __call__(self, value: Any) -> Any:
        return value


def _optional(value: Any, extra: int = 3) -> Any:
    return value, extra


@pytest.mark.parametrize(
    ("function", "takes_context", "is_async", "takes"),
    [
        (relayed.shout, False, False, "str"),
        ("tests.functions.relayed:slowly", False, True, "str"),
        ("tests.functions.relayed.Everything", True, False, ""),
        (relayed.Everything(), True, False, ""),
        (_Caller(), False, True, ""),
        (functools.partial(relayed.slowly), False, True, "str"),
        (str.upper, False, False, ""),
        (_optional, False, False, ""),
        (lambda value, context: value, True, False, ""),
    ],
)
def test_callables_are_inspected(function, takes_context, is_async, takes):
    call = resolve(function)
    assert (call.takes_context, call.is_async, call.takes) == (takes_context, is_async, takes)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nowhere.to_be:found", "no module 'nowhere'"),
        ("tests.functions.relayed:shuot", "did you mean 'shout'"),
        ("word", "module:callable"),
        ("/no/such.py:f", "there is no file"),
        (lambda: 1, "a callable of"),
        (lambda a, b, c: 1, "a callable of"),
        (3, "a callable"),
    ],
)
def test_unsuitable_callables_are_refused(function, said):
    with pytest.raises(InvalidConfiguration, match=said):
        resolve(function)


def test_a_file_can_import_modules_of_its_folder(tmp_path):
    (tmp_path / "neighbour_of_it.py").write_text("MARK = '?'")
    (tmp_path / "asked_in_a_file.py").write_text(
        "import neighbour_of_it\ndef ask(value): return value + neighbour_of_it.MARK"
    )
    assert resolve(f"{tmp_path}/asked_in_a_file.py:ask").function("so") == "so?"


def test_serdes_accept_the_names_of_function_workers():
    assert serde("input_serde", "serde.PickleSerDe").deserialize(b"I1\n.") == 1
    assert type(serde("input_serde", None)).__name__ == "IdentitySerDe"
    with pytest.raises(InvalidConfiguration, match="serialize"):
        serde("input_serde", dict)
    assert find("os:path.join")("a", "b") == "a/b"


def test_an_invalid_schema_is_refused_with_the_name_of_the_setting():
    for wrong in (relayed.shout, 3, "tests.functions.relayed:shout"):
        with pytest.raises(InvalidConfiguration, match=r"^output_schema=.*allowed: a schema"):
            schema("output_schema", wrong)
