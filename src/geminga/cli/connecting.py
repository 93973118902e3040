"""Connection options of every command that connects: the cluster's addresses, authentication and TLS.

Precedence: options, then environment variables, then a context (``--context``, ``GEMINGA_CONTEXT``, the
current context), then localhost. A context is used as a whole or not at all: if an option or a variable gives
an address, the current context is ignored, so that its token is never sent to another cluster.
"""

import functools
import os
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from geminga.cli.common import json_option, with_options, write_section
from geminga.client.cluster import DEFAULT_URL, Cluster
from geminga.config import names_file, suggestion
from geminga.connection.addresses import ServiceUrl
from geminga.errors import AdminNotFound, PulsarException, SubscriptionNotFound, TopicNotFound
from geminga.ids import TopicName

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, exists=True, resolve_path=True)


class ConnectionOption(click.Option):
    """Option that the help lists in the section "Connection"."""


class ConnectingCommand(click.Command):
    """Click command whose help lists connection options in a section "Connection"."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(re.fullmatch(r"-\d+", word) for word in args)  # -1 is a value
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (ours := _OTHER_TOOLS.get(error.option_name)) is None:
                raise
            raise click.UsageError(f"no option {error.option_name}: {ours}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Connection": []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                continue  # the usage line and the text show it
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections["Connection" if isinstance(parameter, ConnectionOption) else "Options"].append(
                    record
                )
        for title, rows in sections.items():
            write_section(formatter, title, rows)


_ABOUT = r"{}(-partition-\d+)?(?!\S)"
"""Pattern of an error about a topic, and not about its dead letters."""
_PARENT = re.compile(r"(Namespace|Tenant)(?: (\S+))? (?:does not exist|doesn't exist|not found)")
"""An error about the namespace or tenant of what is named, with or without its name."""
_OTHER_TOOLS = {
    "--topic": "name the topic without an option",
    **dict.fromkeys(("--bootstrap-server", "--broker-list", "--brokers"), "give --url pulsar://HOST:PORT"),
    **dict.fromkeys(("--from-beginning", "--offset", "-o"), "give --from earliest, '2h ago' or an id"),
    **dict.fromkeys(("--max-messages", "--num", "--num-messages"), "give --count"),
    **dict.fromkeys(("--group", "-g", "--subscription-name"), "give --subscription"),
    "--subscription-type": "give --type",
    "--subscription-position": "give --from",
    "--format": "give --json",
}  # fmt: skip
"""Options of ``pulsar-client``, ``kafka-console-*`` and ``rpk``: what to write here."""

_COMMON = (
    (("--context",), {"metavar": "NAME", "envvar": "GEMINGA_CONTEXT",
     "help": "Saved cluster, see `geminga context`.  [default without an address: the current context]"}),
    (("--token",), {"metavar": "TOKEN", "envvar": "PULSAR_TOKEN", "show_envvar": True,
     "help": "Token; better env:NAME or file:///PATH, as other local users can see options."}),
    (("--token-file",), {"type": FILE, "help": "File that holds a token."}),
    (("--auth-plugin",), {"metavar": "KIND",
     "help": "Other authentication: tls, basic, oauth2, or the Java class name of a plugin."}),
    (("--auth-params",), {"metavar": "TEXT",
     "help": "Parameters of --auth-plugin, as in Pulsar's client.conf."}),
    (("--tls-trust-certs",), {"type": FILE, "help": "CA certificates to trust, in PEM; else the system's."}),
    (("--tls-cert",), {"type": FILE, "help": "Client certificate for mutual TLS, in PEM."}),
    (("--tls-key",), {"type": FILE, "help": "Private key of --tls-cert, in PEM."}),
    (("--tls-insecure",), {"is_flag": True, "help": "Trust any certificate: for tests only."}),
    (("--tls-any-hostname",), {"is_flag": True, "help": "Do not check the certificate's host name."}),
)  # fmt: skip
_URL = (("--url", "--service-url", "service_url"), {"metavar": "URL", "envvar": "PULSAR_SERVICE_URL",
        "help": f"Service URL.  [default: {DEFAULT_URL}]"})  # fmt: skip
_ADMIN_URL = (("--admin-url",), {"metavar": "URL", "envvar": "PULSAR_ADMIN_URL",
              "help": "Web service URL.  [default: requested from the broker]"})  # fmt: skip
_NAMES = tuple(names[0].lstrip("-").replace("-", "_") for names, _ in _COMMON)


def connecting(command: F) -> F:
    """Add the connection options; the command receives their `Cluster` as ``cluster``."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        chosen = {name: given.pop(name) for name in ("service_url", "admin_url", *_NAMES)}
        cluster = check_tls(cluster_of(chosen))
        try:
            return command(cluster=cluster, **given)
        except (AdminNotFound, TopicNotFound, SubscriptionNotFound) as error:
            topic = given.get("topic")
            if parent := _PARENT.search(str(error)):
                error.args = (_absent_parent(cluster, parent, given) or str(error),)
            elif (
                isinstance(error, TopicNotFound | SubscriptionNotFound)
                and isinstance(topic, str)
                and re.search(_ABOUT.format(re.escape(str(TopicName.parse(topic)))), str(error))
            ):
                absent = given.get("subscription") if isinstance(error, SubscriptionNotFound) else None
                error.args = (_absent(cluster, topic, absent),)
            raise

    return connection_options(wrapped)  # type: ignore[return-value]


