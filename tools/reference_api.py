"""Reference pages of Python's names, drawn from the code: signatures, docstrings, and tables of options.

Each public name stands on exactly one page (`PAGES`); a name, a method or an option without words ends the
drawing, and ``make docs`` and the docs test name it.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import signatures
from option_names import JAVA, WORDS
from reference_broker import HEAD, cell, words

ERRORS = "errors.md"


@dataclass(frozen=True)
class Section:
    """Names of one module under a heading; ``names`` empty takes all that are on no other page."""

    title: str
    module: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    title: str
    text: str
    sections: tuple[Section, ...]


GROUPS = "geminga.Admin"
"""Stands for the attributes of an admin: ``admin.topics`` and the others."""

_ENUMS = (
    "BatchingType", "CompressionType", "ConsumerCryptoFailureAction", "ConsumerType", "HashingScheme",
    "InitialPosition", "KeySharedMode", "LoggerLevel", "PartitionsRoutingMode", "ProducerAccessMode",
    "ProducerCryptoFailureAction", "RegexSubscriptionMode", "Result",
)  # fmt: skip
PAGES: dict[str, Page] = {
    "client.md": Page(
        "The client",
        "The client for threads, under `pulsar-client`'s names. That for asyncio has the same options: see "
        "[asyncio](client-asyncio.md). Options marked \N{DAGGER} are Geminga's own; `pulsar-client` has the "
        "others under the same names. `T` is the type of values, as the schema has it: `Consumer[Order]` "
        "receives `Message[Order]`.",
        (
            Section("Client", "geminga", ("Client",)),
            Section("Producer", "geminga", ("Producer", "ManySent")),
            Section("Consumer", "geminga", ("Consumer",)),
            Section("Reader", "geminga", ("Reader",)),
            Section("Table view", "geminga", ("TableView",)),
            Section("Transaction", "geminga", ("Transaction", "TransactionState")),
            Section("Messages", "geminga", ("Message", "MessageBatch", "MessageId", "TopicName")),
            Section(
                "Policies of consumers",
                "geminga",
                (
                    "ConsumerBatchReceivePolicy",
                    "ConsumerDeadLetterPolicy",
                    "ConsumerKeySharedPolicy",
                    "RedeliveryBackoff",
                    "BatchReceivePolicy",
                    "DeadLetterPolicy",
                    "DeadLetterPolicyBuilder",
                    "KeySharedPolicy",
                ),
            ),
            Section(
                "Authentication and clusters",
                "geminga",
                (
                    "Authentication",
                    "AuthenticationToken",
                    "AuthenticationBasic",
                    "AuthenticationTLS",
                    "AuthenticationOauth2",
                    "AuthenticationAthenz",
                    "AutoClusterFailover",
                    "ServiceInfo",
                    "ServiceInfoProvider",
                ),
            ),
            Section(
                "Encryption",
                "geminga",
                ("CryptoKeyReader", "EncryptionContext", "EncryptionKey", "EncryptionKeyInfo"),
            ),
            Section("Choices", "geminga", _ENUMS),
            Section("Logs and settings files", "geminga", ("ConsoleLogger", "FileLogger", "load_settings")),
            Section("A broker inside a program", "geminga", ("embedded", "EmbeddedBroker")),
        ),
    ),
    "client-asyncio.md": Page(
        "The client for asyncio",
        "`geminga.asyncio`, with the names of `pulsar.asyncio` and more. Its options are those of "
        "[the client for threads](client.md#client); enumerations and errors are the same objects. What "
        "differs beyond `await`: [threads and asyncio](../coming-from-pulsar-client.md#threads-and-asyncio).",
        (
            Section("Client", "geminga.asyncio", ("Client",)),
            Section("Producer", "geminga.asyncio", ("Producer",)),
            Section("Consumer", "geminga.asyncio", ("Consumer",)),
            Section("Reader", "geminga.asyncio", ("Reader",)),
            Section("Table view", "geminga.asyncio", ("TableView",)),
            Section("Transaction", "geminga.asyncio", ("Transaction",)),
            Section("Redrive", "geminga.asyncio", ("Redrive", "RedriveFilter", "RedriveResult")),
        ),
    ),
    "admin.md": Page(
        "Admin",
        "`geminga.Admin` and, with `await`, `geminga.asyncio.Admin`: administration of a broker, "
        "Apache Pulsar's or Geminga's. With examples: [administration](../admin.md).",
        (
            Section("Admin", "geminga", ("Admin",)),
            Section("Its groups of calls", GROUPS),
            Section("Arguments and results", "geminga.admin"),
        ),
    ),
    "schema.md": Page(
        "Schemas",
        "`geminga.schema`. With examples: [schemas](../schemas.md).",
        (Section("Schemas and fields", "geminga.schema"),),
    ),
    "functions.md": Page(
        "Functions",
        "`geminga.functions`. With examples: [functions](../functions.md).",
        (Section("Functions", "geminga.functions"),),
    ),
    "mirror.md": Page(
        "Mirrors",
        "`geminga.mirror`. With examples: [moving to a cluster](../moving-to-a-cluster.md).",
        (Section("Mirrors", "geminga.mirror"),),
    ),
    "spark.md": Page(
        "Spark",
        "`geminga.spark`; the options of the data source are in [Spark](../spark.md#options).",
        (Section("Names", "geminga.spark"),),
    ),
}
"""By file name; the pages are drawn in this order, and a section without names takes the rest."""

NAMESPACES = (
    "geminga.schema", "geminga.functions", "geminga.mirror", "geminga.admin", "geminga.spark", "geminga",
    "geminga.asyncio",
)  # fmt: skip
"""Modules of public names; a name in two modules belongs to the first."""

TWINS = frozenset({("geminga.asyncio", "Admin")})
"""Names whose methods are those of another one with ``await``: they are described there."""

_INSIDE = {
    "geminga": "Client.context Client.runtime Consumer.wait Producer.publish_encoded Producer.submit_encoded "
    "MessageId.from_wire TopicName.encoded_local",
    "geminga.asyncio": "Client.context Producer.end Producer.abort Producer.columnar "
    "Producer.publish_encoded Producer.renew_data_keys Producer.watch_partitions "
    "Producer.refresh_partitions Consumer.open Consumer.wait Consumer.take Consumer.open_entry "
    "Consumer.check_receiving Consumer.acknowledge_others Consumer.acknowledge_in "
    "Consumer.check_acknowledgeable "
    "Consumer.check_cumulative Consumer.refuse Consumer.redeliver_all Consumer.abort "
    "Reader.next_entries Reader.note_read Reader.abort Reader.counts TableView.open TableView.abort "
    "TableView.listen TableView.caught_up TableView.decode",
}
INSIDE = {f"{module}.{name}" for module, names in _INSIDE.items() for name in names.split()}
"""Names without an underscore that are for the other modules of the package."""

MADE = frozenset(
    (
        "Producer", "Consumer", "Reader", "TableView", "Transaction", "Message", "MessageBatch", "ManySent",
        "EncryptionContext", "EmbeddedBroker",
    )
)  # fmt: skip
"""Classes that programs are given: how they are made is the package's affair."""


