"""The real producer in virtual time: `geminga.producer` unchanged, a modelled broker, a clock that jumps.

The owner of the producer is here what `geminga.client.publisher` is in a client: it appends to the open
batch where that is all there is to do, ticks when a deadline has come, writes the frames, and hands
receipts over. Frames are built, compressed and checksummed as always. Only the network, the broker and the
passing of time are made up (`geminga.tuning.modelled_broker`); everything is drawn from a seed, and the
same arguments give the same result.

A message's latency counts from the time at which it is due, be it that it must wait for permits, to the
receipt.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from geminga.client.publisher import ENCODING_BYTES_MIN, TIMER_SLACK_SECONDS
from geminga.config import check_int, check_seconds
from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull, PulsarException
from geminga.producer.backlog import ByteBudget
from geminga.producer.message import OutgoingMessage
from geminga.producer.operation import SendOperation
from geminga.producer.partition import PartitionProducer
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.statistics import ProducerStatistics
from geminga.tuning.arrivals import MessagePool, arrival_times
from geminga.tuning.modelled_broker import BrokerModel, Fault, FaultKind, ModelledBroker
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.traffic import TrafficProfile
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/simulated"
PRODUCERS_MAX = 64
"""Producers of one run; more of the same kind tell nothing new."""
SECONDS_MAX = 3600.0
MESSAGES_MAX = 50_000_000
MAX_MESSAGE_SIZE = 5 * 1024 * 1024
DRAIN_SECONDS = 60.0
"""How long receipts are waited for at the end; what is stuck for longer stays without."""
_EPOCH_MS = 1_700_000_000_000
_NEVER = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedRun:
    """What a run came to, counted from ``warmup_seconds`` on; rates are a second, times in seconds.

    Both simulations give it; what the batch model does not follow is -1 there.
    """

    seconds: float
    messages: int
    """Messages with a receipt."""
    entries: int
    payload_bytes: int
    """Payload of the entries before compression."""
    wire_bytes: int
    """Frames to the broker."""
    batch_fill: float
    """Messages an entry, on the mean."""
    latency_mean: float
    latency_p50: float
    latency_p90: float
    latency_p99: float
    latency_p999: float
    latency_max: float
    refused: int
    """Messages that the producer did not take because permits or bytes were used up."""
    failed: int
    """Messages that ended with an error."""
    waited_seconds: float
    """How long senders stood still for permits or bytes, over all producers."""
    permits_used_max: int
    """The most permits taken at one time by one producer, those leased by open batches included."""
    memory_used_max: int
    """The same in bytes of the client's memory limit; 0 without a limit."""
    pending_messages_max: int
    """The most messages of one producer without a receipt."""
    stepped_over: int
    stepped_over_seconds: float
    broker_busy_seconds: float
    """Time that the modelled broker worked on entries."""

    @property
    def rate(self) -> float:
        """Messages a second with a receipt."""
        return self.messages / self.seconds

    @property
    def entries_per_second(self) -> float:
        return self.entries / self.seconds

    @property
    def wire_bytes_per_second(self) -> float:
        return self.wire_bytes / self.seconds

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Clock:
    """Virtual time: what is to happen, in order."""

    __slots__ = ("_order", "events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[Any], None], argument: Any = None) -> None:
        heapq.heappush(self.events, (when, next(self._order), action, argument))

    @property
    def next_at(self) -> float:
        return self.events[0][0] if self.events else _NEVER


class _Sender:
    """One application with its client and producer: `geminga.client.publisher` in virtual time."""

    def __init__(
        self,
        clock: _Clock,
        broker: ModelledBroker,
        times: npt.NDArray[np.float64],
        tick_seconds: float,
        pool: MessagePool,
        settings: PublishSettings,
        partitions: int,
        generator: np.random.Generator,
    ) -> None:
        self.clock = clock
        self.broker = broker
        self.settings = settings.producer
        self.memory = ByteBudget(settings.memory_limit_bytes)
        ids = itertools.count()
        self.producer = PartitionedProducer(
            topic=TOPIC,
            partitions=partitions if partitions > 1 else 0,
            settings=settings.producer,
            memory=self.memory,
            new_producer_id=lambda: next(ids),
            random=lambda: float(generator.random()),
        )
        self.finished = np.full(len(times), np.nan)
        self.entries: list[tuple[float, int, int, int]] = []
        """Of each entry written: time, messages, payload bytes, bytes on the wire."""
        self.refused_at: list[float] = []
        self.failed_at: list[float] = []
        self.waits: list[tuple[float, float]] = []
        """When the application stood still, from and until."""
        self.permits_used_max = self.memory_used_max = self.pending_messages_max = 0
        self.times = times
        if tick_seconds:
            times = np.ceil(times / tick_seconds) * tick_seconds
        self._times = array("d", times.tobytes())
        """When the application hands messages over; ``times`` is when it should."""
        self._next = 0
        """The next message to hand over."""
        self._done = 0
        """Messages that have ended, well or not."""
        self._plain_until = 0
        """Messages before this one only need to be appended to the open batch when their time has come."""
        self._arrival_at = _NEVER
        self._waiting_since: float | None = None
        self._held: PartitionProducer | None = None
        self._loop = broker.model.event_loop
        self._timer_at = _NEVER
        """The deadline that the loop has a timer for."""
        self._timer_set_for = _NEVER
        """The same as the loop's clock takes it."""
        self._fires_at = _NEVER
        """When the loop wakes up for it."""
        self._awake_at = 0.0
        """When the loop has woken up for the last message that it was told of."""
        self._link_free_at = 0.0
        self._epochs: dict[PartitionProducer, int] = dict.fromkeys(self.producer.partitions, 0)
        self._reached_at: dict[PartitionProducer, float] = dict.fromkeys(self.producer.partitions, 0.0)
        """When the last entry of a partition comes to the broker."""
        self._take_pool(pool)
        for partition in self.producer.partitions:
            self._connect(partition)
        self._plan()

    def _take_pool(self, pool: MessagePool) -> None:
        """Messages twice over, so that a run of up to the pool's length is one slice."""
        count = len(pool.payloads)
        self._pool_count = count
        self._payloads = pool.payloads * 2
        sums = np.concatenate([[0], np.cumsum(np.tile(pool.sizes, 2))])
        self._size_sums = array("q", sums.astype(np.int64).tobytes())
        self._messages: list[OutgoingMessage] | None = None
        if pool.keys is not None:
            self._messages = [
                OutgoingMessage(payload, partition_key=key)
                for payload, key in zip(pool.payloads, pool.keys, strict=True)
            ]

    # --- connections ------------------------------------------------------------------------------

    def _connect(self, partition: PartitionProducer) -> None:
        if partition.state.value == "not started":
            partition.start()
        success = pb.CommandProducerSuccess(
            request_id=1, producer_name="simulated", last_sequence_id=-1, schema_version=b""
        )
        partition.created(success, MAX_MESSAGE_SIZE, self.clock.now)

    def lose(self, index: int) -> None:
        """The connection of a partition ends, and with it the receipts on their way."""
        self._advance()
        partition = self.producer.partitions[index]
        self._epochs[partition] += 1
        partition.disconnected(None)
        self._after()

    def reconnect(self, index: int) -> None:
        """The partition has a connection again; what has no receipt is sent once more."""
        self._advance()
        self._connect(self.producer.partitions[index])
        self._after()

    # --- messages in ------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Append the messages whose time has come to the open batch, as the hot path of the shells does."""
        first, until = self._next, self._plain_until
        if first < until:
            until = bisect_right(self._times, self.clock.now, first, until)
            if until > first:
                self._append(first, until)

    def _append(self, first: int, until: int) -> None:
        batch = self.producer.hot
        start = first % self._pool_count
        end = start + until - first
        batch.payloads += self._payloads[start:end]
        batch.tokens.extend(range(first, until))
        batch.size += self._size_sums[end] - self._size_sums[start]
        self._next = until

    def _room(self) -> int:
        """How many of the next messages the open batch takes without a look at the producer."""
        if self._messages is not None:
            return 0
        batch = self.producer.hot
        room = min(batch.last - len(batch.payloads), self._pool_count)
        if room <= 0:
            return 0
        start = self._next % self._pool_count
        sums = self._size_sums
        # A payload may be appended as long as the batch stays below its limit with it.
        fitting = bisect_left(sums, sums[start] + batch.size_limit - batch.size, start) - 1 - start
        return max(0, min(room, fitting))

    def _plan(self) -> None:
        """How many messages will only be appended, and when the next one needs the producer's attention."""
        first = self._next
        self._plain_until = first
        if self._waiting_since is not None:
            return
        self._plain_until = min(first + self._room(), len(self._times))
        if self._plain_until < len(self._times):
            at = self._times[self._plain_until]
            if at >= self._fires_at:
                self._arrival_at = _NEVER  # the timer comes first, and plans anew
            elif at != self._arrival_at:
                self._arrival_at = at
                self.clock.at(max(at, self.clock.now), self._arrive, at)

    def _arrive(self, planned: float) -> None:
        """The time of a message that is more than appended, unless the plan has changed meanwhile."""
        if planned != self._arrival_at:
            return
        self._arrival_at = _NEVER
        self._advance()
        self._hand_over()
        self._after()

    def _hand_over(self) -> None:
        """Messages whose time has come go to the producer, until one must wait."""
        times, clock, count = self._times, self.clock, len(self._times)
        agenda = self.producer.agenda
        while self._next < count and self._waiting_since is None and not agenda.attention:
            at = times[self._next]
            if at > clock.now:
                # With keys every message is looked at; up to the next event nothing comes in between.
                if self._messages is None or at >= clock.next_at:
                    return
                clock.now = at
            self._send()
            self._plain_until = min(self._next + self._room(), count)
            self._advance()  # those that came at the same time

    def _send(self) -> None:
        """One message through the producer; where it is refused, it waits, or is counted and gone."""
        producer, now = self.producer, self.clock.now
        place = self._next % self._pool_count
        payload = self._payloads[place]
        message = None if self._messages is None else self._messages[place]
        if message is not None and producer.join(payload, self._next, message):
            self._next += 1
            return
        partition = self._held or producer.choose(message, now)
        try:
            # A batch opens when the loop has woken up for its first message.
            self._awake_at = now + self.broker.model.timer_lag_seconds
            producer.add(payload, self._next, message, self._awake_at, partition=partition)
        except (ProducerQueueIsFull, MemoryBufferIsFull):
            if self.settings.block_if_queue_full:
                producer.close_batches()  # nothing else can come before receipts do
                self._waiting_since = now
                if not producer.router.steps_over and len(producer.partitions) > 1:
                    self._held = partition
                return
            self.refused_at.append(now)
            self._done += 1
        except PulsarException:
            self.failed_at.append(now)
            self._done += 1
        self._held = None
        self._next += 1
        self._look_at_leases()

    # --- the shell --------------------------------------------------------------------------------

    def _after(self) -> None:
        """What the producer asks for, then the plan for what comes."""
        if self.producer.agenda.attention:
            self._run()
        self._plan()

    def _run(self) -> None:
        """Everything the agenda asks for: time, frames out, receipts to their messages, the timer."""
        producer, agenda, now = self.producer, self.producer.agenda, self.clock.now
        deadline = producer.next_deadline()
        if deadline <= now + TIMER_SLACK_SECONDS:
            producer.tick(now + TIMER_SLACK_SECONDS)
            deadline = producer.next_deadline()
        while agenda.writable:
            self.pending_messages_max = max(self.pending_messages_max, self._next - self._done)
            for partition in list(agenda.writable):
                if partition.connected:
                    self._write(partition)
                else:
                    del agenda.writable[partition]
        settled = agenda.take_settled()
        for operation in settled:
            assert isinstance(operation, SendOperation)  # nothing is handed over in runs
            self._settled(operation)
        agenda.attention = False
        if deadline < self._timer_at:
            self._timer_at = agenda.timer_at = deadline
            self._timer_set_for = self._loop.set_for(deadline, max(now, self._awake_at))
        self._sleep()
        if settled and self._waiting_since is not None:
            self._try_again()

    def _try_again(self) -> None:
        """Permits or bytes came back: the sender that waits has its turn."""
        assert self._waiting_since is not None
        self.waits.append((self._waiting_since, self.clock.now))
        self._waiting_since = None
        self._hand_over()
        if self.producer.agenda.attention:
            self._run()

    def _sleep(self) -> None:
        """The loop waits for the timer: in whole milliseconds from now, whatever woke it before."""
        if self._timer_at == _NEVER:
            return
        now = max(self.clock.now, self._awake_at)
        fires_at = self._loop.wakes_at(self._timer_set_for, now) + self.broker.model.timer_lag_seconds
        if fires_at != self._fires_at:
            self._fires_at = fires_at
            self.clock.at(fires_at, self._on_timer, fires_at)

    def _on_timer(self, planned: float) -> None:
        if planned != self._fires_at:
            return
        self._advance()
        self._timer_at = self._fires_at = self.producer.agenda.timer_at = _NEVER
        self._run()
        self._plan()

    def _write(self, partition: PartitionProducer) -> None:
        """Frames to the broker, through the network."""
        now, clock, model = self.clock.now, self.clock, self.broker.model
        written = partition.pending.in_flight
        pieces = partition.take_output(now, _EPOCH_MS + int(now * 1000))
        epoch, free_at = self._epochs[partition], max(self._link_free_at, now)
        operations = itertools.islice(partition.pending, written, None)
        for head, body, operation in zip(pieces[::2], pieces[1::2], operations, strict=False):
            size = len(head) + len(body)
            self.entries.append((now, operation.count, operation.size, size))
            free_at += size / model.bandwidth_bytes_per_second
            reaches_at = free_at + model.network_seconds
            assert isinstance(operation, SendOperation)  # nothing is handed over in runs
            if operation.compression and operation.size >= ENCODING_BYTES_MIN:
                # Another thread has it first; batches of one partition keep their order.
                encoding = model.encoding_seconds + operation.size * model.encoding_byte_seconds
                clock.at(now + encoding, self._woken)
                reaches_at += encoding
            reaches_at = self._reached_at[partition] = max(reaches_at, self._reached_at[partition])
            clock.at(reaches_at, self._reach_broker, (operation, epoch, size))
        self._link_free_at = free_at

    def _woken(self, _: None) -> None:
        """Something else than time, messages or receipts has woken the loop."""
        self._advance()
        self._run()
        self._plan()

    def _reach_broker(self, entry: tuple[SendOperation, int, int]) -> None:
        operation, _, size = entry
        partition = operation.partition
        kept = self.broker.arrive(self.clock.now, partition, max(0, partition.index), size)
        self.clock.at(kept + self.broker.model.network_seconds, self._receive, entry)

    def _receive(self, entry: tuple[SendOperation, int, int]) -> None:
        """A receipt, unless its connection is gone."""
        operation, epoch, _ = entry
        partition = operation.partition
        if epoch != self._epochs[partition]:
            return
        self._advance()
        partition.receipt(
            operation.sequence_id, operation.highest_sequence_id, 1, self.broker.entries, self.clock.now
        )
        self._after()

    def _settled(self, operation: SendOperation) -> None:
        tokens = operation.tokens
        self._done += len(tokens)
        if operation.error is not None:
            self.failed_at += [self.clock.now] * len(tokens)
            return
        first, last = tokens[0], tokens[-1]
        telling = self.broker.model.telling_seconds
        at = self.clock.now + telling * np.arange(len(tokens)) if telling else self.clock.now
        if last - first == len(tokens) - 1:
            self.finished[first : last + 1] = at
        else:
            self.finished[tokens] = at

    def _look_at_leases(self) -> None:
        """Permits and bytes are taken where messages are handed over: they are highest there."""
        if self.producer.shared.used > self.permits_used_max:
            self.permits_used_max = self.producer.shared.used
        if self.memory.used > self.memory_used_max:
            self.memory_used_max = self.memory.used

    def end(self) -> None:
        """No message comes any more: what is open is sent."""
        self._advance()
        self.producer.close_batches()
        self._run()

    @property
    def done(self) -> bool:
        return self._done >= len(self._times)


def simulate(
    profile: TrafficProfile,
    settings: PublishSettings,
    broker: BrokerModel | None = None,
    *,
    seconds: float = 10.0,
    warmup_seconds: float = 1.0,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    even: bool = False,
    tick_seconds: float = 0.0,
    samples: list[bytes] | None = None,
) -> SimulatedRun:
    """Publish the profile's traffic with these settings for ``seconds`` of virtual time.

    ``faults`` hit partitions of the modelled broker. Messages come at random, or ``even`` as a benchmark's
    sender has them; one that sleeps in between hands over what has become due at the end of each
    ``tick_seconds``. ``samples`` are payloads to send. The first ``warmup_seconds`` are not counted. Raises
    `InvalidConfiguration` for a run that is too large.
    """
    check_seconds("seconds", seconds, 0.001, SECONDS_MAX)
    check_seconds("warmup_seconds", warmup_seconds, 0.0, 0.9 * seconds)
    check_int("seed", seed, 0)
    check_int("profile.producers", profile.producers, 1, PRODUCERS_MAX)
    check_int("messages of the run", round(profile.rate_messages_per_second * seconds), 0, MESSAGES_MAX)
    for fault in faults:
        check_int("fault.partition", fault.partition, 0, profile.partitions - 1)
    # One generator for each purpose: other settings do not change the traffic.
    traffic, chance, wires = np.random.default_rng(seed).spawn(3)
    clock = _Clock()
    modelled = ModelledBroker(broker or BrokerModel(), faults, wires)
    pool = MessagePool.of(profile, traffic, samples)
    senders = []
    for _ in range(profile.producers):
        times = arrival_times(profile.rate_per_producer, seconds, profile.bursts, traffic, even=even)
        senders.append(
            _Sender(clock, modelled, times, tick_seconds, pool, settings, profile.partitions, chance)
        )
    for fault in faults:
        if fault.kind is FaultKind.LOST:
            for sender in senders:
                clock.at(fault.start_seconds, sender.lose, fault.partition)
                if fault.end_seconds < seconds + DRAIN_SECONDS:
                    clock.at(fault.end_seconds, sender.reconnect, fault.partition)
    return _World(clock, modelled, senders, seconds, warmup_seconds).play()


class _World:
    """One run: its clock, its broker, its senders."""

    def __init__(
        self,
        clock: _Clock,
        broker: ModelledBroker,
        senders: list[_Sender],
        seconds: float,
        warmup_seconds: float,
    ) -> None:
        self.clock = clock
        self.broker = broker
        self.senders = senders
        self.seconds = seconds
        self.warmup_seconds = warmup_seconds

    def play(self) -> SimulatedRun:
        clock, events = self.clock, self.clock.events
        for end, draining in ((self.seconds, False), (self.seconds + DRAIN_SECONDS, True)):
            while events and events[0][0] < end:
                if draining and all(sender.done for sender in self.senders):
                    break
                when, _, action, argument = heapq.heappop(events)
                if when > clock.now:
                    clock.now = when
                action(argument)
            if not draining:
                clock.now = self.seconds
                for sender in self.senders:
                    sender.end()
        return self._result()

    def _result(self) -> SimulatedRun:
        latencies = np.concatenate(
            [(sender.finished - sender.times)[sender.times >= self.warmup_seconds] for sender in self.senders]
        )
        latencies = latencies[~np.isnan(latencies)]
        entries = [
            entry
            for sender in self.senders
            for entry in sender.entries
            if self.warmup_seconds <= entry[0] <= self.seconds
        ]
        messages = sum(entry[1] for entry in entries)
        statistics: list[ProducerStatistics] = [sender.producer.statistics() for sender in self.senders]
        return SimulatedRun(
            seconds=self.seconds - self.warmup_seconds,
            messages=len(latencies),
            entries=len(entries),
            payload_bytes=sum(entry[2] for entry in entries),
            wire_bytes=sum(entry[3] for entry in entries),
            batch_fill=messages / len(entries) if entries else 0.0,
            **latency_fields(latencies),
            refused=sum(self._counts(sender.refused_at) for sender in self.senders),
            failed=sum(self._counts(sender.failed_at) for sender in self.senders),
            waited_seconds=sum(
                max(0.0, end - max(start, self.warmup_seconds))
                for sender in self.senders
                for start, end in sender.waits
            ),
            permits_used_max=max(sender.permits_used_max for sender in self.senders),
            memory_used_max=max(sender.memory_used_max for sender in self.senders),
            pending_messages_max=max(sender.pending_messages_max for sender in self.senders),
            stepped_over=sum(s.stepped_over for s in statistics),
            stepped_over_seconds=sum(s.stepped_over_seconds for s in statistics),
            broker_busy_seconds=self.broker.busy_seconds,
        )

    def _counts(self, times: list[float]) -> int:
        return sum(time >= self.warmup_seconds for time in times)


def latency_fields(latencies: npt.NDArray[np.float64]) -> dict[str, float]:
    """The latency fields of a `SimulatedRun`, NaN without any message."""
    if not len(latencies):
        names = ("mean", "p50", "p90", "p99", "p999", "max")
        return {f"latency_{name}": float("nan") for name in names}
    p50, p90, p99, p999 = np.quantile(latencies, [0.5, 0.9, 0.99, 0.999])
    return {
        "latency_mean": float(latencies.mean()),
        "latency_p50": float(p50),
        "latency_p90": float(p90),
        "latency_p99": float(p99),
        "latency_p999": float(p999),
        "latency_max": float(latencies.max()),
    }


__all__ = ["SimulatedRun", "simulate"]
