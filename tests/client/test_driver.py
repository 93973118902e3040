import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from scripted_broker import ScriptedBroker
from waiting import eventually_async, loop_turns, never_async

from geminga.client.handles.context import ClientContext
from geminga.client.handles.driver import HOPS_MAX, DriverState, HandleDriver
from geminga.client.options.settings import ClientSettings
from geminga.errors import ProducerBusy, ProducerFenced, PulsarException
from geminga.wire.frames import encode_send_receipt
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand
SLOW = {"backoff_initial_seconds": 90.0, "backoff_max_seconds": 90.0}


def handles_count(connection):
    return len(connection._ids)


class ProducerHandle:
    """A minimal producer as the driver sees it."""

    topic = "persistent://public/default/t"

    def __init__(self, context):
        self.context = context
        self.producer_id = context.new_producer_id()
        self.attached = 0
        self.detached = []
        self.failed = []
        self.frames = []
        self.changed = asyncio.Event()

    async def attach(self, connection):
        connection.add_producer(self.producer_id, self)
        await connection.request(self._command, 5.0)
        self.attached += 1
        self.changed.set()

    def _command(self, request_id):
        body = pb.CommandProducer(topic=self.topic, producer_id=self.producer_id, request_id=request_id)
        return pb.BaseCommand(type=Type.PRODUCER, producer=body)

    def on_frame(self, frame):
        self.frames.append(frame)

    def on_detached(self, error):
        self.detached.append(error)
        self.changed.set()

    def is_terminal(self, error):
        return isinstance(error, ProducerFenced)

    def on_failed(self, error):
        self.failed.append(error)
        self.changed.set()

    async def until(self, condition):
        while not condition():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 60)


@asynccontextmanager
async def driven(**settings):
    """A scripted broker, a client's context, and a handle with its driver."""
    settings = {"operation_timeout_seconds": 5.0, "backoff_initial_seconds": 0.005, **settings}
    async with ScriptedBroker() as broker:
        context = ClientContext(ClientSettings(service_url=broker.url, **settings), random=random.Random(1))
        handle = ProducerHandle(context)
        driver = HandleDriver(context, handle)
        yield broker, context, handle, driver
        await driver.close()
        await context.close()


def refuse_producers(broker, *codes):
    """Answer the next PRODUCER commands with these errors, then as usual."""
    left = list(codes)

    def answer(peer, frame):
        if left:
            broker.refuse(peer, frame.command.producer.request_id, left.pop(0), "not now")
        else:
            broker.on_producer(peer, frame)

    broker.answers[Type.PRODUCER] = answer


async def test_transient_refusals_are_retried_while_starting():
    async with driven() as (broker, context, handle, driver):
        refuse_producers(broker, pb.ServiceNotReady, pb.MetadataError, pb.UnknownError)
        await driver.start()
        assert handle.attached == 1
        assert broker.count(Type.PRODUCER) == 4
        assert handles_count(context.pool.connections[0]) == 1


async def test_a_final_refusal_ends_the_start():
    async with driven() as (broker, context, handle, driver):
        refuse_producers(broker, pb.ProducerBusy)
        with pytest.raises(ProducerBusy, match="not now"):
            await driver.start()
        assert handles_count(context.pool.connections[0]) == 0
        assert handle.failed == []


async def test_a_lookup_that_is_never_answered_is_repeated_while_reconnecting(monkeypatch):
    async with driven(operation_timeout_seconds=0.2) as (broker, context, handle, driver):
        await driver.start()
        place, asked = context.service.place, []

        async def first_never(topic, remaining):
            asked.append(topic)
            if len(asked) == 1:
                await asyncio.Event().wait()  # as a REST address that accepts connections and answers nothing
            return await place(topic, remaining)

        monkeypatch.setattr(context.service, "place", first_never)
        broker.peers[0].drop()
        await handle.until(lambda: handle.attached == 2)
        assert len(asked) == 2
        assert handle.failed == []


async def test_a_handle_is_detached_before_its_driver_runs_again(monkeypatch):
    """The application's loop may start tasks at once (`asyncio.eager_task_factory`)."""
    async with driven() as (_broker, context, handle, driver):
        await driver.start()
        real, detached = context.task, []

        def task(coroutine, name=None):
            detached.append(len(handle.detached))
            return real(coroutine, name)

        monkeypatch.setattr(context, "task", task)
        driver.reattach()
        await handle.until(lambda: handle.attached == 2)
        assert detached == [1]


async def test_closed_by_the_broker():
    async with driven() as (broker, _context, handle, driver):
        await driver.start()
        broker.close_producer(handle.producer_id)
        await handle.until(lambda: handle.attached == 2)
        assert handle.detached == [None]
        assert len(broker.peers) == 1  # the connection stays
        assert broker.count(Type.LOOKUP) == 2