# --- public names --------------------------------------------------------------------------------


def public() -> Iterator[tuple[str, str, Any]]:
    """Module, name and object of everything public, errors and submodules left out."""
    seen: set[int] = set()
    for module in NAMESPACES:
        found = importlib.import_module(module)
        for name in found.__all__:
            value = getattr(found, name)
            if (
                inspect.ismodule(value)
                or name == "__version__"
                or id(value) in seen
                or (module, name) in TWINS
            ):
                continue
            if inspect.isclass(value) and issubclass(value, BaseException):
                continue
            seen.add(id(value))
            yield module, name, value


def groups() -> dict[str, Any]:
    """Return the parts of an admin client by attribute: the class of ``admin.topics`` and so on."""
    found = importlib.import_module("geminga.client.admin.sync")
    return {name: vars(found)[kind] for name, kind in found.Admin.__annotations__.items()}


def _placed() -> dict[str, list[tuple[Section, list[tuple[str, Any]]]]]:
    """Each page's sections with their names. Raises `SystemExit` for a name that is on no page."""
    everything = {(module, name): value for module, name, value in public()}
    everything |= {(GROUPS, name): value for name, value in groups().items()}
    named = {
        (section.module, name)
        for page in PAGES.values()
        for section in page.sections
        for name in section.names
    }
    if missing := named - everything.keys():
        raise SystemExit(f"tools/reference_api.py names {sorted(missing)}, which are not public")
    pages: dict[str, list[tuple[Section, list[tuple[str, Any]]]]] = {}
    for file, page in PAGES.items():
        pages[file] = []
        for section in page.sections:
            names = section.names or tuple(
                sorted(
                    name
                    for module, name in everything
                    if module == section.module and (module, name) not in named
                )
            )
            named |= {(section.module, name) for name in names}
            pages[file].append((section, [(name, everything[section.module, name]) for name in names]))
    if left := everything.keys() - named:
        raise SystemExit(f"on no reference page: {sorted(left)}; give them a place in tools/reference_api.py")
    return pages


