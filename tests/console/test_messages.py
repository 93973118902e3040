"""Messages of a topic in the console: chosen by programs, and values in formats without a schema."""

import json
from pathlib import Path

import pytest
from cases import cases
from playwright.sync_api import Page, expect

from tests.support.modules import module_at

topics = module_at("console_topics", Path(__file__).with_name("test_topics.py"))
topic_url = topics.topic_url
publish = topics.publish


def search(page: Page, program: str) -> None:
    page.get_by_label("Conditions on fields").fill(program)
    page.get_by_role("button", name="Search").click()


PROGRAMS = {
    "return value.amount > 1": ["2"],
    "if (key === 'b')\n  return true // and no other\nreturn false": ["1"],
    "return !Object.keys(properties).length && id.startsWith('0:') && key !== 'a'": ["1", "2", "text"],
    "return typeof value === 'string'": ["text"],
    "return publishTime >= 1790000001000 && partition === -1": ["1", "2", "text"],
}


def test_messages_are_chosen_by_a_program(create, publish, served, page):
    create("t")
    at = 1_790_000_000_000
    for number in range(3):
        value, moment = b'{"amount": %d}' % number, at + number * 1000
        publish("t", value, partition_key="abc"[number], publish_time=moment)
    publish("t", b"text", publish_time=at + 9000)
    page.goto(topic_url(served, "t") + "?from=earliest")
    expect(page.locator("#messages .value")).to_have_count(4)
    for program, found in PROGRAMS.items():
        search(page, program)
        shown = [each if each == "text" else f'{{"amount": {each}}}' for each in found]
        expect(page.locator("#messages .value")).to_have_text(shown)
        page.reload()
        expect(page.locator("#messages .value")).to_have_text(shown)


def test_a_program_that_does_not_end_is_stopped_and_named(create, publish, served, page):
    create("t")
    publish("t", b"1", b"2")
    page.clock.install()
    page.goto(topic_url(served, "t"))
    expect(page.locator("#messages .value")).to_have_count(2)
    said = page.locator("#messages p.progress").get_by_text("The program was stopped")

    def pass_until_stopped() -> None:
        while not said.is_visible():  # the page's clock is ours, that of its workers is not
            page.clock.run_for(1_000)

    search(page, "while (true); return true")
    pass_until_stopped()
    expect(said).to_have_text("The program was stopped: it took more than 5 seconds for 2 messages.")
    search(page, "for (;;) return value === 2")
    expect(page.locator("#messages .value")).to_have_text("2")
    search(page, "while (true); return true")
    page.get_by_label("From", exact=True).select_option("live")
    pass_until_stopped()
    expect(page.get_by_role("button", name="Search")).to_be_visible()


def test_errors_of_a_program_are_named(create, publish, served, page):
    create("t")
    publish("t", b'{"a": {"b": 1}}', b"null")
    page.goto(topic_url(served, "t"))
    said = page.locator("#messages p.progress")
    search(page, "return value.a.b === 1")
    expect(said).to_contain_text(
        "1 message: that is all. The program failed for some: TypeError: Cannot read"
    )
    search(page, "return (")
    expect(said).to_contain_text("The program cannot be run: SyntaxError")
    search(page, "return nothing")
    expect(said).to_contain_text("No message matches; 2 entries were searched. The program failed for some:")


@pytest.mark.long
def test_each_partition_has_its_own_time(create, publish, served, page):
    create("t", partitions=8)
    for index in range(8):
        publish(f"t-partition-{index}", b"1")
    page.goto(topic_url(served, "t"))
    expect(page.locator("#messages .value")).to_have_count(8)
    search(page, "for (const end = Date.now() + 800; Date.now() < end;); return partition > 0")
    expect(page.locator("#messages p.progress")).to_contain_text("7 messages: that is all.", timeout=60_000)


def test_of_a_long_error_the_beginning_is_shown(create, publish, served, page):
    create("t")
    publish("t", b"1")
    page.goto(topic_url(served, "t"))
    search(page, "throw 'x'.repeat(1e6); return")
    said = page.locator("#messages p.progress")
    expect(said).to_contain_text("failed for some: xxx")
    assert len(said.inner_text()) < 1_000


