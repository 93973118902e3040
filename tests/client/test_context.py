import asyncio
import gc
import random
import socket
from contextlib import asynccontextmanager

import pytest
from scripted_broker import ScriptedBroker, command
from waiting import eventually_async, loop_turns

from geminga import errors
from geminga.client.handles.context import ClientContext, ServiceUnreachable, all_or_none
from geminga.client.options.settings import ClientSettings
from geminga.client.publish.producer import create_producer
from geminga.client.receive.consumer import subscribe
from geminga.consumer.settings import ConsumerSettings
from geminga.producer.settings import ProducerSettings
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand
TOPIC = "persistent://public/default/t"
Answer = pb.CommandLookupTopicResponse


@asynccontextmanager
async def connected(url=None, **settings):
    """A scripted broker and a client's context."""
    settings = {"operation_timeout_seconds": 5.0, "backoff_initial_seconds": 0.005, **settings}
    async with ScriptedBroker() as broker:
        service_url = broker.url if url is None else url.format(port=broker.port)
        context = ClientContext(ClientSettings(service_url=service_url, **settings), random=random.Random(1))
        yield broker, context
        await context.close()


def fail_lookup(broker, code, text="no", times=1):
    """Answer the first ``times`` lookups with an error."""
    left = [times]

    def answer(peer, frame):
        if left[0]:
            left[0] -= 1
            broker.answer_lookup(peer, frame, Answer.Failed, error=code, message=text)
        else:
            broker.answer_lookup(peer, frame)

    broker.answers[Type.LOOKUP] = answer


async def test_a_proxied_lookup_opens_a_second_connection():
    async with connected() as (broker, context):
        broker.answers[Type.LOOKUP] = lambda peer, frame: broker.answer_lookup(
            peer, frame, url="pulsar://localhost:6650", proxy_through_service_url=True
        )
        await context.connection_to(TOPIC)
        assert len(broker.peers) == 2
        assert broker.peers[1].connect.proxy_to_broker_url == "localhost:6650"


async def test_redirects_are_followed():
    async with connected() as (broker, context), ScriptedBroker() as other:
        asked = []

        def note(peer, frame):
            asked.append(frame.command.lookupTopic.authoritative)
            other.answer_lookup(peer, frame)

        other.answers[Type.LOOKUP] = note
        broker.answers[Type.LOOKUP] = lambda peer, frame: broker.answer_lookup(
            peer, frame, Answer.Redirect, other.url, authoritative=True
        )
        assert (await context.lookup(TOPIC)).broker.port == other.port
        assert asked == [True]


async def test_transient_refusals_are_retried():
    async with connected() as (broker, context):
        fail_lookup(broker, pb.ServiceNotReady, times=3)
        await context.lookup(TOPIC)
        assert broker.count(Type.LOOKUP) == 4


@pytest.mark.parametrize(
    ("code", "expected"),
    [(pb.TopicNotFound, errors.TopicNotFound), (pb.AuthorizationError, errors.AuthorizationError)],
)
async def test_final_refusals_are_raised_at_once(code, expected):
    async with connected() as (broker, context):
        fail_lookup(broker, code, "because", times=100)
        with pytest.raises(expected, match="because"):
            await context.lookup(TOPIC)
        assert broker.count(Type.LOOKUP) == 1


async def test_opening_a_topic_requests_partitions_and_lookup_at_once():
    async with connected() as (broker, context):
        seen = asyncio.Queue()
        for kind in (Type.PARTITIONED_METADATA, Type.LOOKUP):
            answer = broker.answers[kind]
            broker.answers[kind] = lambda *asked, answer=answer: seen.put_nowait((answer, asked))
        opening = asyncio.ensure_future(context.partitions(TOPIC, opening=True))
        for answer, asked in [await seen.get(), await seen.get()]:
            answer(*asked)
        assert await opening == 0
        await context.connection_to(TOPIC)
        assert seen.empty(), "the lookup is not repeated"