# --- docstrings ----------------------------------------------------------------------------------


def prose(text: str) -> list[str]:
    """A docstring as Markdown: examples are code, ``name:`` with an indented text is an item of a list."""
    lines = inspect.cleandoc(text).replace("``", "`").splitlines()
    shown: list[str] = []
    code = False
    for number, line in enumerate(lines):
        behind = lines[number + 1] if number + 1 < len(lines) else ""
        if code and line and not line.startswith(" "):
            code = False
        if line.endswith("::"):
            code = True
            line = line[:-2] + (":" if line != "::" else "")
            if not line:
                continue
        elif not code and line.endswith(":") and not line.startswith(" ") and behind.startswith("    "):
            if shown and shown[-1] and not shown[-1].startswith(("* ", "  ")):
                shown.append("")
            arguments = ", ".join(f"`{name.strip()}`" for name in line[:-1].split(","))
            shown.append(f"* {arguments}:")
            continue
        elif not code and line.startswith("    "):
            line = "  " + line.strip()
        elif not code and line and shown and shown[-1].startswith(("* ", "  ")):
            shown.append("")
        shown.append(line)
    return shown


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_VARIABLE = re.compile(r"\b(?:T|V)_(?:co|contra)\b|(?<=\[)V(?=\])")
_HOME = re.compile(r"\b(?:geminga\.(?:[a-z_]+\.)+|collections\.abc\.|typing\.)(?=[A-Z])")


