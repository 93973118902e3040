"""Single messages published from the console, encoded by the schema of their topic."""

import asyncio
import json
from typing import Final

from aiohttp import web

import geminga
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import answer, object_body
from geminga.console.redriving import Arguments, Json, arguments_for, text_of
from geminga.errors import PulsarException
from geminga.schema_info import SchemaInfo, SchemaType

SECONDS_MAX: Final = 10
"""Longest time to connect, and to wait for the receipt."""
STEPS_MAX: Final = 2_000_000
"""Maximum steps that checking a value may take: nothing else runs in the process meanwhile."""
_AS_TEXT: Final = frozenset((SchemaType.NONE, SchemaType.BYTES, SchemaType.STRING))


async def publish(request: web.Request, arguments: Arguments | None = None) -> web.Response:
    """Publish a message, or with ``preview`` only check it; return its ``id`` and the schema's ``type``.

    The body names ``topic`` and ``payload``: a text, or JSON for a topic with a schema of fields or numbers.
    It may have ``key`` and ``properties``. ``arguments`` as of `redrive`. Raises `AdminRefusal`: 412 for a
    value that the schema does not allow, with its field.
    """
    from geminga.asyncio import Client

    body = await object_body(request)
    topic, payload, key = text_of(body, "topic"), text_of(body, "payload"), text_of(body, "key", None)
    properties = body.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(each, str) for each in properties.values()):
        raise AdminRefusal(412, f"properties={properties!r} is not allowed; allowed: texts by name")
    of_client, _ = arguments_for(request, arguments, "geminga produce")
    found: Json = {"id": None}
    try:
        async with Client(**of_client, operation_timeout_seconds=SECONDS_MAX) as client:
            info = await client.get_schema_info(topic)
            content = await asyncio.to_thread(_encoded, payload, info)  # a definition may be large
            found["type"] = None if info is None else SchemaType(info.type).name
            if not body.get("preview"):
                producer = await client.create_producer(
                    topic, schema=geminga.schema.AutoProduceBytesSchema(),
                    send_timeout_millis=SECONDS_MAX * 1000,
                )  # fmt: skip
                sent = await producer.send(content, partition_key=key, properties=properties)
                found["id"] = f"{sent.ledger_id()}:{sent.entry_id()}"
    except (ValueError, TypeError, RecursionError) as error:
        raise AdminRefusal(412, str(error)) from None
    except (PulsarException, OSError) as error:
        raise AdminRefusal(409, str(error)) from None
    return answer(found)


def _encoded(text: str, info: SchemaInfo | None) -> bytes:
    """Return the payload of a text. Raises `ValueError` or `TypeError` for one that does not fit."""
    from geminga.schema.from_json import json_encoder, steps_counter

    if info is None or info.type in _AS_TEXT:
        return text.encode()
    encode = json_encoder(info)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the value must be JSON ({SchemaType(info.type).name} schema): {error}") from None
    if steps_counter(info)(value) > STEPS_MAX:
        raise ValueError("the value is too large or too deep to be checked here: use geminga produce")
    return encode(value)
