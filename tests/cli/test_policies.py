"""Commands of policies, without a broker."""

from unittest.mock import MagicMock

import click
import pytest
from click.testing import CliRunner

from geminga.cli import policies
from geminga.cli.namespaces import Namespaces
from geminga.cli.topics import TopicPolicies

WORDS = {
    "": ("5", 5),
    "bytes": ("1K", 1024),
    "seconds": ("1200ms", 2),
    "minutes": ("61s", 2),
    "milliseconds": ("2.007s", 2007),
}
"""An argument and its value, by the unit of a policy: a time is rounded up, as 0 is no limit."""


@pytest.mark.parametrize("of", [Namespaces, TopicPolicies])
def test_every_policy_that_is_one_number_or_switch_can_be_set(of, monkeypatch):
    group, part = click.Group("group"), MagicMock()
    monkeypatch.setattr(policies, "holder", lambda cluster, kind: part)
    policies.add_policy_commands(group, "part", "PLACE", of)
    known = [each for each in of.policies_known() if each.command and each.kind in (bool, int)]
    assert known
    for policy in known:
        word, value = ("on", True) if policy.kind is bool else WORDS[policy.unit]
        found = CliRunner().invoke(group, [policy.command, "here", word, "--url=pulsar://localhost:1"])
        assert found.exit_code == 0, (policy.name, found.output, found.exception)
        getattr(part, policy.name).set.assert_called_once_with("here", value)


def test_times_below_a_second_are_shown_in_milliseconds():
    value = policies.DelayedDelivery(active=True, tick_milliseconds=500)
    assert policies.shown(None, value).startswith("active on, tick 500ms, ")
