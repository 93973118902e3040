from pathlib import Path

from geminga.producer.states import diagram


def test_the_page_shows_the_table():
    page = Path(__file__).parents[2] / "docs" / "publish-path.md"
    assert f"```mermaid\n{diagram()}```" in page.read_text(encoding="utf-8")
