"""Reference pages about the broker, drawn from the code: REST, metrics, and errors.

A route, a metric or an error without words ends the drawing: ``make docs`` and the docs test name it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import apache_routes

from geminga import errors
from geminga.errors import PulsarException, Result

HEAD = "Drawn from the code by `make docs`."


def cell(text: str) -> str:
    """A text as a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


def words(what: str, found: str | None) -> str:
    """A text that must be there."""
    if not found or not found.strip():
        raise SystemExit(f"{what} has no words: write its docstring")
    return cell(found)


# --- REST ----------------------------------------------------------------------------------------


def routes() -> Iterator[tuple[str, Any]]:
    """Resource and route of every route of the web port."""
    from geminga.broker.admin.web import _RESOURCES

    for resource in _RESOURCES:
        for route in resource(MagicMock()).routes():
            yield resource.__name__, route


def _declared() -> dict[tuple[str, str], Any]:
    """Policies by resource and last part of the path."""
    from geminga.policies import NamespaceScope, TopicScope, declared

    scopes = {"NamespacePoliciesResource": NamespaceScope, "TopicPoliciesResource": TopicScope}
    return {
        (name, policy.segment.rpartition("/")[2]): policy
        for name, scope in scopes.items()
        for policy in declared(scope)
    }


def _policy_words(policy: Any) -> str:
    """The policy's text, with the fields or the choices of its value."""
    from geminga.records import plan

    if dataclasses.is_dataclass(policy.kind):
        fields = ", ".join(f"`{json_name}`" for _, json_name, _ in plan(policy.kind))
        return f"{policy.text} Body: {fields}."
    if policy.kind is str:
        return f"{policy.text} Allowed: {', '.join(f'`{each}`' for each in policy.choices)}."
    return str(policy.text) + (f" Set by `?{policy.as_query}=`." if policy.as_query else "")


def _success(handler: Any) -> int | str:
    """The status of an answer: what the handler says last. Of handlers that may return None, both."""
    returned = str(inspect.signature(handler).return_annotation)
    if returned.endswith("| None"):
        return "200 204"
    tree = ast.parse(textwrap.dedent(inspect.getsource(handler)))
    found = 204 if returned == "None" else 200
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("done_answer", "http.done_answer"):
            found = 204
            if node.args and isinstance(node.args[0], ast.Constant):
                found = int(str(node.args[0].value))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "answer"
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
        ):
            found = int(str(node.args[1].value))
    return found


_TITLES = {
    "ClustersResource": "Clusters",
    "TenantsResource": "Tenants",
    "BrokersResource": "The broker, its configuration and `/metrics`",
    "BrokerStatsResource": "Broker stats",
    "DamageResource": "Damage",
    "LookupResource": "Lookup",
    "SchemasResource": "Schemas",
    "OverviewResource": "What the console shows",
    "NamespacesResource": "Namespaces",
    "ResourceGroupsResource": "Resource groups",
    "NamespacePoliciesResource": "Policies of namespaces",
    "PartitionedTopicsResource": "Partitioned topics",
    "SubscriptionsResource": "Subscriptions",
    "TopicPoliciesResource": "Policies of topics",
    "TopicsResource": "Topics",
    "TopicMessagesResource": "Publishing",
    "TopicAttributesResource": "Properties and permissions of topics",
    "TransactionsResource": "Transactions",
}
_NEEDS = {
    "NOTHING": "anyone",
    "CREDENTIALS": "credentials",
    "SUPER_USER": "super user",
    "METRICS": "super user or metrics role",
    "ADMINISTRATOR": "administrator",
    "LIST": "consume",
    "LOOK": "produce or consume",
    "CONSUME": "consume",
    "PRODUCE": "produce",
    "SUBSCRIPTIONS": "consume",
}
_REST = """
The web port speaks Apache Pulsar's admin REST (`/admin/v2`), so that `pulsar-admin`, Pulsar Manager and
programs work with it; `geminga` and [`geminga.Admin`](admin.md) do, too. Programs may
[publish over it](../websocket.md#publishing-over-rest). Bodies and answers are JSON.
`{domain}` is `persistent` or `non-persistent`; parts of a path are percent-encoded, a partition is named
`topic-partition-0`.

*Who*: permission that the role of the request needs if the broker has [authentication](../security.md);
"administrator" is the tenant's. *Status*: that of success; a change is answered when it is as durable as
[`--sync`](../explanation/what-sync-promises.md) promises.

Policies have three methods in one row: `GET` returns the value that is set here (for topics with
`?applied=true`: the value in force, also if it is inherited), `POST` sets it, `DELETE` removes it.

| status | means |
|---|---|
| 200, 202, 204 | done; 204 has no body. An unset value is 200 with an empty body, as in Apache Pulsar |
| 400, 422 | the body is not JSON, or not of the required form |
| 401, 403 | missing or wrong credentials; missing permission. 403 also for pages of other sites |
| 404 | the tenant, namespace, topic, subscription, schema or path does not exist |
| 405, 406 | the call does not apply to this kind of resource, such as a partitioned topic as a whole |
| 409 | the resource exists already, is in use, or conflicts with another one |
| 412 | a value that is not allowed; the answer names field, value and the allowed values |
| 500 | an internal error of the broker; see its log |
| 501 | not supported |
| 503, 504 | the store has stopped, or does not answer in time: the change may still take effect |

Every refusal has a body `{"reason": "..."}` for people.
"""


