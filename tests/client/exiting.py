"""A program that is ended: see `test_exits`. Arguments: seed, service URL, topic, file for receipts.

Without arguments it forks such a program for each line of its input, which is JSON with those four, and
answers with a line of JSON when that has ended. What the start of an interpreter costs is paid once, and the
end of each is the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import json
import os
import random
import signal
import sys
import threading
import time

import geminga
import geminga.asyncio

SEED, URL, TOPIC = 0, "", ""
R = random.Random()
DESCRIPTOR = -1


def receipted(number: int, result: object = geminga.Result.Ok) -> None:
    """Make one write, which survives any end of the process."""
    if result is geminga.Result.Ok:
        os.write(DESCRIPTOR, b"%d\n" % number)


def signals(of_asyncio: bool) -> None:
    """SIGTERM ends as services do it, SIGINT as Python does; either comes at any moment."""
    style = R.choice(
        ["none", "interrupt", "terminate", "exit in handler", "close in handler", "send in handler"]
    )
    if of_asyncio and style.endswith("handler"):
        return  # asyncio has ways of its own for handlers: one that raises may do so in any task
    if style == "none":
        return
    number = signal.SIGINT if style == "interrupt" else signal.SIGTERM
    if style not in ("interrupt", "terminate"):

        def handler(*_: object) -> None:
            if style == "send in handler" and things:
                with_sends(things, 3, 1_000_000)
            if style == "close in handler" and clients:
                clients[0].close()
            raise SystemExit(0)

        signal.signal(number, handler)
    delay = R.choice([R.uniform(0, 0.05), R.uniform(0, 0.2)])

    def fire() -> None:
        time.sleep(delay)
        os.kill(os.getpid(), number)

    threading.Thread(target=fire, daemon=True).start()


def act() -> None:
    """Additional work of a message's callback, besides noting its receipt."""
    style = random.Random(SEED).choice([""] * 6 + ["exit", "shutdown", "close", "fork"])
    if style == "exit":
        raise SystemExit("said by a callback")
    if style == "fork":
        # The child returns from the callback to the library, which ends it.
        child = os.fork()
        if child and (status := os.waitpid(child, 0)[1]):
            raise RuntimeError(f"the child of a callback ended with {status}")
    elif style and clients:
        getattr(clients[0], style)()


things: list[geminga.Producer] = []
clients: list[geminga.Client] = []


def told(number: int, result: object) -> None:
    receipted(number, result)
    if number == 150:
        act()


def with_sends(producers: list[geminga.Producer], count: int, start: int) -> None:
    for producer in producers:
        for i in range(start, start + count):
            try:
                producer.send_async(b"%d" % i, lambda result, _, i=i: told(i, result))
            except geminga.AlreadyClosed:
                return


