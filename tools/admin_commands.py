"""Command lines of ``pulsar-admin`` that `admin_matrix.py` runs on both brokers, and those that it leaves out.

A line is ``GROUP COMMAND ARGUMENTS``. Names in braces are filled in for each broker (`admin_matrix.Place`).
A line that begins with ``~`` is repeated for a short time while its output stays the same: Apache Pulsar stores
policies of a topic in another topic, and reads them back later. A line that begins with ``^`` is repeated until
its output changes: Apache Pulsar computes the statistics of all topics periodically. A line that begins with
``!`` is repeated while the answer is a conflict: Apache Pulsar answers when it begins to expire messages, and
refuses to start again before it has finished. ``prepare`` fills the topics.
"""
# ruff: noqa: E501 (command lines are as long as they are)

from __future__ import annotations

from typing import Final

Policies = tuple[tuple[str, str | None], ...]
"""(policy, arguments of ``set-``; None where it is set under another name)."""

NAMESPACE: Final = "matrix/ns"
TOPIC: Final = f"persistent://{NAMESPACE}/busy"
"""A topic with messages, a producer, two subscriptions and a consumer."""
PARTITIONED: Final = f"persistent://{NAMESPACE}/parts"
SPARE: Final = f"persistent://{NAMESPACE}/spare"
"""A topic with messages and without clients."""

TENANTS: Final = """
clusters list
clusters list --current
clusters get {cluster}
clusters create there --url http://there:8080 --broker-url pulsar://there:6650
clusters create there --url http://there:8080 --broker-url pulsar://there:6650
clusters update there --url http://another:8080 --broker-url pulsar://another:6650
clusters get there
clusters get-peer-clusters there
clusters update-peer-clusters there --peer-clusters {cluster}
clusters get-peer-clusters there
clusters list-failure-domains {cluster}
clusters get nowhere
clusters delete nowhere
tenants list
tenants create matrix --allowed-clusters {cluster}
tenants create matrix --allowed-clusters {cluster}
tenants create wrong --allowed-clusters nowhere
tenants create with/slash --allowed-clusters {cluster}
tenants get matrix
tenants update matrix --admin-roles somebody --allowed-clusters {cluster}
tenants get matrix
tenants list
tenants get nobody
tenants update nobody --allowed-clusters {cluster}
tenants delete nobody
properties create alias --allowed-clusters {cluster}
properties list
properties get alias
properties update alias --admin-roles one
properties delete alias
tenants create gone --allowed-clusters {cluster}
namespaces create gone/ns
tenants delete gone
tenants delete gone --force
clusters delete there
"""

NAMESPACES: Final = """
namespaces create matrix/ns --bundles 4 --clusters {cluster}
namespaces create matrix/ns
namespaces set-deduplication matrix/ns --disable
namespaces create nobody/ns
namespaces create matrix/bad:name
namespaces create matrix/zero --bundles 0
namespaces list matrix
namespaces list nobody
namespaces list-cluster matrix/{cluster}
namespaces policies matrix/ns
namespaces policies matrix/none
namespaces bundles matrix/ns
namespaces topics matrix/ns
namespaces topics matrix/none
namespaces topics matrix/ns --mode non_persistent
namespaces destinations matrix/ns
namespaces permissions matrix/ns
namespaces grant-permission matrix/ns --role reader --actions consume
namespaces grant-permission matrix/ns --role writer --actions produce,functions
namespaces grant-permission matrix/ns --role writer --actions dance
namespaces grant-permission matrix/none --role writer --actions produce
namespaces permissions matrix/ns
namespaces revoke-permission matrix/ns --role reader
namespaces revoke-permission matrix/ns --role nobody
namespaces permissions matrix/ns
namespaces subscription-permission matrix/ns
namespaces grant-subscription-permission matrix/ns --subscription s --roles one,two
namespaces subscription-permission matrix/ns
namespaces revoke-subscription-permission matrix/ns --subscription s --role one
namespaces revoke-subscription-permission matrix/ns --subscription none --role one
namespaces subscription-permission matrix/ns
namespaces set-properties matrix/ns --properties a=1,b=2
namespaces get-properties matrix/ns
namespaces set-property matrix/ns --key c --value 3
namespaces get-property matrix/ns --key c
namespaces get-property matrix/ns --key none
namespaces remove-property matrix/ns --key c
namespaces remove-property matrix/ns --key none
namespaces clear-properties matrix/ns
namespaces get-properties matrix/ns
namespaces split-bundle matrix/ns --bundle 0x00000000_0x40000000
namespaces bundles matrix/ns
namespaces split-bundle matrix/ns --bundle 0x00000000_0x99999999
namespaces unload matrix/ns --bundle 0x80000000_0xc0000000
namespaces unload matrix/ns --bundle 0x00000000_0x99999999
namespaces unload matrix/ns
namespaces unload matrix/none
namespaces get-anti-affinity-group matrix/ns
namespaces update-migration-state matrix/ns
namespaces get-clusters matrix/ns
namespaces set-clusters matrix/ns --clusters {cluster}
namespaces set-clusters matrix/ns --clusters nowhere
namespaces get-clusters matrix/ns
namespaces get-allowed-clusters matrix/ns
namespaces set-allowed-clusters matrix/ns --clusters {cluster}
namespaces set-allowed-clusters matrix/ns --clusters nowhere
namespaces get-allowed-clusters matrix/ns
resourcegroups list
"""

