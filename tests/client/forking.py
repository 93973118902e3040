"""Program whose callbacks fork and return: ``python forking.py URL``; writes the results as JSON.

The result of a scenario holds the exit statuses of its children (None: the child had to be killed) and the
notes of parent and children.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import geminga
from geminga.producer.interceptors import ProducerInterceptor

SECONDS_MAX = 60.0


class Scenario:
    """State of one scenario."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.topic = f"forking-{name}"
        self.parent = os.getpid()
        self.children: list[int] = []
        self.client = geminga.Client(url)
        self.early: list[int | None] | None = None
        """Exit statuses of the children, where the scenario itself waits for them."""
        self._notes = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115

    def fork(self) -> bool:
        """Whether this is the child."""
        child = os.fork()
        if child:
            self.children.append(child)
        return child == 0

    def note(self, text: str) -> None:
        who = "parent" if os.getpid() == self.parent else "child"
        os.write(self._notes.fileno(), f"{who}: {text}\n".encode())

    def wait(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not happened():
            if time.monotonic() > deadline:
                raise TimeoutError("nothing happened")
            time.sleep(0.005)

    def codes(self) -> list[int | None]:
        return [ended(child) for child in self.children]

    def notes(self) -> list[str]:
        self._notes.seek(0)
        return self._notes.read().decode().splitlines()


def ended(child: int) -> int | None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def send_callback(s: Scenario) -> None:
    """In a batch of 50, the child gets one callback, and the parent all."""
    consumer = s.client.subscribe(s.topic, "s")
    producer = s.client.create_producer(s.topic, batching_enabled=True, batching_max_publish_delay_ms=20)
    done: list[int] = []

    def callback(number: int) -> Any:
        def tell(result: Any, message_id: Any) -> None:
            if number == 10:
                s.fork()
            done.append(number)
            s.note(f"{number}")

        return tell

    for number in range(50):
        producer.send_async(b"%d" % number, callback(number))
    s.wait(lambda: len(done) == 50)
    s.early = s.codes()
    producer.send(b"50")
    s.note(f"received {[int(consumer.receive(30_000).data()) for _ in range(51)] == list(range(51))}")


def unbatched_callback(s: Scenario) -> None:
    producer = s.client.create_producer(s.topic)
    done: list[int] = []

    def tell(result: Any, message_id: Any) -> None:
        if not done:
            s.fork()
        done.append(1)
        s.note("told")

    for _ in range(20):
        producer.send_async(b"x", tell)
    s.wait(lambda: len(done) == 20)


def callback_of_a_failure(s: Scenario) -> None:
    producer = s.client.create_producer(s.topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)

    def fail(tell: Callable[[], None]) -> None:
        producer.send_async(b"x", lambda r, i: tell())
        s.client.shutdown()

    fork_in(s, fail)


def callback_of_many(s: Scenario) -> None:
    producer = s.client.create_producer(s.topic)
    fork_in(s, lambda tell: producer.send_many([b"x"] * 100, lambda sent: tell()))


def callback_that_exits(s: Scenario) -> None:
    producer = s.client.create_producer(s.topic)
    for error in (SystemExit(7), ValueError("on purpose")):

        def end(error: BaseException = error) -> None:
            raise error

        fork_in(s, lambda tell: producer.send_async(b"x", lambda r, i: tell()), end)


def fork_in(
    s: Scenario, call: Callable[[Callable[[], None]], Any], in_child: Callable[[], Any] = lambda: None
) -> None:
    """Pass to ``call`` a function that forks; the child then runs ``in_child``."""
    called = threading.Event()

    def tell() -> None:
        if s.fork():
            s.note("forked")
            in_child()
        else:
            called.set()

    call(tell)
    assert called.wait(SECONDS_MAX)


def interceptor(s: Scenario) -> None:
    class Forking(ProducerInterceptor):
        tell: Any = None

        def on_send_acknowledgement(self, producer: Any, message: Any, message_id: Any, error: Any) -> None:
            self.tell()

    forking = Forking()
    producer = s.client.create_producer(s.topic, interceptors=[forking])

    def send(tell: Callable[[], None]) -> None:
        forking.tell = tell
        producer.send_async(b"x", None)

    fork_in(s, send)


def anything_else_on_the_loop(s: Scenario) -> None:
    """Fork in other code of the application on the event loop, such as a logging handler."""
    producer = s.client.create_producer(s.topic)
    for _ in range(50):
        fork_in(s, lambda tell: s.client.runtime.post(tell))
        for _ in range(10):
            # A wake-up that the child took would come with the next keep-alive, half a minute later.
            producer.send(b"still here")


def listener(s: Scenario) -> None:
    """The child hears one message, the parent all."""
    producer = s.client.create_producer(s.topic)
    heard: list[bytes] = []

    def listen(consumer: Any, message: Any) -> None:
        if not heard:
            s.fork()
        heard.append(message.data())
        s.note("heard")
        if os.getpid() == s.parent:
            consumer.acknowledge(message)

    for number in range(20):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    s.client.subscribe(s.topic, "s", geminga.ConsumerType.Exclusive, message_listener=listen,
                       initial_position=geminga.InitialPosition.Earliest)  # fmt: skip
    s.wait(lambda: len(heard) == 20)


def table_view(s: Scenario) -> None:
    producer = s.client.create_producer(s.topic)
    view = s.client.create_table_view(s.topic)

    def follow(tell: Callable[[], None]) -> None:
        view.for_each_and_listen(lambda key, value: tell())
        producer.send(b"x", partition_key="k")

    fork_in(s, follow)


def client_of_the_child(s: Scenario) -> None:
    """A message that it sends arrives although its client was not closed."""
    consumer = s.client.subscribe(s.topic, "s")
    producer = s.client.create_producer(s.topic)

    def send() -> None:
        told = threading.Event()
        own = geminga.Client(s.url).create_producer(s.topic)
        own.send_async(b"called back", lambda r, i: told.set())
        assert told.wait(SECONDS_MAX)
        s.note("its callback was called")
        own.send_async(b"pending", None)

    fork_in(s, lambda tell: producer.send_async(b"x", lambda r, i: tell()), send)
    s.note(f"{sorted(consumer.receive(30_000).data().decode() for _ in range(3))}")


def inherited(s: Scenario) -> None:
    """Every use of the parent's client is refused, and its connections are not the child's."""
    consumer = s.client.subscribe(s.topic, "s")
    producer = s.client.create_producer(s.topic)
    message_id = producer.send(b"x")
    message = consumer.receive(30_000)
    uses: dict[str, Callable[[], Any]] = {
        "send": lambda: producer.send(b"x"),
        "send_async": lambda: producer.send_async(b"x", None),
        "send_async with a key": lambda: producer.send_async(b"x", None, partition_key="k"),
        "send_many": lambda: producer.send_many([b"x"] * 3),
        "flush": lambda: producer.flush(),
        "statistics": lambda: producer.statistics(),
        "receive": lambda: consumer.receive(10),
        "batch_receive": lambda: consumer.batch_receive(),
        "acknowledge": lambda: consumer.acknowledge(message),
        "acknowledge an id": lambda: consumer.acknowledge(message_id),
        "acknowledge_cumulative": lambda: consumer.acknowledge_cumulative(message),
        "negative_acknowledge": lambda: consumer.negative_acknowledge(message),
        "seek": lambda: consumer.seek(message_id),
        "create_producer": lambda: s.client.create_producer(s.topic),
        "subscribe": lambda: s.client.subscribe(s.topic, "t"),
    }

    def use() -> None:
        for name, call in uses.items():
            try:
                call()
            except geminga.ForkedProcessError:
                pass
            except BaseException as error:
                s.note(f"{name}: {error!r}")
            else:
                s.note(f"{name}: nothing raised")
        # A refused send calls its callback, in the child too; the child returns to this function.
        producer.send_async(b"x", lambda result, message_id: s.note("refused"))
        s.note(f"{connections(s.url)} connections")
        s.client.close()

    fork_in(s, lambda tell: producer.send_async(b"y", lambda r, i: tell()), use)
    s.note(f"{connections(s.url)} connections")
    s.early = s.codes()
    s.note(f"{consumer.receive(30_000).data().decode()}")


def connections(url: str) -> int:
    """Sockets to the broker that this process holds."""
    port, count = int(url.rpartition(":")[2]), 0
    for descriptor in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as here:
                    count += here.family != socket.AF_UNIX and here.getpeername()[1] == port
        except OSError:
            continue
    return count


def signal_handler(s: Scenario) -> None:
    """Fork on the main thread during a wait that no thread of the child could end."""
    consumer = s.client.subscribe(s.topic, "s")
    producer = s.client.create_producer(s.topic)

    def handler(number: int, frame: Any) -> None:
        if not s.fork():
            producer.send_async(b"x", None)

    signal.signal(signal.SIGUSR1, handler)
    waiting = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    waiting.start()
    try:
        s.note(consumer.receive().data().decode())
    except geminga.ForkedProcessError:
        s.note("refused")
        os._exit(5)
    s.wait(lambda: bool(s.children))


SCENARIOS: list[Callable[[Scenario], None]] = [
    send_callback, unbatched_callback, callback_of_a_failure, callback_of_many, callback_that_exits,
    interceptor, anything_else_on_the_loop, listener, table_view, client_of_the_child, inherited,
    signal_handler,
]  # fmt: skip


def main(url: str) -> None:
    logging.getLogger("geminga").addHandler(logging.NullHandler())
    outcome = {}
    for run in SCENARIOS:
        s = Scenario(url, run.__name__)
        run(s)
        codes = s.codes() if s.early is None else s.early
        s.client.close()
        outcome[run.__name__] = {"codes": codes, "notes": s.notes()}
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1])
