"""The console in a real Chromium: what a person sees, finds out and does there."""

import base64
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from google.protobuf import descriptor_pb2, json_format
from playwright.sync_api import expect
from web_port import Port

from geminga.broker.rules.tokens import make_token
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.support.disk_stores import succeeded

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
HOSTILE_TOPIC = "persistent://public/default/<img src=x onerror=alert(1)>"
HOSTILE_SUBSCRIPTION = '"><script>alert(2)</script>'


def subscription_url(served: Any, topic: str = TOPIC, subscription: str = "s") -> str:
    return f"{served.url}/#/s/{quote(topic, safe='')}/{quote(subscription, safe='')}"


def topic_url(served: Any, topic: str = TOPIC) -> str:
    return f"{served.url}/#/t/{quote(topic, safe='')}"


class Story:
    """A topic with a producer and consumers, controlled on the broker's thread."""

    def __init__(self, served: Any) -> None:
        self.served = served
        self.harness = served.harness
        self._producer: Any = None

    def do(self, function: Callable[[], Any]) -> Any:
        return self.served.do(function)

    def publish(self, count: int = 1, payload: bytes = b"x" * 50, **fields: Any) -> None:
        def publish() -> None:
            if self._producer is None:
                self._producer = self.harness.peer()
                self._producer.producer(TOPIC)
            fields.setdefault("publish_time", self.harness.now_ms)
            for number in range(count):
                self._producer.send(
                    number, _entry(payload, **fields), messages=fields.get("num_messages_in_batch", 1)
                )

        self.do(publish)

    def subscribe(self, kind: str = "Shared", permits: int = 100, **fields: Any) -> Any:
        def subscribe() -> Any:
            peer = self.harness.peer()
            peer.subscribe(TOPIC, kind=kind, permits=permits, **fields)
            return peer

        return self.do(subscribe)

    def create(self, topic: str = TOPIC, subscription: str = "s") -> None:
        self.served.create(topic, subscription)

    def advance(self, seconds: float) -> None:
        self.do(lambda: self.harness.advance(seconds))

    def policy(self, name: str, value: Any) -> None:
        self.do(
            lambda: (
                self.harness.broker.namespaces.set_topic_policy(NAME, name, value, succeeded),
                self.harness.poll(),
            )
        )

    @property
    def found(self) -> tuple[Any, Any]:
        return self.harness.actions.cursors.found(NAME, "s")


def _entry(payload: bytes, **fields: Any) -> bytes:
    return sys.modules["console_harness"].entry_bytes(payload, **fields)


@pytest.fixture
def story(served):
    return Story(served)


# --- reasons why no messages arrive: one cause of each level; tests/broker/admin/test_explain.py has all ---
def hole(story: Story) -> None:
    peer = story.subscribe()
    story.publish(6)
    story.do(lambda: peer.ack((0, 0), (0, 2), (0, 3)))
    story.advance(40)


def paused(story: Story) -> None:
    story.subscribe(permits=2, consumer_name="worker-3")
    story.publish(5)
    story.advance(45)


def quota(story: Story) -> None:
    story.create()
    limit = {"destination_storage": {"limitSize": 100, "policy": "producer_request_hold"}}
    story.policy("backlog_quota_map", limit)
    story.publish(5)
    story.advance(30)


def fenced(story: Story) -> None:
    story.create()
    story.publish(1)
    story.do(lambda: setattr(story.found[1], "fenced", True))


def idle(story: Story) -> None:
    story.create()
    story.publish(7)
    story.advance(120)


CASES = [
    (hole, "hole", "message 0:1 is not acknowledged although 2 later ones are", "watch"),
    (paused, "paused", "worker-3.* holds 2 unacknowledged messages .* takes no more", "stopped"),
    (idle, "nobody-connected", "no consumer is connected, and nothing is published", "quiet"),
    (quota, "quota", "producers are stopped: backlog quota exceeded", "stopped"),
    (fenced, "fenced", "is being reset or deleted", "stopped"),
]


