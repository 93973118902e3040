"""Checks of the JSON of policies, which `geminga.policies` declares.

Policies are stored as the JSON object of Pulsar's admin API, field names included, so that all values are
returned unchanged, also those that this broker does not use. `geminga.broker.rules.effective_policies` has
the values in force.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from geminga.broker.rules.effective_policies import TWINS
from geminga.broker.rules.json_values import flag_of, is_blank, number_of, whole_of
from geminga.config import suggestion
from geminga.errors import PulsarException
from geminga.policies import (
    INT64_MAX,
    QUOTA_KINDS,
    AutoTopicCreation,
    BacklogQuota,
    DispatchRate,
    Document,
    NamespaceScope,
    Persistence,
    Policy,
    RedeliverUnacked,
    Retention,
    TopicScope,
    declared,
)
from geminga.records import plan

AUTH_ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")


class InvalidRequest(Enum):
    """Kinds of invalid administrative requests."""

    MISSING = "there is no such thing"
    IN_THE_WAY = "something that is there stands in the way"
    NOT_ALLOWED = "the value is none of those that are allowed"
    NOT_TOGETHER = "values that exclude each other"
    MALFORMED = "not of the form that is needed"
    ELSEWHERE = "it belongs to a cluster that is not known here"


class RuleViolation(PulsarException):
    """Refused administrative call; ``reason`` is for people."""

    def __init__(self, wrong: InvalidRequest, reason: str) -> None:
        super().__init__(wrong, reason)
        self.wrong = wrong
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


# --- checks: each returns the value to keep, or raises RuleViolation ---

Check = Callable[[str, Any], Any]


def _refuse(
    field: str, value: object, allowed: str, wrong: InvalidRequest = InvalidRequest.NOT_ALLOWED
) -> RuleViolation:
    return RuleViolation(wrong, f"{field}={value!r} is not allowed; allowed: {allowed}")


def whole(minimum: int, maximum: int = INT64_MAX) -> Check:
    """Return a check for a whole number in the closed range."""

    def check(field: str, value: Any) -> int:
        found = whole_of(value)
        if found is None or not minimum <= found <= maximum:
            raise _refuse(field, value, f"a whole number from {minimum} to {maximum}")
        return found

    return check


def flag(field: str, value: Any) -> bool:
    found = flag_of(value)
    if found is None:
        raise _refuse(field, value, "true or false")
    return found


def one_of(choices: Iterable[str]) -> Check:
    """Return a check for one of some words."""
    known = tuple(choices)

    def check(field: str, value: Any) -> str:
        word = value.strip() if isinstance(value, str) else value
        if word not in known:
            raise _refuse(field, value, ", ".join(known) + suggestion(value, known))
        return str(word)

    return check


def words(choices: Iterable[str] | None = None) -> Check:
    """Return a check for a list of texts, of ``choices`` only if given."""
    check_one = one_of(choices) if choices is not None else None

    def check(field: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise _refuse(field, value, "a list of texts")
        if check_one is not None:
            for word in value:
                check_one(field, word)
        return list(dict.fromkeys(value))

    return check


def any_object(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(field, value, "a JSON object")
    return value


def offload_policies(field: str, value: Any) -> dict[str, Any]:
    """Check ``OffloadPolicies``: used fields are checked, others (drivers, buckets) stored and shown."""
    kept = dict(any_object(field, value))
    for _, name in TWINS.values():
        if kept.get(name) is not None:
            kept[name] = whole(-1)(f"{field}.{name}", kept[name])
    return kept


def text_map(field: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise _refuse(field, value, "a JSON object of texts")
    return value


PROPERTIES_BYTES_MAX: Final = 64 * 1024


def properties_map(field: str, value: Any) -> dict[str, str]:
    """Check the properties that users set, which are stored and held in memory."""
    found = text_map(field, value)
    size = sum(len(key) + len(text) for key, text in found.items())
    if size > PROPERTIES_BYTES_MAX:
        raise RuleViolation(
            InvalidRequest.NOT_ALLOWED, f"{field}: names and values have {size} characters; "
            f"at most {PROPERTIES_BYTES_MAX} are allowed"
        )  # fmt: skip
    return found


def record(**fields: tuple[Check, Any]) -> Check:
    """Return a check for an object: known fields are checked and completed with defaults, others are kept."""

    def check(field: str, value: Any) -> dict[str, Any]:
        any_object(field, value)
        kept = {
            name: item
            for name, item in value.items()
            if not (item is None or (name in fields and is_blank(item)))
        }
        for name, (inner, default) in fields.items():
            kept[name] = inner(f"{field}.{name}", kept[name]) if name in kept else default
        return kept

    return check


def by_cluster(inner: Check) -> Check:
    """Return a check for a map from cluster (or role, or topic) to the checked value."""

    def check(field: str, value: Any) -> dict[str, Any]:
        return {
            cluster: inner(f"{field}.{cluster}", item) for cluster, item in any_object(field, value).items()
        }

    return check


def _number(field: str, value: Any) -> float:
    found = number_of(value)
    if found is None or found < 0:
        raise _refuse(field, value, "a number >= 0", InvalidRequest.MALFORMED)
    return found


def _value(kind: Any, minimum: int = 0, maximum: int = INT64_MAX, choices: Iterable[str] = ()) -> Check:
    """Return the check for a value of a policy, or of a field of a record, by its declaration."""
    if kind is bool:
        return flag
    if kind is int:
        return whole(minimum, maximum)
    if kind is float:
        return _number
    if kind is str:
        return one_of(choices)
    if kind is Document:
        return any_object
    if dataclasses.is_dataclass(kind):
        return record(**_fields(kind))
    return words(choices or None)


def _fields(kind: Any) -> dict[str, tuple[Check, Any]]:
    """Return check and default of each field of a record by its JSON name; optional fields are left out."""
    found: dict[str, tuple[Check, Any]] = {}
    for name, json_name, hint in plan(kind):
        field = kind.__dataclass_fields__[name]
        if field.default is not None:
            found[json_name] = _value(hint, **field.metadata.get("limits", {})), field.default
    return found


_retention_fields = _value(Retention)


def retention(field: str, value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = _retention_fields(field, value)
    minutes, megabytes = kept["retentionTimeInMinutes"], kept["retentionSizeInMB"]
    if (minutes == 0) != (megabytes == 0):
        raise RuleViolation(
            InvalidRequest.MALFORMED,
            f"Invalid retention policy: time {minutes} min and size {megabytes} MB; "
            "either both are 0 (delete at once) or none is (-1 is no limit)",
        )
    return kept


_persistence_fields = _value(Persistence)


def persistence(field: str, value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = _persistence_fields(field, value)
    ensemble, write = kept["bookkeeperEnsemble"], kept["bookkeeperWriteQuorum"]
    if not ensemble >= write >= kept["bookkeeperAckQuorum"]:
        raise RuleViolation(
            InvalidRequest.MALFORMED, f"{field}: Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) "
            f">= AckQuorum ({kept['bookkeeperAckQuorum']}) does not hold"
        )  # fmt: skip
    return kept


_quota_fields = record(limit=(whole(-INT64_MAX - 1), -1), **_fields(BacklogQuota))


def backlog_quota(field: str, value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = _quota_fields(field, value)
    # `limit` is the older name of `limitSize`; clients send either or both.
    if kept["limitSize"] == -1:
        kept["limitSize"] = kept["limit"]
    kept["limit"] = kept["limitSize"]
    return kept


def backlog_quotas(field: str, value: Any) -> dict[str, Any]:
    check_kind = one_of(QUOTA_KINDS)
    return {
        check_kind(field, kind): backlog_quota(field, quota)
        for kind, quota in any_object(field, value).items()
    }


_topic_creation_fields = _value(AutoTopicCreation)


def auto_topic_creation(field: str, value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = _topic_creation_fields(field, value)
    partitions = kept.pop("defaultNumPartitions", None)
    if kept["topicType"] == "partitioned":
        given = 1 if is_blank(partitions) else partitions
        kept["defaultNumPartitions"] = whole(1)(f"{field}.defaultNumPartitions", given)
    elif not is_blank(partitions):
        raise RuleViolation(
            InvalidRequest.NOT_TOGETHER, f"{field}: topicType non-partitioned takes no defaultNumPartitions"
        )
    return kept


_actions_by_role = by_cluster(words(AUTH_ACTIONS))
_auth_fields: Final[Mapping[str, Check]] = {
    "namespace_auth": _actions_by_role,
    "destination_auth": by_cluster(_actions_by_role),
    "subscription_auth_roles": by_cluster(words()),
}


def auth_policies(field: str, value: Any) -> dict[str, Any]:
    """Check permissions; unknown fields are stored and grant nothing."""
    return {
        name: _auth_fields[name](f"{field}.{name}", given) if name in _auth_fields else given
        for name, given in any_object(field, value).items()
        if given is not None
    }


def entry_filters(field: str, value: Any) -> dict[str, Any]:
    """Refuse entry filters, which are Java classes in a broker's folder."""
    kept = any_object(field, value)
    names = kept.get("entryFilterNames") or ""
    if names:
        first = str(names).split(",")[0].strip()
        raise RuleViolation(
            InvalidRequest.MALFORMED, f"Entry filter {first!r} not found: this broker runs no Java"
        )
    return kept


