"""Advice for one topic: settings, what they change, and what to beware of.

Before and after are two columns of the same estimate: stock settings of a client against the formula's, or,
for a topic that was watched, what the topic does now against the formula's. Both carry the cost model's
error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from geminga.producer.settings import CompressionType
from geminga.tuning.cost import CostModel, Estimate, Load
from geminga.tuning.expectation import DELIVERY_SECONDS, Expectation, expected
from geminga.tuning.formula import Formula, formula
from geminga.tuning.observe import TopicObservation
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.sample import Sample
from geminga.tuning.stock import Stock
from geminga.tuning.traffic import TrafficProfile
from geminga.tuning.traps import TrapFinding, traps

CPU_SECOND_IN_BYTES = 4e6
"""How a codec is chosen: a second of a client's CPU is held as dear as 4 MB on the network, every copy and
every delivery of them counted."""
SAVING_MIN = 0.1
"""A codec that saves less of the bytes is not worth having: that much lies in what surrounds messages."""
ZSTD_LEVEL = 6
"""The first of ZSTD's levels that looks at more than one place for a repetition: in batches of hundreds of
messages it finds a fifth more than the usual level, for four times the CPU."""
CODECS = (
    (CompressionType.LZ4, 0),
    (CompressionType.ZSTD, 0),
    (CompressionType.ZSTD, ZSTD_LEVEL),
    (CompressionType.ZLib, 0),
    (CompressionType.SNAPPY, 0),
)
"""What is tried: codecs and levels."""


def codec_title(compression: CompressionType, level: int = 0) -> str:
    """For tables: ``ZSTD 6``."""
    return f"{compression.name.upper()} {level}" if level else compression.name.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """What one codec would make of the batches."""

    compression: CompressionType
    level: int
    entry_bytes: float
    network_bytes_per_second: float
    """To the broker, to further copies and to readers, all producers together."""
    client_cpu_per_second: float
    """Laying out and compressing, on this machine, all producers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSettings:
    """One column of the comparison."""

    title: str
    batch_fill: float
    entries_per_second: float
    stored_bytes_per_second: float
    network_bytes_per_second: float
    broker_cpu: Estimate
    receipt_p50_seconds: float | None
    receipt_p99_seconds: float | None
    end_to_end_p99_seconds: float | None
    memory_bytes: float | None
    memory_bytes_max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Everything that there is to say about a topic's producers."""

    profile: TrafficProfile
    formula: Formula
    before: ComparedSettings
    after: ComparedSettings
    before_findings: tuple[TrapFinding, ...]
    """Traps that the settings before are in; none for a watched topic, whose settings nobody tells."""
    findings: tuple[TrapFinding, ...]
    codecs: tuple[Codec, ...]
    codec_reason: str
    sample_origin: str
    cost: CostModel = field(repr=False)
    observed: TopicObservation | None = field(default=None, repr=False)

    @property
    def settings(self) -> PublishSettings:
        return self.formula.settings


def advise(
    profile: TrafficProfile,
    *,
    cost: CostModel,
    sample: Sample,
    stock: Stock,
    compression: CompressionType | None = None,
    compression_level: int = 0,
    observed: TopicObservation | None = None,
) -> Advice:
    """Advice for a profile. ``compression`` None chooses codec and level by what they make of the sample.

    ``stock``: whose settings are compared with, unless the topic was ``observed``.
    """
    reserve = cost.receipt_p99_seconds + DELIVERY_SECONDS
    plain = formula(profile, compression=CompressionType.NONE, reserve_seconds=reserve)
    fill = expected(profile, plain.settings, cost=cost, sample=sample).batch_fill
    codecs = measured_codecs(profile, fill, sample)
    chosen, level, reason = compression, compression_level, "as it was asked for"
    if chosen is None:
        best, reason = _choose(codecs)
        chosen, level = best.compression, best.level
    found = formula(profile, compression=chosen, compression_level=level, reserve_seconds=reserve)
    after = expected(profile, found.settings, cost=cost, sample=sample)
    if observed is None:
        # Codecs are compared for themselves: stock settings get the same one.
        settings = stock.compressed(chosen)
        expectation = expected(
            profile, settings, cost=cost, sample=sample, moves_on_when_full=stock.moves_on_when_full
        )
        codec = f", {chosen.name}" if chosen else ""
        before = _state(f"{stock.title}, stock{codec}", expectation)
        before_findings = traps(profile, settings)
    else:
        before, before_findings = _observed_state(observed, cost), ()
    return Advice(
        profile=profile, formula=found, before=before, after=_state("formula", after),
        before_findings=before_findings, findings=traps(profile, found.settings), codecs=tuple(codecs),
        codec_reason=reason, sample_origin=sample.origin, cost=cost, observed=observed,
    )  # fmt: skip


def measured_codecs(profile: TrafficProfile, fill: float, sample: Sample) -> list[Codec]:
    """What each codec makes of batches of a size, uncompressed ones first."""
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


def _state(title: str, found: Expectation) -> ComparedSettings:
    return ComparedSettings(
        title=title,
        batch_fill=found.batch_fill,
        entries_per_second=found.entries_per_second,
        stored_bytes_per_second=found.stored_bytes_per_second,
        network_bytes_per_second=found.network_bytes_per_second,
        broker_cpu=found.broker_cpu,
        receipt_p50_seconds=found.receipt_p50_seconds,
        receipt_p99_seconds=found.receipt_p99_seconds,
        end_to_end_p99_seconds=found.receipt_p99_seconds + DELIVERY_SECONDS,
        memory_bytes=found.memory_bytes,
        memory_bytes_max=found.memory_bytes_max,
    )


def _observed_state(observed: TopicObservation, cost: CostModel) -> ComparedSettings:
    """What a watched topic costs now. How long its messages wait for batches, its broker does not know."""
    load = Load(
        entries_per_second=observed.entries_per_second,
        stored_bytes_per_second=observed.stored_bytes_per_second,
        subscriptions=observed.profile.subscriptions, write_quorum=observed.profile.write_quorum,
        partitions=observed.profile.partitions,
    )  # fmt: skip
    codec = f", {observed.compression.name}" if observed.compression else ""
    return ComparedSettings(
        title=f"now{codec}",
        batch_fill=observed.batch_fill,
        entries_per_second=observed.entries_per_second,
        stored_bytes_per_second=observed.stored_bytes_per_second,
        network_bytes_per_second=cost.network(load),
        broker_cpu=cost.broker_cpu(load),
        receipt_p50_seconds=None,
        receipt_p99_seconds=None,
        end_to_end_p99_seconds=None,
        memory_bytes=None,
        memory_bytes_max=None,
    )
