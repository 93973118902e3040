"""Twelve questions of a first visitor to the console, each answered from the first page.

Every step of an answer is a click or a filled field on something that the page shows. The table of questions,
steps and seconds is in ``docs/console.md``: the test fails if its steps are others, and writes it if
``GEMINGA_PUBLISH`` is set. A picture of each answer is written to ``GEMINGA_SCREENSHOTS`` if that is set.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from geminga.ids import MessageId, TopicName
from tests.support.modules import module_at

ROOT = Path(__file__).parents[2]
BASE = "persistent://public/default/"
STEPS_MAX = 8
DOCS = ROOT / "docs/console.md"
BEGIN, END = "<!-- questions -->\n\n", "\n<!-- end of questions -->"
MANY = 5_000


class Visitor:
    """A person at the first page; counts what they do."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.steps = 0
        self.table: list[tuple[str, int, float]] = []

    def ask(self, question: str, answer: Callable[[], None]) -> None:
        self.page.goto("about:blank")  # else only the address's fragment changes
        self.page.goto(self.url)
        self.steps, began = 0, time.monotonic()
        answer()
        self.table.append((question, self.steps, time.monotonic() - began))
        folder = os.environ.get("GEMINGA_SCREENSHOTS")
        if folder:
            self.page.screenshot(path=Path(folder, f"question-{len(self.table):02}.png"))

    def click(self, element: Locator) -> None:
        self.steps += 1
        element.click()

    def link(self, name: str | re.Pattern[str]) -> None:
        self.click(self.page.get_by_role("link", name=name).first)

    def button(self, name: str) -> None:
        self.click(self.page.get_by_role("button", name=name, exact=True).first)

    def fill(self, label: str, text: str) -> None:
        self.steps += 1
        self.page.get_by_label(label, exact=True).fill(text)

    def topics(self) -> None:
        self.link("Topics")
        expect(self.page.locator("h1")).to_have_text(re.compile("[0-9] topics"))

    def search(self, text: str) -> None:
        self.steps += 1
        self.page.get_by_label("Search topics").fill(text)

    def choose(self, label: str, value: str) -> None:
        self.steps += 1
        self.page.get_by_label(label, exact=True).select_option(value)

    def reads(self, *texts: str) -> None:
        for each in texts:
            expect(
                self.page.locator("main, dialog").filter(has_text=re.compile(each, re.I)).first
            ).to_be_visible()


@pytest.fixture
def served_day(make_served):
    """Return a console with a working day, half an hour of history and 5,000 more topics."""
    served = make_served()
    draw = module_at("draw_console", ROOT / "tools/draw_console.py")
    entry_bytes = module_at("console_entries", ROOT / "tests/broker/conftest.py").entry_bytes
    scene = draw.Scene(served, entry_bytes)
    served.do(scene.begin)
    harness = served.harness

    def publish(topic: str, count: int, key: str) -> None:
        peer = harness.peer(client="Pulsar-Java-v4.0.4")
        peer.producer(BASE + topic)
        for number in range(count):
            payload = b'{"order": %d, "city": "Bern"}' % number
            peer.send(
                number, entry_bytes(payload, publish_time=1_790_000_000_000 + number, partition_key=key)
            )

    def more() -> None:
        for number in range(MANY):
            harness.actions.create(TopicName.parse(f"{BASE}device-{number:04}"), lambda _error: None)
        harness.poll()
        dead = TopicName.parse(BASE + "flights-lake-DLQ")
        harness.actions.create(dead, lambda _error: None)
        harness.actions.cursors.create(dead, "later", MessageId.earliest, lambda _error: None)
        publish("history", 20, "a")
        publish("history", 20, "customer-7")

    served.do(more)
    for number in range(20):
        served.do(lambda number=number: (scene.step(number), harness.advance(58)))
    return served


def test_twelve_questions_are_answered_from_the_first_page(served_day, make_page):
    page = make_page()
    person = Visitor(page, served_day.url)

    def stuck() -> None:
        person.reads("stopped", "worker-3.* takes no more")

    def consumers() -> None:
        person.topics()
        person.search("flights")
        person.link("public/default/flights")
        person.link("lake")
        person.reads("lake-writer")

    def growing() -> None:
        person.link(re.compile("^sessions"))
        person.reads("growing since [0-9]{2}:[0-9]{2}")

    def inside() -> None:
        person.topics()
        person.search("history")
        person.link("public/default/history")
        person.click(page.get_by_role("button", name=re.compile("^Open ")).first)
        person.reads('"city": "Bern"')

    def find() -> None:
        person.search("ice-4711")
        person.link("public/default/device-4711")
        expect(page.locator("h1")).to_have_text("device-4711")

    def key_between_times() -> None:
        person.search("history")
        person.link("public/default/history")
        person.choose("From", "time")
        person.fill("Time", "2026-09-21T14:13:00")
        person.fill("Until", "2026-09-21T14:14:00")
        person.fill("Key", "customer-7")
        person.button("Search")
        person.reads("20 messages: that is all")

    def changes() -> None:
        person.link("Broker")
        person.click(page.get_by_role("button", name=re.compile("^Changes")))
        person.reads("In the last hour: .* changes", "created the topic, by 10.0.0.1")

    def disk() -> None:
        person.link("Broker")
        person.reads("Disk", "free of|everything is kept in memory")

    def load() -> None:
        person.link("Broker")
        person.reads("Connections", "the most load first|with the most load")

    def holes() -> None:
        person.link(re.compile("^lake"))
        person.reads("155 holes", "skip it: frees", "geminga subscriptions skip")

    def limits() -> None:
        person.topics()
        person.link("public/default/clicks")
        person.link("public/default")
        person.reads("Unacknowledged, a consumer", "50,000", "Publishing|Backlog of a subscription")

    def dead_letters() -> None:
        person.link(re.compile("^lake"))
        person.reads("Dead letters", "Look at them")
        expect(page.get_by_role("button", name="Send dead letters back")).to_be_enabled()

    questions = {
        "What is stuck, and why?": stuck, "Who consumes this topic?": consumers,
        "Is the lag growing, and since when?": growing, "What is in this message?": inside,
        "Find a topic among 5,000": find, "The messages of a key between two times": key_between_times,
        "What changed in the last hour?": changes, "How full is the disk, and when is it full?": disk,
        "Which client causes the load?": load, "What to do about the holes?": holes,
        "What limits does this namespace have?": limits, "How do I send the dead letters back?": dead_letters,
    }  # fmt: skip
    for question, answer in questions.items():
        person.ask(question, answer)
    assert all(steps <= STEPS_MAX for _, steps, _ in person.table)
    before, _, rest = DOCS.read_text().partition(BEGIN)
    published, _, after = rest.partition(END)
    lines = ["| question | steps | seconds |", "|---|---:|---:|"]
    lines += [f"| {question} | {steps} | {seconds:.1f} |" for question, steps, seconds in person.table]
    if os.environ.get("GEMINGA_PUBLISH"):
        DOCS.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)
    else:
        rows = [line.split("|")[1:3] for line in published.splitlines()[2:]]
        assert [(question.strip(), int(steps)) for question, steps in rows] == [
            row[:2] for row in person.table
        ]
