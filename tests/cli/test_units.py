"""Times, positions, message ids and sizes as the commands take and print them."""

import datetime as dt

import click
import pytest

from geminga import MessageId
from geminga.cli.common import SECONDS, Duration, WordChoice
from geminga.cli.units import (
    SIZE_IN_MIB,
    SIZE_OR_UNLIMITED,
    SPAN_OR_FOREVER,
    id_text,
    parse_id,
    parse_pattern,
    parse_span,
    parse_time,
    parse_where,
    rate,
    size,
)
from geminga.diagnosis.commands import distinct


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("7d", 604_800), ("2h ago", 7200), ("2 hours ago", 7200),
     ("1h30m", 5400), ("0", 0), ("1.5", 1.5), ("1y", 365 * 86400)],
)  # fmt: skip
def test_durations_are_texts_or_numbers_of_seconds(text, seconds):
    assert parse_span(text) == dt.timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "ago", "-1", "1x", "h"])
def test_wrong_durations_name_the_forms(text):
    with pytest.raises(ValueError, match="such as 90s"):
        parse_span(text)


def test_time_limits_take_durations():
    assert [SECONDS.convert(text, None, None) for text in ("2", "2s", "1m", 0.5)] == [2, 2, 60, 0.5]
    in_ms, in_hours = Duration(2, unit="ms"), Duration(0, unit="h")
    assert [in_ms.convert(text, None, None) for text in ("50", "50ms", "1s", 50)] == [50, 50, 1000, 50]
    assert [in_hours.convert(text, None, None) for text in ("24", "2d", 24)] == [24, 48, 24]
    for text in ("0", "-1", "nan", "soon"):
        with pytest.raises(click.BadParameter):
            SECONDS.convert(text, None, None)


def test_minus_one_is_no_limit():
    assert SPAN_OR_FOREVER.convert("-1", None, None) == "forever"
    assert SIZE_OR_UNLIMITED.convert("-1", None, None) == "unlimited"


def test_a_plain_number_of_an_option_in_mib_is_in_mib():
    sizes = {"256": 256 << 20, "1.5": 3 << 19, "512M": 512 << 20, "1G": 1 << 30}
    assert [SIZE_IN_MIB.convert(text, None, None) for text in sizes] == list(sizes.values())
    for text in ("0", "512K", "-1", "much"):
        with pytest.raises(click.BadParameter):
            SIZE_IN_MIB.convert(text, None, None)


@pytest.mark.parametrize("ids", [(3, 7, -1, -1), (3, 7, 2, -1), (3, 7, -1, 0), (3, 7, 2, 5)])
def test_message_ids_are_read_in_each_form_that_is_printed(ids):
    ledger, entry, partition, index = ids
    message_id = MessageId(partition, ledger, entry, index)
    for text in (id_text(message_id), str(message_id), f"{ledger}:{entry}:{partition}:{index}"):
        assert parse_id(text) == message_id
        assert parse_where(text) == message_id
    assert id_text(MessageId(-1, 3, 7)) == "3:7"
    assert id_text(MessageId(-1, 3, 7, 2)) == "3:7:2"


def test_positions_are_ends_ids_times_and_durations_before_now():
    assert parse_where("earliest") == MessageId.earliest
    assert parse_where("2h") == parse_where("2h ago") == parse_where("7200") == dt.timedelta(hours=2)
    assert parse_where("2026-01-31T12:00:00Z") == dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    assert parse_where("1769860800000") == 1_769_860_800_000
    with pytest.raises(ValueError, match="not a position in a topic"):
        parse_where("yesterday-ish")


@pytest.mark.parametrize("text", ["9000y ago", "9" * 26, "253402300800000000"])
def test_a_time_that_no_calendar_has_is_no_position(text):
    with pytest.raises(ValueError, match="not a position in a topic"):
        parse_where(text)
    with pytest.raises(ValueError, match="is not a time"):
        parse_time(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "-"), (0, "0 B"), (1023, "1,023 B"), (10 << 30, "10 GiB"), (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"), (5 << 50, "5,120 TiB"), (float("inf"), "inf TiB"),
    ],
)  # fmt: skip
def test_sizes_are_in_multiples_of_1024(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((3 << 30, 2 << 30), ["3 GiB", "2 GiB"]), ((2 << 30, 2 << 30), ["2 GiB", "2 GiB"]),
        (((2 << 30) + (9 << 20), 2 << 30), ["2.01 GiB", "2 GiB"]),
        (((500 << 20) + 1500, 500 << 20), ["524,289,500 B", "524,288,000 B"]),
        (((1 << 30) - (1 << 18), 1 << 30), ["1,023.8 MiB", "1 GiB"]),
    ],
)  # fmt: skip
def test_sizes_that_are_compared_differ_in_their_texts(values, texts):
    assert distinct(size, *values) == texts


def test_rates_that_are_compared_differ_in_their_texts():
    assert distinct(rate, 0.1, 0.12) == ["0.10/s", "0.12/s"]
    assert distinct(rate, 1000, 1100.4) == ["1,000/s", "1,100/s"]


def test_choices_are_taken_in_any_spelling():
    kind = WordChoice(("producer_request_hold", "Key_Shared"))
    assert kind.convert("producer-request-hold", None, None) == "producer_request_hold"
    assert kind.convert("keyshared", None, None) == "Key_Shared"
    with pytest.raises(click.BadParameter, match="Key_Shared"):
        kind.convert("none", None, None)


@pytest.mark.parametrize("text", ["(", "a{99999999999999}", "(" * 5000 + ")" * 5000])
def test_what_is_no_regular_expression_is_refused(text):
    with pytest.raises(ValueError, match="is not a regular expression"):
        parse_pattern(text)
