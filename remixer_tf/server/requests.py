"""Reads requests within limits, and stops computing for clients that leave."""

import asyncio
import json

from starlette.responses import Response
from starlette.routing import Route

from remixer_tf.server.fields import parse
from remixer_tf.server.limits import ClientLeft, Refusal
from remixer_tf.server.signatures import as_json


async def read_body(request, limits):
    """Returns the bytes of a request. Raises a `Refusal` if they are many or late."""
    too_many = Refusal(413, f"A request has at most {limits.max_bytes:,} bytes.")
    coding = request.headers.get("content-encoding", "identity")
    if coding != "identity":
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
