from geminga.connection import commands
from geminga.connection.authentication import Credentials
from geminga.wire.proto import pulsar_wire_pb2 as pb


def test_keepalive_commands_have_their_bodies():
    assert commands.PING.HasField("ping")
    assert commands.PONG.HasField("pong")
    assert commands.PING.SerializeToString() == bytes.fromhex("0812920100")


def test_connect_without_a_proxy_names_no_broker():
    body = commands.connect(Credentials("none", b""), 21, None).connect
    assert not body.HasField("proxy_to_broker_url")
    assert body.auth_method_name == "none"
    assert not body.feature_flags.supports_topic_watchers


def test_lookups_name_topic_and_listener():
    body = commands.lookup("t", 7, authoritative=True, listener_name=None).lookupTopic
    assert (body.topic, body.request_id, body.authoritative) == ("t", 7, True)
    assert not body.HasField("advertised_listener_name")
    body = commands.lookup("t", 7, authoritative=False, listener_name="external").lookupTopic
    assert body.advertised_listener_name == "external"


def test_partitioned_metadata_without_auto_creation():
    assert commands.partitioned_metadata("t", 1).partitionMetadata.metadata_auto_creation_enabled
    body = commands.partitioned_metadata("t", 1, auto_creation=False).partitionMetadata
    assert not body.metadata_auto_creation_enabled


def test_topics_of_a_namespace_are_requested_by_mode():
    command = commands.topics_of_namespace("public/default", 3, pb.CommandGetTopicsOfNamespace.ALL)
    body = command.getTopicsOfNamespace
    assert (body.namespace, body.mode) == ("public/default", pb.CommandGetTopicsOfNamespace.ALL)
