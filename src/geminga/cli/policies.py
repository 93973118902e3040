"""Commands of both ``namespaces`` and ``topics``: ``policies``, ``set-...``, ``unset``, ``policy``; and those
of permissions: ``permissions``, ``grant``, ``revoke``."""

import dataclasses
import datetime as dt
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click

from geminga.cli.common import WordChoice, emit, wants_json
from geminga.cli.connecting import operation
from geminga.cli.tables import TableColumn, print_rows
from geminga.cli.units import SIZE, SIZE_OR_UNLIMITED, SPAN, SPAN_OR_FOREVER, SWITCH, count, size, span
from geminga.client.admin.aio.namespaces import ACTIONS
from geminga.client.admin.sync import Admin, PolicyHolder
from geminga.client.cluster import Cluster
from geminga.config import check_choice
from geminga.errors import AdminNotAllowed, AdminNotFound, AdminServerError
from geminga.policies import (
    INACTIVE_TOPIC_MODES,
    QUOTA_ACTIONS,
    SUBSCRIPTION_TYPES,
    TOPIC_KINDS,
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    Persistence,
    Policy,
    PublishRate,
    RedeliverUnacked,
    Retention,
    SubscribeRate,
)


class ArgumentForm(NamedTuple):
    """Form of a value that is one argument: click type, and functions to the policy's value (of an argument
    named ``value``) and from it."""

    kind: Any
    make: Callable[[Any], Any]
    show: Callable[[Any], str]


def _seconds(value: dt.timedelta) -> int:
    """Return whole seconds, rounded up: 0 has a meaning of its own, such as no limit."""
    return math.ceil(value.total_seconds())