NAMESPACE_POLICIES: Final[Policies] = (
    ("auto-subscription-creation", "--enable"),
    ("auto-topic-creation", "--enable --type partitioned --num-partitions 2"),
    ("backlog-quotas", None),
    ("compaction-threshold", "--threshold 10M"),
    ("deduplication", "--enable"),
    ("deduplication-snapshot-interval", "--interval 60"),
    ("delayed-delivery", "--enable --time 2s"),
    ("dispatch-rate", "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1"),
    ("dispatcher-pause-on-ack-state-persistent", ""),
    ("encryption-required", "--enable"),
    ("entry-filters", "--entry-filters-name jms,xx"),
    (
        "inactive-topic-policies",
        "--enable-delete-while-inactive --max-inactive-duration 1h --delete-mode delete_when_no_subscriptions",
    ),
    ("is-allow-auto-update-schema", "--disable"),
    ("max-consumers-per-subscription", "--max-consumers-per-subscription 5"),
    ("max-consumers-per-topic", "--max-consumers-per-topic 6"),
    ("max-producers-per-topic", "--max-producers-per-topic 7"),
    ("max-subscriptions-per-topic", "--max-subscriptions-per-topic 8"),
    ("max-topics-per-namespace", "--max-topics-per-namespace 90"),
    ("max-unacked-messages-per-consumer", "--max-unacked-messages-per-topic 10"),
    ("max-unacked-messages-per-subscription", "--max-unacked-messages-per-subscription 11"),
    ("message-ttl", "--messageTTL 100"),
    ("offload-deletion-lag", "--lag 1d"),
    ("offload-policies", "--driver aws-s3 --region eu --bucket here --offloadAfterThreshold 10M"),
    ("offload-threshold", "--size 10M --time 10m"),
    (
        "persistence",
        "--bookkeeper-ack-quorum 1 --bookkeeper-ensemble 1 --bookkeeper-write-quorum 1 --ml-mark-delete-max-rate 2",
    ),
    ("publish-rate", "--msg-publish-rate 100 --byte-publish-rate 1000"),
    ("replicator-dispatch-rate", "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1"),
    ("retention", "--size 10M --time 10m"),
    ("schema-autoupdate-strategy", "--compatibility Backward"),
    ("schema-compatibility-strategy", "--compatibility FORWARD"),
    ("schema-validation-enforce", "--enable"),
    ("subscribe-rate", "--subscribe-rate 5 --subscribe-rate-period 10"),
    ("subscription-auth-mode", "--subscription-auth-mode Prefix"),
    (
        "subscription-dispatch-rate",
        "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1",
    ),
    ("subscription-expiration-time", "--time 10"),
    ("subscription-types-enabled", "--types Shared,Failover"),
    ("bookie-affinity-group", "--primary-group one"),
)
NAMESPACE_QUOTAS: Final = """
namespaces set-backlog-quota matrix/policies --limit 10M --policy producer_exception
namespaces set-backlog-quota matrix/policies --limitTime 1h --policy consumer_backlog_eviction --type message_age
namespaces set-backlog-quota matrix/policies --limit 10M --policy dance
namespaces get-backlog-quotas matrix/policies
namespaces remove-backlog-quota matrix/policies
namespaces remove-backlog-quota matrix/policies --type message_age
namespaces get-backlog-quotas matrix/policies
namespaces set-offload-policies matrix/policies --driver aws-s3 --region eu --bucket here --offloadAfterThreshold 10M
namespaces set-offload-threshold matrix/policies --size 20M
namespaces get-offload-threshold matrix/policies
namespaces get-offload-policies matrix/policies
namespaces set-offload-policies matrix/policies --driver aws-s3 --region eu --bucket here --offloadAfterThreshold 30M
namespaces get-offload-threshold matrix/policies
namespaces set-offload-deletion-lag matrix/policies --lag 1d
namespaces get-offload-policies matrix/policies
namespaces remove-offload-policies matrix/policies
namespaces get-offload-threshold matrix/policies
namespaces get-offload-deletion-lag matrix/policies
namespaces policies matrix/policies
namespaces set-retention matrix/policies --size 0 --time 10m
namespaces set-retention matrix/policies --size -5 --time 10m
namespaces set-persistence matrix/policies --bookkeeper-ack-quorum 3 --bookkeeper-ensemble 2 --bookkeeper-write-quorum 2 --ml-mark-delete-max-rate 2
namespaces set-message-ttl matrix/policies --messageTTL -100
namespaces set-max-producers-per-topic matrix/policies --max-producers-per-topic -1
namespaces set-max-unacked-messages-per-consumer matrix/policies --max-unacked-messages-per-topic -1
namespaces set-subscription-types-enabled matrix/policies --types Dancing
namespaces set-auto-topic-creation matrix/policies --enable --type dancing
namespaces set-auto-topic-creation matrix/policies --enable --type partitioned --num-partitions 0
namespaces set-deduplication matrix/policies
namespaces set-delayed-delivery matrix/policies
namespaces set-inactive-topic-policies matrix/policies --enable-delete-while-inactive --max-inactive-duration 1h --delete-mode dance
"""

