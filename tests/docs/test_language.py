"""The rules for plain words of ``tools/prose.py``: what they find, and what they leave alone.

How many findings each package may have is a budget: see ``test_budgets.py``.
"""

import pytest

from tests.docs.test_budgets import tool

prose = tool("prose")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("doc", "What there is no room for is not waited for."),
        ("doc", "Whether the topic is loaded; nobody waits any more."),
        ("help", "Of what is drawn."),
        ("log", "%s goes on without its peer"),
        ("comment", "The catalog is told of it later."),
        ("comment", "what was written since"),
        ("comment", "--- what policies want ---"),
        ("text", "A place in the ledger."),
        ("test", "test_who_comes_late_is_refused"),
    ],
)
def test_a_piece_that_stops_a_reader_is_found(kind, text):
    assert prose.problem(prose.Piece(1, kind, text)) is not None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("doc", "Return the position of the newest entry, None if the ledger is empty."),
        ("doc", "Bloom filter over the catalog's keys."),
        ("help", "Maximum size of the data folder, such as 20G."),
        ("comment", "Two writers would interleave their records: `place` is a name in code."),
        ("test", "test_ack_after_seek_is_ignored"),
    ],
)
def test_plain_words_pass(kind, text):
    assert prose.problem(prose.Piece(1, kind, text)) is None


def test_every_kind_of_prose_is_read(tmp_path):
    python = tmp_path / "module.py"
    python.write_text(
        '"""Module."""\nimport logging\nLIMIT = 1\n"""Limit in bytes."""\n'
        'def test_one():\n    """Function."""\n    logging.info("log line %s", 1)  # a comment\n'
        "    # Two lines\n    # of a comment.\n"
        '    option(help="help text")\n'
    )
    script = tmp_path / "page.js"
    script.write_text('// A comment.\nconst text = "Shown to a person";\n')
    page = tmp_path / "page.md"
    page.write_text("A line.\n\n```\ncode\n```\n")
    (tmp_path / "Makefile").write_text("# A target.\nall:\n")
    found = [
        (piece.kind, piece.text) for path in prose.files(tmp_path) for piece in sorted(prose.pieces(path))
    ]
    assert sorted(found) == sorted(
        [
            ("doc", "Module."), ("doc", "Limit in bytes."), ("test", "test_one"), ("doc", "Function."),
            ("log", "log line %s"), ("comment", "a comment"), ("help", "help text"), ("text", "A comment."),
            ("text", "Shown to a person"), ("text", "A line."), ("comment", "Two lines of a comment."),
            ("comment", "A target."),
        ]
    )  # fmt: skip
