"""Sphinx configuration of the site: ``make docs`` builds it in ``build/site``.

The pages are plain Markdown whose links work on a code host, too. The navigation has the pages that
``index.md`` links to, by section, and the pages that a folder's ``README.md`` links to. A page in neither
fails the build and tests/docs/test_site.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(([\w./-]+)\.md\)")

project = "Geminga"
release = re.search(r'"(.+)"', (_ROOT / "src/geminga/_version.py").read_text())[1]  # type: ignore[index]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_static"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"Geminga {release}"
html_favicon = "../src/geminga/console/static/star.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# Colours of code that can be read on both grounds.
pygments_style, pygments_dark_style = "tango", "github-dark"
suppress_warnings = ["misc.highlighting_failure"]
"""Blocks that show what a command prints have no language that a lexer knows."""


def navigation(docname: str, text: str) -> str:
    """The tables of contents that follow from a page's lists of links, for Sphinx alone."""
    trees = []
    for section in re.split(r"^## ", text, flags=re.M)[1:] if docname == root_doc else [f"\n{text}"]:
        title, _, body = section.partition("\n")
        found = dict.fromkeys(
            (label.replace("`", ""), path)
            for line in body.splitlines()
            if line.startswith("* ")
            for label, path in _LINK.findall(line)
        )
        if found:
            caption = [f":caption: {title}"] if title else []
            pages = [f"{label} <{path}>" for label, path in found]
            trees.append("\n".join(["```{toctree}", ":hidden:", *caption, "", *pages, "```"]))
    return "\n\n".join(trees)


def _add_navigation(_app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == root_doc or docname.endswith("/README"):
        source[0] += "\n\n" + navigation(docname, source[0]) + "\n"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _add_navigation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
