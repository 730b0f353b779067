"""The server as an ASGI application: routes, access, and the forms of errors."""

import asyncio
import hmac
import pathlib
import time

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

from remixer_tf.server import calls, completions, open_inference, tf_serving
from remixer_tf.server.limits import ClientLeft, Refusal, try_later
from remixer_tf.server.metrics import Metrics
from remixer_tf.server.openapi import openapi
from remixer_tf.server.requests import Receiver, json_response
from remixer_tf.server.served import Failure

_PAGE = pathlib.Path(__file__).parent / "page"
_PAGE_FILES = [x for x in _PAGE.iterdir() if x.suffix in (".html", ".css", ".js")]
_OF_PAGE = {f"/{file.name}": file for file in _PAGE_FILES}
_OPEN = ("/", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")


class Server:
    """Answers requests by models.

    Args:
        models, limits: the `Models` and `Limits`, attributes.
        token: str that requests must have; None for none.
        watch: seconds between looks for newer versions; None to keep those there are.
        say: function of a line for the log, an attribute.

    Attributes:
        error: what loading a model raised; None before.
        on_failure: function that is called then.
        metrics: the `Metrics`.
        has_token: bool, whether requests must have one.
    """

    def __init__(self, models, limits, token=None, watch=None, say=print):
        self.models, self.limits = models, limits
        self._token = None if token is None else token.encode()
        self.has_token = token is not None
        self._watch, self.say = watch, say
        self.metrics = Metrics(models.ready)
        models.observer = self._observer
        self.error, self.on_failure = None, lambda: None
        self._tasks = []
        routes = [
            Route("/", page, name="/"),
            Route("/healthz", healthy, name="/healthz"),
            Route("/readyz", ready, name="/readyz"),
            Route("/metrics", metrics, name="/metrics"),
            Route("/openapi.json", openapi, name="/openapi.json"),
        ]
        for name, call in calls.ROUTES.items():
            routes.append(Route(f"/{name}", call, methods=["POST"], name=f"/{name}"))
        for protocol in (tf_serving, open_inference, completions):
            routes += protocol.routes()
        routes += [Route(path, page_file, name="/FILE") for path in _OF_PAGE]
        self._router = Router(routes, redirect_slashes=False)

    def _observer(self, model):
        count = self.metrics.observer(model)

        def observe(rows, seconds, error):
            count(rows, seconds, error)
            if error is not None:
                name = type(error).__name__
                self.say(f"{model}: {name} of {rows} texts together, now in halves")

        return observe

    def start(self):
        """Begins to load the models, in the running event loop."""
        self._tasks.append(asyncio.create_task(self._load()))

    async def _load(self):
        try:
            await self.models.load()
        except Exception as error:
            self.error = error
            self.on_failure()
            return
        self.say(f"ready: {', '.join(self.models.names())}")
        if self._watch:
            self._tasks.append(asyncio.create_task(self.models.watch(self._watch)))

    async def stop(self):
        """Ends what `start` began."""
        for task in self._tasks:
            task.cancel()
        for served in self.models.ready():
            served.close()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        scope["app"] = self
        start, status = time.monotonic(), 0
        body, body_end = Receiver(scope, receive), start + self.limits.body_timeout

        async def noting(message):
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            try:
                async with asyncio.timeout(self.limits.body_timeout):
                    await send(message)
            except TimeoutError:  # The client does not read.
                raise ClientLeft from None

        response = None
        try:
            if scope.get("state", {}).get("is_too_many"):
                raise Refusal(
                    503,
                    "The server has too many connections. Ask again later.",
                    {"Retry-After": "1", "Connection": "close"},
                )
            self._check_token(scope)
            await self._router(scope, body, noting)
        except Refusal as refusal:
            response = refused(scope["path"], refusal)
            if isinstance(refusal, Failure):
                self.say(f"{route_of(scope)}: {refusal.kind} while computing")
        except HTTPException as error:
            response = refused(scope["path"], _of_routing(scope, error))
        except asyncio.CancelledError:  # The time to end in is over.
            ending = try_later(503, "The server is ending. Ask again later.", 5)
            response, body_end = refused(scope["path"], ending), start
        except ClientLeft:
            status = status or 499
        except Exception as error:
            self.say(f"{route_of(scope)}: {type(error).__name__} while answering")
            response = refused(scope["path"], Failure(type(error).__name__))
        if response is not None and not status:
            await body.rest(body_end)
            await response(scope, receive, noting)
        route = route_of(scope)
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(time.monotonic() - start)

    def _check_token(self, scope):
        """Raises a `Refusal` unless a request has the token, or needs none."""
        path = scope["path"]
        if self._token is None or path in _OPEN or path in _OF_PAGE:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        same = hmac.compare_digest(token.strip(), self._token)
        if not same or scheme.lower() != b"bearer":
            raise Refusal(
                401,
                "The request needs the server's token: Authorization: Bearer TOKEN.",
                {"WWW-Authenticate": "Bearer"},
            )

    async def _lifespan(self, receive, send):
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def route_of(scope):
    """Returns the route of a request as metrics name it, not what the client wrote."""
    route = scope.get("route")
    return route.name if route is not None else "unknown"


def refused(path, refusal):
    """Returns the response of a `Refusal`, in the form of the path's protocol."""
    content = {"error": refusal.message}
    if path in ("/v1/completions", "/v1/models"):
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = "invalid_request_error" if refusal.status < 500 else "server_error"
        content["error"] = {
            "message": refusal.message,
            "type": kinds.get(refusal.status, kind),
            "param": None,
            "code": None,
        }
    return json_response(content, refusal.status, refusal.headers)


def _of_routing(scope, error):
    """The `Refusal` of an unknown route or method."""
    path = f"{scope['path']!r:.80}"
    if error.status_code == 405:
        methods = (error.headers or {}).get("Allow", "").split(", ")
        allowed = ", ".join(sorted(methods))
        text = f"{path} takes {allowed}."
        return Refusal(405, text, {"Allow": allowed} if allowed else None)
    text = f"There is nothing at {path}. GET /openapi.json lists what there is."
    return Refusal(error.status_code, text)


async def healthy(request):
    """Whether the process answers."""
    return PlainTextResponse("ok\n")


async def ready(request):
    """Whether all models are loaded and warmed up."""
    if not request.app.models.all_ready():
        raise try_later(503, "Models are being loaded.", 5)
    return PlainTextResponse("ready\n")


async def metrics(request):
    """What Prometheus reads."""
    text = request.app.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def page(request):
    """The page."""
    return FileResponse(_OF_PAGE["/index.html"], headers=_PAGE_HEADERS)


async def page_file(request):
    """A file of the page."""
    return FileResponse(_OF_PAGE[request.scope["path"]], headers=_PAGE_HEADERS)


_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src "
    "'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