def rest_page() -> str:
    """``rest.md``: every route, then what Apache Pulsar serves and this broker does not."""

    lines = ["# REST", "", HEAD, "", *_REST.strip().splitlines(), ""]
    policies = _declared()
    shown = ""
    rows: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    for resource, route in routes():
        (method, path), handler = route.key, route.handler
        text = inspect.getdoc(handler)
        status = _success(handler)
        policy = policies.get((resource, path.rpartition("/")[2]))
        if policy is not None:
            text = _policy_words(policy)
            status = {"GET": 200, "DELETE": 204}.get(method, policy.status)
        who = _NEEDS[route.needs.name]
        told = words(f"{method} {path}", text)
        rows.setdefault((resource, path, told), []).append((method, str(status), who))
    for (resource, path, told), calls in rows.items():
        if resource != shown:
            shown = resource
            lines += ["", f"## {_TITLES[resource]}", "", "| | path | what it does | status | who |"]
            lines += ["|---|---|---|---|---|"]
        methods, codes, whose = zip(*calls, strict=True)
        shown_who = " / ".join(dict.fromkeys(whose))
        lines.append(
            f"| {' '.join(methods)} | `{path}` | {told} | {' '.join(dict.fromkeys(codes))} | {shown_who} |"
        )
    lines += ["", *_not_served()]
    return "\n".join(lines).rstrip() + "\n"


def _plain(path: str) -> str:
    path = re.sub(
        r"^(/admin/v2|/lookup/v2/topic|/topics)/(persistent|non-persistent)/", r"\1/{domain}/", path
    )
    return re.sub(r"^/lookup/v2/topic/\{[^/]*\}", "/lookup/v2/topic/{domain}", path)


