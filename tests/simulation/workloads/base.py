"""Base of the workloads: programs that use one topic, and judge in the end what they saw."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar

from geminga import BatchingType, ConsumerType, InitialPosition, MessageId, PulsarException, ids
from geminga.broker.admin.errors import AdminRefusal, admin_error
from geminga.broker.admin.topic_actions import TopicActions
from geminga.broker.runtime.refusal import Refused
from geminga.errors import StoreStopped
from geminga.ids import TopicName
from geminga.ledger.api import Done
from tests.simulation import checker
from tests.simulation.checker import Stored
from tests.simulation.history import Event, History, Position

if TYPE_CHECKING:
    from tests.simulation.world import World

PATIENCE_SECONDS = 900.0


def position_of(message_id: Any) -> Position:
    return (
        max(message_id.partition(), 0), message_id.ledger_id(), message_id.entry_id(),
        max(message_id.batch_index(), 0),
    )  # fmt: skip


class Workload:
    """Programs of one kind. They `prepare`, `work` while faults happen, `settle` after them, and `judge`."""

    name: ClassVar[str]
    domain: ClassVar = "persistent"
    keeps_all: ClassVar = False
    """Whether the broker must retain acknowledged messages."""
    judges_flips: ClassVar = False
    """Whether `stored` returns the same whenever the broker is calm."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.numbers = random.Random(f"{world.seed} {self.name}")
        self.topic = f"{self.domain}://public/default/{self.name}"
        self.history = History(lambda: world.clock.now, world.history, self.name)
        self.handed_over: Counter[str] = Counter()
        self.chunking: set[str] = set()
        """Producers that chunk."""
        self.large: set[str] = set()
        """Messages that they send in chunks."""
        self.tasks: list[asyncio.Task[Any]] = []

    async def prepare(self) -> None:
        """Open what must exist before the first fault."""

    async def work(self) -> None:
        """Use the topic while faults happen; returns when everything is sent."""

    async def settle(self) -> None:
        """Wait, without faults, until everything is done."""

    async def judge(self) -> None:
        """Check the history."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background until the workload is judged; a failure ends the world's run."""
        self.tasks.append(self.world.watch(asyncio.create_task(work)))

    async def pause(self, shortest: float, longest: float) -> None:
        """Sleep some seconds of this world's pace."""
        await self.world.pass_time(self.numbers.uniform(shortest, longest) * self.world.pace)

    async def until_it_works(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Call again after each refusal: the broker is going, or its disk fails."""
        async with asyncio.timeout(self.world.patience):
            while True:
                try:
                    return await call()
                except PulsarException:
                    await self.world.pass_time(0.1)

    async def until(
        self, holds: Callable[[], Any], what: Callable[[], str], seconds: float | None = None
    ) -> None:
        """Wait until something holds."""
        end = self.world.clock.now + (seconds or self.world.patience)
        while not holds():
            assert self.world.clock.now < end, what()
            await self.world.pass_time(0.5)

    async def until_acknowledged(self, name: str) -> None:
        """Wait until a subscription has acknowledged all that has a receipt."""
        expected, missing = self.expected(), checker.missing
        await self.until(
            lambda: not missing(self.history, expected, name),
            lambda: f"{name} never acknowledged {missing(self.history, expected, name)}",
        )

    # --- publishing ---
    def producer_options(self) -> dict[str, Any]:
        """Draw batches, chunks or neither."""
        r = self.numbers
        is_batched = r.random() < 0.5
        options: dict[str, Any] = {
            "batching_enabled": is_batched, "block_if_queue_full": True, "send_timeout_millis": 0,
            "max_pending_messages": r.choice([1, 5, 1000]), "partitions_refresh_seconds": 5,
        }  # fmt: skip
        if is_batched:
            options |= {"batching_max_messages": r.choice([2, 10]), "batching_max_publish_delay_ms": 5}
        elif r.random() < 0.3:
            options |= {"chunking_enabled": True, "chunk_max_message_size": 2000}
        return options

    async def publish(self, name: str, count: int, *, topic: str = "", **options: Any) -> None:
        """Publish messages with a producer of their own."""
        r = self.numbers
        options = self.producer_options() | options
        if options.get("batching_type") is BatchingType.KeyBased:
            options.pop("chunking_enabled", None)
        if options.get("chunking_enabled"):
            self.chunking.add(name)
        producer = await self.until_it_works(
            lambda: self.world.client.create_producer(topic or self.topic, name, **options)
        )
        sending: list[asyncio.Task[None]] = []
        for _ in range(count):
            sending.append(asyncio.create_task(self.send(producer, name)))
            if r.random() < 0.3:
                await asyncio.wait([sending[-1]])
            elif r.random() < 0.3:
                await self.world.pass_time(r.choice([0, 0.02, 0.5]) * self.world.pace)
        await asyncio.gather(*sending)
        await producer.close()

    def draw_key(self, name: str) -> str:
        return f"{name}.{self.numbers.randrange(3)}" if self.numbers.random() < 0.7 else ""

    async def send(self, producer: Any, name: str, **options: Any) -> None:
        """Send the next message of a producer."""
        size = self.numbers.choice([0, 0, 0, 100, 5000])
        key = self.draw_key(name)
        content = f"{name}-{self.handed_over[name]}"  # numbered when handed over, not when the task was made
        self.handed_over[name] += 1
        if size > 2000 and name in self.chunking:
            self.large.add(content)
        await self.send_this(producer, name, content, key, b" " * size, **options)

    async def send_this(
        self, producer: Any, name: str, content: str, key: str, padding: bytes = b"", **options: Any
    ) -> bool:
        """Send one message; return whether it has a receipt."""
        self.history.add("send", name, content, detail=key)
        try:
            found = await producer.send(content.encode() + padding, partition_key=key or None, **options)
        except PulsarException as error:
            self.history.add("not sent", name, content, detail=type(error).__name__)
            return False
        position = position_of(found)
        self.history.add("receipt", name, content, None if position[1] < 0 else position)
        return True

    # --- receiving ---
    async def subscribe(self, name: str, kind: ConsumerType, **options: Any) -> Any:
        r = self.numbers
        options = {
            "receiver_queue_size": r.choice([1, 3, 50]), "negative_ack_redelivery_delay_ms": 50,
            "initial_position": InitialPosition.Earliest, "ack_receipt_enabled": True,
            "ack_grouping_time_ms": r.choice([0, 5, 100]), "topic": self.topic,
        } | options  # fmt: skip
        topic = options.pop("topic")
        return await self.until_it_works(lambda: self.world.client.subscribe(topic, name, kind, **options))

    def received(self, name: str, message: Any, detail: str = "") -> tuple[str, Position]:
        position, content = position_of(message.message_id()), message.data().decode().rstrip()
        self.history.add("received", name, content, position, detail)
        return content, position

    async def consume(self, name: str, consumer: Any, refuses: float = 0.1) -> None:
        """Receive and acknowledge until the consumer is closed; some messages at first negatively."""
        r = self.numbers
        acknowledging: set[asyncio.Task[None]] = set()
        async for message in consumer:
            content, position = self.received(name, message)
            if r.random() < refuses:
                await consumer.negative_acknowledge(message)
                continue
            await self.begin_acknowledging(
                acknowledging, self.acknowledge(name, consumer, message, content, position)
            )

    async def begin_acknowledging(
        self, acknowledging: set[asyncio.Task[Any]], acknowledgement: Coroutine[Any, Any, Any]
    ) -> None:
        """Acknowledge beside receiving; at times the next message waits for it."""
        task = asyncio.create_task(acknowledgement)
        acknowledging.add(task)
        task.add_done_callback(acknowledging.discard)
        if self.numbers.random() < 0.3:
            await asyncio.wait([task])

    async def acknowledge(
        self, name: str, consumer: Any, message: Any, content: str, position: Position, *below: Event
    ) -> bool:
        """Acknowledge a message; cumulatively if others, received ``below`` it, are named."""
        meant = [*((each.content, each.position) for each in below), (content, position)]
        for each in meant:
            self.history.add("acknowledging", name, *each)
        try:
            await (consumer.acknowledge_cumulative if below else consumer.acknowledge)(message)
        except PulsarException as error:
            self.history.add("not acknowledged", name, content, position, f"{type(error).__name__}: {error}")
            return False
        for each in meant:
            self.history.add("acknowledged", name, *each)
        return True

    def receipted(self) -> list[str]:
        return [event.content for event in self.history.of("receipt")]

    def expected(self) -> list[str]:
        """Return the receipted messages that consumers must get.

        A client acknowledges a chunked message that is incomplete for a minute, as the official clients do,
        also if a full disk held its other chunks up.
        """
        sent = {event.content: event.at for event in self.history.of("send")}
        return [
            event.content
            for event in self.history.of("receipt")
            if event.content not in self.large or event.at - sent[event.content] < 59.0
        ]

    async def stored(self, topic: str = "", **options: Any) -> Stored:
        """Read the whole topic."""
        reader = await self.until_it_works(
            lambda: self.world.client.create_reader(topic or self.topic, MessageId.earliest, **options)
        )
        found = []
        while await reader.has_message_available():
            message = await reader.read_next(60_000)
            key = message.partition_key() if message.has_partition_key() else ""
            found.append((position_of(message.message_id()), message.data().decode().rstrip(), key))
        await reader.close()
        return found

    # --- administrators ---
    async def administer(
        self, what: str, act: Callable[[TopicActions, TopicName, Done], Any], who: str = "administrator"
    ) -> bool:
        """Call the administration until it is durable; return whether that is known.

        ``act`` calls its third argument when the change is durable. ``who``: the name in the history.
        """
        machine, loop = self.world.machine, self.world.loop
        if not machine.is_up:
            return False
        future: asyncio.Future[Any] = loop.create_future()
        self.history.add("asked", who, what)

        def done(error: Any) -> None:
            if not future.done():
                future.set_result(error)

        life = machine.life
        try:
            machine.administer(lambda actions: act(actions, TopicName.parse(self.topic), done))
        except (AdminRefusal, Refused, StoreStopped) as refusal:
            self.history.add("refused", who, what, detail=refusal)
            return False
        while not future.done() and machine.life == life and machine.is_up:
            await asyncio.wait([future], timeout=0.5)
        if not future.done() or future.result() is not None:
            self.history.add("refused", who, what, detail="it is not known")
            return False
        self.history.add("confirmed", who, what)
        return True

    async def administer_surely(self, what: str, act: Callable[[TopicActions, TopicName, Done], Any]) -> None:
        """Call the administration again until it is confirmed."""
        end = self.world.clock.now + self.world.patience
        while not await self.administer(what, act):
            assert self.world.clock.now < end, f"never confirmed: {what}"
            await self.world.pass_time(0.5)

    async def create_topic(self) -> None:
        """Create the topic without partitions."""
        await self.administer_surely(
            "create",
            lambda actions, topic, done: done(None) if actions.exists(topic) else actions.create(topic, done),
        )

    async def create_subscription(self, name: str) -> None:
        """Create a subscription at the start of the topic."""
        await self.administer_surely(
            f"subscribe {name}",
            lambda actions, topic, done: (
                done(None)
                if name in actions.subscriptions(topic)
                else actions.cursors.create(topic, name, ids.MessageId.earliest, done)
            ),
        )

    async def set_policy(self, field: str, value: Any) -> None:
        await self.administer_surely(
            f"{field}={value}",
            lambda _, topic, done: self.world.machine.server.broker.namespaces.set_topic_policy(
                topic, field, value, done
            ),
        )

    def backlog(self, subscription: str) -> tuple[int, int] | None:
        """Return the entries and messages in the backlog, as administrators see them; None if not known."""
        if not self.world.machine.is_up:
            return None
        name, counts = TopicName.parse(self.topic), []
        for part in (*map(name.partition_name, range(self.world.partitions)), name):
            if part is name and counts:
                break
            try:
                counts.append(
                    self.world.machine.administer(
                        lambda actions, part=part: actions.cursors.backlog(part, subscription)
                    )
                )
            except StoreStopped:  # by a planned error of the disk: the broker is about to stop
                return None
            except (AdminRefusal, Refused) as refusal:
                if isinstance(refusal, Refused):
                    refusal = admin_error(refusal)
                if refusal.status == 503:
                    return None
                if part is name:
                    raise
                # This topic was made without partitions.
        return sum(entries for entries, _ in counts), sum(messages for _, messages in counts)

    def backlogs(self) -> dict[str, tuple[int, int] | None]:
        """Return the backlog of each subscription whose acknowledgements a damaged disk must keep."""
        return {}

    def is_idle(self, subscription: str, seconds: float) -> bool:
        """Whether the subscription's consumers, of which some are slow, have received nothing for a while."""
        received = (event.at for event in self.history.of("received", who=subscription))
        return max(received, default=0.0) < self.world.clock.now - seconds

    async def until_no_backlog(self, subscription: str) -> None:
        """Wait until everything that is stored is acknowledged.

        A producer sends only the chunks without a receipt again. A client, as the official ones, acknowledges
        an incomplete message after a minute, but a chunk without a first one only if it comes after a minute:
        on another connection.
        """
        seconds = None
        if self.large and self.backlog(subscription) not in ((0, 0), None):
            await self.world.pass_time(65)
            await self.until(lambda: self.is_idle(subscription, 65), lambda: f"{subscription} never rests")
            if self.backlog(subscription) not in ((0, 0), None):
                self.world.faults.cut()
                seconds = 50.0
        await self.until(
            lambda: self.backlog(subscription) == (0, 0),
            lambda: f"the backlog of {subscription} stays: {self.backlog(subscription)}",
            seconds,
        )
