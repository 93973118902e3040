"""Traps: settings that are reasonable alone but defeat each other, each reported with its numbers.

Most traps lead to batches that never fill. No error shows this: messages arrive, but the broker handles ten
times as many entries as necessary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from geminga.producer.settings import BatchingType, CompressionType, PartitionsRoutingMode
from geminga.tuning.formula import messages_in_delay
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.traffic import TrafficProfile, zipf_shares

CRUMBS_MESSAGES = 10
"""Batches of fewer messages save little: the broker's work is counted in entries."""
SINGLES_MESSAGES = 2
"""Batches of fewer messages give a codec hardly more than one message at a time."""
PARTITIONS_ADVISED_MAX = 1000
RECEIPT_SECONDS = 0.01
"""Assumed time of a receipt besides the delay."""
ROUND_SECONDS_MAX = 10.0
"""Longest acceptable time between two batches of a partition; beyond, messages arrive in jerks."""
KEYS_COUNTED_MAX = 20_000
"""Maximum keys that are counted individually; more are assumed to be equally frequent."""


class Trap(Enum):
    """A trap; the value is the text that explains it."""

    BATCH_ABOVE_PERMITS = "a batch limit above the permits: batches never fill"
    NO_PERMITS_FOR_THE_NEXT = "a batch takes more than half of the permits: the next waits for its receipt"
    MEMORY_BELOW_BATCH = "a memory limit below what batches need"
    CRUMBS = "delay and rate leave crumbs: a batch gets few messages"
    STAY_USES_UP_PERMITS = "the stay on a partition uses up its permits before it ends"
    KEY_BATCHES = "one batch for each key, and many keys"
    COMPRESSED_SINGLES = "compression of batches of one"
    TIMEOUT_BELOW_DELAY = "a send time-out below the delay"
    PERMITS_CUT = "the permits are cut to a share of the limit across partitions"
    SHARED_MEMORY = "several producers share one client's memory limit"
    TOO_MANY_PARTITIONS = "more partitions than the rate can fill"
    BUDGET_BELOW_DELAY = "a delay above the latency budget"
    NOT_BATCHED = "no batching: every message is an entry"
    UNBOUNDED = "nothing bounds what waits for receipts"
    REFUSED_WHEN_FULL = "a full queue refuses messages"