def signature(name: str, value: Any) -> str:
    """A call as it is written; kinds without the modules they come from."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{name}(...)"
    kept = [p for p in found.parameters.values() if p.name != "self"]
    text = re.sub(r"~(?=[A-Z])", "", str(found.replace(parameters=kept)).replace("'", ""))
    text = re.sub(r"<(\w+\.\w+): [^>]+>", r"\1", _ADDRESS.sub("", text))
    return f"{name}{_VARIABLE.sub('T', _HOME.sub('', text))}"


def _bases(cls: type) -> list[type]:
    """Return the classes that a class has members from, itself first; public bases have their own entries."""
    described = {value for _, _, value in public() if inspect.isclass(value)} - {cls}
    found = []
    for base in cls.__mro__:
        if not base.__module__.startswith("geminga") or base in described:
            continue
        if any(issubclass(other, base) for other in cls.__mro__[1:] if other in described):
            continue  # the public base has it
        found.append(base)
    return found


def _members(cls: type) -> Iterator[tuple[str, Any, Any]]:
    """Name, function and kind of each method and property, in the order in which they are written."""
    seen: set[str] = set()
    for base in _bases(cls):
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if isinstance(value, staticmethod | classmethod):
                yield name, value.__func__, type(value)
            elif isinstance(value, property):
                yield name, value.fget, property
            elif inspect.isfunction(value):
                yield name, value, None


def _text(cls: type, name: str) -> str:
    found = inspect.getdoc(getattr(cls, name))
    return found or ""


# --- one name ------------------------------------------------------------------------------------


def described(module: str, name: str, value: Any) -> list[str]:
    """A public name: its heading, its words, and what it has."""
    lines = [f"### {name}", ""]
    if inspect.isclass(value):
        lines += _class(module, name, value)
    elif callable(value):
        lines += [*code(signature(f"{module}.{name}", value)), "", *_worded(f"{module}.{name}", value), ""]
    else:
        raise SystemExit(f"{module}.{name} is neither a class nor a function: say what it is")
    return lines


def _worded(what: str, value: Any) -> list[str]:
    text = inspect.getdoc(value)
    words(what, text)
    return prose(text or "")


def _class(module: str, name: str, cls: type) -> list[str]:
    doc = vars(cls).get("__doc__")
    words(f"{module}.{name}", doc)
    lines = [*prose(str(doc)), ""]
    if issubclass(cls, enum.Enum):
        members = ", ".join(f"`{member.name}` ({member.value!r})" for member in cls)
        return [*lines, f"{members}.", ""]
    if dataclasses.is_dataclass(cls):
        lines += _fields_table(f"{module}.{name}", cls)
    elif any("__init__" in vars(base) for base in _bases(cls)) and name not in MADE and module != GROUPS:
        lines += _constructor(name, cls)
    if module == GROUPS:
        lines += _policies(cls)
    for member, function, kind in _members(cls):
        if f"{module}.{name}.{member}" in INSIDE or (module == GROUPS and member in _OF_HOLDERS):
            continue
        told = f"{name}.{member}"
        if not function.__doc__ and words(f"{module}.{told}", _text(cls, member)):
            continue  # a base has the words
        text = words(f"{module}.{told}", _text(cls, member)) and _text(cls, member)
        lines += [f"#### {told}", ""]
        if kind is not property:
            waits = "await " if inspect.iscoroutinefunction(function) else ""
            lines += [*code(waits + _call(member, function, kind)), ""]
        if member in JAVA and module == "geminga.asyncio":
            lines += [
                *prose(text),
                "",
                "Options: [those of the client for threads](client.md#client" + member + ").",
                "",
            ]
        elif member in JAVA and module == "geminga" and name == "Client":
            lines += [*prose(text), "", *_options(member, getattr(cls, member)), ""]
        else:
            lines += [*prose(text), ""]
    return lines


_OF_HOLDERS = frozenset({"path", "policies_known"})


def _policies(cls: type) -> list[str]:
    """The policies of namespaces or topics, as a table."""
    known = getattr(cls, "policies_known", None)
    if known is None:
        return []
    lines = ["Each policy has `get(place)`, `set(place, value)` and `remove(place)`.", ""]
    lines += ["| policy | value | meaning |", "|---|---|---|"]
    for policy in known():
        kind = getattr(policy.kind, "__name__", str(policy.kind))
        kind = kind if "tuple" not in str(policy.kind) else "tuple[str, ...]"
        lines.append(f"| `{policy.name}` | `{kind}` | {words(policy.name, policy.text)} |")
    return [*lines, ""]


def _call(name: str, function: Any, kind: Any) -> str:
    if name in JAVA:
        return f"{name}({', '.join(n for n, p in _required(function))}, ...)"
    text = signature(name, function)
    return re.sub(r"\(cls(, )?", "(", text) if kind is classmethod else text


def _required(function: Any) -> list[tuple[str, inspect.Parameter]]:
    found = inspect.signature(function).parameters.items()
    return [(name, p) for name, p in found if name != "self" and p.default is p.empty]


def code(text: str) -> list[str]:
    """A call as code: one argument a line where it is long."""
    if len(text) <= 96 or "(" not in text:
        return [f"    {text}"]
    head, _, rest = text.partition("(")
    depth, start, arguments = 0, 0, []
    for place, char in enumerate(rest):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            arguments.append(rest[start:place].strip())
            return [
                f"    {head}(",
                *(f"        {each}," for each in arguments if each),
                f"    {rest[place:]}",
            ]
        if char == "," and not depth:
            arguments.append(rest[start:place].strip())
            start = place + 1
    return [f"    {text}"]


def _constructor(name: str, cls: Any) -> list[str]:
    lines = [*code(signature(name, cls.__init__).removesuffix(" -> None")), ""]
    text = inspect.getdoc(cls.__init__) if cls.__init__.__doc__ else ""
    if name == "Client":
        if cls.__module__.endswith("aio"):
            return [
                "    Client(service_url, ...)",
                "",
                "Options: [those of the client for threads](client.md#client).",
                "",
            ]
        paragraphs = [p for p in (text or "").split("\n\n") if not re.match(r"\w+(, \w+)*:\n", p)]
        return [
            "    Client(service_url, ...)",
            "",
            *prose("\n\n".join(paragraphs)),
            "",
            *_options("Client", cls.__init__),
            "",
        ]
    return [*lines, *prose(text), ""] if text else lines


def fields_of(cls: type) -> list[tuple[str, str, str, str]]:
    """(name, type, default, text) of each field; the text is the docstring below the field."""
    tree = ast.parse(inspect.cleandoc(inspect.getsource(cls)))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    rows: list[tuple[str, str, str, str]] = []
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = ast.unparse(node.value) if node.value else "required"
            rows.append((node.target.id, ast.unparse(node.annotation), default, ""))
        elif rows and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            name, kind, default, _ = rows[-1]
            rows[-1] = (name, kind, default, str(node.value.value))
        elif isinstance(node, ast.FunctionDef):
            break
    return [row for row in rows if not row[0].startswith("_")]


def default_of(text: str) -> str:
    """A field's default as people write it."""
    if call := re.match(r"field\(default_factory=(\w+)", text):
        return {"dict": "{}", "list": "[]"}.get(call[1], f"{call[1]}()")
    made = None if text == "required" else ast.parse(text, mode="eval").body
    if isinstance(made, ast.Call) and ast.unparse(made.func) in ("named", "setting"):
        return ast.unparse(made.args[ast.unparse(made.func) == "named"])
    if text.startswith("field("):
        given = re.search(r"default=([^,)]+)", text)
        return given[1] if given else "required"
    return {"raw()": "{}", "nothing()": "{}"}.get(text, text)


