"""Changed settings: the defaults of policies differ from those of the previous run.

This may make maintenance due in any namespace, also for topics that are not in memory. So every namespace is
compared, in steps, for there may be 100,000 of them. The settings of the last completed comparison are
stored: after a crash before its end, or a start with other settings, all namespaces are compared again. So
are those of a store that has no such record.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Final

from geminga.broker.cooperative import Job
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.rules.namespaces import NamespaceRegistry, PoliciesBefore
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.record import Json, decode_json, encode_json
from geminga.broker.topics.topic import TopicServices
from geminga.errors import InvalidConfiguration, StoreError

log = logging.getLogger("geminga.broker")

_KEY: Final = "broker/rules"
_IS_SURE: Final = "is_sure"
FIELDS: Final = (
    "backlog_quota_action", "backlog_quota_bytes", "backlog_quota_seconds", "delete_inactive_topics",
    "inactive_topic_seconds", "message_ttl_seconds", "offload_deletion_lag_seconds",
    "offload_threshold_bytes", "offload_threshold_seconds", "retention_megabytes", "retention_minutes",
    "subscription_expiration_minutes",
)  # fmt: skip
"""Settings by which maintenance becomes due (`deadlines.acts_earlier`)."""

Compare = Callable[[str, Policies | None], None]
"""``compare("tenant/namespace", before)`` applies the change there; ``before`` is None if unknown."""


class ChangedSettings:
    """Comparison of all namespaces after a change of settings; subscribes to changes when created."""

    def __init__(self, services: TopicServices, namespaces: NamespaceRegistry, compare: Compare) -> None:
        self._services = services
        self._namespaces = namespaces
        self._compare = compare
        self._under_way = 0
        namespaces.watch_settings(self._changed)
        self._look_back()

    def _look_back(self) -> None:
        """Compare if the settings differ from those of the last completed comparison."""
        value = self._services.store.get(_KEY)
        before: BrokerSettings | None = None
        is_sure = True
        try:
            if value is not None and value.lost is None:
                found = decode_json(value, "the settings that were compared last")
                before = dataclasses.replace(
                    self._namespaces.settings, **{name: found[name] for name in FIELDS if name in found}
                )
                is_sure = bool(found.get(_IS_SURE, True))
        except (StoreError, InvalidConfiguration, TypeError) as error:
            log.warning("checking all topics: the settings of the previous run cannot be read: %s", error)
        if before is None or _rules(before, is_sure=is_sure) != self._rules_now():
            self._changed(self._namespaces.under(before, is_sure=is_sure))

    def _rules_now(self) -> Json:
        return _rules(self._namespaces.settings, is_sure=self._namespaces.is_sure)

    def _note(self) -> None:
        self._services.store.put(_KEY, encode_json(self._rules_now()))

    def _changed(self, before: PoliciesBefore) -> None:
        self._under_way += 1
        self._services.slices.start(self._compare_all(before), "changed settings")

    def _compare_all(self, before: PoliciesBefore) -> Job:
        slices = self._services.slices
        for namespace in before.namespaces():
            self._services.scheduler.isolated("job", namespace, self._compare_one, namespace, before)
            if slices.should_yield:
                yield None
        self._under_way -= 1
        if not self._under_way:
            self._note()

    def _compare_one(self, namespace: str, before: PoliciesBefore) -> None:
        self._compare(namespace, before.policies(namespace))


def _rules(settings: BrokerSettings, *, is_sure: bool) -> Json:
    return {_IS_SURE: is_sure, **{name: getattr(settings, name) for name in FIELDS}}
