"""Dataclasses, Pydantic models, named tuples and typed dicts as record classes."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import enum
import json
import math
import typing
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga import schema
from geminga.errors import CorruptPayload
from geminga.schema.models import Form, Model, is_model, model_of

fastavro = pytest.importorskip("fastavro")
pydantic = pytest.importorskip("pydantic")

FIVE = uuid.UUID(int=5)
T = typing.TypeVar("T")
NOON = dt.datetime(2024, 5, 17, 12, 0, 0, 250, tzinfo=dt.UTC)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Seat:
    row: int
    letter: Literal["A", "B"] = "A"


@dataclass
class Flight:
    tail: str
    delay: float = 0.0
    cancelled: bool = False
    note: str | None = None
    stops: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    seat: Seat | None = None
    seats: tuple[Seat, ...] = ()
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    raw: bytes = b""
    at: dt.datetime = NOON
    day: dt.date = dt.date(2024, 1, 31)
    clock: dt.time = dt.time(1, 2, 3, 4)
    key: uuid.UUID = FIVE
    price: Decimal = Decimal("1.10")
    small: Annotated[int, schema.Integer()] = 3
    tags: frozenset[str] = frozenset()


FLIGHT = Flight(
    "N1", 2.5, True, "über", ["a", "b"], {"x": 1.0}, Seat(3, "B"), (Seat(1), Seat(2)), Colour.BLUE,
    Level.HIGH,
    b"\x00\xff",
    NOON + dt.timedelta(days=1), dt.date(1969, 1, 1), dt.time(23, 59), uuid.UUID(int=9),
    Decimal("-0.001"), 7, frozenset({"t"}),
)  # fmt: skip


class Order(pydantic.BaseModel):
    class Line(pydantic.BaseModel):
        item: str
        count: int = pydantic.Field(1, gt=0)

    number: int
    at: dt.datetime | None = None
    lines: list[Line] = pydantic.Field([])
    by: str = pydantic.Field("nobody", alias="orderedBy")
    home: pydantic.HttpUrl | None = None
    colour: Colour = Colour.RED


ORDER = Order(
    number=5, at=NOON, lines=[{"item": "pen"}], orderedBy="me", home="https://example.org/", colour="blue"
)


class Point(NamedTuple):
    x: int
    y: int = 7


class Loose(TypedDict):
    name: str
    age: NotRequired[int]


@dataclass
class Node:
    value: int
    next: Optional[Node] = None  # noqa: UP045


VALUES = [
    (Flight, FLIGHT),
    (Flight, Flight("bare")),
    (Order, ORDER),
    (Order, Order(number=1)),
    (Point, Point(1)),
    (Loose, {"name": "n", "age": 3}),
    (Loose, {"name": "n"}),
    (Node, Node(1, Node(2))),
]


@pytest.mark.parametrize("kind", [schema.JsonSchema, schema.AvroSchema])
@pytest.mark.parametrize(("cls", "value"), VALUES, ids=lambda v: getattr(v, "__name__", "value"))
def test_values_of_each_kind_of_class_are_decoded_as_encoded(kind, cls, value):
    codec = kind(cls)
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)
    fastavro.parse_schema(json.loads(codec.schema_info().schema()))  # the broker parses it, too


@pytest.mark.parametrize(("cls", "value"), VALUES, ids=lambda v: getattr(v, "__name__", "value"))
def test_readers_of_older_data_get_the_default(cls, value):
    codec = schema.AvroSchema(cls)
    model = Model(cls, Form.AVRO)
    required = [f for f in model.definition["fields"] if "default" not in f]
    older = {**model.definition, "fields": required}
    plain = {f["name"]: model.to_plain(value)[f["name"]] for f in required}
    payload = schema.AvroSchema(None, older).encode(plain)
    read = codec._decode(payload, fastavro.parse_schema(older), codec._parsed)
    expected = cls.model_validate(plain) if hasattr(cls, "model_validate") else cls(**plain)
    assert read == expected


def test_annotations_determine_the_definition():
    fields = {f["name"]: f for f in Model(Flight, Form.AVRO).definition["fields"]}
    seat = {
        "type": "record",
        "name": "Seat",
        "fields": [{"name": "row", "type": "long"}, {"name": "letter", "type": "string", "default": "A"}],
    }
    assert fields["tail"] == {"name": "tail", "type": "string"}
    assert fields["delay"] == {"name": "delay", "type": "double", "default": 0.0}
    assert fields["note"] == {"name": "note", "type": ["null", "string"], "default": None}
    assert fields["seat"]["type"] == ["null", seat]
    assert fields["seats"]["type"] == {"type": "array", "items": "Seat"}
    assert fields["colour"] == {
        "name": "colour",
        "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]},
        "default": "RED",
    }
    assert fields["small"]["type"] == "int"
    assert fields["raw"] == {"name": "raw", "type": "bytes", "default": ""}
    assert fields["at"]["type"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert fields["day"]["default"] == 19753
    texts = {f["name"]: f["type"] for f in Model(Flight, Form.JSON).definition["fields"]}
    assert [texts[n] for n in ("at", "day", "clock", "key", "price")] == ["string"] * 5
    assert texts["colour"]["symbols"] == ["red", "blue"]
    assert texts["level"] == "long"


def test_the_type_of_a_default_comes_first_in_a_union():
    @dataclass
    class Named:
        name: str | None = "n"

    (described,) = Model(Named, Form.AVRO).definition["fields"]
    assert described == {"name": "name", "type": ["string", "null"], "default": "n"}


def test_pydantic_models_use_their_own_json_and_validation():
    codec = schema.JsonSchema(Order)
    sent = json.loads(codec.encode(ORDER))
    assert sent["orderedBy"] == "me"
    assert sent["colour"] == "blue"
    names = [f["name"] for f in json.loads(codec.schema_info().schema())["fields"]]
    assert names == ["number", "at", "lines", "orderedBy", "home", "colour"]
    for kind in (schema.JsonSchema, schema.AvroSchema):
        payload = b'{"number": 1, "lines": [{"item": "pen", "count": 0}]}'
        if kind is schema.AvroSchema:
            model = Model(Order, Form.AVRO)
            wrong = {**model.to_plain(ORDER), "lines": [{"item": "pen", "count": 0}]}
            payload = schema.AvroSchema(None, model.definition).encode(wrong)
        with pytest.raises(CorruptPayload, match="greater than 0"):
            kind(Order).decode(payload)


class Page(pydantic.BaseModel, typing.Generic[T]):
    of: T


class Pages(pydantic.BaseModel):
    number: Page[int]
    text: Page[str]
    other: Page[int]


@pytest.mark.parametrize("kind", [schema.JsonSchema, schema.AvroSchema])
def test_generic_pydantic_models_have_names_that_schemas_allow(kind):
    made = kind(Pages)
    value = Pages(number=Page[int](of=1), text=Page[str](of="x"), other=Page[int](of=2))
    assert made.decode(made.encode(value)) == value
    fields = json.loads(made.schema_info().data)["fields"]
    assert [field["type"] if i == 2 else field["type"]["name"] for i, field in enumerate(fields)] == [
        "Page_int_", "Page_str_", "Page_int_",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [schema.JsonSchema, schema.AvroSchema])
def test_an_alias_that_is_no_name_of_a_schema_is_refused(kind):
    class Aliased(pydantic.BaseModel):
        order: int = pydantic.Field(alias="order-id")

    with pytest.raises(TypeError, match=r"Aliased\.order: 'order-id' is no name"):
        kind(Aliased)


def test_pydantic_numbers_that_are_not_finite_arrive_as_sent():
    class Reading(pydantic.BaseModel):
        value: float
        unit: str | None = None
        more: list[float] = pydantic.Field([])

    @dataclass
    class Plain:
        value: float
        unit: str | None = None
        more: list[float] = field(default_factory=list)

    codec = schema.JsonSchema(Reading)
    for value in (math.nan, math.inf, -math.inf):
        sent = codec.encode(Reading(value=value, more=[value]))
        assert sent == schema.JsonSchema(Plain).encode(Plain(value, more=[value]))
        read = codec.decode(sent)
        assert repr((read.value, read.unit, read.more)) == repr((value, None, [value]))

    class Texts(Reading, ser_json_inf_nan="strings"):
        pass

    assert json.loads(schema.JsonSchema(Texts).encode(Texts(value=math.inf)))["value"] == "Infinity"


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Logins(pydantic.BaseModel):
    all: list[pydantic.SecretBytes | None]


@dataclass
class PlainLogin:
    password: pydantic.SecretStr


class OpenLogin(Login):
    @pydantic.field_serializer("password", when_used="json")
    def reveal(self, password: Any) -> str:
        return str(password.get_secret_value())


@pytest.mark.parametrize("kind", [schema.JsonSchema, schema.AvroSchema])
@pytest.mark.parametrize("cls", [Login, Logins, PlainLogin])
def test_secrets_are_refused_when_a_schema_is_defined(kind, cls):
    said = rf"{cls.__name__}\.(password|all): a Secret(Str|Bytes) would be written as asterisks; use str"
    with pytest.raises(TypeError, match=said):
        kind(cls)


def test_a_secret_with_a_serializer_of_the_model_is_published_in_json():
    codec = schema.JsonSchema(OpenLogin)
    sent = codec.encode(OpenLogin(password=pydantic.SecretStr("sesame")))
    assert json.loads(sent) == {"password": "sesame"}
    assert codec.decode(sent).password.get_secret_value() == "sesame"
    with pytest.raises(TypeError, match="written as asterisks"):
        schema.AvroSchema(OpenLogin)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"{}", "Flight.tail is missing"),
        (b'{"tail": 5}', "Flight.tail: expected str, not int"),
        (b'{"tail": "x", "seat": {"row": "y"}}', r"Flight.seat: Seat.row: expected int"),
        (b'{"tail": "x", "seats": 5}', "Flight.seats: expected list"),
        (b'{"tail": "x", "raw": "?"}', "Flight.raw"),
        (b'{"tail": "x", "colour": "green"}', "Flight.colour"),
        (b'{"tail": "x", "at": "yesterday"}', "Flight.at"),
        (b'{"tail": "x", "seat": {"row": 1, "letter": "Z"}}', "'Z' is none of 'A', 'B'"),
        (b"[]", "expected an object for Flight, not list"),
        (b"junk", "4 bytes are no Flight"),
        (b"[" * 100_000, "no Flight"),
    ],
)
def test_invalid_payloads_are_refused(payload, said):
    with pytest.raises(CorruptPayload, match=said):
        schema.JsonSchema(Flight).decode(payload)


def test_names_of_newer_writers_are_left_out():
    assert schema.JsonSchema(Seat).decode(b'{"row": 1, "class": "first"}') == Seat(1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tail": 5}, "Flight.tail: expected str, not int"),
        ({"seat": "3A"}, "Flight.seat: expected a Seat, not a str"),
        ({"stops": "abc"}, "Flight.stops: expected a list, not str"),
        ({"stops": ["a", 5]}, "Flight.stops"),
        ({"weights": {5: 1.0}}, "Flight.weights"),
        ({"colour": "red"}, "Flight.colour: expected Colour"),
        ({"delay": "late"}, "Flight.delay: expected float"),
    ],
)
@pytest.mark.parametrize("kind", [schema.JsonSchema, schema.AvroSchema])
def test_values_of_the_wrong_type_are_refused(kind, changes, said):
    with pytest.raises(TypeError, match=said):
        kind(Flight).encode(dataclasses.replace(FLIGHT, **changes))


def test_values_out_of_avros_range_are_refused():
    codec = schema.AvroSchema(Flight)
    with pytest.raises(TypeError, match=r"Flight\.at: a datetime needs a time zone"):
        codec.encode(Flight("x", at=dt.datetime(2024, 1, 1)))
    with pytest.raises(TypeError, match="64 bits"):
        schema.AvroSchema(Point).encode(Point(1 << 63))
    with pytest.raises(TypeError, match=r"Loose\.name is missing"):
        schema.JsonSchema(Loose).encode({"age": 1})
    with pytest.raises(TypeError, match="takes a Flight"):
        codec.encode({"tail": "x"})


def hinted(hint: Any) -> type:
    return dataclasses.make_dataclass("Holder", [("x", hint)])


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (typing.Any, "no form"),
        (int | str, "one type and None"),
        (list, r"list\[\.\.\.\]"),
        (tuple[int, str], "of one type"),
        (dict[int, str], "must be str"),
        (Literal["a", 1], "only have texts"),
        (object, "no form"),
        (schema.Record, "declare both in one way"),
        (enum.Enum("Mixed", {"A": "a", "B": 1}), "all be texts"),
        (collections.abc.Callable[[], int], "no form"),
    ],
)
def test_unsupported_annotations_are_refused(hint, said):
    with pytest.raises(TypeError, match=rf"Holder\.x: .*{said}"):
        schema.JsonSchema(hinted(hint))


def test_other_classes_and_values_are_refused():
    for wrong in (int, str, dict, object, 5, "Flight", FLIGHT):
        assert not is_model(wrong)
        with pytest.raises(TypeError, match="cannot be a schema"):
            model_of(wrong, Form.JSON)
        with pytest.raises(TypeError, match="cannot be a schema"):
            schema.AvroSchema(wrong)


plain_flights = st.builds(
    Flight,
    tail=st.text(),
    delay=st.floats(allow_nan=False),
    note=st.none() | st.text(),
    stops=st.lists(st.text(), max_size=3),
    weights=st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3),
    seat=st.none() | st.builds(Seat, st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(["A", "B"])),
    colour=st.sampled_from(Colour),
    level=st.sampled_from(Level),
    raw=st.binary(),
    at=st.datetimes(min_value=dt.datetime(1, 1, 2), max_value=dt.datetime(9999, 12, 30)).map(
        lambda moment: moment.replace(tzinfo=dt.UTC)
    ),
    day=st.dates(),
    clock=st.times(),
    key=st.uuids(),
    price=st.decimals(allow_nan=False),
    small=st.integers(-(1 << 31), (1 << 31) - 1),
    tags=st.frozensets(st.text(), max_size=3),
)


@given(plain_flights)
def test_every_generated_value_is_decoded_as_encoded(flight):
    for codec in CODECS:
        assert codec.decode(codec.encode(flight)) == flight


CODECS = (schema.JsonSchema(Flight), schema.AvroSchema(Flight))