def _milliseconds(value: dt.timedelta) -> int:
    """Return whole milliseconds, rounded up."""
    return -(-value // dt.timedelta(milliseconds=1))


def _span_ms(value: int) -> str:
    """Return milliseconds as text: ``1m 30s``, or ``500ms`` if they are not whole seconds."""
    return f"{value}ms" if value % 1000 else span(value / 1000)


def _number(value: Any) -> Any:
    return value


def _on(value: bool) -> str:
    return "on" if value else "off"


_FORMS: dict[tuple[type, str], ArgumentForm] = {
    (bool, ""): ArgumentForm(SWITCH, _number, _on),
    (int, ""): ArgumentForm(click.IntRange(0), _number, count),
    (int, "bytes"): ArgumentForm(SIZE, _number, size),
    (int, "seconds"): ArgumentForm(SPAN, _seconds, span),
    (int, "minutes"): ArgumentForm(
        SPAN, lambda value: math.ceil(_seconds(value) / 60), lambda v: span(v * 60)
    ),
    (int, "milliseconds"): ArgumentForm(SPAN, _milliseconds, _span_ms),
}
"""Form of the argument, by a policy's type and unit."""


def _form(policy: Policy[Any]) -> ArgumentForm | None:
    """Return the form of a policy whose value is one argument, else None."""
    if policy.kind is str:
        return ArgumentForm(WordChoice(policy.choices), _number, str)
    return _FORMS.get((policy.kind, policy.unit))


def holder(cluster: Cluster, kind: str) -> Any:
    """Return the part of an admin client that holds policies: ``namespaces`` or ``topic_policies``."""
    return getattr(cluster.admin(), kind)


def shown(policy: Policy[Any] | None, value: Any) -> str:
    """Return a policy's value as text. ``policy`` is None for a backlog quota."""
    if value is None:
        return ""
    form = None if policy is None else _form(policy)
    if form is not None:
        return form.show(value)
    if isinstance(value, Retention):
        megabytes = value.megabytes
        kept = "any size" if megabytes < 0 else size(megabytes * 1024 * 1024)
        return f"{'forever' if value.minutes < 0 else span(value.minutes * 60)}, {kept}"
    if isinstance(value, PublishRate | DispatchRate):
        period = getattr(value, "period_seconds", 1)
        each = "/s" if period == 1 else f" in {span(period)}"
        limits = [f"{value.messages:,} messages{each}"] if value.messages >= 0 else []
        return ", ".join(limits + ([f"{size(value.bytes)}{each}"] if value.bytes >= 0 else [])) or "no limit"
    if isinstance(value, BacklogQuota):
        limits = [size(value.limit_bytes)] if value.limit_bytes >= 0 else []
        limits += [f"{span(value.limit_seconds)} old"] if value.limit_seconds > 0 else []
        return f"{' or '.join(limits) or 'no limit'}, {_BEYOND[value.policy]}"
    if dataclasses.is_dataclass(value):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return ", ".join(_field(name, one) for name, one in fields.items() if one is not None)
    if isinstance(value, tuple):
        return ", ".join(value)
    return json.dumps(value)


_INHERITED = {"namespaces": "the broker", "topic_policies": "its namespace and the broker"}
_UNSET = (None, (), "None", "UNDEFINED", -1)
"""Values of a policy that is not set."""
_BEYOND = dict(
    zip(
        QUOTA_ACTIONS,
        ("then producers wait", "then sending fails", "then the oldest are dropped"),
        strict=True,
    )
)


def _field(name: str, value: Any) -> str:
    """Return a field of a policy with several, its unit applied: ``tick 1s``, ``allow on``."""
    *words, unit = name.removesuffix("_max").split("_")
    if isinstance(value, str):
        return value.replace("_", " ")
    if value == 0 and name.endswith("_max"):
        text = "no limit"
    elif unit in ("seconds", "milliseconds"):
        text = span(value) if unit == "seconds" else _span_ms(value)
    else:
        words, text = [*words, unit], _on(value) if isinstance(value, bool) else f"{value:,}"
    return f"{' '.join(words)} {text}"


def _rows(part: Any, place: str) -> Iterator[dict[str, Any]]:
    for policy in type(part).policies_known():
        try:
            value = getattr(part, policy.name).get(place)
        except (AdminNotAllowed, AdminNotFound, AdminServerError):
            continue  # the broker does not support this policy
        yield {"policy": policy.name, "value": value, "text": policy.text}
    for kind, quota in sorted(part.backlog_quotas(place).items()):
        yield {"policy": f"backlog_quota {kind}", "value": quota, "text": "Action when it is exceeded."}


class FieldsCommand(NamedTuple):
    """Command for a policy with several fields: its arguments and options, and a function from them to the
    policy's value, whose docstring is the help text."""

    parameters: tuple[Callable[[Any], Any], ...]
    make: Callable[..., Any]
    text: str


_WITH_FIELDS: dict[str, FieldsCommand] = {}
"""Commands by policy name."""


def _with_fields(policy: str, *parameters: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Any]:
    """Declare the command of a policy with several fields."""

    def declare(make: Callable[..., Any]) -> Callable[..., Any]:
        _WITH_FIELDS[policy] = FieldsCommand(parameters, make, make.__doc__ or "")
        return make

    return declare


@_with_fields(
    "retention",
    click.argument("time", metavar="TIME", type=SPAN_OR_FOREVER),
    click.option("--size", "limit", type=SIZE_OR_UNLIMITED, default="unlimited", show_default=True,
                 help="Delete the oldest messages beyond this size, such as 20G."),
)  # fmt: skip
def _retention(time: Any, limit: Any) -> Retention:
    """Set how long acknowledged messages are kept: 7d, 12h, forever, or 0s to delete them at once."""
    minutes = -1 if time == "forever" else math.ceil(_seconds(time) / 60)
    megabytes = -1 if limit == "unlimited" else math.ceil(int(limit) / (1024 * 1024))
    return Retention(minutes=minutes, megabytes=megabytes if minutes else 0)


def _with_rates(policy: str, record: Callable[..., Any], text: str) -> None:
    def make(messages: int, size_limit: Any) -> Any:
        return record(messages=messages, bytes=-1 if size_limit in (None, "unlimited") else size_limit)

    parameters = (
        click.option("--messages", type=click.IntRange(-1), default=-1,
                     help="Messages per second; -1, the default: no limit."),
        click.option("--bytes", "size_limit", type=SIZE_OR_UNLIMITED,
                     help="Bytes per second, such as 10M; without: no limit."),
    )  # fmt: skip
    _WITH_FIELDS[policy] = FieldsCommand(parameters, make, text)


_with_rates("publish_rate", PublishRate, "Limit the publish rate of each topic.")
_with_rates("dispatch_rate", DispatchRate, "Limit the dispatch rate of each topic.")
_with_rates("subscription_dispatch_rate", DispatchRate, "Limit the dispatch rate of each subscription.")


@_with_fields(
    "subscribe_rate",
    click.argument("subscribes", type=click.IntRange(-1)),
    click.option(
        "--period", type=SPAN, default="30s", show_default=True, help="Period that the limit counts for."
    ),
)
def _subscribe_rate(subscribes: int, period: Any) -> SubscribeRate:
    """Limit the subscribe requests of a consumer per period; -1: no limit."""
    return SubscribeRate(subscribes_per_consumer=subscribes, period_seconds=_seconds(period))


@_with_fields(
    "delayed_delivery",
    click.argument("active", metavar="on|off", type=SWITCH),
    click.option("--tick", type=SPAN, default="1s", show_default=True, help="Precision of the delay."),
)
def _delayed_delivery(active: bool, tick: Any) -> DelayedDelivery:
    """Enable or disable delayed delivery of messages."""
    return DelayedDelivery(active=active, tick_milliseconds=max(1, _milliseconds(tick)))


@_with_fields(
    "inactive_topics",
    click.argument("delete", metavar="on|off", type=SWITCH),
    click.option(
        "--after",
        type=SPAN,
        default="1d",
        show_default=True,
        help="Time without clients before the deletion.",
    ),
    click.option("--caught-up", is_flag=True, help="Also topics whose subscriptions have no backlog."),
)
def _inactive_topics(delete: bool, after: Any, caught_up: bool) -> InactiveTopics:
    """Enable or disable deletion of inactive topics."""
    mode = INACTIVE_TOPIC_MODES[caught_up]
    return InactiveTopics(delete=delete, inactive_seconds_max=_seconds(after), mode=mode)


@_with_fields(
    "persistence",
    click.argument("copies", type=click.IntRange(1)),
    click.option("--acks", type=click.IntRange(1), help="Copies written before the receipt; default: all."),
    click.option("--ensemble", type=click.IntRange(1),
                 help="Bookies to spread over; default: as many as copies."),
)  # fmt: skip
def _persistence(copies: int, acks: int | None, ensemble: int | None) -> Persistence:
    """Set the number of bookies that store each entry, for clusters."""
    return Persistence(ensemble=ensemble or copies, write_quorum=copies, ack_quorum=acks or copies)


@_with_fields(
    "redeliver_unacked",
    click.argument("after", type=SPAN),
    click.option("--messages", type=click.IntRange(1), default=1000, show_default=True,
                 help="Limit of redelivered messages per second."),
)  # fmt: skip
def _redeliver_unacked(after: Any, messages: int) -> RedeliverUnacked:
    """Redeliver messages that are not acknowledged within AFTER; 0s: never. Geminga brokers only."""
    return RedeliverUnacked(after_seconds=after.total_seconds(), messages_per_second_max=messages)


@_with_fields("auto_subscription_creation", click.argument("allow", metavar="on|off", type=SWITCH))
def _auto_subscription_creation(allow: bool) -> AutoSubscriptionCreation:
    """Allow or forbid that a consumer creates an unknown subscription."""
    return AutoSubscriptionCreation(allow=allow)


@_with_fields(
    "subscription_types",
    click.argument("types", nargs=-1, required=True, type=WordChoice(SUBSCRIPTION_TYPES)),
)
def _subscription_types(types: tuple[str, ...]) -> tuple[str, ...]:
    """Set the allowed subscription types."""
    return types


@_with_fields(
    "auto_topic_creation",
    click.argument("allow", metavar="on|off", type=SWITCH),
    click.option("--partitions", "-p", type=click.IntRange(1), help="Partitions of new topics."),
)
def _auto_topic_creation(allow: bool, partitions: int | None) -> AutoTopicCreation:
    """Allow or forbid that a producer or consumer creates an unknown topic."""
    topic_type = TOPIC_KINDS[partitions is not None]
    return AutoTopicCreation(allow=allow, topic_type=topic_type, default_partitions=partitions)


def add_policy_commands(group: click.Group, kind: str, metavar: str, of: type[PolicyHolder]) -> None:
    """Add the policy commands to ``group``. ``kind``: admin client's part; ``metavar``: first argument."""

    def command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
        return operation(group, name, click.argument("place", metavar=metavar))

    @command("policies")
    @click.option("--all", "everything", is_flag=True, help="Show unset policies too, and explain each.")
    def policies(place: str, everything: bool, cluster: Cluster) -> None:
        """Show the policies that are set here; unset policies are inherited."""
        _print_policies(holder(cluster, kind), kind, place, everything)

    @command("unset")
    @click.argument("policy")
    def unset(place: str, policy: str, cluster: Cluster) -> None:
        """Remove POLICY here, so that the value is inherited. `backlog_quota` removes both kinds."""
        name = _unset(holder(cluster, kind), place, policy)
        emit({"place": place, "policy": name, "value": None}, f"{place}: {policy} unset")

    @command("set-quota")
    @click.argument("limit", metavar="[SIZE]", type=SIZE, required=False)
    @click.option("--age", type=SPAN, help="Limit the oldest message's age instead of the size.")
    @click.option("--policy", type=WordChoice(QUOTA_ACTIONS), default=QUOTA_ACTIONS[0],
                  show_default=True, help="Block or refuse producers, or delete old messages.")  # fmt: skip
    def set_quota(place: str, limit: int | None, age: Any, policy: str, cluster: Cluster) -> None:
        """Limit the backlog: to SIZE such as 10G, or to --age such as 1d."""
        _set_quota(holder(cluster, kind), place, limit, age, policy)

    for policy in of.policies_known():
        fields, form = _WITH_FIELDS.get(policy.name), _form(policy)
        if fields is not None:
            _add_set_command(command, kind, policy, fields)
        elif form is not None and policy.command is not None:
            parameters = (click.argument("value", type=form.kind),)
            _add_set_command(command, kind, policy, FieldsCommand(parameters, form.make, policy.text))

    @command("policy")
    @click.argument("policy")
    @click.argument("value", required=False)
    @click.option("--remove", is_flag=True, help="Remove the policy; its value is inherited again.")
    def policy_by_name(place: str, policy: str, value: str | None, remove: bool, cluster: Cluster) -> None:
        """Show, set or remove a POLICY by its name in admin REST: retention, messageTTL ... VALUE is JSON.

        Use it for policies without a command.
        """
        found = _by_rest_name(cluster.admin(), kind, place, policy, value, remove)
        emit({"place": place, "policy": policy, "value": found}, json.dumps(found))


def _add_set_command(
    command: Callable[[str], Callable[[Callable[..., Any]], click.Command]],
    kind: str,
    policy: Policy[Any],
    fields: FieldsCommand,
) -> None:
    def put(place: str, cluster: Cluster, **given: Any) -> None:
        value = fields.make(**given)
        getattr(holder(cluster, kind), policy.name).set(place, value)
        emit(
            {"place": place, "policy": policy.name, "value": _json(value)},
            f"{place}: {policy.name.replace('_', '-')} {shown(policy, value)}",
        )

    put.__doc__ = fields.text
    for parameter in reversed(fields.parameters):
        parameter(put)
    command(policy.command or f"set-{policy.name.replace('_', '-')}")(put)


def _print_policies(part: Any, kind: str, place: str, everything: bool) -> None:
    if kind == "namespaces":
        part.policies(place)  # raises AdminNotFound for an unknown namespace
    known = {policy.name: policy for policy in type(part).policies_known()}

    def text(row: dict[str, Any]) -> dict[str, Any]:
        value, name = row["value"], row["policy"]
        text = "-" if value in _UNSET else shown(known.get(name), value) or "-"
        return {**row, "policy": name.replace("_", "-"), "shown": text}

    rows = (
        {**row, "value": _json(row["value"])} if wants_json() else text(row)
        for row in _rows(part, place)
        if everything or (row["value"] and row["value"] not in _UNSET)
    )
    columns = [TableColumn("policy", "policy"), TableColumn("value", "shown")]
    columns += [TableColumn("meaning", "text")] if everything else []
    print_rows(rows, columns, f"no policy is set on {place}: those of {_INHERITED[kind]} apply")


def _unset(part: Any, place: str, policy: str) -> str:
    """Remove a policy; return its name."""
    name = policy.replace("-", "_")
    check_choice("POLICY", name, (*(one.name for one in type(part).policies_known()), "backlog_quota"))
    if name == "backlog_quota":
        for each in list(part.backlog_quotas(place)):
            part.remove_backlog_quota(place, kind=each)
    else:
        getattr(part, name).remove(place)
    return name


def _set_quota(part: Any, place: str, limit: int | None, age: Any, policy: str) -> None:
    if (limit is None) == (age is None):
        raise click.UsageError("give either a SIZE or --age")
    quota = BacklogQuota(
        limit_bytes=-1 if limit is None else limit,
        limit_seconds=-1 if age is None else _seconds(age),
        policy=policy,
    )
    which = "message_age" if limit is None else "destination_storage"
    part.set_backlog_quota(place, quota, kind=which)
    emit(
        {"place": place, "policy": f"backlog_quota {which}", "value": _json(quota)},
        f"{place}: backlog-quota {shown(None, quota)}",
    )


def _by_rest_name(admin: Admin, kind: str, place: str, policy: str, value: str | None, remove: bool) -> Any:
    if remove and value is not None:
        raise click.UsageError("give either a value or --remove")
    base, _, query = policy.partition("?")
    if not base.isalnum():
        raise click.BadParameter(f"{policy!r} is not the name of a policy", param_hint="POLICY")
    part = getattr(admin, kind)
    path = f"{part.path(place)}/{base}" + (f"?{query}" if query else "")
    if remove:
        admin.call("DELETE", path)
    elif value is not None:
        try:
            content = json.loads(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not JSON", param_hint="VALUE") from None
        known = {one.segment: one for one in type(part).policies_known()}
        method = known[base].method if base in known else "POST"
        if base in known and known[base].as_query:
            admin.call(method, path, query={known[base].as_query: content})
        else:
            admin.call(method, path, content)
    return admin.call("GET", f"{part.path(place)}/backlogQuotaMap" if base == "backlogQuota" else path)


def _json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.name != "raw"}
    return value


_PERMISSIONS = (TableColumn("role", "role"), TableColumn("actions", "actions", ", ".join))


def add_permission_commands(group: click.Group, kind: str, argument: Any) -> None:
    """Add the permission commands to ``group``. ``kind``: admin client's part; ``argument``: ``resource``."""

    @operation(group, "permissions", argument)
    def permissions(resource: str, cluster: Cluster) -> None:
        """List the permissions of each role."""
        found = getattr(cluster.admin(), kind).permissions(resource)
        rows = [{"role": role, "actions": list(actions)} for role, actions in sorted(found.items())]
        print_rows(rows, _PERMISSIONS)

    @operation(group, "grant", argument, "role")
    @click.argument("actions", nargs=-1, required=True, type=WordChoice(ACTIONS))
    def grant(resource: str, role: str, actions: tuple[str, ...], cluster: Cluster) -> None:
        """Allow ROLE these ACTIONS, replacing its earlier permissions here."""
        getattr(cluster.admin(), kind).grant(resource, role, actions)
        text = f"{role} may {', '.join(actions)} in {resource}"
        emit({kind[:-1]: resource, "role": role, "actions": actions}, text)

    @operation(group, "revoke", argument, "role")
    def revoke(resource: str, role: str, cluster: Cluster) -> None:
        """Revoke the permissions that ROLE was granted here."""
        getattr(cluster.admin(), kind).revoke(resource, role)
        text = f"{role}: permissions revoked"
        emit({kind[:-1]: resource, "role": role, "actions": []}, text)
