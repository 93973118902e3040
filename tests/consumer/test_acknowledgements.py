"""Acknowledgements: grouped, completed by batches, cumulative, receipted; against a model."""

import itertools
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from geminga.consumer.acknowledgements import AckTracker
from geminga.consumer.message import ConsumerOrigin, Message, ReceivedEntry, place_of
from geminga.ids import MessageId
from geminga.wire.frames import FrameDecoder

ORIGIN = ConsumerOrigin("t", -1)


def entry_of(tracker: AckTracker, entry_id: int, count: int = 1, ledger_id: int = 1) -> ReceivedEntry:
    entry = ReceivedEntry(ORIGIN, ledger_id, entry_id, None, count=count, batched=count > 1)
    if count > 1:
        entry.acks = tracker.parts.batch_of((ledger_id, entry_id), count)
    return entry


def messages(entry: ReceivedEntry) -> list[Message]:
    return [Message(entry, index) for index in (range(entry.count) if entry.count > 1 else (-1,))]


def decoded(frames: Iterable[bytes]) -> list[Any]:
    decoder = FrameDecoder()
    return [frame.command.ack for data in frames for frame in decoder.feed(data)]


def flushed(
    tracker: AckTracker, new_request_id: Any = None
) -> list[tuple[str, list[tuple[int, int, list[int]]]]]:
    frames, _ = tracker.flush(new_request_id)
    return [
        (
            "cumulative" if ack.ack_type else "individual",
            [(m.ledgerId, m.entryId if m.entryId < 1 << 63 else -1, list(m.ack_set)) for m in ack.message_id],
        )
        for ack in decoded(frames)
    ]


def test_a_full_group_is_due_at_once():
    tracker = AckTracker(1, grouping_max=10)
    tracker.acknowledge_entries([entry_of(tracker, number) for number in range(10)], now=0.0)
    assert tracker.due(0.0)


def test_acknowledging_by_id_completes_batches():
    tracker = AckTracker(1)
    assert tracker.acknowledge_id(MessageId(-1, 1, 3), 0.0) == [(1, 3)]
    entry_of(tracker, 4, 2)
    assert tracker.acknowledge_id(MessageId(-1, 1, 4, 0), 0.0) == []
    assert tracker.acknowledge_id(MessageId(-1, 1, 4, 1), 0.0) == [(1, 4)]
    # An unknown batch: by its size, or the whole entry.
    assert tracker.acknowledge_id(MessageId(-1, 1, 5, 0, batch_size=2), 0.0) == []
    assert tracker.acknowledge_id(MessageId(-1, 1, 5, 1, batch_size=2), 0.0) == [(1, 5)]
    assert tracker.acknowledge_id(MessageId(-1, 1, 6, 3), 0.0) == [(1, 6)]
    assert flushed(tracker) == [("individual", [(1, n, []) for n in (3, 4, 5, 6)])]


def test_a_second_acknowledgement_takes_nothing_back():
    """Found by the simulation, seed 374: the id of a batch that was just completed."""
    tracker = AckTracker(1, batch_index=True)
    tracker.acknowledge_messages(messages(entry_of(tracker, 5, 2)), 0.0)
    assert tracker.acknowledge_id(MessageId(-1, 1, 5, 1, batch_size=2), 0.0) == []
    again = entry_of(tracker, 5, 2)
    assert tracker.acknowledge_messages(messages(again)[:1], 0.0) == []
    assert flushed(tracker) == [("individual", [(1, 5, [])])]


def test_states_of_two_deliveries_are_joined():
    tracker = AckTracker(1, batch_index=True)
    first = entry_of(AckTracker(1), 5, 3)  # unknown to the tracker, as after it was forgotten
    second = entry_of(tracker, 5, 3)
    tracker.acknowledge_messages([messages(first)[0]], 0.0)
    tracker.acknowledge_messages([messages(second)[2]], 0.0)
    assert flushed(tracker) == [("individual", [(1, 5, [0b010])])]


def test_chunked_messages_are_acknowledged_by_all_their_chunks():
    tracker = AckTracker(1)
    tracker.parts.chunked((1, 9), [(1, 5), (1, 7), (1, 9)])
    assert tracker.parts.entries_of((1, 9)) == [(1, 5), (1, 7), (1, 9)]
    tracker.acknowledge_id(MessageId(-1, 1, 9), 0.0)
    assert flushed(tracker) == [("individual", [(1, 5, []), (1, 7, []), (1, 9, [])])]
    entry = ReceivedEntry(ORIGIN, 1, 12, None, chunk_ids=[(1, 11), (1, 12)])
    tracker.acknowledge_messages([Message(entry, -1)], 0.0)
    assert flushed(tracker) == [("individual", [(1, 11, []), (1, 12, [])])]


