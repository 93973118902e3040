"""Advice as text: a table, and the settings for Python, Java and as a settings file."""

import json
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from geminga.client.api.settings_file import FileSettings, dump_settings
from geminga.config import check_choice
from geminga.producer.settings import BatchingType, CompressionType
from geminga.tuning.advise import Advice
from geminga.tuning.consumers import consumer_advice
from geminga.tuning.expectation import Expectation
from geminga.tuning.publish_settings import PublishSettings

WIDTH = 100

_CODEC_IN_JAVA = {CompressionType.ZLib: "ZLIB"}


def _codec(compression: CompressionType) -> str:
    return _CODEC_IN_JAVA.get(compression, compression.name)


# --- settings ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTarget:
    """Service URL and topic in generated programs."""

    service_url: str = "pulsar://localhost:6650"
    topic: str = "my-topic"


SOMEWHERE = PublishTarget()
"""Placeholders, if the traffic was given as numbers."""


def python(settings: PublishSettings, place: PublishTarget = SOMEWHERE) -> str:
    """Return lines of a program with Geminga's client."""
    lines = [
        "import geminga",
        "",
        "client = geminga.Client(",
        f"    {_quoted(place.service_url)},",
        *(f"    {name}={value!r}," for name, value in settings.client_arguments().items()),
        ")",
        "producer = client.create_producer(",
        f"    {_quoted(place.topic)},",
    ]
    for name, value in settings.producer_arguments().items():
        shown = f"geminga.{type(value).__name__}.{value.name}" if hasattr(value, "name") else repr(value)
        lines.append(f"    {name}={shown},")
    return "\n".join([*lines, ")"])


def java(settings: PublishSettings, place: PublishTarget = SOMEWHERE) -> str:
    """Return lines of a program with the Java client, which cannot skip blocked partitions."""
    producer = settings.producer
    batcher = "KEY_BASED" if producer.batching_type is BatchingType.KeyBased else "DEFAULT"
    micros = round(producer.batching_max_publish_delay_seconds * 1e6)
    return textwrap.dedent(f"""\
        PulsarClient client = PulsarClient.builder()
            .serviceUrl({_quoted(place.service_url)})
            .memoryLimit({settings.memory_limit_bytes}, SizeUnit.BYTES)
            .build();
        Producer<byte[]> producer = client.newProducer()
            .topic({_quoted(place.topic)})
            .enableBatching({str(producer.batching_enabled).lower()})
            .batcherBuilder(BatcherBuilder.{batcher})
            .batchingMaxMessages({producer.batching_max_messages})
            .batchingMaxBytes({producer.batching_max_allowed_size_in_bytes})
            .batchingMaxPublishDelay({micros}, TimeUnit.MICROSECONDS)
            .roundRobinRouterBatchingPartitionSwitchFrequency({producer.batching_partition_switch_frequency})
            .compressionType(CompressionType.{_codec(producer.compression_type)})
            .maxPendingMessages({producer.max_pending_messages})
            .maxPendingMessagesAcrossPartitions({producer.max_pending_messages_across_partitions})
            .blockIfQueueFull({str(producer.block_if_queue_full).lower()})
            .sendTimeout({round(producer.send_timeout_seconds * 1000)}, TimeUnit.MILLISECONDS)
            .create();""")


def _quoted(text: str) -> str:
    """Quote text in a form that is valid in Python and Java."""
    return json.dumps(text)


def toml(advice: Advice) -> str:
    """Return a settings file (`geminga.load_settings`), each line with its reason."""
    comments = {choice.field: choice.rule for choice in advice.formula.choices}
    comments["batching_max_publish_delay_ms"] = comments.pop("batching_max_publish_delay_seconds")
    comments["compression_type"] = advice.codec_reason
    del comments["compression_level"]
    profile = advice.profile
    heading = (
        f"Producer settings for {profile.name or 'a topic'}, by geminga tune advise.\n"
        f"Traffic: {profile.rate_messages_per_second:,.0f} msg/s of {profile.message_bytes:.0f} bytes over "
        f"{profile.partitions} partitions from {profile.producers} producer(s); latency budget "
        f"{profile.latency_budget_seconds * 1000:g} ms.\n"
        "Read it with geminga.load_settings, or as the option settingsFile of Spark's sink."
    )
    settings = FileSettings(
        client=advice.settings.client_arguments(), producer=advice.settings.producer_arguments()
    )
    return dump_settings(settings, comments, heading)