def _fields_table(what: str, cls: type) -> list[str]:
    rows = fields_of(cls)
    if not rows:
        return []
    lines = ["| field | meaning | default | type |", "|---|---|---|---|"]
    for name, kind, default, text in rows:
        told = words(f"{what}.{name}", text)
        lines.append(f"| `{name}` | {told} | `{cell(default_of(default))}` | `{cell(kind)}` |")
    return [*lines, ""]


# --- options -------------------------------------------------------------------------------------

_UNITS = (
    (r"_(ms|millis)$", "ms"), (r"_seconds$|_period$", "s"),
    (r"_bytes$|size_in_bytes$|chunk_max_message_size", "bytes"),
    (r"max_pending_messages|receiver_queue_size|batching_max_messages|max_pending_chunked", "messages"),
    (r"concurrent_lookup_requests", "lookups"), (r"_threads$", "threads"),
    (r"connections_per", "connections"), (r"switch_frequency", "publish delays"),
)  # fmt: skip


def unit_of(name: str) -> str:
    """The unit of an option, by its name; empty where it has none."""
    return next((unit for pattern, unit in _UNITS if re.search(pattern, name)), "")


def option_words(method: str, name: str) -> str:
    """Return the meaning of an option: its settings' text, or the text in ``option_names.py``."""
    if text := WORDS.get(method, {}).get(name):
        return text
    options = signatures.METHODS["__init__" if method == "Client" else method]
    module = "geminga." + options.module.removesuffix(".py").replace("/", ".")
    fields = {row[0]: row[3] for row in fields_of(getattr(importlib.import_module(module), options.settings))}
    field = options.other_unit.get(name, (name, 1))[0]
    return fields.get(field, "")