def test_a_cumulative_acknowledgement_by_id_ends_before_unfinished_batches():
    tracker = AckTracker(1)
    assert tracker.acknowledge_id_through(MessageId(-1, 1, 5), 0.0) == (1, 5)
    assert tracker.acknowledge_id_through(MessageId(-1, 1, 8, 1, batch_size=2), 0.0) == (1, 8)
    assert tracker.acknowledge_id_through(MessageId(-1, 1, 9, 0, batch_size=2), 0.0) == (1, 8)
    assert tracker.acknowledge_id_through(MessageId(-1, 1, 12, 3), 0.0) == (1, 11), "of unknown size"
    assert flushed(tracker) == [("cumulative", [(1, 11, [])])]


def test_duplicates_of_what_was_not_sent_yet():
    tracker = AckTracker(1)
    tracker.acknowledge_entries([entry_of(tracker, 2)], 0.0)
    assert tracker.is_duplicate((1, 2))
    assert not tracker.is_duplicate((1, 3))
    flushed(tracker)
    assert not tracker.is_duplicate((1, 2)), "the broker knows better"


def test_an_entry_below_the_cumulative_position_means_that_it_was_lost():
    tracker = AckTracker(1)
    tracker.acknowledge_through((1, 5), -1, None, 0.0)
    flushed(tracker)
    assert tracker.is_duplicate((1, 5))
    assert flushed(tracker) == [("cumulative", [(1, 5, [])])]
    assert not tracker.is_duplicate((1, 6))


def test_receipts_settle_all_tokens_of_a_flush():
    ids = itertools.count(1)
    tracker = AckTracker(1, receipts=True)
    tracker.acknowledge_entries([entry_of(tracker, 2)], 0.0)
    tracker.acknowledge_through((1, 1), -1, None, 0.0)
    tracker.add_token("token", 3.0)
    assert tracker.next_deadline() == 3.0
    frames, settled = tracker.flush(lambda: next(ids))
    assert (len(frames), settled, len(tracker.receipts)) == (2, [], 2)
    assert [ack.request_id for ack in decoded(frames)] == [1, 2]
    assert tracker.receipts.answered(2) == []
    assert tracker.receipts.answered(1) == ["token"]
    assert tracker.receipts.answered(1) == []


def test_tokens_with_nothing_to_send_are_settled():
    tracker = AckTracker(1, receipts=True)
    tracker.add_token("token", 0.0)
    assert tracker.flush(lambda: 1) == ([], ["token"])


def test_what_was_not_receipted_is_sent_again_after_a_reconnect():
    ids = itertools.count(1)
    tracker = AckTracker(1, receipts=True)
    tracker.acknowledge_entries([entry_of(tracker, 2)], 0.0)
    tracker.acknowledge_through((1, 1), -1, None, 0.0)
    tracker.add_token("token", 0.0)
    tracker.flush(lambda: next(ids))
    assert tracker.is_duplicate((1, 2))
    tracker.disconnected(5.0)
    assert tracker.is_duplicate((1, 2))
    assert tracker.next_deadline() < float("inf")
    again, _ = tracker.flush(lambda: next(ids))
    assert [(ack.ack_type, ack.message_id[0].entryId) for ack in decoded(again)] == [(0, 2), (1, 1)]
    assert tracker.receipts.answered(3) == []
    assert tracker.receipts.answered(4) == ["token"]


def test_a_second_acknowledgement_of_a_message_takes_back_no_entry_whose_ack_was_lost():
    tracker = AckTracker(1, batch_index=True, receipts=True)
    ids = iter(range(10))
    both = messages(entry_of(tracker, 4, 2))
    tracker.acknowledge_messages(both, now=0.0)
    assert flushed(tracker, lambda: next(ids)) == [("individual", [(1, 4, [])])]
    tracker.acknowledge_id(both[0].message_id(), now=0.0)
    tracker.disconnected(1.0)
    assert flushed(tracker, lambda: next(ids)) == [("individual", [(1, 4, [])])]


def test_many_ids_leave_in_several_commands():
    tracker = AckTracker(1)
    tracker.acknowledge_keys(((1, n) for n in range(25_000)), 0.0)
    frames, _ = tracker.flush(None)
    assert [len(ack.message_id) for ack in decoded(frames)] == [10_000, 10_000, 5_000]
    assert max(map(len, frames)) < 1 << 20


