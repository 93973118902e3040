"""A whole producer against simulated brokers in virtual time, judged by an auditor of its own.

Every seed is one run: random messages of every kind, and connections that drop, stall and reconnect,
receipts that are lost or come twice, refused creations, failing sends, unloads. The auditor knows only
what was handed over, what the brokers stored and which callbacks came.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from producing import producer_of, success

from geminga import errors
from geminga.producer.message import OutgoingMessage, simple_message
from geminga.producer.operation import SendOperation
from geminga.producer.partition import PartitionProducer, SendErrorVerdict
from geminga.producer.pending_limits import ByteBudget
from geminga.producer.settings import BatchingType, CompressionType, PartitionsRoutingMode, ProducerSettings
from geminga.producer.states import ENDED, ProducerState
from geminga.wire.batch import decode_batch, encode_plain_batch
from geminga.wire.client_frames import ReceiptRun
from geminga.wire.compression import decompress
from geminga.wire.frames import FrameDecoder, ReceiptFrame
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

PERSISTENCE, CHECKSUM, NOT_ALLOWED, NOT_READY = 2, 9, 22, 6


class Clock:
    """Virtual time: events in order, nothing sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._order), action))

    def step(self) -> bool:
        if not self._events:
            return False
        self.now, _, action = heapq.heappop(self._events)
        action()
        return True

    @property
    def next_at(self) -> float:
        return self._events[0][0] if self._events else float("inf")


class Connection:
    """One connection between a partition and its broker: bytes arrive in order, or never."""

    def __init__(self, world: World, partition: PartitionProducer) -> None:
        self.world = world
        self.partition = partition
        self.open = True
        self.stalled_until = 0.0
        self.run: CountedRun | None = None
        """The receipts that were answered last, as long as more may join them."""
        self._decoder = FrameDecoder()
        self._up = self._down = 0.0

    def write(self, data: bytes) -> None:
        self._up = max(self._up, self.world.clock.now + self.world.random.uniform(0.0001, 0.02))
        self.world.clock.at(self._up, lambda: self._arrive(data))

    def _arrive(self, data: bytes) -> None:
        broker = self.world.brokers[self.partition.topic]
        for frame in self._decoder.feed(data):
            broker.handle(self, frame)

    def answer(self, action: Callable[[PartitionProducer], None]) -> None:
        """Something from the broker, in order, unless the connection ends before."""
        self.run = None
        delay = self.world.random.uniform(0.0001, 0.02)
        self._down = max(self._down, self.world.clock.now + delay, self.stalled_until)
        self.world.clock.at(self._down, lambda: self._deliver(action))

    def _deliver(self, action: Callable[[PartitionProducer], None]) -> None:
        if not self.open:
            return
        try:
            action(self.partition)
        except errors.ProtocolError:
            self.world.protocol_errors += 1
            self.drop()
        self.world.run()

    def drop(self) -> None:
        if self.open:
            self.open = False
            self.world.lost(self)


class CountedRun:
    """Receipts of single messages that follow each other: ``count`` grows until they are delivered."""

    def __init__(self, sequence_id: int, ledger_id: int, entry_id: int) -> None:
        self.first = ReceiptFrame(0, sequence_id, 0, ledger_id, entry_id)
        self.count = 1
        self.delivered = False

    def next(self, send: Any, ledger_id: int, entry_id: int) -> bool:
        """Whether a receipt is the next, and was counted."""
        first = self.first
        if (
            self.delivered
            or send.highest_sequence_id > 0
            or send.sequence_id != first.sequence_id + self.count
            or (ledger_id, entry_id) != (first.ledger_id, first.entry_id + self.count)
        ):
            return False
        self.count += 1
        return True


