"""Programs that fork with an open client: the child gets a clear error or opens its own client, and the
parent is unaffected."""

import errno
import os
import subprocess
import sys
import weakref

import pytest

from geminga.client.io import forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

START = """
import logging, multiprocessing, os, socket, stat, sys, threading
import geminga
logging.basicConfig(level=logging.ERROR)
url, topic = sys.argv[1:]

def status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def work(expected):
    with geminga.Client(url) as own:
        message = own.create_reader(topic, geminga.MessageId.earliest).read_next(30_000)
        assert message.data() == expected
        own.create_producer(topic).send(b"of the child")

def use(client, producer):
    for _ in range(3):
        producer.send(b"of the parent")
"""

INHERITED = """
client = geminga.Client(url)
consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
message_id = producer.send(b"x")
message = consumer.receive(30_000)
producer.send(b"y")
reader = client.create_reader(topic, geminga.MessageId.earliest)
uses = {
    "send": lambda: producer.send(b"x"),
    "send_async": lambda: producer.send_async(b"x", None),
    "send_async with a key": lambda: producer.send_async(b"x", None, partition_key="k"),
    "send_many": lambda: producer.send_many([b"x"] * 3),
    "flush": lambda: producer.flush(),
    "receive": lambda: consumer.receive(10),
    "batch_receive": lambda: consumer.batch_receive(),
    "acknowledge": lambda: consumer.acknowledge(message),
    "acknowledge an id": lambda: consumer.acknowledge(message_id),
    "acknowledge_cumulative": lambda: consumer.acknowledge_cumulative(message),
    "negative_acknowledge": lambda: consumer.negative_acknowledge(message),
    "seek": lambda: consumer.seek(message_id),
    "read_next": lambda: reader.read_next(10),
    "create_producer": lambda: client.create_producer(topic),
    "subscribe": lambda: client.subscribe(topic, "t"),
}

def connections():
    count, port = 0, int(url.rpartition(":")[2])
    for descriptor in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as here:
                    count += here.family != socket.AF_UNIX and here.getpeername()[1] == port
        except OSError:
            pass
    return count

assert connections() == 1
child = os.fork()
if child == 0:
    code = 1
    try:
        for name, call in uses.items():
            try:
                call()
            except geminga.ForkedProcessError:
                continue
            print(name, "raised nothing", flush=True)
        assert connections() == 0
        client.close()
        work(b"x")
        code = 0
    finally:
        os._exit(code)
assert status(child) == 0
assert [consumer.receive(30_000).data() for _ in range(2)] == [b"y", b"of the child"]
use(client, producer)
"""

PRELOADED = """
# As `gunicorn --preload`: the application is imported once, and workers are forked from it.
client = geminga.Client(url)
producer = client.create_producer(topic)
producer.send(b"x")

def worker():
    try:
        producer.send(b"x")
    except geminga.ForkedProcessError as error:
        assert "create one in the child process" in str(error)
        work(b"x")
        sys.exit(7)

for _ in range(2):
    child = os.fork()
    if child == 0:
        worker()
    assert status(child) == 7
use(client, producer)
"""

MULTIPROCESSING = """
def check(*methods):
    for method in methods:
        process = multiprocessing.get_context(method).Process(target=work, args=(b"x",))
        process.start()
        process.join()
        assert process.exitcode == 0, method

def listen(consumer, message):
    check("fork")  # on the thread of the listener
    heard.set()

if __name__ == "__main__":
    heard, called = threading.Event(), threading.Event()
    client = geminga.Client(url)
    producer = client.create_producer(topic)
    client.subscribe(topic, "s", message_listener=listen)
    producer.send_async(b"x", lambda result, message_id: (check("fork"), called.set()))
    assert called.wait(60) and heard.wait(60)
    check("fork", "spawn")
    use(client, producer)
    client.close()
"""

RETURNING = """
# A callback, and other code on the event loop, forks and returns or exits in the child, which is a mistake.
client = geminga.Client(url)
producer = client.create_producer(topic)
children, parent = [], os.getpid()

def fork(*_):
    if os.getpid() == parent:
        child = os.fork()
        if child:
            children.append(child)
        elif len(children) % 2:
            sys.exit()

for call in (lambda: producer.send_async(b"x", fork), lambda: client.runtime.post(fork)) * 2:
    before = len(children)
    call()
    while len(children) == before:
        producer.send(b"x")
assert {status(child) for child in children} == {1}
use(client, producer)
client.close()
"""

PROGRAMS = {
    "inherited": INHERITED,
    "preloaded": PRELOADED,
    "multiprocessing": MULTIPROCESSING,
    "returning": RETURNING,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_forked_child_gets_a_clear_error_or_its_own_client(pulsar_broker, pulsar_topic, tmp_path, name):
    program = tmp_path / "program.py"
    program.write_text(START + PROGRAMS[name])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", program, pulsar_broker.service_url, pulsar_topic],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
    assert bool(done.stderr) == (name == "returning"), done.stderr


def test_a_child_without_free_descriptors_refuses_every_client(monkeypatch):
    class Connection:
        is_refused = False

        def _after_fork(self) -> None:
            self.is_refused = True
            raise OSError(errno.EMFILE, "too many open files")

    found = [Connection() for _ in range(3)]
    monkeypatch.setattr(forks, "inherited", weakref.WeakSet(found))
    forks._after_fork_in_child()
    assert all(each.is_refused for each in found)
