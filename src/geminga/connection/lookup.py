"""Lookup of a topic: its broker (LOOKUP, redirects, proxies; framing.md section 4), and its partitions."""

from typing import NamedTuple

from geminga.connection.addresses import Address, parse_broker_url
from geminga.errors import InvalidUrl, LookupError, ProtocolError
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

REDIRECTS_MAX = 20


class BrokerLocation(NamedTuple):
    """Location of the broker that serves a topic.

    ``broker`` is the address that the cluster returned. If ``through_service_url`` is true, it is not
    directly reachable: connect to the service URL and name ``broker.host_port`` in that CONNECT.
    """

    broker: Address
    through_service_url: bool = False


class AskBroker(NamedTuple):
    """The next request: to ``address`` (None: the service URL), with the given ``authoritative`` flag."""

    address: Address | None
    authoritative: bool


class TopicLookup:
    """One lookup. Send `question` to the broker it names, and pass the answer to `answered`."""

    __slots__ = ("_redirects_left", "_redirects_max", "_tls", "question", "topic")

    def __init__(self, topic: str, *, tls: bool, redirects_max: int = REDIRECTS_MAX) -> None:
        self.topic = topic
        self.question = AskBroker(None, False)
        self._tls = tls
        self._redirects_max = redirects_max
        self._redirects_left = redirects_max

    def answered(self, command: pb.BaseCommand) -> BrokerLocation | None:
        """Handle a LOOKUP_RESPONSE without an error. Return the location; None: `question` is the next step.
        Raises `LookupError` after too many redirects or if the answer has no usable address."""
        answer = command.lookupTopicResponse
        address = self._address(answer)
        if answer.response == pb.CommandLookupTopicResponse.Connect:
            return BrokerLocation(address, answer.proxy_through_service_url)
        if self._redirects_left == 0:
            raise LookupError(
                f"lookup of {self.topic!r} was redirected more than {self._redirects_max} times, last to "
                f"{address}; the cluster does not agree on an owner, check its brokers"
            )
        self._redirects_left -= 1
        # Behind a proxy the redirected request also goes through the service URL.
        target = None if answer.proxy_through_service_url else address
        self.question = AskBroker(target, answer.authoritative)
        return None

    def _address(self, answer: pb.CommandLookupTopicResponse) -> Address:
        url = answer.brokerServiceUrlTls if self._tls else answer.brokerServiceUrl
        return usable_address(url, self.topic, tls=self._tls)


def usable_address(url: str, topic: str, *, tls: bool) -> Address:
    """Return the address in the answer to a lookup. Raises `LookupError` if there is no usable one."""
    if not url:
        kind, other = ("TLS", "pulsar:// or http://") if tls else ("plain", "pulsar+ssl:// or https://")
        raise LookupError(
            f"lookup of {topic!r}: the broker returned no address for {kind} connections; "
            f"should the service URL start with {other}?"
        )
    try:
        address = parse_broker_url(url)
    except InvalidUrl as error:
        raise LookupError(f"lookup of {topic!r}: the broker's answer is unusable: {error}") from error
    if tls and not address.tls:
        # Credentials for a verified peer are never sent unencrypted.
        raise LookupError(f"lookup of {topic!r} leads from TLS to a plain address, {address}; refused")
    return address


PARTITIONS_MAX = 1_000_000
"""Limit on the number of partitions that a broker may announce, so that a wrong answer cannot exhaust the
memory."""


def partition_count(command: pb.BaseCommand) -> int:
    """Return the count in a PARTITIONED_METADATA_RESPONSE without an error; 0: not partitioned. Raises
    `ProtocolError` for a count above `PARTITIONS_MAX`."""
    return believed_count(command.partitionMetadataResponse.partitions)


def believed_count(count: int) -> int:
    """Return ``count``. Raises `ProtocolError` above `PARTITIONS_MAX`."""
    if count > PARTITIONS_MAX:
        raise ProtocolError(f"the broker announces {count} partitions; at most {PARTITIONS_MAX} are accepted")
    return int(count)


def partition_names(topic: str, count: int) -> list[str]:
    """Return the topics to connect to: the topic itself, or its ``count`` partitions in order."""
    name = TopicName.parse(topic)
    if count == 0:
        return [str(name)]
    return [str(name.partition_name(index)) for index in range(count)]
