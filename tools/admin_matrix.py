"""Every sub-command of ``pulsar-admin`` against two brokers: exit status, HTTP status, shape of the output.

    python tools/admin_matrix.py --pulsar-home HOME --output docs/reference/pulsar-admin.md

starts an Apache Pulsar and a Geminga, runs the lines of `admin_commands` on both and writes the page.
``pulsar-admin`` itself lists its sub-commands: one that is neither run nor left out is an error. All run in
one Java process for each broker, driven through py4j: a command takes milliseconds, without a JVM's start.

Two answers are the same when both commands succeed or both fail, with the same HTTP status; when ours has
every key of Apache Pulsar's JSON, with the same kind of value; and when text has the same lines, numbers
aside.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import http.client
import http.server
import json
import os
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import admin_commands

import geminga
from geminga.testing.apache_pulsar import ApachePulsar

CLUSTER = "standalone"
APACHE_SETTINGS: dict[str, Any] = {
    "forceDeleteNamespaceAllowed": True, "forceDeleteTenantAllowed": True,
    "brokerDeleteInactiveTopicsEnabled": False,
    "statsUpdateFrequencyInSecs": 2, "statsUpdateInitialDelayInSecs": 2,
}  # fmt: skip
"""Settings that Geminga has by default; unused topics are kept, and the broker's statistics are at most some
seconds old."""
SETTLING_SECONDS_MAX = 20.0
"""Time within which Apache Pulsar must read back a policy of a topic, or compute its statistics again."""


# --- pulsar-admin ---


@dataclass(frozen=True)
class Outcome:
    """Result of a command: success, the HTTP status of a failure, and the output."""

    succeeded: bool
    http: int
    output: str


class Proxy:
    """Passes web requests on to a broker, and notes how each was answered: ``pulsar-admin`` does not say."""

    def __init__(self, admin_url: str) -> None:
        self._target = admin_url.removeprefix("http://")
        self.statuses: list[int] = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1
            disable_nagle_algorithm = True

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                connection = http.client.HTTPConnection(proxy._target, timeout=60)
                with contextlib.closing(connection):
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    connection.putheader("Host", proxy._target)
                    for name, value in self.headers.items():
                        if name.lower() not in ("host", "connection"):
                            connection.putheader(name, value)
                    connection.endheaders(body)
                    answer = connection.getresponse()
                    content = answer.read()
                proxy.statuses.append(answer.status)
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                if answer.status != 204:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815

            def log_message(self, format: str, *arguments: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class PulsarAdmin:
    """The commands of one distribution's ``pulsar-admin`` on a broker; ``settings`` as in ``client.conf``."""

    def __init__(self, home: Path, admin_url: str, **settings: str) -> None:
        import py4j.java_gateway as py4j

        java_home = os.environ.get("JAVA_HOME")
        port, token = py4j.launch_gateway(
            java_path=f"{java_home}/bin/java" if java_home else "java",
            classpath=f"{home}/lib/*",
            jarpath=_py4j_jar(),
            die_on_exit=True,
            enable_auth=True,
            javaopts=[
                "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
                "-Dlog4j2.level=OFF",
                "--add-opens", "java.base/java.lang=ALL-UNNAMED",
                "--add-opens", "java.base/sun.net=ALL-UNNAMED",
            ],
        )  # fmt: skip
        parameters = py4j.GatewayParameters(port=port, auth_token=token, auto_convert=True)
        self._gateway = py4j.JavaGateway(gateway_parameters=parameters)
        jvm = self._gateway.jvm
        self._lines = jvm.java.io.ByteArrayOutputStream()
        properties = jvm.java.util.Properties()
        self._proxy = Proxy(admin_url)
        for name, value in {"webServiceUrl": self._proxy.url, **settings}.items():
            properties.setProperty(name, value)
        kind = jvm.java.lang.Class.forName("org.apache.pulsar.admin.cli.PulsarAdminTool")
        self._tool = jvm.org.apache.pulsar.admin.cli.PulsarAdminTool(properties)
        commander = kind.getDeclaredField("commander")
        commander.setAccessible(True)
        self._commander = commander.get(self._tool)
        self._jvm = jvm
        self._run = next(method for method in kind.getDeclaredMethods() if method.getName() == "run")
        self._run.setAccessible(True)

    def commands(self) -> set[str]:
        """``GROUP COMMAND`` of all."""
        groups = self._commander.getSubcommands()
        return {
            f"{group} {command}"
            for group in groups.keySet()
            for command in groups.get(group).getSubcommands().keySet()
        }

    def run(self, arguments: Sequence[str]) -> Outcome:
        jvm = self._jvm
        self._lines.reset()
        # Some commands close what they print to.
        stream = jvm.java.io.PrintStream(self._lines, True)
        jvm.java.lang.System.setOut(stream)
        jvm.java.lang.System.setErr(stream)
        self._commander.setOut(jvm.java.io.PrintWriter(stream, True))
        self._commander.setErr(jvm.java.io.PrintWriter(stream, True))
        words = self._gateway.new_array(jvm.java.lang.String, len(arguments))
        for place, word in enumerate(arguments):
            words[place] = word
        given = self._gateway.new_array(jvm.java.lang.Object, 1)
        given[0] = words
        del self._proxy.statuses[:]
        succeeded = bool(self._run.invoke(self._tool, given))
        refusals = [status for status in self._proxy.statuses if status >= 400]
        return Outcome(succeeded, refusals[-1] if refusals else 0, str(self._lines.toString()))

    def close(self) -> None:
        self._gateway.shutdown()
        self._proxy.close()