class Severity(Enum):
    """Severity of a trap."""

    BROKEN = "broken"
    """The settings cannot work as stated."""
    COSTLY = "costly"
    """The settings work, but waste CPU, bytes or time."""
    NOTE = "note"
    """Information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrapFinding:
    """A trap that settings run into with a given traffic."""

    trap: Trap
    severity: Severity
    numbers: str
    """The numbers of this case."""
    advice: str

    def __str__(self) -> str:
        return f"{self.trap.value}: {self.numbers}. {self.advice}"


def traps(profile: TrafficProfile, settings: PublishSettings) -> tuple[TrapFinding, ...]:
    """Return the traps of a producer with this traffic, the most severe first."""
    found = [finding for check in _CHECKS for finding in check(profile, settings)]
    order = list(Severity)
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def key_batches_in_delay(profile: TrafficProfile, messages: float) -> float:
    """Return the number of distinct keys among messages of a partition, which is their number of entries."""
    keys = max(1.0, profile.keys / profile.partitions)
    if not profile.key_skew or keys <= 1:
        return keys * -_expm1_log(1 - 1 / keys, messages) if keys > 1 else 1.0
    shares = zipf_shares(min(round(keys), KEYS_COUNTED_MAX), profile.key_skew)
    return sum(-_expm1_log(1 - share, messages) for share in shares)


def _expm1_log(base: float, power: float) -> float:
    """Return ``base ** power - 1``."""
    return base**power - 1.0 if base > 0 else -1.0


def _batch_limit(profile: TrafficProfile, settings: PublishSettings) -> float:
    """Return the most messages in a batch, by count and bytes."""
    producer = settings.producer
    by_bytes = producer.batching_max_allowed_size_in_bytes / profile.message_bytes
    return max(1.0, min(producer.batching_max_messages, by_bytes))


def _limits(profile: TrafficProfile, settings: PublishSettings) -> Iterator[TrapFinding]:
    producer = settings.producer
    permits = settings.permits_per_partition(profile.partitions)
    if not producer.batching_enabled:
        return
    limit = _batch_limit(profile, settings)
    if permits and limit > permits:
        yield TrapFinding(
            trap=Trap.BATCH_ABOVE_PERMITS, severity=Severity.BROKEN,
            numbers=f"a batch may hold {limit:.0f} messages, a partition has permits for {permits}",
            advice=f"set batching_max_messages to {max(1, permits // 2)}, or max_pending_messages to "
                   f"{2 * round(limit)}",
        )  # fmt: skip
    elif permits and limit > permits / 2 and messages_in_delay(profile, _delay(settings)) > permits / 2:
        yield TrapFinding(
            trap=Trap.NO_PERMITS_FOR_THE_NEXT, severity=Severity.COSTLY,
            numbers=f"a batch may hold {limit:.0f} messages of {permits} permits, and "
                    f"{messages_in_delay(profile, _delay(settings)):.0f} come within the delay",
            advice=f"set batching_max_messages to {max(1, permits // 2)}",
        )  # fmt: skip


def _memory(profile: TrafficProfile, settings: PublishSettings) -> Iterator[TrapFinding]:
    memory = settings.memory_limit_bytes
    if not memory or not settings.producer.batching_enabled:
        return
    # Without keys, one partition's batch is open at a time; with keys, all partitions' are.
    open_batches = profile.partitions if profile.keyed else 1
    expected = min(_batch_limit(profile, settings), max(1.0, messages_in_delay(profile, _delay(settings))))
    needed = 2 * open_batches * expected * profile.message_bytes
    if memory < needed:
        yield TrapFinding(
            trap=Trap.MEMORY_BELOW_BATCH, severity=Severity.BROKEN,
            numbers=f"memory_limit_bytes={memory}, and {open_batches} open "
                    f"{'batch' if open_batches == 1 else 'batches'} of {expected:.0f} messages of "
                    f"{profile.message_bytes:.0f} bytes, with as much waiting for receipts, need "
                    f"{needed:.0f} bytes",
            advice=f"set memory_limit_bytes to {_power_of_two(needed)}, or "
                   f"batching_max_allowed_size_in_bytes to {max(1, int(memory / open_batches / 2))}",
        )  # fmt: skip


def _crumbs(profile: TrafficProfile, settings: PublishSettings) -> Iterator[TrapFinding]:
    producer = settings.producer
    if not producer.batching_enabled:
        yield TrapFinding(
            trap=Trap.NOT_BATCHED, severity=Severity.COSTLY,
            numbers=f"{profile.rate_messages_per_second:.0f} messages a second are as many entries, receipts "
                    "and writes",
            advice="set batching_enabled",
        )  # fmt: skip
        return
    delay = _delay(settings)
    messages = messages_in_delay(profile, delay)
    if messages < CRUMBS_MESSAGES and _batch_limit(profile, settings) > messages:
        advice = f"a delay of {CRUMBS_MESSAGES / messages_in_delay(profile, 1.0) * 1000:.1f} ms would give "
        advice += f"{CRUMBS_MESSAGES}; the latency budget is {profile.latency_budget_seconds * 1000:g} ms"
        if profile.keyed and profile.partitions > 1:
            yield TrapFinding(
                trap=Trap.TOO_MANY_PARTITIONS, severity=Severity.COSTLY,
                numbers=f"keys spread {profile.rate_per_producer:.0f} messages a second over "
                        f"{profile.partitions} partitions: {messages:.1f} messages a batch in "
                        f"{delay * 1000:g} ms",
                advice=f"{advice}; or use fewer partitions",
            )  # fmt: skip
        else:
            yield TrapFinding(
                trap=Trap.CRUMBS, severity=Severity.COSTLY,
                numbers=f"{profile.rate_per_producer:.0f} messages a second and {delay * 1000:g} ms give "
                        f"{messages:.1f} messages a batch",
                advice=advice + ("" if profile.producers == 1 else "; or publish from fewer producers"),
            )  # fmt: skip


def _stay(profile: TrafficProfile, settings: PublishSettings) -> Iterator[TrapFinding]:
    producer = settings.producer
    permits = settings.permits_per_partition(profile.partitions)
    round_robin = producer.message_routing_mode is PartitionsRoutingMode.RoundRobinDistribution
    if profile.keyed or not round_robin or not producer.batching_enabled or profile.partitions == 1:
        return
    stay = max(0.001, _delay(settings) * producer.batching_partition_switch_frequency)
    waiting_seconds = min(stay, _delay(settings) + RECEIPT_SECONDS)
    messages = profile.rate_per_producer * waiting_seconds
    if permits and messages > permits:
        yield TrapFinding(
            trap=Trap.STAY_USES_UP_PERMITS, severity=Severity.COSTLY,
            numbers=f"of a stay of {stay * 1000:g} ms {messages:.0f} messages wait for a receipt at a time "
                    f"({waiting_seconds * 1000:g} ms each), and the partition has permits for {permits}: a "
                    "client that moves on by the clock alone stands still until the stay ends",
            advice="set batching_partition_switch_frequency to 1, or a shorter delay",
        )  # fmt: skip
    round_seconds = stay * profile.partitions
    if round_seconds > ROUND_SECONDS_MAX or profile.partitions > PARTITIONS_ADVISED_MAX:
        yield TrapFinding(
            trap=Trap.TOO_MANY_PARTITIONS, severity=Severity.NOTE,
            numbers=f"{stay * 1000:g} ms on each of {profile.partitions} partitions: a producer comes back "
                    f"to one after {round_seconds:.1f} s",
            advice=f"{max(1, int(ROUND_SECONDS_MAX / stay))} partitions would be gone through within "
                   f"{ROUND_SECONDS_MAX:g} s; more than {PARTITIONS_ADVISED_MAX} are more than is advised",
        )  # fmt: skip


def _keys(profile: TrafficProfile, settings: PublishSettings) -> Iterator[TrapFinding]:
    producer = settings.producer
    if producer.batching_type is not BatchingType.KeyBased or not producer.batching_enabled:
        return
    messages = max(1.0, messages_in_delay(profile, _delay(settings)))
    entries = key_batches_in_delay(profile, messages)
    if profile.keyed and messages / entries < CRUMBS_MESSAGES:
        yield TrapFinding(
            trap=Trap.KEY_BATCHES, severity=Severity.COSTLY,
            numbers=f"{messages:.0f} messages of a partition within the delay have {entries:.0f} of "
                    f"{profile.keys} keys: {messages / entries:.1f} messages an entry",
            advice="use Default batches unless a Key_Shared subscription reads the topic",
        )  # fmt: skip


def _compression(profile: TrafficProfile, settings: PublishSettings) -> Iterator[TrapFinding]:
    producer = settings.producer
    if producer.compression_type is CompressionType.NONE:
        return
    messages = max(1.0, messages_in_delay(profile, _delay(settings)))
    fill = min(messages, _batch_limit(profile, settings)) if producer.batching_enabled else 1.0
    if producer.batching_type is BatchingType.KeyBased and profile.keyed:
        fill = min(fill, messages / key_batches_in_delay(profile, messages))
    if fill < SINGLES_MESSAGES:
        yield TrapFinding(
            trap=Trap.COMPRESSED_SINGLES, severity=Severity.COSTLY,
            numbers=f"{producer.compression_type.name} sees {fill:.1f} messages of "
                    f"{profile.message_bytes:.0f} bytes at once: it costs CPU and saves little, and small "
                    "messages may grow",
            advice="let batches fill first, or send without compression",
        )  # fmt: skip


def _time(profile: TrafficProfile, settings: PublishSettings) -> Iterator[TrapFinding]:
    producer = settings.producer
    delay, timeout = _delay(settings), producer.send_timeout_seconds
    if producer.batching_enabled and timeout and timeout <= delay:
        yield TrapFinding(
            trap=Trap.TIMEOUT_BELOW_DELAY, severity=Severity.BROKEN,
            numbers=f"send_timeout_seconds={timeout:g}, and a batch may wait {delay:g} s before it is sent",
            advice="set a send time-out of at least ten delays, or 0 for none",
        )  # fmt: skip
    budget = profile.latency_budget_seconds
    if producer.batching_enabled and delay > budget:
        yield TrapFinding(
            trap=Trap.BUDGET_BELOW_DELAY, severity=Severity.BROKEN,
            numbers=f"a message may wait {delay * 1000:g} ms for its batch, the latency budget is "
                    f"{budget * 1000:g} ms",
            advice=f"set a delay of {budget * 800:g} ms or less",
        )  # fmt: skip


def _bounds(profile: TrafficProfile, settings: PublishSettings) -> Iterator[TrapFinding]:
    producer = settings.producer
    own, across = producer.max_pending_messages, producer.max_pending_messages_across_partitions
    share = max(1, across // profile.partitions) if across else 0
    if own and share and share < own:
        yield TrapFinding(
            trap=Trap.PERMITS_CUT, severity=Severity.COSTLY,
            numbers=f"max_pending_messages={own} is cut to {across} / {profile.partitions} = {share}",
            advice=f"set max_pending_messages_across_partitions to {own * profile.partitions} or more",
        )  # fmt: skip
    if not own and not across and not settings.memory_limit_bytes:
        yield TrapFinding(
            trap=Trap.UNBOUNDED, severity=Severity.BROKEN,
            numbers="max_pending_messages, max_pending_messages_across_partitions and memory_limit_bytes "
                    f"are 0: a broker that stops for 10 s leaves "
                    f"{10 * profile.payload_bytes_per_second / profile.producers / 1e6:.0f} MB in memory",
            advice="set max_pending_messages or a memory limit",
        )  # fmt: skip
    if profile.producers_per_client > 1 and settings.memory_limit_bytes:
        each = settings.memory_limit_bytes // profile.producers_per_client
        yield TrapFinding(
            trap=Trap.SHARED_MEMORY, severity=Severity.COSTLY,
            numbers=f"{profile.producers_per_client} producers share {settings.memory_limit_bytes} bytes, "
                    f"{each} each: one whose broker is slow takes the others' room",
            advice="give each producer a client of its own",
        )  # fmt: skip
    if not producer.block_if_queue_full:
        yield TrapFinding(
            trap=Trap.REFUSED_WHEN_FULL, severity=Severity.NOTE,
            numbers="block_if_queue_full is off: when the permits are used up, messages are refused, and "
                    "lost unless the application sends them again",
            advice="set block_if_queue_full, or handle ProducerQueueIsFull",
        )  # fmt: skip


def _delay(settings: PublishSettings) -> float:
    return settings.producer.batching_max_publish_delay_seconds


def _power_of_two(wanted: float) -> int:
    size = 1 << 20
    while size < wanted:
        size <<= 1
    return size


_CHECKS: tuple[Callable[[TrafficProfile, PublishSettings], Iterator[TrapFinding]], ...] = (
    _limits, _memory, _crumbs, _stay, _keys, _compression, _time, _bounds,
)  # fmt: skip