async def test_a_lookup_refused_while_opening_is_repeated_for_the_connection():
    async with connected() as (broker, context):
        fail_lookup(broker, pb.ServiceNotReady)
        lookups, answer = [], broker.answers[Type.LOOKUP]
        broker.answers[Type.LOOKUP] = lambda *asked: (lookups.append(asked), answer(*asked))
        assert await context.partitions(TOPIC, opening=True) == 0
        await context.connection_to(TOPIC)
        assert len(lookups) == 2


OPENED = {
    Type.PRODUCER: lambda context, topic: create_producer(context, topic, ProducerSettings()),
    Type.SUBSCRIBE: lambda context, topic: subscribe(context, topic, "s", ConsumerSettings()),
}


@asynccontextmanager
async def connected_to_geminga():
    """`connected`, to a broker of Geminga's that has answered a lookup."""
    async with connected() as (broker, context):
        said = command(Type.CONNECTED, "connected", server_version="Geminga 1.0", protocol_version=21)
        broker.answers[Type.CONNECT] = lambda peer, frame: peer.send(said)
        await context.lookup(TOPIC)
        yield broker, context


@pytest.mark.parametrize("kind", OPENED)
async def test_geminga_opens_a_topic_without_partitions_by_one_request(kind):
    async with connected_to_geminga() as (broker, context):
        await OPENED[kind](context, TOPIC)
        assert broker.peers[0].received[:3] == [Type.CONNECT, Type.LOOKUP, kind]
        assert not broker.count(Type.PARTITIONED_METADATA)


@pytest.mark.parametrize("kind", OPENED)
async def test_geminga_is_asked_for_the_partitions_of_a_non_persistent_topic(kind):
    async with connected_to_geminga() as (broker, context):
        await OPENED[kind](context, "non-persistent://public/default/n")
        assert broker.peers[0].received[:4] == [Type.CONNECT, Type.LOOKUP, Type.PARTITIONED_METADATA, kind]


@pytest.mark.parametrize("kind", OPENED)
async def test_partitions_are_asked_for_when_geminga_refuses_the_topic(kind):
    async with connected_to_geminga() as (broker, context):
        broker.partitions[TOPIC] = 3
        opened, answer = [], broker.answers[kind]

        def refuse_the_topic(peer, frame):
            body = frame.command.producer if kind == Type.PRODUCER else frame.command.subscribe
            opened.append(body.topic)
            if body.topic == TOPIC:
                broker.refuse(peer, body.request_id, pb.NotAllowedError)
            else:
                answer(peer, frame)

        broker.answers[kind] = refuse_the_topic
        await OPENED[kind](context, TOPIC)
        assert opened == [TOPIC, *(f"{TOPIC}-partition-{index}" for index in range(3))]


async def test_all_topics_of_geminga_are_where_its_first_answer_names():
    async with connected_to_geminga() as (broker, context):
        broker.peers[0].drop()
        broker.answers[Type.LOOKUP] = lambda peer, frame: broker.answer_lookup(
            peer, frame, url="pulsar://localhost:6650", proxy_through_service_url=True
        )
        for number in range(2):
            await OPENED[Type.PRODUCER](context, f"{TOPIC}-{number}")
        asked, opened = broker.peers[1:]
        assert opened.received == [Type.CONNECT, Type.PRODUCER, Type.PRODUCER]
        assert asked.received.count(Type.LOOKUP) == 1


async def test_a_refusal_is_raised_in_the_end_though_the_last_attempt_has_no_answer():
    async with connected() as (broker, core):
        asked = []

        def once_and_never_again(peer, frame):
            asked.append(frame)
            if len(asked) == 1:
                broker.answer_lookup(peer, frame, Answer.Failed, error=pb.MetadataError, message="sealed")

        broker.answers[Type.LOOKUP] = once_and_never_again
        with pytest.raises(errors.BrokerMetadataError, match="sealed"):
            await core.lookup(TOPIC, timeout=2.0)
        assert len(asked) == 2


async def test_a_silent_broker_ends_at_the_time_out():
    async with connected() as (broker, context):
        broker.answers[Type.LOOKUP] = lambda peer, frame: None
        started = context.now()
        with pytest.raises(errors.Timeout, match=r"0\.05 s"):
            await context.lookup(TOPIC, timeout=0.05)
        assert context.now() - started < 30.0


