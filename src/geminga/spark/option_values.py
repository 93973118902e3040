"""Parsers of option texts: each takes an option's name and text, and raises an error naming both."""

import json
import re
from collections.abc import Callable
from typing import Any

from geminga.config import suggestion
from geminga.errors import InvalidConfiguration, InvalidTopicName
from geminga.ids import TopicName
from geminga.spark import offsets

Times = dict[offsets.Partition, int]


def refused(name: str, value: str, allowed: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"option {name}={value!r} is not allowed; allowed: {allowed}")


def text(name: str, value: str) -> str:
    if not value.strip():
        raise refused(name, value, "a text that is not empty")
    return value.strip()


def number(minimum: int, end: int | None = None) -> Callable[[str, str], int]:
    def parse(name: str, value: str) -> int:
        try:
            found = int(value)
        except ValueError:
            found = minimum - 1
        if found < minimum or (end is not None and found >= end):
            raise refused(name, value, f"a whole number >= {minimum}{f' and < {end}' if end else ''}")
        return found

    return parse


def moment(name: str, value: str) -> int:
    """Parse milliseconds since 1970; a number of today's seconds would be a time in January 1970."""
    found = number(0)(name, value)
    if 0 < found < _MILLISECONDS_MIN:
        raise refused(name, value, "milliseconds since 1970, such as 1700000000000; this looks like seconds")
    return found


_MILLISECONDS_MIN = 10**11
"""In seconds a time in the year 5138, in milliseconds in 1973."""

_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(name: str, value: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)b?\s*", value.lower())
    if not match or int(match[1]) < 1:
        raise refused(name, value, "a number of bytes >= 1, optionally with k, m, g or t")
    return int(match[1]) * _SIZE_UNITS[match[2]]


_TIME_UNITS_MS = {
    "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
    "second": 1000, "seconds": 1000, "minute": 60_000, "minutes": 60_000,
    "hour": 3_600_000, "hours": 3_600_000,
}  # fmt: skip


def duration_ms(name: str, value: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]+)?\s*", value.lower())
    unit = _TIME_UNITS_MS.get(match[2] or "ms") if match else None
    if not match or unit is None:
        raise refused(name, value, "a time like 500ms, 30s, 15m or 2h")
    return int(match[1]) * unit


def flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise refused(name, value, "true or false")
    return value.lower() == "true"


def choice(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, value: str) -> str:
        for each in choices:
            if each.lower() == value.strip().lower():
                return each
        raise refused(name, value, ", ".join(choices) + suggestion(value, choices))

    return parse


_PLUGINS = ("token", "tls", "basic", "oauth2")


def plugin(name: str, value: str) -> str:
    """Return an authentication plug-in by its short name, or by the name of its Java class."""
    short = value.strip().rpartition(".")[2].lower().removeprefix("authentication")
    if short not in _PLUGINS:
        raise refused(
            name,
            value,
            f"{', '.join(_PLUGINS)}, or org.apache.pulsar.client.impl.auth.AuthenticationToken and its like",
        )
    return short


def secret(name: str, value: str) -> str:
    """Parse a token or other authentication parameters; errors never show them."""
    if not value.strip().removeprefix("token:"):
        raise InvalidConfiguration(f"option {name} holds no token; allowed: a JSON web token")
    return value.strip()


def names(name: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


# --- topics --------------------------------------------------------------------------------------


def topic(name: str, value: str) -> tuple[str, ...]:
    return (one_topic(name, value),)


def one_topic(name: str, value: str) -> str:
    try:
        return str(TopicName.parse(value.strip()))
    except InvalidTopicName as error:
        raise InvalidConfiguration(f"option {name}: {error}") from None


def topics(name: str, value: str) -> tuple[str, ...]:
    found = tuple(one_topic(name, part) for part in value.split(",") if part.strip())
    if not found:
        raise refused(name, value, "topic names, separated by commas")
    if len(set(found)) < len(found):
        raise refused(name, value, "every topic once")
    return found


def pattern(name: str, value: str) -> str:
    """Parse ``tenant/namespace/regular expression``, as `TopicName` completes it."""
    found = one_topic(name, value)
    try:
        re.compile(TopicName.parse(found).local)
    except re.error as error:
        raise refused(name, value, f"a regular expression ({error})") from None
    return found


def matches(pattern: str, topic: str) -> bool:
    """Return whether a topic is in the pattern's namespace and its whole local name matches."""
    wanted, found = TopicName.parse(pattern), TopicName.parse(topic).base
    return (
        wanted.namespace_name == found.namespace_name and re.fullmatch(wanted.local, found.local) is not None
    )


def _by_topic(name: str, value: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise refused(name, value, f"JSON like {example}")
    return found


def assigned(name: str, value: str) -> tuple[str, ...]:
    """Parse Kafka's assignment to partition topics: ``{"topic": [0, 2]}``; -1: no partitions."""
    found = []
    for each, partitions in _by_topic(name, value, '{"topic": [0, 2]}').items():
        base = TopicName.parse(one_topic(name, each))
        try:
            numbers = [int(index) for index in partitions]
            if min(numbers, default=0) < -1:
                raise ValueError
            found += [str(base if number == -1 else base.partition_name(number)) for number in numbers]
        except (TypeError, ValueError):
            raise refused(name, value, 'JSON like {"topic": [0, 2]}') from None
    if not found or len(set(found)) < len(found):
        raise refused(name, value, "every partition once, and one at least")
    return tuple(found)


# --- positions -----------------------------------------------------------------------------------


def places(name: str, value: str) -> str | offsets.Offsets:
    if value.strip().lower() in ("earliest", "latest"):
        return value.strip().lower()
    if not value.lstrip().startswith("{"):
        near = suggestion(value, ("earliest", "latest"))
        raise refused(name, value, f'earliest, latest or JSON like {{"topic": {{"0": "5:12"}}}}{near}')
    try:
        return offsets.from_json(value)
    except (InvalidConfiguration, InvalidTopicName) as error:
        raise InvalidConfiguration(f"option {name}: {error}") from None


def named_places(name: str, value: str) -> str | offsets.Offsets:
    """Parse offsets, without ``"*"``."""
    found = places(name, value)
    if not isinstance(found, str) and offsets.OTHERS in found:
        raise InvalidConfiguration(f"option {name}: '*' is allowed in startingOffsets only")
    return found


def firsts(name: str, value: str) -> offsets.Offsets:
    """Parse offsets in JSON, without ``"*"``."""
    if not value.lstrip().startswith("{"):
        raise refused(name, value, 'JSON like {"topic": {"0": "5:12"}}')
    found = named_places(name, value)
    assert not isinstance(found, str)
    return found


def times(name: str, value: str) -> Times:
    """Parse milliseconds since 1970 by partition or topic: ``{"topic": {"0": 1700000000000}}``."""
    example = '{"topic": {"0": 1700000000000}}'
    found: Times = {}
    for each, partitions in _by_topic(name, value, example).items():
        base = TopicName.parse(one_topic(name, each))
        by_index = partitions if isinstance(partitions, dict) else {base.partition: partitions}
        for index, time_ms in by_index.items():
            try:
                place, when = int(index), str(int(time_ms))
            except (TypeError, ValueError):
                raise refused(name, value, f"JSON like {example}") from None
            found[str(base.base), place] = moment(name, when)
    return found
