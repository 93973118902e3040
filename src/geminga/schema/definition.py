"""Records: classes whose attributes declare the fields of a structured schema.

::

    class Flight(Record):
        tail = String(required=True)
        delay = Integer()
        stops = Array(String())

A record class has an Avro definition (`Record.schema`), which Pulsar stores for JSON and Avro schemas alike.
Values are checked when they are set; error messages are those of ``pulsar-client``, as programs match them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from enum import Enum, EnumMeta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from geminga._util.values import V

E = TypeVar("E", bound=Enum)


class Field(Generic[V]):
    """One field of a record.

    ``default`` is its value when none is given; ``required`` forbids null; ``required_default`` writes
    the default, null included, into the definition. To a type checker, an attribute of a record has the type
    of the field's values.
    """

    if TYPE_CHECKING:

        @overload
        def __get__(self, record: None, owner: Any) -> Self: ...
        @overload
        def __get__(self, record: Record, owner: Any) -> V: ...
        def __get__(self, record: Any, owner: Any) -> Any: ...
        def __set__(self, record: Record, value: Any) -> None: ...

    def __init__(self, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self._required = required
        self._required_default = required_default
        self._default = None if default is None else self.validate_type("default", default)

    _type: ClassVar[str]
    _python_type: ClassVar[Any]

    def type(self) -> str:
        """The field's Avro type name."""
        return self._type

    def python_type(self) -> Any:
        """The type, or a tuple of types, that values have."""
        return self._python_type

    def validate_type(self, name: str, val: Any) -> Any:
        """Return the value to store for ``val``. Raises `TypeError` naming the field."""
        if val is None and not self._required:
            return self.default()
        expected = self.python_type()
        if not isinstance(val, expected):
            raise TypeError(f"Invalid type '{type(val)}' for field '{name}'. Expected: {_name(expected)}")
        # A bool is an int to Python; to a reader of JSON it is not.
        return int(val) if expected is int and isinstance(val, bool) else val

    def schema(self) -> Any:
        """Return the field as an Avro definition."""
        return self.schema_info(set())

    def schema_info(self, defined_names: set[str]) -> Any:
        """Return the field's part of an Avro definition; named types are written out once."""
        return self.type()

    def default(self) -> Any:
        """Return the value if none is given."""
        return self._default

    def required_default(self) -> bool:
        """Return whether the default is written into the definition, including null."""
        return self._required_default


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


class Null(Field[None]):
    """Always null."""

    _type, _python_type = "null", type(None)

    def validate_type(self, name: str, val: Any) -> Any:
        if val is not None:
            raise TypeError(f"Field {name} is set to be None")
        return None


class Boolean(Field[bool]):
    """True or false; False where no value is given."""

    _type, _python_type = "boolean", bool

    def default(self) -> Any:
        return False if self._default is None else self._default


class Integer(Field[int]):
    """A whole number of 32 bits."""

    _type, _python_type = "int", int


class Long(Field[int]):
    """A whole number of 64 bits."""

    _type, _python_type = "long", int


class Float(Field[float]):
    """A number of 32 bits."""

    _type, _python_type = "float", (float, int)


class Double(Field[float]):
    """A number of 64 bits."""

    _type, _python_type = "double", (float, int)


class Bytes(Field[bytes]):
    """Text is accepted and kept as its UTF-8 bytes."""

    _type, _python_type = "bytes", (bytes, str)

    def validate_type(self, name: str, val: Any) -> Any:
        val = super().validate_type(name, val)
        return val.encode() if isinstance(val, str) else val


class String(Field[str]):
    """Bytes are accepted and kept as text."""

    _type, _python_type = "string", (str, bytes)

    def validate_type(self, name: str, val: Any) -> Any:
        if val is None and not self._required:
            return self.default()
        if not isinstance(val, (str, bytes)):
            raise TypeError(f"Invalid type '{type(val)}' for field '{name}'. Expected a string")
        return val.decode() if isinstance(val, bytes) else val


