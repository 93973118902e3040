"""Numbers and flags in JSON, compared with the library that Apache Pulsar uses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geminga.broker.rules.json_values import flag_of, is_blank, number_of, whole_of

VECTORS = json.loads((Path(__file__).parent.parent.parent / "vectors" / "jackson.json").read_text())


def in_range(bits: int) -> Callable[[Any], int | None]:
    def read(value: Any) -> int | None:
        found = whole_of(value)
        return found if found is not None and -(1 << bits - 1) <= found < 1 << bits - 1 else None

    return read


READERS: dict[str, Callable[[Any], Any]] = {
    "int": in_range(32), "long": in_range(64), "double": number_of, "boolean": flag_of,
}  # fmt: skip


@pytest.mark.parametrize("kind", READERS)
def test_answers_equal_those_of_jackson(kind):
    different = {}
    for raw, answer in VECTORS[kind].items():
        value = json.loads(raw)
        # A field that is not there is 0 or false in Java.
        found = 0 if is_blank(value) else READERS[kind](value)
        if found != (None if answer == "refused" else answer):
            different[raw] = found
    assert different == {}


def test_other_than_finite_numbers_are_none():
    for value in (float("nan"), float("inf"), 10**400, "NaN", "Infinity", "9" * 5000, "1e999", "1_0"):
        assert number_of(value) is None
    assert whole_of("9" * 5000) is None
    assert whole_of(float("nan")) is None
