"""``geminga mcp``: commands of this command line as tools of an assistant, by the Model Context Protocol.

Each tool runs its command in a process of its own, with ``--json`` where it has that, and returns what it
prints. Tools that change something exist with ``--allow-changes`` only. A command that asks before it
destroys data asks through the assistant's program; unless its user agrees, nothing is destroyed.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from geminga._version import __version__
from geminga.cli.connecting import ConnectingCommand, ConnectionOption, connection_options, given
from geminga.extras import need

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server import Server, ServerRequestContext

READING = (
    "topics list", "topics stats", "topics policies", "topics permissions", "subscriptions list", "explain",
    "peek", "consume", "schemas get", "schemas versions", "namespaces list", "namespaces policies",
    "tenants list",
)  # fmt: skip
"""Commands that change nothing."""
CHANGING = (
    "produce", "topics create", "topics delete", "subscriptions create", "subscriptions delete",
    "subscriptions skip", "subscriptions clear", "subscriptions reset", "subscriptions expire",
    "subscriptions redrive",
)  # fmt: skip
LEFT_OUT = {
    "consume": ("subscription", "kind", "follow"),  # without a subscription it only reads
    "produce": ("lines",),
}
"""Parameters that a tool does not have, by command; all lack ``--yes`` and those of the connection."""
DEFAULTS = {"consume": {"count": 100}}
OUTPUT_MAX = 200_000
"""Bytes of output that a tool returns."""
TIME_LIMIT_SECONDS = 120.0
_QUESTION = " [y/N]: "
_NO_FIELDS: Any = {"type": "object", "properties": {}}
_ANSWERS_BY_RETRY = "2026-07-28"
"""Since this version of the protocol a question is answered by calling the tool again."""


class CommandTool(NamedTuple):
    """A command as a tool."""

    words: tuple[str, ...]
    parameters: dict[str, click.Parameter]
    text: str
    changes: bool
    has_json: bool

    @property
    def name(self) -> str:
        return "_".join(self.words).replace("-", "_")

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of its arguments."""
        properties = {name: _schema(each) for name, each in self.parameters.items()}
        required = [name for name, each in self.parameters.items() if each.required]
        return {
            "type": "object", "properties": properties, "required": required, "additionalProperties": False
        }  # fmt: skip

    def arguments(self, given: Mapping[str, Any]) -> list[str]:
        """Return the command line for arguments. Raises `ValueError` for an unknown, missing or wrong one."""
        unknown = sorted(given.keys() - self.parameters.keys())
        if unknown:
            raise ValueError(f"{unknown[0]} is not an argument of {self.name}: {', '.join(self.parameters)}")
        options, words = ["--json"] if self.has_json else [], list[str]()
        for name, each in self.parameters.items():
            value = given.get(name)
            if value is None:
                value = DEFAULTS.get(" ".join(self.words), {}).get(name)
            values = value if isinstance(value, list) else [value]
            is_flag = isinstance(each, click.Option) and each.is_flag
            if is_flag and value not in (True, False, None):
                raise ValueError(f"{name} {value!r} is not true or false")
            if value is None or value is False:
                if each.required:
                    raise ValueError(f"{name} is missing")
            elif isinstance(each, click.Argument):
                words += map(str, values)
            elif is_flag:
                options.append(each.opts[-1])
            else:
                options += [f"{max(each.opts, key=len)}={one}" for one in values]
        return [*self.words, *options, "--", *words]


def _schema(parameter: click.Parameter) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": "string"}
    if isinstance(parameter, click.Option) and parameter.is_flag:
        kind = {"type": "boolean"}
    elif isinstance(parameter.type, click.types.IntParamType):
        kind = {"type": "integer"}
    elif isinstance(parameter.type, click.Choice):
        kind = {"type": "string", "enum": list(parameter.type.choices)}
    if parameter.multiple or parameter.nargs == -1:
        kind = {"type": "array", "items": kind}
    help_text = getattr(parameter, "help", None) or getattr(parameter, "metavar", None)
    return {**kind, "description": help_text} if help_text else kind


def command_tools(allow_changes: bool) -> dict[str, CommandTool]:
    """Return the tools by name."""
    from geminga.cli.main import command as root

    tools = {}
    context = click.Context(root, info_name="geminga")
    for line in READING + (CHANGING if allow_changes else ()):
        words = tuple(line.split())
        found: click.Command | None = root
        for word in words:
            assert isinstance(found, click.Group)
            found = found.get_command(context, word)
        assert found is not None, line
        own = {str(each.name): each for each in found.params if not isinstance(each, ConnectionOption)}
        has_json = own.pop("as_json", None) is not None
        for name in ("yes", *LEFT_OUT.get(line, ())):
            own.pop(name, None)
        tool = CommandTool(words, own, click.unstyle(found.help or ""), line in CHANGING, has_json)
        tools[tool.name] = tool
    return tools


class Finished(NamedTuple):
    """A command that has ended."""

    status: int
    output: str
    errors: str
    left_out: int = 0
    """Bytes of its output that are not in ``output``."""

    @property
    def question(self) -> str | None:
        """The question for which it found no answer on its standard input, with all that it wrote before: a
        name in it may have line breaks."""
        asked, mark, _ = self.errors.rpartition(_QUESTION)
        return asked.strip() if self.status and mark else None


