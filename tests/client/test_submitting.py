"""Order of submitted messages, also while some wait for permits, and of those that callbacks send."""

import itertools
from typing import Any

from geminga.client.submit_queue import QueuedSend, QueuedWork, SubmitQueue
from geminga.client.submitting import SubmitWorker
from geminga.producer.message import simple_message
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.pending_limits import ByteBudget
from geminga.producer.settings import ProducerSettings
from geminga.wire.proto import pulsar_wire_pb2 as pb


class Bench:
    """A worker with its queue, on a topic without partitions that is connected."""

    def __init__(self, **settings: Any) -> None:
        self.state = PartitionedProducer(
            topic="persistent://public/default/t",
            partitions=0,
            settings=ProducerSettings(**settings),
            memory=ByteBudget(),
            new_producer_id=itertools.count().__next__,
            random=lambda: 0.0,
        )
        (self.partition,) = self.state.partitions
        self.partition.start()
        success = pb.CommandProducerSuccess(producer_name="p", last_sequence_id=-1, schema_version=b"")
        self.partition.created(success, 5 << 20, 0.0)
        self.queue = SubmitQueue(lambda: None)
        self.worker = SubmitWorker(self.state, self.queue)

    def take(self, *pairs: Any) -> None:
        self.queue.pairs += pairs
        self.worker.take_in()

    @property
    def pending(self) -> list[Any]:
        return [token for operation in self.partition.pending for token in operation.tokens]


def test_a_message_with_a_key_does_not_overtake_a_waiting_one_without_a_key():
    bench = Bench(max_pending_messages=1)
    bench.take(b"x", "first", b"x", "second")
    bench.partition.take_output(0.0, 0)
    bench.partition.receipt(0, 0, 1, 0, 0.0)  # releases the permit, for "second"
    bench.take(simple_message(b"x", "key"), "third")
    bench.worker.wait_queue.serve()
    assert bench.pending == ["second"]


def test_a_message_sent_by_a_callback_follows_those_submitted_before():
    bench = Bench(max_pending_messages=2)

    def callback() -> None:
        bench.worker.take_in()
        bench.worker.take_now(QueuedSend(b"x", "third", None))

    bench.take(QueuedWork(callback, callback), None, b"x", "first", b"x", "second")
    assert bench.pending[:2] == ["first", "second"]
