"""Pages of tenants and namespaces, and of functions and mirrors."""

import shlex
import sys

from playwright.sync_api import Page, expect

from geminga.cli.main import command as geminga
from geminga.cli.mirror import command as mirror_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

BASE = "persistent://public/default/"


def shown_command(page: Page) -> str:
    """Return the command of the open dialog, without the address; it is one that the command line has."""
    shown = page.locator("dialog code").inner_text()
    words = [each for each in shlex.split(shown)[1:] if each not in ("--admin-url", page.url.split("/#")[0])]
    group = geminga.get_command(None, words[0])
    group.get_command(None, words[1]).make_context(
        words[1], [*words[2:], "--admin-url", "http://h:1"]
    ).close()
    return shlex.join(["geminga", *words])


def test_tenants_and_namespaces_are_created_changed_and_deleted(create, served, page):
    page.goto(served.url)
    page.get_by_role("link", name="Namespaces", exact=True).click()
    expect(page.locator("h1")).to_have_text("Namespaces")
    row = page.locator("tbody tr", has_text="shop")
    page.get_by_role("button", name="Create a tenant").click()
    page.get_by_label("Name", exact=True).fill("shop")
    page.get_by_label("Roles that administer it").fill("ada\nBob of sales")
    expect(page.locator("dialog .preview")).to_contain_text("Creates shop, which ada, Bob of sales may")
    assert shown_command(page) == "geminga tenants create shop --admin-role ada --admin-role 'Bob of sales'"
    page.get_by_role("button", name="Create", exact=True).click()
    expect(row).to_contain_text("ada, Bob of sales")

    page.get_by_role("button", name="Change: shop").focus()
    with page.expect_response("**/admin/v2/tenants/shop"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # polls at once
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("button", name="Change: shop")).to_be_focused()
    page.keyboard.press("Enter")
    roles = page.get_by_label("Roles that administer it")
    expect(roles).to_have_value("ada\nBob of sales")
    roles.fill("eve")
    expect(page.locator("dialog .preview")).to_contain_text("Now: ada, Bob of sales; then: eve may")
    assert shown_command(page) == "geminga tenants update shop --admin-role eve"
    page.get_by_role("dialog").get_by_role("button", name="Change", exact=True).click()
    expect(row).to_contain_text("eve")
    expect(row).not_to_contain_text("ada")

    page.get_by_role("button", name="Create a namespace").click()
    page.get_by_label("Tenant and name").fill("shop/orders")
    expect(page.locator("dialog .preview")).to_contain_text("Creates shop/orders")
    assert shown_command(page) == "geminga namespaces create shop/orders"
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("h1")).to_have_text("shop/orders")

    create("persistent://shop/orders/web")
    page.get_by_role("button", name="Delete", exact=True).click()
    box = page.get_by_role("dialog")
    expect(box).to_contain_text("shop/orders has 1 topic.")
    expect(box.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
    box.get_by_role("checkbox").check()
    expect(box).to_contain_text("Deletes shop/orders, 1 topic and all messages")
    assert shown_command(page) == "geminga namespaces delete shop/orders --force"
    box.get_by_role("button", name="Delete", exact=True).click()
    expect(row).to_contain_text("none")

    page.get_by_role("button", name="Delete: shop").click()
    expect(box).to_contain_text("Deletes shop, which is empty")
    assert shown_command(page) == "geminga tenants delete shop"
    box.get_by_role("button", name="Delete", exact=True).click()
    expect(row).to_have_count(0)


def test_functions_and_mirrors_show_their_state_and_lag(create, served, page):
    page.goto(f"{served.url}/#/running")
    expect(page.locator("main")).to_contain_text("None. Start one: geminga function run")
    (start,) = [each for each in page.locator("code").all_inner_texts() if each.startswith("geminga mirror ")]
    made = mirror_command.make_context("mirror", start.split()[2:])
    assert made.params["topics"], "the command that is shown is complete"

    def begin() -> None:
        harness = served.harness
        entry = sys.modules["console_harness"].entry_bytes
        for topic, name in (("in", "public/default/enrich"), ("more", "public/default/enrich")):
            peer = harness.peer()
            peer.subscribe(BASE + topic, name, kind="Shared", permits=10, consumer_name="f-0")
            peer = harness.peer()
            peer.producer(BASE + topic)
            for number in range(3):
                peer.send(number, entry(b"x", publish_time=harness.now_ms))
        peer = harness.peer()
        metadata = [pb.KeyValue(key="application", value="pulsar-function")]
        peer.subscribe(BASE + "in", "own-name", kind="Shared", permits=10, metadata=metadata)
        harness.advance(90)

    create(BASE + "copied", "geminga-mirror.east")
    served.do(begin)
    function = page.locator("tbody tr", has_text="public/default/enrich")
    expect(function).to_contain_text("6 messages")
    expect(function).to_contain_text("has acknowledged none since")
    expect(function).to_contain_text("public/default/more")
    expect(page.locator("tbody tr", has_text="own-name")).to_contain_text("3 messages")
    mirror = page.locator("tbody tr", has_text="east")
    expect(mirror).to_contain_text("public/default/copied")
    expect(mirror).to_contain_text("none")
    function.get_by_role("link").first.click()
    expect(page.locator(".board tbody tr")).to_have_count(2)
    page.keyboard.press("g")
    page.keyboard.press("f")
    mirror.get_by_role("link", name="east").click()
    expect(page.locator("h1")).to_have_text("geminga-mirror.east")
