"""Behaviour and looks of the console's pages: accessibility, layout shift, motion, keyboard, scroll position.

Pictures of each page are written to ``GEMINGA_SCREENSHOTS`` if that is set.
"""

import os
import re
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.support.modules import module_at

ROOT = Path(__file__).parents[2]
BASE = "persistent://public/default/"
LOOKS = list(product((1440, 1024, 390), ("light", "dark")))
"""Widths and themes. A run of the tests sees each page in one of them."""
SHIFT_MAX = 0.05
SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifts += each.value;
}).observe({ type: "layout-shift", buffered: true });
"""
ENDLESS = "document.getAnimations().filter((each) => each.effect.getTiming().iterations === Infinity).length"


@pytest.fixture(scope="session")
def axe(chromium):
    """Return axe-core's script."""
    fetch = module_at("fetch_axe", ROOT / "tools/fetch_chromium.py")
    if not fetch.AXE.exists() and "CI" not in os.environ and (why := fetch.missing()):
        pytest.skip(f"no axe-core: {why}")
    return str(fetch.axe().read_text())


@pytest.fixture
def scene(served):
    """Return the console with the scene of the documentation's pictures, and a partitioned topic."""
    draw = module_at("draw_console", ROOT / "tools/draw_console.py")
    drawn = draw.Scene(served, module_at("console_entries", ROOT / "tests/broker/conftest.py").entry_bytes)
    served.do(drawn.begin)

    served.create("sensors", "store", partitions=3)
    for number in range(5):
        served.do(lambda number=number: drawn.step(number))
    served.do(lambda: served.harness.advance(60))
    return served


PAGES = {
    "subscriptions": "",
    "topics": "#/topics",
    "subscription": f"#/s/{quote(BASE + 'flights', safe='')}/lake",
    "topic": f"#/t/{quote(BASE + 'telemetry', safe='')}",
    "partitioned": f"#/t/{quote(BASE + 'sensors', safe='')}",
    "namespaces": "#/namespaces",
    "namespace": "#/n/public/default",
    "running": "#/running",
    "broker": "#/broker",
}


def opened(page: Page, served: Any, address: str) -> None:
    page.goto(f"{served.url}/{address}")
    expect(page.locator(".skeletons, .skeleton").filter(visible=True)).to_have_count(0)
    expect(page.locator("main table, main .pairs").filter(visible=True).first).to_be_visible()
    page.wait_for_load_state("networkidle")