_TOPIC_POLICIES: Final[Policies] = (
    ("auto-subscription-creation", "--enable"),
    ("backlog-quota", "--limit 10M --policy producer_exception"),
    ("compaction-threshold", "--threshold 10M"),
    ("deduplication", "--enable"),
    ("deduplication-snapshot-interval", "--interval 60"),
    ("delayed-delivery", "--enable --time 2s"),
    ("dispatch-rate", "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1"),
    ("dispatcher-pause-on-ack-state-persistent", ""),
    ("entry-filters-per-topic", "--entry-filters-name jms,xx"),
    (
        "inactive-topic-policies",
        "--enable-delete-while-inactive --max-inactive-duration 1h --delete-mode delete_when_no_subscriptions",
    ),
    ("max-consumers", "--max-consumers 5"),
    ("max-consumers-per-subscription", "--max-consumers-per-subscription 6"),
    ("max-message-size", "--max-message-size 1000"),
    ("max-producers", "--max-producers 7"),
    ("max-subscriptions-per-topic", "--max-subscriptions-per-topic 8"),
    ("max-unacked-messages-per-consumer", "--maxNum 9"),
    ("max-unacked-messages-per-subscription", "--maxNum 10"),
    ("message-ttl", "--ttl 100"),
    ("offload-policies", "--driver aws-s3 --region eu --bucket here --offloadThresholdInBytes 1000000"),
    (
        "persistence",
        "--bookkeeper-ack-quorum 1 --bookkeeper-ensemble 1 --bookkeeper-write-quorum 1 --ml-mark-delete-max-rate 2",
    ),
    ("publish-rate", "--msg-publish-rate 100 --byte-publish-rate 1000"),
    ("replicator-dispatch-rate", "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1"),
    ("retention", "--size 20G --time 10m"),
    ("schema-compatibility-strategy", "--strategy FORWARD"),
    ("subscribe-rate", "--subscribe-rate 5 --subscribe-rate-period 10"),
    (
        "subscription-dispatch-rate",
        "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1",
    ),
    ("subscription-types-enabled", "--types Shared,Failover"),
)
_TOPICS_OWN_POLICIES: Final[Policies] = (
    ("backlog-quotas", None),
    ("compaction-threshold", "--threshold 10M"),
    ("deduplication", "--enable"),
    ("deduplication-snapshot-interval", "--interval 60"),
    ("delayed-delivery", "--enable --time 2s"),
    ("dispatch-rate", "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1"),
    (
        "inactive-topic-policies",
        "--enable-delete-while-inactive --max-inactive-duration 1h --delete-mode delete_when_no_subscriptions",
    ),
    ("max-consumers", "--max-consumers 5"),
    ("max-consumers-per-subscription", "--max-consumers-per-subscription 6"),
    ("max-message-size", "--max-message-size 1000"),
    ("max-producers", "--max-producers 7"),
    ("maxProducers", "--max-producers 7"),
    ("max-subscriptions", "--max-subscriptions-per-topic 8"),
    ("max-unacked-messages-on-consumer", "--maxNum 9"),
    ("max-unacked-messages-on-subscription", "--maxNum 10"),
    ("max-unacked-messages-per-consumer", "--maxNum 9"),
    ("max-unacked-messages-per-subscription", "--maxNum 10"),
    ("message-ttl", "--ttl 100"),
    ("offload-policies", "--driver aws-s3 --region eu --bucket here --offloadThresholdInBytes 1000000"),
    (
        "persistence",
        "--bookkeeper-ack-quorum 1 --bookkeeper-ensemble 1 --bookkeeper-write-quorum 1 --ml-mark-delete-max-rate 2",
    ),
    ("publish-rate", "--msg-publish-rate 100 --byte-publish-rate 1000"),
    ("replication-clusters", "--clusters {cluster}"),
    ("replicator-dispatch-rate", "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1"),
    ("retention", "--size 20G --time 10m"),
    ("schema-validation-enforce", "--enable"),
    ("subscribe-rate", "--subscribe-rate 5 --subscribe-rate-period 10"),
    (
        "subscription-dispatch-rate",
        "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1",
    ),
    ("subscription-types-enabled", "--types Shared,Failover"),
)

GLOBAL_POLICIES: Final[Policies] = (
    ("max-producers", "--max-producers 7"),
    ("message-ttl", "--ttl 100"),
    ("dispatch-rate", "--msg-dispatch-rate 10 --byte-dispatch-rate 1000 --dispatch-rate-period 1"),
    ("backlog-quota", "--limit 10M --policy producer_exception"),
)
"""Set for all clusters."""

