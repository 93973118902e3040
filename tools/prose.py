"""Rules for plain words, and the pieces of prose that they are applied to.

Covers docstrings, comments, help texts, log lines and test names of Python files, the texts of the console's
scripts and pages, Markdown, and the comments of configuration files, the Makefile and CI. The rules look for
habits that make a reader stop; they know no grammar.

    python tools/prose.py PATH...    each finding on a line: file:line: kind: text -> advice
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ADVICE: tuple[tuple[str, str], ...] = (
    (r"(?i)\b(who|what|which)ever\b", "name the client, the caller, the topic"),
    (r"(?i)\banew\b", "again, or recreated"),
    (r"(?i)\b(nobody|no one|somebody|someone)\b", "no consumer, no caller, another client"),
    (r"(?i)\b(is|are|was|were|be|been|being) told\b", "returns, reports, is notified"),
    (r"(?i)\btells? (the|it|who|what|how|whether|that)\b", "returns, reports, logs, sends"),
    (r"(?i)\bsays (so|it|that)\b", "reports, states"),
    (r"(?i)\bso (many|much|long|often)\b(?! (as|that))", "give the number, the unit or the name"),
    (r"\b(is|are|for what is|of what is) none\b", "is empty, is not set, does not exist"),
    (r"(?i)\b(in (its|their|the) midst|amid)\b", "while, during"),
    (r"(?i)\b(is|are|goes|go|went|be) (on|off) the way\b|\bunder way\b", "in flight, pending"),
    (
        r"(?i)\bwhat (comes|came|waits|waited|goes|went|stands|stood|lies|lay|is there|was there)\b",
        "name the entry, the message, the record",
    ),
    (r"(?i)\b(gives?|gave|given) (way|out|up on)\b", "frees space, yields, abandons"),
    (r"(?i)\bmend(s|ed|ing)?\b", "fix, repair"),
    (r"(?i)\bof (one's|its|their) own\b(?= accord)", "automatically"),
    (r"(?i)\bthe same\.\s*$", "say it in full"),
    (r"(?i)\bcomes? (again|back|in)\b", "is redelivered, is retried, reconnects, is received"),
    (r"(?i)\b(goes|go|went) on\b", "continues, resumes"),
    (r"(?i)\b(to ask (for )?it|is asked|are asked)\b", "is queried, is requested"),
    (r"(?i)\bplaces?\b", "offset, position, slot, storage location: the one that is meant"),
    (r"(?i)\bthing\b", "name the record, the key, the resource"),
    (r"(?i)\bfaces?\b", "API (synchronous, asyncio)"),
    (r"(?i)\bfar away\b|\bnear(by)? things?\b", "remote, offloaded"),
)
RULES = tuple((re.compile(pattern), advice) for pattern, advice in _ADVICE)
_ANY_RULE = re.compile("(?i)" + "|".join(pattern.removeprefix("(?i)") for pattern, _ in _ADVICE))
RIDDLE = re.compile(r"^(What|Who|Whom|Whose|Which|Whoever|Whatever|How|Why|Where|Of|So)\b(?![^.?]*\?)")
COMMENT_RIDDLE = re.compile(r"(?i)^(-+ )?(what|who|whom|whose|which|how|why)\b(?![^.?]*\?)")
ODD_TEST_NAME = re.compile(
    r"(^|_)(who|whoever|whatever|nobody|anew|told|tells|mended|lies|stood|comes_again|goes_on|so_many|so_long)(_|$)"
)
_CODE = re.compile(r"``[^`]*``|`[^`]*`|https?://\S+")
_COMMENT = re.compile(r"(?:^|\S  )\s*#+ (.*)")
_TOOL_COMMENT = re.compile(r"(noqa|type:|fmt:|pragma|mypy:|ruff:)")
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
_HELP_KEYWORDS = {"help", "description", "short_help", "epilog"}
_SCRIPT_TEXT = re.compile(r"^\s*//\s*(.+)|\"([A-Za-z][^\"\\<>=]* [^\"\\<>=]* [^\"\\<>=]*)\"")
_GENERATED = re.compile(r"_pb2|/proto/|__pycache__|/vendor/")
_SCRIPTS = {".js", ".html"}
_CONFIGURATION = {".toml", ".yaml", ".service", ".timer"}
_WITHOUT_SUFFIX = {"Makefile", "Dockerfile", "run"}


class Piece(NamedTuple):
    """Piece of prose: its first line, its kind (doc, comment, help, log, test or text) and its text."""

    line: int
    kind: str
    text: str


def files(*roots: Path) -> list[Path]:
    """Return the files with prose below the given files and folders, sorted."""
    found = (path for root in roots for path in ([root] if root.is_file() else root.rglob("*")))
    return sorted(
        path
        for path in found
        if (path.suffix in {".py", ".md", *_SCRIPTS, *_CONFIGURATION} or path.name in _WITHOUT_SUFFIX)
        and path.is_file()
        and not _GENERATED.search(path.as_posix())
    )


def pieces(path: Path) -> Iterator[Piece]:
    """Yield each piece of prose in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from _markdown(text)
    elif path.suffix == ".py":
        yield from _python(text)
    elif path.suffix not in _SCRIPTS:
        yield from _comments(text)
    else:
        for number, line in enumerate(text.splitlines(), 1):
            for match in _SCRIPT_TEXT.finditer(line):
                yield Piece(number, "text", next(group for group in match.groups() if group))


