"""The server of connections, with a limit of time for a request's first lines."""

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from remixer_tf.server.requests import json_response


class Connection(H11Protocol):
    """A connection that is closed if a request's first lines do not come in time.

    If there are `most` already, its request is refused.
    """

    seconds, most = 20, None
    _closing = None

    def connection_made(self, transport):
        super().connection_made(transport)
        if self.most is not None and len(self.connections) > self.most:
            self.app_state = self.app_state | {"is_too_many": True}
        self._start()

    def data_received(self, data):
        try:
            super().data_received(data)
        except h11.ProtocolError:  # bytes that are no HTTP, after a request
            self.transport.abort()
            return
        answers = self.cycle is not None and not self.cycle.response_complete
        if not answers:
            self._start()
        elif self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def send_400_response(self, msg):
        """Refuses bytes that are no HTTP, in the form of other refusals."""
        answer = json_response({"error": msg}, 400, {"Connection": "close"})
        headers = answer.raw_headers
        start = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (start, h11.Data(data=answer.body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def connection_lost(self, exc):
        super().connection_lost(exc)
        if self._closing is not None:
            self._closing.cancel()

    def _start(self):
        """Closes the connection soon, unless a whole request comes."""
        if self._closing is None:
            self._closing = self.loop.call_later(self.seconds, self.transport.close)


def http_server(app, grace):
    """Returns the `uvicorn.Server` of an ASGI application.

    It answers what it took for `grace` seconds at its end.
    """
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace,
    )
    return uvicorn.Server(config)
