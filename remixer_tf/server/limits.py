"""Limits of requests, and refusals."""

import dataclasses


def _limit(default, help):
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that requests may ask. Each is an option of `remixer_tf serve`."""

    max_rows: int = _limit(64, "texts of a request, at most")
    max_characters: int = _limit(100_000, "characters of a text, at most")
    max_bytes: int = _limit(2**20, "bytes of a request, at most")
    max_answers: int = _limit(16, "beams, samples or choices of a text, at most")
    max_queue: int = _limit(256, "texts that wait for a model, at most")
    max_streams: int = _limit(
        4, "answers that are streamed at once by a model whose rows keep in step"
    )
    max_searches: int = _limit(
        4,
        "searches kept that a request asks for and start-up did not compile, such as "
        "beams; 0 refuses them",
    )
    timeout: int = _limit(
        60, "seconds until an answer, or the next piece of a stream, is given up"
    )
    body_timeout: int = _limit(20, "seconds in which a request must arrive")


class Refusal(Exception):
    """A request that is not answered.

    Args:
        status: int, the HTTP status.
        message: str, one sentence or two for the client.
        headers: dictionary of str.
    """

    def __init__(self, status, message, headers=None):
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = headers or {}


class ClientLeft(Exception):
    """The client closed its connection before it had its answer."""


def invalid(message):
    """Returns the `Refusal` of a request with a wrong value."""
    return Refusal(422, message)


def try_later(status, message, seconds=1):
    """Returns the `Refusal` of a request that may be sent again in some seconds."""
    return Refusal(status, message, {"Retry-After": str(max(1, round(seconds)))})
