"""A broker whose folder may take little: messages go through it for ever, and it never takes more."""

import contextlib
from pathlib import Path

import pytest
from disk_stores import mounted
from waiting import eventually, start_thread
from web_requests import ask

import geminga
from geminga.broker.serving.embedded import embedded
from geminga.errors import AdminUnavailable, ProducerBlockedQuotaExceededError

LIMIT = 24 * 1024 * 1024


def folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


def figures(url: str) -> dict[str, object]:
    return ask(f"{url}/admin/v2/geminga/disk").document


@pytest.mark.rotating(1)
@pytest.mark.parametrize("client_kind", ["geminga", "pulsar"])
def test_a_small_folder_passes_four_times_its_size(tmp_path, client_kind):
    """Retention is seven days, so all acknowledged messages must be deleted early."""
    library = geminga if client_kind == "geminga" else pytest.importorskip("pulsar")
    count, size = 1000, 100_000
    with embedded(tmp_path / "store", disk_limit_bytes=LIMIT) as broker:
        client = library.Client(broker.service_url)
        consumer = client.subscribe("t", "s", consumer_type=library.ConsumerType.Shared)
        producer = client.create_producer("t", send_timeout_millis=60_000, block_if_queue_full=True)
        found: set[bytes] = set()
        worst = 0

        def consume() -> None:
            while len(found) < count:
                message = consumer.receive(timeout_millis=60_000)
                found.add(message.data()[:8])
                consumer.acknowledge(message)

        thread = start_thread(consume)
        for number in range(count):
            producer.send_async(b"%08d" % number + bytes(size), lambda result, message_id: None)
            worst = max(worst, folder_bytes(tmp_path / "store"))
        producer.flush()
        thread.join(60)
        assert len(found) == count
        told = figures(broker.admin_url)
        assert told["limitBytes"] == told["totalBytes"] == LIMIT
        assert told["gaveWayBytes"] >= 2 * LIMIT
        assert b"geminga_publishing_refused" in ask(f"{broker.admin_url}/metrics").body
        client.close()
    assert worst <= LIMIT


def test_a_backlog_that_fills_the_folder_holds_producers_until_it_is_acknowledged(tmp_path):
    with embedded(tmp_path / "store", disk_limit_bytes=LIMIT) as broker, broker.client() as client:
        hasty = broker.client(operation_timeout_seconds=2)
        consumer = client.subscribe("t", "s")
        options = {"send_timeout_millis": 0, "max_pending_messages": 20}
        producer = client.create_producer("t", block_if_queue_full=True, **options)
        sent = []

        def publish() -> None:
            for number in range(300):
                data = b"%08d" % number + bytes(100_000)
                producer.send_async(data, lambda result, message_id: sent.append(result))
            producer.flush()

        thread = start_thread(publish)
        eventually(lambda: figures(broker.admin_url)["publishingRefused"])
        with pytest.raises(ProducerBlockedQuotaExceededError, match="the disk is full"):
            hasty.create_producer("t")
        with geminga.Admin(broker.admin_url, retries=0) as admin:
            admin.brokers.check_live()
            with pytest.raises(AdminUnavailable, match="the disk is full"):
                admin.brokers.check_ready()
        assert folder_bytes(tmp_path / "store") <= LIMIT
        assert len(sent) < 300
        for number in range(300):
            message = consumer.receive(timeout_millis=60_000)
            assert message.data()[:8] == b"%08d" % number, "nothing is lost, doubled or out of order"
            consumer.acknowledge_cumulative(message)
        thread.join(60)
        assert len(sent) == 300


def test_publishing_stops_while_another_program_fills_the_disk(tmp_path):
    """On a tmpfs (if this user may mount one): publishing stops before it is full, and resumes."""
    with mounted(tmp_path, "48m"), embedded(tmp_path / "store") as broker, broker.client() as client:
        producer = client.create_producer("t", send_timeout_millis=0)
        producer.send(bytes(1000))
        (tmp_path / "somebody").write_bytes(bytes(46 * 1024 * 1024))
        results: list[object] = []

        def is_refused() -> bool:
            producer.send_async(bytes(1000), lambda result, message_id: results.append(result))
            return bool(figures(broker.admin_url)["publishingRefused"])

        eventually(is_refused)
        (tmp_path / "somebody").unlink()
        producer.send(b"last")
        assert not figures(broker.admin_url)["publishingRefused"]
