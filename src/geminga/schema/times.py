"""Dates and times, as the Java client writes them. Additions: ``pulsar-client`` has none of these.

=======================  =============================  ==================================================
schema                   Python value                   payload (big-endian)
=======================  =============================  ==================================================
`DateSchema`             `datetime` with a time zone    8 bytes: milliseconds since 1970
`TimestampSchema`        `datetime` with a time zone    8 bytes: milliseconds since 1970
`TimeSchema`             `time` without a time zone     8 bytes: milliseconds since midnight
`InstantSchema`          `datetime` with a time zone    8 bytes: seconds since 1970, 4 bytes: nanoseconds
`LocalDateSchema`        `date`                         8 bytes: days since 1970
`LocalTimeSchema`        `time` without a time zone     8 bytes: nanoseconds since midnight
`LocalDateTimeSchema`    `datetime` without time zone   16 bytes: days, then nanoseconds of the day
=======================  =============================  ==================================================

Decoded times are in UTC. Python has microseconds: finer digits are cut off in both directions.
"""

import datetime as dt
from struct import Struct
from typing import Any

from geminga._util.values import V
from geminga.schema.primitives import FixedSizeSchema
from geminga.schema.schema import SchemaType

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_MILLISECOND = dt.timedelta(milliseconds=1)
_SECOND = dt.timedelta(seconds=1)
_DAY_MS = 86_400_000
_DAY_NS = 86_400_000_000_000


class _Time(FixedSizeSchema[V]):
    """Base of the schemas in this module. Encoding raises `TypeError` also for a missing or a forbidden time
    zone."""

    def _name(self) -> str:
        return "".join(word.capitalize() for word in self.kind.name.split("_"))

    def _validate_object_type(self, obj: Any) -> None:
        # A datetime is a date to Python, and not to a schema.
        if type(obj) is not self._python_type and not (
            isinstance(obj, self._python_type)
            and isinstance(obj, dt.datetime) is (self._python_type is dt.datetime)
        ):
            raise TypeError(f"{self} takes a {self._python_type.__name__}, not a {type(obj).__name__}")

    def _zoned(self, value: dt.datetime) -> dt.datetime:
        if value.tzinfo is None:
            raise TypeError(f"{self} takes a datetime with a time zone: {value!r} may be any moment")
        return value

    def _local(self, value: Any) -> Any:
        if value.tzinfo is not None:
            raise TypeError(f"{self} takes a {self._python_type.__name__} without a time zone, not {value!r}")
        return value


class DateSchema(_Time[dt.datetime]):
    """Moments in milliseconds, Java's ``java.util.Date``."""

    kind, _layout, _python_type = SchemaType.DATE, Struct(">q"), dt.datetime

    def _numbers(self, value: dt.datetime) -> tuple[int, ...]:
        return ((self._zoned(value) - _EPOCH) // _MILLISECOND,)

    def _value(self, *numbers: int) -> Any:
        return _EPOCH + dt.timedelta(milliseconds=numbers[0])


class TimestampSchema(DateSchema):
    """Moments in milliseconds, Java's ``java.sql.Timestamp``."""

    kind = SchemaType.TIMESTAMP


class TimeSchema(_Time[dt.time]):
    """Times of day in milliseconds, Java's ``java.sql.Time`` in UTC."""

    kind, _layout, _python_type = SchemaType.TIME, Struct(">q"), dt.time

    def _numbers(self, value: dt.time) -> tuple[int, ...]:
        return (_nanoseconds(self._local(value)) // 1_000_000,)

    def _value(self, *numbers: int) -> Any:
        return _time_of_day(numbers[0] % _DAY_MS * 1_000_000)


class InstantSchema(_Time[dt.datetime]):
    """Moments in nanoseconds, Java's ``java.time.Instant``."""

    kind, _layout, _python_type = SchemaType.INSTANT, Struct(">qi"), dt.datetime

    def _numbers(self, value: dt.datetime) -> tuple[int, ...]:
        seconds, rest = divmod(self._zoned(value) - _EPOCH, _SECOND)
        return seconds, rest.microseconds * 1000

    def _value(self, *numbers: int) -> Any:
        seconds, nanoseconds = numbers
        return _EPOCH + dt.timedelta(seconds=seconds, microseconds=nanoseconds // 1000)


class LocalDateSchema(_Time[dt.date]):
    """Days, Java's ``java.time.LocalDate``."""

    kind, _layout, _python_type = SchemaType.LOCAL_DATE, Struct(">q"), dt.date

    def _numbers(self, value: dt.date) -> tuple[int, ...]:
        return (value.toordinal() - _EPOCH_DAY,)

    def _value(self, *numbers: int) -> Any:
        return dt.date.fromordinal(numbers[0] + _EPOCH_DAY)


class LocalTimeSchema(_Time[dt.time]):
    """Times of day in nanoseconds, Java's ``java.time.LocalTime``."""

    kind, _layout, _python_type = SchemaType.LOCAL_TIME, Struct(">q"), dt.time

    def _numbers(self, value: dt.time) -> tuple[int, ...]:
        return (_nanoseconds(self._local(value)),)

    def _value(self, *numbers: int) -> Any:
        return _time_of_day(numbers[0])


class LocalDateTimeSchema(_Time[dt.datetime]):
    """Days with a time of day, Java's ``java.time.LocalDateTime``."""

    kind, _layout, _python_type = SchemaType.LOCAL_DATE_TIME, Struct(">qq"), dt.datetime

    def _numbers(self, value: dt.datetime) -> tuple[int, ...]:
        return self._local(value).toordinal() - _EPOCH_DAY, _nanoseconds(value.time())

    def _value(self, *numbers: int) -> Any:
        days, nanoseconds = numbers
        return dt.datetime.combine(dt.date.fromordinal(days + _EPOCH_DAY), _time_of_day(nanoseconds))


def _nanoseconds(value: dt.time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) * 1000


def _time_of_day(nanoseconds: int) -> dt.time:
    if not 0 <= nanoseconds < _DAY_NS:
        raise ValueError(f"{nanoseconds} nanoseconds are no time of day")
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest // 1000)