# --- against a model ---
SIZES = [1, 3, 1, 5, 2]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("message"), st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.just("id"), st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.just("through"), st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("reconnect"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(st.booleans(), st.booleans(), steps)
def test_the_broker_learns_exactly_what_was_acknowledged(batch_index, receipts, script):
    """A broker that applies the commands never has more than what was acknowledged, and in the end all; but
    of a batch that was not complete at a reconnect, and that it is not told of in parts, nothing counts."""
    ids = itertools.count(1)
    tracker = AckTracker(1, batch_index=batch_index, receipts=receipts)
    entries = [entry_of(tracker, number, count) for number, count in enumerate(SIZES)]
    acked = [[False] * count for count in SIZES]
    stored = [[False] * count for count in SIZES]

    def apply() -> None:
        frames, _ = tracker.flush(lambda: next(ids))
        for ack in decoded(frames):
            for place in ack.message_id:
                entry_id = place.entryId if place.entryId < 1 << 63 else -1
                words = list(place.ack_set)
                if ack.ack_type:
                    for before in range(min(entry_id, len(SIZES))):
                        stored[before] = [True] * SIZES[before]
                if entry_id < 0:
                    continue
                for index in range(SIZES[entry_id]):
                    if not (words and words[0] >> index & 1):
                        stored[entry_id][index] = True
            if receipts:
                tracker.receipts.answered(ack.request_id)
        for number in range(len(SIZES)):
            assert all(known or not told for told, known in zip(stored[number], acked[number], strict=True))

    for action, number, position in script:
        index = position % SIZES[number]
        message = messages(entries[number])[index]
        if action == "message":
            tracker.acknowledge_messages([message], 0.0)
            acked[number][index] = True
        elif action == "id":
            size = SIZES[number]
            place = MessageId(-1, 1, number, index if size > 1 else -1, batch_size=size if size > 1 else 0)
            tracker.acknowledge_id(place, 0.0)
            acked[number][index] = True
        elif action == "through":
            tracker.acknowledge_through((1, number), place_of(message)[1], entries[number].acks, 0.0)
            for before in range(number):
                acked[before] = [True] * SIZES[before]
            acked[number][: index + 1] = [True] * (index + 1)
        elif action == "flush":
            apply()
        else:
            tracker.disconnected(0.0)
            tracker.reopen_batches()
            if not batch_index:
                acked = [known if all(known) else [False] * len(known) for known in acked]
    apply()
    for number in range(len(SIZES)):
        if all(acked[number]) or batch_index:
            assert stored[number] == acked[number]


def test_a_token_waits_for_what_left_before_it():
    """Two threads acknowledge: the drain of the one sends what the other is about to wait for."""
    tracker, numbers = AckTracker(1, receipts=True), itertools.count(1)
    tracker.acknowledge_id(MessageId(-1, 1, 1), 0.0)
    assert tracker.flush(lambda: next(numbers))[1] == []
    tracker.add_token("first", 0.0)
    assert tracker.flush(lambda: next(numbers)) == ([], [])
    tracker.acknowledge_id(MessageId(-1, 1, 2), 0.0)
    tracker.add_token("second", 0.0)
    assert tracker.flush(lambda: next(numbers))[1] == []
    assert tracker.receipts.answered(2) == []
    tracker.add_token("third", 0.0)
    tracker.disconnected(1.0)
    frames, settled = tracker.flush(lambda: next(numbers))
    assert (len(frames), settled) == (1, [])
    assert tracker.receipts.answered(3) == ["first", "second", "third"]
    tracker.add_token("nothing is under way", 1.0)
    assert tracker.flush(lambda: next(numbers)) == ([], ["nothing is under way"])


def test_a_token_fails_if_one_of_its_requests_fails():
    """If only the last request counted, a refused acknowledgement would look like a stored one."""
    for failing in (1, 2):
        tracker, new_request_id = AckTracker(1, receipts=True), iter((1, 2)).__next__
        tracker.acknowledge_id(MessageId(-1, 1, 5), 0.0)
        tracker.acknowledge_id_through(MessageId(-1, 1, 2), 0.0)
        tracker.add_token("token", 0.0)
        assert len(tracker.flush(new_request_id)[0]) == 2
        if failing == 2:
            assert tracker.receipts.answered(1) == []
        assert tracker.receipts.answered(failing, failed=True) == ["token"]
        assert tracker.receipts.answered(2) == []
