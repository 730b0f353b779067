"""64 clients at once: no error, no answer of another's, and memory that stays."""

import gc
import http.client
import itertools
import json
import os
import random
import threading
import time
import urllib.parse

import pytest

import remixer_tf as rt
from remixer_tf.server.limits import Limits
from tests.server.conftest import listening, of_echo, of_run

CLIENTS = 64
LIMITS = Limits(max_queue=4 * CLIENTS)


def megabytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def send(url, asked, seconds, requests):
    """Has all clients ask until both are over.

    Each asks for pairs of `asked`: the fields of a request, and the answers or None.
    Returns the mistakes, and the memory after 1,000 requests, in megabytes.
    """
    place, end = urllib.parse.urlsplit(url), time.monotonic() + seconds
    numbers, wrong, memory = itertools.count(1), [], []

    def client(seed):
        rng = random.Random(seed)
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
        while not wrong:
            fields, expected = rng.choice(asked)
            call = "score" if "targets" in fields else "generate"
            connection.request("POST", f"/{call}", json.dumps(fields))
            response = connection.getresponse()
            body = json.loads(response.read())
            same = expected is None or body.get("outputs") == expected
            if response.status != 200 or not same:
                wrong.append((fields, expected, response.status, body))
            number = next(numbers)
            if number == 1000:
                memory.append(megabytes())
            if number >= requests and time.monotonic() > end:
                break
        connection.close()

    threads = [threading.Thread(target=client, args=[i]) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong, memory


def test_of_a_moment():
    texts = [f"{'x' * (i % 9)} {i}" for i in range(40)]
    asked = [({"inputs": text}, text.upper()) for text in texts]
    for pair in itertools.pairwise(texts):
        asked.append(({"inputs": pair}, [text.upper() for text in pair]))
    with listening([of_echo(limits=LIMITS)], LIMITS) as url:
        wrong, _ = send(url, asked, 0.5, 500)
    assert not wrong


@pytest.mark.slow
@pytest.mark.slower
def test_of_ten_minutes_and_100000_requests(bytes_run):
    run, rng, asked = rt.load(bytes_run), random.Random(0), []
    for i in range(60):
        text = "the cat slept "[: rng.randrange(14)] + str(i)
        options = {"max_length": rng.randrange(1, 17)}
        if i % 3 == 1:
            options |= {"temperature": rng.random() + 0.1, "seed": i}
        if i % 6 == 1:
            options["top_p"] = rng.uniform(0.2, 0.9)
        expected = run.generate(text, **options)
        asked.append(({"inputs": text, **options}, expected))
        expected = run.generate([text, "dog", text], max_length=9)
        asked.append(({"inputs": [text, "dog", text], "max_length": 9}, expected))
        if i % 3 == 0:
            asked.append(({"inputs": text, "targets": str(rng.random())}, None))
    source = of_run("tiny", bytes_run, LIMITS, (1, 4, 8, 16, 32))
    with listening([source], LIMITS) as url:
        wrong, before = send(url, asked, 600, 100_000)
        after = megabytes()
    assert not wrong
    assert after < 1.05 * before[0], (before, after)
