"""Reads requests within limits, and stops computing for clients that leave."""

import asyncio
import contextlib
import json

from starlette.responses import Response
from starlette.routing import Route

from remixer_tf.server.fields import parse
from remixer_tf.server.limits import ClientLeft, Refusal
from remixer_tf.server.signatures import as_json


class Receiver:
    """ASGI's `receive` of a request, which knows whether all of it came."""

    def __init__(self, scope, receive):
        self._receive = receive
        # A client that expects "100 Continue" sends nothing before it.
        self._is_whole = b"expect" in dict(scope["headers"])

    async def __call__(self):
        message = await self._receive()
        self._is_whole = not message.get("more_body", False)
        return message

    async def rest(self, end):
        """Reads the rest until a time of the loop, as a request is refused.

        The system resets a connection that is closed before all of it is read, and a
        client that still sends would lose its answer.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                while not self._is_whole:
                    await self()


async def read_body(request, limits):
    """Returns the bytes of a request. Raises a `Refusal` if they are many or late."""
    too_many = Refusal(413, f"A request has at most {limits.max_bytes:,} bytes.")
    codings = request.headers.getlist("content-encoding")
    if any(coding.lower() != "identity" for coding in codings):
        raise Refusal(415, "The request is compressed. Send it as it is.")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limits.max_bytes:
        raise too_many
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                body += message.get("body", b"")
                if len(body) > limits.max_bytes:
                    raise too_many
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise Refusal(
            408,
            f"The request did not arrive within {limits.body_timeout} s.",
            {"Connection": "close"},
        ) from None


async def read_json(request, limits):
    """Returns what the JSON of a request holds."""
    return parse(await read_body(request, limits))


async def unless_left(request, coroutine):
    """Returns what a coroutine returns; cancels it if the client leaves before."""
    work = asyncio.ensure_future(coroutine)
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientLeft
        return work.result()
    finally:
        work.cancel()
        left.cancel()


async def _left(request):
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_response(content, status=200, headers=None):
    """Returns the response with JSON; numbers that are not finite are null."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(
        text.encode("utf-8", "replace"),
        status,
        {"Content-Type": "application/json", **(headers or {})},
    )


def row_json(row, names=None):
    """Returns values of an answer, a dictionary, as JSON has them."""
    return {name: as_json(row[name]) for name in (names or row)}


def model_routes(path, post, get):
    """Returns the routes of models, with their version and without.

    `path` has the part {name}; `post` and `get` are dictionaries from what follows it
    to functions. A route's name has NAME and VERSION in place of the parts.
    """
    found = []
    for beginning in (f"{path}/versions/{{version}}", path):
        for method, functions in (("POST", post), ("GET", get)):
            for ending, function in functions.items():
                whole = beginning + ending
                name = whole.replace("{name}", "NAME").replace("{version}", "VERSION")
                found.append(Route(whole, function, methods=[method], name=name))
    return found
