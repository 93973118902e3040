"""The arguments of ``geminga.asyncio.Client`` that are options, drawn from the frozen settings.

An option is written once, as a field of its settings, with its kind, its default and its text. From there
come the argument of ``client/api/base.py`` or ``client/api/aio.py`` (this tool, for
``tools/generate_sync.py``), that of ``client/api/sync.py``, the checks (the settings' own),
docs/reference/settings.md and Spark's options. What is not an option (a topic, a schema, keys and those who
read them) stays as it is written, and so does the order, which is ``pulsar-client``'s. A field that the
method does not have yet becomes its last argument; one that shall be none is named here, with the reason.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src/geminga"

_MADE_OF_OTHERS = "made of other arguments"
_OF_READERS = "a reader says it with its own arguments"
_OF_COLUMNS = "for those who read columns"
_FIXED = "nobody needed another value; tests do"


@dataclass(frozen=True)
class Options:
    """The settings of one method. ``other_unit``: argument to field and factor, where they differ.
    ``written``: arguments whose kind is wider than the field's: they are translated, and stay as they are.
    ``asyncio``: defaults that only the asyncio API has, as in ``pulsar.asyncio``.
    ``none``: fields that are no arguments, and why."""

    module: str
    settings: str
    other_unit: dict[str, tuple[str, int]] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    asyncio: dict[str, bool] = field(default_factory=dict)
    none: dict[str, str] = field(default_factory=dict)


METHODS = {
    "__init__": Options(
        "client/options/settings.py",
        "ClientSettings",
        other_unit={
            "connection_timeout_ms": ("connection_timeout_seconds", 1000),
            "keep_alive_interval_seconds": ("keepalive_interval_seconds", 1),
            "initial_backoff_interval_ms": ("backoff_initial_seconds", 1000),
            "max_backoff_interval_ms": ("backoff_max_seconds", 1000),
            "message_listener_threads": ("listener_threads", 1),
            "stats_interval_in_seconds": ("statistics_interval_seconds", 1),
        },
        written=("service_url",),
        none={"credentials": _MADE_OF_OTHERS, "tls": _MADE_OF_OTHERS, "lookup_redirects_max": _FIXED},
    ),
    "create_producer": Options(
        "producer/settings.py",
        "ProducerSettings",
        other_unit={
            "send_timeout_millis": ("send_timeout_seconds", 1000),
            "batching_max_publish_delay_ms": ("batching_max_publish_delay_seconds", 1000),
            "blocked_after_ms": ("blocked_after_seconds", 1000),
            "latency_budget_ms": ("latency_budget_seconds", 1000),
        },
        written=("schema", "properties", "message_router", "interceptors"),
        asyncio={"batching_enabled": True},
        none={"encode": _MADE_OF_OTHERS, "encryptor": _MADE_OF_OTHERS},
    ),
    "subscribe": Options(
        "consumer/settings.py",
        "ConsumerSettings",
        written=("schema", "properties", "subscription_properties"),
        none={
            "decryptor": _MADE_OF_OTHERS,
            "message_listener": "of the threads' face alone",
            "failure_listener": "of the threads' face alone",
            "start_paused": "of the threads' face alone",
            "durable": _OF_READERS,
            "start_message_id": _OF_READERS,
            "stop_at_message_id": _OF_COLUMNS,
            "must_exist": "for those who move a subscription that somebody relies on",
            "ack_grouping_max": _FIXED,
            "auto_update_partitions_seconds": _FIXED,
            "expire_time_of_incomplete_chunked_message_ms": _FIXED,
            "force_topic_creation": _FIXED,
            "message_bytes_max": _FIXED,
            "receiver_queue_bytes_max": _FIXED,
            "unacked_messages_tick_ms": _FIXED,
        },
    ),
    "create_reader": Options(
        "consumer/settings.py",
        "ReaderSettings",
        written=("schema",),
        none={
            "decryptor": _MADE_OF_OTHERS,
            "reader_listener": "of the threads' face alone",
            "failure_listener": "of the threads' face alone",
            "subscription_name": "of table views, which name theirs",
        },
    ),
}


@dataclass(frozen=True)
class _Field:
    kind: ast.expr
    default: ast.expr | None
    """None if the settings create the default at each call."""


def fields_of(options: Options) -> dict[str, _Field]:
    """The fields of settings, as they are written, names of numbers resolved."""
    module = ast.parse((PACKAGE / options.module).read_text())
    numbers = {
        node.targets[0].id: node.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    (found,) = (n for n in module.body if isinstance(n, ast.ClassDef) and n.name == options.settings)
    fields = {}
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = node.value
            if isinstance(default, ast.Name) and default.id in numbers:
                default = numbers[default.id]
            if isinstance(default, ast.Call):
                default = None
            fields[node.target.id] = _Field(node.annotation, default)
    return fields


def _times(default: ast.expr | None, factor: int) -> ast.expr | None:
    if not isinstance(default, ast.Constant) or type(default.value) not in (int, float):
        return default
    product = round(default.value * factor, 9)
    return ast.Constant(int(product) if product == int(product) else product)


def drawn(method: ast.FunctionDef | ast.AsyncFunctionDef, options: Options) -> ast.arguments:
    """The arguments of a method with the kinds and the defaults of the settings, and those it lacks."""
    fields = fields_of(options)
    given = method.args
    missing = len(given.args) - len(given.defaults)
    plain = list(zip(given.args, [None] * missing + given.defaults, strict=True))
    named = list(zip(given.kwonlyargs, given.kw_defaults, strict=True))
    seen = set()
    for pairs in (plain, named):
        for index, (argument, default) in enumerate(pairs):
            name, factor = options.other_unit.get(argument.arg, (argument.arg, 1))
            seen.add(name)
            if name not in fields or argument.arg in options.written:
                continue
            kind = fields[name].kind if argument.arg not in options.other_unit else argument.annotation
            own = fields[name].default
            if name in options.asyncio:
                own = ast.Constant(options.asyncio[name])
            pairs[index] = (ast.arg(argument.arg, kind), default if own is None else _times(own, factor))
    for name in options.none:
        if name not in fields or name in seen:
            raise SystemExit(f"tools/signatures.py: {name} is an argument, or no field of {options.settings}")
    named += [
        (ast.arg(name, one.kind), one.default)
        for name, one in fields.items()
        if name not in seen and name not in options.none
    ]
    return ast.arguments(
        posonlyargs=[],
        args=[argument for argument, _ in plain],
        defaults=[default for _, default in plain if default is not None],
        kwonlyargs=[argument for argument, _ in named],
        kw_defaults=[default for _, default in named],
    )


def with_signatures(text: str) -> str:
    """Return the text of a module with one class, with the arguments of `METHODS` regenerated."""
    (client,) = (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef))
    lines = text.splitlines(keepends=True)
    methods = [m for m in client.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for method in reversed(methods):  # from below: lines above keep their numbers
        if method.name not in METHODS:
            continue
        kind = "async def" if isinstance(method, ast.AsyncFunctionDef) else "def"
        arguments = ast.unparse(drawn(method, METHODS[method.name]))
        returns = "" if method.returns is None else f" -> {ast.unparse(method.returns)}"
        head = f"    {kind} {method.name}({arguments},){returns}:\n"
        lines[method.lineno - 1 : method.body[0].lineno - 1] = [head]
    return "".join(lines)