TOPICS: Final = """
topics create persistent://matrix/ns/plain
topics create persistent://matrix/ns/plain
topics create persistent://matrix/none/plain
topics create persistent://matrix/ns/with-properties --metadata a=1,b=2
topics get-properties persistent://matrix/ns/with-properties
topics update-properties persistent://matrix/ns/with-properties --property c=3
topics remove-properties persistent://matrix/ns/with-properties --key a
topics get-properties persistent://matrix/ns/with-properties
topics get-properties persistent://matrix/ns/none
topics create-partitioned-topic persistent://matrix/ns/parts --partitions 2
topics create-partitioned-topic persistent://matrix/ns/parts --partitions 2
topics create-partitioned-topic persistent://matrix/ns/zero --partitions 0
topics create-partitioned-topic persistent://matrix/none/parts --partitions 2
topics get-partitioned-topic-metadata persistent://matrix/ns/parts
topics get-partitioned-topic-metadata persistent://matrix/ns/plain
topics get-partitioned-topic-metadata persistent://matrix/ns/none
topics update-partitioned-topic persistent://matrix/ns/parts --partitions 3
topics update-partitioned-topic persistent://matrix/ns/parts --partitions 1
topics update-partitioned-topic persistent://matrix/ns/none --partitions 3
topics create-missed-partitions persistent://matrix/ns/parts
topics create-missed-partitions persistent://matrix/ns/none
topics list matrix/ns
topics list matrix/none
topics list matrix/ns --topic-domain non_persistent
topics list-partitioned-topics matrix/ns
topics list-partitioned-topics matrix/none
topics lookup persistent://matrix/ns/plain
topics lookup persistent://matrix/none/plain
topics partitioned-lookup persistent://matrix/ns/parts
topics partitioned-lookup persistent://matrix/ns/parts --sort-by-broker
topics partitioned-lookup persistent://matrix/ns/none
topics bundle-range persistent://matrix/ns/plain
namespaces get-topic-positions matrix/ns --bundle {bundle}
namespaces get-topic-positions matrix/ns --bundle {bundle} --topic-list persistent://matrix/ns/busy
topics permissions persistent://matrix/ns/plain
topics grant-permission persistent://matrix/ns/plain --role reader --actions consume
topics permissions persistent://matrix/ns/plain
topics revoke-permission persistent://matrix/ns/plain --role reader
topics revoke-permission persistent://matrix/ns/plain --role reader
topics grant-permission persistent://matrix/ns/none --role reader --actions consume
topics permissions persistent://matrix/ns/none
topics stats persistent://matrix/ns/busy
topics stats persistent://matrix/ns/busy --get-precise-backlog --get-subscription-backlog-size --get-earliest-time-in-backlog
topics stats persistent://matrix/ns/parts
topics stats persistent://matrix/ns/none
topics stats persistent://matrix/none/none
topics stats-internal persistent://matrix/ns/busy
topics stats-internal persistent://matrix/ns/busy --metadata
topics stats-internal persistent://matrix/ns/none
topics info-internal persistent://matrix/ns/busy
topics info-internal persistent://matrix/ns/none
topics partitioned-stats persistent://matrix/ns/busy-parts
topics partitioned-stats persistent://matrix/ns/busy-parts --per-partition
topics partitioned-stats persistent://matrix/ns/none
topics partitioned-stats persistent://matrix/ns/plain
topics partitioned-stats-internal persistent://matrix/ns/busy-parts
topics partitioned-stats-internal persistent://matrix/ns/none
topics subscriptions persistent://matrix/ns/busy
topics subscriptions persistent://matrix/ns/none
topics last-message-id persistent://matrix/ns/busy
topics last-message-id persistent://matrix/ns/plain
topics last-message-id persistent://matrix/ns/none
topics get-message-by-id persistent://matrix/ns/busy --ledgerId {ledger} --entryId 0
topics get-message-by-id persistent://matrix/ns/busy --ledgerId {ledger} --entryId 99999
topics get-message-by-id persistent://matrix/ns/busy --ledgerId 999999 --entryId 0
topics get-message-by-id persistent://matrix/ns/none --ledgerId 1 --entryId 0
topics get-message-id persistent://matrix/ns/busy --datetime 2020-01-01T00:00:00Z
topics get-message-id persistent://matrix/ns/none --datetime 2020-01-01T00:00:00Z
topics examine-messages persistent://matrix/ns/busy --initialPosition earliest --messagePosition 2
topics examine-messages persistent://matrix/ns/busy --initialPosition latest --messagePosition 1
topics examine-messages persistent://matrix/ns/busy --initialPosition earliest --messagePosition 9999
topics examine-messages persistent://matrix/ns/busy --initialPosition middle --messagePosition 1
topics examine-messages persistent://matrix/ns/none
topics get-backlog-size persistent://matrix/ns/busy --messageId {ledger}:0
topics get-backlog-size persistent://matrix/ns/none --messageId 1:0
topics peek-messages persistent://matrix/ns/spare --subscription s --count 2
topics peek-messages persistent://matrix/ns/spare --subscription never --count 2
topics peek-messages persistent://matrix/ns/none --subscription s --count 2
topics analyze-backlog persistent://matrix/ns/spare --subscription s
topics analyze-backlog persistent://matrix/ns/spare --subscription none
topics create-subscription persistent://matrix/ns/spare --subscription made --messageId earliest --property a=1
topics create-subscription persistent://matrix/ns/spare --subscription made
topics create-subscription persistent://matrix/ns/spare --subscription here --messageId {spare_ledger}:1
topics create-subscription persistent://matrix/none/spare --subscription made
topics create-subscription persistent://matrix/ns/parts --subscription made
topics get-subscription-properties persistent://matrix/ns/spare --subscription made
topics update-subscription-properties persistent://matrix/ns/spare --subscription made --property b=2
topics get-subscription-properties persistent://matrix/ns/spare --subscription made
topics update-subscription-properties persistent://matrix/ns/spare --subscription made --clear
topics get-subscription-properties persistent://matrix/ns/spare --subscription none
topics update-subscription-properties persistent://matrix/ns/spare --subscription none --property b=2
topics get-replicated-subscription-status persistent://matrix/ns/spare --subscription made
topics get-replicated-subscription-status persistent://matrix/ns/spare --subscription none
topics set-replicated-subscription-status persistent://matrix/ns/spare --subscription made --disable
topics set-replicated-subscription-status persistent://matrix/ns/spare --subscription made --enable
topics skip persistent://matrix/ns/spare --subscription made --count 1
topics skip persistent://matrix/ns/spare --subscription none --count 1
topics skip persistent://matrix/ns/none --subscription s --count 1
topics reset-cursor persistent://matrix/ns/spare --subscription made --time 1h
topics reset-cursor persistent://matrix/ns/spare --subscription made --messageId {spare_ledger}:1
topics reset-cursor persistent://matrix/ns/spare --subscription none --time 1h
topics reset-cursor persistent://matrix/ns/none --subscription s --time 1h
!topics expire-messages persistent://matrix/ns/spare --subscription made --expireTime 3600
!topics expire-messages persistent://matrix/ns/spare --subscription made --position {spare_ledger}:0
topics expire-messages persistent://matrix/ns/spare --subscription none --expireTime 3600
!topics expire-messages-all-subscriptions persistent://matrix/ns/spare --expireTime 3600
topics expire-messages-all-subscriptions persistent://matrix/ns/none --expireTime 3600
topics clear-backlog persistent://matrix/ns/spare --subscription made
topics clear-backlog persistent://matrix/ns/spare --subscription none
topics unsubscribe persistent://matrix/ns/busy --subscription held
topics unsubscribe persistent://matrix/ns/spare --subscription made
topics unsubscribe persistent://matrix/ns/spare --subscription none
topics unsubscribe persistent://matrix/ns/none --subscription s
~topics get-deduplication-enabled persistent://matrix/ns/plain
topics enable-deduplication persistent://matrix/ns/plain
~topics get-deduplication-enabled persistent://matrix/ns/plain
topics disable-deduplication persistent://matrix/ns/plain
~topics get-deduplication-enabled persistent://matrix/ns/plain
topics get-shadow-topics persistent://matrix/ns/plain
topics get-shadow-source persistent://matrix/ns/plain
topics compact persistent://matrix/ns/spare
topics compaction-status persistent://matrix/ns/spare --wait-complete
topics compaction-status persistent://matrix/ns/none
topics compact persistent://matrix/ns/none
topics offload-status persistent://matrix/ns/spare
topics offload persistent://matrix/ns/spare --size-threshold 10M
topics offload-status persistent://matrix/ns/none
topics unload persistent://matrix/ns/spare
topics unload persistent://matrix/ns/none
topics trim-topic persistent://matrix/ns/spare
topics trim-topic persistent://matrix/ns/none
topics truncate persistent://matrix/ns/spare
topics truncate persistent://matrix/ns/none
topics terminate persistent://matrix/ns/spare
topics terminate persistent://matrix/ns/none
topics terminate persistent://matrix/ns/parts
topics partitioned-terminate persistent://matrix/ns/parts
topics partitioned-terminate persistent://matrix/ns/none
namespaces clear-backlog matrix/ns --force
namespaces clear-backlog matrix/ns --force --sub s
namespaces clear-backlog matrix/ns --force --bundle 0x80000000_0xc0000000
namespaces clear-backlog matrix/none --force
namespaces unsubscribe matrix/ns --subscription nobody
namespaces unsubscribe matrix/ns --subscription held
"""

