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
from geminga.cli.connecting import ConnectingCommand, ConnectionOption, connection_options
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
"""Characters of output that a tool returns."""
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
        """Return the command line for arguments. Raises `ValueError` for an unknown or missing one."""
        unknown = sorted(given.keys() - self.parameters.keys())
        if unknown:
            raise ValueError(f"{unknown[0]} is no argument of {self.name}: {', '.join(self.parameters)}")
        options, words = ["--json"] if self.has_json else [], []
        for name, each in self.parameters.items():
            value = given.get(name, DEFAULTS.get(" ".join(self.words), {}).get(name))
            if value is None or value is False:
                if each.required:
                    raise ValueError(f"{name} is missing")
            elif isinstance(each, click.Argument):
                words += [str(one) for one in (value if isinstance(value, list) else [value])]
            elif isinstance(each, click.Option) and each.is_flag:
                options.append(each.opts[-1])
            else:
                option = max(each.opts, key=len)
                options += [f"{option}={one}" for one in (value if isinstance(value, list) else [value])]
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

    @property
    def question(self) -> str | None:
        """The question for which it found no answer on its standard input."""
        last = self.errors.rpartition(_QUESTION)[0].rpartition("\n")[2]
        return last if self.status and _QUESTION in self.errors else None


async def run_command(
    arguments: list[str], connection: list[str], environment: Mapping[str, str]
) -> Finished:
    """Run a command of this command line; it is killed at the time limit, or if the call is cancelled."""
    place = arguments.index("--")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "geminga.cli.main", *arguments[:place], *connection, *arguments[place:],
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )  # fmt: skip
    try:
        output, errors = await asyncio.wait_for(process.communicate(), TIME_LIMIT_SECONDS)
    except TimeoutError:
        return Finished(-1, "", f"the command did not end within {TIME_LIMIT_SECONDS:g} s")
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return Finished(process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


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
        if question is None:
            return _result(found)
        ask = types.ElicitRequestFormParams(message=question, requested_schema=_NO_FIELDS)
        answer: Any = (params.input_responses or {}).get("confirm")
        can_ask = types.ClientCapabilities(elicitation=types.ElicitationCapability())
        if not context.session.check_client_capability(can_ask):
            shown = shlex.join(["geminga", *self._connection, *arguments])
            return _failed(f"{question} This program cannot ask its user; to do it: {shown}")
        if answer is None and context.protocol_version >= _ANSWERS_BY_RETRY:
            return types.InputRequiredResult(input_requests={"confirm": types.ElicitRequest(params=ask)})
        if answer is None:
            answer = await context.session.elicit_form(question, _NO_FIELDS)
        if answer.action != "accept":
            return _failed("the user has refused: nothing was changed")
        place = arguments.index("--")
        return _result(await self._run([*arguments[:place], "--yes", *arguments[place:]]))

    async def _run(self, arguments: list[str]) -> Finished:
        return await run_command(arguments, self._connection, self._environment)


def _failed(text: str) -> types.CallToolResult:
    import mcp_types as types

    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _result(found: Finished) -> types.CallToolResult:
    import mcp_types as types

    if found.status:
        return _failed(found.errors.strip() or f"exit status {found.status}")
    text = found.output
    if len(text) > OUTPUT_MAX:
        text = f"{text[:OUTPUT_MAX]}\n... {len(text) - OUTPUT_MAX:,} more characters: ask for less"
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
    environment = {"PULSAR_TOKEN": chosen.pop("token")} if chosen.get("token") else {}
    options = {each.name: each for each in context.command.params if isinstance(each, ConnectionOption)}
    connection = [
        options[name].opts[0] if value is True else f"{options[name].opts[0]}={value}"
        for name, value in chosen.items()
        if value and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    server = ToolServer(allow_changes, connection, environment).server()

    async def serve() -> None:
        async with stdio_server() as (receive, send):
            await server.run(receive, send, server.create_initialization_options())

    asyncio.run(serve())
