"""Sends what no client should: `python -m tests.server.hostile URL MODEL NUMBER`.

Each answer must be a 4xx of one line, or none where the client closed its connection or
left the request unfinished.
"""

import collections
import json
import random
import re
import socket
import sys
import time
import urllib.parse

PATHS = ("/generate", "/score", "/classify", "/embed", "/answer", "/v1/completions")
SECONDS = 15


def attack(url, model, number, seed=0):
    """Sends `number` requests, and returns how often each status came, a Counter.

    Status 0 is no answer. Raises an AssertionError for another answer than a 4xx.
    """
    place = urllib.parse.urlsplit(url)
    address = (place.hostname, place.port)
    rng, found = random.Random(seed), collections.Counter()
    kinds = [_bodies, _bodies, _bodies, _routes, _heads, _cut_off]
    paths = [*PATHS, f"/v1/models/{model}:predict", f"/v2/models/{model}/infer"]
    for i in range(number):
        kind = kinds[i % len(kinds)]
        request, may_be_silent = kind(rng, rng.choice(paths), model)
        status = _send(address, request, may_be_silent, leaves=kind is _cut_off)
        found[status] += 1
    return found


def drip(url, path="/generate", seconds=3):
    """Sends a byte a second of a request's head, and of a body: what is answered."""
    place = urllib.parse.urlsplit(url)
    answers = []
    for start in (b"", _head("POST", path, 1000)):
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(start)
            client.settimeout(1)
            end = time.monotonic() + seconds
            answer = None
            while answer is None and time.monotonic() < end:
                try:
                    client.sendall(b"P")
                    answer = b"".join(iter(lambda: client.recv(65536), b""))
                except TimeoutError:
                    continue
                except OSError:
                    answer = b""
            answers.append(answer)
    return answers


def _send(address, request, may_be_silent, leaves):
    """Sends bytes, and returns the status of the answer, checked; 0 without one."""
    with socket.create_connection(address, timeout=SECONDS) as client:
        answer = b""
        try:
            client.sendall(request)
            if leaves and len(request) % 2:
                return 0  # closes at once
            if may_be_silent:
                client.shutdown(socket.SHUT_WR)  # half-closed
            while len(answer) < 2**20 and (part := client.recv(65536)):
                answer += part
        except (ConnectionError, BrokenPipeError):
            pass  # It answers before all has come, and closes.
        except TimeoutError:
            raise AssertionError(f"no answer to {request[:200]!r}") from None
    if not answer:
        assert may_be_silent, f"silence: {request[:200]!r}"
        return 0
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(re.match(rb"HTTP/1.1 (\d+) [A-Z]", head)[1])
    text = body.decode()
    assert json.loads(text)["error"], text
    assert 400 <= status < 500, (request[:300], answer[:300])
    assert text.count("\n") == 0 and "Traceback" not in text, (request[:300], text)
    return status


def _head(method, path, length, *more):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close"]
    return "\r\n".join([*lines, f"Content-Length: {length}", *more, "", ""]).encode()


def _bodies(rng, path, model):
    """A whole request with a body that says nothing that can be answered."""
    value = rng.choice(
        [
            *(None, 1, -1, 1e308, True, [], {}, [[]], [{}], {"b64": 3}, 10**400),
            *("\ud800", ["a", 1], {"a": {"b": {"c": []}}}, [None] * 100, "x" * 300_000),
        ]
    )
    name = rng.choice(["inputs", "targets", "prompt", "instances", "max_length", "x"])
    body = {name: value, "no_such_field": 1}
    text = json.dumps(body).encode()
    text = rng.choice(
        [
            *(text, text, text, text[:-1], b"", b"\xff\xfe", b"\x00", b"{", b"null"),
            *(b"NaN", b'{"inputs": NaN}', b'{"inputs": -Infinity}', b"[" * 2000),
            b'{"a":' * 3000 + b"1" + b"}" * 3000,
            b'{"inputs": "' + bytes(rng.randrange(128, 256) for _ in range(9)) + b'"}',
            b'"' + b"\\u0000" * 100 + b'"',
            b"9" * 5000,
            b" " * rng.choice([100, 3_000_000, 10_000_000]),
        ]
    )
    return _head("POST", path, len(text)) + text, False


def _routes(rng, path, model):
    """An unknown route, method, model or version."""
    method, path = rng.choice(
        [
            *(("DELETE", path), ("PUT", path), ("FOO", path), ("PATCH", "/")),
            *(("GET", f"{path}x"), ("GET", "/../../etc/passwd"), ("GET", "//")),
            ("GET", "/" + "a" * rng.randrange(1, 8000)),
            ("GET", "/%00%ff%2e%2e/"),
            ("GET", "/page/../app.py"),
            ("GET", "/app.py"),
            ("POST", f"/v1/models/{model}x:predict"),
            ("POST", f"/v1/models/{model}/versions/-1:predict"),
            ("POST", f"/v1/models/{model}:classify"),
            ("GET", f"/v2/models/{model}/versions/no"),
            ("GET", "/v1/models/" + "%F0%9F%98%80" * 50),
            ("CONNECT", "example.org:443"),
            ("OPTIONS", "*"),
        ]
    )
    return _head(method, path, 2) + b"{}", False


def _heads(rng, path, model):
    """A request with a wrong head, or something that is hardly HTTP."""
    head = rng.choice(
        [
            *(b"\x00" * 50, b"GET\r\n\r\n", b"GET /x HTTP/9.9\r\n\r\n", b"\r\n" * 200),
            bytes(rng.randrange(256) for _ in range(200)) + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",  # no host
            _head("POST", path, -5) + b"{}",
            _head("POST", path, "x") + b"{}",
            _head("POST", path, 10**30) + b"{}",
            _head("POST", path, 2, "Content-Length: 3") + b"{}",
            _head("POST", path, 2, "Content-Encoding: gzip") + b"{}",
            _head("POST", path, 2, "Host: y") + b"{}",
            _head("POST", f"{path}\xff", 2) + b"{}",
            _head("POST", path, 2, "Inference-Header-Content-Length: 9") + b"{}",
            _head("POST", path, 2, "X: " + "a" * 100_000) + b"{}",
            _head("POST", path, 2, *[f"X{i}: a" for i in range(5000)]) + b"{}",
            f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            "\r\nzz\r\n{}\r\n0\r\n\r\n".encode(),
            f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n".encode(),
        ]
    )
    return head, True


def _cut_off(rng, path, model):
    """A request that is left before it is whole, or half-closed."""
    body = json.dumps({"inputs": "a" * rng.randrange(500), "x": 1}).encode()
    request = _head("POST", path, len(body) + 50) + body
    return request[: rng.randrange(1, len(request))], True


if __name__ == "__main__":
    print(*sorted(attack(sys.argv[1], sys.argv[2], int(sys.argv[3])).items()))
