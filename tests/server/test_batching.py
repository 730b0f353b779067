"""Requests that come together are computed together, and one alone at once."""

import asyncio
import time

import pytest

from remixer_tf.server.batching import Batcher, Thread, in_halves
from remixer_tf.server.limits import Refusal
from remixer_tf.server.signatures import Signature, Tensor, how_many
from tests.server.conftest import LIMITS
from tests.server.echo import Echo


def echo(wait=0.003):
    thread = Thread("echo")
    served = Echo("echo", LIMITS, thread)
    served.open()
    served.batcher._wait = wait
    return served


async def ask(served, text, **options):
    signature, rows = await served.questions([text], options)
    (found,) = await served.ask(signature, rows)
    return found["outputs"]


def test_rows_fill_up_a_size_or_leave_the_rest():
    sizes = (1, 4, 16)
    found = [how_many(sizes, n) for n in range(1, 20)]
    assert found == [1, 2, 3, 4, 4, 4, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 16, 16, 16]


def test_what_waits_is_computed_together():
    async def test():
        served = echo()
        served.may_compute.clear()
        first = asyncio.create_task(ask(served, b"first"))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(ask(served, b"x%d" % i)) for i in range(4)]
        other_group = asyncio.create_task(ask(served, b"y", seed=1))
        await asyncio.sleep(0.05)
        served.may_compute.set()
        assert await first == b"FIRST"
        assert await asyncio.gather(*others) == [b"X0", b"X1", b"X2", b"X3"]
        assert await other_group == b"Y1"
        assert served.batches == [1, 4, 1]
        served.close()

    asyncio.run(test())


def test_a_request_alone_waits_for_nobody():
    async def test():
        served = echo(wait=20)
        start = time.monotonic()
        for _ in range(50):
            await ask(served, b"alone")
        assert time.monotonic() - start < 10
        served.close()

    asyncio.run(test())


def test_clients_that_are_expected_again_are_waited_for():
    """Four clients, each of whom asks again when answered, stay together."""

    async def client(served, name):
        for i in range(5):
            await ask(served, b"%d %d" % (name, i))
            await asyncio.sleep(0.0005 * name)

    async def test():
        served = echo(wait=0.3)
        await asyncio.gather(*(client(served, name) for name in range(4)))
        assert served.batches.count(4) >= 4 and len(served.batches) <= 9
        served.close()

    asyncio.run(test())


def test_a_request_of_several_texts_is_one_client():
    async def test():
        served = echo(wait=20)
        signature, rows = await served.questions([b"a", b"b", b"c"], {})
        start = time.monotonic()
        for _ in range(2):
            await served.ask(signature, rows)
            await ask(served, b"alone")
        assert time.monotonic() - start < 10
        assert served.batches == [4, 1, 4, 1]  # filled up
        served.close()

    asyncio.run(test())


def test_long_texts_are_computed_apart_from_short_ones():
    async def test():
        served = echo()
        served.may_compute.clear()
        first = asyncio.create_task(ask(served, b"first"))
        await asyncio.sleep(0.02)
        texts = [b"a" * n for n in (1, 90, 2, 80, 3, 70, 4, 60)]
        others = [asyncio.create_task(ask(served, text)) for text in texts]
        await asyncio.sleep(0.02)
        served.may_compute.set()
        await asyncio.gather(first, *others)
        lengths = [len(text) for text in served.texts]
        assert sorted(lengths[1:5]) == [1, 2, 3, 4]
        served.close()

    asyncio.run(test())


def test_rows_of_clients_that_left_are_not_computed():
    async def test():
        served = echo()
        served.may_compute.clear()
        first = asyncio.create_task(ask(served, b"first"))
        await asyncio.sleep(0.02)
        left = asyncio.create_task(ask(served, b"left"))
        stays = asyncio.create_task(ask(served, b"stays"))
        await asyncio.sleep(0.02)
        assert served.batcher.waiting() == 2
        left.cancel()
        await asyncio.sleep(0.02)
        assert served.batcher.waiting() == 1
        served.may_compute.set()
        assert await stays == b"STAYS" and await first == b"FIRST"
        assert served.texts == [b"first", b"stays"]
        served.close()

    asyncio.run(test())


def test_a_full_queue_says_when_to_come_again():
    async def test():
        served = echo()
        served.may_compute.clear()
        tasks = []
        for number in (4, 12):  # what is computed, and what waits
            tasks += [asyncio.create_task(ask(served, b"x")) for _ in range(number)]
            await asyncio.sleep(0.02)
        with pytest.raises(Refusal) as raised:
            await ask(served, b"one more")
        assert raised.value.status == 429 and raised.value.headers["Retry-After"]
        served.may_compute.set()
        await asyncio.gather(*tasks)
        served.close()

    asyncio.run(test())


def test_a_row_that_fails_fails_alone():
    async def test():
        thread = Thread("fails")

        def compute(rows):
            if any(row["x"] == b"bad" for row in rows):
                raise ValueError("bad")
            return rows

        string = {"x": Tensor("string")}
        signature = Signature(string, string, compute, (1, 4))
        batcher = Batcher(thread)
        asked = [batcher.ask(signature, [{"x": x}]) for x in (b"good", b"bad", b"too")]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert found[0] == [{"x": b"good"}] and found[2] == [{"x": b"too"}]
        assert isinstance(found[1], ValueError)
        thread.stop()

    asyncio.run(test())


def test_rows_that_fail_are_found_in_halves():
    computed = []

    def upper(rows):
        computed.append(len(rows))
        if "bad" in rows:
            raise ValueError("bad")
        return [row.upper() for row in rows]

    rows = [*"abcdefghijkl", "bad", *"mno"]
    found, failure = in_halves(upper, rows)
    bad = found.pop(12)
    assert found == [*"ABCDEFGHIJKLMNO"] and isinstance(bad, ValueError)
    assert computed == [16, 8, 8, 4, 4, 2, 1, 1, 2]
    assert isinstance(failure, ValueError)
    ((alone,), failure) = in_halves(upper, ["bad"])
    assert isinstance(alone, ValueError) and failure is None
    assert in_halves(upper, ["a", "b"]) == (["A", "B"], None)
