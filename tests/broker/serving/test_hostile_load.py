"""Attacks on a real broker process: a calm peer is answered, memory is bounded, and then all is well.

How long the calm peer waits is measured by ``make bench``; here it only has to be far from the seconds
that each of these attacks once took.
"""

import socket

import pytest

from benchmarks import brokers, hostile
from benchmarks.harness import resident_megabytes

LONGEST_SECONDS = 2.0
RESIDENT_MEGABYTES = 400


@pytest.fixture
def broker(tmp_path):
    with brokers.geminga(tmp_path) as running:
        yield running


@pytest.mark.slow
@pytest.mark.rotating(1)
@pytest.mark.parametrize("name", hostile.ATTACKS)
def test_a_calm_peer_is_answered_under_attack(broker, name):
    attack = hostile.ATTACKS[name]
    if attack.topics:
        hostile.make_topics(broker.admin_url, attack.topics)
    with hostile.attacking(broker.address, attack):
        waits = hostile.answer_seconds(broker.address, 1.0)
        assert waits[len(waits) // 2] < LONGEST_SECONDS
        assert resident_megabytes(broker.pid) <= RESIDENT_MEGABYTES
    with socket.create_connection(broker.address, timeout=60) as peer:
        peer.sendall(hostile.CONNECT)
        assert peer.recv(4096)
