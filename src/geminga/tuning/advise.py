"""Advice for one topic: settings, their effects, and warnings.

"Before" and "after" are two estimates: a client's stock settings against the formula's, or, for an observed
topic, its present state against the formula's.
"""

from dataclasses import dataclass, field

from geminga.producer.settings import CompressionType
from geminga.tuning.expectation import DELIVERY_P99_SECONDS, Expectation, expected
from geminga.tuning.formula import Formula, formula
from geminga.tuning.observe import TopicObservation
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.sample import Sample
from geminga.tuning.stock import Stock
from geminga.tuning.traffic import TrafficProfile
from geminga.tuning.traps import TrapFinding, traps

CPU_SECOND_IN_BYTES = 4e6
"""Exchange rate for the choice of a codec: a second of a client's CPU costs as much as 4 MB on the network,
all copies and deliveries included."""
SAVING_MIN = 0.1
"""Minimum saving of a codec, as a fraction of the bytes; metadata alone varies by that much."""
ZSTD_LEVEL = 6
"""The lowest level of ZSTD that searches several candidates for a match: in batches of hundreds of messages
it saves a fifth more than the default level, for four times the CPU."""
CODECS = (
    (CompressionType.LZ4, 0),
    (CompressionType.ZSTD, 0),
    (CompressionType.ZSTD, ZSTD_LEVEL),
    (CompressionType.ZLib, 0),
    (CompressionType.SNAPPY, 0),
)
"""Codecs and levels that are tried."""


def codec_title(compression: CompressionType, level: int = 0) -> str:
    """Return the codec's name for tables: ``ZSTD 6``."""
    return f"{compression.name.upper()} {level}" if level else compression.name.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """Estimated effect of a codec on the batches."""

    compression: CompressionType
    level: int
    entry_bytes: float
    network_bytes_per_second: float
    """Bytes per second to the broker, to further copies and to readers, of all producers."""
    client_cpu_per_second: float
    """CPU for encoding and compressing on this machine, of all producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice for a topic's producers."""

    profile: TrafficProfile
    formula: Formula
    before: Expectation
    after: Expectation
    before_findings: tuple[TrapFinding, ...]
    """Traps of the settings before; empty for an observed topic, whose settings are unknown."""
    findings: tuple[TrapFinding, ...]
    codecs: tuple[Codec, ...]
    codec_reason: str
    sample_origin: str
    observed: TopicObservation | None = field(default=None, repr=False)

    @property
    def settings(self) -> PublishSettings:
        return self.formula.settings


def advise(
    profile: TrafficProfile,
    *,
    sample: Sample,
    stock: Stock,
    compression: CompressionType | None = None,
    compression_level: int = 0,
    observed: TopicObservation | None = None,
) -> Advice:
    """Return advice for a profile. With ``compression`` None, codec and level are chosen by measuring the
    sample.

    ``stock``: stock settings to compare with, unless the topic was ``observed``.
    """
    reserve = DELIVERY_P99_SECONDS
    plain = formula(profile, compression=CompressionType.NONE, reserve_seconds=reserve)
    fill = expected("", profile, plain.settings, sample=sample).batch_fill
    codecs = measured_codecs(profile, fill, sample)
    chosen, level, reason = compression, compression_level, "as it was asked for"
    if chosen is None:
        best, reason = _choose(codecs)
        chosen, level = best.compression, best.level
    found = formula(profile, compression=chosen, compression_level=level, reserve_seconds=reserve)
    after = expected("formula", profile, found.settings, sample=sample)
    if observed is None:
        # Compare settings without the effect of the codec: stock settings get the same codec.
        settings = stock.compressed(chosen)
        title = f"{stock.title}, stock{_codec(chosen)}"
        before = expected(
            title, profile, settings, sample=sample, moves_on_when_full=stock.moves_on_when_full
        )
        before_findings = traps(profile, settings)
    else:
        before, before_findings = _observed_state(observed), ()
    return Advice(
        profile=profile, formula=found, before=before, after=after,
        before_findings=before_findings, findings=traps(profile, found.settings), codecs=tuple(codecs),
        codec_reason=reason, sample_origin=sample.origin, observed=observed,
    )  # fmt: skip


def measured_codecs(profile: TrafficProfile, fill: float, sample: Sample) -> list[Codec]:
    """Measure each codec on batches of a size, uncompressed batches first."""
    scale = profile.message_bytes / sample.message_bytes
    entries = profile.rate_messages_per_second / fill
    times = 1 + profile.subscriptions + profile.write_quorum - 1
    found = []
    for compression, level in ((CompressionType.NONE, 0), *CODECS):
        size = sample.entry_bytes(fill, compression, level, profile)
        found.append(
            Codec(
                compression=compression,
                level=level,
                entry_bytes=size,
                network_bytes_per_second=size * entries * times,
                client_cpu_per_second=sample.compression_seconds(fill, compression, level) * scale * entries,
            )
        )
    return found


def _choose(codecs: list[Codec]) -> tuple[Codec, str]:
    plain = codecs[0]

    def price(codec: Codec) -> float:
        spent = codec.client_cpu_per_second - plain.client_cpu_per_second
        return codec.network_bytes_per_second + CPU_SECOND_IN_BYTES * max(0.0, spent)

    worthwhile = [c for c in codecs if c.entry_bytes <= (1 - SAVING_MIN) * plain.entry_bytes]
    best = min([plain, *worthwhile], key=price)
    if best is plain:
        return best, "no codec saves bytes that are worth its CPU"
    saved = 1 - best.entry_bytes / plain.entry_bytes
    spent = best.client_cpu_per_second - plain.client_cpu_per_second
    return best, (
        f"it saves {100 * saved:.0f} % of the bytes for {100 * spent:.1f} % of a core on the clients, the "
        f"best bargain of {', '.join(codec_title(c.compression, c.level) for c in codecs[1:])} on the sample"
    )


def _codec(compression: CompressionType) -> str:
    return f", {compression.name}" if compression is not CompressionType.NONE else ""


def _observed_state(observed: TopicObservation) -> Expectation:
    """Return an observed topic's present state. The time that messages wait for batches is unknown."""
    return Expectation(
        title=f"now{_codec(observed.compression)}",
        batch_fill=observed.batch_fill,
        entries_per_second=observed.entries_per_second,
        stored_bytes_per_second=observed.stored_bytes_per_second,
    )
