"""Advice for all topics of a cluster: settings for each topic, and the total savings.

The input is statistics of thousands of topics (from admin REST by `geminga.tuning.fleet_statistics`, or a
Parquet file); the output is settings by the formula, their expected effects, and totals.

A topic's present state is taken from its statistics if they hold entries and bytes per second, else from a
client's stock settings. Stored bytes are assumed to shrink with growing batches as those of a sample of
structured JSON, in proportion to the topic's present bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from geminga.config import check_choice
from geminga.errors import InvalidConfiguration, PulsarException
from geminga.producer.settings import CompressionType
from geminga.tuning.expectation import expected
from geminga.tuning.formula import formula
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.sample import standard_sample
from geminga.tuning.stock import stock
from geminga.tuning.traffic import TrafficProfile
from geminga.tuning.traps import traps

if TYPE_CHECKING:
    import pyarrow as pa

REQUIRED = ("topic", "rate_messages_per_second", "message_bytes")
OPTIONAL = (
    "message_bytes_variation", "partitions", "producers", "subscriptions", "keys", "key_skew",
    "write_quorum", "latency_budget_seconds",
)  # fmt: skip
"""Columns that are fields of a `TrafficProfile`."""
OBSERVED = ("entries_per_second", "stored_bytes_per_second", "compression")
"""Columns with a topic's present state; each may be missing or null."""
CODECS = {codec.name.upper(): codec for codec in CompressionType}
"""Codecs by upper-case name: statistics of other tools write ZLIB."""
TOPICS_SHOWN = 20
"""Maximum number of topics in a table of the report."""
_WHOLE = {"partitions", "producers", "subscriptions", "keys", "write_quorum"}


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPlan:
    """Parameters for all topics."""

    latency_budget_seconds: float = 0.05
    """Latency budget of topics whose statistics have none."""
    compression: CompressionType | None = None
    """Codec for all topics; None keeps each topic's codec."""
    stock: str = "java"
    """Client whose stock settings are assumed for topics without statistics of entries."""

    def __post_init__(self) -> None:
        stock(self.stock)


def schema() -> pa.Schema:
    """Schema of the result: one row per topic."""
    import pyarrow as pa

    numbers = (
        "rate_messages_per_second", "message_bytes", "delay_ms", "batch_fill_before", "batch_fill_after",
        "entries_per_second_before", "entries_per_second_after", "stored_bytes_per_second_before",
        "stored_bytes_per_second_after", "latency_p99",
    )  # fmt: skip
    return pa.schema(
        [
            ("topic", pa.string()),
            ("problem", pa.string()),
            ("settings_json", pa.string()),
            ("findings", pa.list_(pa.string())),
            *[
                (name, pa.int64())
                for name in ("batch_messages", "batch_bytes", "permits", "memory_limit_bytes", "partitions")
            ],
            ("compression", pa.string()),
            *[(name, pa.float64()) for name in numbers],
        ]
    )  # fmt: skip


def profile_of(row: Mapping[str, Any], latency_budget_seconds: float) -> TrafficProfile:
    """Return the traffic of a row of statistics. Raises `InvalidConfiguration`."""
    given: dict[str, Any] = {"latency_budget_seconds": latency_budget_seconds}
    for name in (*REQUIRED[1:], *OPTIONAL):
        value = row.get(name)
        if value is not None:
            given[name] = int(value) if name in _WHOLE else float(value)
    for name in REQUIRED[1:]:
        if name not in given:
            raise InvalidConfiguration(f"{name} is missing")
    return TrafficProfile(name=str(row.get("topic", "")), **given)


def advise_topic(row: Mapping[str, Any], plan: FleetPlan) -> dict[str, Any]:
    """Return a topic's row of the result; a topic that cannot be advised has a ``problem``."""
    found: dict[str, Any] = {"topic": str(row.get("topic", "")), "problem": ""}
    try:
        profile = profile_of(row, plan.latency_budget_seconds)
        return found | _advise(row, profile, plan)
    except (PulsarException, ValueError) as error:
        return found | {"problem": str(error)}


