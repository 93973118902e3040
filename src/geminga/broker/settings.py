"""Settings of a broker.

The defaults are Apache Pulsar 4.0's, with four differences that suit one machine: the broker listens
on the loopback address only, acknowledged messages are kept for seven days so that they can be
replayed, unused topics are not deleted, and acknowledgements inside a batch are kept when a
client sends them.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from geminga.broker.listeners import ListenerAddresses, parse_listeners
from geminga.config import SECONDS_MAX, check_choice, check_int, check_number, check_ports, check_type, refuse
from geminga.errors import InvalidConfiguration
from geminga.locations import without_secrets
from geminga.policies import QUOTA_ACTIONS, TOPIC_KINDS

SyncMode = Literal["always", "interval", "never"]
TopicKind = Literal["non-partitioned", "partitioned"]

SYNC_MODES: Final = ("always", "interval", "never")
DISK_FULL_ACTIONS: Final = QUOTA_ACTIONS[:2]
DISK_LIMIT_BYTES_MIN: Final = 16 * 1024 * 1024
DISK_PARTS: Final = 32
"""Number of parts of the disk: files are at most one part large, because deletions free whole files."""
LEDGER_SECONDS_LIMIT: Final = 86_400
"""Longest time for which a ledger takes entries, so that its age bounds the time of its last entry."""
HIDDEN: Final = "(hidden)"
"""Shown instead of the value of a secret."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
PORTS: Final = ("port", "web_port", "tls_port", "web_tls_port")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_TYPES: Final = {"bool": (bool,), "str": (str,), "Path | str": (str, os.PathLike)}
_WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::", "*"})
_NAME = re.compile(r"[-=:.\w]+\Z", re.ASCII)
_HOST = re.compile(r"[-.\w]+\Z|(?=.*:.*:)[0-9A-Fa-f:.]+(%[-.\w]+)?\Z", re.ASCII)  # or an IPv6 address
_MASK_RULE = re.compile(r"([^\s/=]+/){2}[^\s/=]+=[^\s,=]+(,[^\s,=]+)*\Z")
_NO_LOCATION = re.compile(r"[~$\s]|\Z|.*[\s\0]\Z|[^/:]+//", re.DOTALL)  # mistyped, as s3//bucket
_NO_FOLDER = re.compile(_NO_LOCATION.pattern + r"|.*\0|[A-Za-z][A-Za-z0-9+.-]+:/", re.DOTALL)
_FOLDER: Final = "that begins with neither ~ nor $, without // and spaces at its ends"


def setting(
    default: Any,
    *,
    minimum: float | str = 0,
    maximum: float | str | None = None,
    choices: tuple[str, ...] = (),
    dynamic: str = "",
    secret: bool = False,
    option: str = "",
    in_help: bool = False,
    metavar: str | None = None,
    multiple: bool = False,
    reload: bool = False,
) -> Any:
    """Return a field of `BrokerSettings` with limits, choices, an option, or another name while running.

    ``minimum`` and ``maximum`` limit a number; a text names an earlier setting with the limit. ``choices``:
    allowed texts; empty: all. ``dynamic``: Apache Pulsar's name, by which the setting may be changed while
    the broker runs. ``reload``: SIGHUP applies a changed value, as for dynamic settings. ``secret``: reprs
    and admin REST leave the value out. ``in_help``: ``geminga standalone --help`` lists its option, with the
    first sentence below the field; ``option``: its name if not the setting's; ``multiple``: it may be
    repeated. Its click type, variable and key in the configuration file follow from the field
    (`geminga.cli.standalone`).
    """
    options = {"option": option, "in_help": in_help, "metavar": metavar, "multiple": multiple}
    limits = {"minimum": minimum, "maximum": maximum, "choices": choices, "dynamic": dynamic}
    metadata = limits | options | {"reload": reload or bool(dynamic)}
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


def is_secure_url(url: str) -> bool:
    """Whether secrets may be sent to a URL: https, or http on this machine."""
    try:
        parts = urlsplit(url)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and local))


def shown(settings: Any, field: dataclasses.Field[Any]) -> Any:
    """Return the value of a setting for people: without secrets, those inside a URL included."""
    value = getattr(settings, field.name)
    if field.name == "offload_location" and value is not None:
        return without_secrets(value)
    return value if field.repr or value is None else HIDDEN


