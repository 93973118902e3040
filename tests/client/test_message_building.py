"""From the arguments of send to a message."""

import pytest

from geminga.client.message_building import NO_EXTRAS, MessageBuilder
from geminga.errors import InvalidMessage
from geminga.producer.message import KeyedContent
from geminga.producer.settings import ProducerSettings


class Core:
    @staticmethod
    def now_ms():
        return 1000


class Publisher:
    context = Core

    def __init__(self, **settings):
        self.settings = ProducerSettings(**settings)


def builder(**settings):
    return MessageBuilder(Core, Publisher(**settings))


def test_payloads_without_options_are_passed_on_unchanged():
    assert builder().prepare(b"x", "token", NO_EXTRAS) == (b"x", "token", None)
    assert builder(encode=str.encode).prepare("x", None, NO_EXTRAS) == (b"x", None, None)
    with pytest.raises(TypeError):
        builder().prepare("x", None, NO_EXTRAS)


def test_with_schema_sets_the_schema_version_of_each_message():
    view = builder(encode=str.encode).with_schema(str.encode, b"\x00" * 8)
    payload, token, message = view.prepare("x", "token", NO_EXTRAS)
    assert (payload, token, message.schema_version) == (b"x", "token", b"\x00" * 8)
    assert view.prepare(None, None, NO_EXTRAS)[2].null_value


def test_keyed_content_sets_the_partition_key():
    keyed = builder(encode=lambda value: KeyedContent(value[1], value[0]))
    payload, _, message = keyed.prepare((b"key", b"value"), None, NO_EXTRAS)
    assert (payload, message.partition_key, message.partition_key_b64) == (b"value", "a2V5", True)
    assert keyed.prepare((b"key", None), None, NO_EXTRAS)[2].null_value
    extras = (None, "another", *NO_EXTRAS[2:])
    with pytest.raises(InvalidMessage, match="partition_key"):
        keyed.prepare((b"key", b"value"), None, extras)