@pytest.mark.parametrize(
    ("tell", "kind", "sentence", "level"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_a_stuck_subscription_is_explained(story, page, tell, kind, sentence, level):
    """One click leads from the first page to the cause and its advice."""
    tell(story)
    page.goto(story.served.url)
    row = page.locator("tbody tr").filter(has=page.get_by_text("s", exact=True))
    expect(row).to_have_class(re.compile(level))
    expect(row.locator(".sentence")).to_have_text(re.compile(sentence, re.I))
    row.locator("a.row").click()
    expect(page.locator("h1")).to_have_text("s")
    expect(page.locator(f"[data-kind={kind}]").first).to_contain_text(re.compile(sentence, re.I))


# --- hostile names and payloads ---
def test_hostile_names_and_payloads_are_shown_as_text(story, page):
    """Markup in a topic's name or in a message is shown as text and never executed."""
    story.create(HOSTILE_TOPIC, HOSTILE_SUBSCRIPTION)

    def publish() -> None:
        peer = story.harness.peer()
        peer.producer(HOSTILE_TOPIC, producer_name="<b>producer</b>")
        for number in range(3):
            peer.send(
                number,
                _entry(b"<img src=x onerror=alert(3)><script>alert(4)</script>", partition_key="<i>key</i>"),
            )

    story.do(publish)
    page.goto(story.served.url)
    expect(page.locator("tbody tr:not(.skeleton)")).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.locator("tbody .subscription")).to_have_text(HOSTILE_SUBSCRIPTION)
    page.locator("a.row").click()
    expect(page.locator("h1")).to_have_text(HOSTILE_SUBSCRIPTION)
    page.get_by_role("button", name="Peek").click()
    expect(page.locator("dialog .value").first).to_contain_text("<script>alert(4)</script>")
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    expect(page.locator("#messages .value").first).to_contain_text("<img src=x onerror=alert(3)>")
    expect(page.locator("#messages .meta").first).to_contain_text("<i>key</i>")
    expect(page.get_by_text("<b>producer</b>").first).to_be_visible()
    assert page.locator("main img, main script, main b > b, main i > i").count() == 0


def test_an_unknown_address_says_so(served, page):
    for rubbish in (
        "#/s/%E0%A4%A",
        "#/javascript:alert(1)",
        "#/t/",
        "#//evil",
        "#/s/a/b/c/d",
        "#/constructor",
        "#/topics/x",
    ):
        page.goto(f"{served.url}/{rubbish}")
        page.reload()
        expect(page.locator("main")).to_contain_text("No such page.")
        page.get_by_role("link", name="Subscriptions").click()
        expect(page.locator("h1")).to_have_text("No subscriptions yet.")


def test_a_dialog_closes_when_the_page_changes(create, served, page):
    create("t")
    page.goto(f"{served.url}/#/t/{quote('persistent://public/default/t', safe='')}")
    page.get_by_role("button", name="Publish a message").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.goto(f"{served.url}/#/topics")
    expect(page.locator("h1")).to_have_text("1 topic")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("name", ["..", "."])
def test_names_with_dot_segments_are_never_requested(story, page, name):
    """Browsers resolve such a name as a path step: an action would affect another resource."""
    story.create(TOPIC, name)
    page.goto(story.served.url)
    expect(page.locator("tbody .subscription")).to_have_text(name)
    before = len(story.served.requests)
    page.locator("a.row").click()
    expect(page.locator(".refused")).to_contain_text("cannot be used in a browser's URL")
    assert not [each for each in story.served.requests[before:] if "subscription/" in each]
    page.goto(topic_url(story.served, f"persistent://public/default/{name}"))
    expect(page.locator(".refused")).to_contain_text("cannot be used in a browser's URL")


# --- doing something about it ---
def test_an_action_previews_its_effect_and_has_it(story, page):
    story.create()
    story.publish(9)
    page.goto(subscription_url(story.served))
    page.locator("[data-action=skip]").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("How many messages").fill("4")
    expect(dialog.locator(".preview")).to_contain_text("4 messages are skipped for good by this subscription")
    expect(dialog.locator(".preview")).to_contain_text("5 messages stay")
    assert story.do(lambda: story.found[1].backlog) == 9, "nothing is done before it is said"
    dialog.get_by_role("button", name="Cancel").click()
    assert story.do(lambda: story.found[1].backlog) == 9
    page.locator("[data-action=skip]").click()
    page.locator("dialog").get_by_label("How many messages").fill("4")
    expect(page.locator("dialog .preview")).to_contain_text("4 messages are skipped")
    page.locator("dialog").get_by_role("button", name="Skip messages").click()
    expect(page.locator(".toast")).to_contain_text("Done")
    assert story.do(lambda: story.found[1].backlog) == 5


def test_a_subscription_is_reset_and_messages_are_redelivered(story, page):
    peer = story.subscribe(consumer_name="c")
    story.publish(4)
    story.do(lambda: peer.ack((0, 0), (0, 1)))
    page.goto(subscription_url(story.served))
    page.locator("[data-action=redeliver]").click()
    expect(page.locator("dialog .preview")).to_contain_text("2 messages that 1 consumer hold unacknowledged")
    story.do(peer.messages)
    page.locator("dialog").get_by_role("button", name="Redeliver").click()
    expect(page.locator(".toast")).to_contain_text("Done")
    assert len(story.do(peer.messages)) == 2
    page.locator("[data-action=reset]").click()
    page.locator("dialog").get_by_label("Where to").select_option("earliest")
    expect(page.locator("dialog .preview")).to_contain_text(
        "2 messages that were acknowledged are redelivered"
    )
    page.locator("dialog").get_by_role("button", name="Reset").click()
    expect(page.locator(".toast").filter(has_text="reset position")).to_contain_text("Done")
    assert story.do(lambda: story.found[1].backlog) == 4


def test_a_reset_goes_to_the_previewed_position(story, page):
    """ "An hour ago" means a later time after the preview was read."""
    story.subscribe(consumer_name="c")
    story.publish(1)
    page.goto(subscription_url(story.served))
    page.locator("[data-action=reset]").click()
    dialog = page.locator("dialog")
    # An earlier preview, of the default value, may be requested too.
    with page.expect_response(lambda answer: _is_two_hours_ago(answer.url)) as previewed:
        dialog.get_by_label("How long", exact=True).fill("2")
    expect(dialog.locator(".preview")).to_contain_text("starts at", ignore_case=True)
    expect(dialog.get_by_role("button", name="Reset")).to_be_enabled()
    page.evaluate("() => { const now = Date.now; Date.now = () => now() + 600_000; }")
    with page.expect_request(re.compile("/resetcursor/")) as done:
        dialog.get_by_role("button", name="Reset").click()
    said = re.search(r"timestamp=(\d+)", previewed.value.url)
    assert done.value.url.endswith(f"/resetcursor/{said[1]}")


def test_what_a_hidden_field_of_a_dialog_holds_does_not_matter(story, page):
    story.subscribe(consumer_name="c")
    page.goto(subscription_url(story.served))
    page.locator("[data-action=reset]").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("How long", exact=True).fill("")
    expect(dialog.get_by_role("button", name="Reset")).to_be_disabled()
    dialog.get_by_label("Where to").select_option("latest")
    expect(dialog.get_by_role("button", name="Reset")).to_be_enabled()


def _is_two_hours_ago(url: str) -> bool:
    said = re.search(r"/preview/reset.*timestamp=(\d+)", url)
    return said is not None and time.time() - int(said[1]) / 1000 > 1.5 * 3600


def test_the_map_of_ack_holes_leads_to_a_single_message(story, page):
    peer = story.subscribe()
    story.publish(600)
    story.do(lambda: peer.ack(*((0, entry) for entry in range(600) if entry not in (3, 300))))
    page.goto(subscription_url(story.served))
    strip = page.locator(".map .strip")
    expect(strip).to_have_attribute("aria-label", re.compile("of 600 entries: 1 hole, 595|2 holes"))
    page.get_by_role("button", name="Oldest unacknowledged").click()
    expect(strip).to_have_attribute("aria-label", re.compile("200 of 600 entries"))
    strip.focus()
    for _ in range(3):
        page.keyboard.press("+")
    expect(strip).to_have_attribute("aria-label", re.compile("25 of 600"))
    page.keyboard.press("0")
    expect(strip).to_have_attribute("aria-label", re.compile("600 of 600"))
    page.get_by_role("button", name="Oldest unacknowledged").click()
    expect(strip).to_have_attribute("aria-label", re.compile("200 of 600"))
    box = strip.bounding_box()
    strip.click(position={"x": 3.5 / 200 * box["width"], "y": 20})
    expect(page.locator(".chosen")).to_contain_text("0:3: open")
    page.get_by_role("button", name="Skip it").click()
    page.locator("dialog").get_by_role("button", name="Skip it").click()
    expect(page.locator(".toast")).to_contain_text("0:3 is skipped")
    assert story.do(lambda: story.found[1].cursor.mark) == 300


# --- topics and the broker ---
def test_the_tail_follows_filters_and_decodes(story, page):
    story.create()
    story.publish(1, b"the first")
    page.goto(topic_url(story.served))
    page.get_by_label("From", exact=True).select_option("live")
    values = page.locator("#messages .value")
    expect(values).to_have_text(["the first"])
    story.publish(1, b'{"plane": "N14228"}')
    expect(values).to_have_text(['{"plane": "N14228"}', "the first"])
    page.get_by_label("Text in payload").fill("N14")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Search").click()
    expect(values).to_have_text(['{"plane": "N14228"}'])
    story.publish(3, b"nothing of the kind")
    story.publish(1, b"N14 again")
    expect(values).to_have_text(["N14 again", '{"plane": "N14228"}'])
    page.get_by_role("button", name="Pause").click()
    story.publish(1, b"N14 unseen")
    expect(page.get_by_role("button", name="Search")).to_be_visible()
    expect(values).to_have_count(2)


def test_values_are_read_by_their_schema(story, page):
    story.create()
    definition = (
        '{"type":"record","name":"Flight","fields":[{"name":"plane","type":["null","string"]},'
        '{"name":"delay","type":"int"},{"name":"legs","type":{"type":"array","items":"long"}}]}'
    )

    page.goto(story.served.url)
    answer = page.request.post(
        f"{story.served.url}/admin/v2/schemas/public/default/t/schema",
        data={"type": "AVRO", "schema": definition, "properties": {}},
    )
    assert answer.ok, answer.text()
    story.publish(1, b"\x02\x0cN14228\x15\x04\x02\x80\x01\x00", schema_version=(0).to_bytes(8, "big"))
    page.goto(topic_url(story.served))
    expect(page.locator("#messages .value")).to_contain_text('"plane": "N14228"')
    expect(page.locator("#messages .value")).to_contain_text('"delay": -11')
    expect(page.get_by_text("AVRO")).to_be_visible()


@pytest.mark.parametrize("spoil", [False, True])
def test_protobuf_is_read_by_its_descriptors(served, page, spoil):
    """A message encoded by Google's library is shown as that library prints it."""
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    asked = command.subscribe
    asked.topic, asked.subscription, asked.subType = "N14228 ✈", "", pb.CommandSubscribe.Key_Shared
    asked.consumer_id, asked.request_id, asked.durable = (1 << 64) - 1, 1 << 53, False
    start = pb.MessageIdData(ledgerId=7, entryId=1 << 60, partition=-1, ack_set=[-1, 5, 1 << 40])
    asked.start_message_id.CopyFrom(start)
    asked.metadata.add(key="plane", value="N14228")
    asked.metadata.add(key="", value="x")
    files = descriptor_pb2.FileDescriptorSet()
    pb.DESCRIPTOR.CopyToProto(files.file.add())
    schema = {
        "type": "PROTOBUF_NATIVE",
        "data": json.dumps(
            {
                "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
                "rootMessageTypeName": pb.BaseCommand.DESCRIPTOR.full_name,
            }
        ),
    }
    data = command.SerializeToString()
    page.goto(served.url)
    shown = page.evaluate(
        """async ([data, schema]) => {
            const { bytesOf, decode } = await import("/console/decode.js");
            return decode(bytesOf(data), schema, false);
        }""",
        [base64.b64encode(data[:-3] if spoil else data).decode(), schema],
    )
    if spoil:
        assert "does not match the schema: the payload is truncated" in shown
        return
    wanted = json_format.MessageToDict(command, preserving_proto_field_name=True)
    assert json.dumps(_as_text(json.loads(shown)), sort_keys=True) == json.dumps(
        _as_text(wanted), sort_keys=True
    )


def _as_text(value: Any) -> Any:
    """Large numbers are texts to JSON, here and there."""
    if isinstance(value, dict):
        return {name: _as_text(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_text(each) for each in value]
    return str(value)


def test_producers_show_batch_fill_and_advice(story, page):
    story.create()
    for _ in range(4):
        story.publish(500)
        story.advance(1)
    page.goto(topic_url(story.served))
    expect(page.get_by_text("batches could be fuller")).to_be_visible()
    expect(page.locator(".sentence").filter(has_text="an entry holds 1 message".capitalize())).to_be_visible()


def test_the_broker_page_lists_automatic_actions(story, page):
    story.create()
    story.policy("message_ttl_in_seconds", 10)
    story.publish(3)
    story.advance(120)
    page.goto(f"{story.served.url}/#/broker")
    log = page.locator(".log li")
    page.get_by_role("button", name="Automatic actions").click()
    expect(log).to_contain_text("3 entries")
    expect(log).to_contain_text("older than the time to live of 10 s")
    expect(page.get_by_text("None: everything is kept in memory.")).to_be_visible()


# --- the first page as a page ---
def test_every_control_works_by_keyboard(story, page):
    for name in ("alpha", "beta", "gamma"):
        story.create(f"persistent://public/default/{name}", "s")
    page.goto(story.served.url)
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("beta")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile("search=beta"))
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".crumbs")).to_contain_text("beta")
    page.keyboard.press("Escape")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("next and previous row")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("b")
    expect(page.get_by_role("heading", name="Events")).to_be_visible()


