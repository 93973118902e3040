"""Python's own classes as record classes: dataclasses, Pydantic models, named tuples and typed dicts.

::

    @dataclass
    class Flight:
        tail: str
        delay_minutes: int = 0
        stops: list[str] = field(default_factory=list)

    client.create_producer("flights", schema=JsonSchema(Flight))

The annotations determine the Avro definition, which Pulsar stores for JSON and Avro schemas alike, and the
conversion of values. Types that JSON lacks are text (ISO times, UUIDs; base64 for bytes, as in Jackson); Avro
has logical types for most of them. A field without a default is required; a default is written into the
definition, so that readers of older data use it.

=============================  ======================================  =========================
annotation                     Avro                                    JSON
=============================  ======================================  =========================
bool, str, bytes               the same                                the same; base64
int, float                     long, double                            numbers
T | None                       ["null", T]                             null
list[T], tuple[T, ...], set    array                                   array
dict[str, T]                   map                                     object
Enum                           enum of the names                       the values
datetime (with a time zone)    timestamp-micros                        ISO text
date, time                     date, time-micros                       ISO text
UUID                           uuid                                    text
Decimal                        string                                  text
another such class             record                                  object
=============================  ======================================  =========================

``Annotated[int, Integer()]`` uses a field type of `geminga.schema.definition` instead, such as ``int``.
"""

import base64
import dataclasses
import datetime as dt
import enum
import json
import re
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from geminga.errors import CorruptPayload
from geminga.schema.definition import Field, Record, read_json

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MISSING: Any = dataclasses.MISSING


class Form(enum.Enum):
    """Encoding of values."""

    AVRO = "avro"
    JSON = "json"


class Converter(NamedTuple):
    """Definition of one annotation, and the functions that convert its values to plain data and back.

    ``to_plain`` raises `TypeError` or `ValueError` for a value that the annotation does not allow.
    """

    definition: Any
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


class _ModelField(NamedTuple):
    name: str
    """Name of the attribute in the class."""
    key: str
    """Name of the field in plain data and in the definition."""
    hint: Any
    default: Any
    optional_key: bool
    """Whether a typed dict may lack the key."""
    has_serializer: bool = False
    """Whether the Pydantic model has its own serializer for the field."""


def is_model(cls: Any) -> bool:
    """Whether a class can be used as a record class here."""
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls) or _is_pydantic(cls) or _is_named_tuple(cls) or typing.is_typeddict(cls)
    )


def _is_pydantic(cls: type) -> bool:
    return hasattr(cls, "model_validate_json") and hasattr(cls, "model_fields")


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_field_defaults")


class Model:
    """A class with its Avro definition. Raises `TypeError` naming class and field for an unsupported
    annotation."""

    def __init__(self, cls: type, form: Form) -> None:
        self.cls = cls
        self.value_type: type = dict if typing.is_typeddict(cls) else cls
        """Class of the values."""
        self._converter = _Builder(form).record(cls)
        # Without a choice of the model's own, Pydantic writes NaN and infinity as null.
        self._may_hide_numbers = (
            _is_pydantic(cls)
            and "ser_json_inf_nan" not in cls.model_config  # type: ignore[attr-defined]
            and any(kind in json.dumps(self.definition) for kind in ('"double"', '"float"'))
        )

    @property
    def definition(self) -> dict[str, Any]:
        """The Avro definition of the record."""
        definition: dict[str, Any] = self._converter.definition
        return definition

    def to_plain(self, value: Any) -> Any:
        """Return the value as dicts, lists and types of the encoding. Raises `TypeError` naming the field."""
        return self._converter.to_plain(value)

    def from_plain(self, data: Any) -> Any:
        """Return an instance of the class. Raises `CorruptPayload` for data that the class does not allow."""
        try:
            return self._converter.from_plain(data)
        except (TypeError, ValueError, KeyError) as error:
            raise CorruptPayload(f"no value of {self.cls.__name__}: {error}") from error

    def to_json(self, value: Any) -> bytes:
        """Return the JSON of a value, by Pydantic for its models. Raises `TypeError` naming the field."""
        if _is_pydantic(self.cls):
            text: str = value.model_dump_json(by_alias=True)
            if self._may_hide_numbers and "null" in text:
                text = json.dumps(value.model_dump(mode="json", by_alias=True), ensure_ascii=False)
            return text.encode()
        return json.dumps(self.to_plain(value), ensure_ascii=False).encode()

    def from_json(self, data: bytes) -> Any:
        """Return the value of a JSON payload. Raises `CorruptPayload`."""
        try:
            if _is_pydantic(self.cls):
                return self.cls.model_validate_json(data)  # type: ignore[attr-defined]
            plain = read_json(data)
        except (ValueError, RecursionError) as error:
            raise CorruptPayload(f"{len(data)} bytes are no {self.cls.__name__}: {error}") from error
        return self.from_plain(plain)