def sync_program() -> None:
    client = geminga.Client(URL)
    clients.append(client)
    batching = R.random() < 0.5
    producer = client.create_producer(TOPIC, batching_enabled=batching, block_if_queue_full=True)
    things.append(producer)
    uses = R.choice(["send", "async", "threads", "fork"])
    consumer = None
    if R.random() < 0.6:
        listener = (lambda c, m: c.acknowledge(m)) if R.random() < 0.5 else None
        consumer = client.subscribe(TOPIC, f"s{SEED}", message_listener=listener)
        if listener is None and R.random() < 0.5:
            # Blocked when the interpreter ends.
            threading.Thread(target=lambda: receive_on(consumer), daemon=True).start()
    view = client.create_table_view(TOPIC) if R.random() < 0.3 else None
    if uses == "send":
        for i in range(R.choice([1, 30])):
            producer.send(b"%d" % i)
            receipted(i)
    elif uses == "async":
        with_sends([producer], R.choice([1, 500, 5_000]), 0)
    elif uses == "threads":
        workers = [threading.Thread(target=with_sends, args=([producer], 300, 1_000 * n)) for n in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    else:
        with_sends([producer], 200, 0)
        child = os.fork()
        if child == 0:
            try:
                producer.send_async(b"-1", None)
            except geminga.PulsarException:
                pass
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        if status and not os.WIFSIGNALED(status):
            raise RuntimeError(f"the child ended with {status}")
    ending = R.choice(["close", "close", "shutdown", "nothing", "nothing", "del", "sys.exit", "twice"])
    if ending in ("close", "twice"):
        client.close()
    if ending == "twice":
        try:
            client.close()
        except geminga.AlreadyClosed:
            pass
    if ending == "shutdown":
        client.shutdown()
    if ending == "del":
        del client, producer, consumer, view
        things.clear()
        clients.clear()
    if ending == "sys.exit":
        sys.exit(0)


def receive_on(consumer: geminga.Consumer) -> None:
    try:
        while True:
            consumer.acknowledge(consumer.receive())
    except geminga.PulsarException:
        pass


async def async_program() -> None:
    signals(
        of_asyncio=True
    )  # not before: asyncio itself does not begin without a word when it is interrupted
    client = geminga.asyncio.Client(URL)
    producer = await client.create_producer(TOPIC, batching_enabled=R.random() < 0.5)
    background: set[asyncio.Task[None]] = set()

    # These tasks swallow errors of the closed client: an interrupted program does not await them.
    async def send(number: int) -> None:
        with contextlib.suppress(geminga.PulsarException):
            await producer.send(b"%d" % number)
            receipted(number)

    async def receive() -> None:
        with contextlib.suppress(geminga.PulsarException):
            consumer = await client.subscribe(TOPIC, f"s{SEED}")
            async for message in consumer:
                await consumer.acknowledge(message)

    if R.random() < 0.6:
        background.add(asyncio.create_task(receive()))
    sends = [asyncio.create_task(send(i)) for i in range(R.choice([1, 100, 1_000]))]
    if R.random() < 0.7:
        await asyncio.gather(*sends, return_exceptions=True)
    else:
        await asyncio.sleep(R.uniform(0, 0.05))
    ending = R.choice(["close", "nothing", "shutdown"])
    if ending == "close":
        await client.close()
    elif ending == "shutdown":
        client.shutdown()
    for task in [*sends, *background]:
        task.cancel()
    await asyncio.gather(*sends, *background, return_exceptions=True)
    if R.random() < 0.4:
        # While `asyncio.run` cancels the remaining tasks, and closes the client if it is still open.
        threading.Thread(target=interrupt, args=(R.uniform(0, 0.004),), daemon=True).start()


def interrupt(delay: float) -> None:
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGINT)


def main(seed: int, url: str, topic: str, receipts: str) -> None:
    global SEED, URL, TOPIC, R, DESCRIPTOR
    SEED, URL, TOPIC, R = seed, url, topic, random.Random(seed)
    DESCRIPTOR = os.open(receipts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    of_asyncio = R.random() < 0.3
    try:
        if of_asyncio:
            asyncio.run(async_program())
        else:
            signals(of_asyncio=False)
            sync_program()
    except KeyboardInterrupt:
        sys.exit(130)
    except geminga.AlreadyClosed:
        # The handler closed the client under it.
        pass


def serve() -> bool:
    """True in a program that is to run, with `sys.argv` as if it had been started."""
    for name in ("aio", "consumer", "producer", "reader", "sync", "table_view"):
        importlib.import_module(f"geminga.client.{name}")
    for line in sys.stdin:
        given = json.loads(line)
        with open(given["said"], "wb") as said:
            child = os.fork()
            if child == 0:
                nothing = os.open(os.devnull, os.O_RDONLY)
                os.dup2(nothing, 0)
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                sys.argv[1:] = given["arguments"]
                return True
        status = ended(child, given["seconds_max"])
        print(json.dumps(None if status is None else os.waitstatus_to_exitcode(status)), flush=True)
    return False


def ended(child: int, seconds_max: float) -> int | None:
    """Return the exit status; None when the process had to be killed."""
    deadline = time.monotonic() + seconds_max
    pause = 0.001
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    os.kill(child, signal.SIGABRT if faulthandler.is_enabled() else signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if len(sys.argv) > 1 or serve():
    main(int(sys.argv[1]), *sys.argv[2:5])
