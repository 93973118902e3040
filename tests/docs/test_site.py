"""The site: Sphinx builds it without a warning, leaves no page out, and nothing is loaded from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.modules import module_at

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
conf = module_at("docs_conf", DOCS / "conf.py")

LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']([^"']+)|url\(["']?([^)"']+)"""
)


def linked(docname: str) -> list[str]:
    """The pages that a page's lists of links bring into the navigation."""
    text = conf.navigation(docname, (DOCS / f"{docname}.md").read_text())
    folder = Path(docname).parent
    return [str(folder / path) for path in re.findall(r"<(.+)>$", text, re.M)]


def test_every_page_is_in_the_navigation():
    found = ["index", *linked("index")]
    for docname in found:
        if docname.endswith("/README"):
            found += linked(docname)
    assert len(found) == len(set(found)), "a page is there twice"
    for page in DOCS.rglob("*.md"):
        docname = str(page.relative_to(DOCS).with_suffix(""))
        assert docname in found, f"docs/{docname}.md is in no section: give it a line in docs/index.md"
    assert len(found) > 70


def test_lists_become_sections_of_the_navigation():
    text = "# T\n\n[no](no.md)\n\n## How to\n\n* [`A`](a.md): [b](b.md)\n* [C](d/c.md)\n\n## Empty\n\nno\n"
    assert conf.navigation("index", text) == (
        "```{toctree}\n:hidden:\n:caption: How to\n\nA <a>\nb <b>\nC <d/c>\n```"
    )
    assert conf.navigation("x/README", "# T\n\n* [C](c.md)\n") == "```{toctree}\n:hidden:\n\nC <c>\n```"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; links, anchors and pictures are checked by Sphinx, and a warning is an error."""
    built: Path = tmp_path_factory.mktemp("site")
    command = [
        sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", built / "trees",
    ]  # fmt: skip
    done = subprocess.run(
        [*command, DOCS, built / "html"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return built / "html"


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 70
    for file in files:
        for found in LOADED.findall(file.read_text()):
            target = found[0] or found[1]
            assert not re.match(r"(https?:)?//", target), f"{file.name} loads {target}"


@pytest.mark.slow
def test_it_can_be_searched_and_has_both_themes(site):
    index = (site / "searchindex.js").read_text()
    assert "tutorials/first-message" in index
    assert "dead_letter_polici" in index or "dead_letter_policy" in index
    page = (site / "tutorials/first-message.html").read_text()
    assert "theme-toggle" in page
    assert "Explanation" in page  # the navigation's last section
