"""Parsing and printing of times, positions, sizes and counts: ``7d``, ``2h ago``, ``12:7``, ``20G``."""

import contextlib
import datetime as dt
import re
from typing import Any, Generic, TypeVar

import click

from geminga.diagnosis.commands import how_many
from geminga.diagnosis.commands import rate as rate
from geminga.diagnosis.commands import size as size
from geminga.diagnosis.commands import span as span
from geminga.ids import MessageId

T = TypeVar("T")

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|min|s|m|h|d|w|y)")
_SPAN_FORM = "a time such as 90s, 30m, 2h, 7d or 1h30m, or a number of seconds"
_ID = re.compile(r"([0-9]+)[:,] ?([0-9]+)(?:[:,] ?(-?[0-9]+)(?:[:,] ?(-?[0-9]+))?)?\Z")
_WORDS = {"seconds": "s", "second": "s", "sec": "s", "minutes": "m", "minute": "m", "hours": "h", "hour": "h",
          "days": "d", "day": "d", "weeks": "w", "week": "w", "years": "y", "year": "y"}  # fmt: skip


def parse_span(text: str, unit: str = "s") -> dt.timedelta:
    """Parse a duration: ``1h30m``, ``7d``, ``2 hours ago``, ``90`` (of ``unit``). Raises `ValueError`."""
    plain = text.strip().lower().removesuffix("ago").rstrip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", plain):
        plain += unit
    shorter = re.sub(r"[a-z]{2,}", lambda word: _WORDS.get(word[0], word[0]), plain)
    total, position = 0.0, 0
    while position < len(shorter):
        found = _PART.match(shorter, position)
        if found is None:
            raise ValueError(f"{text!r} is not {_SPAN_FORM}")
        total += float(found[1]) * _SECONDS[found[2]]
        position = found.end()
    if not shorter:
        raise ValueError(f"{text!r} is not {_SPAN_FORM}")
    try:
        return dt.timedelta(seconds=total)
    except OverflowError:
        raise ValueError(f"{text!r} is too long") from None


def parse_size(text: str) -> int:
    """Parse a size in bytes, or with K, M, G or T for powers of 1,024. Raises `ValueError`."""
    upper = text.strip().upper().removesuffix("B").removesuffix("I")
    factor = 1024 ** ("KMGT".find(upper[-1:]) + 1) if upper[-1:] else 1
    number = upper[:-1] if factor > 1 else upper
    try:
        size = int(float(number) * factor)
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise ValueError(f"{text!r} is no size: give bytes, or a number with K, M, G or T")
    return size


def parse_size_in_mib(text: str) -> int:
    """Parse a size of at least 1 MiB as `parse_size` does; a plain number is in MiB. Raises `ValueError`."""
    in_bytes = parse_size(text + "M" if re.fullmatch(r"\s*[0-9.]+\s*", text) else text)
    if in_bytes < 1 << 20:
        raise ValueError(f"{text!r} is less than 1 MiB")
    return in_bytes


Where = MessageId | dt.timedelta | dt.datetime | int
"""Position in a topic: a message id, a duration before now, a time, or milliseconds since 1970."""


def parse_where(text: str) -> Where:
    """Parse a position: ``earliest``, ``latest``, ``2h`` or ``2h ago``, an id as of `parse_id`, an ISO time
    (local without a zone), or milliseconds since 1970. Raises `ValueError`."""
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return MessageId.earliest if word.lower() == "earliest" else MessageId.latest
    if word.isdecimal() and 9 <= len(word) < 15:  # 15 digits: after the year 5138
        return int(word)
    for parse in (parse_id, parse_span, dt.datetime.fromisoformat):
        with contextlib.suppress(ValueError, OverflowError):
            found: Any = parse(word)
            if isinstance(found, dt.timedelta):
                dt.datetime.now(dt.UTC) - found  # raises before the year 1
            is_local = isinstance(found, dt.datetime) and found.tzinfo is None
            return found.astimezone() if is_local else found  # type: ignore[no-any-return]
    raise ValueError(
        f"{text!r} is not a position in a topic: give earliest, latest, '2h ago', 2026-01-31T12:00, "
        "milliseconds since 1970, or LEDGER:ENTRY"
    )


