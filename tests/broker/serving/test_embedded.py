"""The broker inside a program."""

import os
import shutil
import time

import pytest
from interpreter import run_python

import geminga
from geminga.broker.serving.embedded import embedded
from geminga.errors import AlreadyClosed, InvalidConfiguration, NotAStore, StoreError
from geminga.ids import MessageId


def test_a_broker_starts_fast_and_has_addresses():
    began = time.process_time()
    with embedded() as broker:
        took = time.process_time() - began
        assert broker.service_url.startswith("pulsar://127.0.0.1:")
        assert broker.admin_url.startswith("http://127.0.0.1:")
        assert broker.settings.memory
        assert "running" in repr(broker)
    assert "closed" in repr(broker)
    assert took < 2.0, "300 ms on an idle machine; this bound only catches disasters"


def test_errors_reach_the_caller(tmp_path):
    with pytest.raises(InvalidConfiguration, match="keepalive_seconds"):
        embedded(keepalive_seconds=-1)
    with pytest.raises(TypeError, match="no_such_setting"):
        embedded(no_such_setting=1)
    foreign = tmp_path / "documents"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("not a store")
    with pytest.raises(NotAStore):
        embedded(foreign)
    assert (foreign / "thesis.txt").read_text() == "not a store"


@pytest.mark.parametrize(
    ("folder", "expected", "message"),
    [
        ("", InvalidConfiguration, "data_dir='' is not allowed"),
        ("a\0b", InvalidConfiguration, "data_dir='a.*b' is not allowed"),
        (5, InvalidConfiguration, "data_dir=5 is not allowed"),
        ("/dev/null", NotAStore, "/dev/null is a file"),
        ("/dev/null/store", StoreError, "/dev/null/store' cannot be made: Not a directory"),
        ("x" * 300, StoreError, "cannot be made: File name too long"),
    ],
)
def test_an_unusable_folder_is_refused(folder, expected, message):
    with pytest.raises(expected, match=message):
        embedded(folder)


def test_a_catalog_with_a_damaged_page_is_rebuilt_at_the_start(tmp_path):
    values = [b"%d" % number for number in range(20)]
    with embedded(tmp_path / "whole", web_port=None) as broker:
        producer = broker.client().create_producer("t")
        for value in values:
            producer.send(value)
    image = (tmp_path / "whole/catalog.db").read_bytes()
    for page in range(0, len(image), 4096):
        folder = tmp_path / f"page-{page}"
        shutil.copytree(tmp_path / "whole", folder)
        damaged = bytearray(image)
        damaged[page] ^= 0xFF
        (folder / "catalog.db").write_bytes(damaged)
        with embedded(folder, web_port=None) as broker, broker.client() as client:
            reader = client.create_reader("t", MessageId.earliest)
            assert [reader.read_next(30_000).data() for _ in values] == values


def test_a_catalog_damaged_at_the_start_is_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setattr("geminga.ledger.catalog.database.CHECKED_BYTES_MAX", 0)
    with embedded(tmp_path, web_port=None) as broker:
        broker.client().create_producer("t").send(b"kept")
    path = tmp_path / "catalog.db"
    image = path.read_bytes()
    assert image.count(b"tenant/public") > 0
    path.write_bytes(image.replace(b'"public"', b'"pUblic"').replace(b"tenant/public", b"tenant/pUblic"))
    with embedded(tmp_path, web_port=None) as broker, broker.client() as client:
        assert client.create_reader("t", MessageId.earliest).read_next(30_000).data() == b"kept"


def test_several_brokers_run_at_once():
    with embedded() as first, embedded() as second:
        assert first.service_url != second.service_url


def test_a_closed_broker_creates_no_client():
    broker = embedded()
    broker.close()
    with pytest.raises(AlreadyClosed):
        broker.client()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_close_the_broker(tmp_path):
    program = f"""
import os, socket
from geminga.broker.serving.embedded import embedded
broker = embedded({str(tmp_path / "s")!r}, web_port=None)
child = os.fork()
if child == 0:
    broker.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
socket.create_connection(("127.0.0.1", broker.settings.port), 60).close()
broker.close()
"""
    run_python(program)


def test_a_program_that_does_not_close_the_broker_ends(tmp_path):
    folder = str(tmp_path / "s")
    program = f"from geminga import embedded; b = embedded({folder!r}); print(b.service_url)"
    run_python(program)
    with embedded(tmp_path / "s"):
        pass


def test_a_program_that_ends_without_closing_loses_nothing(tmp_path):
    """Acknowledgements and sent messages reach the broker, and its disk."""
    program = """
import sys, geminga
broker = geminga.embedded(sys.argv[1])
client = broker.client()
producer = client.create_producer("t")
consumer = client.subscribe("t", "s", geminga.ConsumerType.Shared)
for number in range(10):
    producer.send(b"%d" % number)
for _ in range(10):
    consumer.acknowledge(consumer.receive(60_000))
producer.send_async(b"late", None)
"""
    run_python(program, str(tmp_path / "store"))
    with geminga.embedded(tmp_path / "store") as broker, geminga.Admin(broker.admin_url) as admin:
        assert [message.data for message in admin.subscriptions.peek("t", "s", 20)] == [b"late"]


def test_a_program_that_ends_with_a_busy_broker_loses_nothing(tmp_path):
    """The acknowledgements wait in the socket when the program comes to its end."""
    program = """
import sys, threading, time, geminga
broker = geminga.embedded(sys.argv[1])
client = geminga.Client(broker.service_url)
producer = client.create_producer("t")
consumer = client.subscribe("t", "s", geminga.ConsumerType.Shared)
for number in range(10):
    producer.send(b"%d" % number)
messages = [consumer.receive(60_000) for _ in range(10)]
is_busy = threading.Event()
broker._loop.call_soon_threadsafe(lambda: (is_busy.set(), time.sleep(1)))
is_busy.wait(60)
for message in messages:
    consumer.acknowledge(message)
"""
    done = run_python(program, str(tmp_path / "store"))
    assert done.stderr == ""
    with geminga.embedded(tmp_path / "store") as broker, geminga.Admin(broker.admin_url) as admin:
        assert admin.subscriptions.peek("t", "s", 20) == []