def _options(method: str, function: Callable[..., Any]) -> list[str]:
    """The table of a method's options."""
    import geminga.asyncio

    theirs = geminga.asyncio.Client
    other = theirs.__init__ if method == "Client" else getattr(theirs, method)
    own = {p.name for p in inspect.signature(other).parameters.values() if p.kind is p.KEYWORD_ONLY}
    own -= {"pattern_auto_discovery_period"}  # positional in the synchronous API
    lines = ["| option | meaning | unit | default | Java |", "|---|---|---|---|---|"]
    parameters = dict(inspect.signature(function).parameters) | {
        p.name: p for p in inspect.signature(other).parameters.values() if p.name == "is_pattern_topic"
    }
    for name, parameter in parameters.items():
        if name == "self":
            continue
        if name not in JAVA[method]:
            raise SystemExit(f"{method}({name}=...) is not in tools/option_names.py: what does Java call it?")
        mark = "\N{DAGGER}" if name in own | {"start_paused", "failure_listener"} else ""
        java = ", ".join(f"`{each}`" for each in JAVA[method][name].split(", ") if each)
        told = words(f"{method}({name}=...)", option_words(method, name))
        lines.append(f"| `{name}`{mark} | {told} | {unit_of(name)} | {_default(parameter)} | {java} |")
    return lines


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return "required"
    if isinstance(value, enum.Enum):
        return f"`{value.name}`"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"`{value:,}`"
    if value in ((), {}, []):
        return ""
    text = repr(value)
    return f"`{text}`" if " at 0x" not in text and not text.startswith("<") else "bytes"


# --- pages ---------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """File name and text of each page."""
    drawn = {}
    for file, sections in _placed().items():
        page = PAGES[file]
        lines = [f"# {page.title}", "", HEAD, "", page.text, ""]
        for section, names in sections:
            alone = len(sections) == 1
            lines += [] if alone else [f"## {section.title}", ""]
            for name, value in names:
                found = described(section.module, name, value)
                if alone:
                    found = [re.sub(r"^#(#+)", r"\1", line) for line in found]
                if [section.title] == [each for each, _ in names]:
                    found = [re.sub(r"^####", "###", line) for line in found[2:]]
                lines += found
        text = "\n".join(lines).rstrip() + "\n"
        drawn[file] = re.sub(r"\n{3,}", "\n\n", text)
    return drawn


_TESTING = """
pytest loads these fixtures by itself where `geminga` is installed; there is nothing to import. A broker in
memory is ready in a few milliseconds. How to use them instead of containers: [a tour](../tour.md).
"""


def testing_page() -> str:
    """``testing.md``: the fixtures of the pytest plugin."""
    from geminga.testing import plugin

    tree = ast.parse(inspect.getsource(plugin))
    lines = ["# Fixtures for pytest", "", HEAD, "", " ".join(_TESTING.split()), ""]
    lines += ["| fixture | scope | what it gives |", "|---|---|---|"]
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        (mark,) = node.decorator_list
        scope = next(
            (str(ast.literal_eval(k.value)) for k in getattr(mark, "keywords", ()) if k.arg == "scope"),
            "function",
        )
        lines.append(f"| `{node.name}` | {scope} | {words(node.name, ast.get_docstring(node))} |")
    return "\n".join(lines) + "\n"