def parse_time(text: str) -> dt.datetime:
    """Parse a time: ``2h ago``, an ISO time (local without a zone), or milliseconds since 1970. Raises
    `ValueError`."""
    with contextlib.suppress(ValueError):
        found = parse_where(text)
        if not isinstance(found, MessageId):
            return moment(found)
    raise ValueError(f"{text!r} is not a time: give one such as 2026-01-31T12:00 or '2h ago'")


def moment(where: dt.timedelta | dt.datetime | int) -> dt.datetime:
    """Return the time of a position that is no message."""
    if isinstance(where, dt.timedelta):
        return dt.datetime.now(dt.UTC) - where
    return dt.datetime.fromtimestamp(where / 1000, dt.UTC) if isinstance(where, int) else where


def parse_id(text: str) -> MessageId:
    """Parse a message id: ``LEDGER:ENTRY[:BATCH_INDEX]``, ``LEDGER:ENTRY:PARTITION:BATCH_INDEX``, or as
    ``pulsar-client`` prints it: ``(ledger,entry,partition,batch index)``. Raises `ValueError`."""
    found = _ID.match(text.strip().removeprefix("(").removesuffix(")"))
    if found is None:
        raise ValueError(f"{text!r} is not LEDGER:ENTRY")
    ledger, entry, third, fourth = found.groups("-1")
    partition, index = ("-1", third) if found[4] is None else (third, fourth)
    return MessageId(int(partition), int(ledger), int(entry), int(index))


def id_text(message_id: MessageId) -> str:
    """Return a message id as ``LEDGER:ENTRY[:BATCH_INDEX]``, as in the console; of a partitioned topic as
    ``LEDGER:ENTRY:PARTITION:BATCH_INDEX``."""
    parts = [message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()]
    if message_id.partition() >= 0:
        parts.insert(2, message_id.partition())
    elif parts[2] < 0:
        parts.pop()
    return ":".join(map(str, parts))


def parse_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises `ValueError`."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None


def parse_switch(text: str) -> bool:
    """``on`` or ``off``. Raises `ValueError`."""
    word = text.strip().lower()
    if word in ("on", "true", "yes"):
        return True
    if word in ("off", "false", "no"):
        return False
    raise ValueError(f"{text!r} is neither on nor off")


class _Parsed(click.ParamType, Generic[T]):  # type: ignore[type-arg]  # no subscript before click 8.4
    def __init__(self, name: str, parse: Any, *also: str) -> None:
        self.name = name
        self._parse = parse
        self._also = also

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        word = value.strip().lower()
        if self._also and word in (*self._also, "-1"):
            return self._also[0]
        try:
            return self._parse(value)
        except ValueError as error:
            also = f", or {' or '.join(self._also)}" if self._also else ""
            self.fail(f"{error}{also}", param, ctx)


SPAN = _Parsed[dt.timedelta]("span", parse_span)
SPAN_OR_FOREVER = _Parsed[Any]("span", parse_span, "forever")
SIZE = _Parsed[int]("size", parse_size)
SIZE_IN_MIB = _Parsed[int]("size", parse_size_in_mib)
SIZE_OR_UNLIMITED = _Parsed[Any]("size", parse_size, "unlimited")
WHERE = _Parsed[Where]("where", parse_where)
TIME = _Parsed[dt.datetime]("time", parse_time)
ID = _Parsed[MessageId]("ledger:entry", parse_id)
PATTERN = _Parsed[re.Pattern[str]]("regex", parse_pattern)
SWITCH = _Parsed[bool]("on|off", parse_switch)


# --- numbers as text ------------------------------------------------------------------------------


def backlog(messages: int, entries: int, in_bytes: int, oldest_seconds: int, holes: int) -> str:
    """Return a backlog in messages if the broker counts them (not below 0), else in entries."""
    if messages < 0:
        return how_many(entries, "entry")
    text = f"{how_many(messages)}, {size(in_bytes)}"
    text += f", the oldest {span(oldest_seconds)} old" if oldest_seconds >= 0 else ""
    return text + (f", {how_many(holes, 'ack hole')}" if holes > 0 else "")


def backlog_of(row: Any) -> str:
    """Return the backlog in a subscription's statistics, as text."""
    return backlog(
        row.messages_in_backlog, row.msg_backlog, row.bytes_in_backlog,
        row.oldest_backlog_message_age_seconds, row.ack_holes,
    )  # fmt: skip


def count(value: int) -> str:
    """Return a count as ``1,234``; ``-`` if unknown (below 0)."""
    return "-" if value < 0 else f"{value:,}"
