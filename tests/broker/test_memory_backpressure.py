"""Memory held for peers: each account has a limit, and reaching it slows only the peers that cause it."""

import struct

import pytest

from geminga.broker.runtime.memory_backpressure import HELD_BY_PENDING, STALLED_SECONDS, MemoryBackpressure
from geminga.broker.runtime.scheduler import Scheduler
from geminga.broker.settings import BrokerSettings
from geminga.wire.frames import FRAME_PADDING
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import encoded

MIB = 1024 * 1024
LARGEST = 5 * MIB + FRAME_PADDING


def part(size: int, of: int = 5 * MIB) -> bytes:
    """The first ``size`` bytes of a frame that is larger."""
    return struct.pack(">I", of) + bytes(size - 4)


@pytest.fixture
def crowded(make_harness):
    return make_harness(received_bytes_max=5 * MIB)


def test_half_a_frame_is_counted_until_it_is_complete_or_its_peer_gone(harness):
    peer, ledger = harness.peer(), harness.broker.backpressure
    peer.send_bytes(part(1 * MIB))
    assert ledger.received_bytes == 1 * MIB
    peer.send_bytes(bytes(MIB))
    assert ledger.received_bytes == 2 * MIB
    peer.disconnect()
    assert ledger.received_bytes == 0


def test_frames_before_connect_must_be_small(harness):
    peer = harness.peer(connect=False)
    peer.send_bytes(part(1000, of=harness.settings.handshake_bytes_max + 1))
    assert peer.is_closed
    assert harness.broker.backpressure.received_bytes == 0


def test_at_the_limit_one_frame_is_completed_at_a_time(crowded, make_entry):
    first, second = crowded.peer(), crowded.peer()
    first.producer("t", 1)
    first.send_bytes(part(3 * MIB))
    second.send_bytes(part(3 * MIB))
    assert (first.reading, second.reading) == (True, False)
    calm = crowded.peer()
    calm.producer("t", 1)
    assert calm.reading
    first.disconnect()
    assert second.reading


def test_a_stalled_peer_is_disconnected_at_the_limit_and_others_continue(crowded):
    stalled, waiting = crowded.peer(), crowded.peer()
    stalled.send_bytes(part(3 * MIB))
    waiting.send_bytes(part(3 * MIB))
    assert not waiting.reading
    crowded.advance(STALLED_SECONDS)
    # A connection that received bytes lately is kept.
    assert not stalled.is_closed
    crowded.advance(STALLED_SECONDS)
    assert stalled.is_closed
    assert waiting.reading
    assert not waiting.is_closed
    assert crowded.broker.backpressure.received_bytes == 3 * MIB


def test_below_the_limit_no_peer_is_disconnected(harness):
    slow = harness.peer()
    slow.send_bytes(part(1 * MIB))
    for _ in range(5):
        harness.advance(STALLED_SECONDS)
    assert not slow.is_closed


def test_incomplete_frames_of_a_thousand_peers_stay_below_the_limit(crowded):
    peers = [crowded.peer() for _ in range(1_000)]
    for _ in range(4):
        for peer in peers:
            if peer.reading and not peer.is_closed:
                peer.send_bytes(part(256 * 1024) if not peer.session.decoder.pending_size else bytes(MIB))
    # Twice the limit, and the frame that is being completed.
    assert crowded.broker.backpressure.received_bytes <= 2 * 5 * MIB + LARGEST
    assert sum(peer.is_closed for peer in peers) > 900
    crowded.peer().producer("t", 1)
    for _ in range(40):
        crowded.advance(STALLED_SECONDS)
    assert crowded.broker.backpressure.received_bytes <= 5 * MIB


def test_commands_of_one_peer_wait_for_a_turn_and_others_are_answered(harness):
    broker = harness.broker
    harness.advance_clock_on_read(0.001)
    flood, calm = harness.peer(), harness.peer()
    pings = encoded("ping")
    flood.send_bytes(pings * 5_000)
    assert not flood.reading
    answered = len(flood.frames)
    assert answered < 50
    calm.send_bytes(pings)
    assert [frame.type for frame in calm.frames] == [pb.BaseCommand.PONG]
    # Bytes that arrive although reading is paused are queued in order, and count.
    flood.send_bytes(pings[:-1])
    flood.send_bytes(pings[-1:])
    assert broker.backpressure.received_bytes > 5_000
    harness.run_slices()
    assert len(flood.frames) == 5_001
    assert flood.reading
    assert broker.backpressure.received_bytes == 0


def test_commands_of_a_peer_that_does_not_read_wait(harness):
    peer = harness.peer()
    pings = encoded("ping")
    peer.writable = False
    peer.send_bytes(pings * 1_000)
    harness.broker.turn(harness.now, harness.now_ms)
    assert len(peer.frames) == 1
    assert not peer.reading
    peer.writable = True
    peer.session.writable_again(harness.now)
    assert len(peer.frames) == 1_000
    assert peer.reading


def test_a_peer_that_never_reads_again_is_disconnected(harness):
    peer = harness.peer()
    pings = encoded("ping")
    peer.writable = False
    peer.send_bytes(pings * 10)
    peer.answers_pings = False
    harness.advance(61)
    assert peer.is_closed


class Waiting:
    """As much of a peer as the ledger needs."""

    is_read = True

    def __init__(self, pending_bytes: int) -> None:
        self.pending_bytes = pending_bytes
        self.held = 0

    def hold(self, why: int) -> None:
        self.held |= why

    def release(self, why: int) -> None:
        self.held &= ~why

    def close(self) -> None: ...


def test_peers_resume_below_their_own_and_the_common_limit():
    settings = BrokerSettings(memory=True)
    each, everybody = settings.pending_bytes_per_peer_max, settings.pending_bytes_max
    ledger = MemoryBackpressure(Scheduler(0.0, 0), settings)
    small, large = Waiting(1), Waiting(each)
    for peer in (small, large):
        ledger.pause(peer)
    ledger.pending_bytes = everybody
    ledger.resume()
    assert (small.held, large.held) == (HELD_BY_PENDING, HELD_BY_PENDING), "all together have too much"
    ledger.pending_bytes = everybody // 2
    ledger.resume()
    assert (small.held, large.held) == (0, HELD_BY_PENDING), "one has too much itself"
    small.held, large.pending_bytes = HELD_BY_PENDING, each // 2
    ledger.resume()
    assert (small.held, large.held) == (HELD_BY_PENDING, 0), "who goes on is not told again"