SCHEMAS: Final = """
schemas get persistent://matrix/ns/schema
schemas upload persistent://matrix/ns/schema --filename {files}/avro.json
schemas get persistent://matrix/ns/schema
schemas get persistent://matrix/ns/schema --version 0
schemas get persistent://matrix/ns/schema --version 7
schemas get persistent://matrix/ns/schema --all-version
schemas metadata persistent://matrix/ns/schema
schemas compatibility persistent://matrix/ns/schema --filename {files}/more.json
schemas compatibility persistent://matrix/ns/schema --filename {files}/other.json
schemas upload persistent://matrix/ns/schema --filename {files}/more.json
schemas upload persistent://matrix/ns/schema --filename {files}/other.json
schemas upload persistent://matrix/ns/schema --filename {files}/broken.json
schemas upload persistent://matrix/none/schema --filename {files}/avro.json
schemas get persistent://matrix/ns/schema --all-version
schemas get persistent://matrix/none/schema
schemas metadata persistent://matrix/ns/none
schemas delete persistent://matrix/ns/schema
schemas get persistent://matrix/ns/schema
schemas delete persistent://matrix/ns/schema --force
schemas get persistent://matrix/ns/schema
schemas extract persistent://matrix/ns/schema --jar {files}/none.jar --type avro --classname None
"""