def never(field: str, value: Any) -> Any:
    """Refuse every value of a policy that one broker cannot follow."""
    raise _refuse(field, value, "null")


_redeliver_fields = _fields(RedeliverUnacked)


def redeliver_unacked(field: str, value: Any) -> dict[str, Any]:
    """Check Geminga's own policy; unknown fields are refused."""
    check_name = one_of(_redeliver_fields)
    for name in any_object(field, value):
        check_name(field, name)
    return record(**_redeliver_fields)(field, value)  # type: ignore[no-any-return]


_SPECIAL: Final[Mapping[str, Check]] = {
    "autoTopicCreationOverride": auto_topic_creation,
    "entryFilters": entry_filters,
    "offload_policies": offload_policies,
    "persistence": persistence,
    "redeliver_unacked_policies": redeliver_unacked,
    "retention_policies": retention,
}
"""Checks of policies that need more than their declaration says."""
_UNDECLARED: Final[Mapping[str, Check]] = {
    "antiAffinityGroup": never,
    "auth_policies": auth_policies,
    "backlog_quota_map": backlog_quotas,
    "bundles": any_object,
    "clusterDispatchRate": by_cluster(_value(DispatchRate)),
    "deleted": flag,
    "latency_stats_sample_rate": any_object,
    "properties": properties_map,
    "resource_group_name": never,
}
"""Checks of fields with routes of their own, or without any."""