def operation(group: click.Group, name: str, *arguments: Any) -> Callable[[F], click.Command]:
    """Add a function to ``group`` as a command that connects and can print JSON. ``arguments``: names of its
    first arguments, or decorators."""

    def decorate(function: F) -> click.Command:
        options = function.__dict__.pop("__click_params__", [])
        made: Any = connecting(json_option(function))
        made.__click_params__ += options
        for argument in reversed(arguments):
            made = (click.argument(argument) if isinstance(argument, str) else argument)(made)
        return group.command(name, cls=ConnectingCommand)(made)

    return decorate


def check_exists(client: Any, topic: str) -> None:
    """Raise `TopicNotFound` for a topic that does not exist, and that a reader would create."""
    name = TopicName.parse(topic)
    if name.persistent:
        try:
            client.runtime.call(client.context.partitions(topic, auto_creation=False))
        except TopicNotFound:
            raise TopicNotFound(f"{name} not found") from None


def _absent_parent(cluster: Cluster, found: re.Match[str], given: dict[str, Any]) -> str:
    """Return the error about a missing namespace or tenant, with the nearest name; empty without its name."""
    topic, place = given.get("topic"), given.get("place", "")
    of_topic = TopicName.parse(topic).namespace_name if isinstance(topic, str) else ""
    namespace = given.get("namespace") or (place if place.count("/") == 1 else of_topic)
    tenant, kind = given.get("tenant") or namespace.partition("/")[0], found[1].lower()
    name = found[2] or (tenant if kind == "tenant" else namespace)
    if not name:
        return ""
    try:
        admin = cluster.admin()
        known = admin.tenants.list() if kind == "tenant" else admin.namespaces.list(name.partition("/")[0])
    except PulsarException:
        known = []
    return f"there is no {kind} {name}{suggestion(name, known)}"


def _absent(cluster: Cluster, topic: str, subscription: str | None) -> str:
    """Return the error about a missing subscription, or without one a topic, with the nearest name."""
    name = TopicName.parse(topic)
    short = str(name).removeprefix("persistent://")
    text = (
        f"there is no topic {short}"
        if subscription is None
        else f"there is no subscription {subscription} on {short}"
    )
    try:
        topics = cluster.admin().topics
        if subscription is not None:
            return text + suggestion(subscription, topics.stats(topic).subscriptions)
        names = topics.list(name.namespace_name, persistent=name.persistent)
    except PulsarException:
        return text
    return text + suggestion(name.base.local, {TopicName.parse(each).base.local for each in names})


