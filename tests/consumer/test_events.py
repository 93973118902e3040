import pytest

from geminga.consumer import events
from geminga.consumer.flow import Release


def test_events_are_frozen():
    """Frozen: a shell may keep them, and the core never changes what it told."""
    event = events.DeadLettered((), Release(None, 1))
    with pytest.raises(AttributeError):
        event.messages = ()  # type: ignore[misc]
    assert events.AcksSettled(("token",)).error is None
