"""A broker core in virtual time behind its real web server, and a real Chromium.

The browser is started once per module; each test has a separate context. Forbidden actions of the pages
(running a foreign script, violating their policy, opening a browser's dialog) fail the current test.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright
from web_port import Port

from geminga.broker.admin.in_flight_requests import InFlightRequests
from geminga.broker.admin.web import make_application
from geminga.console.site import attach
from geminga.ids import MessageId, TopicName
from tests.support.disk_stores import succeeded
from tests.support.modules import module_at

ROOT = Path(__file__).parents[2]
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{home}/fonts</dir><cachedir>{folder}</cachedir></fontconfig>
"""
"""Without fonts Chromium ends at the first page."""
WAIT_MS = 60_000
"""No test depends on how quick the machine is."""
POLICY_BROKEN = (
    "addEventListener('securitypolicyviolation', (event) => console.error('POLICY', event.violatedDirective))"
)
T = TypeVar("T")


BASE = "persistent://public/default/"


harnesses = module_at("console_harness", ROOT / "tests/broker/conftest.py")
module_at("console_remote", ROOT / "tests/console/test_remote.py")


class Served(Port):
    """A `Harness` with the web port of a broker. Everything happens on the loop of its thread: `do`."""

    def __init__(self, **settings: Any) -> None:
        self.harness = harnesses.Harness(**settings)
        self.connections: set[object] = set()
        self.connections_created = self.connections_refused = 0
        self.tls = None
        self.unanswered = InFlightRequests()
        self.started_at_ms = self.harness.now_ms
        self.requests: list[str] = []
        super().__init__(self._application)

    # --- members that the resources use of a server ---
    @property
    def broker(self) -> Any:
        return self.harness.broker

    @property
    def settings(self) -> Any:
        return self.harness.settings

    @property
    def store(self) -> Any:
        return self.harness.store

    def tls_arguments(self) -> dict[str, Any]:
        return {}

    def call(self, function: Callable[[], T]) -> T:
        found = function()
        self.harness.poll()
        return found

    # --- its own ---
    def _application(self) -> web.Application:
        application = make_application(self, attach)
        application.on_response_prepare.append(self._asked)
        return application

    async def _asked(self, request: web.Request, _response: web.StreamResponse) -> None:
        self.requests.append(request.path_qs)

    def do(self, function: Callable[[], T]) -> T:
        """Run a function where the broker lives."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def create(self, name: str, *subscriptions: str, partitions: int = 0) -> None:
        """Create a topic (of public/default, unless its whole name is given) with subscriptions from its
        beginning, those of a partitioned topic on each partition."""
        topic, actions = TopicName.parse(name if "://" in name else BASE + name), self.harness.actions

        def make() -> None:
            if partitions:
                actions.create_partitioned(topic, partitions, succeeded)
            else:
                actions.create(topic, succeeded)
            for part in [topic.partition_name(at) for at in range(partitions)] or [topic]:
                for each in subscriptions:
                    actions.cursors.create(part, each, MessageId.earliest, succeeded)
            self.harness.poll()

        self.do(make)


@pytest.fixture
def make_served():
    made: list[Served] = []

    def make(**settings: Any) -> Served:
        made.append(Served(**settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def served(make_served):
    return make_served()


@pytest.fixture
def create(served):
    return served.create


@pytest.fixture(scope="session")
def chromium():
    """The folder of the browser, fetched if it is not here; what is checked before landing needs it."""
    fetch = module_at("fetch_chromium", ROOT / "tools/fetch_chromium.py")
    if not (fetch.HOME / "chromium").exists():
        if "CI" not in os.environ and (why := fetch.missing()):
            pytest.skip(f"no Chromium: {why}")
        subprocess.run([sys.executable, fetch.__file__], check=True, timeout=300)
    return Path(fetch.HOME)


@contextlib.contextmanager
def launched(playwright: Playwright, chromium: Path) -> Iterator[Browser]:
    """The browser; the same fonts, language and time zone wherever it runs."""
    with tempfile.TemporaryDirectory() as folder:
        fonts = Path(folder, "fonts.conf")
        fonts.write_text(FONTS.format(home=chromium.resolve(), folder=folder))
        environment = {
            **os.environ,
            "LANG": "en_US.UTF-8", "LC_ALL": "en_US.UTF-8", "TZ": "UTC",
            "LD_LIBRARY_PATH": str(chromium / "lib"), "FONTCONFIG_FILE": str(fonts),
        }  # fmt: skip
        started = playwright.chromium.launch(
            executable_path=chromium / "chromium", env=environment, timeout=WAIT_MS,
            args=["--headless=shell", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )  # fmt: skip
        yield started
        started.close()


@pytest.fixture(scope="module")
def browser(chromium):
    """Not for the whole session: while it is there this thread counts as one that runs an event loop."""
    with sync_playwright() as playwright, launched(playwright, chromium) as started:
        expect.set_options(timeout=WAIT_MS)
        yield started


@pytest.fixture
def make_page(browser):
    contexts, wrong = [], []

    def make(width: int = 1360, height: int = 860, scheme: str = "light", **options: Any) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-GB",
            timezone_id="UTC", **options,
        )  # fmt: skip
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(POLICY_BROKEN)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda said: wrong.append(said.text) if "POLICY" in said.text else None)
        contexts.append(context)
        return page

    yield make
    for each in contexts:
        each.close()
    assert not wrong, wrong


@pytest.fixture
def page(make_page):
    return make_page()