BROKERS: Final = """
brokers list {cluster}
brokers list nowhere
brokers leader-broker
brokers namespaces {cluster} --url {broker}
brokers namespaces {cluster} --url nobody:8080
brokers list-dynamic-config
brokers get-all-dynamic-config
brokers get-runtime-config
brokers get-internal-config
brokers update-dynamic-config --config dispatchThrottlingRateInMsg --value 1000000
brokers get-all-dynamic-config
brokers delete-dynamic-config --config dispatchThrottlingRateInMsg
brokers update-dynamic-config --config dispatchThrottlingRateInMsg --value many
brokers delete-dynamic-config --config dispatchThrottlingRateInMsg
brokers update-dynamic-config --config maxPublishRatePerTopicInMessages --value 1000000
brokers get-all-dynamic-config
brokers delete-dynamic-config --config maxPublishRatePerTopicInMessages
brokers update-dynamic-config --config webServicePort --value 1
brokers delete-dynamic-config --config webServicePort
brokers update-dynamic-config --config nothing --value 1
brokers delete-dynamic-config --config nothing
brokers healthcheck
brokers healthcheck --topic-version V2
brokers backlog-quota-check
brokers version
^broker-stats topics
broker-stats topics --indent
broker-stats destinations
broker-stats monitoring-metrics
broker-stats mbeans
broker-stats load-report
broker-stats allocator-stats default
bookies list-bookies
bookies racks-placement
bookies get-bookie-rack --bookie nobody:3181
ns-isolation-policy list {cluster}
ns-isolation-policy list nowhere
ns-isolation-policy get {cluster} none
ns-isolation-policy brokers {cluster}
"""

OLD_GROUPS: Final = """
persistent list matrix/ns
persistent list-partitioned-topics matrix/ns
persistent create-partitioned-topic persistent://matrix/ns/old --partitions 2
persistent get-partitioned-topic-metadata persistent://matrix/ns/old
persistent update-partitioned-topic persistent://matrix/ns/old --partitions 3
persistent create-subscription persistent://matrix/ns/old --subscription s
persistent subscriptions persistent://matrix/ns/old
persistent partitioned-stats persistent://matrix/ns/old
persistent partitioned-stats-internal persistent://matrix/ns/old
persistent delete-partitioned-topic persistent://matrix/ns/old
persistent create-subscription persistent://matrix/ns/aged --subscription s
persistent lookup persistent://matrix/ns/aged
persistent bundle-range persistent://matrix/ns/aged
persistent grant-permission persistent://matrix/ns/aged --role one --actions produce
persistent permissions persistent://matrix/ns/aged
persistent revoke-permission persistent://matrix/ns/aged --role one
persistent stats persistent://matrix/ns/aged
persistent stats-internal persistent://matrix/ns/aged
persistent info-internal persistent://matrix/ns/aged
persistent last-message-id persistent://matrix/ns/aged
persistent get-message-by-id persistent://matrix/ns/busy --ledgerId {ledger} --entryId 0
persistent peek-messages persistent://matrix/ns/aged --subscription s
persistent skip persistent://matrix/ns/aged --subscription s --count 1
persistent skip-all persistent://matrix/ns/aged --subscription s
persistent expire-messages persistent://matrix/ns/aged --subscription s --expireTime 60
persistent expire-messages-all-subscriptions persistent://matrix/ns/aged --expireTime 60
persistent reset-cursor persistent://matrix/ns/aged --subscription s --time 1h
persistent compact persistent://matrix/ns/aged
persistent compaction-status persistent://matrix/ns/aged --wait-complete
persistent unsubscribe persistent://matrix/ns/aged --subscription s
persistent unload persistent://matrix/ns/aged
persistent truncate persistent://matrix/ns/aged
persistent terminate persistent://matrix/ns/aged
persistent delete persistent://matrix/ns/aged
non-persistent create-partitioned-topic non-persistent://matrix/ns/light --partitions 2
non-persistent get-partitioned-topic-metadata non-persistent://matrix/ns/light
non-persistent list matrix/ns
non-persistent list-in-bundle matrix/ns --bundle 0x80000000_0xc0000000
non-persistent lookup non-persistent://matrix/ns/light
non-persistent stats non-persistent://matrix/ns/thin
non-persistent stats-internal non-persistent://matrix/ns/thin
non-persistent stats non-persistent://matrix/ns/none
topics stats non-persistent://matrix/ns/thin
topics peek-messages non-persistent://matrix/ns/thin --subscription s
topics create-subscription non-persistent://matrix/ns/thin --subscription s
topics delete-partitioned-topic non-persistent://matrix/ns/light
"""