def _shape(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", _plain(path))


def not_served() -> dict[str, list[tuple[str, str]]]:
    """Reason to the methods and paths of Apache Pulsar that are not served because of it."""
    served = {(route.method, _shape(route.key[1])) for _, route in routes()}
    found: dict[str, list[tuple[str, str]]] = {}
    for method, path in apache_routes.listed():
        if (method, _shape(path)) not in served:
            why = apache_routes.reason(path)
            if not why:
                raise SystemExit(f"tools/apache_routes.py: nothing says why {method} {path} is not served")
            place = (method, _plain(path))
            if place not in found.setdefault(why, []):
                found[why].append(place)
    return found


def _service(path: str) -> str:
    """Return the prefix of a path: ``/admin/v3/functions``."""
    return "/".join(_plain(path).split("/")[: 4 if path.startswith("/admin") else 2])


def _not_served() -> list[str]:
    lines = [
        "## What Apache Pulsar serves and this broker does not",
        "",
        f"Compared with Apache Pulsar {apache_routes.VERSION}; what is not served is answered with 404.",
        "",
        "| path | methods | why |",
        "|---|---|---|",
    ]
    served = {_service(route.key[1]) for _, route in routes()}
    for why, places in not_served().items():
        by_path: dict[str, list[str]] = {}
        for method, path in places:
            whole = _service(path)
            name, how = (path, method) if whole in served else (f"{whole}/...", "all")
            if how not in by_path.setdefault(name, []):
                by_path[name].append(how)
        for name, methods in by_path.items():
            lines.append(f"| `{name}` | {', '.join(methods)} | {cell(why)} |")
    return lines


# --- metrics -------------------------------------------------------------------------------------

_METRICS = """
`GET /metrics` on the web port, in Prometheus' text format. Names that begin with `pulsar_` are Apache
Pulsar's and mean the same, so that its dashboards work; those with `geminga_` are Geminga's own. Every
sample has the label `cluster`.

An unused topic leaves memory after a while, and then has no samples of its own but its backlogs:
`pulsar_msg_backlog`, `pulsar_subscription_back_log` and `pulsar_subscription_consumers_count` (0) of each
subscription with a backlog. After a start they are there before anybody uses the topic. At most 10,000
subscriptions are listed so, those of the topics with the largest backlogs;
`geminga_subscriptions_not_listed` counts the others, and the sums of namespaces and of the broker have all.
Counters begin again when a topic is loaded, as those of Apache Pulsar do: `rate()` and `increase()` know
that.
"""


_FUNCTIONS = (
    "A [function](../functions.md) with `metrics_port` answers on `/metrics` of that port, under names of "
    "Apache Pulsar's function workers; labels name tenant, namespace, function and instance, and, in the "
    "last two, the metric."
)
_MIRRORS = (
    "A [mirror](../moving-to-a-cluster.md) with `--metrics-port` answers on `/metrics` of that port; labels "
    "name the mirror and the topic or partition."
)
_CLIENTS = (
    "`geminga.Client(metrics=...)` reports these; attributes, sampling and what it costs: "
    "[observability](../observability.md#clients)."
)
_SPARK = "What `geminga.spark.serve_metrics` shows of running queries: see [Spark](../spark.md)."


def metrics_page() -> str:
    """``metrics.md``."""
    from geminga.broker.admin.metric_table import METRICS, MetricScope

    lines = ["# Metrics", "", HEAD, "", *_METRICS.strip().splitlines()]
    for of in MetricScope:
        found = [metric for metric in METRICS.values() if metric.of is of]
        labels = ", ".join(f"`{label}`" for label in of.labels)
        lines += ["", f"## {of.title}", "", *([f"Labels: {labels}.", ""] if labels else [])]
        lines += ["| metric | type | unit | meaning |", "|---|---|---|---|"]
        for metric in found:
            own = f" Label {', '.join(f'`{label}`' for label in metric.labels)}." if metric.labels else ""
            told = words(metric.name, metric.text)
            lines.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {told}{own} |")
    lines += ["", *_others()]
    return "\n".join(lines).rstrip() + "\n"


def _others() -> list[str]:
    """Metrics of functions, mirrors and Spark's queries, which have ports of their own."""
    from geminga.client.observe.metrics import HISTOGRAMS, INSTRUMENTS
    from geminga.functions.metrics import FAMILIES, OWN_FAMILIES
    from geminga.mirror.status import FAMILIES as MIRRORS
    from geminga.spark.observing import FAMILIES as SPARK

    lines = ["## Functions", "", _FUNCTIONS, "", "| metric | type | unit | meaning |", "|---|---|---|---|"]
    for name, kind, unit, text in (*FAMILIES, *OWN_FAMILIES):
        lines.append(f"| `{name}` | {kind} | {unit or 'its own'} | {words(name, text)} |")
    lines += ["", "## Mirrors", "", _MIRRORS, "", "| metric | type | unit | meaning |", "|---|---|---|---|"]
    for name, kind, unit, text in MIRRORS:
        lines.append(f"| `{name}` | {kind} | {unit} | {words(name, text)} |")
    lines += ["", "## Clients, through OpenTelemetry", "", _CLIENTS, ""]
    lines += ["| instrument | type | unit | meaning |", "|---|---|---|---|"]
    for name, one in INSTRUMENTS.items():
        kind = "counter" if one.sum else "up-down counter"
        lines.append(f"| `{name}` | {kind} | {one.unit} | {words(name, one.description)} |")
    for name, text in HISTOGRAMS.items():
        lines.append(f"| `{name}` | histogram | s | {words(name, text)} |")
    lines += ["", "## Spark's streaming queries", "", _SPARK, ""]
    lines += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, text, kind, labels in SPARK:
        lines.append(f"| `{name}` | {kind} | {', '.join(f'`{x}`' for x in labels)} | {words(name, text)} |")
    return lines


# --- errors --------------------------------------------------------------------------------------

_ERRORS = """
Every error that Geminga raises is a `PulsarException`; the names are those of `pulsar-client`, so that
`except` clauses written for it keep working. They are in `geminga` and in `geminga.errors`. How to deal
with them, with examples: [errors](../errors.md).

*Again*: whether the same call may succeed later without a change. *Number*: what `error.error()` gives, in
`pulsar-client`'s numbering (`Result`). *Code*: the number on the wire (`ServerError`), by which Apache
Pulsar's brokers and Java's client know it.
"""
_BRANCHES: tuple[tuple[str, str, Callable[[type], bool]], ...] = (
    ("The caller's mistakes", "`UsageError`", lambda c: issubclass(c, errors.UsageError)),
    ("The other side's faults", "`PeerError`", lambda c: issubclass(c, errors.PeerError)),
    ("Time-outs and lost connections", "`TransientError`", lambda c: issubclass(c, errors.TransientError)),
    ("What admin REST refuses", "`AdminError`", lambda c: issubclass(c, errors.AdminError)),
    (
        "What the broker reports",
        "`ServerReportedError`",
        lambda c: issubclass(c, errors.ServerReportedError) and not issubclass(c, errors.AdminError),
    ),
    ("The broker's store", "`StoreError`", lambda c: issubclass(c, errors.StoreError)),
)


def error_classes() -> list[type[PulsarException]]:
    """Every error, in the order of the module."""
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, PulsarException)
    ]