def as_pasted(command: str) -> str:
    """Return a command that is printed for a person to paste, with the connection options in use after each
    ``geminga``. Tokens and passwords are left out."""
    ctx = click.get_current_context(silent=True)
    if ctx is None or not re.match("geminga (?!store )", command):
        return command
    options = ""
    for option in ctx.command.params:
        source, value = ctx.get_parameter_source(str(option.name)), ctx.params.get(str(option.name))
        if not isinstance(option, ConnectionOption) or source not in (COMMANDLINE, _ENVIRONMENT) or not value:
            continue
        if option.name == "admin_url" and _ignores_admin_url(ctx.params.get("service_url")):
            continue
        if option.name == "auth_params" or (
            option.name == "token" and not str(value).startswith(("env:", "file:"))
        ):
            continue
        options += f" {option.opts[0]}" + ("" if option.is_flag else f" {shlex.quote(str(value))}")
    quoted = """'[^']*'|"[^"]*"|"""  # quoted words may have " && " and " -- " inside
    end = re.compile(rf"""((?:{quoted}[^'"])*?)( -- |$)""")
    one = rf"""(?:{quoted}(?! && )[^'"])+"""
    return re.sub(one, lambda each: end.sub(lambda part: part[1] + options + part[2], each[0], 1), command)


connection_options = with_options(
    *(click.option(*names, cls=ConnectionOption, **each) for names, each in (_URL, _ADMIN_URL, *_COMMON))
)
"""Decorator that adds the connection options; the command receives their raw values, for `cluster_of`."""


def side_options(side: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add connection options for one of two clusters: ``--SIDE``, ``--SIDE-admin-url``, ``--SIDE-token``, ...

    The command receives them as ``SIDE_...``, for `cluster_of_side`. Environment variables are ignored: they
    do not name a side.
    """

    options = [
        click.option(
            f"--{side}", f"{side}_service_url", cls=ConnectionOption, metavar="URL",
            help=f"Service URL of the cluster {what}.",
        )
    ]  # fmt: skip
    for names, settings in (_ADMIN_URL, *_COMMON):
        plain = {key: value for key, value in settings.items() if key not in ("envvar", "show_envvar")}
        if names[0] == "--context":
            plain["help"] = "Saved cluster, see `geminga context`."
        options.append(click.option(f"--{side}-{names[0].lstrip('-')}", cls=ConnectionOption, **plain))
    return with_options(*options)


def cluster_of_side(side: str, given: dict[str, Any]) -> Cluster:
    """Return the cluster that the options of `side_options` name; removes them from ``given``."""
    prefix = f"{side}_"
    chosen = {name: given.pop(prefix + name) for name in ("service_url", "admin_url", *_NAMES)}
    if chosen["service_url"] is None and chosen["context"] is None:
        raise click.UsageError(f"--{side} URL or --{side}-context NAME is missing")
    try:
        return check_tls(cluster_of(chosen, prefix), prefix)
    except click.UsageError as error:
        raise click.UsageError(re.sub(r"(?<![\w-])--(?=[a-z])", f"--{side}-", error.message)) from None
    except PulsarException as error:
        error.args = (f"--{side}: {error}",)
        raise


def cluster_of(options: Mapping[str, Any], prefix: str = "") -> Cluster:
    """Return the cluster that connection options, environment and contexts name. ``prefix``: prefix of the
    options' names. Raises `click.UsageError`, and `InvalidConfiguration` for a bad file of contexts."""
    service_url, admin_url, context = options["service_url"], options["admin_url"], options["context"]
    token, tls_cert = options["token"], options["tls_cert"]
    fields: dict[str, Any] = {}
    admin_url = None if _ignores_admin_url(service_url) else admin_url
    addressed = service_url is not None or admin_url is not None
    if _source("context") is _ENVIRONMENT and (_given("service_url") or _given("admin_url")):
        context = None
    if context is not None or not addressed:
        from geminga.cli.contexts import read_contexts

        contexts = read_contexts()
        name = context if context is not None else contexts.current
        fields = dict(contexts.get(name)) if name is not None else {}
        if context is not None and _from_environment("service_url", "admin_url"):
            # An option that names a context wins over addresses of the environment.
            service_url = service_url if _given("service_url") else None
            admin_url = admin_url if _given("admin_url") else None
    if service_url is not None:
        ServiceUrl.parse(service_url)
    if service_url is not None or admin_url is not None:
        fields |= {"service_url": service_url or "", "admin_url": admin_url}
    if token is not None and not _given(f"{prefix}token"):
        # The environment's token is ignored when options give another authentication.
        others = options["token_file"], options["auth_plugin"], tls_cert, "auth_plugin" in fields
        token = None if any(others) else token
    fields |= _authentication(token, options)
    if options["tls_trust_certs"] is not None:
        fields["tls_trust_certs_file_path"] = options["tls_trust_certs"]
    if options["tls_insecure"]:
        fields["tls_allow_insecure_connection"] = True
    if options["tls_any_hostname"]:
        fields["tls_validate_hostname"] = False
    return Cluster.from_dict(fields)


def _ignores_admin_url(service_url: str | None) -> bool:
    """Return whether ``PULSAR_ADMIN_URL`` is ignored, as ``--url`` differs from ``PULSAR_SERVICE_URL``."""
    return (
        _given("service_url")
        and _source("admin_url") is _ENVIRONMENT
        and os.environ.get("PULSAR_SERVICE_URL") != service_url
    )


_OF_TLS = ("tls_trust_certs", "tls_cert", "tls_insecure", "tls_any_hostname")


def check_tls(cluster: Cluster, prefix: str = "") -> Cluster:
    """Return ``cluster``. Raises `click.UsageError` if TLS options are given and no address uses TLS: the
    user would wrongly believe that the connection is encrypted."""
    addresses = [url for url in dict.fromkeys((cluster.service_url, cluster.admin_url)) if url is not None]
    if not any(url.startswith(("pulsar+ssl:", "https:")) for url in addresses):
        unused = [name for name in _OF_TLS if _given(f"{prefix}{name}")]
        if unused:
            options = " and ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise click.UsageError(
                f"{options}: no TLS at {' and '.join(addresses)}, so nothing would be encrypted or checked; "
                "give addresses with pulsar+ssl:// or https://"
            )
    return cluster


