"""Record classes declared with the schema module of this library or of pulsar-client."""

import enum
from collections.abc import Callable
from typing import Any


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def records(module: Any) -> dict[str, Any]:
    """Return the classes by name."""

    class Inner(module.Record):
        x = module.Integer(required=True)
        y = module.String(default="why")

    class Plain(module.Record):
        a = module.String()
        b = module.Integer()
        c = module.Boolean()

    class Everything(module.Record):
        _avro_namespace = "org.example"
        text = module.String(required=True)
        number = module.Long(default=7, required_default=True)
        small = module.Integer(default=3)
        flag = module.Boolean(default=True)
        ratio = module.Double(required=True)
        half = module.Float()
        raw = module.Bytes()
        nothing = module.Null()
        color = Color
        chosen = module.CustomEnum(Color, default=Color.RED, required_default=True)
        inner = Inner()
        needed = Inner(required=True)
        items = module.Array(module.String())
        inners = module.Array(Inner())
        table = module.Map(Inner())
        counts = module.Map(module.Integer(), default={"a": 1})
        deep = module.Array(module.Array(module.Map(module.Long())))

    class Sorted(module.Record):
        _sorted_fields = True
        b = module.Integer()
        a = module.Integer()

    return {"Inner": Inner, "Plain": Plain, "Everything": Everything, "Sorted": Sorted}


def value_of(module: dict[str, Any], name: str) -> Any:
    """Return a record of the class with this name."""
    inner = module["Inner"]
    values: dict[str, Callable[[], dict[str, Any]]] = {
        "Inner": lambda: {"x": 5},
        "Plain": lambda: {"a": "grüß", "b": 1, "c": True},
        "Sorted": lambda: {"a": 1, "b": 2},
        "Everything": lambda: {
            "text": "t", "number": 1 << 40, "ratio": 0.25, "half": 1.5, "raw": b"bytes",
            "color": Color.BLUE, "inner": inner(x=1), "needed": inner(x=2, y="z"), "items": ["a", "b"],
            "inners": [inner(x=3)], "table": {"k": inner(x=4)}, "counts": {"n": 1}, "deep": [[{"d": 1}]],
        },
    }  # fmt: skip
    return module[name](**values[name]())