def errors_page() -> str:
    """``errors.md``."""
    lines = ["# Errors", "", HEAD, "", *_ERRORS.strip().splitlines()]
    left = error_classes()
    branches = [*_BRANCHES[:3], _BRANCHES[4], _BRANCHES[3], _BRANCHES[5]]
    top = [cls for cls in left if not any(belongs(cls) for _, _, belongs in branches)]
    for title, base, belongs in (("At the top", "", lambda c: c in top), *branches):
        lines += ["", f"## {title}", ""]
        if base:
            lines += [f"All of them are {base}.", ""]
        lines += ["| error | when, and what to do | again | number | code |", "|---|---|---|---|---|"]
        for cls in [each for each in left if belongs(each)]:
            left.remove(cls)
            number = Result.__members__.get(cls.__name__)
            code = vars(cls).get("code", "") if issubclass(cls, errors.ServerReportedError) else ""
            if cls in (errors.ServerReportedError, errors.AdminError):
                code = ""
            told = words(f"geminga.errors.{cls.__name__}", vars(cls).get("__doc__"))
            shown = "" if number is None else str(int(number))
            again = "yes" if cls.retriable else ""
            lines.append(f"| `{cls.__name__}` | {told} | {again} | {shown} | {code} |")
    return "\n".join(lines).rstrip() + "\n"
