"""States of a consumer that are the end."""

import pytest

from geminga.consumer.state import ConsumerInput, ConsumerState, next_state


@pytest.mark.parametrize("state", [ConsumerState.CLOSED, ConsumerState.FAILED])
def test_an_ended_consumer_stays_so(state):
    later = {next_state(state, each) for each in ConsumerInput if each.name not in ("ATTACH", "SEEK")}
    assert later <= {state, ConsumerState.CLOSED}
