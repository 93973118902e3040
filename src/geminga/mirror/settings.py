"""Settings of a mirror: two clusters, topics, and options."""

from collections.abc import Sequence
from dataclasses import dataclass

from geminga.client.cluster import Cluster
from geminga.config import check_choice, check_int, check_seconds, check_type, refuse
from geminga.mirror.patterns import MirrorPattern

MISMATCH = ("stop", "continue", "restart")


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorSettings:
    """Settings of a mirror: two clusters, topics, and options.

    Raises `InvalidConfiguration` and `InvalidTopicName`.
    """

    source: Cluster
    """Source cluster, with its web address."""
    target: Cluster
    """Target cluster."""
    topics: Sequence[str]
    """Patterns ``[persistent://][tenant/namespace/]topic``; each part is a regular expression that matches
    the whole part, so that plain names are patterns, too."""
    name: str | None = None
    """Name that distinguishes several mirrors; None: the source cluster's name."""
    source_name: str | None = None
    """The source cluster's name, which marks messages; None: the name that the cluster reports."""
    target_name: str | None = None
    """The target cluster's name, which only ``forward`` needs. None: the name that the cluster reports."""
    forward: bool = False
    """Copy also messages that a mirror or geo-replication brought to the source, except those that a mirror
    copied from the target. By default each cluster's messages are copied from that cluster only."""
    subscriptions: bool = True
    """Mirror durable subscriptions."""
    policies: bool = True
    """Copy policies to namespaces and topics that the mirror creates."""
    once: bool = False
    """End when everything that the source had at the start is copied."""
    on_mismatch: str = "stop"
    """Action if the recorded progress does not fit source and target: ``stop``, ``continue`` after the known
    progress, or ``restart`` and copy all messages that the source still has."""
    discovery_seconds: float = 10.0
    """Interval between searches for new topics and partitions."""
    subscription_seconds: float = 5.0
    """Interval between updates of the subscriptions."""
    memory_bytes: int = 256 * 1024 * 1024
    """Memory for entries in flight, over all partitions."""
    metrics_port: int | None = None
    """Port of Prometheus' ``/metrics`` on loopback; None: no metrics."""

    def __post_init__(self) -> None:
        check_type("source", self.source, Cluster)
        check_type("target", self.target, Cluster)
        if isinstance(self.topics, str) or not self.topics:
            refuse("topics", self.topics, "a list of patterns, at least one")
        for pattern in self.topics:
            MirrorPattern.parse(check_type("topics", pattern, str))
        for field in ("name", "source_name", "target_name"):
            value = check_type(field, getattr(self, field), str, optional=True)
            if value is not None and (not value or not set(value) <= _NAME_CHARACTERS or len(value) > 128):
                refuse(field, value, "1 to 128 letters, digits and . _ - @ :")
        for field in ("forward", "subscriptions", "policies", "once"):
            check_type(field, getattr(self, field), bool)
        check_choice("on_mismatch", self.on_mismatch, MISMATCH)
        check_seconds("discovery_seconds", self.discovery_seconds, 0.1)
        check_seconds("subscription_seconds", self.subscription_seconds, 0.1)
        check_int("memory_bytes", self.memory_bytes, 1024 * 1024)
        if self.metrics_port is not None:
            check_int("metrics_port", self.metrics_port, 0, 65535)
        if self.source.service_url == self.target.service_url:
            refuse("target", self.target.service_url, "another cluster than the source")


_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@:")
