"""Settings' checks: a refusal names the field, the value and what is allowed."""

from typing import Any

import pytest
from cases import cases

from geminga import config
from geminga.errors import InvalidConfiguration


def refusal(check: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        check("field_name", *arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(("low", "high"), [(None, None), (0, None), (None, 10), (0, 10), (5, 5)])
def test_whole_numbers_in_range(low, high):
    assert config.check_int("field_name", 5, low, high) == 5


@pytest.mark.parametrize(("value", "low", "high", "allowed"), cases("whole_numbers_refused"))
def test_whole_numbers_out_of_range(value, low, high, allowed):
    message = refusal(config.check_int, value, low, high)
    assert message == f"field_name={value!r} is not allowed; allowed: {allowed}"


@pytest.mark.parametrize("value", [10**30, float("inf"), float("nan"), True, None, "1"])
def test_times_are_numbers_that_clocks_can_hold(value):
    assert "a number of seconds >= 0.0 and <= 1000000000" in refusal(config.check_seconds, value)
    assert "a number of milliseconds >= 0.0 and <= 1000000000000" in refusal(config.check_milliseconds, value)


def test_times_in_range_are_seconds():
    assert config.check_milliseconds("field_name", 1500) == 1.5
    assert config.check_milliseconds("field_name", 0.5) == 0.0005
    assert config.check_seconds("field_name", 0) == 0.0
    assert type(config.check_seconds("field_name", 3)) is float
    assert config.check_seconds("field_name", 0.5, 0.1, 0.5) == 0.5


@pytest.mark.parametrize(
    "value", [-0.1, float("nan"), float("inf"), float("-inf"), True, "1", None, 61], ids=repr
)
def test_seconds_out_of_range(value):
    message = refusal(config.check_seconds, value, 0.0, 60)
    assert message == f"field_name={value!r} is not allowed; allowed: a number of seconds >= 0.0 and <= 60"


def test_types():
    assert config.check_type("field_name", "x", str) == "x"
    assert config.check_type("field_name", None, str, optional=True) is None
    assert config.check_type("field_name", True, bool) is True
    assert config.check_type("field_name", b"", str, bytes) == b""


@pytest.mark.parametrize(
    ("value", "types", "optional", "allowed"),
    [
        (None, (str,), False, "str"),
        (5, (str,), True, "str or None"),
        (5, (str, bytes), False, "str or bytes"),
        (True, (int,), False, "int"),
    ],
)
def test_wrong_types(value, types, optional, allowed):
    assert refusal(config.check_type, value, *types, optional=optional).endswith(f"; allowed: {allowed}")


def test_a_choice_that_is_nearly_right_gets_a_suggestion_and_no_other_one():
    allowed = ("NONE", "LZ4")
    assert config.check_choice("field_name", "LZ4", allowed) == "LZ4"
    for value, more in (("lz-4", " (did you mean 'LZ4'?)"), (5, "")):
        message = refusal(config.check_choice, value, allowed)
        assert message == f"field_name={value!r} is not allowed; allowed: 'NONE', 'LZ4'{more}"


def test_suggestions():
    known = ["startingOffsets", "endingOffsets", "topic"]
    assert config.suggestion("startingoffset", known) == " (did you mean 'startingOffsets'?)"
    assert config.suggestion("STARTINGOFFSETS", known) == " (did you mean 'startingOffsets'?)"
    assert config.suggestion("x", known) == ""
    assert config.suggestion("x", []) == ""