class CustomEnum(Field[E]):
    """A member of an `enum.Enum` class; names and integer values are accepted for it."""

    def __init__(
        self, enum_type: type[E], default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        if not (isinstance(enum_type, type) and issubclass(enum_type, Enum)):
            raise TypeError(f"{_name(enum_type)} is not an Enum class")
        self.enum_type = enum_type
        self.values: dict[Any, E] = {member.value: member for member in enum_type.__members__.values()}
        super().__init__(default, required, required_default)

    _type = "enum"

    def python_type(self) -> Any:
        return self.enum_type

    def validate_type(self, name: str, val: Any) -> Any:
        if val is None:
            return None
        if isinstance(val, self.enum_type):
            return val
        if isinstance(val, bool) or not isinstance(val, (str, int)):
            raise TypeError(
                f"Invalid type '{type(val)}' for field '{name}'. Expected: {_name(self.enum_type)}"
            )
        if isinstance(val, str) and val in self.enum_type.__members__:
            return self.enum_type[val]
        try:
            return self.enum_type(val)
        except ValueError:
            known = self.enum_type.__members__.keys() if isinstance(val, str) else self.values.keys()
            raise TypeError(f"Invalid enum value '{val}' for field '{name}'. Expected: {known}") from None

    def schema_info(self, defined_names: set[str]) -> Any:
        if self.enum_type.__name__ in defined_names:
            return self.enum_type.__name__
        defined_names.add(self.enum_type.__name__)
        return {
            "type": "enum",
            "name": self.enum_type.__name__,
            "symbols": [member.name for member in self.enum_type],
        }


class _Container(Field[V]):
    """Base of Array and Map: an element type that is a field or a record."""

    def __init__(self, element: Any, default: Any, required: bool, required_default: bool) -> None:
        if isinstance(element, type) and issubclass(element, Record):
            element = element()
        if not isinstance(element, (Field, Record)):
            raise TypeError(f"{_name(element)} is not a Record or a Field")
        self._element = element
        super().__init__(default, required, required_default)

    def _fits(self, values: Any) -> bool:
        expected = self._element.python_type()
        return not [value for value in values if not isinstance(value, expected)]

    def _element_info(self, defined_names: set[str]) -> Any:
        return self._element.schema_info(defined_names)


class Array(_Container[list[Any]]):
    """A list whose items all have ``array_type``."""

    def __init__(
        self, array_type: Any, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        super().__init__(array_type, default, required, required_default)

    @property
    def array_type(self) -> Any:
        """The field of the items."""
        return self._element

    _type, _python_type = "array", list

    def validate_type(self, name: str, val: Any) -> Any:
        if val is None:
            return None
        super().validate_type(name, val)
        if not self._fits(val):
            raise TypeError(f"Array field {name} items should all be of type {self._element.type()}")
        return val

    def schema_info(self, defined_names: set[str]) -> Any:
        return {"type": "array", "items": self._element_info(defined_names)}


class Map(_Container[dict[str, Any]]):
    """A dict from text to ``value_type``."""

    def __init__(
        self, value_type: Any, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        super().__init__(value_type, default, required, required_default)

    @property
    def value_type(self) -> Any:
        """The field of the values; keys are texts."""
        return self._element

    _type, _python_type = "map", dict

    def validate_type(self, name: str, val: Any) -> Any:
        if val is None:
            return None
        super().validate_type(name, val)
        for key in val:
            if not isinstance(key, str):
                raise TypeError(f"Map keys for field {name}  should all be strings")
        if not self._fits(val.values()):
            expected = _name(self._element.python_type())
            raise TypeError(f"Map values for field {name} should all be of type {expected}")
        return val

    def schema_info(self, defined_names: set[str]) -> Any:
        return {"type": "map", "values": self._element_info(defined_names)}


_NEEDS_NO_CHECK: dict[type, type] = {
    Boolean: bool, Integer: int, Long: int, Float: float, Double: float, Bytes: bytes, String: str,
}  # fmt: skip
"""Types of values that a field of a class stores as they are."""
_OWN_ATTRIBUTES = frozenset({"_default", "_required", "_required_default"})


class RecordMeta(type):
    """Collects the fields that a record class declares, with ``_inherit_fields`` its parents' first."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> RecordMeta:
        fields: dict[str, Any] = {}
        switches = (getattr(base, "_inherit_fields", False) for base in bases)
        for base in reversed(bases) if namespace.get("_inherit_fields", any(switches)) else ():
            fields.update(getattr(base, "_fields", {}))
        for attribute, value in namespace.items():
            if isinstance(value, EnumMeta):
                value = CustomEnum(value)
            elif isinstance(value, RecordMeta):
                value = value()
            if isinstance(value, Field) or isinstance(type(value), RecordMeta):
                fields[attribute] = value
        namespace["_fields"] = fields
        return super().__new__(mcs, name, bases, namespace)


class Record(metaclass=RecordMeta):
    """Base of record classes; an instance also serves as the field declaration of a nested record.

    ``_avro_namespace`` names the definition's namespace, ``_sorted_fields = True`` writes its fields in
    alphabetical order. A class has only the fields that it declares, as in ``pulsar-client``; with
    ``_inherit_fields = True`` it and classes derived from it have those of their parents too.
    """

    _avro_namespace: ClassVar[str | None] = None
    _sorted_fields: ClassVar[bool] = False
    _inherit_fields: ClassVar[bool] = False
    _fields: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, default: Any = None, required_default: bool = False, required: bool = False, *args: Any,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if type(self) is Record:
            raise TypeError("Record declares no fields: make a class of it")
        values = self.__dict__
        values["_required_default"], values["_default"] = required_default, default
        values["_required"] = required
        is_plain = type(self).__setattr__ is Record.__setattr__
        # Names that the record does not declare are left out, as a reader of a newer schema must.
        for name, declared in self._fields.items():
            if name in kwargs:
                value = kwargs[name]
                if not is_plain:
                    setattr(self, name, _from_plain(declared, value))
                elif type(value) is _NEEDS_NO_CHECK.get(type(declared)):
                    values[name] = value
                else:
                    values[name] = declared.validate_type(name, _from_plain(declared, value))
            else:
                value = declared if isinstance(declared, Record) else declared.default()
                values[name] = value if value is None else copy.copy(value)

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The Avro definition of the record."""
        definition: dict[str, Any] = cls.schema_info(set())
        return definition

    @classmethod
    def schema_info(cls, defined_names: set[str]) -> Any:
        """Return the record's part of an Avro definition; named types are written out once."""
        full_name = f"{cls._avro_namespace}.{cls.__name__}" if cls._avro_namespace else cls.__name__
        if full_name in defined_names:
            return full_name
        defined_names.add(full_name)
        definition: dict[str, Any] = {"type": "record", "name": cls.__name__}
        if cls._avro_namespace is not None:
            definition["namespace"] = cls._avro_namespace
        fields = definition["fields"] = []
        for name in sorted(cls._fields) if cls._sorted_fields else cls._fields:
            fields.append(_field_definition(name, cls._fields[name], defined_names))
        return definition

    def __setattr__(self, key: str, value: Any) -> None:
        if key in _OWN_ATTRIBUTES:
            object.__setattr__(self, key, value)
            return
        if key not in self._fields:
            raise AttributeError(f"Cannot set undeclared field {key} on record")
        object.__setattr__(self, key, self._fields[key].validate_type(key, value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str({name: getattr(self, name) for name in self._fields})

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({values})"

    # As a field of another record:

    def type(self) -> str:
        """Return the name of the record's class, for use as a field of another record."""
        return type(self).__name__

    def python_type(self) -> Any:
        """Return the record's class."""
        return type(self)

    def validate_type(self, name: str, val: Any) -> Any:
        """Return the record to store for ``val``. Raises `TypeError` naming the field."""
        if val is None and not self._required:  # type: ignore[attr-defined]
            return self.default()
        if not isinstance(val, type(self)):
            raise TypeError(
                f"Invalid type '{type(val)}' for sub-record field '{name}'. Expected: {_name(type(self))}"
            )
        return val

    def default(self) -> Any:
        """Return the value of the field in another record if none is given."""
        return self._default  # type: ignore[attr-defined]

    def required_default(self) -> bool:
        """Return whether the default is written into the definition."""
        return self._required_default  # type: ignore[attr-defined, no-any-return]


def _field_definition(name: str, field: Any, defined_names: set[str]) -> dict[str, Any]:
    kind = field.schema_info(defined_names)
    definition: dict[str, Any] = {"name": name}
    if field.required_default():
        default = field.default()
        definition["default"] = default.name if isinstance(default, Enum) else default
    definition["type"] = kind if field._required else ["null", kind]
    return definition


def _from_plain(declared: Any, value: Any) -> Any:
    """Dicts, lists of dicts and dicts of dicts become the records that the field declares."""
    if isinstance(declared, Record):
        return type(declared)(**value) if isinstance(value, Mapping) else value
    if isinstance(declared, _Container):
        element = declared._element
        if type(element) in _NEEDS_NO_CHECK:
            return value
        if isinstance(value, list):
            return [_from_plain(element, item) for item in value]
        if isinstance(value, dict):
            return {key: _from_plain(element, item) for key, item in value.items()}
        return value
    if isinstance(declared, CustomEnum) and isinstance(value, (str, int)):
        return declared.validate_type("item", value)
    return value


_decode_json = json.JSONDecoder().decode


def read_json(data: bytes) -> Any:
    """Return ``json.loads(data)``, which takes half as long again to find out that the text is UTF-8."""
    try:
        return _decode_json(data.decode())
    except (ValueError, AttributeError):  # also a str, as programs pass it to ``JsonSchema.decode``
        return json.loads(data)