class SimulatedBroker:
    """Stores entries of one partition. ``log`` holds (payload, position) of every message it kept."""

    def __init__(self, world: World, topic: str) -> None:
        self.world = world
        self.topic = topic
        self.deduplicates = world.deduplicates
        self.owner: Connection | None = None
        self.log: list[tuple[bytes, tuple[int, int, int]]] = []
        # An earlier session under the same name got this far.
        self.highest = world.random.choice([-1, 500]) if world.deduplicates else -1
        self.entries = 0
        self._chunks: dict[str, list[bytes]] = {}
        self._never_allowed: set[int] = set()

    def handle(self, connection: Connection, frame: Any) -> None:
        if frame.type == pb.BaseCommand.PRODUCER:
            if connection.open:
                self._create(connection, frame.command.producer)
        elif frame.type == pb.BaseCommand.SEND and self.owner is connection:
            # Frames of a lost connection still arrive, until the producer is created on the next one.
            self._store(connection, frame, frame.entry)

    def _create(self, connection: Connection, command: pb.CommandProducer) -> None:
        world = self.world
        if world.faults() and world.random.random() < 0.2:
            error = errors.from_server(NOT_READY, "moving")
            connection.answer(lambda p: world.refused(connection, error))
            return
        self.owner = connection
        created = success(
            request_id=command.request_id,
            producer_name=command.producer_name or "made-by-broker",
            last_sequence_id=self.highest if self.deduplicates else -1,
        )
        connection.answer(lambda p: p.created(created, world.max_message_size, world.clock.now))

    def _store(self, connection: Connection, send: Any, entry: Any) -> None:
        world, chance = self.world, self.world.random.random()
        parsed = parse_entry(entry)
        metadata = parsed.metadata
        assert send.sequence_id == metadata.sequence_id
        assert metadata.producer_name
        highest = max(send.sequence_id, send.highest_sequence_id)
        assert len(entry) <= world.max_message_size + 14
        chunked = metadata.num_chunks_from_msg > 1
        last_chunk = metadata.chunk_id == metadata.num_chunks_from_msg - 1
        if highest in self._never_allowed or (world.faults() and chance < 0.01 and not chunked):
            # A rejected message stays rejected: the answer may be lost and the message resent.
            self._never_allowed.add(highest)
            world.not_allowed += 1
            connection.answer(lambda p: world.send_error(connection, NOT_ALLOWED, highest))
            return
        if world.faults() and chance < 0.02:
            code = world.random.choice([CHECKSUM, PERSISTENCE])
            connection.answer(lambda p: world.send_error(connection, code, highest))
            self.owner = None  # nothing of this producer is taken until it is created again
            return
        checked = not chunked or last_chunk
        if self.deduplicates and checked and send.sequence_id <= self.highest:
            self._receipt(connection, send, -1, -1)
            return
        if checked:
            self.highest = max(self.highest, highest)
        self.entries += 1
        self._keep(metadata, bytes(parsed.payload), self.entries)
        self._receipt(connection, send, 7, self.entries)

    def _keep(self, metadata: pb.MessageMetadata, payload: bytes, entry_id: int) -> None:
        if metadata.num_chunks_from_msg > 1:
            chunks = self._chunks.setdefault(metadata.uuid, [])
            if metadata.chunk_id == 0:
                chunks.clear()
            if metadata.chunk_id != len(chunks):
                return  # repeated after a reconnect: a consumer ignores it
            chunks.append(payload)
            if len(chunks) < metadata.num_chunks_from_msg:
                return
            payload = b"".join(chunks)
            assert len(payload) == metadata.total_chunk_msg_size
            chunks.clear()
        payload = decompress(
            metadata.compression, payload, metadata.uncompressed_size or len(payload), limit=1 << 24
        )
        if metadata.HasField("num_messages_in_batch"):
            messages = decode_batch(payload, metadata.num_messages_in_batch)
            for index, message in enumerate(messages):
                self.log.append((bytes(message.payload), (7, entry_id, index)))
        else:
            self.log.append((payload, (7, entry_id, -1)))

    def _receipt(self, connection: Connection, send: Any, ledger_id: int, entry_id: int) -> None:
        world = self.world
        arguments = (send.sequence_id, send.highest_sequence_id, ledger_id, entry_id)
        times = 1
        if world.faults() and not send.is_chunk and world.random.random() < 0.03:
            times = 2
            world.repeated_receipts += 1
        if world.faults() and world.random.random() < 0.01:
            world.clock.at(world.clock.now + 0.001, connection.drop)  # the receipt may be lost
        run = connection.run
        if times == 1 and run is not None and run.next(send, ledger_id, entry_id):
            world.runs_received += 1
            return
        if send.highest_sequence_id <= 0 and ledger_id > 0 and world.random.random() < 0.5:
            run = CountedRun(send.sequence_id, ledger_id, entry_id)
            for _ in range(times):
                connection.answer(lambda p: world.receipts(p, run))
            connection.run = run if times == 1 else None
            return
        for _ in range(times):
            connection.answer(lambda p: p.receipt(*arguments, now=world.clock.now))