ENDS: Final = """
topics delete persistent://matrix/ns/busy
topics delete persistent://matrix/ns/plain
topics delete persistent://matrix/ns/none
topics delete persistent://matrix/ns/parts
topics delete-partitioned-topic persistent://matrix/ns/parts
topics delete-partitioned-topic persistent://matrix/ns/none
namespaces delete matrix/ns
namespaces delete matrix/none
"""
LAST: Final = """
namespaces delete matrix/policies
namespaces delete matrix/ns --force
tenants delete matrix --force
tenants list
"""

ONE_BROKER: Final = "there is only one broker"
NO_GROUPS: Final = "rates of namespaces and topics are set instead (docs/security.md)"
NO_MIGRATION: Final = "the broker redirects no clients (docs/moving-to-a-cluster.md)"
LEFT_OUT: Final = {
    "bookies set-bookie-rack": "there are no bookies: the broker has its own store",
    "bookies delete-bookie-rack": "there are no bookies: the broker has its own store",
    "brokers shutdown": "a broker of one process is stopped by SIGTERM, or by the end of its `with`",
    "documents generate": "asks no broker: writes the documentation of pulsar-admin itself",
    "functions *": "functions run by `geminga function run`: the broker has no worker in it (docs/functions.md)",
    "functions-worker *": "functions run by `geminga function run`: the broker has no worker in it",
    "sources *": "connectors are Java archives that a functions worker runs",
    "source *": "the same as `sources`",
    "sinks *": "connectors are Java archives that a functions worker runs",
    "sink *": "the same as `sinks`",
    "packages *": "packages are run by a functions worker, which this broker does not have",
    "ns-isolation-policy set": ONE_BROKER,
    "ns-isolation-policy delete": ONE_BROKER,
    "ns-isolation-policy broker": ONE_BROKER,
    "proxy-stats *": "asks a Pulsar proxy, not a broker",
    "transactions *": "off in the Apache Pulsar of this comparison; tests/interop/test_transactions.py compares what they call",
    "resource-quotas *": "quotas assign bundles to brokers, and there is only one broker",
    "resourcegroups create": NO_GROUPS, "resourcegroups delete": NO_GROUPS, "resourcegroups get": NO_GROUPS,
    "resourcegroups update": NO_GROUPS, "namespaces set-resource-group": NO_GROUPS,
    "namespaces get-resource-group": NO_GROUPS, "namespaces remove-resource-group": NO_GROUPS,
    "namespaces set-anti-affinity-group": ONE_BROKER, "namespaces delete-anti-affinity-group": ONE_BROKER,
    "namespaces get-anti-affinity-namespaces": ONE_BROKER, "clusters create-failure-domain": ONE_BROKER,
    "clusters update-failure-domain": ONE_BROKER, "clusters delete-failure-domain": ONE_BROKER,
    "clusters get-failure-domain": ONE_BROKER,
    "clusters get-cluster-migration": NO_MIGRATION, "clusters update-cluster-migration": NO_MIGRATION,
    "topics create-shadow-topic": "shadow topics distribute reading over brokers, and there is only one broker",
    "topics set-shadow-topics": "shadow topics distribute reading over brokers, and there is only one broker",
    "topics remove-shadow-topics": "shadow topics distribute reading over brokers, and there is only one broker",
}  # fmt: skip
"""Reason why a sub-command has no meaning on one broker."""


OTHERWISE: Final = {
    "topicPolicies get-backlog-quota persistent://matrix/policies/t --applied": "a value for all clusters applies too, as on Apache Pulsar, which does not show it",
    "namespaces revoke-subscription-permission matrix/ns --subscription none --role one": "there is no permission to revoke: an internal error in Apache Pulsar",
    "topics info-internal persistent://matrix/ns/none": "Apache Pulsar returns an internal error",
    "topics get-message-by-id persistent://matrix/ns/busy --ledgerId {ledger} --entryId 99999": "there is no such message: an internal error in Apache Pulsar",
    "topics examine-messages persistent://matrix/ns/busy --initialPosition earliest --messagePosition 9999": "there is no such message; Apache Pulsar returns another one",
    "topics examine-messages persistent://matrix/ns/busy --initialPosition middle --messagePosition 1": "there is no such position; Apache Pulsar uses the end",
    "topics peek-messages persistent://matrix/ns/spare --subscription never --count 2": "Apache Pulsar creates the subscription when peeking",
    "topics set-replicated-subscription-status persistent://matrix/ns/spare --subscription made --enable": "a single broker cannot replicate",
    "topics stats-internal persistent://matrix/ns/busy --metadata": "there are no bookies, so ledgers have no metadata of bookies",
    "namespaces clear-backlog matrix/ns --force --sub s": "Apache Pulsar returns an internal error if topics lack the subscription",
    "namespaces clear-backlog matrix/none --force": "there is no such namespace",
    "schemas compatibility persistent://matrix/ns/schema --filename {files}/other.json": "the answer is that the schema is incompatible; Apache Pulsar returns an internal error",
    "brokers list nowhere": "there is no such cluster; Apache Pulsar lists its own brokers",
    "brokers list-dynamic-config": "another broker has other settings; those that can be changed have Pulsar's names",
    "brokers update-dynamic-config --config dispatchThrottlingRateInMsg --value many": "Apache Pulsar accepts a value that is not a number, and fails when reading it",
    "brokers get-runtime-config": "another broker has other settings; common ones have Pulsar's names",
    "broker-stats monitoring-metrics": "another program has other metrics",
    "broker-stats mbeans": "another program has other metrics, and no Java beans",
    "broker-stats allocator-stats default": "there is no Netty allocator",
    "persistent expire-messages persistent://matrix/ns/aged --subscription s --expireTime 60": "there is nothing to expire, which is no error",
    "persistent expire-messages-all-subscriptions persistent://matrix/ns/aged --expireTime 60": "there is nothing to expire, which is no error",
    "namespaces remove-offload-policies matrix/none": "there is no such namespace; Apache Pulsar reports a concurrent modification",
    "namespaces set-offload-policies matrix/none --driver aws-s3 --region eu --bucket here --offloadAfterThreshold 10M": "there is no such namespace: an internal error in Apache Pulsar",
    "namespaces set-entry-filters matrix/none --entry-filters-name jms,xx": "there is no such namespace either",
}
"""Lines that are answered otherwise on purpose, and why."""


