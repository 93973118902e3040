import re

import pytest

from geminga.client import arguments
from geminga.errors import InvalidConfiguration, InvalidTopicName


def test_topics():
    assert arguments.checked_topic("t") == "persistent://public/default/t"
    assert arguments.checked_topics(["a", "a", "b"]) == [
        "persistent://public/default/a",
        "persistent://public/default/b",
    ]
    pattern = re.compile("a.*")
    assert arguments.checked_topics(pattern) is pattern


@pytest.mark.parametrize("topic", ["", "a/b", "gopher://a/b/c"])
def test_wrong_names(topic):
    with pytest.raises(InvalidTopicName):
        arguments.checked_topic(topic)


@pytest.mark.parametrize("topic", [None, 7, b"t"])
def test_wrong_types(topic):
    with pytest.raises(InvalidConfiguration, match="topic"):
        arguments.checked_topic(topic)


@pytest.mark.parametrize("topics", [[], 7, re.compile(b"bytes")])
def test_wrong_topics(topics):
    with pytest.raises(InvalidConfiguration, match="topic"):
        arguments.checked_topics(topics)


def test_subscription():
    assert arguments.checked_subscription("s") == "s"
    for wrong in ("", None, 7):
        with pytest.raises(InvalidConfiguration, match="subscription_name"):
            arguments.checked_subscription(wrong)


def test_not_supported_names_the_argument():
    error = arguments.not_supported("encryption_key", "k")
    assert "encryption_key='k'" in str(error)