# Expressions of a program that tries to leave its worker; `ended(x)` waits for the events of x.
ATTEMPTS = (
    "fetch(url)", "importScripts(url)", "import(url)", "ended(new Worker(url))",
    "ended(new EventSource(url))", "ended(new WebSocket(url.replace('http', 'ws')))", "document.cookie",
    "localStorage.x",
    "ended(new XMLHttpRequest(), (asked) => (asked.open('GET', url), asked.send()))",
)  # fmt: skip
ATTEMPT = """
    const ended = (x, begin) => new Promise((done, fail) => {
        Object.assign(x, { onopen: done, onload: done, onmessage: done, onerror: fail });
        begin?.(x);
    });
    (async () => %s)().then(() => postMessage("done"), () => postMessage("refused"));
    return true;
"""


def test_a_program_reaches_neither_network_nor_page(served, page):
    """Runs each attempt as the filter's worker does; the policy of the worker's file refuses it."""
    page.goto(f"{served.url}/console/star.svg")
    before = len(served.requests)
    outcomes = page.evaluate(
        """async ([attempts, url]) => {
            const address = "/console/filter.js";
            const policy = trustedTypes.createPolicy("filter", { createScriptURL: () => address });
            return Promise.all(attempts.map((program) => new Promise((resolve) => {
                const worker = new Worker(policy.createScriptURL(""));
                worker.onmessage = ({ data }) => resolve(data);
                worker.onerror = () => resolve("not started");
                worker.postMessage([`const url = "${url}"; ${program}`, [{}]], [new MessageChannel().port2]);
            })));
        }""",
        [[ATTEMPT % each for each in ATTEMPTS], f"{served.url}/console/filter.js?attempt"],
    )
    assert dict(zip(ATTEMPTS, outcomes, strict=True)) == dict.fromkeys(ATTEMPTS, "refused")
    assert not any("attempt" in each for each in served.requests[before:])


# {"city": "Bern", "amounts": [1, -1000, 1.5]}
CBOR = bytes.fromhex("a2 64 63697479 64 4265726e 67 616d6f756e7473 83 01 3903e7 f93e00")
MESSAGE_PACK = bytes.fromhex("82 a4 63697479 a4 4265726e a7 616d6f756e7473 93 01 d1fc18 ca3fc00000")
XML = b'<?xml version="1.0"?><order id="1"><city>Bern</city><paid/></order>'


def test_cbor_and_messagepack_are_shown_as_json_and_xml_in_lines(create, publish, served, page):
    create("t")
    publish("t", CBOR, MESSAGE_PACK, XML, b"\x00\x01\xff")
    page.goto(topic_url(served, "t") + "?from=earliest")
    values = page.locator("#messages .value")
    packed = '{ "city": "Bern", "amounts": [ 1, -1000, 1.5 ] }'
    lines = ['<?xml version="1.0"?>', '<order id="1">', " <city>Bern</city>", " <paid/>", "</order>"]
    expect(values).to_have_text([packed, packed, " ".join(lines), "00 01 ff"])
    assert values.nth(2).text_content() == "\n".join(lines)
    page.get_by_role("button", name="Open 0:1").click()
    expect(page.locator("dialog pre")).to_have_text(packed)
    page.get_by_role("button", name="Hexadecimal").click()
    expect(page.locator("dialog pre")).to_contain_text("00000000  82 a4 63 69")
    page.get_by_role("button", name="Close").click()
    search(page, "city=Bern")
    expect(values).to_have_text([packed, packed])


FORMS = dict(cases("packed_values"))
HOSTILE = (
    "9f" * 100_000,
    "81" * 100_000,
    "91" * 100_000,
    "9bffffffffffffffff",
    "bbffffffffffffffff",
    "5bffffffffffffffff",
    "ddffffffff",
    "dfffffffff",
    "81dbffffffff",
    "dd00010000" + "90" * 65_536,
    "81ff",
    "81fc",
    "81c1",
    "80",
    "a15f81",
    "81" + "58" * 60,
)


def test_packed_values_of_all_kinds_are_read_and_hostile_ones_are_shown_in_hexadecimal(served, page):
    page.goto(f"{served.url}/console/star.svg")
    shown = page.evaluate(
        """async (all) => {
            const { decode } = await import("/console/decode.js");
            const bytes = (each) => Uint8Array.from(each.match(/../g), (byte) => parseInt(byte, 16));
            return all.map((each) => decode(bytes(each), null, false));
        }""",
        [*FORMS, *HOSTILE],
    )
    assert [json.loads(each) for each in shown[: len(FORMS)]] == list(FORMS.values())
    for each, text in zip(HOSTILE, shown[len(FORMS) :], strict=True):
        assert text == bytes.fromhex(each)[:512].hex(" ") + (" …" if len(each) > 1024 else "")