def _check(settings: Any, field: dataclasses.Field[Any]) -> None:
    """Check a value by the type, the limits and the choices of its field; not the items of a tuple."""
    value, kind = getattr(settings, field.name), str(field.type).removesuffix(" | None")
    if value is None and kind != field.type:
        return
    minimum: Any = field.metadata.get("minimum", 0)
    maximum: Any = field.metadata.get("maximum")
    minimum = getattr(settings, minimum) if isinstance(minimum, str) else minimum
    maximum = getattr(settings, maximum) if isinstance(maximum, str) else maximum
    if kind == "int":
        check_int(field.name, value, minimum, maximum)
    elif kind == "float":
        what = "a number of seconds" if "seconds" in field.name else "a number"
        check_number(field.name, value, float(minimum), SECONDS_MAX if maximum is None else maximum, what)
    elif (not field.repr or field.name == "offload_location") and not isinstance(value, str):
        raise InvalidConfiguration(f"{field.name} must be a text")  # its value is not for messages
    elif choices := field.metadata.get("choices"):
        check_choice(field.name, value, choices)
    elif kind in _TYPES:
        check_type(field.name, value, *_TYPES[kind], optional=kind != field.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Frozen settings of a broker; every field is checked and an error names it.

    Exactly one of ``data_dir`` and ``memory`` must be given. Sizes are bytes unless the name says otherwise,
    -1 (or 0 where Pulsar uses it) means "no limit".
    """

    # --- addresses ---
    host: str = setting("127.0.0.1", in_help=True)
    """Address to listen on; ``0.0.0.0`` for all of them."""
    port: int = setting(6650, maximum=65_535, in_help=True)
    """Port of the binary protocol; 0 takes a free one."""
    web_port: int | None = setting(8080, maximum=65_535, in_help=True)
    """Port of admin REST and metrics; 0 takes a free one. None starts no web server."""
    advertised_address: str | None = setting(None, in_help=True)
    """Host name that lookups return to clients. None: ``host``, or the address the client used when that is
    a wildcard."""
    tls_port: int | None = setting(None, maximum=65_535, in_help=True)
    """Port of the binary protocol with TLS; ``port`` stays without, as Pulsar's ``brokerServicePortTls``. 0
    takes a free one. See ``tls_certificate``."""
    web_tls_port: int | None = setting(None, maximum=65_535, in_help=True)
    """Port of admin REST with TLS; ``web_port`` stays without, as Pulsar's ``webServicePortTls``. 0 takes a
    free one."""
    advertised_listeners: tuple[str, ...] = setting((), in_help=True, metavar="NAME:URL,...")
    """Addresses returned to clients by listener name, as ``advertisedListeners`` of Apache Pulsar, such as
    ``internal:pulsar://10.0.0.5:6650``, ``external:pulsar+ssl://example.org:6651``."""
    internal_listener: str | None = setting(None, in_help=True, metavar="NAME")
    """Listener of clients that name none; by default the first of ``advertised_listeners``."""
    web_hosts: tuple[str, ...] = setting((), option="--web-host", in_help=True, multiple=True)
    """Further host names under which the web port answers; ``*`` for any. Addresses, names without a
    dot, private names (``.local``, ``.internal``, …), ``host``, ``advertised_address`` and the machine's
    own name always do. It keeps web pages from reaching the broker by DNS rebinding."""
    masked_fields: tuple[str, ...] = setting(
        (), option="--mask", metavar="TOPIC=NAME,...", multiple=True, in_help=True
    )
    """Fields and properties that the console shows as •••, such as ``shop/web/orders*=card,email``. A topic
    is ``TENANT/NAMESPACE/TOPIC``, with ``*`` and ``?``. The names are those of properties and of fields of
    JSON, Avro and Protobuf at any depth; ``key`` stands for the message's key. Other values are not shown. It
    is a rule of the console: a role that may consume reads everything with a client, or by Pulsar's own
    REST."""
    proxy_protocol: bool = setting(False, in_help=True)
    """Whether connections to ``port`` and ``tls_port`` begin with a header of the PROXY protocol, version 2,
    by which a proxy names the client's address. As ``haProxyProtocolEnabled`` of Apache Pulsar. Any client
    that reaches these ports can then claim any address: only the proxy should reach them."""
    cluster: str = "standalone"
    """Name of the cluster, which consists of this broker."""
    topic_metrics: bool = setting(True, reload=True, in_help=True)
    """Whether ``/metrics`` has the series of each topic and subscription. False sums them by namespace, as
    ``exposeTopicLevelMetricsInPrometheus=false`` of Apache Pulsar."""

    # --- retention and storage ---
    data_dir: Path | str | None = setting(None, in_help=True)
    """Folder of the store, created if missing; ``geminga-data`` in the current folder if the command line
    names neither it nor ``memory``. A program gives exactly one of them."""
    memory: bool = setting(False, in_help=True)
    """Keep all data in memory; it is lost when the broker stops."""
    disk_limit_bytes: int | None = setting(
        None, minimum=DISK_LIMIT_BYTES_MIN, option="--disk-limit", in_help=True
    )
    """Maximum size of the data folder, 16 MiB at least. None: the whole disk."""
    disk_low_water_bytes: int = setting(1024 * 1024 * 1024, option="--disk-low-water", in_help=True)
    """Free bytes below which publishing is refused; by default 5 % of a disk of less than 20 GiB. Below twice
    as many (more, on small disks) retained messages are deleted early."""
    disk_low_water_fraction: float = setting(0.05, maximum=0.9)
    """The low-water mark as a fraction of the disk, or of ``disk_limit_bytes``; the smaller mark counts."""
    disk_full_action: str = setting("producer_request_hold", choices=DISK_FULL_ACTIONS)
    """Treatment of producers below that mark: ``producer_request_hold`` or ``producer_exception``."""
    disk_retention_gives_way: bool = True
    """Whether acknowledged messages are deleted before the end of their retention when disk space is low."""
    sync: SyncMode = setting("always", choices=SYNC_MODES, in_help=True)
    """When a write counts as durable: after its fdatasync (``always``), or before one that follows within a
    second (``interval``) or never (``never``)."""

    # --- connections ---
    max_message_size: int = setting(5 * 1024 * 1024, minimum=1024, maximum=1 << 30, in_help=True)
    """Largest entry (a message or a batch) in bytes. A larger frame closes its connection."""
    keepalive_seconds: float = setting(30.0, minimum=0.01)
    """A PING after this long without a frame from the peer; closed after as long again in silence."""
    handshake_seconds: float = setting(10.0, minimum=0.01)
    """Time for a connection to send CONNECT before it is closed."""
    connections_max: int = setting(10_000, minimum=1)
    """Connections at once; fewer if the process may not open as many files. Further ones are refused."""
    write_buffer_low_bytes: int = 1 * 1024 * 1024
    """Dispatch resumes below this."""
    write_buffer_high_bytes: int = setting(4 * 1024 * 1024, minimum="write_buffer_low_bytes")
    """A connection with more unsent bytes is not `writable`: dispatch to it stops."""
    write_buffer_limit_bytes: int = setting(64 * 1024 * 1024, minimum="write_buffer_high_bytes")
    """A peer that leaves this much unread is disconnected."""
    handshake_bytes_max: int = setting(64 * 1024, minimum=1024, maximum=1 << 30)
    """The largest frame before CONNECT is answered, credentials included."""
    pending_bytes_per_peer_max: int = setting(32 * 1024 * 1024, minimum=1024)
    """Pending bytes of a connection at which reading from it stops until half of them are durable."""
    pending_bytes_max: int = setting(256 * 1024 * 1024, minimum="pending_bytes_per_peer_max")
    """Pending bytes of all connections at which reading from publishers stops until half are durable."""
    received_bytes_max: int = setting(64 * 1024 * 1024, minimum="max_message_size")
    """Incomplete frames and waiting commands of all connections; above it frames are completed one by one."""
    unsent_bytes_max: int = setting(128 * 1024 * 1024, minimum=64 * 1024)
    """Unread bytes of all peers together, above which only peers with few of them are written to."""
    handles_per_connection_max: int = setting(100_000, minimum=1)
    """Producers and consumers on one connection, together."""
    shutdown_seconds: float = 10.0
    """Longest wait of a graceful stop for the last bytes to reach the peers."""

    # --- authentication and permissions ---
    token_secret_key: str | None = setting(None, secret=True, in_help=True, metavar="KEY", reload=True)
    """Secret key (a file's path or ``file:`` URL, ``data:;base64,…``, or base64): every connection then needs
    a token signed with it."""
    token_public_key: str | None = setting(None, in_help=True, metavar="KEY", reload=True)
    """Public key, RSA or elliptic curve: every connection then needs a token signed with its private key.
    Forms as above, or the address (https) of an OpenID Connect issuer, whose published keys are used."""
    token_second_key: str | None = setting(None, secret=True, in_help=True, metavar="KEY", reload=True)
    """Second key whose tokens are valid beside the first one's, while keys are exchanged: a secret or a
    public key, forms as above."""
    token_role_claim: str = setting("sub", reload=True)
    """Claim of a token that names the role."""
    token_audience: str | None = setting(None, reload=True)
    """Required value of a token's ``token_audience_claim``; None: not checked."""
    token_audience_claim: str = setting("aud", reload=True)
    """Claim of a token with its audience; see ``token_audience``."""
    token_clock_skew_seconds: float = setting(0.0, reload=True)
    """Tolerated clock difference to the issuers of tokens."""
    basic_auth: str | None = setting(None, secret=True, in_help=True, metavar="FILE", reload=True)
    """Users and hashes of their passwords as ``htpasswd`` writes them, for ``AuthenticationBasic``: a file's
    path or ``file:`` URL, ``data:;base64,…``, or base64. Read at the start and at SIGHUP; a user's name is
    the role."""
    authentication_refresh_seconds: float = setting(60.0, minimum=0.01)
    """Time for a client whose token has expired to send a fresh one before it is closed."""
    authorization: bool = True
    """With authentication: whether roles need permissions. False: authenticated roles may do everything."""
    super_user_roles: tuple[str, ...] = setting(
        (), option="--super-user", metavar="ROLE", multiple=True, in_help=True
    )
    """Roles that may do everything."""
    metrics_roles: tuple[str, ...] = setting(
        (), option="--metrics-role", metavar="ROLE", multiple=True, in_help=True
    )
    """Roles that may read ``/metrics``, which has the topic names of all tenants; by that nothing else."""
    anonymous_role: str | None = setting(None, reload=True)
    """With authentication: the role of clients without credentials; None refuses them."""
    sign_in_issuer: str | None = setting(None)
    """Address of the OpenID Connect issuer at which people sign in to the console, https except on this
    machine. The broker verifies its identity tokens by ``token_public_key``."""
    sign_in_client_id: str | None = setting(None)
    """Client id of the console at ``sign_in_issuer``; the audience of its identity tokens."""
    sign_in_client_secret: Path | str | None = setting(None)
    """File with the client secret, read at each sign-in. None: a public client, by PKCE alone."""
    sign_in_scopes: str = setting("openid email")
    """Scopes that a sign-in requests, separated by spaces."""

    tls_certificate: Path | str | None = setting(None, in_help=True, reload=True)
    """Certificate (chain) in PEM: both ports then use TLS only, ``port`` not where ``tls_port`` is given, and
    ``web_port`` not where ``web_tls_port`` is. Read again when changed."""
    tls_key: Path | str | None = setting(None, in_help=True, reload=True)
    """Private key in PEM, if the certificate's file does not contain it."""
    tls_trust_certificates: Path | str | None = setting(None, in_help=True, reload=True)
    """CA certificates of clients, in PEM: the common name of a client's certificate is its role."""
    tls_require_client_certificate: bool = setting(False, in_help=True, reload=True)
    """Whether handshakes without a client certificate are ended. False lets clients show a token instead."""
    tls_minimum_version: str = setting("TLSv1.2", choices=TLS_VERSIONS, reload=True)
    """Lowest version of TLS that is spoken: ``TLSv1.2`` or ``TLSv1.3``."""
    tls_ciphers: str = setting("ECDHE+AESGCM:ECDHE+CHACHA20", reload=True)
    """Cipher suites of TLS 1.2 in OpenSSL's form; the default has only those with forward secrecy. The suites
    of TLS 1.3 all have it, and are not affected."""

    # --- topics ---
    partitions_max: int = setting(10_000, minimum=1)
    """Maximum partitions of a topic."""
    auto_create_topics: bool = setting(True, dynamic="allowAutoTopicCreation", in_help=True)
    """Whether the first producer or consumer creates an unknown topic. Namespace policies override it."""
    auto_create_topic_kind: TopicKind = setting(
        "non-partitioned", choices=TOPIC_KINDS, dynamic="allowAutoTopicCreationType"
    )
    """Kind of topic that is created automatically: ``non-partitioned`` or ``partitioned``."""
    auto_create_partitions: int = setting(
        1, minimum=1, maximum="partitions_max", dynamic="defaultNumPartitions"
    )
    """Partitions of an automatically created partitioned topic."""
    auto_create_subscriptions: bool = setting(True, dynamic="allowAutoSubscriptionCreation")
    """Whether the first consumer creates an unknown subscription."""
    namespace_bundles: int = setting(4, minimum=1, maximum=1 << 20)
    """Hash ranges that a new namespace shows; one broker serves them all."""
    delete_inactive_topics: bool = setting(False, dynamic="brokerDeleteInactiveTopicsEnabled")
    """Whether unused topics are deleted if no subscription has a backlog on them."""
    inactive_topic_seconds: int = setting(
        60, minimum=1, dynamic="brokerDeleteInactiveTopicsMaxInactiveDurationSeconds"
    )
    """Time after which an unused topic is deleted."""
    transactions: bool = True
    """Whether clients may begin transactions (``transactionCoordinatorEnabled``)."""
    active_transactions_max: int = 10_000
    """Transactions open at once (``maxActiveTransactionsPerCoordinator``); 0: no limit."""

    # --- compaction ---
    compaction_retain_null_key: bool = False
    """Whether compaction keeps messages without a key (``topicCompactionRetainNullKey``)."""
    compaction_memory_bytes_max: int = setting(192 * 1024 * 1024, minimum=1024 * 1024)
    """Memory limit of the keys of a topic in compaction; a compaction with more keys fails."""

    # --- cheap storage ---
    offload_location: str | None = setting(None, in_help=True)
    """Storage location for closed ledgers, as Parquet: a folder, or a URL that Arrow or fsspec know, such as
    ``s3://bucket/path``. None: no offloading. Each broker needs a location of its own."""
    offload_threshold_bytes: int = setting(
        -1,
        minimum=-1,
        dynamic="managedLedgerOffloadAutoTriggerSizeThresholdBytes",
        option="--offload-threshold",
        in_help=True,
    )
    """Local size of a topic above which its oldest ledgers are offloaded; -1: never. Policies override it."""
    offload_threshold_seconds: int = setting(-1, minimum=-1, dynamic="managedLedgerOffloadThresholdInSeconds")
    """Age after which a ledger is offloaded; -1: never. Policies override it."""
    offload_deletion_lag_seconds: float = setting(
        4 * 60 * 60, minimum=-1.0, dynamic="managedLedgerOffloadDeletionLagMs"
    )
    """Time for which an offloaded ledger's local copy is kept; -1: forever. Policies override it."""
    offload_rate_bytes: int = setting(16 << 20, minimum=-1, option="--offload-rate", in_help=True)
    """Bytes of entries offloaded per second; -1: no limit. Not applied while the disk is nearly full."""

    # --- subscriptions ---
    batch_index_ack: bool = True
    """Store acknowledgements of single messages of a batch (``acknowledgmentAtBatchIndexLevelEnabled``)."""
    unacked_messages_per_consumer_max: int = setting(50_000, dynamic="maxUnackedMessagesPerConsumer")
    """A Shared or Key_Shared consumer that holds more waits until half are acknowledged; 0: no limit."""
    unacked_messages_per_subscription_max: int = setting(200_000, dynamic="maxUnackedMessagesPerSubscription")
    """Limit of unacknowledged messages of all consumers of a subscription together; 0: no limit."""
    failover_delay_seconds: float = 1.0
    """Delay after which the next failover consumer becomes active."""
    delayed_delivery: bool = True
    """Deliver messages at the time that their producers set (Shared and Key_Shared)."""
    delayed_delivery_tick_seconds: float = setting(1.0, minimum=0.001)
    """Largest delay of a delayed message after its time."""
    redeliver_unacked_after_seconds: float = setting(
        0.0, option="--redeliver-unacked-after", in_help=True, metavar="DURATION"
    )
    """Redeliver messages that are not acknowledged within this time; 0 never. Set more than the slowest
    consumer needs for a message. Policies and a property of a subscription override it."""
    redeliver_unacked_per_second_max: int = setting(1_000, minimum=1)
    """Messages that a subscription redelivers per second for that reason."""
    redeliver_unacked_age_seconds_max: int = 0
    """Age above which messages are not redelivered for that reason; 0: no limit."""
    subscription_expiration_minutes: int = setting(0, dynamic="subscriptionExpirationTimeMinutes")
    """Delete subscriptions without consumers after this; 0 never."""

    # --- policies where a namespace sets none ---
    deduplication: bool = setting(False, dynamic="brokerDeduplicationEnabled", in_help=True)
    """Drop messages of a producer name whose sequence id is not higher than its last one."""
    deduplication_producers_max: int = setting(10_000, minimum=1)
    """Producer names that a topic keeps; those unused for longest are dropped first."""
    retention_minutes: int = setting(
        7 * 24 * 60, minimum=-1, dynamic="defaultRetentionTimeInMinutes", in_help=True
    )
    """Minutes for which acknowledged messages are kept; 0 deletes them, -1 keeps them forever."""
    retention_megabytes: int | None = setting(None, minimum=-1, dynamic="defaultRetentionSizeInMB")
    """Retained megabytes per topic; -1 no limit. None: no limit on disk, 256 in memory."""
    message_ttl_seconds: int = setting(0, dynamic="ttlDurationDefaultInSeconds")
    """Time after which unacknowledged messages are expired; 0 never."""
    backlog_quota_bytes: int = setting(-1, minimum=-1, dynamic="backlogQuotaDefaultLimitBytes")
    """Size of the backlog at which ``backlog_quota_action`` is applied; -1 never."""
    backlog_quota_seconds: int = setting(-1, minimum=-1, dynamic="backlogQuotaDefaultLimitSecond")
    """Age of the oldest unacknowledged message at which ``backlog_quota_action`` is applied; -1 never."""
    backlog_quota_action: str = setting(
        "producer_request_hold", choices=QUOTA_ACTIONS, dynamic="backlogQuotaDefaultRetentionPolicy"
    )
    """``producer_request_hold``, ``producer_exception`` or ``consumer_backlog_eviction``."""

    publish_rate_messages_max: int = setting(
        -1, minimum=-1, dynamic="brokerPublisherThrottlingMaxMessageRate"
    )
    """Messages per second of all producers together; -1: no limit. Policies (``publishRate``) limit topics
    and namespaces."""
    publish_rate_bytes_max: int = setting(-1, minimum=-1, dynamic="brokerPublisherThrottlingMaxByteRate")
    """Bytes per second of all producers together; -1: no limit."""
    dispatch_rate_messages_max: int = setting(-1, minimum=-1, dynamic="dispatchThrottlingRateInMsg")
    """Messages per second to all consumers together, a batch counting as one; -1: no limit."""
    dispatch_rate_bytes_max: int = setting(-1, minimum=-1, dynamic="dispatchThrottlingRateInByte")
    """Bytes per second to all consumers together; -1: no limit."""
    topic_publish_rate_messages: int = setting(-1, minimum=-1, dynamic="maxPublishRatePerTopicInMessages")
    """Messages per second of each topic without a policy; -1: no limit."""
    topic_publish_rate_bytes: int = setting(-1, minimum=-1, dynamic="maxPublishRatePerTopicInBytes")
    """Bytes per second of each topic without a policy; -1: no limit."""
    topic_dispatch_rate_messages: int = setting(-1, minimum=-1, dynamic="dispatchThrottlingRatePerTopicInMsg")
    """Messages per second to the consumers of each topic without a policy; -1: no limit."""
    topic_dispatch_rate_bytes: int = setting(-1, minimum=-1, dynamic="dispatchThrottlingRatePerTopicInByte")
    """Bytes per second to the consumers of each topic without a policy; -1: no limit."""
    subscription_dispatch_rate_messages: int = setting(
        -1, minimum=-1, dynamic="dispatchThrottlingRatePerSubscriptionInMsg"
    )
    """Messages per second of each subscription without a policy; -1: no limit."""
    subscription_dispatch_rate_bytes: int = setting(
        -1, minimum=-1, dynamic="dispatchThrottlingRatePerSubscriptionInByte"
    )
    """Bytes per second of each subscription without a policy; -1: no limit."""

    # --- ledgers ---
    ledger_entries_max: int = setting(50_000, minimum=1)
    """Entries of a ledger; the first of these three limits starts a new one. Trimming deletes ledgers."""
    ledger_bytes_max: int = setting(256 * 1024 * 1024, minimum=1)
    """Bytes of a ledger; see ``ledger_entries_max``."""
    ledger_seconds_max: float = setting(4 * 3600.0, minimum=0.001, maximum=LEDGER_SECONDS_LIMIT)
    """Age of a ledger, a day at most; see ``ledger_entries_max``. Less for short retention and TTL."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(self, field)
        self._check_where()
        self._check_security()
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", Path(self.data_dir))

    def _check_where(self) -> None:
        for field, value in (("host", self.host), ("advertised_address", self.advertised_address)):
            if value and value != "*" and not _HOST.match(value):
                refuse(field, value, "a host name or an IP address, without scheme and port")
        check_ports({name: getattr(self, name) for name in PORTS})
        if self.web_tls_port is not None and self.web_port is None:
            refuse("web_tls_port", self.web_tls_port, "None without web_port")
        self._check_texts("advertised_listeners", "NAME:URL", lambda _: True)
        names = parse_listeners(self.advertised_listeners)
        if self.internal_listener is not None and self.internal_listener not in names:
            refuse("internal_listener", self.internal_listener, ", ".join(names) or "none without listeners")
        allowed = "host names without scheme and port, or '*'"
        self._check_texts("web_hosts", allowed, lambda name: name == "*" or _HOST.match(name))
        self._check_texts("masked_fields", "TENANT/NAMESPACE/TOPIC=NAME,NAME...", _MASK_RULE.match)
        if not _NAME.match(self.cluster):
            refuse("cluster", self.cluster, "letters, digits and -=:._")
        if self.data_dir is not None and _NO_FOLDER.match(folder := str(self.data_dir)):
            refuse("data_dir", without_secrets(folder), f"a path {_FOLDER}; no URL")
        if self.memory == (self.data_dir is not None):
            refuse("data_dir", self.data_dir, "a folder, or memory=True and no folder")
        if self.disk_limit_bytes is not None and self.memory:
            refuse("disk_limit_bytes", self.disk_limit_bytes, "None where everything is kept in memory")
        if (place := self.offload_location) is not None and (self.memory or _NO_LOCATION.match(place)):
            allowed = f"a folder {_FOLDER}, or a URL; with a data_dir"
            refuse("offload_location", without_secrets(place), allowed)

    def _check_texts(self, name: str, allowed: str, fits: Callable[[str], object]) -> None:
        """Check the items of a list, which becomes a tuple."""
        items: Any = check_type(name, getattr(self, name), tuple, list)
        for item in items:
            if not isinstance(item, str) or not fits(item):
                refuse(name, item, allowed)
        object.__setattr__(self, name, tuple(items))

    def _check_security(self) -> None:
        if self.token_secret_key is not None and self.token_public_key is not None:
            raise InvalidConfiguration("give token_secret_key or token_public_key, not both")
        if self.token_keys_are_published and self.token_audience is None:
            raise InvalidConfiguration(
                "an issuer as token_public_key needs token_audience, such as a client id"
            )
        if self.token_second_key is not None and self.token_secret_key is self.token_public_key is None:
            raise InvalidConfiguration("token_second_key needs token_secret_key or token_public_key")
        for name in ("tls_port", "web_tls_port", "tls_key", "tls_trust_certificates"):
            if getattr(self, name) is not None and self.tls_certificate is None:
                refuse(name, str(getattr(self, name)), "None without tls_certificate")
        if self.tls_require_client_certificate and self.tls_trust_certificates is None:
            refuse("tls_require_client_certificate", True, "False without tls_trust_certificates")
        self._check_roles("super_user_roles")
        if self.anonymous_role in self.super_user_roles:
            refuse("anonymous_role", self.anonymous_role, "a role that is not among super_user_roles")
        self._check_roles("metrics_roles")
        if (self.sign_in_issuer is None) != (self.sign_in_client_id is None):
            raise InvalidConfiguration("give sign_in_issuer and sign_in_client_id, or none of both")
        if self.sign_in_issuer is not None and not is_secure_url(self.sign_in_issuer):
            refuse("sign_in_issuer", self.sign_in_issuer, "an https URL; http on this machine only")

    def _check_roles(self, name: str) -> None:
        self._check_texts(name, "names of roles", str.strip)
        if getattr(self, name) and not self.authenticates:
            raise InvalidConfiguration(
                f"{name} has no effect without authentication: give token_secret_key, "
                "token_public_key, basic_auth or tls_trust_certificates, too"
            )

    def __repr__(self) -> str:
        fields = [f"{each.name}={shown(self, each)!r}" for each in dataclasses.fields(self) if each.repr]
        return f"{type(self).__name__}({', '.join(fields)})"

    @property
    def authenticates(self) -> bool:
        """Whether connections must authenticate."""
        keys = (
            self.token_secret_key, self.token_public_key, self.tls_trust_certificates, self.basic_auth,
        )  # fmt: skip
        return any(key is not None for key in keys)

    @property
    def token_keys_are_published(self) -> bool:
        """Whether ``token_public_key`` is the address of an issuer that publishes its keys."""
        return self.token_public_key is not None and is_secure_url(self.token_public_key)

    @property
    def has_tls(self) -> bool:
        """Whether ``port`` and ``web_port``, or the separate TLS ports, use TLS: a certificate is set."""
        return self.tls_certificate is not None

    @property
    def has_plain_port(self) -> bool:
        """Whether ``port`` speaks without TLS, regardless of ``web_port``."""
        return not self.has_tls or self.tls_port is not None

    @property
    def has_plain_web_port(self) -> bool:
        """Whether ``web_port`` speaks without TLS."""
        return not self.has_tls or self.web_tls_port is not None

    @property
    def is_beyond_loopback(self) -> bool:
        """Whether other machines may reach the broker."""
        return not (self.host == "localhost" or self.host == "::1" or self.host.startswith("127."))

    @property
    def lookup_through_service_url(self) -> bool:
        """Whether lookups answer with the address that the client used (``proxy_through_service_url``).

        So it is if the broker listens on all addresses and has no advertised one: no address that it could
        guess is right for every client (port mappings, containers).
        """
        return (
            self.advertised_address is None and not self.advertised_listeners and self.host in _WILDCARD_HOSTS
        )

    @property
    def advertised_host(self) -> str:
        """The host in lookup answers and in the start line."""
        if self.advertised_address:
            return self.advertised_address
        return "localhost" if self.host in _WILDCARD_HOSTS else self.host

    def own_addresses(self, host: str | None = None) -> ListenerAddresses:
        """Return the addresses of the ports, by the advertised host or by another name of this machine."""
        where = self.advertised_host if host is None else host
        web = self.web_port
        tls_port = self.tls_port if self.has_plain_port else self.port
        web_tls_port = self.web_tls_port if self.has_plain_web_port else web

        def url(scheme: str, port: int | None) -> str | None:
            return None if port is None else f"{scheme}://{_with_port(where, port)}"

        return ListenerAddresses(
            pulsar=url("pulsar", self.port if self.has_plain_port else None),
            pulsar_tls=url("pulsar+ssl", tls_port),
            http=url("http", web if self.has_plain_web_port else None),
            https=url("https", web_tls_port),
        )

    def addresses(self, listener: str | None = None) -> ListenerAddresses | None:
        """Return the addresses for clients that name a listener, or none; None: the listener is unknown."""
        own = self.own_addresses()
        listeners = parse_listeners(self.advertised_listeners)
        if not listener:
            if not listeners:
                return own
            listener = self.internal_listener or next(iter(listeners))
        found = listeners.get(listener)
        return None if found is None else found.or_else(own)

    @property
    def service_url(self) -> str:
        """``pulsar://host:port``, or ``pulsar+ssl://`` where ``port`` speaks TLS."""
        own = self.own_addresses()
        return own.pulsar or own.pulsar_tls or ""

    @property
    def admin_url(self) -> str | None:
        """``http://host:web_port``, ``https://`` where that speaks TLS, None without a web server."""
        own = self.own_addresses()
        return own.http or own.https

    @property
    def broker_id(self) -> str:
        """``host:port`` of the web service, which is how Pulsar names a broker."""
        return _with_port(self.advertised_host, self.port if self.web_port is None else self.web_port)

    @property
    def ledger_bytes_default(self) -> int:
        """`ledger_bytes_max`, or less if the disk is small, because trimming deletes whole ledgers."""
        limit = self.disk_limit_bytes
        return self.ledger_bytes_max if limit is None else min(self.ledger_bytes_max, limit // DISK_PARTS)

    @property
    def retention_megabytes_default(self) -> int:
        """`retention_megabytes` with its None resolved."""
        if self.retention_megabytes is not None:
            return self.retention_megabytes
        return 256 if self.memory else -1

    @property
    def offload_deletion_lag_ms(self) -> int:
        return int(self.offload_deletion_lag_seconds * 1000)


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Settings of ``geminga standalone`` beside those of its broker, given in the same ways."""

    console: bool = setting(True, in_help=True)
    """Whether the web console is served at ``/`` of the web port."""
    anonymous: bool = setting(False, in_help=True)
    """Whether a broker without authentication may listen on addresses that other machines reach."""
    health_port: int | None = setting(None, maximum=65_535, in_help=True)
    """Port of ``/livez`` and ``/readyz`` alone, which answers while the broker starts and stops, and while
    the web port is full; without TLS and credentials. 0 takes a free one; None: only the web port."""
    log_level: str = setting("info", choices=LOG_LEVELS, in_help=True, reload=True)
    """Lowest level that is logged: ``debug``, ``info``, ``warning`` or ``error``. The log of audited requests
    is written at any of them."""
    log_format: str = setting("text", choices=LOG_FORMATS, in_help=True, reload=True)
    """Form of the log on standard error: ``text`` or ``json``. JSON has one object per line: ``time``,
    ``level``, ``logger``, ``message``, and where known ``connection``, ``role``, ``topic`` and
    ``subscription``."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(self, field)


def field_docs(cls: type) -> dict[str, str]:
    """Return the text below each field of a class, by the field's name; read from the source."""
    import ast
    import inspect
    from itertools import pairwise

    found = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body[0]
    pairs: Any = pairwise(found.body) if isinstance(found, ast.ClassDef) else ()
    pairs = [each for each in pairs if isinstance(each[0], ast.AnnAssign) and isinstance(each[1], ast.Expr)]
    return {field.target.id: text.value.value for field, text in pairs}
