from geminga.connection import commands
from geminga.connection.authentication import Credentials


def test_connect_without_a_proxy_names_no_broker():
    body = commands.connect(Credentials("none", b""), 21, None).connect
    assert not body.HasField("proxy_to_broker_url")
    assert body.auth_method_name == "none"
    assert not body.feature_flags.supports_topic_watchers


def test_partitioned_metadata_without_auto_creation():
    assert commands.partitioned_metadata("t", 1).partitionMetadata.metadata_auto_creation_enabled
    body = commands.partitioned_metadata("t", 1, auto_creation=False).partitionMetadata
    assert not body.metadata_auto_creation_enabled
