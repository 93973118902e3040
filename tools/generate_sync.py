"""Generate the synchronous API from the asyncio API: ``make docs`` runs it, ``--check`` compares.

``client/api/aio.py`` and ``client/api/base.py`` are written by hand, except for the arguments that are
options: those come from the settings (``tools/signatures.py``).

``client/api/sync.py`` has its signatures, docstrings and the steps of its methods: a coroutine function
becomes a plain one, ``await`` is removed, and classes become those of the synchronous API. `FACE` lists the
differences between ``pulsar-client``'s own two APIs. Members of the hand-written base
(``client/api/sync_base.py``) are left out.

``--check`` compares with the file that is checked in, exits with 1 on a difference, and writes nothing.
"""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from signatures import with_signatures

CLIENT = Path(__file__).parent.parent / "src/geminga/client/api"
CLASSES = {
    "AsyncProducer": "Producer",
    "AsyncConsumer": "Consumer",
    "AsyncReader": "Reader",
    "AsyncTableView": "TableView",
    "AsyncTransaction": "Transaction",
}

HEADER = '''"""`geminga.Client`: the client for plain threads, with the names, arguments and defaults of
``pulsar-client`` 3.13.

One default differs: the host name in a TLS certificate is checked. Arguments after the ``*`` are additions.

Generated from ``client/api/aio.py`` by ``tools/generate_sync.py``: do not edit.
"""

from __future__ import annotations
'''


@dataclass(frozen=True)
class Differs:
    """Differences of a method's arguments in the synchronous API, as in ``pulsar-client``."""

    dropped: tuple[str, ...] = ()
    inserted: dict[str, str] = field(default_factory=dict)
    """Arguments of the synchronous API alone, each before an argument that both APIs have."""
    named: tuple[str, ...] = ()
    """Arguments of threads alone, by name only."""
    moved: dict[str, str] = field(default_factory=dict)
    """Arguments that stand elsewhere: before which one."""
    said: dict[str, str] = field(default_factory=dict)
    """Sentences of the docstring that are other ones here."""
    defaults: dict[str, ast.expr] = field(default_factory=dict)
    """Defaults of the synchronous API alone."""


BYTES = """
if TYPE_CHECKING:
    _BYTES: None = None  # of which no checker infers that the values are those of a default
else:
    _BYTES = BytesSchema()
"""
SCHEMA = "schema: Schema[T] | type[T] | None = _BYTES"

FACE = {
    "Client": Differs(
        said={
            "One client may serve several event loops, in sequence or in different threads; it opens "
            "separate connections on each. A producer, consumer or reader belongs to the loop on which "
            "it was opened.": ("May be used from several threads.")
        }
    ),
    "create_producer": Differs(defaults={"batching_enabled": ast.Constant(False)}),
    "subscribe": Differs(
        dropped=("is_pattern_topic",),
        inserted={
            "receiver_queue_size": "message_listener: Callable[[Consumer[T], Message[T]], Any] | None = None"
        },
        named=(
            "failure_listener: Callable[[Consumer[T], Message[T]], Any] | None = None",
            "start_paused: bool = False",
        ),
        moved={"pattern_auto_discovery_period": "initial_position"},
        said={"With ``is_pattern_topic`` the topic is the text of a pattern.": ""},
    ),
    "create_reader": Differs(
        inserted={
            "receiver_queue_size": "reader_listener: Callable[[Reader[T], Message[T]], Any] | None = None"
        },
        named=("failure_listener: Callable[[Reader[T], Message[T]], Any] | None = None",),
    ),
    "create_table_view": Differs(said={" Not in ``pulsar.asyncio``.": ""}),
    "new_transaction": Differs(said={" Not in ``pulsar.asyncio``.": ""}),
}


class _Plain(ast.NodeTransformer):
    """Coroutines become calls, and classes those for threads."""

    def __init__(self, dropped: tuple[str, ...]) -> None:
        self._dropped = dropped

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(CLASSES.get(node.id, node.id), node.ctx), node)

    def visit_alias(self, node: ast.alias) -> ast.AST:
        return ast.alias(CLASSES.get(node.name, node.name), node.asname)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [a for a in node.args if not (isinstance(a, ast.Name) and a.id in self._dropped)]
        return self.generic_visit(node)


def _argument(text: str) -> tuple[ast.arg, ast.expr | None]:
    made = ast.parse(f"def f({text}): ...").body[0]
    assert isinstance(made, ast.FunctionDef)
    return made.args.args[0], next(iter(made.args.defaults), None)


def _arguments(given: ast.arguments, differs: Differs) -> ast.arguments:
    """The arguments for threads."""
    missing = len(given.args) - len(given.defaults)
    plain = list(zip(given.args, [None] * missing + given.defaults, strict=True))
    named = list(zip(given.kwonlyargs, given.kw_defaults, strict=True))
    every = {argument.arg: (argument, default) for argument, default in plain + named}
    gone = {*differs.dropped, *differs.moved}
    plain = [pair for pair in plain if pair[0].arg not in gone]
    named = [pair for pair in named if pair[0].arg not in gone]
    for before, pair in [
        *((before, _argument(text)) for before, text in differs.inserted.items()),
        *((before, every[name]) for name, before in differs.moved.items()),
    ]:
        plain.insert([argument.arg for argument, _ in plain].index(before), pair)
    named += [_argument(text) for text in differs.named]
    plain = [_argument(SCHEMA) if argument.arg == "schema" else (argument, d) for argument, d in plain]
    plain = [(argument, differs.defaults.get(argument.arg, default)) for argument, default in plain]
    return ast.arguments(
        posonlyargs=[],
        args=[argument for argument, _ in plain],
        defaults=[default for _, default in plain if default is not None],
        kwonlyargs=[argument for argument, _ in named],
        kw_defaults=[default for _, default in named],
    )