def model_of(cls: Any, form: Form) -> Model:
    """Return the model of a class. Raises `TypeError` for a class that can't be a model."""
    if not is_model(cls):
        shown = getattr(cls, "__name__", repr(cls))
        raise TypeError(
            f"{shown} cannot be a schema: use a Record, a dataclass, a Pydantic model, a NamedTuple or a "
            "TypedDict"
        )
    return Model(cls, form)


class _Builder:
    """Builds the converters of a class and of the types that it uses; each named type is defined once."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._records: dict[type, Converter] = {}
        self._writes_secrets = False

    def record(self, cls: type) -> Converter:
        known = self._records.get(cls)
        if known is not None:
            return Converter(known.definition["name"], known.to_plain, known.from_plain)
        parts: list[tuple[_ModelField, Converter]] = []
        to_plain, from_plain = _record_functions(cls, parts)
        name = re.sub(r"\W", "_", cls.__name__)  # of a generic class: Page[int]
        definition: dict[str, Any] = {"type": "record", "name": name, "fields": []}
        self._records[cls] = Converter(definition, to_plain, from_plain)
        for field in _fields_of(cls):
            self._writes_secrets = field.has_serializer and self._form is Form.JSON
            try:
                if not field.key.isidentifier():
                    raise TypeError(
                        f"{field.key!r} is no name of a schema: letters, digits and _ are allowed"
                    )
                converter = self._field(field)
            except TypeError as error:
                raise TypeError(f"{cls.__name__}.{field.name}: {error}") from None
            parts.append((field, converter))
            described = {"name": field.key, "type": converter.definition}
            if field.default is not _MISSING:
                described["default"] = _as_default(converter.to_plain(field.default))
            definition["fields"].append(described)
        return self._records[cls]

    def _field(self, field: _ModelField) -> Converter:
        converter = self.of(field.hint)
        definition = converter.definition
        if isinstance(definition, list) and field.default not in (None, _MISSING):
            # Avro takes the default for the first of the union's types.
            converter = converter._replace(definition=[*definition[1:], definition[0]])
        return converter

    def of(self, hint: Any) -> Converter:
        """Return the converter of an annotation."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            declared = next((a for a in arguments[1:] if isinstance(a, Field)), None)
            inner = self.of(arguments[0])
            return inner if declared is None else inner._replace(definition=declared.schema())
        if origin in (typing.Required, typing.NotRequired):
            return self.of(arguments[0])
        if origin in (typing.Union, types.UnionType):
            return self._optional(arguments)
        if origin is typing.Literal:
            return self._literal(arguments)
        if origin is not None:
            return self._container(origin, arguments)
        if isinstance(hint, type):
            return self._plain_type(hint)
        raise TypeError(f"{hint!r} has no form in a schema")

    def _optional(self, arguments: tuple[Any, ...]) -> Converter:
        others = [a for a in arguments if a is not type(None)]
        if len(others) != 1 or len(others) == len(arguments):
            raise TypeError("a union may only be of one type and None")
        inner = self.of(others[0])
        if isinstance(inner.definition, list):
            return inner
        return Converter(
            ["null", inner.definition],
            lambda value: None if value is None else inner.to_plain(value),
            lambda data: None if data is None else inner.from_plain(data),
        )

    def _literal(self, choices: tuple[Any, ...]) -> Converter:
        kinds = {type(choice) for choice in choices}
        if len(kinds) != 1 or not kinds <= {str, int, bool}:
            raise TypeError("a Literal may only have texts, or only numbers")

        def check(value: Any) -> Any:
            if value not in choices:
                raise TypeError(f"{value!r} is none of {', '.join(map(repr, choices))}")
            return value

        return Converter(self.of(kinds.pop()).definition, check, check)

    def _container(self, origin: Any, arguments: tuple[Any, ...]) -> Converter:
        if isinstance(origin, type) and issubclass(origin, Mapping):
            if arguments[0] is not str:
                raise TypeError("the keys of a map must be str")
            return _mapping(self.of(arguments[1]))
        if isinstance(origin, type) and issubclass(origin, tuple):
            if len(arguments) != 2 or arguments[1] is not Ellipsis:
                raise TypeError("a tuple must be of one type: tuple[T, ...]")
            return _sequence(self.of(arguments[0]), tuple)
        if isinstance(origin, type) and issubclass(origin, (Sequence, set, frozenset)):
            made = origin if origin in (set, frozenset) else list
            return _sequence(self.of(arguments[0]), made)
        raise TypeError(f"{origin!r} has no form in a schema")

    def _plain_type(self, hint: type) -> Converter:
        simple = (_AVRO if self._form is Form.AVRO else _JSON).get(hint)
        if simple is not None:
            return simple
        if issubclass(hint, enum.Enum):
            return self._enumeration(hint)
        if is_model(hint):
            return self.record(hint)
        if issubclass(hint, Record):
            raise TypeError("a Record cannot be part of another kind of class: declare both in one way")
        if hint in (list, tuple, set, dict):
            raise TypeError(f"{hint.__name__} needs the type of what it holds: {hint.__name__}[...]")
        if hasattr(hint, "get_secret_value") and not self._writes_secrets:
            raise TypeError(f"a {hint.__name__} would be written as asterisks; use str or bytes")
        return _by_pydantic(hint)

    def _enumeration(self, cls: type[enum.Enum]) -> Converter:
        if self._form is Form.AVRO:
            symbols = [member.name for member in cls]
            return Converter(
                self._named(cls, {"type": "enum", "name": cls.__name__, "symbols": symbols}),
                lambda value: _checked(cls, value).name,
                lambda data: cls[data],
            )
        values = [member.value for member in cls]
        if all(isinstance(value, str) for value in values):
            definition: Any = "string"
            if all(_AVRO_NAME.match(value) for value in values):
                definition = self._named(cls, {"type": "enum", "name": cls.__name__, "symbols": values})
        elif all(isinstance(value, int) for value in values):
            definition = "long"
        else:
            raise TypeError(f"the values of {cls.__name__} must all be texts, or all whole numbers")
        return Converter(definition, lambda value: _checked(cls, value).value, cls)

    def _named(self, cls: type, definition: dict[str, Any]) -> Any:
        known = self._records.get(cls)
        if known is not None:
            return cls.__name__
        self._records[cls] = Converter(definition, _same, _same)
        return definition


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _as_default(plain: Any) -> Any:
    """Return a default as a definition has it: JSON, logical types as numbers, bytes as Latin-1 text."""
    if isinstance(plain, dict):
        return {key: _as_default(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_as_default(value) for value in plain]
    if isinstance(plain, dt.datetime):
        return (plain - _EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(plain, dt.date):
        return (plain - _EPOCH.date()).days
    if isinstance(plain, dt.time):
        start = dt.datetime.combine(_EPOCH.date(), plain.replace(tzinfo=dt.UTC))
        return (start - _EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(plain, bytes):
        return plain.decode("latin-1")
    return str(plain) if isinstance(plain, uuid.UUID) else plain


def _fields_of(cls: type) -> list[_ModelField]:
    hints = typing.get_type_hints(cls, include_extras=True)
    if _is_pydantic(cls):
        return [_pydantic_field(cls, name, info) for name, info in cls.model_fields.items()]  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(cls):
        return [
            _ModelField(f.name, f.name, hints[f.name], _default_of(f.default, f.default_factory), False)
            for f in dataclasses.fields(cls)
            if f.init
        ]
    if typing.is_typeddict(cls):
        return [
            _dict_field(name, hint, bool(getattr(cls, "__total__", True))) for name, hint in hints.items()
        ]
    defaults: Mapping[str, Any] = cls._field_defaults  # type: ignore[attr-defined]
    names: Sequence[str] = cls._fields  # type: ignore[attr-defined]
    return [_ModelField(name, name, hints[name], defaults.get(name, _MISSING), False) for name in names]


def _dict_field(name: str, hint: Any, total: bool) -> _ModelField:
    """Return the field of a typed dict's key. Whether it is optional comes from the resolved annotation: with
    annotations as text, the class's ``__optional_keys__`` is wrong."""
    origin = typing.get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        hint = typing.get_args(hint)[0]
        total = origin is typing.Required
    return (
        _ModelField(name, name, hint, _MISSING, False)
        if total
        else _ModelField(name, name, hint | None, None, True)
    )


def _pydantic_field(cls: Any, name: str, info: Any) -> _ModelField:
    hint = info.annotation
    for extra in info.metadata:
        if isinstance(extra, Field):
            hint = typing.Annotated[hint, extra]
    declared = cls.__pydantic_decorators__.field_serializers.values()
    has_serializer = any({name, "*"} & set(one.info.fields) for one in declared)
    default = _MISSING if info.is_required() else info.get_default(call_default_factory=True)
    return _ModelField(
        name, info.serialization_alias or info.alias or name, hint, default, False, has_serializer
    )


def _default_of(default: Any, factory: Any) -> Any:
    return factory() if factory is not _MISSING else default


def _record_functions(
    cls: type, parts: list[tuple[_ModelField, Converter]]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the converter of a class. ``parts`` is filled afterwards, as a class may refer to itself."""
    typed_dict = typing.is_typeddict(cls)
    get: Callable[[Any, str], Any] = (
        (lambda value, name: value.get(name, _MISSING)) if typed_dict else getattr
    )
    value_type = dict if typed_dict else cls

    def to_plain(value: Any) -> dict[str, Any]:
        if not isinstance(value, value_type):
            raise TypeError(f"expected a {cls.__name__}, not a {type(value).__name__}")
        plain = {}
        for field, converter in parts:
            given = get(value, field.name)
            if given is _MISSING:
                if not field.optional_key:
                    raise TypeError(f"{cls.__name__}.{field.name} is missing")
                given = None
            try:
                plain[field.key] = converter.to_plain(given)
            except (TypeError, ValueError) as error:
                raise TypeError(f"{cls.__name__}.{field.name}: {error}") from None
        return plain

    def from_plain(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise TypeError(f"expected an object for {cls.__name__}, not {type(data).__name__}")
        values = {}
        for field, converter in parts:
            # Names that the class does not have are left out, as a reader of a newer schema must.
            if field.key not in data:
                if field.default is _MISSING:
                    raise TypeError(f"{cls.__name__}.{field.name} is missing")
                continue
            given = data[field.key]
            if given is None and field.optional_key:
                continue
            try:
                values[field.name] = converter.from_plain(given)
            except (TypeError, ValueError, KeyError) as error:
                raise TypeError(f"{cls.__name__}.{field.name}: {error}") from None
        if _is_pydantic(cls):
            by_key = {field.key: values[field.name] for field, _ in parts if field.name in values}
            return cls.model_validate(by_key)  # type: ignore[attr-defined]
        return values if typed_dict else cls(**values)

    return to_plain, from_plain


# --- simple types ----------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _checked(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, not {type(value).__name__} ({value!r:.50})")
    return value


def _whole(value: Any) -> int:
    number = int(_checked(int, value))
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number


def _fraction(value: Any) -> float:
    return float(value if isinstance(value, (int, float)) else _checked(float, value))


def _data(value: Any) -> bytes:
    return bytes(value if isinstance(value, (bytearray, memoryview)) else _checked(bytes, value))


def _moment(value: Any) -> dt.datetime:
    moment: dt.datetime = _checked(dt.datetime, value)
    if moment.tzinfo is None:
        raise ValueError("a datetime needs a time zone: Avro's timestamps are moments")
    return moment


def _micros(count: int) -> dt.timedelta:
    return dt.timedelta(microseconds=count)


def _read(written: type, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a converter that leaves values as they are: fastavro converts them, but not defaults."""
    return lambda data: convert(data) if isinstance(data, written) else data


def _as_text(kind: type, write: Callable[[Any], str], read: Callable[[str], Any]) -> Converter:
    return Converter(
        "string", lambda value: write(_checked(kind, value)), lambda data: read(_checked(str, data))
    )


_COMMON = {
    bool: Converter("boolean", lambda value: _checked(bool, value), lambda data: _checked(bool, data)),
    int: Converter("long", _whole, _whole),
    float: Converter("double", _fraction, _fraction),
    str: Converter("string", lambda value: _checked(str, value), lambda data: _checked(str, data)),
    Decimal: _as_text(Decimal, str, Decimal),
}
_AVRO = {
    **_COMMON,
    bytes: Converter("bytes", _data, _read(str, lambda text: text.encode("latin-1"))),
    dt.datetime: Converter(
        {"type": "long", "logicalType": "timestamp-micros"},
        _moment,
        _read(int, lambda n: _EPOCH + _micros(n)),
    ),
    dt.date: Converter(
        {"type": "int", "logicalType": "date"},
        lambda value: _checked(dt.date, value),
        _read(int, lambda days: _EPOCH.date() + dt.timedelta(days)),
    ),
    dt.time: Converter(
        {"type": "long", "logicalType": "time-micros"},
        lambda value: _checked(dt.time, value),
        _read(int, lambda n: (_EPOCH + _micros(n)).time()),
    ),
    uuid.UUID: Converter(
        {"type": "string", "logicalType": "uuid"},
        lambda value: _checked(uuid.UUID, value),
        _read(str, uuid.UUID),
    ),
}
_JSON = {
    **_COMMON,
    bytes: Converter(
        "bytes",
        lambda value: base64.b64encode(_data(value)).decode(),
        lambda data: base64.b64decode(_checked(str, data), validate=True),
    ),
    dt.datetime: _as_text(dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    dt.date: _as_text(dt.date, dt.date.isoformat, dt.date.fromisoformat),
    dt.time: _as_text(dt.time, dt.time.isoformat, dt.time.fromisoformat),
    uuid.UUID: _as_text(uuid.UUID, str, uuid.UUID),
}


def _sequence(item: Converter, made: Callable[[Any], Any]) -> Converter:
    def to_plain(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, Mapping)):
            raise TypeError(f"expected a list, not {type(value).__name__}")
        return [item.to_plain(one) for one in value]

    def from_plain(data: Any) -> Any:
        return made([item.from_plain(one) for one in _checked(list, data)])

    return Converter({"type": "array", "items": item.definition}, to_plain, from_plain)


def _mapping(value: Converter) -> Converter:
    def to_plain(given: Any) -> dict[str, Any]:
        return {_checked(str, key): value.to_plain(one) for key, one in _checked(Mapping, given).items()}

    def from_plain(data: Any) -> dict[str, Any]:
        return {key: value.from_plain(one) for key, one in _checked(dict, data).items()}

    return Converter({"type": "map", "values": value.definition}, to_plain, from_plain)


_OF_JSON_TYPE = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}


def _by_pydantic(hint: type) -> Converter:
    """Return the converter of a type of Pydantic (URL, address, constrained type) to its JSON form."""
    try:
        import pydantic
    except ImportError:
        raise TypeError(f"{hint.__name__} has no form in a schema") from None
    try:
        adapter: Any = pydantic.TypeAdapter(hint)
        definition = _OF_JSON_TYPE[adapter.json_schema(mode="serialization").get("type", "")]
    except (pydantic.errors.PydanticUserError, KeyError):
        raise TypeError(f"{hint.__name__} has no form in a schema") from None
    return Converter(
        definition,
        lambda value: adapter.dump_python(value, mode="json"),
        lambda data: adapter.validate_python(data),
    )
