"""Draws the pictures of the console in docs/console/: a scene in virtual time, in the tests' Chromium.

The broker is real, its time is not: so the pictures come out alike, whenever and wherever they are drawn.
They are drawn when what the browser is served has changed since (`DRAWN_FROM` says of what they are), or with
``--always``.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).parent.parent
sys.path[:0] = str(ROOT), str(ROOT / "tests/support")  # for the tests' fixtures
TARGET = ROOT / "docs/console"
DRAWN_FROM = TARGET / "drawn-from.txt"
BASE = "persistent://public/default/"
DEFAULT = "http://localhost:8080"
STEP_SECONDS = 2
STEPS = 24
VIEW = {"width": 1280, "height": 800}


class Scene:
    """A working day: things that move, and some that do not."""

    def __init__(self, served: Any, make_entry: Callable[..., bytes]) -> None:
        self.harness = served.harness
        self.make_entry = make_entry
        self.producers: dict[str, Any] = {}
        self.busy: list[tuple[str, Any]] = []
        self.numbers: dict[str, int] = {}

    def publish(
        self, topic: str, count: int = 1, key: str | None = None, messages: int = 1, **fields: Any
    ) -> None:
        if topic not in self.producers:
            self.producers[topic] = self.harness.peer(client="Pulsar-Java-v4.0.4")
            self.producers[topic].producer(BASE + topic, producer_name=f"{topic.rpartition('-')[2]}-api-1")
        for _ in range(count):
            number = self.numbers[topic] = self.numbers.get(topic, 0) + 1
            payload = json.dumps(
                {"job": 40_000 + number, "plane": f"N{14_000 + number * 7}", "to": "LGA"}
            ).encode()
            entry = self.make_entry(
                payload if messages == 1 else self.batch(payload, messages), publish_time=self.harness.now_ms,
                partition_key=key, num_messages_in_batch=messages if messages > 1 else None, **fields,
            )  # fmt: skip
            self.producers[topic].send(number, entry, messages=messages)

    @staticmethod
    def batch(payload: bytes, messages: int) -> bytes:
        from geminga.wire.batch import encode_plain_batch

        return encode_plain_batch([payload] * messages, 0)

    def subscribe(
        self, topic: str, name: str, kind: str = "Shared", permits: int = 1000, **fields: Any
    ) -> Any:
        peer = self.harness.peer(client="Geminga-v0.1.0")
        peer.subscribe(BASE + topic, name, kind=kind, permits=permits, **fields)
        return peer

    def begin(self) -> None:
        """Make the topics, subscriptions and messages of the pictures."""
        from geminga.ids import MessageId, TopicName

        harness = self.harness
        workers = self.subscribe("resize-images", "workers", permits=200, consumer_name="worker-3")
        self.publish("resize-images", 260)
        workers.messages()
        name = TopicName.parse(BASE + "invoices")
        harness.actions.create(name, lambda _error: None)
        harness.actions.cursors.create(name, "billing", MessageId.earliest, lambda _error: None)
        self.publish("invoices", 37, messages=50)
        self.subscribe("orders", "audit", "Key_Shared", consumer_name="audit-1")
        keys = [f"customer-{number}" for number in range(24)]
        for key in keys:
            self.publish("orders", 1, key)
        self.subscribe("orders", "audit", "Key_Shared", consumer_name="audit-2")
        for key in keys:
            self.publish("orders", 2, key)
        lake = self.subscribe("flights", "lake", consumer_name="lake-writer", permits=100_000)
        self.publish("flights", 3000)
        done = [number for number in range(2400) if number % 131 and not 700 <= number < 760 and number % 17]
        ledger = lake.messages()[0].ledger_id
        lake.ack(*((ledger, number) for number in done))
        reminders = self.subscribe("emails", "reminders", consumer_name="mailer-1")
        self.publish("emails", 12, deliver_at_time=harness.now_ms + 3_600_000)
        reminders.messages()
        for topic, subscription in (
            ("telemetry", "dashboard"),
            ("clicks", "sessions"),
            ("payments", "ledger"),
            ("payments", "public/default/settle"),
            ("clicks", "geminga-mirror.berlin"),
        ):
            self.busy.append((topic, self.subscribe(topic, subscription, consumer_name=f"{subscription}-1")))
        enrich = TopicName.parse(BASE + "orders"), "public/default/enrich"
        harness.actions.cursors.create(*enrich, MessageId.earliest, lambda _error: None)
        previews = TopicName.parse(BASE + "previews")
        harness.actions.create(previews, lambda _error: None)
        harness.actions.cursors.create(previews, "cache", MessageId.earliest, lambda _error: None)
        namespaces = harness.broker.namespaces
        namespaces.set_topic_policy(previews, "message_ttl_in_seconds", 30, lambda _error: None)
        limit = {"destination_storage": {"limitSize": 60_000, "policy": "consumer_backlog_eviction"}}
        namespaces.set_topic_policy(name, "backlog_quota_map", limit, lambda _error: None)
        harness.advance(95)

    def step(self, number: int) -> None:
        for topic, peer in self.busy:
            if topic == "telemetry":
                self.publish(topic, 4 + number % 3, messages=50)
            else:
                self.publish(topic, 6 + number % 5)
            self.take(peer, 0.9 if topic == "clicks" and number % 3 else 1.0)
        self.publish("invoices", 1, messages=30)
        self.publish("previews", 2, messages=10)
        self.harness.advance(STEP_SECONDS)

    @staticmethod
    def take(peer: Any, share: float) -> None:
        messages = peer.messages()
        for each in messages[: round(len(messages) * share)]:
            peer.ack((each.ledger_id, each.entry_id))
        peer.command("flow", consumer_id=1, messagePermits=1000)


def served_digest() -> str:
    """Return a digest of the files that the console serves, and of this file."""
    digest = hashlib.sha256()
    for file in [*sorted((ROOT / "src/geminga/console/static").rglob("*")), Path(__file__)]:
        if file.is_file():
            digest.update(f"{file.name} {len(data := file.read_bytes())}\n".encode() + data)
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--always", action="store_true", help="though nothing has changed")
    given = parser.parse_args(arguments)
    digest = served_digest()
    if not given.always and DRAWN_FROM.exists() and DRAWN_FROM.read_text().strip() == digest:
        print("the pictures are of this console")
        return 0
    from playwright.sync_api import sync_playwright

    from tests.support.modules import module_at

    console = module_at("console_conftest", ROOT / "tests/console/conftest.py")
    fetch = module_at("fetch_chromium", ROOT / "tools/fetch_chromium.py")
    if fetch.main():
        return 1
    if not (fetch.HOME / "chromium").exists():
        print("the pictures of the console stay as they are", file=sys.stderr)
        return 0
    TARGET.mkdir(exist_ok=True)
    served = console.Served()
    try:
        scene = Scene(served, console.harnesses.entry_bytes)
        served.do(scene.begin)
        with sync_playwright() as playwright, console.launched(playwright, fetch.HOME) as browser:
            draw(browser, served, scene)
    finally:
        served.close()
    DRAWN_FROM.write_text(digest + "\n")
    return 0


def forward(url: str, route: Any) -> None:
    """Send a request to this run's address: the pages show the default one."""
    headers = {name: value for name, value in route.request.headers.items() if name != "origin"}
    route.fulfill(response=route.fetch(url=route.request.url.replace(DEFAULT, url), headers=headers))


