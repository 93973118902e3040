"""The event loop of clients and brokers, also where threads are greenlets."""

import _thread
import asyncio
import importlib.util

import pytest
from interpreter import run_python

from geminga._util.event_loops import new_event_loop

PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
if sys.argv[1] == "gevent":
    import gevent.monkey
    gevent.monkey.patch_all()
else:
    import eventlet
    eventlet.monkey_patch()
import threading, time
import geminga

ticks = 0

def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.01)

threading.Thread(target=tick, daemon=True).start()
broker = geminga.embedded() if sys.argv[2] == "own" else None
client = broker.client() if broker else geminga.Client(sys.argv[2].replace("127.0.0.1", "localhost"))
consumer, producer = client.subscribe("greenlets", sys.argv[1]), client.create_producer("greenlets")
for number in range(20):
    producer.send(b"%d" % number)
for number in range(20):
    message = consumer.receive(30_000)
    assert message.data() == b"%d" % number
    consumer.acknowledge(message)
before = ticks
try:
    consumer.receive(300)
except geminga.Timeout:
    assert ticks > before, "a waiting receive lets no other greenlet run"
done = threading.Event()
producer.send_async(b"x", lambda result, message_id: done.set())
assert done.wait(30)
client.close()
if broker:
    broker.close()
print("done")
"""


@pytest.mark.parametrize("own", [True, False], ids=["a broker in the program", "a broker elsewhere"])
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_client_works_where_threads_are_greenlets(pulsar_broker, library, own):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    arguments = [library, "own" if own else pulsar_broker.service_url]
    done = run_python(PROGRAM, *arguments)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_loop_is_asyncios_where_threads_are_greenlets(monkeypatch):
    pytest.importorskip("uvloop")
    for start, expected in ((_thread.start_new_thread, "uvloop"), (lambda *_: 0, "asyncio.unix_events")):
        monkeypatch.setattr(_thread, "start_new_thread", start)
        loop = new_event_loop()
        loop.close()
        assert type(loop).__module__ == expected


@pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
async def test_a_test_that_is_a_coroutine_runs_to_its_end():
    await asyncio.sleep(0)
    raise ZeroDivisionError
