"""Advice for a topic's producers: messages per batch now, and with advised settings.

The page that shows the topic sends the figures (rate, size, messages per entry); the settings come from the
advisor (`geminga.tuning.formula`).
"""

from collections.abc import Mapping
from typing import Any, Final

from geminga.broker.admin.errors import AdminRefusal

GAIN_MIN: Final = 1.5
"""Settings are advised if batches would hold at least this many times as many messages."""
QUIET_MESSAGES_PER_SECOND: Final = 1.0
"""Slower topics have nothing to batch."""


def advice(query: Mapping[str, str]) -> dict[str, Any]:
    """Return ``{"verdict", "text"}``, and with traffic ``settings``, for the figures of a query.

    ``rate``: messages per second of all producers; ``bytes``: size of a message; ``fill``: messages per entry
    now; ``producers``: 1 by default. Raises `AdminRefusal` 412 for a value that is not a number,
    `InvalidConfiguration` for one out of range.
    """
    from geminga.tuning.formula import formula, messages_in_delay
    from geminga.tuning.traffic import TrafficProfile

    rate, fill = _number(query, "rate"), _number(query, "fill")
    if rate < QUIET_MESSAGES_PER_SECOND:
        return {"verdict": "quiet", "text": "too little is published to batch anything"}
    profile = TrafficProfile(
        rate_messages_per_second=rate, message_bytes=max(1.0, _number(query, "bytes")),
        producers=max(1, round(_number(query, "producers", 1))),
    )  # fmt: skip
    found = formula(profile)
    producer = found.settings.producer
    delay = producer.batching_max_publish_delay_seconds
    by_bytes = producer.batching_max_allowed_size_in_bytes / profile.message_bytes
    possible = max(1.0, min(messages_in_delay(profile, delay) + 1, producer.batching_max_messages, by_bytes))
    settings = [
        {"field": each.field, "value": each.value, "unit": each.unit, "why": each.why}
        for each in found.choices
    ]
    if possible < fill * GAIN_MIN:
        text = f"batches hold {_messages(fill)}: what the rate allows in {delay * 1000:g} ms"
        return {"verdict": "good", "text": text, "settings": settings}
    text = (
        f"an entry holds {_messages(fill)}; with a publish delay of {delay * 1000:g} ms it would hold about "
        f"{_short(possible)}, and the broker would handle {_short(rate / possible)} entries a second instead "
        f"of {_short(rate / max(fill, 1.0))}, within {profile.latency_budget_seconds * 1000:g} ms to the "
        "consumer"
    )
    return {"verdict": "improve", "text": text, "settings": settings}


def _number(query: Mapping[str, str], name: str, default: float | None = None) -> float:
    text = query.get(name, "")
    if not text and default is not None:
        return default
    try:
        number = float(text)
        if number != number or not 0 <= number < 1e15:
            raise ValueError
    except ValueError:
        raise AdminRefusal(412, f"{name}={text!r} is not allowed: give a number from 0 on") from None
    return number


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")


def _messages(number: float) -> str:
    text = _short(number)
    return f"{text} message" + ("" if text == "1" else "s")
