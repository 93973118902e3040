"""The console's first screen in a browser: ``python -m benchmarks.console_screen [SUBSCRIPTIONS]``.

Starts a broker as a user does, with 10,000 topics of one subscription each, and opens the console in a
Chromium. Prints the milliseconds from the navigation to the first row of the table, for a first visit and for
a second one, after the broker's start and later; then the broker's share of a core while the page is open,
beside its share without a page.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import brokers
from benchmarks.harness import process_cpu_seconds, resident_megabytes
from geminga.asyncio import Admin

ROOT = Path(__file__).parent.parent
AT_ONCE = 50
VISITS = 7
OPEN_SECONDS = 30


async def fill(admin_url: str, count: int) -> None:
    """Topics with a subscription each."""
    async with Admin(admin_url) as admin:
        numbers = iter(range(count))

        async def make() -> None:
            for number in numbers:
                topic = f"persistent://public/default/t-{number:06}"
                await admin.topics.create(topic)
                await admin.subscriptions.create(topic, "s")

        await asyncio.gather(*(make() for _ in range(AT_ONCE)))


WATCH = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("tbody tr")) return;
  observer.disconnect();
  requestAnimationFrame(() => { window.firstRow = performance.now(); });
}).observe(document, {childList: true, subtree: true});
"""
"""The frame in which the first row is drawn, by the page's own clock, which begins with the navigation."""


def first_row_ms(page: Any, url: str) -> float:
    page.goto(url, wait_until="commit")
    page.locator("tbody tr").first.wait_for(timeout=60_000)
    while not (found := page.evaluate("window.firstRow")):
        time.sleep(0.02)
    return float(found)


def new_page(browser: Any) -> Any:
    page = browser.new_context().new_page()
    page.add_init_script(WATCH)
    return page


def idle_share(pid: int) -> float:
    """Share of a core."""
    cpu, started = process_cpu_seconds(pid), time.perf_counter()
    time.sleep(OPEN_SECONDS)
    return (process_cpu_seconds(pid) - cpu) / (time.perf_counter() - started)


def main() -> None:
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(ROOT / "tools"))
    import draw_console
    import fetch_chromium

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    if fetch_chromium.main() or not (fetch_chromium.HOME / "chromium").exists():
        sys.exit("this needs a Chromium")
    launched = draw_console.module_at("console_conftest", ROOT / "tests/console/conftest.py").launched
    with brokers.work_folder() as work, brokers.geminga(work) as broker:
        asyncio.run(fill(broker.admin_url, count))
        without = idle_share(broker.pid)
        memory = resident_megabytes(broker.pid)
        with sync_playwright() as playwright, launched(playwright, fetch_chromium.HOME) as browser:
            new, again = [], []
            for _ in range(VISITS):
                page = new_page(browser)
                new.append(first_row_ms(page, broker.admin_url))
                again.append(first_row_ms(page, broker.admin_url))
                page.context.close()
            page = new_page(browser)
            first_row_ms(page, broker.admin_url)
            open_share = idle_share(broker.pid)
        grown = resident_megabytes(broker.pid) - memory
    print(f"{count:,} subscriptions, milliseconds until the first row:")
    middle, most = statistics.median(new[1:]), max(new[1:])
    print(f"  the very first: {new[0]:.0f}; new browsers: {middle:.0f}, {most:.0f} at most")
    print(f"  come again: {statistics.median(again):.0f}, {max(again):.0f} at most")
    print(f"an open page: {100 * open_share:.2f} % of a core, {100 * without:.2f} % without")
    print(f"memory: {grown:.1f} MB more after the visits")


if __name__ == "__main__":
    main()