FORMATS: dict[str, Callable[[PublishSettings, PublishTarget], str]] = {"python": python, "java": java}


def settings_as(kind: str, settings: PublishSettings, place: PublishTarget = SOMEWHERE) -> str:
    """Return the settings in one of `FORMATS`."""
    return FORMATS[check_choice("format", kind, tuple(FORMATS))](settings, place)


# --- the comparison ---------------------------------------------------------------------------------


def _bytes(value: float | None) -> str:
    if value is None:
        return ""
    if math.isinf(value):
        return "no limit"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value * 1000:.1f} ms"


def _change(before: float | None, after: float | None) -> str:
    if not before or after is None or math.isinf(before):
        return ""
    return f"{100 * (after / before - 1):+.0f} %"


ROWS: tuple[tuple[str, Callable[[Expectation], str], Callable[[Expectation], float | None]], ...] = (
    ("messages an entry", lambda s: f"{s.batch_fill:.1f}", lambda s: s.batch_fill),
    ("entries a second", lambda s: f"{s.entries_per_second:,.0f}", lambda s: s.entries_per_second),
    ("stored a second", lambda s: _bytes(s.stored_bytes_per_second), lambda s: s.stored_bytes_per_second),
    ("end to end p99", lambda s: _milliseconds(s.end_to_end_p99_seconds), lambda s: s.end_to_end_p99_seconds),
    ("waiting, at the most", lambda s: _bytes(s.memory_bytes_max), lambda s: s.memory_bytes_max),
)


def table(advice: Advice) -> str:
    """Return the estimates before and after, in aligned columns."""
    rows = [("", advice.before.title, advice.after.title, "")]
    for name, show, value in ROWS:
        rows.append(
            (
                name,
                show(advice.before),
                show(advice.after),
                _change(value(advice.before), value(advice.after)),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def text(advice: Advice, kinds: tuple[str, ...] = ("python",)) -> str:
    """Return the whole advice as text."""
    parts = [_observed(advice)] if advice.observed else []
    reasons = []
    for choice in advice.formula.choices:
        why = advice.codec_reason if choice.field == "compression_type" else f"{choice.rule}; {choice.why}"
        unit = f" {choice.unit}" if choice.unit else ""
        reasons.append(f"{choice.field} = {choice.value}{unit}\n{_indented(why)}")
    parts += ["\n".join(reasons), table(advice), f"Sizes are measured on {advice.sample_origin}."]
    for title, findings in (("Before:", advice.before_findings), ("Beware:", advice.findings)):
        if findings:
            parts.append("\n".join([title, *(_indented(str(f), "  - ", "    ") for f in findings)]))
    consumers = [
        f"  {each.name} = {each.value}\n{_indented(each.why)}"
        for each in consumer_advice(advice.profile, advice.after)
    ]
    parts.append("\n".join(["Consumers and readers:", *consumers]))
    seen = advice.observed
    place = SOMEWHERE if seen is None else PublishTarget(service_url=seen.service_url, topic=seen.topic)
    parts += [settings_as(kind, advice.settings, place) for kind in kinds]
    return "\n\n".join(parts)


def _indented(line: str, first: str = "    ", rest: str = "    ") -> str:
    return textwrap.fill(line, WIDTH, initial_indent=first, subsequent_indent=rest)


def _observed(advice: Advice) -> str:
    seen = advice.observed
    assert seen is not None
    rates = sorted(seen.entries_per_second_by_partition.values())
    lines = [
        f"{seen.topic} on {seen.broker}, watched for {seen.seconds:.1f} s:",
        f"  {seen.profile.rate_messages_per_second:,.0f} msg/s of {seen.profile.message_bytes:.0f} bytes "
        f"from {seen.producers} producer(s) to {seen.profile.subscriptions} subscription(s)",
        f"  {seen.batch_fill:.1f} messages an entry, {seen.entries_per_second:,.0f} entries/s "
        f"({rates[0]:.1f} to {rates[-1]:.1f} a partition)",
        f"  {seen.compression.name}, {seen.compression_ratio:.2f} times smaller than uncompressed",
    ]
    return "\n".join([*lines, *(f"  {note}" for note in seen.notes)])