async def test_closed_with_an_assigned_broker():
    async with (
        driven(backoff_initial_seconds=30.0) as (broker, _context, handle, driver),  # no delay is waited out
        ScriptedBroker() as other,
    ):
        await driver.start()
        broker.close_producer(handle.producer_id, assignedBrokerServiceUrl=other.url)
        await handle.until(lambda: handle.attached == 2)
        assert other.count(Type.PRODUCER) == 1
        assert broker.count(Type.LOOKUP) == 1


async def test_a_loop_of_assigned_brokers_is_followed_with_delays():
    async with driven(**SLOW) as (broker, _context, handle, driver):

        def send_on(peer, frame):
            broker.on_producer(peer, frame)
            broker.close_producer(handle.producer_id, assignedBrokerServiceUrl=broker.url)

        broker.answers[Type.PRODUCER] = send_on
        await driver.start()
        # Delays are a minute or more: only a driver without delay gets here within milliseconds.
        await handle.until(lambda: handle.attached == HOPS_MAX + 1)
        await never_async(lambda: handle.attached != HOPS_MAX + 1, 0.1)
        assert driver.state is DriverState.WAITING


async def test_a_minute_with_one_broker_resets_the_count_of_hops():
    async with driven(**SLOW) as (broker, _context, handle, driver):
        await driver.start()
        for hop in range(HOPS_MAX + 2):
            driver._attached_at -= 60.0
            broker.close_producer(handle.producer_id, assignedBrokerServiceUrl=broker.url)
            await handle.until(lambda hop=hop: driver.attached and handle.attached == hop + 2)


async def test_an_unreachable_assigned_broker_leads_to_a_lookup():
    async with driven() as (broker, _context, handle, driver):
        await driver.start()
        broker.close_producer(handle.producer_id, assignedBrokerServiceUrl="pulsar://127.0.0.1:1")
        await handle.until(lambda: handle.attached == 2)
        assert broker.count(Type.LOOKUP) == 2


async def test_a_terminal_error_ends_reconnecting():
    async with driven() as (broker, _context, handle, driver):
        await driver.start()
        refuse_producers(broker, pb.ProducerBusy, pb.ProducerFenced)
        broker.peers[0].drop()
        await handle.until(lambda: handle.failed)
        assert isinstance(handle.failed[0], ProducerFenced)
        assert driver.state is DriverState.FAILED
        assert broker.count(Type.PRODUCER) == 3  # ProducerBusy was not terminal for this handle


async def test_reattach_keeps_the_connection():
    async with driven() as (broker, context, handle, driver):
        await driver.start()
        problem = PulsarException("start afresh")
        driver.reattach(problem)
        assert handle.detached == [problem]
        await handle.until(lambda: handle.attached == 2)
        assert len(broker.peers) == 1
        assert handles_count(context.pool.connections[0]) == 1


async def test_a_kept_connection_needs_neither_a_delay_nor_a_lookup():
    async with driven(backoff_initial_seconds=30.0) as (broker, _context, handle, driver):
        await driver.start()
        driver.keep_connection()
        broker.close_producer(handle.producer_id)
        await handle.until(lambda: handle.attached == 2)
        assert broker.count(Type.LOOKUP) == 1


async def test_a_kept_connection_that_is_lost_is_replaced():
    async with driven() as (broker, _context, handle, driver):
        await driver.start()
        driver.keep_connection()
        broker.peers[0].drop()
        await handle.until(lambda: handle.attached == 2)
        assert len(broker.peers) == 2


async def test_a_close_between_answer_and_attach_leads_to_a_reconnect():
    async with driven() as (broker, _context, handle, driver):

        def answer_and_close(peer, frame):
            broker.answers[Type.PRODUCER] = broker.on_producer
            broker.on_producer(peer, frame)
            broker.close_producer(handle.producer_id)

        broker.answers[Type.PRODUCER] = answer_and_close
        await driver.start()
        await handle.until(lambda: handle.attached == 2)
        assert handle.detached == [None]


async def test_cancelling_start_at_any_step_leaves_no_handle():
    """However far the start got, cancelling it leaves no handle on a connection and the client usable."""
    async with driven() as (_broker, context, _handle, driver):
        steps = 0
        finished = False
        while not finished:
            steps += 1
            each = ProducerHandle(context)
            starting = HandleDriver(context, each)
            task = asyncio.ensure_future(starting.start())
            await loop_turns(steps)
            finished = task.done()
            task.cancel()
            await asyncio.wait([task])
            await starting.close()
            assert all(handles_count(connection) == 0 for connection in context.pool.connections)
        assert steps > 3
        await driver.start()


async def test_frames_are_dropped_while_detached():
    async with driven(backoff_initial_seconds=30.0) as (broker, _context, handle, driver):
        await driver.start()
        receipt = encode_send_receipt(handle.producer_id, 0, None, 1, 1)
        broker.peers[0].transport.write(receipt)
        await eventually_async(lambda: handle.frames)
        driver.reattach(None)
        broker.peers[0].transport.write(receipt)  # a late frame of the earlier attachment
        await never_async(lambda: len(handle.frames) != 1, 0.02)