def test_the_growth_of_a_backlog_compares_figures_of_one_unit_by_the_brokers_clock(story, page):
    """A backlog is in entries while its topic is not in memory, and in messages once it is loaded. The page
    begins with what it showed last, which may be long ago."""
    story.create()
    story.publish(3, num_messages_in_batch=10)
    story.do(lambda: story.harness.actions.unload(NAME))
    page.goto(story.served.url)
    row = page.locator("tbody tr").filter(has=page.get_by_text("s", exact=True))
    expect(row).to_contain_text("3 entries")
    story.advance(10)
    story.do(lambda: story.harness.broker.topics.find(NAME))
    expect(row.locator("td.backlog b")).to_have_text("30")
    assert row.locator(".growth").inner_text() == ""
    story.do(lambda: story.harness.peer().producer(TOPIC))
    page.goto(f"{story.served.url}/#/broker")
    expect(page.get_by_role("heading", name="Events")).to_be_visible()
    story.advance(100)
    story._producer = None
    story.publish(50)
    page.go_back()
    expect(row.locator("td.backlog b")).to_have_text("80")
    assert row.locator(".growth").inner_text() == "+0.5/s"


def test_many_subscriptions_are_shown_in_pages(story, page):
    for number in range(60):
        story.create(f"persistent://public/default/t-{number:03}", "s")
    page.goto(story.served.url)
    expect(page.locator("tbody tr")).to_have_count(50)
    expect(page.locator(".pager")).to_contain_text("1 to 50 of 60")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("tbody tr")).to_have_count(10)
    page.get_by_role("button", name="Subscription", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(50)
    expect(page.locator("th[aria-sort]")).to_have_text("Subscription")


def test_a_hidden_page_sends_no_requests(story, page):
    story.create()
    page.clock.install()
    page.goto(story.served.url)
    expect(page.locator("tbody tr")).to_have_count(1)
    asked = len(story.served.requests)
    while len(story.served.requests) == asked:  # the page's clock is ours, its network's is not
        page.clock.run_for(2_000)
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    page.clock.run_for(10_000)
    before = len(story.served.requests)
    page.clock.run_for(600_000)
    assert len(story.served.requests) <= before + 1, "one may have been under way"


def test_a_stopped_broker_is_reported_until_it_answers_again(story, page):
    story.create()
    page.clock.install()
    page.goto(story.served.url)
    expect(page.locator("tbody tr")).to_have_count(1)
    page.route("**/admin/**", lambda route: route.abort())
    while not page.locator("#offline").is_visible():  # the page's clock is ours, its network's is not
        page.clock.run_for(2_000)
    expect(page.locator("#offline")).to_contain_text("does not answer")
    expect(page.locator("h1")).to_have_text("The broker does not answer.")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.unroute("**/admin/**")
    while page.locator("#offline").is_visible():
        page.clock.run_for(10_000)


def test_a_refusal_without_json_shows_its_words_and_no_page(served, page):
    """A proxy's, for example."""
    for body, shown in (("blocked by rule 7", "blocked by rule 7"), ("<html>no</html>", "403 Forbidden")):
        page.route("**/admin/**", lambda route, _, body=body: route.fulfill(status=403, body=body))
        page.goto("about:blank")
        page.goto(topic_url(served))
        expect(page.get_by_role("alert")).to_contain_text(shown)


@pytest.mark.parametrize("kind", ["topic", "subscription"])
def test_a_page_of_a_missing_topic_shows_only_the_error(served, page, kind):
    page.goto(topic_url(served) if kind == "topic" else subscription_url(served))
    expect(page.get_by_role("alert")).to_contain_text("not found")
    expect(page.locator(".facts, .panel").filter(visible=True)).to_have_count(0)


# --- permissions ---
def test_a_role_without_the_right_sees_the_refusal_and_no_panels(make_served, page):
    key = os.urandom(32)
    served = make_served(token_secret_key="data:;base64," + base64.b64encode(key).decode())
    page.goto(f"{served.url}/#/broker")
    page.get_by_label("Token").fill(make_token("viewer", key, "HS256"))
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("alert").filter(visible=True)).to_contain_text("viewer")
    expect(page.get_by_text("no message expired")).to_be_hidden()