async def run_command(
    arguments: list[str], connection: list[str], environment: Mapping[str, str]
) -> Finished:
    """Run a command of this command line; it is killed at the time limit, or if the call is cancelled."""
    place = arguments.index("--")
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "geminga.cli.main", *arguments[:place], *connection, *arguments[place:],
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
        )  # fmt: skip
    except (OSError, ValueError) as error:  # too long for a command line, or with a NUL
        return Finished(-1, "", f"no process for the command: {error}")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TIME_LIMIT_SECONDS):
            (output, left_out), (errors, _) = await asyncio.gather(
                _beginning(process.stdout), _beginning(process.stderr)
            )
            status = await process.wait()
    except TimeoutError:
        return Finished(-1, "", f"the command did not end within {TIME_LIMIT_SECONDS:g} s")
    finally:
        if process.returncode is None:
            process.kill()
    return Finished(status, output, errors, left_out)


async def _beginning(stream: asyncio.StreamReader) -> tuple[str, int]:
    """Read a stream to its end; return its first `OUTPUT_MAX` bytes, and the number of those that follow."""
    kept, size = bytearray(), 0
    while part := await stream.read(1 << 16):
        kept += part[: OUTPUT_MAX - len(kept)]
        size += len(part)
    return kept.decode("utf-8", "replace"), size - len(kept)


class ToolServer:
    """Answers the requests of an assistant's program."""

    def __init__(self, allow_changes: bool, connection: list[str], environment: Mapping[str, str]) -> None:
        self.tools = command_tools(allow_changes)
        self._connection = connection
        self._environment = environment

    def server(self) -> Server[Any]:
        """Return the server, to be run on a pair of streams."""
        from mcp.server import Server

        return Server(
            "geminga", version=__version__, on_list_tools=self.list_tools, on_call_tool=self.call_tool
        )

    async def list_tools(self, context: ServerRequestContext[Any], params: Any) -> types.ListToolsResult:
        """Answer ``tools/list``."""
        import mcp_types as types

        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=each.name, description=each.text, input_schema=each.schema(),
                    annotations=types.ToolAnnotations(
                        read_only_hint=not each.changes, destructive_hint=each.changes, open_world_hint=False
                    ),
                )
                for each in self.tools.values()
            ]
        )  # fmt: skip

    async def call_tool(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Answer ``tools/call``."""
        import mcp_types as types

        tool = self.tools.get(params.name)
        if tool is None:
            return _failed(f"there is no tool {params.name}; it may need geminga mcp --allow-changes")
        try:
            arguments = tool.arguments(params.arguments or {})
        except ValueError as error:
            return _failed(str(error))
        found = await self._run(arguments)
        question = found.question
        if question is None or not tool.changes:
            return _result(tool, found)
        ask = types.ElicitRequestFormParams(message=question, requested_schema=_NO_FIELDS)
        answer: Any = (params.input_responses or {}).get("confirm")
        can_ask = types.ClientCapabilities(elicitation=types.ElicitationCapability())
        if not context.session.check_client_capability(can_ask):
            place = arguments.index("--")
            known = [each for each in self._connection if not each.startswith(("--token=", "--auth-params="))]
            shown = shlex.join(["geminga", *arguments[:place], *known, *arguments[place:]])
            return _failed(f"{question} This program cannot ask its user; to do it: {shown}")
        if answer is None and context.protocol_version >= _ANSWERS_BY_RETRY:
            return types.InputRequiredResult(input_requests={"confirm": types.ElicitRequest(params=ask)})
        if answer is None:
            answer = await context.session.elicit_form(question, _NO_FIELDS)
        if answer.action != "accept":
            return _failed("the user has refused: nothing was changed")
        place = arguments.index("--")
        return _result(tool, await self._run([*arguments[:place], "--yes", *arguments[place:]]))

    async def _run(self, arguments: list[str]) -> Finished:
        return await run_command(arguments, self._connection, self._environment)


def _failed(text: str) -> types.CallToolResult:
    import mcp_types as types

    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _result(tool: CommandTool, found: Finished) -> types.CallToolResult:
    """Return what a command printed. What a reading one had read before an error, such as fewer messages than
    asked for, is a result."""
    import mcp_types as types

    text = found.output
    if found.left_out:
        text += f"\n... {found.left_out:,} more bytes: ask for less"
    if found.status:
        text += found.errors.strip() or f"exit status {found.status}"
        if tool.changes or not found.output:
            return _failed(text)
    return types.CallToolResult(content=[types.TextContent(text=text or found.errors.strip() or "nothing")])


@click.command("mcp", cls=ConnectingCommand)
@click.option("--allow-changes", is_flag=True, help="Also offer tools that publish, create, move and delete.")
@connection_options
def command(allow_changes: bool, **chosen: Any) -> None:
    """Serve tools for assistants on standard input and output (Model Context Protocol).

    The tools are commands of this command line, with the address and the credentials given here. They read
    topics, statistics, backlogs, explanations, messages and schemas; --allow-changes adds those that change.
    """
    need("mcp", "mcp")
    from mcp.server.stdio import stdio_server

    context = click.get_current_context()
    environment = {}
    token = chosen["token"]
    if token and given("token") and not token.startswith(("env:", "file:")):
        # Other local users can see options, but not the environment. An option names it, so that it wins over
        # the token of a context.
        environment["GEMINGA_MCP_TOKEN"] = token.removeprefix("token:")
        chosen["token"] = "env:GEMINGA_MCP_TOKEN"
    options = {each.name: each for each in context.command.params if isinstance(each, ConnectionOption)}
    connection = [
        options[name].opts[0] if value is True else f"{options[name].opts[0]}={value}"
        for name, value in chosen.items()
        if value and given(name)
    ]
    server = ToolServer(allow_changes, connection, environment).server()

    async def serve() -> None:
        async with stdio_server() as (receive, send):
            await server.run(receive, send, server.create_initialization_options())

    asyncio.run(serve())