_NEVER_SET: Final = frozenset(
    {"entry-filters", "entry-filters-per-topic", "dispatcher-pause-on-ack-state-persistent"}
)
"""Policies that read the same before and after."""


def policies(group: str, place: str, table: Policies, known: set[str]) -> list[str]:
    """Each policy read, set, read, removed and read again. ``known``: the commands that there are."""
    lines = []
    for name, arguments in table:
        read = f"{group} get-{name} {place}"
        if name not in _NEVER_SET:
            read = f"~{read}"
        lines.append(read)
        if arguments is not None:
            lines += [f"{group} set-{name} {place} {arguments}", read]
            for verb in ("remove", "clear", "delete"):
                if f"{group} {verb}-{name}" in known:
                    lines += [f"{group} {verb}-{name} {place}", read]
    return lines


def play(known: set[str]) -> list[str]:
    """Every line, in order."""
    lines = TENANTS.split("\n") + NAMESPACES.split("\n")
    lines += ["namespaces create matrix/policies", "topics create persistent://matrix/policies/t"]
    lines += ["topics create persistent://matrix/policies/u"]
    lines += policies("namespaces", "matrix/policies", NAMESPACE_POLICIES, known)
    lines += NAMESPACE_QUOTAS.split("\n")
    lines += policies("topicPolicies", "persistent://matrix/policies/t", _TOPIC_POLICIES, known)
    lines += policies("topics", "persistent://matrix/policies/u", _TOPICS_OWN_POLICIES, known)
    lines += [
        "topics set-backlog-quota persistent://matrix/policies/u --limit 10M --policy producer_exception",
        "~topics get-backlog-quotas persistent://matrix/policies/u",
        "topics remove-backlog-quota persistent://matrix/policies/u",
        "~topics get-backlog-quotas persistent://matrix/policies/u",
        "topics set-retention persistent://matrix/policies/u --size 0 --time 10m",
        "topicPolicies set-retention persistent://matrix/policies/u --size 0 --time 10m",
    ]  # fmt: skip
    for group, place, table in (
        ("topicPolicies", "persistent://matrix/policies/t", _TOPIC_POLICIES),
        ("topics", "persistent://matrix/policies/u", _TOPICS_OWN_POLICIES),
    ):
        reads = (f"{group} get-{name}" for name, _ in table)
        lines += [f"{read} {place} --applied" for read in reads if read in known]
    for name, arguments in GLOBAL_POLICIES:
        read = f"topicPolicies get-{name} persistent://matrix/policies/t"
        lines += [f"topicPolicies set-{name} persistent://matrix/policies/t {arguments} --global"]
        lines += [f"~{read} --global", read, f"{read} --applied"]
        lines += [f"topicPolicies remove-{name} persistent://matrix/policies/t --global", f"~{read} --global"]
    lines.append("prepare")
    for text in (TOPICS, SCHEMAS, BROKERS, OLD_GROUPS, ENDS):
        lines += text.split("\n")
    for name, _ in _TOPIC_POLICIES:
        for verb in ("get", "remove"):
            if f"topicPolicies {verb}-{name}" in known:
                lines += [f"topicPolicies {verb}-{name} persistent://matrix/policies/none"]
        if verb == "get":
            lines += [f"topicPolicies get-{name} persistent://matrix/none/none"]
    for name, _ in NAMESPACE_POLICIES:
        for verb in ("get", "remove", "clear", "delete"):
            if f"namespaces {verb}-{name}" in known:
                lines += [f"namespaces {verb}-{name} matrix/none"]
    for name, arguments in NAMESPACE_POLICIES:
        if arguments is not None and f"namespaces set-{name}" in known:
            lines += [f"namespaces set-{name} matrix/none {arguments}"]
    for name, arguments in _TOPIC_POLICIES:
        if f"topicPolicies set-{name}" in known:
            lines += [f"topicPolicies set-{name} persistent://matrix/policies/none {arguments}"]
    lines += LAST.split("\n")
    return [line.strip() for line in lines if line.strip()]
