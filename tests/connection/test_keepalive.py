from geminga.connection.core import KeepAlive, KeepAliveAction


def test_a_late_tick_still_gives_the_peer_its_interval():
    keepalive = KeepAlive(30.0, now=0.0)
    # The process was suspended: the first tick comes an hour late.
    assert keepalive.tick(3600.0) is KeepAliveAction.SEND_PING
    assert keepalive.next_deadline() == 3630.0