def problem(piece: Piece) -> str | None:
    """Return the advice of the first rule that a piece breaks, None if it breaks no rule."""
    if piece.kind == "test":
        return "say what is done and what is expected" if ODD_TEST_NAME.search(piece.text) else None
    plain = _CODE.sub("x", piece.text)
    if piece.kind in {"doc", "help"} and RIDDLE.match(plain):
        return "start with a verb, or with the noun that it is"
    if piece.kind == "comment" and COMMENT_RIDDLE.match(plain):
        return "name the entry, the message, the record, or give the reason"
    for rule, advice in RULES if _ANY_RULE.search(plain) else ():
        if match := rule.search(plain):
            return f"{match.group(0)!r}: {advice}"
    return None


def _markdown(text: str) -> Iterator[Piece]:
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and line.strip() and not line.startswith(("    ", "|--")):
            yield Piece(number, "text", line.strip())


def _python(text: str) -> Iterator[Piece]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Piece(node.lineno, "test", node.name)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and (said := _string(statement.value)):
                    yield Piece(statement.lineno, "doc", said.strip())
        elif isinstance(node, ast.Call):
            yield from _call(node)
    yield from _comments(text)


def _comments(text: str) -> Iterator[Piece]:
    """Yield each comment; consecutive lines with nothing but a comment are one."""
    first, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        match = _COMMENT.search(line)
        is_alone = match is not None and line.lstrip().startswith("#")
        if lines and not is_alone:
            yield Piece(first, "comment", " ".join(lines))
            lines = []
        if match is None or _TOOL_COMMENT.match(match[1]):
            continue
        if is_alone:
            first = first if lines else number
            lines.append(match[1])
        else:
            yield Piece(number, "comment", match[1])


def _call(node: ast.Call) -> Iterator[Piece]:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in _LOG_METHODS and node.args and (said := _string(node.args[0])):
        yield Piece(node.args[0].lineno, "log", said)
    for keyword in node.keywords:
        if keyword.arg in _HELP_KEYWORDS and (said := _string(keyword.value)):
            yield Piece(keyword.value.lineno, "help", said)


def _string(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def main() -> int:
    """Print each finding below the paths of the command line; return 1 if there is one."""
    roots = [Path(argument) for argument in sys.argv[1:]] or [Path("src"), Path("tests"), Path("docs")]
    found = 0
    for path in files(*roots):
        for piece in pieces(path):
            if advice := problem(piece):
                found += 1
                start = piece.text.split("\n")[0][:110]
                print(f"{path}:{piece.line}: {piece.kind}: {start} -> {advice}")
    print(f"{found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
