"""Programs that end with and without `close`: none hangs, writes to stderr, or loses messages."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from readers import available

import geminga
from geminga.wire.proto import pulsar_wire_pb2 as pb

SECONDS_MAX = 60
PYTHON = (sys.executable, "-W", "ignore::ResourceWarning")

START = """
import asyncio, atexit, os, signal, sys, threading, time
import geminga
url, topic = sys.argv[1:3]
COUNT = 500

def send(producer):
    for number in range(COUNT):
        producer.send_async(b"%d" % number, None)
"""

THREADS = START + "client = geminga.Client(url)\nproducer = client.create_producer(topic)\n"

TASKS = (
    START
    + """
async def main():
    client = geminga.asyncio.Client(url)
    producer = await client.create_producer(topic)
    for number in range(COUNT):
        producer.send_async(b"%d" % number, None)
"""
)

BLOCKED = """
consumer = client.subscribe(topic, "s")
def receive():
    while True:
        consumer.acknowledge(consumer.receive())
def receive_until_closed():
    try:
        receive()
    except geminga.PulsarException:
        pass
"""

SENDS_ALL: dict[str, str] = {
    "close": THREADS + "send(producer); client.close()",
    "with": START + "with geminga.Client(url) as client: send(client.create_producer(topic))",
    "close twice": THREADS + "send(producer); client.close(); client.close()",
    "nothing": THREADS + "send(producer)",
    "nothing, batched": THREADS
    + "send(client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000))",
    "sys.exit": THREADS + "send(producer); sys.exit(0)",
    "dropped": THREADS + "send(producer); del producer, client",
    "in a function": START
    + "def main(client): send(client.create_producer(topic))\nmain(geminga.Client(url))",
    "atexit": THREADS + "atexit.register(send, producer)",
    "a daemon thread receives": THREADS
    + BLOCKED
    + "threading.Thread(target=receive_until_closed, daemon=True).start(); send(producer)",
    "a listener runs": THREADS
    + "client.subscribe(topic, 's', message_listener=lambda c, m: c.acknowledge(m)); send(producer)",
    "a table view": THREADS + "view = client.create_table_view(topic); send(producer)",
    "several clients": THREADS + "others = [geminga.Client(url) for _ in range(3)]; send(producer)",
    "threads send": THREADS
    + "threads = [threading.Thread(target=send, args=(producer,)) for _ in range(1)]\n"
    + "for thread in threads: thread.start()",
    "SIGTERM as SystemExit": THREADS
    + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); send(producer)\n"
    + "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "SIGTERM closes": THREADS
    + BLOCKED
    + "signal.signal(signal.SIGTERM, lambda *_: client.close()); send(producer)\n"
    + "threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start(); receive_until_closed()",
    "Ctrl-C": THREADS
    + BLOCKED
    + "send(producer); threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
    + "try: receive()\nexcept KeyboardInterrupt: pass",
    "embedded broker": START
    + "broker = geminga.embedded(); own = geminga.Client(broker.service_url)\n"
    + "send(own.create_producer(topic)); client = geminga.Client(url); send(client.create_producer(topic))",
    "asyncio, close": TASKS + "    await client.close()\nasyncio.run(main())",
    "asyncio, nothing": TASKS + "asyncio.run(main())",
    "asyncio, a task receives": TASKS
    + "    async def receive():\n        async for message in await client.subscribe(topic, 's'): pass\n"
    + "    task = asyncio.create_task(receive()); await asyncio.sleep(0)\nasyncio.run(main())",
}


ENDS_AT_ONCE = {
    "os._exit": ("os._exit(5)", 5),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "shutdown": ("client.shutdown(); os._exit(5)", 5),
}

RUN_ALL = """
import importlib, json, os, sys
for name in (
    "api.aio", "receive.consumer", "publish.producer", "receive.reader", "api.sync", "receive.table_view",
):
    importlib.import_module(f"geminga.client.{name}")
children = []
for output, text, arguments in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        written = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(written, 1), os.dup2(written, 2)
        sys.argv[1:] = arguments
        break
    children.append(child)
else:
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
    sys.exit()
exec(text)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Exit code, output and stored messages of every program. They are forks of a process that has imported
    the client, so that a start costs milliseconds."""
    folder = tmp_path_factory.mktemp("outputs")
    programs = SENDS_ALL | {
        name: THREADS + "for number in range(20): producer.send(b'%d' % number)\nsend(producer)\n" + end
        for name, (end, _) in ENDS_AT_ONCE.items()
    }
    with geminga.embedded() as broker, broker.client() as client:
        given = []
        for number, text in enumerate(programs.values()):
            client.subscribe(f"t{number}", "keeps").close()
            given.append((str(folder / str(number)), text, (broker.service_url, f"t{number}")))
        done = subprocess.Popen(
            [*PYTHON, "-c", RUN_ALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            codes = json.loads(done.communicate(json.dumps(given).encode(), SECONDS_MAX)[0])
        finally:
            with suppress(ProcessLookupError):
                os.killpg(done.pid, signal.SIGKILL)
        yield {
            name: (codes[number], (folder / str(number)).read_text(), stored(client, f"t{number}"))
            for number, name in enumerate(programs)
        }


def stored(client: Any, topic: str) -> list[int]:
    with client.create_reader(topic, geminga.MessageId.earliest) as reader:
        return [int(message.data()) for message in available(reader)]


@pytest.mark.parametrize("name", SENDS_ALL)
def test_a_program_sends_everything_before_it_ends(outcomes, name):
    assert outcomes[name] == (0, "", list(range(500)))


@pytest.mark.parametrize("name", ENDS_AT_ONCE)
def test_messages_with_a_receipt_survive_an_end_at_once(outcomes, name):
    code, output, numbers = outcomes[name]
    assert (code, output, numbers[:20]) == (ENDS_AT_ONCE[name][1], "", list(range(20)))


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, "-c", program, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX
    )


def test_callbacks_report_messages_that_the_end_could_not_send(broker):
    """The interpreter waits 2 s for a broker that does not answer, and no longer."""
    broker.answers[pb.BaseCommand.SEND] = lambda peer, frame: None
    program = (
        THREADS
        + "from geminga.client.io import runtime; runtime.FAREWELL_SECONDS_MAX = 0.2\n"
        + "producer.send_async(b'x', lambda result, message_id: print(result, flush=True))"
    )
    done = run(program, broker.url, "t")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Result.AlreadyClosed\n", "")


@pytest.mark.parametrize("action", ["raise KeyboardInterrupt", "raise SystemExit(0)"])
def test_interrupting_the_end_ends_the_process_at_once(broker, action):
    """The interpreter waits a little for pending messages; Ctrl-C during that wait is no error."""
    broker.answers[pb.BaseCommand.SEND] = lambda peer, frame: None
    lines = [
        f"def handler(*_): {action}",
        "signal.signal(signal.SIGTERM, handler)",
        "producer.send_async(b'never receipted', None)",
        "ending = threading.Event()",
        "from geminga.client.io import runtime",
        "def is_waiting(): return ending.is_set() and not any(one._inner.farewell for one in runtime._live)",
        "def fire():",
        "    while not is_waiting(): time.sleep(0.01)",
        "    os.kill(os.getpid(), signal.SIGTERM)",
        "threading.Thread(target=fire, daemon=True).start()",
        # The last to be registered is the first to run: this is where the end begins.
        "atexit.register(ending.set)",
    ]
    done = run(THREADS + "\n".join(lines), broker.url, "t")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
