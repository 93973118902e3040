"""Listener names: clients that name one come by its address, the official client like ours."""

import socket
import threading

import pulsar
import pytest

import geminga
from geminga.broker.serving.embedded import embedded
from geminga.testing.apache_pulsar import free_ports


class Relay:
    """Carries bytes to a port and back, and counts who came."""

    def __init__(self, target: int) -> None:
        self.came = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            self.came += 1
            there = socket.create_connection(("127.0.0.1", self._target))
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=_carry, args=(source, sink), daemon=True).start()

    def close(self) -> None:
        self._listener.close()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        for end in (source, sink):
            end.close()


@pytest.fixture(scope="module")
def place():
    (port,) = free_ports(1)
    relay = Relay(port)
    listeners = (f"internal:pulsar://127.0.0.1:{port}", f"external:pulsar://127.0.0.1:{relay.port}")
    with embedded(port=port, advertised_listeners=listeners) as broker:
        yield broker, relay
    relay.close()


# Over HTTP the official client names no listener.
@pytest.mark.parametrize(
    ("library", "over"),
    [(pulsar, "pulsar"), (geminga, "pulsar"), (geminga, "http")],
    ids=["official", "ours", "ours-http"],
)
def test_clients_that_name_a_listener_get_its_address(place, library, over, topic):
    broker, relay = place
    url = broker.service_url if over == "pulsar" else broker.admin_url
    for name in (None, "internal", "external"):
        before = relay.came
        client = library.Client(url, listener_name=name or "")
        try:
            consumer = client.subscribe(topic, f"s-{name}")
            client.create_producer(topic).send(b"x")
            assert consumer.receive(30_000).data() == b"x"
        finally:
            client.close()
        assert (relay.came > before) == (name == "external")
    client = library.Client(url, listener_name="nowhere", operation_timeout_seconds=2)
    try:
        with pytest.raises(library.PulsarException):
            client.create_producer(topic)
    finally:
        client.close()