async def test_an_unreachable_service_url_is_waited_for_and_logged(caplog):
    async with connected(url="pulsar://127.0.0.1:1,127.0.0.1:2", operation_timeout_seconds=1.0) as (
        _,
        context,
    ):
        started = context.now()
        with pytest.raises(
            ServiceUnreachable,
            match=r"lookup.*within 1 s.*127\.0\.0\.1:1 refused.*; .*127\.0\.0\.1:2 refused",
        ) as caught:
            await context.lookup(TOPIC)
        assert context.now() - started >= 0.99, "it waits until the operation time-out"
        assert isinstance(caught.value, (errors.ConnectError, errors.Timeout))
        assert caught.value.error() is errors.Result.Timeout  # as in pulsar-client
    told = [record.message for record in caplog.records if "for a broker" in record.message]
    assert len(told) == 1
    assert "127.0.0.1:1 refused" in told[0]


async def test_an_error_that_waiting_cannot_fix_is_raised_at_once(monkeypatch):
    async with connected(url="pulsar://nowhere.invalid:6650", operation_timeout_seconds=30.0) as (_, context):

        async def unknown(*_arguments, **_options):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")

        monkeypatch.setattr(context.loop, "create_connection", unknown)
        with pytest.raises(ServiceUnreachable, match=r"'nowhere\.invalid'.*is unknown") as caught:
            await context.lookup(TOPIC)
        assert not isinstance(caught.value, errors.Timeout)


async def test_a_broker_that_comes_up_late(caplog):
    """Pending lookups continue as soon as the broker listens; the log names it once."""
    async with connected(operation_timeout_seconds=20.0) as (broker, context):
        await broker.stop()
        asked = [asyncio.ensure_future(context.lookup(TOPIC)) for _ in range(3)]
        asked.append(asyncio.ensure_future(context.partitions(TOPIC)))
        await eventually_async(lambda: "for a broker" in caplog.text)
        await broker.start()
        await asyncio.gather(*asked)
    assert caplog.text.count("for a broker") == 1


async def test_close_closes_what_was_opened():
    class Handle:
        closed = 0

        def __init__(self, error=None):
            self.error = error

        async def close(self):
            self.closed += 1
            if self.error:
                raise self.error

    async with connected() as (_broker, context):
        kept, gone, failing = Handle(), Handle(), Handle(errors.Timeout("busy"))

        async def opening(opener, handle):
            assert opener is context
            return handle

        for handle in (kept, gone, failing):
            await context.opened(opening, handle)
        context.unregister(gone)
        await context.partitions(TOPIC)
        await context.close()
        await context.close()
        assert (kept.closed, gone.closed, failing.closed) == (1, 0, 1)
        with pytest.raises(errors.AlreadyClosed):
            await context.partitions(TOPIC)
        with pytest.raises(errors.AlreadyClosed):
            await context.opened(opening, kept)


async def test_a_time_out_while_connecting_names_the_host_that_failed():
    async with connected(
        url="pulsar://127.0.0.1:{port},localhost:{port}", connection_timeout_seconds=0.2
    ) as (broker, context):
        broker.answers[Type.CONNECT] = lambda peer, frame: None
        with pytest.raises(errors.Timeout, match=r"within 1\.5 s.*127\.0\.0\.1.*handshake"):
            await context.partitions(TOPIC, timeout=1.5)


class Ended:
    """Producer that its client closed before the cancelled creation could close it."""

    async def close(self):
        raise errors.AlreadyClosed("the producer is closed")

    def abort(self):
        pass


async def test_discarding_a_closed_handle_logs_nothing():
    async with connected() as (_broker, context):
        said = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        context.discard(Ended())
        await eventually_async(lambda: not context.background)
        gc.collect()
        assert not said


async def test_cancelling_the_opening_of_several_raises_only_that():
    """Handles that the client closed already raise no second error."""
    async with connected() as (_broker, _context):
        never = asyncio.Event()

        async def opened():
            return Ended()

        async def waits():
            await never.wait()

        opening = asyncio.create_task(all_or_none([opened(), waits()]))
        await loop_turns(3)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
