"""Continuous batching: questions take the places of those that have their answers."""

import asyncio
import warnings

import numpy as np
import pytest

import remixer_tf as rt
from remixer_tf.server import writing
from remixer_tf.server.batching import Thread
from remixer_tf.server.writing import Writer
from remixer_tf.serving.continuous import ContinuousSearch

pytestmark = pytest.mark.slow
SIZES = 1, 2, 4
TEXTS = [b"A cat", b"the teacher slept", b"caf\xc3\xa9", b"", b"x" * 30, b"a b", b"c"]


@pytest.fixture(scope="module")
def run(bytes_run):
    return rt.load(bytes_run)


@pytest.fixture(scope="module")
def search(run):
    answerer, _ = run.answerer()
    longest = {"max_length": np.int32(answerer.tokens.max_length)}
    search = ContinuousSearch(run.model, answerer.tokens, answerer.lengths, longest)
    search.trace(search.shapes[0])
    search.trace_others()
    return search


@pytest.fixture
def writer(run, search, monkeypatch):
    """A `Writer` of short turns; `turns` has the numbers of new and other rows."""
    monkeypatch.setattr(writing, "_STEPS", 3)
    monkeypatch.setattr(writing, "_STREAMED_STEPS", 2)
    answerer, _ = run.answerer()
    longest = {"max_length": np.int32(answerer.tokens.max_length)}
    thread = Thread("writer")
    writer = Writer(search, answerer, longest, SIZES, thread)
    writer.turns = []
    turn = writer._turn

    def noted(new, writing):
        writer.turns.append((len(new), len(writing)))
        return turn(new, writing)

    writer._turn = noted
    yield writer
    thread.stop()


def expected(run, text, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # One is trimmed.
        return run.generate(text.decode(), **options)


def longest(length):
    return {"max_length": np.int32(length)}


def test_questions_begin_while_others_are_written(run, writer):
    lengths = [4, 16, 9, 7, 16, 5, 1]

    async def test():
        found = []
        for text, length in zip(TEXTS, lengths, strict=True):
            found.append(writer.ask(text, longest(length)))
            await asyncio.sleep(0.003)
        return await asyncio.gather(*found)

    found = asyncio.run(test())
    for answer, text, length in zip(found, TEXTS, lengths, strict=True):
        assert answer["outputs"].decode("utf-8", "replace") == expected(
            run, text, max_length=length
        )
        assert answer["trimmed"] == (len(text) > 23)
        assert answer["input_tokens"] == min(len(text), 23) + 1
    assert any(new and others for new, others in writer.turns)
    assert max(map(sum, writer.turns)) <= SIZES[-1]
    assert writer._places.questions == [] and writer.waiting() == 0


def test_a_client_that_leaves_makes_room(run, writer):
    async def test():
        first = [writer.ask(text, longest(16)) for text in TEXTS[:4]]
        while not writer.turns:
            await asyncio.sleep(0.001)
        first[1].cancel()
        last = writer.ask(TEXTS[5], longest(3))
        return await asyncio.gather(*first, last, return_exceptions=True)

    *found, last = asyncio.run(test())
    assert isinstance(found[1], asyncio.CancelledError)
    for i in (0, 2, 3):
        text = found[i]["outputs"].decode("utf-8", "replace")
        assert text == expected(run, TEXTS[i], max_length=16)
    assert last["outputs"].decode("utf-8", "replace") == expected(
        run, TEXTS[5], max_length=3
    )
    assert (1, 3) in writer.turns


def test_a_question_that_fails_fails_alone(run, writer, search, monkeypatch):
    begin = search.begin

    def failing(shape, tokens, settings):
        if (settings["max_length"] == 13).any():
            raise ValueError("bad")
        return begin(shape, tokens, settings)

    monkeypatch.setattr(search, "begin", failing)

    async def test():
        pieces = asyncio.Queue()
        good = writer.ask(TEXTS[0], longest(16), pieces)
        found = [await pieces.get()]
        bad, late = writer.ask(TEXTS[1], longest(13)), writer.ask(TEXTS[2], longest(6))
        answers = await asyncio.gather(good, bad, late, return_exceptions=True)
        while (piece := await pieces.get()) is not None:
            found.append(piece)
        return found, answers

    found, (good, bad, late) = asyncio.run(test())
    text = "".join(piece for piece, _ in found)
    assert text == good["outputs"].decode("utf-8", "ignore")
    assert found[-1][1] == good["tokens"]
    assert isinstance(bad, ValueError)
    for answer, text, length in ((good, TEXTS[0], 16), (late, TEXTS[2], 6)):
        assert answer["outputs"].decode("utf-8", "replace") == expected(
            run, text, max_length=length
        )


def test_a_turn_that_fails_is_written_again_together(run, writer, monkeypatch):
    """As when a batch needs more memory than there is: its halves may not."""
    write, sizes = writer._places.write, []

    def failing(steps):
        sizes.append(sum(row is not None for row in writer._places.questions))
        if sizes[-1] == 4:
            raise MemoryError("bad")
        return write(steps)

    monkeypatch.setattr(writer._places, "write", failing)

    async def test():
        pieces = asyncio.Queue()
        rows = [writer.ask(text, longest(16), pieces) for text in TEXTS[:1]]
        rows += [writer.ask(text, longest(16)) for text in TEXTS[1:4]]
        answers = await asyncio.gather(*rows)
        return answers, await pieces.get()

    answers, (piece, _) = asyncio.run(test())
    for answer, text in zip(answers, TEXTS, strict=False):
        assert answer["outputs"].decode("utf-8", "replace") == expected(
            run, text, max_length=16
        )
    assert piece == expected(run, TEXTS[0], max_length=16)
    assert sizes[:3] == [4, 4, 2] and sizes.count(2) >= 2


def test_an_answer_comes_in_pieces_beside_others(run, writer):
    async def test():
        pieces = asyncio.Queue()
        streamed = writer.ask(TEXTS[0], longest(16), pieces)
        other = writer.ask(TEXTS[1], longest(16))
        found = []
        while (piece := await pieces.get()) is not None:
            found.append(piece)
        return found, await streamed, await other

    found, streamed, other = asyncio.run(test())
    text = "".join(piece for piece, _ in found)
    assert text == streamed["outputs"].decode("utf-8", "ignore")
    lengths = [len(ids) for _, ids in found]
    assert lengths == sorted(lengths) and found[-1][1] == streamed["tokens"]
    assert len(found) == 8  # 16 tokens, two a turn
    assert other["outputs"].decode("utf-8", "replace") == expected(
        run, TEXTS[1], max_length=16
    )