def _said(text: str, differs: Differs) -> str:
    """Return a docstring for the synchronous API, with changed paragraphs refilled."""
    paragraphs = []
    unused = set(differs.said)
    for paragraph in text.split("\n\n"):
        words = " ".join(paragraph.split())
        for sentence, other in differs.said.items():
            if sentence in words:
                unused.discard(sentence)
                words = words.replace(sentence, other)
                paragraph = _filled(" ".join(words.split()), paragraph)
        paragraphs.append(paragraph)
    if unused:
        raise SystemExit(f"not said in aio.py any more: {unused}")
    text = "\n\n".join(paragraphs)
    return text.replace("geminga.asyncio.", "geminga.").replace("async with", "with").replace("await ", "")


def _filled(words: str, like: str) -> str:
    """``words`` in lines, indented as the paragraph is that they stand for."""
    indents = re.findall(r"^ *", like, re.MULTILINE)
    later = indents[-1] or " " * 8
    first = indents[0] if like.startswith(" ") else ""
    # A first line that begins behind the quotes is as long as one that begins with the indent.
    lines = textwrap.wrap(words, 106, initial_indent=later, subsequent_indent=later)
    lines[0] = first + lines[0].removeprefix(later)
    end = re.search(r"\n *$", like)
    return "\n".join(lines) + (end.group() if end else "")


def _with_docstring(body: list[ast.stmt], differs: Differs) -> list[ast.stmt]:
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return [ast.Expr(ast.Constant(_said(str(first.value.value), differs))), *body[1:]]
    return body


def method(given: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef:
    """Return a method of the synchronous API."""
    differs = FACE.get(given.name, Differs())
    made = ast.FunctionDef(
        name=given.name,
        args=_arguments(given.args, differs),
        body=_with_docstring(copy.deepcopy(given.body), differs),
        decorator_list=given.decorator_list,
        returns=given.returns,
        lineno=0,
    )
    return ast.fix_missing_locations(_Plain(differs.dropped).visit(made))


def _class(path: Path, name: str) -> ast.ClassDef:
    found = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef) and n.name == name]
    return found[0]


def _methods(of: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in of.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def by_hand(name: str) -> str:
    """The text of a module that is written by hand but for the arguments that are options."""
    return _formatted(with_signatures((CLIENT / name).read_text()), name)


def sync(source: str) -> str:
    """The text of ``client/api/sync.py``, made of that of ``client/api/aio.py``."""
    (client,) = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Client")
    base = {m.name for m in _methods(_class(CLIENT / "sync_base.py", "SyncBase"))}
    made = ast.ClassDef(
        name="Client",
        bases=[ast.Name("SyncBase")],
        keywords=[],
        body=_with_docstring([client.body[0]], FACE["Client"]),
        decorator_list=[],
    )
    made.body += [method(m) for m in _methods(client) if m.name not in base and not m.name.startswith("_")]
    imports = [
        _Plain(()).visit(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else _typing(node)
        for node in ast.parse(source).body
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.If))
        and not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    ]
    extra = ["from geminga.client.api.sync_base import SyncBase", "from geminga.schema import BytesSchema"]
    typing = next(node for node in imports if isinstance(node, ast.If))
    typing.body += ast.parse("from geminga.client.api.message import Message").body
    lines = [*extra, *(ast.unparse(node) for node in imports), BYTES, ast.unparse(made)]
    return _formatted(HEADER + "\n".join(lines) + "\n", "sync.py")


def _typing(node: ast.If) -> ast.If:
    """Imports for type checkers alone, with the classes for threads."""
    for statement in node.body:
        assert isinstance(statement, ast.ImportFrom)
        statement.names = [ast.alias(CLASSES.get(n.name, n.name)) for n in statement.names]
    return node


def _formatted(text: str, name: str) -> str:
    for arguments in (["check", "--select", "F401,I", "--fix", "--quiet"], ["format"]):
        command = ["ruff", *arguments, "--stdin-filename", str(CLIENT / name), "-"]
        command[0] = str(Path(sys.executable).parent / "ruff")
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


def files() -> dict[Path, str]:
    """Path and text of each generated module."""
    base, aio = by_hand("base.py"), by_hand("aio.py")
    return {CLIENT / "base.py": base, CLIENT / "aio.py": aio, CLIENT / "sync.py": sync(aio)}


def main() -> int:
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(
                f"{path.relative_to(CLIENT.parent)} is not what the classes for asyncio say; run `make docs`",
                file=sys.stderr,
            )
        return bool(stale)
    for path in stale:
        path.write_text(files()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