def pictured(page: Page, name: str) -> None:
    folder = os.environ.get("GEMINGA_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)


@pytest.mark.rotating(1)
@pytest.mark.parametrize("first", range(len(LOOKS)))
def test_axe_finds_nothing_and_nothing_moves_at_load(scene, make_page, axe, first, part):
    """Contrast, names, roles, headings, scrollable regions, in both themes and three widths in turns."""
    found, shifts = {}, {}
    for number, (name, address) in part(enumerate(PAGES.items(), first), 3):
        width, scheme = LOOKS[number % len(LOOKS)]
        page = make_page(width=width, height=900, scheme=scheme, bypass_csp=True)
        page.add_init_script(SHIFTS)
        opened(page, scene, address)
        shifts[name] = page.evaluate("window.shifts")
        pictured(page, f"{name}-{scheme}-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(ENDLESS) == 0, f"{name} moves without end"
        page.evaluate(axe)
        result = page.evaluate("axe.run({ resultTypes: ['violations'] })")
        found |= {
            f"{name}: {each['id']}": [node["html"][:120] for node in each["nodes"]][:5]
            for each in result["violations"]
        }
        page.close()
    assert not found
    assert {name: shift for name, shift in shifts.items() if shift >= SHIFT_MAX} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_stand_out_from_their_ground(scene, make_page, scheme):
    """Dots, lines, borders of fields and the colours of the map have a contrast of 3 or more."""
    page = make_page(scheme=scheme)
    opened(page, scene, "")
    contrasts = page.evaluate(
        """() => {
          const style = getComputedStyle(document.documentElement);
          const light = (name) => {
            const hex = style.getPropertyValue(`--${name}`).trim().slice(1);
            const [r, g, b] = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
              .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const names = ["stopped", "watch", "moving", "quiet", "accent", "edge", "acked", "open", "damaged",
            "delayed", "partly", "again"];
          const ground = light("panel");
          return Object.fromEntries(names.map((name) => {
            const [a, b] = [light(name), ground].sort((x, y) => y - x);
            return [name, (a + 0.05) / (b + 0.05)];
          }));
        }"""
    )
    assert {name: value for name, value in contrasts.items() if value < 3} == {}


def test_escape_keeps_the_search_and_back_the_position(scene, make_page):
    page = make_page(width=1360, height=400)
    opened(page, scene, "#/?search=default")
    page.get_by_label("Search topics").focus()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Search topics")).to_have_value("default")
    page.evaluate("window.scrollTo(0, 300)")
    while page.evaluate("history.state?.scroll") != 300:
        pass
    # A click by Playwright may scroll first.
    page.locator("a.row").nth(4).evaluate("row => row.click()")
    expect(page.locator(".facts").first).to_be_visible()
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.go_back()
    while page.evaluate("window.scrollY") != 300:
        pass
    page.locator("a.row").nth(4).click()
    expect(page.locator(".facts").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("search=default"))


def test_labels_of_charts_are_whole_and_not_repeated(scene, make_page):
    page = make_page(width=390, height=900)
    for address in (PAGES["subscription"], PAGES["topic"]):
        opened(page, scene, address)
        page.locator(".chart svg text").first.wait_for()
        for chart in page.locator(".chart svg").all():
            box = chart.bounding_box()
            texts = chart.locator("text[text-anchor=end]").all()
            labels = [each.text_content() for each in texts]
            assert len(labels) == len(set(labels)), labels
            assert all(each.bounding_box()["x"] >= box["x"] for each in texts), labels


CHART = """async (values) => {
  const { Chart } = await import('/console/charts.js');
  const { bytes } = await import('/console/dom.js');
  const chart = new Chart([["written", "moving"]], bytes, true);
  document.querySelector("main").replaceChildren(chart.element);
  values.forEach((value, at) => chart.add(1_790_000_000 + at, [value]));
  return [...chart.svg.querySelectorAll("text[text-anchor=end]")].map((each) => each.textContent);
}"""


TICKS = {
    700_000: ["0 B", "256 KiB", "512 KiB", "768 KiB"], 1_000: ["0 B", "512 B", "1 KiB", "1.5 KiB"],
    3: ["0 B", "1 B", "2 B", "3 B", "4 B"], 60 << 20: ["0 B", "16 MiB", "32 MiB", "48 MiB", "64 MiB"],
}  # fmt: skip


def test_a_chart_of_bytes_has_binary_ticks(served, page):
    page.goto(served.url)
    assert {most: page.evaluate(CHART, [most / 2, most]) for most in TICKS} == TICKS


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(200, r"unchanged in the \d+ min that are recorded"), (4000, "unchanged in the last hour")],
)
def test_an_unchanged_backlog_names_the_time_that_the_broker_knows(served, page, seconds, words):
    served.create("t", "s")
    module_at("console_entries", ROOT / "tests/broker/conftest.py")

    def publish() -> None:
        served.harness.producer(BASE + "t").send(0)
        served.harness.advance(seconds)

    served.do(publish)
    page.goto(f"{served.url}/#/s/{quote(BASE + 't', safe='')}/s")
    expect(page.locator(".panel", has_text="Backlog").locator("h2 small").first).to_have_text(
        re.compile(words)
    )


def test_entries_that_were_only_read_ahead_are_not_called_to_redeliver(served, page):
    served.create("t", "s")
    entry_bytes = module_at("console_entries", ROOT / "tests/broker/conftest.py").entry_bytes

    def publish() -> None:
        for name, permits in (("full", 1), ("other", 1000)):
            kind = {"kind": "Key_Shared", "permits": permits, "consumer_name": name}
            served.harness.peer().subscribe(BASE + "t", "s", **kind)
        producer = served.harness.producer(BASE + "t")
        for number in range(40):
            producer.send(number, entry_bytes(b"x", partition_key=f"k{number}"))

    served.do(publish)
    page.goto(f"{served.url}/#/s/{quote(BASE + 't', safe='')}/s")
    fact = page.locator(".facts div", has_text="To redeliver")
    expect(fact).to_have_text(re.compile(r"To redeliver0[1-9]\d read ahead"))


def test_long_forecasts_are_in_words_and_compared_sizes_differ_in_their_texts(served, page):
    page.goto(served.url)
    words = (
        "async (all) => { const { duration } = await import('/console/dom.js'); return all.map(duration) }"
    )
    shown = page.evaluate(words, [59, 3_600, 86_400 * 40, 86_400 * 200, 86_400 * 365 * 12])
    assert shown == ["59 s", "1 h 0 min", "40 d 0 h", "7 months", "12 years"]

    words = """async (all) => {
        const { distinctBytes } = await import('/console/dom.js');
        return all.map((each) => distinctBytes(...each).join(", "));
    }"""
    gib, mib = 1 << 30, 1 << 20
    compared = [[2 * gib + 9 * mib, 2 * gib], [gib, gib], [500 * mib + 1500, 500 * mib], [0, gib]]
    assert page.evaluate(words, compared) == [
        "2,156,920,832 B, 2,147,483,648 B", "1 GiB, 1 GiB", "524,289,500 B, 524,288,000 B", "0 B, 1 GiB",
    ]  # fmt: skip