def _py4j_jar() -> str:
    import pyspark

    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    return str(jar)


# --- brokers ---


@dataclass
class Place:
    """A broker under test, and the values of the names in braces for it."""

    service_url: str
    admin_url: str
    broker_id: str
    has_old_statistics: bool = False
    """Whether the broker computes the statistics of all topics periodically, and not for each request."""
    names: dict[str, str] = field(default_factory=dict)

    def fill(self, line: str) -> list[str]:
        return shlex.split(line.format(cluster=CLUSTER, broker=self.broker_id, **self.names))

    def addresses(self) -> list[str]:
        """Forms in which the broker's address may occur in responses."""
        own = [url.split("//")[1] for url in (self.service_url, self.admin_url)]
        return [form for name in own for form in (name, name.replace("127.0.0.1", "localhost"))]


AVRO = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
MORE = {**AVRO, "fields": [*AVRO["fields"], {"name": "b", "type": ["null", "int"], "default": None}]}
OTHER = {**AVRO, "fields": [{"name": "a", "type": "string"}, {"name": "c", "type": "int"}]}


def write_schemas(folder: Path) -> None:
    for name, schema in (("avro", AVRO), ("more", MORE), ("other", OTHER), ("broken", {"type": "dance"})):
        document = {"type": "AVRO", "schema": json.dumps(schema), "properties": {"k": "v"}}
        (folder / f"{name}.json").write_text(json.dumps(document))


@contextlib.contextmanager
def clients(place: Place) -> Iterator[Callable[[], None]]:
    """Yield a function that fills the topics and connects clients, which stay until the end."""
    with contextlib.ExitStack() as open_until_the_end:

        def prepare() -> None:
            client = open_until_the_end.enter_context(geminga.Client(place.service_url))
            earliest = geminga.InitialPosition.Earliest
            for topic in (admin_commands.TOPIC, f"non-persistent://{admin_commands.NAMESPACE}/thin"):
                for name, kind in (
                    ("s", geminga.ConsumerType.Shared),
                    ("held", geminga.ConsumerType.Exclusive),
                ):
                    client.subscribe(topic, name, kind, consumer_name="c", initial_position=earliest)
                producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
                for number in range(10):
                    last = producer.send(
                        b"%d" % number, properties={"a": "b"}, partition_key=f"k{number % 3}"
                    )
                if topic == admin_commands.TOPIC:
                    place.names["ledger"] = str(last.ledger_id())
            with client.create_producer(admin_commands.SPARE, batching_enabled=False) as producer:
                client.subscribe(admin_commands.SPARE, "s", initial_position=earliest).close()
                for number in range(5):
                    last = producer.send(b"%d" % number, partition_key="k")
                place.names["spare_ledger"] = str(last.ledger_id())
            with geminga.Admin(place.admin_url) as admin:
                admin.topics.create(f"persistent://{admin_commands.NAMESPACE}/busy-parts", partitions=2)
            parts = f"persistent://{admin_commands.NAMESPACE}/busy-parts"
            client.subscribe(parts, "s", consumer_name="c", initial_position=earliest)
            producer = client.create_producer(parts, producer_name="p", batching_enabled=False)
            for number in range(10):
                producer.send(b"%d" % number)

        yield prepare