def _check_of(policy: Policy[Any]) -> Check:
    check = _SPECIAL.get(policy.field)
    if check is None:
        check = _value(policy.kind, policy.minimum, policy.maximum, policy.choices)
    return by_cluster(check) if policy.by_cluster else check


FIELDS: Final[Mapping[str, Check]] = {
    **_UNDECLARED,
    **{policy.field: _check_of(policy) for policy in (*declared(NamespaceScope), *declared(TopicScope))},
}
"""Check of every policy by Pulsar's name."""


def check_policy(field: str, value: Any) -> Any:
    """Return the value to store for a known policy; `RuleViolation` names field, value and allowed ones."""
    check = FIELDS.get(field)
    if check is None:
        raise RuleViolation(
            InvalidRequest.MALFORMED, f"no policy is called {field!r}{suggestion(field, FIELDS)}"
        )
    return check(field, value)


def check_document(document: Any) -> dict[str, Any]:
    """Check a whole policies object; nulls are dropped, unknown fields are kept as they are."""
    kept = any_object("policies", document)
    return {
        field: check_policy(field, value) if field in FIELDS else value
        for field, value in kept.items()
        if value is not None
    }


def bundle_ranges(count: int) -> dict[str, Any]:
    """Return ``count`` equal hash ranges, the last boundary included, in Pulsar's format."""
    if not 1 <= count <= 1 << 20:
        raise RuleViolation(
            InvalidRequest.NOT_ALLOWED, f"numBundles={count} is not allowed; allowed: 1 to {1 << 20}"
        )
    step = (1 << 32) // count
    boundaries = [f"0x{index * step:08x}" for index in range(count)]
    return {"boundaries": [*boundaries, "0xffffffff"], "numBundles": count}