def test_a_token_is_requested_and_not_stored(make_served, page):
    key = os.urandom(32)
    secret = "data:;base64," + base64.b64encode(key).decode()
    served = make_served(token_secret_key=secret, super_user_roles=("admin",))
    token = make_token("admin", key, "HS256")
    page.goto(served.url)
    page.get_by_label("Token").fill("rubbish")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".refused")).to_be_visible()
    expect(page.locator(".refused")).not_to_contain_text("Error")
    page.get_by_role("button", name="Cancel").click()
    asked = len(served.requests)
    while len(served.requests) < asked + 2:
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("dialog")).to_have_count(0)
    page.get_by_role("button", name="Give a token").click()
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("h1")).to_have_text("No subscriptions yet.")
    page.get_by_role("link", name="Broker").click()
    expect(page.get_by_role("heading", name="Events")).to_be_visible()
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert token not in kept
    assert token not in page.url
    assert all(token not in each for each in served.requests)
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


# --- brokers elsewhere ---
def test_an_apache_pulsar_is_shown_with_its_statistics(page):
    """The same pages over what is derived: nothing that Apache Pulsar does not tell leaves a hole in them."""
    remote = importlib.import_module("console_remote")
    apache = Port(remote.Apache().application)
    console = Port(lambda: remote.elsewhere(apache.url))
    try:
        page.goto(console.url)
        expect(page.locator("h1")).to_have_text("2 are stopped.")
        expect(page.locator(".chip.stopped")).to_have_text("Stopped and growing2")
        row = page.locator("tbody tr").filter(has_text="stuck")
        expect(row.locator(".sentence")).to_contain_text("takes no more")
        row.locator("a.row").click()
        expect(page.locator(".strip")).to_have_attribute(
            "aria-label", re.compile("10 of 10 entries: 2 holes")
        )
        expect(page.locator("[data-kind=paused]")).to_be_visible()
        page.keyboard.press("t")
        expect(page.locator("#messages .value").first).to_have_text("b")
        page.get_by_role("link", name="Broker").click()
        expect(page.locator(".sentence")).to_contain_text("Apache Pulsar 4.0.4")
    finally:
        console.close()
        apache.close()