# --- comparing ---


def shape(value: Any) -> Any:
    """Keys and kinds of a JSON value, without the values."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        kinds: list[Any] = []
        for item in value:
            if (kind := shape(item)) not in kinds:
                kinds.append(kind)
        return kinds
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "nothing" if value is None else "text"


def lacking(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """Return the differences of a shape of Apache Pulsar that Geminga's lacks or has otherwise."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            line
            for name, item in theirs.items()
            for line in (
                lacking(item, ours[name], f"{path}/{name}")
                if name in ours
                else [f"{path}/{name} is not there"]
            )
        ]
    if isinstance(theirs, list) and isinstance(ours, list):
        if not theirs or not ours:
            return []
        return [
            line
            for item in theirs
            for line in min((lacking(item, other, f"{path}[]") for other in ours), key=len)
        ]
    return [] if theirs == ours else [f"{path or 'the answer'} is {_kind(ours)}, not {_kind(theirs)}"]


def _kind(found: Any) -> str:
    return found if isinstance(found, str) else "an object" if isinstance(found, dict) else "a list"


def _lines(output: str) -> list[str]:
    """Text without what may differ: numbers, the order of lines and of sets, which bundles are loaded."""
    text = re.sub(r"(?<=\[)[\w, ]+(?=\])", lambda found: ", ".join(sorted(found[0].split(", "))), output)
    text = re.sub(r"[\w.:/-]+/0x[0-9a-f]{8}_0x[0-9a-f]{8}", "BUNDLE", text)
    text = re.sub(r"(?m)(PulsarAdminException\$\w+: ).*", r"\1", text)
    text = re.sub(r"\d\d:\d\d:\d\d[.,]\d+|-?\d+(\.\d+)?", "0", text)
    return sorted({line.strip() for line in text.splitlines() if line.strip()})


def _without_others(found: Any) -> Any:
    """An answer about the whole broker, by namespace: a shared one has namespaces of others, too."""
    if not isinstance(found, dict):
        return found
    mine = f"{admin_commands.NAMESPACE.split('/')[0]}/"
    return {name: item for name, item in found.items() if "/" not in name or name.startswith(mine)}


_APACHES_OWN = frozenset({"__change_events", "__compaction", "never"})
"""Topics and subscriptions that Apache Pulsar makes itself, the last one by being asked for it."""


def _without_its_own(found: Any) -> Any:
    """An answer without these, and without what holds nothing else."""
    if not isinstance(found, dict):
        return found
    kept = {}
    for name, item in found.items():
        less = _without_its_own(item)
        if name.rpartition("/")[2] not in _APACHES_OWN and (less != {} or item == {}):
            kept[name] = less
    return kept


def difference(theirs: Outcome, ours: Outcome) -> str | None:
    """In what our answer is not the same as theirs; None when it is."""
    if theirs.succeeded != ours.succeeded:
        word = "succeeds" if theirs.succeeded else "fails"
        return f"{word} on Apache Pulsar alone: {_brief(theirs)} / {_brief(ours)}"
    if not theirs.succeeded:
        return None if theirs.http == ours.http else f"HTTP {theirs.http} / {ours.http}"
    try:
        json_theirs, json_ours = json.loads(theirs.output), json.loads(ours.output)
    except ValueError:
        lines, others = _lines(theirs.output), _lines(ours.output)
        return None if lines == others else f"{_brief(theirs)} / {_brief(ours)}"
    return "; ".join(lacking(shape(_without_its_own(_without_others(json_theirs))), shape(json_ours))) or None