def _advise(row: Mapping[str, Any], profile: TrafficProfile, plan: FleetPlan) -> dict[str, Any]:
    sample = standard_sample(profile.message_bytes)
    given = row.get("compression")
    used = CODECS[check_choice("compression", str(given or "NONE").upper(), list(CODECS))]
    codec = used if plan.compression is None else plan.compression
    keeps_unknown = plan.compression is None and not given
    rate = profile.rate_messages_per_second
    entries, stored = row.get("entries_per_second"), row.get("stored_bytes_per_second")
    if not entries:
        client = stock(plan.stock)
        guessed = expected(
            client.title, profile, client.compressed(used), sample=sample,
            moves_on_when_full=client.moves_on_when_full,
        )  # fmt: skip
        entries = guessed.entries_per_second
        stored = stored or guessed.stored_bytes_per_second
    entries = min(float(entries), rate)
    fill = rate / entries
    made_up = sample.entry_bytes(fill, used, 0, profile)
    stored = float(stored or entries * made_up)
    settings = formula(profile, compression=codec).settings
    expectation = expected("formula", profile, settings, sample=sample)
    entries_after = min(expectation.entries_per_second, rate)
    # Scale by the topic's compressibility, which its stored bytes show.
    stored_after = stored * entries_after / entries
    stored_after *= sample.entry_bytes(rate / entries_after, codec, 0, profile) / made_up
    producer = settings.producer
    return {
        "settings_json": json.dumps(_settings(settings, keeps_unknown)),
        "findings": [finding.trap.name for finding in traps(profile, settings)],
        "rate_messages_per_second": rate,
        "message_bytes": profile.message_bytes,
        "partitions": profile.partitions,
        "delay_ms": producer.batching_max_publish_delay_seconds * 1000,
        "batch_messages": producer.batching_max_messages,
        "batch_bytes": producer.batching_max_allowed_size_in_bytes,
        "permits": producer.max_pending_messages,
        "memory_limit_bytes": settings.memory_limit_bytes,
        "compression": None if keeps_unknown else producer.compression_type.name,
        "batch_fill_before": fill,
        "batch_fill_after": rate / entries_after,
        "entries_per_second_before": entries,
        "entries_per_second_after": entries_after,
        "stored_bytes_per_second_before": stored,
        "stored_bytes_per_second_after": stored_after,
        "latency_p99": expectation.end_to_end_p99_seconds,
    }


def _settings(settings: PublishSettings, keeps_unknown: bool) -> dict[str, Any]:
    """Return the settings for the result, without a codec if the topic's codec is unknown."""
    values = settings.to_dict()
    if keeps_unknown:
        del values["compression_type"], values["compression_level"]
    return values


def advise_fleet(topics: pa.Table, plan: FleetPlan) -> pa.Table:
    """Return settings for all topics, in the order of the table.

    Raises `InvalidConfiguration` for a table without the columns `REQUIRED`.
    """
    import pyarrow as pa

    check_columns(topics)
    return pa.Table.from_pylist([advise_topic(row, plan) for row in topics.to_pylist()], schema=schema())


def check_columns(topics: pa.Table) -> None:
    """Raise `InvalidConfiguration` if the statistics lack a column or hold no topic."""
    missing = [name for name in REQUIRED if name not in topics.column_names]
    if missing:
        raise InvalidConfiguration(
            f"the statistics have no column {missing[0]!r}; needed: {', '.join(REQUIRED)}; used where they "
            f"are there: {', '.join((*OPTIONAL, *OBSERVED))}"
        )
    if not topics.num_rows:
        raise InvalidConfiguration("the statistics hold no topic")


def savings(result: pa.Table) -> dict[str, Any]:
    """Return the totals over all advised topics ``before`` and ``after``, as JSON values.

    ``problems`` counts the topics that could not be advised.
    """
    rows = [row for row in result.to_pylist() if not row["problem"]]
    names = ("entries_per_second", "stored_bytes_per_second")
    sums = {
        when: {name: sum(row[f"{name}_{when}"] for row in rows) for name in names}
        for when in ("before", "after")
    }
    return {"topics": len(rows), "problems": result.num_rows - len(rows), **sums}


def report(result: pa.Table, found: dict[str, Any]) -> str:
    """Return Markdown with the totals, and the topics that save most entries."""
    before, after = found["before"], found["after"]
    lines = [
        f"{found['topics']} topics"
        + (f", {found['problems']} more without advice" if found["problems"] else ""),
        "",
        "| | before | after | change |",
        "|---|---:|---:|---:|",
        _change("entries/s", before["entries_per_second"], after["entries_per_second"], 1.0, 0),
        _change("stored MB/s", before["stored_bytes_per_second"], after["stored_bytes_per_second"], 1e6, 1),
        "",
        f"The {TOPICS_SHOWN} that save most entries:",
        "",
        "| topic | messages/s | entries/s | messages an entry | p99 ms | delay ms | batch messages | codec |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    rows = [row for row in result.to_pylist() if not row["problem"]]
    rows.sort(key=lambda row: row["entries_per_second_after"] - row["entries_per_second_before"])
    lines += [
        f"| {row['topic']} | {row['rate_messages_per_second']:.0f} "
        f"| {row['entries_per_second_before']:.0f} → {row['entries_per_second_after']:.0f} "
        f"| {row['batch_fill_before']:.1f} → {row['batch_fill_after']:.1f} | {row['latency_p99'] * 1000:.0f} "
        f"| {row['delay_ms']:.1f} | {row['batch_messages']} | {row['compression'] or 'as it is'} |"
        for row in rows[:TOPICS_SHOWN]
    ]
    problems = [row for row in result.to_pylist() if row["problem"]][:TOPICS_SHOWN]
    if problems:
        lines += ["", "Without advice:", "", *[f"- {row['topic']}: {row['problem']}" for row in problems]]
    return "\n".join(lines) + "\n"


def _change(title: str, before: float, after: float, unit: float, digits: int) -> str:
    change = f"{100 * (after / before - 1):+.0f} %" if before else "–"
    return f"| {title} | {before / unit:.{digits}f} | {after / unit:.{digits}f} | {change} |"