class World:
    """The producer's owner, as a shell would be, and everything around it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.deduplicates = self.random.random() < 0.5
        self.max_message_size = self.random.choice([5 * 1024 * 1024, 20_000, 2_000])
        self.faults_until = self.random.uniform(0.5, 4.0)
        self.protocol_errors = self.not_allowed = self.repeated_receipts = 0
        self.settings = self._settings()
        self.memory = ByteBudget(self.random.choice([0, 0, 60_000]))
        self.partition_count = self.random.choice([0, 1, 3, 8])
        self.producer = producer_of(
            self.partition_count, self.settings, memory=self.memory, random=self.random.random
        )
        self.brokers = {p.topic: SimulatedBroker(self, p.topic) for p in self.producer.partitions}
        self.connections: dict[PartitionProducer, Connection] = {}
        self.sent: dict[str, list[bytes]] = defaultdict(list)
        self.outcomes: dict[bytes, list[tuple[Exception | None, tuple[int, int, int]]]] = defaultdict(list)
        self.reconnects: Counter[str] = Counter()
        self.refusals = self.runs_received = self.runs_sent = 0
        self._numbers = itertools.count()
        self._timer_at = float("inf")
        self._request_ids = itertools.count()
        self._lazy = self.settings.lazy_start_partitioned_producers

    def _settings(self) -> ProducerSettings:
        r = self.random
        batching = r.random() < 0.6
        runs = not batching and r.random() < 0.6
        chunking = not batching and not runs and r.random() < 0.5
        return ProducerSettings(
            send_timeout_seconds=r.choice([0.0, 30.0, 30.0, 0.5]),
            max_pending_messages=r.choice([0, 5, 100, 1000]),
            max_pending_messages_across_partitions=r.choice([0, 20, 50_000]),
            compression_type=CompressionType.NONE if runs else r.choice(list(CompressionType)),
            batching_enabled=batching,
            batching_type=r.choice([BatchingType.Default, BatchingType.Default, BatchingType.KeyBased]),
            batching_max_messages=r.choice([1, 2, 7, 100]),
            batching_max_allowed_size_in_bytes=r.choice([10, 200, 128 * 1024]),
            batching_max_publish_delay_seconds=r.choice([0.0, 0.001, 0.01]),
            chunking_enabled=chunking,
            chunk_max_message_size=r.choice([None, 700]) if chunking else None,
            message_routing_mode=r.choice(
                [PartitionsRoutingMode.RoundRobinDistribution, PartitionsRoutingMode.UseSinglePartition]
            ),
            lazy_start_partitioned_producers=r.random() < 0.3,
            producer_name=r.choice([None, "mine"]),
        )

    def faults(self) -> bool:
        return self.clock.now < self.faults_until

    # --- the shell's part ---
    def start(self) -> None:
        if not self._lazy:
            for partition in self.producer.partitions:
                partition.start()
                self.connect_soon(partition)
        self.run()

    def connect_soon(self, partition: PartitionProducer) -> None:
        self.clock.at(self.clock.now + self.random.uniform(0.0, 0.2), lambda: self._connect(partition))

    def _connect(self, partition: PartitionProducer) -> None:
        current = self.connections.get(partition)
        if partition.state in ENDED or (current is not None and current.open):
            return
        connection = self.connections[partition] = Connection(self, partition)
        from geminga.wire.frames import encode_command

        connection.write(encode_command(partition.create_command(next(self._request_ids))))

    def refused(self, connection: Connection, error: Exception) -> None:
        partition = connection.partition
        connection.open = False
        if partition.is_terminal(error):
            partition.fail(error, self.clock.now)
        else:
            partition.refused(error, self.clock.now)
            self.connect_soon(partition)

    def send_error(self, connection: Connection, code: int, sequence_id: int) -> None:
        partition = connection.partition
        verdict = partition.send_error(code, sequence_id, "simulated", self.clock.now)
        if verdict is SendErrorVerdict.DETACH:
            connection.drop()

    def receipts(self, partition: PartitionProducer, run: CountedRun) -> None:
        run.delivered = True
        partition.receipts(ReceiptRun(run.first, run.count), self.clock.now)

    def lost(self, connection: Connection) -> None:
        partition = connection.partition
        self.reconnects[partition.topic] += 1
        partition.disconnected(None)
        if partition.state not in ENDED:
            self.connect_soon(partition)
        self.run()

    def run(self) -> None:
        """Serve the ready set's work, like the client."""
        ready_set = self.producer.ready_set
        ready_set.attention = False
        self.producer.tick(self.clock.now)
        for partition in list(ready_set.writable):
            connection = self.connections.get(partition)
            if connection is None or not connection.open:
                del ready_set.writable[partition]
                continue
            while partition in ready_set.writable:
                for piece in partition.take_output(self.clock.now, 1_700_000_000_000):
                    connection.write(bytes(piece))
        unstarted, self.producer.unstarted = self.producer.unstarted, []
        for partition in unstarted:
            self.connect_soon(partition)
        for operation in ready_set.take_settled():
            self._deliver(operation)
        deadline = self.producer.next_deadline()
        if deadline < self._timer_at:
            ready_set.timer_at = self._timer_at = deadline
            self.clock.at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = self.producer.ready_set.timer_at = float("inf")
        self.run()

    def _deliver(self, operation: SendOperation) -> None:
        assert operation.settled
        if operation.is_run:
            for index, payload in enumerate(operation.open_tokens):
                place = (operation.ledger_id, operation.entry_id, -1)
                if operation.error is None and not operation.duplicate:
                    place = (operation.ledger_id, operation.entry_id + index, -1)
                self.outcomes[payload].append((operation.error, place))
            return
        for index, token in enumerate(operation.tokens):
            place = (operation.ledger_id, operation.entry_id, index if operation.is_batch else -1)
            payloads = token if isinstance(token, list) else [token]
            for position, payload in enumerate(payloads):
                if isinstance(token, list):
                    place = (operation.ledger_id, operation.entry_id, position)
                self.outcomes[payload].append((operation.error, place))

    # --- the application's part ---
    def payload(self, size: int | None = None) -> bytes:
        number = next(self._numbers)
        size = self.random.choice([10, 50, 50, 300]) if size is None else size
        return b"%d:" % number + self.random.randbytes(size // 2).hex().encode()

    def act(self) -> None:
        chance = self.random.random()
        if chance < 0.4:
            self._send_many([self.payload() for _ in range(self.random.choice([1, 5, 30, 200]))])
        elif chance < 0.5:
            for _ in range(self.random.choice([1, 1, 5, 30])):
                self._send_plain()
        elif chance < 0.7:
            self._send_rich()
        elif chance < 0.75:
            self._send(self.payload(3000), None)
        elif chance < 0.8:
            self._submit()
        elif chance < 0.85:
            self.producer.close_batches()
            self.run()
        elif self.faults():
            self._fault()

    def _send_plain(self) -> None:
        self._send_many([self.payload()])

    def _send_many(self, payloads: list[bytes]) -> None:
        """As many as are taken together; the first that is not is sent as any other."""
        messages = None
        if self.random.random() < 0.4:
            messages = [self.random.choice([None, simple_message(p, None, (("k", "v"),))]) for p in payloads]
        joined = self.producer.joined
        tails = {partition: partition.pending.tail for partition in self.producer.partitions}
        count = self.producer.add_many(payloads, payloads, messages, 0, self.clock.now)
        if joined is not None and joined.batch is not None and count:
            self.sent[joined.topic] += payloads[:count]
        else:
            for partition, tail in tails.items():
                pending = list(partition.pending)
                for run in pending[pending.index(tail) + 1 if tail else 0 :]:
                    self.sent[partition.topic] += run.tokens
                    self.runs_sent += 1
        if self.producer.ready_set.attention:
            self.run()
        if count < len(payloads):
            self._send(payloads[count], None if messages is None else messages[count])

    def _send_rich(self) -> None:
        r = self.random
        payload = self.payload()
        message = OutgoingMessage(
            payload,
            partition_key=r.choice([None, "a", "b", "c"]),
            ordering_key=r.choice([None, b"o"]),
            properties=r.choice([(), (("k", "v"),)]),
            event_time=r.choice([0, 5]),
            deliver_at_time=r.choice([0, 0, 9]),
        )
        self._send(payload, message, urgent=r.random() < 0.3)

    def _send(self, payload: bytes, message: OutgoingMessage | None, urgent: bool = False) -> None:
        producer = self.producer
        partition = producer.choose(message, self.clock.now)
        try:
            producer.add(payload, payload, message, self.clock.now, partition=partition, urgent=urgent)
        except (errors.ProducerQueueIsFull, errors.MemoryBufferIsFull):
            self.refusals += 1
        except errors.PulsarException:
            assert partition.state in ENDED or len(payload) > 700
        else:
            self.sent[partition.topic].append(payload)
        if producer.ready_set.attention:
            self.run()

    def _submit(self) -> None:
        partition = self.random.choice(self.producer.partitions)
        if partition.state is ProducerState.NOT_STARTED or partition.state in ENDED:
            return
        payloads = [self.payload() for _ in range(self.random.randrange(1, 5))]
        body = encode_plain_batch(payloads, 0)
        operation = SendOperation.of_encoded(
            body, len(payloads), (-1, -1), compression=0, uncompressed_size=len(body)
        )
        operation.tokens = [payloads]
        try:
            partition.submit(operation, self.clock.now)
        except errors.MemoryBufferIsFull:
            self.refusals += 1
        else:
            self.sent[partition.topic] += payloads
        self.run()

    def _fault(self) -> None:
        connections = [c for c in self.connections.values() if c.open]
        if not connections:
            return
        connection = self.random.choice(connections)
        if self.random.random() < 0.5:
            connection.drop()
        else:
            connection.stalled_until = self.clock.now + self.random.uniform(0.1, 1.0)

    # --- one run ---
    def play(self) -> None:
        self.start()
        until = self.faults_until + 1.0
        act_at = 0.0
        while act_at < until:
            while self.clock.next_at <= act_at:
                self.clock.step()
            self.clock.now = max(self.clock.now, act_at)
            self.act()
            act_at += self.random.choice([0.0, 0.001, 0.02, 0.3])
        self.producer.close_batches()
        self.run()
        steps = 0
        while self.producer.pending_messages and self.clock.step():
            steps += 1
            assert steps < 200_000, "does not come to rest"


class Auditor:
    """Judges a run by what was handed over, what was stored, and which callbacks came."""

    def __init__(self, world: World) -> None:
        self.world = world

    def check(self) -> None:
        self.callbacks_came_once()
        for topic, broker in self.world.brokers.items():
            self.nothing_lost_or_changed(topic, broker)
            self.order_is_kept(topic, broker)
            self.duplicates_are_explained(topic, broker)
        self.nothing_leaked()

    def callbacks_came_once(self) -> None:
        sent = [payload for payloads in self.world.sent.values() for payload in payloads]
        assert len(sent) == len(set(sent))
        for payload in sent:
            assert len(self.world.outcomes[payload]) == 1, (payload, self.world.outcomes[payload])
        assert {p for p, o in self.world.outcomes.items() if o} == set(sent)

    def nothing_lost_or_changed(self, topic: str, broker: SimulatedBroker) -> None:
        places = {place: payload for payload, place in broker.log}
        stored = set(places.values())
        for payload in self.world.sent[topic]:
            error, place = self.world.outcomes[payload][0]
            if error is not None:
                continue
            assert payload in stored, f"{payload[:10]!r} was receipted and is not stored"
            if place[0] == -1:
                assert broker.deduplicates
            else:
                # A message in chunks whose last ones were stored twice is read from the first copies.
                assert places.get(place, payload) == payload
                assert place in places or self.world.settings.chunking_enabled
        assert stored <= set(self.world.sent[topic])

    def order_is_kept(self, topic: str, broker: SimulatedBroker) -> None:
        if self.world.settings.batching_type is BatchingType.KeyBased:
            return  # keeps the order of each key only; checked in test_batching
        position = {payload: index for index, payload in enumerate(self.world.sent[topic])}
        firsts = list(dict.fromkeys(payload for payload, _ in broker.log))
        order = [position[payload] for payload in firsts]
        assert order == sorted(order)

    def duplicates_are_explained(self, topic: str, broker: SimulatedBroker) -> None:
        copies = Counter(payload for payload, _ in broker.log)
        most = max(copies.values(), default=1)
        if broker.deduplicates:
            assert most == 1
        assert most <= 1 + self.world.reconnects[topic]

    def nothing_leaked(self) -> None:
        producer = self.world.producer
        assert producer.pending_messages == 0
        assert producer.shared.used == 0
        assert self.world.memory.used == 0
        for partition in producer.partitions:
            assert partition.limits.own.used == 0
            assert len(partition.pending) == 0
        statistics = producer.statistics()
        messages = sum(map(len, self.world.sent.values()))
        assert statistics.acknowledged_messages + statistics.failed_messages == messages


def run_seed(seed: int) -> World:
    world = World(seed)
    world.play()
    try:
        Auditor(world).check()
    except AssertionError as error:
        raise AssertionError(f"--seed {seed}: {error}") from error
    return world


@pytest.mark.simulation(50, 25)
def test_every_message_is_accounted_for(seeds):
    for seed in seeds:
        run_seed(seed)


def test_the_simulation_causes_every_kind_of_fault_and_recovery():
    worlds = [run_seed(seed) for seed in range(60)]
    assert any(w.refusals for w in worlds)
    assert sum(w.runs_sent for w in worlds) > 100
    assert sum(w.runs_received for w in worlds) > 100
    assert any(w.not_allowed for w in worlds)
    assert any(w.repeated_receipts for w in worlds)
    assert sum(sum(w.reconnects.values()) for w in worlds) > 50
    statistics = [w.producer.statistics() for w in worlds]
    assert any(s.timeouts for s in statistics)
    assert any(s.duplicates for s in statistics)
    assert any(s.stepped_over for s in statistics)
    assert any(s.resent_operations for s in statistics)
    assert any(s.late_receipts for s in statistics)
    assert any(s.checksum_errors for s in statistics)