def draw(browser: Any, served: Any, scene: Scene) -> None:
    lake = f"#/s/{quote(BASE + 'flights', safe='')}/lake"
    topic = f"#/t/{quote(BASE + 'telemetry', safe='')}"
    for name, address, scheme, width, height, at in (
        ("first-page", "", "light", 1280, 800, "tbody tr"),
        ("first-page-dark", "", "dark", 1280, 800, "tbody tr"),
        ("subscription", lake, "light", 1280, 1120, ".findings li"),
        ("topic", topic, "light", 1280, 1240, "#messages .value"),
        ("topics", "#/topics", "light", 1280, 800, "tbody tr a"),
        ("functions", "#/running", "light", 1280, 620, "tbody tr"),
        ("broker", "#/broker", "dark", 1280, 1060, ".facts div"),
        ("phone", "", "light", 390, 800, "tbody tr"),
    ):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-GB",
            timezone_id="UTC",
        )  # fmt: skip
        page = context.new_page()
        page.clock.install(time=served.do(lambda: served.harness.now_ms) / 1000)
        page.route(f"{DEFAULT}/**", functools.partial(forward, served.url))
        page.goto(f"{DEFAULT}/{address}")
        page.locator(at).first.wait_for(timeout=60_000)
        for number in range(STEPS):
            served.do(lambda number=number: scene.step(number))
            with page.expect_response(lambda answer: "/admin/" in answer.url, timeout=60_000):
                page.clock.run_for(STEP_SECONDS * 1000)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=TARGET / f"{name}.png", animations="disabled", scale="css")
        print(f"drew {name}.png", flush=True)
        context.close()


if __name__ == "__main__":
    sys.exit(main())