def _brief(outcome: Outcome) -> str:
    text = " ".join(outcome.output.split())
    status = f"HTTP {outcome.http} " if outcome.http else ""
    return status + (text if len(text) <= 160 else text[:160] + "...")


# --- running ---


MARKS = "~^!"
"""Marks at the start of a line; `admin_commands` explains them."""
CONFLICT = 409


def bare(line: str) -> str:
    """A line without its mark."""
    return line.lstrip(MARKS)


def run_all(admin: PulsarAdmin, place: Place, lines: Sequence[str]) -> list[Outcome]:
    """Return the result of each line, in order."""
    found: list[Outcome] = []
    before: dict[str, Outcome] = {}
    with clients(place) as prepare:
        for line in lines:
            if line == "prepare":
                prepare()
                found.append(Outcome(True, 0, ""))
                continue
            words = place.fill(bare(line))
            outcome = admin.run(words)
            if line[0] == "^" and place.has_old_statistics:
                before[line] = outcome
            deadline = time.monotonic() + SETTLING_SECONDS_MAX
            while (
                outcome.http == CONFLICT
                if line[0] == "!"
                else line[0] in MARKS and found[-1].succeeded and outcome == before.get(line)
            ):
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.02)
                outcome = admin.run(words)
            before[line] = outcome
            cleaned = outcome.output
            for address in place.addresses():
                cleaned = cleaned.replace(address, "ADDRESS")
            found.append(Outcome(outcome.succeeded, outcome.http, cleaned))
    return found


@dataclass(frozen=True)
class Row:
    """One line of the play: what both brokers made of it."""

    line: str
    theirs: Outcome
    ours: Outcome

    @property
    def command(self) -> str:
        return " ".join(bare(self.line).split()[:2])

    @property
    def reason(self) -> str | None:
        """Reason of an intended difference."""
        return admin_commands.OTHERWISE.get(bare(self.line))

    @property
    def difference(self) -> str | None:
        return difference(self.theirs, self.ours)


def matrix(home: Path, apache: ApachePulsar, ours: Any, folder: Path) -> tuple[set[str], list[Row]]:
    """Every command there is, and what both brokers made of every line, run side by side."""
    write_schemas(folder)
    places = [
        Place(apache.service_url, apache.admin_url, f"localhost:{apache.web_port}", has_old_statistics=True),
        Place(ours.service_url, ours.admin_url, ours.admin_url.removeprefix("http://")),
    ]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        admins = list(pool.map(lambda place: PulsarAdmin(home, place.admin_url), places))
        for admin in admins:
            stack.callback(admin.close)
        known = admins[0].commands()
        lines = admin_commands.play(known)
        for place in places:
            place.names |= {"files": str(folder), "bundle": "0x80000000_0xc0000000"}
        theirs, own = pool.map(
            lambda pair: run_all(pair[0], pair[1], lines), zip(admins, places, strict=True)
        )
    rows = zip(lines, theirs, own, strict=True)
    return known, [Row(*row) for row in rows if row[0] != "prepare"]


def left_out(command: str) -> str | None:
    """Return why a command has no meaning on one broker; None for a command that is run."""
    for pattern, why in admin_commands.LEFT_OUT.items():
        if fnmatch.fnmatchcase(command, pattern):
            return why
    return None


def unmentioned(known: set[str], rows: Sequence[Row]) -> list[str]:
    """Commands that are neither run nor left out."""
    run = {row.command for row in rows}
    return sorted(command for command in known - run if left_out(command) is None)