COMMANDLINE, _ENVIRONMENT = click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT


def _source(name: str) -> click.core.ParameterSource | None:
    context = click.get_current_context(silent=True)
    return None if context is None else context.get_parameter_source(name)


def _given(name: str) -> bool:
    return _source(name) is COMMANDLINE


def given(*names: str) -> bool:
    """Return whether any of these options is on the command line of the running command."""
    return any(_given(name) for name in names)


def _from_environment(*names: str) -> bool:
    return any(_source(name) is _ENVIRONMENT for name in names)


def _authentication(token: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``auth_plugin`` and ``auth_params`` of the options, or an empty dict without them."""
    token_file, plugin, parameters, certificate, key = (
        options[name] for name in ("token_file", "auth_plugin", "auth_params", "tls_cert", "tls_key")
    )
    ways = {
        "--token": token, "--token-file": token_file, "--auth-plugin": plugin, "--tls-cert": certificate,
    }  # fmt: skip
    named = [name for name, value in ways.items() if value is not None]
    if len(named) > 1:
        raise click.UsageError(f"give only one of {' and '.join(named)}")
    if parameters is not None and plugin is None:
        raise click.UsageError("--auth-params needs --auth-plugin")
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if token is not None:
        if not token.strip():
            raise click.UsageError("--token is empty")
        has_form = token.startswith(("token:", "file:", "env:"))
        if not has_form and names_file(token):
            raise click.UsageError("--token is a path: give it as --token-file, or a token as token:...")
        text = token if has_form else f"token:{token}"
        if text.startswith("env:") and text.removeprefix("env:") not in os.environ:
            raise click.UsageError(f"--token {text}: there is no such environment variable")
        return {"auth_plugin": "token", "auth_params": text}
    if token_file is not None:
        return {"auth_plugin": "token", "auth_params": f"file://{token_file}"}
    if plugin is not None:
        return {"auth_plugin": plugin, "auth_params": parameters}
    if certificate is not None:
        return {"auth_plugin": "tls", "auth_params": f"tlsCertFile:{certificate},tlsKeyFile:{key}"}
    return {}
