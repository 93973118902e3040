"""The console's topics, their messages and policies, in a real Chromium."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from web_port import Port

import geminga
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.broker.settings import BrokerSettings
from geminga.client.cluster import Cluster
from geminga.console.remote import Remote, make_application
from geminga.console.site import attach
from geminga.ids import TopicName
from tests.support.disk_stores import succeeded

BASE = "persistent://public/default/"


def entry_bytes(payload: bytes, **fields: Any) -> bytes:
    return sys.modules["console_harness"].entry_bytes(payload, **fields)


def topic_url(served: Any, name: str) -> str:
    return f"{served.url}/#/t/{quote(BASE + name, safe='')}"


@pytest.fixture
def publish(served):
    def publish(name: str, *payloads: bytes, **fields: Any) -> None:
        def send() -> None:
            peer = served.harness.peer(client="Pulsar-Java-v4.0.4")
            peer.producer(BASE + name, producer_name="api" if "-partition-" in name else None)
            for number, payload in enumerate(payloads):
                fields.setdefault("publish_time", served.harness.now_ms)
                peer.send(number, entry_bytes(payload, **fields))

        served.do(send)

    return publish


# --- the list ---
def test_a_topic_without_subscriptions_is_found(create, served, page):
    create("lonely")
    create("busy", "s")
    page.goto(served.url)
    page.keyboard.press("/")
    page.keyboard.type("LONE")
    expect(page.locator(".also")).to_contain_text("1 topic: public/default/lonely")
    page.get_by_role("link", name="Topics").click()
    expect(page.locator("tbody tr a.row")).to_have_text(["public/default/busy", "public/default/lonely"])
    page.locator("a.row", has_text="lonely").click()
    expect(page.locator("h1")).to_have_text("lonely")
    expect(page.get_by_text("There is no subscription")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_have_text("2 topics")


def test_topics_are_found_by_part_of_their_name_and_namespace(create, served, page):
    for number in range(60):
        create(f"orders-{number:02}")
    for path in ("namespaces/public/other", "persistent/public/other/elsewhere"):
        assert page.request.put(f"{served.url}/admin/v2/{path}").ok
    page.goto(f"{served.url}/#/topics")
    expect(page.locator(".pager")).to_contain_text("1 to 50 of 61")
    page.get_by_label("Namespace").select_option("public/other")
    expect(page.locator("tbody tr a.row")).to_have_text(["public/other/elsewhere"])
    expect(page).to_have_url(re.compile("namespace=public"))
    page.get_by_label("Namespace").select_option("")
    page.get_by_label("Search topics").fill("ers-07")
    expect(page.locator("tbody tr a.row")).to_have_text(["public/default/orders-07"])


def test_a_topic_is_created_with_partitions(served, page):
    page.goto(f"{served.url}/#/topics")
    page.get_by_role("button", name="Create a topic").click()
    page.get_by_label("Tenant, namespace and name").fill("public/default/new")
    page.get_by_label("Partitions").fill("3")
    expect(page.locator("dialog code")).to_have_text(
        f"geminga topics create public/default/new --partitions 3 --admin-url {served.url}"
    )
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("h1")).to_have_text("new")
    assert served.do(lambda: served.harness.actions.partitions(TopicName.parse(BASE + "new"))) == 3


def test_marks_name_dead_letters_and_schemas(create, served, page):
    create("orders-audit-DLQ")
    page.goto(f"{served.url}/#/topics")
    answer = page.request.post(
        f"{served.url}/admin/v2/schemas/public/default/orders-audit-DLQ/schema",
        data={"type": "STRING", "schema": "", "properties": {}},
    )
    assert answer.ok
    row = page.locator("tbody tr")
    expect(row).to_contain_text("dead letters")
    expect(row.locator("td.schema")).to_have_text(re.compile("string", re.I))


def test_rows_stay_in_place_under_the_pointer(create, publish, served, page):
    for name in ("a", "b", "c"):
        create(name, "s")
    publish("a", b"x")
    page.goto(served.url)
    expect(page.locator("tbody tr a.row .topic").first).to_have_text("public/default/a")
    page.locator("tbody tr").nth(1).hover()
    publish("c", *[b"x"] * 9)
    expect(page.locator("tbody tr", has_text="default/c").locator("td.backlog b")).to_have_text("9")
    expect(page.locator("tbody tr a.row .topic").first).to_have_text("public/default/a")
    page.mouse.move(5, 5)
    expect(page.locator("tbody tr a.row .topic").first).to_have_text("public/default/c")


# --- a partitioned topic is one topic ---
def test_a_partitioned_topic_is_one_topic(create, publish, served, page):
    create("sensors", partitions=6)

    def consume() -> None:
        for index in range(6):
            for number in range(2):
                peer = served.harness.peer()
                topic = f"{BASE}sensors-partition-{index}"
                peer.subscribe(topic, "store", kind="Shared", consumer_name=f"store-{number}")

    served.do(consume)
    for index in range(6):
        publish(f"sensors-partition-{index}", b"p%d" % index, publish_time=served.harness.now_ms + index)
    page.goto(topic_url(served, "sensors"))
    producers = page.locator(".panel", has=page.get_by_role("heading", name="Producers"))
    expect(producers.locator("tbody tr")).to_have_count(1)
    expect(producers.locator("tbody tr")).to_contain_text("6 of 6")
    subscriptions = page.locator(".panel", has=page.get_by_role("heading", name="Subscriptions", exact=True))
    expect(subscriptions.locator("tbody tr")).to_contain_text("2 Shared")
    expect(page.locator("#messages .value")).to_have_text([f"p{index}" for index in reversed(range(6))])
    page.get_by_label("Partition", exact=True).select_option("2")
    expect(page.locator("#messages .value")).to_have_text(["p2"])
    expect(page).to_have_url(re.compile("partition=2"))
    subscriptions.locator("a.row").click()
    consumers = page.locator(".panel", has=page.get_by_role("heading", name="Consumers"))
    expect(consumers.locator("tbody tr")).to_have_count(2)
    expect(consumers.locator("tbody tr").first).to_contain_text("6 of 6 partitions")
    page.goto(served.url)
    expect(page.locator("tbody td.consumers")).to_have_text("2 Shared")


# --- messages ---
def test_messages_are_browsed_from_either_end(create, publish, served, page):
    create("t")
    publish("t", *[b"m%d" % number for number in range(120)])
    page.goto(topic_url(served, "t"))
    values = page.locator("#messages .value")
    expect(values).to_have_text([f"m{number}" for number in range(119, 69, -1)])
    page.get_by_role("button", name="Older").click()
    expect(values).to_have_count(100)
    page.get_by_role("button", name="Older").click()
    expect(values).to_have_count(120)
    expect(page.locator("#messages")).to_contain_text("120 messages: that is all")
    page.get_by_label("From", exact=True).select_option("earliest")
    expect(values.first).to_have_text("m0")
    expect(values).to_have_count(50)
    page.get_by_role("button", name="Newer").click()
    expect(values.nth(99)).to_have_text("m99")


def test_the_filter_is_in_the_address(create, publish, served, page):
    create("t")
    for number in range(6):
        publish("t", b"m%d" % number, partition_key="ab"[number % 2])
    page.goto(topic_url(served, "t"))
    page.get_by_label("Key", exact=True).fill("b")
    page.get_by_role("button", name="Search").click()
    values = page.locator("#messages .value")
    expect(values).to_have_text(["m5", "m3", "m1"])
    expect(page).to_have_url(re.compile("key=b"))
    page.reload()
    expect(values).to_have_text(["m5", "m3", "m1"])
    expect(page.get_by_label("Key", exact=True)).to_have_value("b")


def test_messages_between_two_times(create, publish, served, page):
    create("t")
    start = 1_790_000_000_000  # 2026-09-21 14:13:20 UTC
    for number in range(6):
        publish("t", b"m%d" % number, publish_time=start + number * 60_000, partition_key="ab"[number % 2])
    page.goto(topic_url(served, "t"))
    page.get_by_label("From", exact=True).select_option("time")
    page.get_by_label("Time", exact=True).fill("2026-09-21T14:14:00")
    page.get_by_label("Until").fill("2026-09-21T14:18:00")
    page.get_by_label("Key", exact=True).fill("b")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#messages .value")).to_have_text(["m1", "m3"])


def test_messages_are_chosen_by_the_fields_of_their_values(create, publish, served, page):
    create("t")
    for number in range(120):
        publish(
            "t", b'{"order": {"city": "%s"}, "amount": %d}' % ((b"Bern", b"New York")[number % 2], number)
        )
    publish("t", b"no JSON")
    page.goto(topic_url(served, "t"))
    said = page.locator("#messages p.progress")
    conditions = page.get_by_label("Conditions on fields")
    for text, answer in (
        ('order.city="New York" amount>=115', "3 messages: that is all."),
        ("order.city~York amount<4", "2 messages: that is all."),
        ("amount=9 order.city!=Bern", "1 message: that is all."),
        ("amount=9 or amount=10 and order.city=Bern", "2 messages: that is all."),
        ('(amount=9 or amount=10) and not order.city="New York"', "1 message: that is all."),
        ("amount<4 not (amount=1 or not order.city~York)", "1 message: that is all."),
        ("(amount=1", "Write conditions on fields"),
        ("amount=1 or", "Write conditions on fields"),
        ("amount=1)", "Write conditions on fields"),
        ("order.country=CH", "No message matches; 121 entries were searched."),
        ("amount >", "Write conditions on fields, such as city~Be"),
    ):
        conditions.fill(text)
        page.get_by_role("button", name="Search").click()
        expect(said).to_contain_text(answer)
    conditions.fill("amount=7")
    page.get_by_role("button", name="Search").click()
    page.reload()
    expect(page.locator("#messages .value")).to_have_text('{"order": {"city": "New York"}, "amount": 7}')


def test_a_long_search_shows_progress_and_stops(create, publish, served, page):
    create("t")
    publish("t", *[b"x"] * 10)
    left = 5_000

    def slow(route: Any) -> None:
        nonlocal left
        left -= 100
        found = {"messages": [], "next": "0:1", "examined": 100, "left": left}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(found))

    page.route("**/messages?*", slow)
    page.goto(topic_url(served, "t"))
    expect(page.locator("#messages progress")).to_be_visible()
    expect(page.locator("#messages")).to_contain_text("to go")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#messages")).to_contain_text("Stopped: 0 messages so far")
    expect(page.get_by_role("button", name="Search")).to_be_visible()


def test_a_message_opens_in_three_forms(create, publish, served, page):
    create("t")
    publish("t", b'{"plane": "N14228"}')
    page.goto(topic_url(served, "t"))
    page.get_by_role("button", name="Open 0:0").click()
    shown = page.locator("dialog pre")
    expect(shown).to_have_text('{"plane": "N14228"}')
    page.get_by_role("button", name="JSON").click()
    expect(shown).to_have_text(re.compile(r'\{\s+"plane": "N14228"\s+\}'))
    page.get_by_role("button", name="Hexadecimal").click()
    expect(shown).to_contain_text("00000000  7b 22 70 6c 61 6e 65 22")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.path().read_bytes() == b'{"plane": "N14228"}'


@pytest.fixture
def broker():
    """A broker with all its ports: what is published goes through its own client."""
    with EmbeddedBroker(BrokerSettings(memory=True, port=0, web_port=0), site=attach) as running:
        yield running


def test_a_message_is_published(broker, page):
    with broker.client() as client:
        client.subscribe("t", "s").close()
    page.goto(f"{broker.admin_url}/#/t/{quote(BASE + 't', safe='')}")
    page.get_by_role("button", name="Publish a message").click()
    page.get_by_label("Value (JSON").fill("it's here")
    page.get_by_label("Key (may be empty)").fill("k")
    page.get_by_label("Properties, NAME").fill("trace=a=b")
    code = page.locator("dialog code")
    expect(code).to_contain_text("geminga produce public/default/t")
    expect(code).to_contain_text("--key k -p trace=a=b")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("Stored as")
    expect(page.locator("#messages .value")).to_have_text("it's here")
    expect(page.locator("#messages .meta")).to_contain_text("trace = a=b")
    page.get_by_role("button", name="Open ").click()
    page.get_by_role("button", name="Publish again").click()
    expect(page.get_by_label("Value (JSON")).to_have_value("it's here")
    expect(page.get_by_label("Properties, NAME")).to_have_value("trace=a=b")
    page.get_by_label("Properties, NAME").fill("trace")
    expect(page.locator("dialog .refused")).to_have_text("“trace” is not NAME=VALUE.")


def test_a_message_is_encoded_by_the_topics_schema(broker, page):
    fields = [{"name": "id", "type": "long"}, {"name": "city", "type": "string"}]
    definition = {"type": "record", "name": "Order", "fields": fields}
    with broker.client() as client:
        schema = geminga.schema.AvroSchema(None, definition)
        consumer = client.subscribe("orders", "s", schema=schema)
        page.goto(f"{broker.admin_url}/#/t/{quote(BASE + 'orders', safe='')}")
        page.get_by_role("button", name="Publish a message").click()
        preview = page.locator("dialog .preview")
        expect(preview).to_contain_text("the value must be JSON (AVRO schema)")
        page.get_by_label("Value (JSON").fill('{"id": "x", "city": "Bern"}')
        expect(preview).to_have_text('Order.id="x" is not allowed; allowed: long')
        expect(page.get_by_role("button", name="Publish", exact=True)).to_be_disabled()
        page.get_by_label("Value (JSON").fill('{"id": 7, "city": "Bern"}')
        expect(preview).to_contain_text("Stores one message, encoded by the topic's schema (avro)")
        expect(page.locator("dialog code")).to_contain_text("--schema")
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(page.locator("#messages .value")).to_contain_text('"city": "Bern"')
        assert consumer.receive(30_000).value() == {"id": 7, "city": "Bern"}
        page.get_by_role("button", name="Open ").click()
        page.get_by_role("button", name="Publish again").click()
        expect(page.get_by_label("Value (JSON")).to_have_value(re.compile('"id": 7,\\s+"city": "Bern"'))


def test_a_number_is_published_again_as_the_number_that_is_shown(broker, page):
    with broker.client() as client:
        client.create_producer("t", schema=geminga.schema.Int8Schema()).send(53)  # its payload is the text 5
    page.goto(f"{broker.admin_url}/#/t/{quote(BASE + 't', safe='')}")
    page.get_by_role("button", name="Open ").click()
    page.get_by_role("button", name="Publish again").click()
    expect(page.get_by_label("Value (JSON")).to_have_value("53")


def test_masked_fields_are_not_shown(make_served, page):
    served = make_served(masked_fields=("public/default/t=card",))
    served.create("t")
    fields = [{"name": "card", "type": "string"}, {"name": "id", "type": "long"}]
    schema = {"type": "AVRO", "schema": json.dumps({"type": "record", "name": "Order", "fields": fields})}
    answer = page.request.post(
        f"{served.url}/admin/v2/schemas/public/default/t/schema", data={**schema, "properties": {}}
    )
    assert answer.ok, answer.text()

    def send() -> None:
        peer, now_ms = served.harness.peer(), served.harness.now_ms
        peer.producer(BASE + "t")
        for number, (payload, version) in enumerate(
            ((b'{"card": "4111", "id": 1}', None), (b"4111", None), (b"\x084111\x0e", bytes(8)))
        ):
            peer.send(number, entry_bytes(payload, publish_time=now_ms, schema_version=version))

    served.do(send)
    page.goto(topic_url(served, "t"))
    expect(page.locator("#messages .value").first).to_have_text('{"card": "•••", "id": 7}')
    expect(page.locator("#messages .value").last).to_have_text('{"card": "•••", "id": 1}')
    expect(page.locator("#messages .problem")).to_contain_text("the console shows JSON, Avro and Protobuf")
    page.get_by_role("button", name="Open ").last.click()
    expect(page.locator("dialog pre")).to_have_text('{"card": "•••", "id": 1}')
    expect(page.get_by_role("button", name="Publish again")).to_have_count(0)
    assert "4111" not in page.content()


def test_another_cluster_is_chosen_in_the_header(broker, make_page):
    page = make_page(width=390)
    with EmbeddedBroker(BrokerSettings(memory=True, port=0, web_port=0), site=attach) as other:
        for each, topic in ((broker, "of-prod"), (other, "of-test")):
            with each.client() as client:
                client.subscribe(topic, "s").close()
        with console_of({"prod": broker, "test": other}) as url:
            page.goto(f"{url}/#/topics")
            expect(page.locator("tbody a.row")).to_have_text(["public/default/of-prod"])
            choice = page.get_by_label("Cluster")
            expect(choice.locator("option")).to_have_text(["prod", "test"])
            choice.select_option("test")
            page.wait_for_url(f"{url}/cluster/test/")
            expect(page.get_by_label("Cluster")).to_have_value("/cluster/test/")
            page.get_by_role("link", name="Topics").click()
            expect(page.locator("tbody a.row")).to_have_text(["public/default/of-test"])
            page.goto(f"{url}/cluster/test/#/t/{quote(BASE + 'of-test', safe='')}")
            page.get_by_role("button", name="Publish a message").click()
            page.get_by_label("Value (JSON").fill("x")
            expect(page.locator("dialog code")).to_contain_text("geminga produce public/default/of-test x")
            expect(page.locator("dialog code")).to_contain_text("--context test")
            page.get_by_role("button", name="Publish", exact=True).click()
            expect(page.locator("#messages .value")).to_have_text("x")


@contextlib.contextmanager
def console_of(brokers: dict[str, EmbeddedBroker]) -> Iterator[str]:
    """The address of ``geminga console`` for several brokers."""
    clusters = {name: Cluster(admin_url=each.admin_url) for name, each in brokers.items()}
    settings = BrokerSettings(memory=True, port=0, web_port=0)
    port = Port(lambda: make_application({name: Remote(each) for name, each in clusters.items()}, settings))
    try:
        yield port.url
    finally:
        port.close()


def test_only_text_can_be_published_again(create, publish, served, page):
    """Other bytes would be stored with replacement characters."""
    create("t")
    publish("t", b"\x00\xff\xfe", b"a\r\nb", "caf\xe9".encode())
    page.goto(topic_url(served, "t"))
    again = page.get_by_role("button", name="Publish again")
    for entry, count in ((0, 0), (1, 0), (2, 1)):
        page.get_by_role("button", name=f"Open 0:{entry}").click()
        expect(page.get_by_role("button", name="Download")).to_be_visible()
        expect(again).to_have_count(count)
        page.get_by_role("button", name="Close").click()


# --- policies ---
def test_policies_are_in_words_with_where_they_were_set(create, served, page):
    create("t")
    namespaces = served.harness.broker.namespaces
    retention = {"retentionTimeInMinutes": 7 * 1440, "retentionSizeInMB": -1}
    served.do(lambda: namespaces.set_policy("public", "default", "retention_policies", retention, succeeded))
    topic = TopicName.parse(BASE + "t")
    served.do(lambda: namespaces.set_topic_policy(topic, "message_ttl_in_seconds", 3600, succeeded))
    served.do(served.harness.poll)
    page.goto(topic_url(served, "t"))
    policies = page.locator(".panel", has=page.get_by_role("heading", name="Policies in force"))
    expect(policies).to_contain_text("7 days, any size")
    expect(policies).to_contain_text("set on public/default")
    expect(policies).to_contain_text("after 1 hour")
    expect(policies).to_contain_text("set on this topic")
    policies.get_by_role("link", name="public/default").first.click()
    expect(page.locator("h1")).to_have_text("public/default")
    expect(page.locator("main")).to_contain_text("7 days, any size")
    expect(page.locator("main")).to_contain_text("set here")
    expect(page.locator("dd", has_text="50,000")).to_contain_text("default")


def test_policies_are_changed_with_their_effect_and_command(create, publish, served, page):
    create("orders", "billing")
    publish("orders", b"x", b"y", publish_time=served.harness.now_ms - 120_000)
    create("parted", partitions=2)
    box = page.locator("dialog .preview")
    for name, lost in (("orders", "2 messages of 1 subscription"), ("parted", "older messages")):
        page.goto(topic_url(served, name))
        page.get_by_role("button", name="Change: Messages expire").click()
        page.get_by_label("After", exact=True).fill("1")
        page.get_by_label("After, unit").select_option("minutes")
        expect(box).to_contain_text(f"then: after 1 minute; {lost} expire at once")
        expect(box).to_contain_text(f"geminga topics policy public/default/{name} messageTTL 60 --admin-url ")
        page.get_by_role("button", name="Change", exact=True).click()
        expect(page.locator("dl.pairs")).to_contain_text(["after 1 minuteset on this topic"])
    page.goto(f"{served.url}/#/n/public/default")
    page.get_by_role("button", name="Change: Backlog of a subscription").click()
    page.get_by_label("Size", exact=True).fill("2")
    page.get_by_label("Age", exact=True).fill("3")
    page.get_by_label("When exceeded").select_option("producer_exception")
    expect(box).to_contain_text(
        f"geminga namespaces set-quota public/default 2147483648 --policy producer_exception "
        f"--admin-url {served.url} && geminga namespaces set-quota public/default --age 259200s "
        f"--policy producer_exception --admin-url {served.url}"
    )
    page.get_by_role("button", name="Change", exact=True).click()
    row = page.locator("dl.pairs").first
    expect(row).to_contain_text("2 GiB, then publishing fails; 3 days old, then publishing failsset here")
    page.get_by_role("button", name="Change: Backlog of a subscription").click()
    page.get_by_label("use the broker's setting").check()
    expect(box).to_contain_text("geminga namespaces unset public/default backlog_quota")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(row).not_to_contain_text("2 GiB")


def test_the_dialog_of_a_policy_begins_with_its_value(create, served, page):
    """Also with 0, which is not "no limit" for retention."""
    create("orders")
    zero = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    topic = TopicName.parse(BASE + "orders")
    namespaces = served.harness.broker.namespaces
    served.do(lambda: namespaces.set_topic_policy(topic, "retention_policies", zero, succeeded))
    served.do(served.harness.poll)
    page.goto(topic_url(served, "orders"))
    page.get_by_role("button", name="Change: Acknowledged messages are kept").click()
    none = "none: messages are deleted once all subscriptions acknowledged them"
    expect(page.locator("dialog .preview")).to_contain_text(f"now: {none}; then: {none}", ignore_case=True)
    for field in ("Time", "Size"):
        page.locator("dialog").get_by_label(field, exact=True).fill("")
    expect(page.locator("dialog .preview")).to_contain_text("then: for ever, any size")


def test_limits_of_a_topic_alone_and_lists_are_changed(create, served, page):
    create("orders")
    page.goto(topic_url(served, "orders"))
    row = page.locator("dl.pairs", has_text="Types of subscriptions")
    for title, field, then in (
        ("Size of a message", "Size", "2 MiB"), ("Subscribing, a consumer", "Times", "2 times in 30 s"),
        ("Consumers of a subscription", "Number", "2"),
    ):  # fmt: skip
        page.get_by_role("button", name=f"Change: {title}").click()
        page.get_by_label(field, exact=True).fill("2")
        expect(page.locator("dialog .preview")).to_contain_text(f"then: {then}")
        page.get_by_role("button", name="Change", exact=True).click()
        expect(row).to_contain_text(f"{then}set on this topic")
    page.get_by_role("button", name="Change: Types of subscriptions").click()
    page.get_by_label("Shared", exact=True).check()
    page.get_by_label("Key_Shared").check()
    expect(page.locator("dialog code")).to_contain_text(
        """topics policy public/default/orders subscriptionTypesEnabled '["Shared","Key_Shared"]' --"""
    )
    page.get_by_role("button", name="Change", exact=True).click()
    expect(row).to_contain_text("Shared, Key_Sharedset on this topic")


def test_policies_of_a_namespace_alone_are_changed(served, page):
    page.goto(f"{served.url}/#/n/public/default")
    row = page.locator("dl.pairs").first
    expect(row).to_contain_text("Producers register schemasyesdefault")
    expect(row).to_contain_text("Offloading by ageneverdefault")
    for title, field, then, command in (
        ("Unused subscriptions", "After", "are deleted after 2 days", "subscriptionExpirationTime 2880"),
        ("Offloading by size", "Beyond", "beyond 2 GiB", "offloadThreshold 2147483648"),
        ("Offloading by age", "After", "after 2 days", "offloadThresholdInSeconds 172800"),
    ):
        page.get_by_role("button", name=f"Change: {title}").click()
        page.get_by_label(field, exact=True).fill("2")
        expect(page.locator("dialog .preview")).to_contain_text(f"then: {then}")
        expect(page.locator("dialog code")).to_contain_text(f"namespaces policy public/default {command}")
        page.get_by_role("button", name="Change", exact=True).click()
        expect(row).to_contain_text(f"{then}set here")
    page.get_by_role("button", name="Change: Producers register schemas").click()
    page.get_by_label("Value").select_option("false")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(row).to_contain_text("Producers register schemasnoset here")


def test_a_schema_is_registered_after_a_check_against_its_versions(create, served, page):
    create("orders")
    box = page.locator("dialog .preview")

    def give(fields: list[dict[str, str]]) -> None:
        page.get_by_role("button", name="Register a schema").click()
        definition = {"type": "record", "name": "Order", "fields": fields}
        page.get_by_label("Definition").fill(json.dumps(definition))

    page.goto(topic_url(served, "orders"))
    give([{"name": "city", "type": "string"}])
    expect(box).to_contain_text("Registers it for public/default/orders, which has no schema yet")
    expect(box).to_contain_text("geminga schemas upload public/default/orders --type AVRO --file - <<< '{")
    page.get_by_role("button", name="Register", exact=True).click()
    expect(page.locator(".toast")).to_have_text("Registered as version 0")
    expect(page.locator("pre", has_text="city")).to_be_visible()
    give([{"name": "city", "type": "int"}])
    expect(box.locator(".refused")).to_contain_text(
        "The existing versions do not allow it: new ones must be full"
    )
    expect(page.get_by_role("button", name="Register", exact=True)).to_be_disabled()
    page.get_by_label("Definition").fill("{")
    expect(box.locator(".refused")).to_contain_text("The definition is not JSON")


def test_properties_of_a_topic_are_set_and_removed(create, served, page):
    create("orders")
    page.goto(topic_url(served, "orders"))
    page.get_by_role("button", name="Set a property").click()
    page.get_by_label("Name", exact=True).fill("owner")
    page.get_by_label("Value").fill("team a")
    expect(page.locator("dialog code")).to_contain_text(
        "geminga topics properties public/default/orders 'owner=team a' --admin-url"
    )
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("button", name="Change: owner").click()
    expect(page.get_by_label("Value")).to_have_value("team a")
    page.get_by_label("Value").fill("")
    expect(page.locator("dialog .preview")).to_contain_text("Removes owner")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("button", name="Change: owner")).to_have_count(0)


def test_permissions_schema_versions_and_deletion(create, served, page):
    create("orders")
    for name in ("city", "town"):
        schema = json.dumps({"type": "record", "name": "Order", "fields": [
            {"name": name, "type": "string", "default": ""}]})  # fmt: skip
        path = f"{served.url}/admin/v2/schemas/public/default/orders/schema"
        assert page.request.post(path, data={"type": "AVRO", "schema": schema, "properties": {}}).ok
    page.goto(topic_url(served, "orders"))
    page.locator("summary", has_text="version 0, AVRO").click()
    expect(page.locator("pre", has_text="city")).to_be_visible()
    page.get_by_role("button", name="Allow a role").click()
    page.get_by_label("Role", exact=True).fill("loader")
    page.get_by_label("consume", exact=True).uncheck()
    expect(page.locator("dialog code")).to_contain_text(
        "geminga topics grant public/default/orders loader produce"
    )
    page.get_by_role("button", name="Allow", exact=True).click()
    page.get_by_role("button", name="Revoke: loader").click()
    expect(page.locator("dialog .preview")).to_contain_text("Removes what loader was granted")
    page.get_by_role("button", name="Revoke", exact=True).click()
    expect(page.get_by_text("none has permissions of its own")).to_be_visible()
    page.get_by_role("button", name="Add a subscription").click()
    page.get_by_label("Name", exact=True).fill("billing")
    page.get_by_role("button", name="Add", exact=True).click()
    page.locator("a.row", has_text="billing").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("dialog .preview")).to_contain_text(
        "deletes billing with its position", ignore_case=True
    )
    page.locator("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("There is no subscription")).to_be_visible()
    page.get_by_label("More actions").select_option("Delete")
    expect(page.locator("dialog code")).to_contain_text(
        "geminga topics delete public/default/orders --admin-url"
    )
    page.locator("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("h1")).to_have_text("0 topics")


def test_rarer_actions_on_topics_show_their_effect_and_command(create, publish, served, page):
    create("t")
    publish("t", b"x" * 100)
    create("parted", partitions=2)
    box = page.locator("dialog")
    for name, title, words, equal in (
        ("t", "Unload", "disconnects 1 producer and all consumers", "topics unload public/default/t"),
        ("t", "Compact", "stores the newest message of each key", "topics compact public/default/t"),
        ("t", "Terminate", "refuses new messages for ever", "topics terminate public/default/t"),
        (
            "t",
            "Delete all messages",
            "of messages for ever; its subscriptions stay",
            "topics truncate public/default/t",
        ),
        ("t", "Delete the schema", "deletes all versions of its schema", "schemas delete public/default/t"),
        (
            "parted",
            "Add partitions",
            "has 2 partitions now",
            "topics partitions public/default/parted --set 3",
        ),
        ("parted", "Terminate", "refuses new messages for ever", "topics terminate public/default/parted"),
    ):
        page.goto(topic_url(served, name))
        expect(page.get_by_text("Published", exact=True)).to_be_visible()
        page.get_by_label("More actions").select_option(title)
        expect(box.locator(".preview")).to_contain_text(words, ignore_case=True)
        expect(box.locator("code")).to_contain_text(f"geminga {equal} --admin-url ")
        box.get_by_role("button", name=title, exact=True).click()
        expect(page.locator(".toast")).to_have_text(f"Done: {title.lower()}")
    actions = served.harness.actions
    assert served.do(lambda: actions.partitions(TopicName.parse(BASE + "parted"))) == 3
    assert served.do(lambda: actions.topic(TopicName.parse(BASE + "t")).terminated)
    page.goto(topic_url(served, "t"))
    page.get_by_label("More actions").select_option("Add partitions")
    expect(box).to_contain_text("The topic is not partitioned.")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_label("More actions").select_option("Offload")
    box.get_by_role("button", name="Offload", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("offload", ignore_case=True)


def test_dead_letters_are_sent_back(page):
    settings = BrokerSettings(memory=True, port=0, web_port=0)
    with EmbeddedBroker(settings, site=attach) as broker, broker.client() as client:
        policy = geminga.ConsumerDeadLetterPolicy(max_redeliver_count=1)
        jobs = client.subscribe(
            "jobs", "workers", consumer_type=geminga.ConsumerType.Shared, dead_letter_policy=policy,
            negative_ack_redelivery_delay_ms=10,
        )  # fmt: skip
        producer = client.create_producer("jobs")
        for number in range(3):
            producer.send(b"%d" % number, partition_key=f"k{number % 2}")
        letters = client.subscribe("jobs-workers-DLQ", "look")
        for _ in range(6):
            jobs.negative_acknowledge(jobs.receive(30_000))
        for _ in range(3):
            letters.receive(30_000)
        page.goto(f"{broker.admin_url}/#/s/{quote(BASE + 'jobs', safe='')}/workers")
        page.get_by_role("button", name="Send dead letters back").click()
        preview = page.locator("dialog .preview")
        expect(preview).to_contain_text("Sends 3 messages to public/default/jobs")
        page.get_by_label("Only with this key").fill("k1")
        expect(preview).to_contain_text("Sends 1 message to public/default/jobs")
        expect(preview).to_contain_text("geminga subscriptions redrive public/default/jobs workers --key k1")
        page.get_by_role("button", name="Send them back").click()
        expect(page.locator(".toast")).to_have_text("Sent 1 message to public/default/jobs; 2 stay")
        assert jobs.receive(30_000).data() == b"1"


def test_the_last_hour_is_there_when_the_page_opens(create, publish, served, page):
    create("t", "s")
    publish("t", b"x")
    for _ in range(5):
        publish("t", *[b"x"] * 10)
        served.do(lambda: served.harness.advance(60))
    page.goto(f"{served.url}/#/s/{quote(BASE + 't', safe='')}/s")
    panel = page.locator(".panel", has=page.get_by_role("heading", name="Backlog"))
    expect(panel.locator("h2 small")).to_contain_text("growing since")
    points = panel.locator("polyline").first
    expect(points).to_have_attribute("points", re.compile(r"(\S+ ){5}\S+"))


def test_events_name_changes_and_their_author(create, served, page):
    create("t", "s")
    page.goto(f"{served.url}/#/broker")
    path = f"{served.url}/admin/v2/persistent/public/default/t/subscription/s"
    assert page.request.post(f"{path}/skip_all").ok
    assert page.request.post(f"{path}/skip_all").ok
    page.get_by_role("button", name="Changes").click()
    line = page.locator(".log li")
    expect(line).to_have_count(1)
    expect(line).to_contain_text("skipped the backlog, by 127.0.0.1 (2 times since")
    events = served.harness.broker.scheduler.event_log
    for count, topic in ((1, "one"), (2, "more")):
        tell = partial(events.tell, "expired", served.harness.now_ms, BASE + topic, "s", count=count)
        served.do(partial(tell, unit="entry", text="old"))
    page.get_by_role("button", name="Automatic actions").click()
    expect(line.filter(has_text="one")).to_contain_text("1 entry s")
    expect(line.filter(has_text="more")).to_contain_text("2 entries s")
    page.get_by_role("button", name="Changes").click()
    expect(page.get_by_text("In the last hour: 2 changes")).to_be_visible()


def test_the_address_of_a_printed_command_stays_out_of_its_names(page, served):
    page.goto(served.url)
    pasted = page.evaluate(
        """async (words) => (await import('/console/dom.js')).pasted(words, ' --admin-url x')""",
        """geminga topics delete 'a && b' && geminga topics delete -- -it'"'"'s && "c'""",
    )
    assert pasted == (
        "geminga topics delete 'a && b' --admin-url x && "
        """geminga topics delete --admin-url x -- -it'"'"'s && "c'"""
    )
