"""A server goes on answering, whatever is sent to it."""

import concurrent.futures
import http.client
import json
import socket
import time

import httpx
import pytest

from remixer_tf.server.connection import Connection
from remixer_tf.server.limits import Limits
from tests.server.conftest import listening, of_echo
from tests.server.hostile import attack, drip


def ask(url):
    found = httpx.post(f"{url}/generate", json={"inputs": "abc"}, timeout=20)
    assert found.json()["outputs"] == "ABC"


@pytest.mark.parametrize(
    "number", [120, pytest.param(20_000, marks=pytest.mark.slower)]
)
def test_hostile_requests_are_refused_in_one_line(number, capfd):
    with listening([of_echo()]) as url:
        found = attack(url, "echo", number)
        ask(url)
        assert found[400] and found[404] and found[405] and found[413] and found[422]
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err + printed.out


@pytest.mark.parametrize(
    ("path", "status"), [("/generate", 413), ("/nothing", 404), ("/healthz", 405)]
)
def test_who_sends_all_before_reading_gets_an_answer(path, status):
    with listening([of_echo()]) as url:
        place, body = httpx.URL(url), b" " * 10_000_000
        client = http.client.HTTPConnection(place.host, place.port, timeout=20)
        client.request("POST", path, body, {"Connection": "close"})
        response = client.getresponse()
        assert response.status == status
        assert json.load(response)["error"]
        ask(url)


def test_connections_past_the_most_are_refused(monkeypatch):
    monkeypatch.setattr(Connection, "most", 2)
    with listening([of_echo()]) as url:
        place, body = httpx.URL(url), {"model": "echo", "prompt": "a"}
        idle = [socket.create_connection((place.host, place.port)) for _ in range(2)]
        for path in ("/v1/completions", "/generate"):
            refused = httpx.post(url + path, json=body)
            assert refused.status_code == 503 and refused.headers["Retry-After"] == "1"
            error = refused.json()["error"]
            message = error["message"] if path == "/v1/completions" else error
            assert message.startswith("The server has too many connections.")
        for client in idle:
            client.close()
        time.sleep(0.1)
        ask(url)


@pytest.mark.slow
def test_slow_clients_are_left(monkeypatch):
    monkeypatch.setattr(Connection, "seconds", 1.5)
    limits = Limits(body_timeout=2)
    with listening([of_echo(limits=limits)], limits) as url:
        head, body = drip(url, seconds=5)
        assert head == b""  # closed without an answer
        assert b"408" in body.splitlines()[0] and b"within 2 s" in body
        ask(url)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "body"),
    [
        (b"/generate", b'{"inputs": "left"}'),
        (b"/v1/completions", b'{"model": "echo", "prompt": "left", "stream": true}'),
    ],
)
def test_texts_of_clients_that_leave_are_not_computed(route, body):
    models = []
    with listening([of_echo(made=models)]) as url:
        place, (served,) = httpx.URL(url), models
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        request = head % (route, len(body)) + body
        served.may_compute.clear()
        clients = [socket.create_connection((place.host, place.port)) for _ in range(3)]
        for client in clients:
            client.sendall(request)
            time.sleep(0.1)
        assert served.batcher.waiting() == 2
        clients[1].close()
        clients[2].close()
        end = time.monotonic() + 5
        while served.batcher.waiting() and time.monotonic() < end:
            time.sleep(0.01)
        served.may_compute.set()
        assert clients[0].recv(9).startswith(b"HTTP/1.1")
        clients[0].close()
        ask(url)
        assert served.texts == [b"left", b"abc"]


@pytest.mark.slow
def test_what_is_not_answered_in_time_at_the_end_is_refused():
    models = []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with listening([of_echo(made=models)]) as url:
            models[0].may_compute.clear()
            body = {"inputs": "a"}
            late = pool.submit(httpx.post, f"{url}/generate", json=body, timeout=30)
            end = time.monotonic() + 5
            while not models[0].thread.busy and time.monotonic() < end:
                time.sleep(0.01)
        response = late.result()
    models[0].may_compute.set()
    assert response.status_code == 503 and response.headers["Retry-After"] == "5"
    assert response.json()["error"].startswith("The server is ending.")
