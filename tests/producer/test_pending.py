import pytest

from geminga.errors import ProtocolError
from geminga.producer.operation import SendOperation
from geminga.producer.pending import PendingQueue


def operation(first, last=None, count=None):
    last = first if last is None else last
    return SendOperation(
        [b"x"], [None], sequence_id=first, highest_sequence_id=last, size=1, permits=1, opened_at=0.0,
        deadline=1.0, is_batch=last > first, count=last - first + 1 if count is None else count,
    )  # fmt: skip


def queue(*operations, sent=None):
    pending = PendingQueue()
    for each in operations:
        pending.append(each)
    for _ in range(len(operations) if sent is None else sent):
        pending.unsent.popleft()
    return pending


@pytest.mark.parametrize("highest", [0, 4, (1 << 64) - 1, -1])
def test_what_brokers_put_into_the_highest_id_is_accepted(highest):
    assert queue(operation(0, 4)).match_receipt(0, highest, 1, 1) is not None


@pytest.mark.parametrize("highest", [3, 5, 1 << 40])
def test_another_highest_id_means_that_the_sides_disagree(highest):
    with pytest.raises(ProtocolError, match=r"0\.\.4"):
        queue(operation(0, 4)).match_receipt(0, highest, 1, 1)


def test_a_larger_id_than_the_heads_means_that_the_sides_disagree():
    with pytest.raises(ProtocolError, match="came while 3 has none yet"):
        queue(operation(3), operation(4)).match_receipt(4, 0, 1, 1)


def test_a_smaller_id_is_late_and_ignored():
    pending = queue(operation(3))
    assert pending.match_receipt(2, 0, 1, 1) is None
    assert len(pending) == 1


def test_a_receipt_for_what_was_not_sent_here_means_that_the_sides_disagree():
    with pytest.raises(ProtocolError, match="nothing is in flight"):
        queue(operation(3), sent=0).match_receipt(3, 0, 1, 1)
    assert queue(operation(3), sent=0).match_receipt(2, 0, 1, 1) is None


def test_a_failed_operation_is_found_by_its_highest_or_its_first_id_only_in_flight():
    batch, later = operation(0, 4), operation(5)
    pending = queue(batch, later, sent=1)
    assert pending.find_failed(4) is batch
    assert pending.find_failed(0) is batch
    assert pending.find_failed(2) is None
    assert pending.find_failed(5) is None
