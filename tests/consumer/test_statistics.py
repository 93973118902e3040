from geminga.consumer.statistics import of_all, of_one
from geminga.wire.proto import pulsar_wire_pb2 as pb


def test_partitions_add_up():
    told = pb.CommandConsumerStatsResponse(
        request_id=1, availablePermits=10, unackedMessages=3, msgBacklog=7, msgRateOut=2.5,
        msgThroughputOut=100.0, msgRateRedeliver=0.5, messageAckRate=1.0,
    )  # fmt: skip
    blocked = pb.CommandConsumerStatsResponse(request_id=2, blockedConsumerOnUnackedMsgs=True)
    both = of_all("t", [of_one("t-partition-0", 2, told, 3), of_one("t-partition-1", 4, blocked, 1)])
    assert (both.waiting_messages, both.available_permits, both.unacknowledged_messages) == (6, 10, 3)
    assert (both.backlog, both.messages_per_second, both.bytes_per_second) == (7, 2.5, 100.0)
    assert (both.redelivered_per_second, both.acknowledged_per_second) == (0.5, 1.0)
    assert both.blocked
    assert both.ack_holes == 4
    assert of_all("t", [both, of_one("t-partition-2", 0, blocked, None)]).ack_holes is None
    assert [part.blocked for part in both.partitions] == [False, True]
