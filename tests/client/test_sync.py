"""The sync client against a scripted broker: errors, time-outs, closing, forking, threads."""

import logging
import time
import warnings

import pytest
from doubles import raising

import geminga
import geminga.asyncio
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand


@pytest.fixture
def client(broker):
    with geminga.Client(broker.url, operation_timeout_seconds=5) as client:
        yield client


def test_shutdown_does_not_wait(broker):
    broker.answers[Type.CLOSE_PRODUCER] = lambda peer, frame: None
    client = geminga.Client(broker.url)
    client.create_producer("t")
    started = time.monotonic()
    client.shutdown()
    client.shutdown()
    assert time.monotonic() - started < 20  # nor for the 30 seconds of an answer


def test_service_info(client, broker):
    info = client.get_service_info()
    assert info.service_url == broker.url
    assert not info.use_tls


def test_a_token_is_in_no_log_line_or_repr(broker, caplog):
    canary = "canary-5f3e"
    broker.answers[Type.PRODUCER] = lambda peer, frame: peer.drop()
    with (
        caplog.at_level(logging.DEBUG),
        geminga.Client(
            broker.url,
            authentication=geminga.AuthenticationToken(canary),
            operation_timeout_seconds=1,
            logger=geminga.ConsoleLogger(geminga.LoggerLevel.Debug),
        ) as client,
    ):
        with pytest.raises(geminga.PulsarException) as caught:
            client.create_producer("t")
        objects = caught.value, client, client.context.settings
        texts = [caplog.text, str(caught.value), *map(repr, objects)]
    assert broker.peers[0].connect.auth_data == canary.encode()
    assert all(canary not in text for text in texts)


def test_closing_that_is_interrupted_while_it_waits_leaves_nothing(broker, tmp_path, monkeypatch):
    """The program is interrupted while close waits for a listener, and never calls close again."""
    path = tmp_path / "client.log"
    client = geminga.Client(broker.url, logger=geminga.FileLogger(geminga.LoggerLevel.Debug, str(path)))
    client.get_topic_partitions("t")
    assert "connected to" in path.read_text()
    monkeypatch.setattr("geminga.client.receive.listener.ListenerThreads.close", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        client.close()
    logging.getLogger("geminga").debug("of another program")
    assert "of another program" not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"io_threads": 4}, "one I/O thread"),
        ({"log_conf_file_path": "/etc/log.conf"}, "use logger"),
        ({"use_tls": True}, "NOT encrypted"),
    ],
)
@pytest.mark.parametrize("kind", [geminga.Client, geminga.asyncio.Client])
def test_arguments_without_effect_say_so(kind, arguments, said):
    with pytest.warns(UserWarning, match=said) as told:
        client = kind("pulsar://localhost", **arguments)
    (mine,) = (
        one for one in told if one.category is UserWarning
    )  # garbage of other tests may tell of itself
    assert mine.filename == __file__, "the warning names the caller's line"
    if kind is geminga.Client:
        client.close()


def test_arguments_with_effect_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        geminga.Client("pulsar+ssl://localhost", use_tls=True, io_threads=1).close()
