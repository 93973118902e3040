"""Commands of ``geminga`` as explanations advise them, run on a broker core."""

import json
import shlex
from typing import Any

from geminga.ids import MessageId
from geminga.transactions import TransactionId
from tests.broker.conftest import NAME, TOPIC
from tests.support.disk_stores import succeeded

POLICIES = {
    "maxUnackedMessagesOnConsumer": "max_unacked_messages_per_consumer",
    "maxUnackedMessagesOnSubscription": "max_unacked_messages_per_subscription",
    "delayedDelivery": "delayed_delivery_policies",
}


def run_commands(harness: Any, text: str) -> list[str]:
    """Do what the commands, joined by ``&&``, do to the topic; return their verbs."""
    lines = [shlex.split(each) for each in text.split(" && ")]
    for program, group, verb, topic, *words in lines:
        if group == "transactions":
            assert (program, verb) == ("geminga", "abort"), text
            txn = TransactionId(*map(int, topic.split(":")))
            harness.broker.coordinator.end(txn, None, commit=False, answer=succeeded)
            harness.poll()
            continue
        assert (program, topic) == ("geminga", TOPIC), text
        assert group in ("topics", "subscriptions"), text
        _run(harness, verb, words)
        harness.poll()
    return [line[2] for line in lines]


def _run(harness: Any, verb: str, words: list[str]) -> None:
    cursors = harness.actions.cursors
    if verb == "unload":
        harness.actions.unload(NAME)
    elif verb in ("skip", "expire"):
        position = MessageId(-1, *map(int, words[-1].split(":")))
        if verb == "skip":
            cursors.skip_entry(NAME, words[0], position, succeeded)
        else:
            cursors.expire_to(NAME, words[0], position, succeeded, excluded=False)
    elif verb == "redeliver-unacked":
        cursors.set_properties(NAME, words[0], {"redeliver-unacked-after-seconds": words[1]}, succeeded)
    elif verb == "reset":
        cursors.reset(NAME, words[0], succeeded, position=MessageId.earliest, excluded=False)
    else:
        assert verb == "policy", f"no command {verb}"
        value = json.loads(words[1])
        harness.broker.namespaces.set_topic_policy(NAME, POLICIES[words[0]], value, succeeded)