def page(known: set[str], rows: Sequence[Row]) -> str:
    """The page of the reference: what every command does on both brokers."""
    by_command: dict[str, list[Row]] = {}
    for row in rows:
        by_command.setdefault(row.command, []).append(row)
    differing = [row for row in rows if row.difference is not None]
    otherwise = {row.command for row in differing}
    missing = [command for command in known if command not in by_command]
    out = [PAGE.format(
        commands=len(known), run=len(by_command), lines=len(rows), same=len(by_command) - len(otherwise),
        otherwise=len(otherwise), left=len(missing),
    )]  # fmt: skip
    out.append(
        "## Answered otherwise, on purpose\n\n"
        "| command line | Apache Pulsar | Geminga | why |\n|---|---|---|---|"
    )
    for row in differing:
        shown = [_cell(_outcome(row.theirs)), _cell(_outcome(row.ours)), row.reason or "**not meant**"]
        out.append(f"| `{bare(row.line)}` | {' | '.join(shown)} |")
    out.append("\n## Left out\n\n| command | why |\n|---|---|")
    shown_groups = set()
    for command in sorted(missing):
        group = command.split()[0]
        name = f"{group} *" if left_out(f"{group} anything") else command
        if name not in shown_groups:
            shown_groups.add(name)
            out.append(f"| `{name}` | {left_out(command)} |")
    for group in dict.fromkeys(command.split()[0] for command in sorted(by_command)):
        out.append(f"\n## {group}\n\n| command | runs | exit status on both | |\n|---|---|---|---|")
        for command in sorted(c for c in by_command if c.split()[0] == group):
            of_it = by_command[command]
            good, bad = (
                sum(row.theirs.succeeded for row in of_it),
                sum(not row.theirs.succeeded for row in of_it),
            )
            status = ", ".join(f"{count} x {word}" for count, word in ((good, "0"), (bad, "1")) if count)
            verdict = "same" if command not in otherwise else "same but for the lines above"
            if all(row.difference is not None for row in of_it):
                verdict = "otherwise, see above"
            out.append(f"| `{command.split()[1]}` | {len(of_it)} | {status} | {verdict} |")
    return "\n".join(out) + "\n"


PAGE = """# pulsar-admin, command by command

Drawn by `tools/admin_matrix.py`. It asks Apache Pulsar 4.0.4's own `pulsar-admin` for its {commands}
sub-commands, runs {run} of them in {lines} command lines, wrong names included, against an Apache Pulsar
4.0.4 and against Geminga, and compares exit status, HTTP status and the shape of the output. {same} do the
same, {otherwise} answer a line otherwise on purpose, {left} are left out. `make interop` runs it all again.
"""


def _outcome(outcome: Outcome) -> str:
    if not outcome.succeeded:
        return f"fails, HTTP {outcome.http}"
    return "answers" if outcome.output.strip() else "done"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pulsar-home", type=Path, required=True, help="an unpacked Apache Pulsar 4.0.4")
    parser.add_argument("--output", type=Path, help="where the page goes")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        ApachePulsar.start(arguments.pulsar_home, Path(name) / "apache", **APACHE_SETTINGS) as apache,
        geminga.embedded(Path(name) / "store") as ours,
    ):
        known, rows = matrix(arguments.pulsar_home, apache, ours, Path(name))
    wrong = [row for row in rows if row.difference is not None and row.reason is None]
    for row in wrong:
        print(f"{row.line}\n    {row.difference}")
    for command in unmentioned(known, rows):
        print(f"{command}: neither run nor left out")
    for line in unneeded(rows):
        print(f"{line}: is the same, and said to be otherwise")
    if arguments.output is not None:
        arguments.output.write_text(page(known, rows))
    return 1 if wrong or unmentioned(known, rows) else 0


def unneeded(rows: Sequence[Row]) -> list[str]:
    """Lines that are said to be answered otherwise, and are not."""
    differing = {bare(row.line) for row in rows if row.difference is not None}
    return sorted(set(admin_commands.OTHERWISE) - differing)


if __name__ == "__main__":
    sys.exit(main())
