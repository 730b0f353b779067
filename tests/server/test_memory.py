"""Memory does not grow with the number of requests, whatever they ask for."""

import concurrent.futures
import gc
import http.client
import json
import os
import random
import urllib.parse

import pytest

from remixer_tf.server.limits import Limits
from tests.server.conftest import listening, of_run

CLIENTS = 8


def megabytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def ask(url, number, seed):
    """Sends requests of many settings, one after the other."""
    rng, place = random.Random(seed), urllib.parse.urlsplit(url)
    client = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    for _ in range(number):
        text = "the cat slept " * rng.randrange(3) + str(rng.random())
        body = {"inputs": [text] * rng.randrange(1, 4)}
        body["max_length"] = rng.randrange(1, 5)
        if rng.random() < 0.5:
            body |= {"temperature": rng.random(), "seed": rng.randrange(10**9)}
        if rng.random() < 0.3:
            body["top_p"] = rng.uniform(0.1, 1)
        path = "/generate"
        if rng.random() < 0.2:
            path, body = "/score", {"inputs": text, "targets": str(rng.random())}
        client.request("POST", path, json.dumps(body))
        response = client.getresponse()
        found = response.read()
        assert response.status == 200, found
    client.close()


@pytest.mark.slower
def test_of_many_requests(bytes_run):
    limits = Limits(max_queue=100)
    source = of_run("tiny", bytes_run, limits, sizes=(1, 8))
    with listening([source], limits) as url:

        def send(number, seed):
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                parts = [number // CLIENTS] * CLIENTS
                seeds = range(seed, seed + CLIENTS)
                list(pool.map(ask, [url] * CLIENTS, parts, seeds))
            return megabytes()

        before = send(1000, 0)
        after = send(4000, 100)
        assert after < 1.05 * before, (before, after)
